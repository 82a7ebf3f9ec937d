//! Random graphs: each seed determines a graph. Values stay around one and every op is smooth on
//! floats, so that a result computed in another order is close; integers are exact.

use panoply_core::expr::{BinaryOp, TernaryOp, UnaryOp};
use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{
    Conv2d, LayerNorm, MatMul, Pool2d, Reduce, Reduction, Scan, Softmax, Sort, TopK, Transpose,
};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Result, Tensor};

use crate::tolerance::Tolerance;
use crate::values::{Random, random_tensor};

/// The element types of inputs; some are more frequent than others.
const INPUT_DTYPES: [DType; 10] = [
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F32,
    DType::F16,
    DType::F16,
    DType::BF16,
    DType::F64,
    DType::I32,
    DType::I8,
];

/// A graph with inputs, and the tolerance of its result.
#[derive(Clone, Debug)]
pub struct RandomGraph {
    /// The graph on its inputs.
    pub op: RunGraph,
    /// The tolerance of the result.
    pub tolerance: Tolerance,
}

/// A range of random graphs: their number, and the number of structures. Every structure has
/// kernels of its own on a device that compiles; graphs of one structure differ in their sizes and
/// values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seeds {
    /// The first seed.
    pub first: u64,
    /// Number of graphs.
    pub count: u64,
    /// Number of structures.
    pub structures: u64,
}

impl Seeds {
    /// `count` graphs, each with its own structure.
    pub fn different(count: u64) -> Seeds {
        Seeds { first: 0, count, structures: count }
    }

    /// `count` graphs of `structures` structures. If `PANOPLY_GRAPHS` is a number, as many
    /// different graphs instead. They begin at the seed in `PANOPLY_SEED`, or at 0.
    pub fn or_asked(count: u64, structures: u64) -> Seeds {
        let number = |name: &str| std::env::var(name).ok().and_then(|number| number.parse().ok());
        let first = number("PANOPLY_SEED").unwrap_or(0);
        let own = Seeds { first, count, structures };
        number("PANOPLY_GRAPHS").map_or(own, |count| Seeds { first, ..Seeds::different(count) })
    }

    /// The seeds, one after the other.
    pub fn numbers(self) -> impl Iterator<Item = u64> {
        (0..self.count).map(move |number| self.first.wrapping_add(number))
    }

    /// The graphs, with their numbers.
    pub fn graphs(self) -> impl Iterator<Item = (u64, RandomGraph)> {
        let structure = move |number: u64| self.first.wrapping_add(number % self.structures.max(1));
        self.numbers().zip(0..).map(move |(seed, number)| (seed, random_graph_like(structure(number), seed)))
    }
}

/// The graph of a seed; it is deterministic.
pub fn random_graph(seed: u64) -> RandomGraph {
    random_graph_like(seed, seed)
}

/// The graph of one seed for its structure, and another for its sizes and values.
pub fn random_graph_like(structure: u64, sizes: u64) -> RandomGraph {
    let mut making = GraphMaker::new(structure, sizes);
    let built = making.build();
    let wrong = |error| panic!("the graph of the seeds {structure} and {sizes} is wrong: {error}");
    let (graph, batch) = built.unwrap_or_else(wrong);
    let inputs: Vec<Tensor> = graph
        .inputs()
        .iter()
        .map(|node| {
            let node = &graph.nodes()[*node];
            let size = |dim: &Dim| dim.as_fixed().unwrap_or(batch);
            let dims: Vec<usize> = node.dims.iter().map(size).collect();
            let tensor = random_tensor(node.dtype, &dims, making.sizes.next_u64());
            // Callers pass views as well.
            if making.sizes.below(4) == 0 { column_major(&tensor).unwrap_or(tensor) } else { tensor }
        })
        .collect();
    let close = match (making.has_bf16, making.has_halves) {
        (true, _) => 0.25,
        (false, true) => 6e-2,
        (false, false) => 1e-3,
    };
    let op = RunGraph::new(&graph, &inputs.iter().collect::<Vec<_>>());
    RandomGraph { op, tolerance: Tolerance::Close { relative: close, absolute: close } }
}

/// The same elements with the first axis innermost in memory.
fn column_major(tensor: &Tensor) -> Result<Tensor> {
    let order: Vec<usize> = (0..tensor.shape().rank()).rev().collect();
    tensor.permute(&order)?.contiguous()?.permute(&order)
}

struct GraphMaker {
    /// Determines the structure.
    random: Random,
    /// Determines sizes and values.
    sizes: Random,
    nodes: Vec<NodeId>,
    /// The nodes that are inputs.
    inputs: Vec<NodeId>,
    has_halves: bool,
    has_bf16: bool,
}

