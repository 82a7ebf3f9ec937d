//! Random graphs: whatever a seed makes of the builder. Values stay of the order of one and every op is smooth on floats,
//! so that an answer computed in another order is close; integers are exact.

use panoply_core::expr::{BinaryOp, TernaryOp, UnaryOp};
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{LayerNorm, MatMul, Reduce, Reduction, Softmax, Transpose};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Result, Tensor};

use crate::judge::Tolerance;
use crate::values::{Random, random_tensor};

/// A graph with inputs, and how close an answer must be.
#[derive(Clone, Debug)]
pub struct RandomGraph {
    /// The graph on its inputs.
    pub op: RunGraph,
    /// How close an answer must be.
    pub tolerance: Tolerance,
}

/// Which random graphs: so many, of so many structures. Every structure has kernels of its own on a device that compiles; graphs of one
/// structure differ in their sizes and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// How many graphs.
    pub count: u64,
    /// How many structures.
    pub structures: u64,
}

impl Seeds {
    /// So many graphs, each of its own structure.
    pub fn different(count: u64) -> Seeds {
        Seeds { count, structures: count }
    }

    /// So many graphs of so many structures; as many different ones as `PANOPLY_GRAPHS` says, where it says a number.
    pub fn or_asked(count: u64, structures: u64) -> Seeds {
        let asked = std::env::var("PANOPLY_GRAPHS").ok().and_then(|count| count.parse().ok());
        asked.map_or(Seeds { count, structures }, Seeds::different)
    }

    /// The graphs, with their numbers.
    pub fn graphs(self) -> impl Iterator<Item = (u64, RandomGraph)> {
        let structures = self.structures.max(1);
        (0..self.count).map(move |number| (number, random_graph_like(number % structures, number)))
    }
}

/// The graph of a seed: always the same.
pub fn random_graph(seed: u64) -> RandomGraph {
    random_graph_like(seed, seed)
}

/// The graph of a seed for its structure, and one for its sizes and values.
pub fn random_graph_like(structure: u64, sizes: u64) -> RandomGraph {
    let mut making = Making::new(structure, sizes);
    let built = making.build();
    let wrong = |error| panic!("the graph of the seeds {structure} and {sizes} is wrong: {error}");
    let (graph, batch) = built.unwrap_or_else(wrong);
    let inputs: Vec<Tensor> = graph
        .inputs()
        .iter()
        .map(|node| {
            let node = &graph.nodes()[*node];
            let size = |dim: &Dim| dim.as_fixed().unwrap_or(batch);
            random_tensor(node.dtype, &node.dims.iter().map(size).collect::<Vec<_>>(), making.sizes.next_u64())
        })
        .collect();
    let close = if making.has_halves { 6e-2 } else { 1e-3 };
    let op = RunGraph::new(&graph, &inputs.iter().collect::<Vec<_>>());
    RandomGraph { op, tolerance: Tolerance::Close { relative: close, absolute: close } }
}

struct Making {
    /// Decides what is done.
    random: Random,
    /// Decides with how much, and with which numbers.
    sizes: Random,
    nodes: Vec<NodeId>,
    has_halves: bool,
}

impl Making {
    fn new(structure: u64, sizes: u64) -> Making {
        let random = Random::new(structure.wrapping_mul(0x1234_5678_9abc_def1));
        let sizes = Random::new(sizes.wrapping_mul(0x0fed_cba9_8765_4321).wrapping_add(1));
        Making { random, sizes, nodes: Vec::new(), has_halves: false }
    }

    fn build(&mut self) -> Result<(Graph, usize)> {
        let mut g = Graph::builder("random");
        let batch = g.symbol("batch")?;
        let width = [1, 2, 3, 4, 8, 17][self.sized(6)];
        for input in 0..=self.below(3) {
            let dims: &[Dim] = match self.below(4) {
                0 => &[width.into()],
                1 => &[batch, 1.into()],
                2 => &[batch, 2.into(), width.into()],
                _ => &[batch, width.into()],
            };
            let dtype = [DType::F32, DType::F32, DType::F32, DType::F16, DType::I32][self.below(5)];
            self.has_halves |= dtype == DType::F16;
            let node = g.input(&format!("x{input}"), dtype, dims)?;
            self.nodes.push(node);
        }
        for _ in 0..2 + self.below(14) {
            // What does not fit is refused, and another node is tried.
            if let Ok(node) = self.node(&mut g) {
                self.nodes.push(node);
            }
        }
        let last = *self.nodes.last().unwrap_or(&self.nodes[0]);
        g.output("last", last)?;
        for output in 0..self.below(3) {
            let node = self.pick();
            g.output(&format!("y{output}"), node)?;
        }
        Ok((g.finish()?, [0, 1, 1, 2, 3, 5, 33][self.sized(7)]))
    }

