//! Constants of graphs that are the right operands of products: packed when they are first multiplied with, and kept as long as their
//! graph is.

use std::collections::{HashMap, HashSet};

use panoply_core::graph::{Graph, WeakGraph};
use panoply_core::{DType, Tensor};

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

impl Weights {
    /// A graph begins. What was kept for graphs that are gone goes.
    pub(super) fn begin(&mut self, graph: &Graph) {
        self.graphs.retain(|of| of.graph.is_alive());
        let known = self.graphs.iter().position(|of| of.id == graph.id());
        self.current = Some(known.unwrap_or_else(|| {
            let (graph, id) = (graph.downgrade(), graph.id());
            self.graphs.push(OfGraph { graph, id, constants: HashSet::new(), packed: HashMap::new() });
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
        let of = &self.graphs[self.current?];
        // As long as the graph is there its constants are, and nothing else lies where they do.
        if !of.graph.is_alive() || !of.constants.contains(&matrix.start) {
            return None;
        }
        if !of.packed.contains_key(&matrix) && !self.has_room_for(matrix) {
            return None;
        }
        Some(self.graphs[self.current?].packed.entry(matrix).or_default())
    }

    fn has_room_for(&self, matrix: Matrix) -> bool {
        let held: usize = self.graphs.iter().flat_map(|of| of.packed.values()).map(PackedRight::bytes).sum();
        let elements = matrix.dims[0].saturating_mul(matrix.dims[1]);
        held.saturating_add(elements.saturating_mul(matrix.dtype.size_bytes())) <= PACKED_BYTES_MAX
    }
}