impl GraphMaker {
    fn new(structure: u64, sizes: u64) -> GraphMaker {
        let random = Random::new(structure.wrapping_mul(0x1234_5678_9abc_def1));
        let sizes = Random::new(sizes.wrapping_mul(0x0fed_cba9_8765_4321).wrapping_add(1));
        GraphMaker { random, sizes, nodes: Vec::new(), inputs: Vec::new(), has_halves: false, has_bf16: false }
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
            let dtype = INPUT_DTYPES[self.below(INPUT_DTYPES.len())];
            self.has_halves |= dtype == DType::F16;
            self.has_bf16 |= dtype == DType::BF16;
            let node = g.input(&format!("x{input}"), dtype, dims)?;
            self.nodes.push(node);
            self.inputs.push(node);
        }
        for _ in 0..2 + self.below(14) {
            // An invalid node is refused, and another one is tried.
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
        match self.below(20) {
            17 if rank > 0 => self.ordered(g, x, &dims),
            18 if is_float && rank > 0 => {
                // A function of the sum keeps the values around one.
                let sum = g.op(&[x], |t| Scan::sum(&t[0]).axis(rank - 1))?;
                g.tanh(sum)
            }
            19 if is_float && rank == 3 => self.image(g, x, &dims),
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
                // Integers have a float mean, an empty axis no extreme: fixed axes alone.
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

    /// The largest elements, or all of them sorted. Their indices are used only if no earlier
    /// rounding can change which elements these are.
    fn ordered(&mut self, g: &mut GraphBuilder, x: NodeId, dims: &[Dim]) -> Result<NodeId> {
        let axis = self.below(dims.len());
        let Some(size) = dims[axis].as_fixed().filter(|size| *size > 0) else { return g.unary(UnaryOp::Abs, x) };
        if self.below(3) == 0 {
            return g.op(&[x], |t| Sort::new(&t[0]).axis(axis));
        }
        let k = 1 + self.sized(size);
        let (values, indices) = g.op_pair(&[x], |t| TopK::new(&t[0], k).axis(axis))?;
        if self.inputs.contains(&x) && g.type_of(x)?.0 == DType::F32 {
            let steps = g.cast(indices, DType::F32)?;
            let steps = g.map(&[steps], |e| (&e[0] * 0.01).tanh())?;
            self.nodes.push(steps);
        }
        Ok(values)
    }

    /// A convolution over an image of one row, sometimes with a bias, an activation and a pool.
    fn image(&mut self, g: &mut GraphBuilder, x: NodeId, dims: &[Dim]) -> Result<NodeId> {
        let dtype = g.type_of(x)?.0;
        let (Some(channels), Some(width)) = (dims[1].as_fixed(), dims[2].as_fixed()) else { return g.tanh(x) };
        if channels * width == 0 {
            return g.tanh(x);
        }
        let (filters, taps) = ([2, 3, 8][self.below(3)], [1, 3][self.below(2)]);
        let image = g.reshape(x, &[dims[0], channels.into(), 1.into(), width.into()])?;
        let shape = [filters, channels, 1, taps];
        let weights = g.unnamed_constant(&random_tensor(dtype, &shape, self.random.next_u64()))?;
        let weights = g.with_number(BinaryOp::Mul, weights, 0.5 / ((channels * taps) as f64).sqrt())?;
        let bias = g.unnamed_constant(&random_tensor(dtype, &[filters], self.random.next_u64()))?;
        let has_bias = self.below(2) == 0;
        let padding = [0, taps / 2, 0, taps / 2];
        let mut image = match has_bias {
            true => g.op(&[image, weights, bias], |t| Conv2d::new(&t[0], &t[1]).bias(&t[2]).padding(padding))?,
            false => g.op(&[image, weights], |t| Conv2d::new(&t[0], &t[1]).padding(padding))?,
        };
        image = if self.below(2) == 0 { g.relu(image)? } else { g.tanh(image)? };
        if self.below(3) == 0 && width > 1 {
            image = g.op(&[image], |t| Pool2d::max(&t[0], [1, 2]))?;
        }
        let [batch, filters, _, width] = g.type_of(image)?.1 else { return Ok(image) };
        let dims = [*batch, *filters, *width];
        g.reshape(image, &dims)
    }

    /// A product with a constant, sometimes with a bias and a residual.
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

    /// A pattern that a compiler may recognise as attention, in one of its usual forms, or almost.
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
        // Sometimes another node reads the intermediate tensors.
        match self.below(6) {
            0 => self.nodes.push(scores),
            1 => self.nodes.push(weights),
            _ => {}
        }
        g.matmul(weights, x)
    }

    /// Converts integers to floats, and floats to smaller or larger floats.
    fn cast(&mut self, g: &mut GraphBuilder, x: NodeId) -> Result<NodeId> {
        match g.type_of(x)?.0 {
            dtype @ (DType::I32 | DType::I8) => {
                let float = g.cast(x, DType::F32)?;
                let factor = if dtype == DType::I8 { 0.01 } else { 0.001 };
                g.map(&[float], |e| (&e[0] * factor).tanh())
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
        // Recent nodes are picked most often, so that chains grow.
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
        let mut dtypes = std::collections::HashSet::new();
        let (mut nodes, mut views) = (0, 0);
        for seed in 0..300 {
            let RandomGraph { op, .. } = random_graph(seed);
            nodes += op.graph().nodes().len();
            dtypes.extend(op.inputs().iter().map(Tensor::dtype));
            views += op.inputs().iter().filter(|input| !input.is_contiguous()).count();
            ops.extend(op.graph().nodes().iter().map(|node| node.kind.name()));
            let count = op.graph().outputs().len();
            let value = reference(&op.into_op().unwrap()).unwrap();
            assert!(matches!(value, Value::List(parts) if parts.len() == count), "seed {seed}");
        }
        assert!(nodes > 2000 && ops.len() >= 10, "{nodes} nodes of {ops:?}");
        assert!(INPUT_DTYPES.iter().all(|dtype| dtypes.contains(dtype)), "inputs of {dtypes:?} alone");
        assert!(views > 20, "{views} inputs are views");
    }

    #[test]
    fn other_seeds_are_other_graphs() {
        let text = |seeds: Seeds| -> Vec<String> {
            seeds.graphs().map(|(_, graph)| crate::check::shown(graph.op.graph())).collect()
        };
        let own = text(Seeds { first: 0, count: 6, structures: 3 });
        assert_eq!(own, text(Seeds { first: 0, count: 6, structures: 3 }));
        let other = text(Seeds { first: 1_763_000_000, count: 6, structures: 3 });
        assert!(own.iter().all(|graph| !other.contains(graph)));
    }
}
