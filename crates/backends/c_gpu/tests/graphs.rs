//! Graphs on the emulated device: recorded when they run repeatedly, with constants that are
//! uploaded once.

#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use panoply_c_gpu::{EmulatedBackend, GpuBackend, GpuEngine};
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_conformance::{Tolerance, chains, run_one, run_there};
use panoply_core::graph::Graph;
use panoply_core::op::compute::{ConvOptions, Gather, Reduction, Transfer};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Absence, Backend, DType, Engine, OpenOptions, Operation, Tensor};

fn engine() -> Option<GpuEngine> {
    engine_of(EmulatedBackend::new())
}

fn engine_of(backend: Result<EmulatedBackend, Absence>) -> Option<GpuEngine> {
    match backend {
        Ok(backend) => {
            let device = backend.discover().unwrap().remove(0);
            Some(backend.open_engine(&device, &OpenOptions::default()).unwrap())
        }
        Err(absence) => {
            println!("skipped: {absence}");
            None
        }
    }
}

/// A graph of `count` layers of 16 neurons.
fn layers(count: u64) -> Graph {
    let mut g = Graph::builder("layers");
    let batch = g.symbol("batch").unwrap();
    let mut x = g.input("x", DType::F32, &[batch, 16.into()]).unwrap();
    for layer in 0..count {
        let w = g.unnamed_constant(&random_tensor(DType::F32, &[16, 16], layer)).unwrap();
        let bias = g.unnamed_constant(&random_tensor(DType::F32, &[16], layer + 100)).unwrap();
        x = g.linear(x, w, bias).unwrap();
        x = g.tanh(x).unwrap();
    }
    g.output("y", x).unwrap();
    g.finish().unwrap()
}

/// A graph of `count` layers of attention, with two heads of eight.
fn attentions(count: u64) -> Graph {
    let mut g = Graph::builder("attentions");
    let rows = g.symbol("rows").unwrap();
    let mut x = g.input("x", DType::F32, &[rows, 16.into()]).unwrap();
    for _ in 0..count {
        let heads = g.reshape(x, &[rows, 2.into(), 8.into()]).unwrap();
        let heads = g.permute(heads, &[1, 0, 2]).unwrap();
        let y = chains::attention(&mut g, heads, heads, heads, None).unwrap();
        let y = g.permute(y, &[1, 0, 2]).unwrap();
        let y = g.reshape(y, &[rows, 16.into()]).unwrap();
        x = g.add(x, y).unwrap();
        x = g.tanh(x).unwrap();
    }
    g.output("y", x).unwrap();
    g.finish().unwrap()
}

/// A graph of `count` convolutions of images of four by four pixels.
fn convolutions(count: u64) -> Graph {
    let mut g = Graph::builder("convolutions");
    let rows = g.symbol("rows").unwrap();
    let x = g.input("x", DType::F32, &[rows, 16.into()]).unwrap();
    let mut x = g.reshape(x, &[rows, 1.into(), 4.into(), 4.into()]).unwrap();
    for layer in 0..count {
        let w = g.unnamed_constant(&random_tensor(DType::F32, &[1, 1, 3, 3], layer)).unwrap();
        x = g.conv2d(x, w, ConvOptions { padding: [1; 4], ..ConvOptions::default() }).unwrap();
        x = g.tanh(x).unwrap();
    }
    g.output("y", x).unwrap();
    g.finish().unwrap()
}

fn check(engine: &mut GpuEngine, graph: &Graph, rows: usize, seed: u64) {
    let x = random_tensor(DType::F32, &[rows, 16], seed);
    let op = RunGraph::new(graph, &[&x]).into_op().unwrap();
    let expected = reference(&op).unwrap();
    let got = run_one(engine, op).unwrap();
    let close = Tolerance::Close { relative: 1e-4, absolute: 1e-4 };
    for (expected, got) in expected.tensors().zip(got.tensors()) {
        assert_eq!(difference(expected, got, close), None, "{rows} rows, seed {seed}");
    }
}

#[test]
fn a_graph_that_runs_again_is_one_call() {
    let Some(mut engine) = engine() else { return };
    [layers(7), attentions(4), convolutions(7)].iter().for_each(|graph| is_one_call(&mut engine, graph));
}

