//! A graph that has run before makes the same few allocations for any number of steps: no planning,
//! no copies of ops, no memory between steps.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::time::Duration;

use panoply_core::expr::BinaryOp;
use panoply_core::graph::{Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{ConvOptions, LayerNorm, Reduction};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Backend, DType, Engine, Item, OpenOptions, Operation, Result, Tensor, Value};
use panoply_counting_allocator::{Counting, allocations, live_bytes};
use panoply_cpu::CpuBackend;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of each run of any graph: the caller's list of inputs, the list of finished ops, the
/// list of outputs and the output's memory.
const PER_RUN: usize = 4;
const RUNS: usize = 16;

type Layer = fn(&mut GraphBuilder, NodeId) -> Result<NodeId>;

/// Layers that are not fused with the layers before and after them, and the allocations of their
/// kernels on every run: rows for threads, starts of heads, reduced axes.
const LAYERS: [(&str, usize, Layer); 8] = [
    ("matmul + bias + relu", 0, |g, x| {
        let w = g.unnamed_constant(&Tensor::zeros(DType::F32, [32, 32])?)?;
        let bias = g.unnamed_constant(&Tensor::zeros(DType::F32, [32])?)?;
        let y = g.linear(x, w, bias)?;
        g.relu(y)
    }),
    ("softmax", 0, |g, x| g.softmax(x, 1)),
    ("layer norm", 0, |g, x| g.op(&[x], |t| LayerNorm::new(&t[0]))),
    ("row map", 3, |g, x| {
        let y = g.with_number(BinaryOp::Mul, x, 0.5)?;
        let y = g.softmax(y, 1)?;
        g.with_number(BinaryOp::Add, y, 1.0)
    }),
    ("map and reduction", 3, |g, x| {
        let sum = g.reduce(Reduction::Sum, x, &[0])?;
        let y = g.sub(x, sum)?;
        g.tanh(y)
    }),
    ("attention", 4, |g, x| {
        let x = g.reshape(x, &[1.into(), 32.into(), 32.into()])?;
        let turned = g.permute(x, &[0, 2, 1])?;
        let scores = g.matmul(x, turned)?;
        let weights = g.softmax(scores, 2)?;
        let y = g.matmul(weights, x)?;
        g.reshape(y, &[32.into(), 32.into()])
    }),
    ("convolution and pooling", 0, |g, x| {
        let x = g.reshape(x, &[1.into(), 1.into(), 32.into(), 32.into()])?;
        let w = g.unnamed_constant(&Tensor::zeros(DType::F32, [4, 1, 3, 3])?)?;
        let y = g.conv2d(x, w, ConvOptions { padding: [1; 4], ..ConvOptions::default() })?;
        let y = g.max_pool(y, [2, 2])?;
        g.reshape(y, &[32.into(), 32.into()])
    }),
    ("convolution with a residual", 0, |g, x| {
        let x = g.reshape(x, &[1.into(), 1.into(), 32.into(), 32.into()])?;
        let w = g.unnamed_constant(&Tensor::zeros(DType::F32, [1, 1, 3, 3])?)?;
        let y = g.conv2d(x, w, ConvOptions { padding: [1; 4], ..ConvOptions::default() })?;
        let y = g.add(x, y)?;
        let y = g.relu(y)?;
        g.reshape(y, &[32.into(), 32.into()])
    }),
];

fn network(layer: Layer, count: usize) -> Graph {
    let mut g = Graph::builder("network");
    let mut x = g.input("x", DType::F32, &[32.into(), 32.into()]).unwrap();
    for _ in 0..count {
        x = layer(&mut g, x).unwrap();
    }
    g.output("y", x).unwrap();
    g.finish().unwrap()
}

fn run(engine: &mut dyn Engine, graph: &Graph, input: &Tensor, batch: &mut Vec<Item>) -> Value {
    batch.push(Item { token: 1, op: RunGraph::new(graph, &[input]).into_op().unwrap() });
    engine.submit(batch);
    let mut finished = Vec::with_capacity(1);
    engine.poll(&mut finished, Duration::ZERO);
    finished.pop().unwrap().result.unwrap()
}

/// Allocations of one repeated run, and bytes in use that the repeated runs have added.
fn steady(engine: &mut dyn Engine, graph: &Graph) -> (usize, isize) {
    let input = Tensor::zeros(DType::F32, [32, 32]).unwrap();
    let mut batch = Vec::with_capacity(1);
    (0..4).for_each(|_| drop(run(engine, graph, &input, &mut batch)));
    let (before, live) = (allocations(), live_bytes());
    (0..RUNS).for_each(|_| drop(run(engine, graph, &input, &mut batch)));
    ((allocations() - before).div_ceil(RUNS), live_bytes() as isize - live as isize)
}

/// A single test, because the allocator counts for the whole process.
#[test]
fn steps_that_ran_before_allocate_nothing() {
    let backend = CpuBackend::new();
    let device = &backend.discover().unwrap()[0];
    let mut engine = backend.open(device, &OpenOptions { threads: Some(1), ..OpenOptions::default() }).unwrap();
    let mut wrong = Vec::new();
    for (name, own, layer) in LAYERS {
        const FEW: usize = 4;
        const MANY: usize = 24;
        let (few, many) = (network(layer, FEW), network(layer, MANY));
        let ((of_few, _), (of_many, kept)) = (steady(engine.as_mut(), &few), steady(engine.as_mut(), &many));
        println!("{name}: {of_few} allocations a run of {FEW} layers, {of_many} of {MANY}, {kept} bytes kept");
        if (of_few, of_many, kept) != (PER_RUN + FEW * own, PER_RUN + MANY * own, 0) {
            wrong.push(name);
        }
    }
    assert!(wrong.is_empty(), "these ask for more, or less, than is said above: {wrong:?}");
}
