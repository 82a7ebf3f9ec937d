//! The graph domain: networks as programs write them, chains that must become one kernel, views,
//! several outputs, an empty batch, and a few random graphs. ([`crate::check_graphs`] checks
//! thousands of those.)

use panoply_core::graph::{Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{ConvOptions, Reduction, TopK};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Result, Tensor};

use crate::chains::{add_layernorm_gelu, attention, chain10, norm_rows, softmax_mask};
use crate::random_graph::{RandomGraph, random_graph};
use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::random_tensor;

/// Number of random graphs in every run of the suite.
const RANDOM_GRAPHS: u64 = 24;

/// Every case of the domain.
pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for (dtype, tolerance) in [(DType::F32, 1e-4), (DType::F16, 2e-2), (DType::BF16, 1e-1)] {
        let tolerance = Tolerance::Close { relative: tolerance, absolute: tolerance };
        for batch in [0, 1, 3, 64] {
            let name = format!("graph/{dtype}/mlp/{batch}");
            cases.push(Case::new(name, made(mlp(dtype), &[random_tensor(dtype, &[batch, 28], 1)]), tolerance));
        }
        for (name, graph, inputs) in chains(dtype) {
            cases.push(Case::new(format!("graph/{dtype}/{name}"), made(graph, &inputs), tolerance));
        }
        let images = random_tensor(dtype, &[2, 3, 9, 9], 9);
        cases.push(Case::new(format!("graph/{dtype}/convolution"), made(convolution(dtype), &[images]), tolerance));
        for (batch, length) in [(0, 3), (1, 1), (2, 17), (2, 70)] {
            let name = format!("graph/{dtype}/layer/{batch}x{length}");
            cases.push(Case::new(
                name,
                made(layer(dtype), &[random_tensor(dtype, &[batch, length, 32], 3)]),
                tolerance,
            ));
        }
    }
    let x = random_tensor(DType::F32, &[5, 8], 3);
    let tolerance = Tolerance::Close { relative: 1e-5, absolute: 1e-5 };
    cases.push(Case::new("graph/f32/views", made(views(), std::slice::from_ref(&x)), tolerance));
    cases.push(Case::new("graph/f32/outputs", made(outputs(), &[x]), tolerance));
    for seed in 0..RANDOM_GRAPHS {
        let RandomGraph { op, tolerance } = random_graph(seed);
        cases.push(Case::new(format!("graph/random/{seed}"), op, tolerance));
    }
    cases
}

fn made(graph: Result<Graph>, inputs: &[Tensor]) -> RunGraph {
    let graph = graph.unwrap_or_else(|error| panic!("the suite's graph is wrong: {error}"));
    RunGraph::new(&graph, &inputs.iter().collect::<Vec<_>>())
}

fn mlp(dtype: DType) -> Result<Graph> {
    let mut g = Graph::builder("mlp");
    let batch = g.symbol("batch")?;
    let mut x = g.input("x", dtype, &[batch, 28.into()])?;
    for (layer, (from, to)) in [(28, 32), (32, 16), (16, 10)].into_iter().enumerate() {
        let scale = g.unnamed_constant(&Tensor::scalar(1.0 / (from as f32).sqrt())?)?;
        let scale = g.cast(scale, dtype)?;
        let w = g.unnamed_constant(&random_tensor(dtype, &[from, to], layer as u64 + 10))?;
        let w = g.mul(w, scale)?;
        let bias = g.unnamed_constant(&random_tensor(dtype, &[to], layer as u64 + 20))?;
        x = g.linear(x, w, bias)?;
        x = if layer < 2 { g.relu(x)? } else { x };
    }
    g.output("y", x)?;
    g.finish()
}

fn chains(dtype: DType) -> Vec<(&'static str, Result<Graph>, Vec<Tensor>)> {
    let pair = || vec![random_tensor(dtype, &[6, 40], 4), random_tensor(dtype, &[6, 40], 5)];
    let built = |build: fn(&mut GraphBuilder, NodeId, NodeId) -> Result<NodeId>| {
        let mut g = Graph::builder("chain");
        let rows = g.symbol("rows")?;
        let x = g.input("x", dtype, &[rows, 40.into()])?;
        let y = g.input("y", dtype, &[rows, 40.into()])?;
        let z = build(&mut g, x, y)?;
        g.output("z", z)?;
        g.finish()
    };
    vec![
        ("chain10", built(chain10), pair()),
        ("add_layernorm_gelu", built(layernorm), pair()),
        ("softmax_mask", built(softmax_mask), pair()),
        ("norm_rows", built(lengths), pair()),
        ("residual", built(residual), pair()),
    ]
}

fn layernorm(g: &mut GraphBuilder, x: NodeId, y: NodeId) -> Result<NodeId> {
    let (dtype, _) = g.type_of(x)?;
    let weight = g.constant("weight", &random_tensor(dtype, &[40], 6))?;
    let bias = g.constant("bias", &random_tensor(dtype, &[40], 7))?;
    add_layernorm_gelu(g, x, y, weight, bias)
}

/// The lengths of rows, combined with the first column of another tensor.
fn lengths(g: &mut GraphBuilder, x: NodeId, y: NodeId) -> Result<NodeId> {
    let length = norm_rows(g, x)?;
    let first = g.slice(y, 1, 0, 1, 1)?;
    let (_, dims) = g.type_of(length)?;
    let dims = dims.to_vec();
    let first = g.reshape(first, &dims)?;
    g.add(length, first)
}

