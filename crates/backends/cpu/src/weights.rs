//! Packed constants of graphs: right operands of matrix products, and weights of convolutions. They
//! are packed on first use, and kept as long as their graph.

use std::collections::{HashMap, HashSet};

use panoply_core::graph::{Graph, WeakGraph};
use panoply_core::{DType, Tensor};

use crate::conv::PackedWeights;
use crate::gemm::PackedRight;

/// Maximal size of all packed weights; beyond it weights are packed for each product.
const PACKED_BYTES_MAX: usize = 1 << 30;

/// The packed weights of one engine.
#[derive(Default)]
pub(crate) struct Weights {
    graphs: Vec<OfGraph>,
    /// The graph that is running.
    current: Option<usize>,
}

struct OfGraph {
    graph: WeakGraph,
    id: u64,
    /// Start addresses of the constants.
    constants: HashSet<usize>,
    packed: HashMap<Matrix, PackedRight>,
    filters: HashMap<Filters, PackedWeights>,
}

/// A matrix in memory that does not change while its graph exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Matrix {
    /// Start of the constant, and offset of the matrix within it.
    pub(crate) start: usize,
    pub(crate) offset: usize,
    pub(crate) dtype: DType,
    pub(crate) dims: [usize; 2],
    pub(crate) strides: [usize; 2],
    /// Whether it is multiplied with single rows, for which it is packed differently.
    pub(crate) for_one_row: bool,
}

/// Weights of convolutions in memory that does not change while its graph exists; contiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Filters {
    /// Start of the constant, and offset of the weights within it.
    pub(crate) start: usize,
    pub(crate) offset: usize,
    pub(crate) dtype: DType,
    /// Filters, channels per group, height and width.
    pub(crate) dims: [usize; 4],
    pub(crate) groups: usize,
}

impl Weights {
    /// Begins a graph. Drops the weights of graphs that no longer exist.
    pub(crate) fn begin(&mut self, graph: &Graph) {
        self.graphs.retain(|of| of.graph.is_alive());
        let known = self.graphs.iter().position(|of| of.id == graph.id());
        self.current = Some(known.unwrap_or_else(|| {
            let (graph, id) = (graph.downgrade(), graph.id());
            let (constants, packed, filters) = Default::default();
            self.graphs.push(OfGraph { graph, id, constants, packed, filters });
            self.graphs.len() - 1
        }));
    }

    /// Ends the graph.
    pub(crate) fn end(&mut self) {
        self.current = None;
    }

    /// Registers a constant of the running graph.
    pub(crate) fn note(&mut self, tensor: &Tensor) {
        if let (Some(current), Ok(bytes)) = (self.current, tensor.host_bytes()) {
            self.graphs[current].constants.insert(bytes.as_ptr() as usize);
        }
    }

    /// The packed form of a matrix, if it is a constant of the running graph.
    pub(crate) fn right(&mut self, matrix: Matrix) -> Option<&mut PackedRight> {
        let of = self.graph_of(matrix.start)?;
        if !of.packed.contains_key(&matrix) && !self.has_room_for(&matrix.dims, matrix.dtype.size_bytes()) {
            return None;
        }
        Some(self.graphs[self.current?].packed.entry(matrix).or_default())
    }

    /// The packed form of convolution weights, if they are a constant of the running graph.
    pub(crate) fn filters(&mut self, filters: Filters) -> Option<&mut PackedWeights> {
        let of = self.graph_of(filters.start)?;
        // Packed weights are at least f32, and may be packed in several orders.
        let number_bytes = PackedWeights::GROWTH_MAX * filters.dtype.size_bytes().max(size_of::<f32>());
        let mut dims = filters.dims;
        dims[0] = dims[0].next_multiple_of(PackedWeights::FILTERS_STEP);
        if !of.filters.contains_key(&filters) && !self.has_room_for(&dims, number_bytes) {
            return None;
        }
        Some(self.graphs[self.current?].filters.entry(filters).or_default())
    }

    /// The running graph, if `start` is the address of one of its constants. Constants live as long
    /// as their graph, so the address is unambiguous.
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