fn is_one_call(engine: &mut GpuEngine, graph: &Graph) {
    let mut launches = Vec::new();
    for seed in 0..5 {
        let before = engine.context_mut().launches();
        check(engine, graph, 3, seed);
        launches.push(engine.context_mut().launches() - before);
    }
    assert!(launches[0] >= 7, "{launches:?}: step by step");
    assert_eq!(launches[2..], [0, 0, 0], "recorded, and repeated without a launch of its own: {launches:?}");
    // Another size gets another recording, and the first recording is found again.
    (10..13).for_each(|seed| check(engine, graph, 5, seed));
    check(engine, graph, 3, 20);
}

/// A tensor on the device.
fn resident(engine: &mut GpuEngine, tensor: &Tensor) -> Tensor {
    let device = engine.context_mut().device;
    run_there(engine, Transfer::to_device(tensor, device).into_op().unwrap()).unwrap().into_tensor().unwrap()
}

fn to_host(engine: &mut GpuEngine, tensor: &Tensor) -> Tensor {
    run_one(engine, Transfer::to_host(tensor).into_op().unwrap()).unwrap().into_tensor().unwrap()
}

/// Copies do not pay for only two steps, so recordings use the inputs and outputs in place, and
/// repeated runs need no launches. Outputs that the caller keeps stay unchanged; recordings do not
/// hold inputs and outputs that the caller drops.
#[test]
fn a_graph_is_repeated_where_its_inputs_and_outputs_are() {
    let Some(mut engine) = engine() else { return };
    let graph = layers(2);
    let close = Tolerance::Close { relative: 1e-4, absolute: 1e-4 };
    let mut kept = Vec::new();
    let mut repeated = 0;
    for seed in 0..60 {
        let x = random_tensor(DType::F32, &[3, 16], seed);
        let there = resident(&mut engine, &x);
        let before = engine.context_mut().launches();
        let op = RunGraph::new(&graph, &[&there]).into_op().unwrap();
        let y = run_there(&mut engine, op).unwrap().tensors().next().unwrap().clone();
        repeated += usize::from(engine.context_mut().launches() == before);
        let expected = reference(&RunGraph::new(&graph, &[&x]).into_op().unwrap()).unwrap();
        let expected = expected.tensors().next().unwrap().clone();
        assert_eq!(difference(&expected, &to_host(&mut engine, &y), close), None, "seed {seed}");
        if seed % 10 == 0 {
            kept.push((expected, y));
        }
    }
    assert!(repeated >= 30, "{repeated} of 60 runs without a launch of their own");
    for (expected, y) in &kept {
        assert_eq!(difference(expected, &to_host(&mut engine, y), close), None);
    }
    let lent = engine.memory().lent_bytes;
    drop(kept);
    assert!(engine.memory().lent_bytes < lent, "recordings do not hold what they were given");
}

/// A recording keeps the block between its steps when a larger graph gets another block.
#[test]
fn a_larger_graph_takes_no_memory_from_recordings() {
    let Some(mut engine) = engine() else { return };
    let graph = layers(4);
    (0..4).for_each(|seed| check(&mut engine, &graph, 3, seed));
    check(&mut engine, &graph, 3000, 5);
    let own = random_tensor(DType::F32, &[2, 3, 16], 6);
    let others: Vec<Tensor> = (0..64).map(|_| resident(&mut engine, &own)).collect();
    let before = engine.context_mut().launches();
    check(&mut engine, &graph, 3, 7);
    assert_eq!(engine.context_mut().launches(), before, "repeated");
    for other in &others {
        assert_eq!(difference(&own, &to_host(&mut engine, other), Tolerance::Exact), None);
    }
}

#[test]
fn constants_are_brought_once_and_go_with_the_graph() {
    let Some(mut engine) = engine() else { return };
    let graph = layers(2);
    check(&mut engine, &graph, 2, 1);
    let lent = |engine: &mut GpuEngine| engine.memory().lent_bytes;
    let first = lent(&mut engine);
    for rows in [2, 2, 3, 4] {
        check(&mut engine, &graph, rows, rows as u64);
    }
    assert!(lent(&mut engine) < first + (16 << 10), "other sizes share the constants");
    drop(graph);
    let other = layers(1);
    check(&mut engine, &other, 2, 1);
    assert!(lent(&mut engine) < first, "what belonged to the graph is gone");
}

