//! Constants of graphs that are the right operands of products: packed when they are first multiplied with, and kept as long as their
//! graph is.

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
    constants: Vec<usize>,
    packed: Vec<(Matrix, PackedRight)>,
}

/// A matrix in memory that does not change as long as its graph is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Matrix {
    /// Where the constant begins, and the matrix within it.
    pub(crate) start: usize,
    pub(crate) offset: usize,
    pub(crate) dtype: DType,
    pub(crate) dims: [usize; 2],
    pub(crate) strides: [usize; 2],
}

impl Weights {
    /// A graph begins. What was kept for graphs that are gone goes.
    pub(super) fn begin(&mut self, graph: &Graph) {
        self.graphs.retain(|of| of.graph.is_alive());
        let known = self.graphs.iter().position(|of| of.id == graph.id());
        self.current = Some(known.unwrap_or_else(|| {
            let (graph, id) = (graph.downgrade(), graph.id());
            self.graphs.push(OfGraph { graph, id, constants: Vec::new(), packed: Vec::new() });
            self.graphs.len() - 1
        }));
    }

    /// The graph is over.
    pub(super) fn end(&mut self) {
        self.current = None;
    }

    /// A constant of the graph under way.
    pub(super) fn note(&mut self, tensor: &Tensor) {
        if let (Some(current), Ok(bytes)) = (self.current, tensor.host_bytes())
            && let start = bytes.as_ptr() as usize
            && !self.graphs[current].constants.contains(&start)
        {
            self.graphs[current].constants.push(start);
        }
    }

    /// Where a matrix is packed, if it is a constant of the graph under way.
    pub(crate) fn right(&mut self, matrix: Matrix) -> Option<&mut PackedRight> {
        let bytes: usize = self.graphs.iter().flat_map(|of| &of.packed).map(|(_, packed)| packed.bytes()).sum();
        let of = &mut self.graphs[self.current?];
        if let Some(place) = of.packed.iter().position(|(known, _)| *known == matrix) {
            return Some(&mut of.packed[place].1);
        }
        let elements = matrix.dims[0].saturating_mul(matrix.dims[1]);
        let fits = bytes.saturating_add(elements.saturating_mul(matrix.dtype.size_bytes())) <= PACKED_BYTES_MAX;
        if !fits || !of.constants.contains(&matrix.start) {
            return None;
        }
        of.packed.push((matrix, PackedRight::default()));
        of.packed.last_mut().map(|(_, packed)| packed)
    }
}