/// A product with a residual, a bias row, and further elementwise ops.
fn residual(g: &mut GraphBuilder, x: NodeId, y: NodeId) -> Result<NodeId> {
    let (dtype, _) = g.type_of(x)?;
    let w = g.constant("w", &random_tensor(dtype, &[40, 40], 8))?;
    let w = g.map(&[w], |e| &e[0] * 0.1)?;
    let turned = g.permute(w, &[1, 0])?;
    let bias = g.constant("b", &random_tensor(dtype, &[40], 9))?;
    let h = g.matmul(x, turned)?;
    let h = g.add(h, bias)?;
    let h = g.add(y, h)?;
    let h = g.gelu(h)?;
    let t = g.matmul(h, w)?;
    g.sigmoid(t)
}

/// Attention with two heads of eight, a common mask, and a residual.
fn layer(dtype: DType) -> Result<Graph> {
    let mut g = Graph::builder("layer");
    let (batch, length) = (g.symbol("batch")?, g.symbol("length")?);
    let x = g.input("x", dtype, &[batch, length, 32.into()])?;
    let mut heads = |seed: u64| -> Result<NodeId> {
        let w = g.unnamed_constant(&random_tensor(dtype, &[32, 16], seed))?;
        let w = g.map(&[w], |e| &e[0] * 0.1)?;
        let y = g.matmul(x, w)?;
        let y = g.reshape(y, &[batch, length, 2.into(), 8.into()])?;
        g.permute(y, &[0, 2, 1, 3])
    };
    let (q, k, v) = (heads(1)?, heads(2)?, heads(3)?);
    let mask = g.slice(x, 2, 0, 1, 1)?;
    let mask = g.reshape(mask, &[batch, 1.into(), 1.into(), length])?;
    let y = attention(&mut g, q, k, v, Some(mask))?;
    let y = g.permute(y, &[0, 2, 1, 3])?;
    let y = g.reshape(y, &[batch, length, 16.into()])?;
    let first = g.slice(x, 2, 0, 16, 1)?;
    let y = g.add(first, y)?;
    g.output("y", y)?;
    g.finish()
}

fn convolution(dtype: DType) -> Result<Graph> {
    let mut g = Graph::builder("convolution");
    let batch = g.symbol("batch")?;
    let x = g.input("x", dtype, &[batch, 3.into(), 9.into(), 9.into()])?;
    let w = g.constant("w", &random_tensor(dtype, &[4, 3, 3, 3], 1))?;
    let w = g.map(&[w], |e| &e[0] * 0.2)?;
    let bias = g.constant("bias", &random_tensor(dtype, &[4, 1, 1], 2))?;
    let options = ConvOptions { padding: [1; 4], ..ConvOptions::default() };
    let h = g.conv2d(x, w, options)?;
    let h = g.add(h, bias)?;
    let h = g.relu(h)?;
    // A second convolution, followed by a residual and an activation.
    let again = g.constant("again", &random_tensor(dtype, &[4, 4, 3, 3], 3))?;
    let again = g.map(&[again], |e| &e[0] * 0.2)?;
    let r = g.conv2d(h, again, options)?;
    let r = g.add(r, bias)?;
    let h = g.add(r, h)?;
    let h = g.relu(h)?;
    let h = g.max_pool(h, [2, 2])?;
    let h = g.reshape(h, &[batch, 64.into()])?;
    let h = g.reduce(Reduction::Mean, h, &[1])?;
    g.output("y", h)?;
    g.finish()
}

fn views() -> Result<Graph> {
    let mut g = Graph::builder("views");
    let batch = g.symbol("batch")?;
    let x = g.input("x", DType::F32, &[batch, 8.into()])?;
    let halves = g.reshape(x, &[batch, 2.into(), 4.into()])?;
    let turned = g.permute(halves, &[2, 1, 0])?;
    let soft = g.softmax(turned, 2)?;
    let flat = g.reshape(turned, &[batch * 8])?;
    let every = g.slice(x, 1, 1, 8, 3)?;
    let column = g.slice(x, 1, 0, 1, 1)?;
    let wide = g.broadcast(column, &[2.into(), batch, 3.into()])?;
    let sum = g.add(wide, every)?;
    for (name, node) in [("turned", turned), ("soft", soft), ("flat", flat), ("sum", sum)] {
        g.output(name, node)?;
    }
    g.finish()
}

fn outputs() -> Result<Graph> {
    let mut g = Graph::builder("outputs");
    let batch = g.symbol("batch")?;
    let x = g.input("x", DType::F32, &[batch, 8.into()])?;
    let h = g.tanh(x)?;
    let (best, place) = g.op_pair(&[h], |t| TopK::new(&t[0], 3))?;
    let again = g.tanh(x)?;
    let twice = g.add(h, again)?;
    let unused = g.exp(x)?;
    let _ = g.neg(unused)?;
    let constant = g.constant("c", &random_tensor(DType::F32, &[4], 1))?;
    let folded = g.map(&[constant], |e| &e[0] + 1.0)?;
    for (name, node) in [("best", best), ("place", place), ("h", h), ("x", x), ("h_again", h), ("twice", twice)] {
        g.output(name, node)?;
    }
    g.output("constant", constant)?;
    g.output("folded", folded)?;
    g.finish()
}