/// A training step: `w` is large, `b` is small and `rate` is on the host. Labels are looked up, so
/// that one of them may be wrong.
fn training_step() -> Graph {
    let mut g = Graph::builder("step");
    let x = g.input("x", DType::F32, &[4.into(), 16.into()]).unwrap();
    let labels = g.input("labels", DType::U32, &[4.into(), 1.into()]).unwrap();
    let w = g.input("w", DType::F32, &[LARGE.into()]).unwrap();
    let b = g.input("b", DType::F32, &[16.into()]).unwrap();
    let rate = g.input("rate", DType::F32, &[1.into()]).unwrap();
    let mut y = g.add(x, b).unwrap();
    for layer in 0..4 {
        let v = g.unnamed_constant(&random_tensor(DType::F32, &[16, 16], layer)).unwrap();
        y = g.matmul(y, v).unwrap();
        y = g.tanh(y).unwrap();
    }
    let own = g.op(&[y, labels], |t| Gather::along(&t[0], &t[1], 1)).unwrap();
    let loss = g.reduce(Reduction::Mean, own, &[0, 1]).unwrap();
    let db = g.reduce(Reduction::Sum, y, &[0]).unwrap();
    let new_w = g.map(&[w, loss, rate], |v| v[0].clone() - v[1].clone() * v[2].clone()).unwrap();
    let new_b = g.map(&[b, db, rate], |v| v[0].clone() - v[1].clone() * v[2].clone()).unwrap();
    for (name, node) in [("loss", loss), ("w", new_w), ("b", new_b)] {
        g.output(name, node).unwrap();
    }
    g.finish().unwrap()
}

/// Number of elements of the large parameter.
const LARGE: usize = 70_000;

/// Parameters go in and come out, the losses are kept, and small tensors come from the host. After
/// a few steps each step is one call and the copies around it. A wrong label is the error of its
/// own step only.
#[test]
fn steps_of_training_are_repeated() {
    let Some(mut engine) = engine() else { return };
    let graph = training_step();
    let close = Tolerance::Close { relative: 1e-4, absolute: 1e-4 };
    let x = random_tensor(DType::F32, &[4, 16], 1);
    let (mut w, mut b) = (random_tensor(DType::F32, &[LARGE], 2), random_tensor(DType::F32, &[16], 3));
    let there = resident(&mut engine, &x);
    let (mut their_w, mut their_b) = (resident(&mut engine, &w), resident(&mut engine, &b));
    let mut losses = Vec::new();
    let mut launches = Vec::new();
    for step in 0..24_u32 {
        let rate = Tensor::from_vec(vec![0.01 * (step + 1) as f32], [1]).unwrap();
        let labels = |last: u32| Tensor::from_vec(vec![step % 16, 7, 11, last], [4, 1]).unwrap();
        let wrong = resident(&mut engine, &labels(16));
        let op = RunGraph::new(&graph, &[&there, &wrong, &their_w, &their_b, &rate]).into_op().unwrap();
        let refused = run_there(&mut engine, op);
        assert!(refused.as_ref().is_err_and(|error| error.to_string().contains("16")), "{step}: {refused:?}");
        let expected = reference(&RunGraph::new(&graph, &[&x, &labels(5), &w, &b, &rate]).into_op().unwrap()).unwrap();
        let expected: Vec<Tensor> = expected.tensors().cloned().collect();
        let right = resident(&mut engine, &labels(5));
        let before = engine.context_mut().launches();
        let op = RunGraph::new(&graph, &[&there, &right, &their_w, &their_b, &rate]).into_op().unwrap();
        let made: Vec<Tensor> = run_there(&mut engine, op).unwrap().tensors().cloned().collect();
        launches.push(engine.context_mut().launches() - before);
        for (expected, made) in expected.iter().zip(&made) {
            assert_eq!(difference(expected, &to_host(&mut engine, made), close), None, "step {step}");
        }
        losses.push((expected[0].clone(), made[0].clone()));
        [w, b] = [expected[1].clone(), expected[2].clone()];
        [their_w, their_b] = [made[1].clone(), made[2].clone()];
    }
    assert_eq!(launches[20..], [2; 4], "one launch of copies before it and one behind it: {launches:?}");
    for (expected, loss) in &losses {
        assert_eq!(difference(expected, &to_host(&mut engine, loss), close), None);
    }
}

