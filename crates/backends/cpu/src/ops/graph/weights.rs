//! Constants of graphs that are the right operands of products or the weights of convolutions: packed when they are first used, and
//! kept as long as their graph is.

use std::collections::{HashMap, HashSet};

use panoply_core::graph::{Graph, WeakGraph};
use panoply_core::{DType, Tensor};

use crate::conv::PackedWeights;
use crate::gemm::PackedRight;

/// Bytes of packed weights that are kept; beyond them weights are packed for each product.
const PACKED_BYTES_MAX: usize = 1 << 30;

/// The packed weights of one engine.
#[derive(Default)]
pub(crate) struct Weights {
    graphs: Vec<OfGraph>,
    /// The graph under way.
    current: Option<usize>,
}

struct OfGraph {
    graph: WeakGraph,
    id: u64,
    /// Where constants begin.
    constants: HashSet<usize>,
    packed: HashMap<Matrix, PackedRight>,
    filters: HashMap<Filters, PackedWeights>,
}

/// A matrix in memory that does not change as long as its graph is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Matrix {
    /// Where the constant begins, and the matrix within it.
    pub(crate) start: usize,
    pub(crate) offset: usize,
    pub(crate) dtype: DType,
    pub(crate) dims: [usize; 2],
    pub(crate) strides: [usize; 2],
    /// Whether single rows are multiplied with it, for which it is packed in another way.
    pub(crate) for_one_row: bool,
}

/// Weights of convolutions in memory that does not change as long as its graph is there; all of them, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Filters {
    /// Where the constant begins, and the weights within it.
    pub(crate) start: usize,
    pub(crate) offset: usize,
    pub(crate) dtype: DType,
    /// Filters, channels of a group, height and width.
    pub(crate) dims: [usize; 4],
    pub(crate) groups: usize,
}

impl Weights {
    /// A graph begins. What was kept for graphs that are gone goes.
    pub(super) fn begin(&mut self, graph: &Graph) {
        self.graphs.retain(|of| of.graph.is_alive());
        let known = self.graphs.iter().position(|of| of.id == graph.id());
        self.current = Some(known.unwrap_or_else(|| {
            let (graph, id) = (graph.downgrade(), graph.id());
            let (constants, packed, filters) = Default::default();
            self.graphs.push(OfGraph { graph, id, constants, packed, filters });
            self.graphs.len() - 1
        }));
    }

    /// The graph is over.
    pub(super) fn end(&mut self) {
        self.current = None;
    }

    /// A constant of the graph under way.
    pub(super) fn note(&mut self, tensor: &Tensor) {
        if let (Some(current), Ok(bytes)) = (self.current, tensor.host_bytes()) {
            self.graphs[current].constants.insert(bytes.as_ptr() as usize);
        }
    }

    /// Where a matrix is packed, if it is a constant of the graph under way.
    pub(crate) fn right(&mut self, matrix: Matrix) -> Option<&mut PackedRight> {
        let of = self.graph_of(matrix.start)?;
        if !of.packed.contains_key(&matrix) && !self.has_room_for(&matrix.dims, matrix.dtype.size_bytes()) {
            return None;
        }
        Some(self.graphs[self.current?].packed.entry(matrix).or_default())
    }

    /// Where weights of convolutions are packed, if they are a constant of the graph under way.
    pub(crate) fn filters(&mut self, filters: Filters) -> Option<&mut PackedWeights> {
        let of = self.graph_of(filters.start)?;
        // Packed, they are at least f32, and may be there in several orders.
        let number_bytes = PackedWeights::GROWTH_MAX * filters.dtype.size_bytes().max(size_of::<f32>());
        if !of.filters.contains_key(&filters) && !self.has_room_for(&filters.dims, number_bytes) {
            return None;
        }
        Some(self.graphs[self.current?].filters.entry(filters).or_default())
    }

    /// The graph under way, if what begins here is a constant of it. As long as the graph is there its constants are, and nothing else
    /// lies where they do.
    fn graph_of(&self, start: usize) -> Option<&OfGraph> {
        Some(&self.graphs[self.current?]).filter(|of| of.graph.is_alive() && of.constants.contains(&start))
    }

    fn has_room_for(&self, dims: &[usize], number_bytes: usize) -> bool {
        let matrices = self.graphs.iter().flat_map(|of| of.packed.values()).map(PackedRight::bytes);
        let filters = self.graphs.iter().flat_map(|of| of.filters.values()).map(PackedWeights::bytes);
        let held: usize = matrices.chain(filters).sum();
        let asked = dims.iter().fold(number_bytes, |product, size| product.saturating_mul(*size));
        held.saturating_add(asked) <= PACKED_BYTES_MAX
    }
}