    fn node(&mut self, g: &mut GraphBuilder) -> Result<NodeId> {
        let x = self.pick();
        let (dtype, dims) = g.type_of(x)?;
        let (dims, rank) = (dims.to_vec(), dims.len());
        let is_float = dtype.is_float();
        match self.below(17) {
            0..3 if is_float => g.unary(self.smooth(), x),
            0..3 => g.unary([UnaryOp::Neg, UnaryOp::Abs, UnaryOp::Relu][self.below(3)], x),
            3..6 => {
                let y = self.pick();
                g.binary([BinaryOp::Add, BinaryOp::Sub, BinaryOp::Min, BinaryOp::Max][self.below(4)], x, y)
            }
            6 if is_float => {
                let y = self.pick();
                let product = g.mul(x, y)?;
                g.tanh(product)
            }
            7 => g.with_number([BinaryOp::Add, BinaryOp::Mul][self.below(2)], x, [2.0, -1.0, 1.0][self.below(3)]),
            8 => self.cast(g, x),
            9 if rank > 0 => {
                let mut order: Vec<usize> = (0..rank).collect();
                order.rotate_left(self.below(rank));
                g.permute(x, &order)
            }
            10 if rank > 0 => {
                let product = dims.iter().fold(Dim::fixed(1), |product, dim| product * *dim);
                let last = dims[rank - 1];
                let target =
                    [vec![product], vec![product, 1.into()], [&[1.into()], dims.as_slice()].concat(), vec![last]];
                g.reshape(x, &target[self.below(4)])
            }
            11 if rank > 0 => {
                let axis = self.below(rank);
                let Some(size) = dims[axis].as_fixed() else { return g.unary(UnaryOp::Neg, x) };
                let start = self.sized(size.max(1));
                g.slice(x, axis, start, size, 1 + self.below(2))
            }
            12 if is_float && rank > 0 => {
                let axis = self.below(rank);
                g.op(&[x], |t| Softmax::new(&t[0]).axis(axis))
            }
            13 if is_float && rank > 0 => g.op(&[x], |t| LayerNorm::new(&t[0]).epsilon(0.1)),
            14 if rank > 0 => {
                let reduction = [Reduction::Mean, Reduction::Max, Reduction::Min, Reduction::Mean][self.below(4)];
                let (axis, keeps) = (self.below(rank), self.below(2) == 0);
                // The mean of integers is a float; nothing has no extreme, so only fixed axes are reduced.
                if !is_float || dims[axis].as_fixed().is_none_or(|size| size == 0) {
                    return g.unary(UnaryOp::Abs, x);
                }
                g.op(&[x], |t| {
                    let reduce = Reduce::new(&t[0], reduction).axes(&[axis]);
                    if keeps { reduce.keep_dims() } else { reduce }
                })
            }
            15 if is_float && rank > 1 => self.attention(g, x, &dims),
            _ if is_float && rank > 1 => self.product(g, x, dims[rank - 1]),
            _ => {
                let (y, z) = (self.pick(), self.pick());
                let sum = g.ternary(TernaryOp::MulAdd, x, y, z)?;
                if is_float { g.tanh(sum) } else { Ok(sum) }
            }
        }
    }

    /// A product with a constant, with a bias and a residual now and then.
    fn product(&mut self, g: &mut GraphBuilder, x: NodeId, depth: Dim) -> Result<NodeId> {
        let (dtype, dims) = g.type_of(x)?;
        let Some(depth) = depth.as_fixed().filter(|depth| *depth > 0) else { return g.tanh(x) };
        let rank = dims.len();
        let columns = [1, 3, 8, depth][self.sized(4)];
        let transposed = self.below(2) == 0;
        let shape = if transposed { [columns, depth] } else { [depth, columns] };
        let w = g.unnamed_constant(&random_tensor(dtype, &shape, self.random.next_u64()))?;
        let scale = 0.5 / (depth as f64).sqrt();
        let w = g.with_number(BinaryOp::Mul, w, scale)?;
        let mut product = g.op(&[x, w], |t| {
            let product = MatMul::new(&t[0], &t[1]);
            if transposed { product.transpose_b() } else { product }
        })?;
        if self.below(2) == 0 {
            let bias = g.unnamed_constant(&random_tensor(dtype, &[columns], self.random.next_u64()))?;
            product = g.add(product, bias)?;
        }
        if self.below(3) == 0 && columns == depth && rank > 1 {
            product = g.add(x, product)?;
        }
        if self.below(2) == 0 { g.relu(product) } else { g.tanh(product) }
    }