/// Runs a graph three times with its inputs on the host, compares the results with the reference,
/// and returns the launches of the first run.
fn first_launches(engine: &mut GpuEngine, graph: &Graph, inputs: &[Tensor]) -> u64 {
    let close = Tolerance::Close { relative: 1e-5, absolute: 1e-5 };
    let op = RunGraph::new(graph, &inputs.iter().collect::<Vec<_>>()).into_op().unwrap();
    let expected = reference(&op).unwrap();
    let mut launches = Vec::new();
    for run in 0..3 {
        let before = engine.context_mut().launches();
        let got = run_one(engine, op.clone()).unwrap();
        launches.push(engine.context_mut().launches() - before);
        for (place, (expected, got)) in expected.tensors().zip(got.tensors()).enumerate() {
            assert_eq!(difference(expected, got, close), None, "run {run}, output {place}");
        }
    }
    launches[0]
}

#[test]
fn steps_of_one_expression_are_one_launch_whatever_their_lengths() {
    let Some(mut engine) = engine() else { return };
    let mut g = Graph::builder("steps of an optimiser");
    let rate = g.input("rate", DType::F32, &[]).unwrap();
    let mut inputs = vec![Tensor::scalar(0.25_f32).unwrap()];
    for place in 0..30_usize {
        let dims = [[2, 3], [7, 5], [16, 16], [3, 500]][place % 4];
        let fixed = dims.map(panoply_core::graph::Dim::fixed);
        let mut input = |name: &str| {
            inputs.push(random_tensor(DType::F32, &dims, inputs.len() as u64));
            g.input(&format!("{name}.{place}"), DType::F32, &fixed).unwrap()
        };
        let (value, gradient, kept) = (input("value"), input("gradient"), input("kept"));
        let kept = g.map(&[kept, gradient], |v| v[0].clone() * 0.9 + v[1].clone()).unwrap();
        let new = g.map(&[value, kept, rate], |v| v[0].clone() - v[1].clone() * v[2].clone()).unwrap();
        g.output(&format!("kept.{place}"), kept).unwrap();
        g.output(&format!("new.{place}"), new).unwrap();
    }
    let graph = g.finish().unwrap();
    assert_eq!(first_launches(&mut engine, &graph, &inputs), 2, "one for what is kept, one for the values");
}

/// A step that needs the previous one is not deferred together with it.
#[test]
fn steps_that_read_each_other_are_launches_of_their_own() {
    let Some(mut engine) = engine() else { return };
    let mut g = Graph::builder("one after the other");
    let x = g.input("x", DType::F32, &[300.into()]).unwrap();
    let mut y = x;
    for place in 0..9 {
        y = g.map(&[y, x], |v| (v[0].clone() * v[1].clone()).tanh() + 1.0).unwrap();
        g.output(&format!("y.{place}"), y).unwrap();
    }
    let graph = g.finish().unwrap();
    assert_eq!(first_launches(&mut engine, &graph, &[random_tensor(DType::F32, &[300], 5)]), 9);
}

/// A copy from the host may still run when the call that queued it has returned. It then reads a
/// contiguous copy of the caller's view, and the running op has the only handle to that copy.
#[test]
fn views_of_the_host_are_read_after_the_call_that_queued_them() {
    let Some(mut engine) = engine_of(EmulatedBackend::new().map(EmulatedBackend::late_uploads)) else { return };
    let mut g = Graph::builder("views");
    let x = g.input("x", DType::F32, &[24.into(), 40.into()]).unwrap();
    let y = g.input("y", DType::F32, &[24.into(), 40.into()]).unwrap();
    let sum = g.add(x, y).unwrap();
    let shares = g.softmax(sum, 1).unwrap();
    g.output("shares", shares).unwrap();
    let graph = g.finish().unwrap();
    for seed in 0..8 {
        let view = |seed| random_tensor(DType::F32, &[40, 24], seed).transpose().unwrap();
        let (x, y) = (view(seed), view(seed + 100));
        let op = RunGraph::new(&graph, &[&x, &y]).into_op().unwrap();
        let (expected, got) = (reference(&op).unwrap(), run_one(&mut engine, op).unwrap());
        let close = Tolerance::Close { relative: 1e-5, absolute: 1e-6 };
        for (expected, got) in expected.tensors().zip(got.tensors()) {
            assert_eq!(difference(expected, got, close), None, "seed {seed}");
        }
    }
}