    /// What a compiler may take for attention, in one of the ways in which it is written, or almost.
    fn attention(&mut self, g: &mut GraphBuilder, x: NodeId, dims: &[Dim]) -> Result<NodeId> {
        let rank = dims.len();
        let Some(depth) = dims[rank - 1].as_fixed().filter(|depth| *depth > 0) else { return g.tanh(x) };
        let scale = 1.0 / (depth as f64).sqrt();
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(rank - 2, rank - 1);
        let q = if self.below(3) == 0 { g.with_number(BinaryOp::Mul, x, scale)? } else { x };
        let k = if self.below(2) == 0 { x } else { g.tanh(x)? };
        let mut scores = match self.below(3) {
            0 => g.op(&[q, k], |t| MatMul::new(&t[0], &t[1]).transpose_b())?,
            1 => {
                let turned = g.op(&[k], |t| Transpose::with_order(&t[0], &order))?;
                g.matmul(q, turned)?
            }
            _ => {
                let turned = g.permute(k, &order)?;
                g.matmul(q, turned)?
            }
        };
        if q == x {
            scores = g.with_number(BinaryOp::Mul, scores, scale)?;
        }
        if self.below(2) == 0 {
            // One number for each key.
            let mask = g.op(&[x], |t| Reduce::new(&t[0], Reduction::Mean).axes(&[rank - 1]).keep_dims())?;
            let mask = g.permute(mask, &order)?;
            scores = g.add(scores, mask)?;
        }
        let axis = if self.below(6) == 0 { rank - 2 } else { rank - 1 };
        let weights = g.op(&[scores], |t| Softmax::new(&t[0]).axis(axis))?;
        // Now and then somebody else may want what lies between.
        match self.below(6) {
            0 => self.nodes.push(scores),
            1 => self.nodes.push(weights),
            _ => {}
        }
        g.matmul(weights, x)
    }

    /// Integers are made floats; floats are made smaller or larger floats.
    fn cast(&mut self, g: &mut GraphBuilder, x: NodeId) -> Result<NodeId> {
        match g.type_of(x)?.0 {
            DType::I32 => {
                let float = g.cast(x, DType::F32)?;
                g.map(&[float], |e| (&e[0] * 0.001).tanh())
            }
            DType::F32 => {
                self.has_halves = true;
                g.cast(x, DType::F16)
            }
            _ => g.cast(x, DType::F32),
        }
    }

    fn smooth(&mut self) -> UnaryOp {
        let smooth =
            [UnaryOp::Tanh, UnaryOp::Sigmoid, UnaryOp::Relu, UnaryOp::Gelu, UnaryOp::Abs, UnaryOp::Neg, UnaryOp::Sin];
        smooth[self.below(smooth.len())]
    }

    fn pick(&mut self) -> NodeId {
        // The newest are picked most, so that chains grow.
        let back = self.below(self.nodes.len()).min(self.below(self.nodes.len()));
        self.nodes[self.nodes.len() - 1 - back]
    }

    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn sized(&mut self, bound: usize) -> usize {
        self.sizes.below(bound as u64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reference::reference;
    use panoply_core::{Operation, Value};

    #[test]
    fn random_graphs_are_many_and_run() {
        let mut ops = std::collections::HashSet::new();
        let mut nodes = 0;
        for seed in 0..300 {
            let RandomGraph { op, .. } = random_graph(seed);
            nodes += op.graph().nodes().len();
            ops.extend(op.graph().nodes().iter().map(|node| node.kind.name()));
            let count = op.graph().outputs().len();
            let value = reference(&op.into_op().unwrap()).unwrap();
            assert!(matches!(value, Value::List(parts) if parts.len() == count), "seed {seed}");
        }
        assert!(nodes > 2000 && ops.len() >= 10, "{nodes} nodes of {ops:?}");
    }
}
