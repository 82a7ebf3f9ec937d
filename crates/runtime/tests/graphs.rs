//! Graphs through the runtime: whole, joined with others by their rows, and cut at ops that a
//! device lacks.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_conformance::Tolerance;
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_conformance::virtual_device::{Fault, Rates, Script, VirtualBackend};
use panoply_core::graph::Graph;
use panoply_core::op::compute::{TopK, Transfer};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Api, DType, DeviceId, Error, ErrorKind, Location, Operation, Outcome, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::{Batching, RunOptions, Runtime};

const FIRST: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };
const SECOND: DeviceId = DeviceId { api: Api::SIMULATED, index: 1 };

/// A layer, the two largest values of each row, and another layer of them.
fn graph() -> Graph {
    let mut g = Graph::builder("layers");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F32, &[batch, 8.into()]).unwrap();
    let w = g.constant("w", &random_tensor(DType::F32, &[8, 6], 1)).unwrap();
    let v = g.constant("v", &random_tensor(DType::F32, &[2, 3], 2)).unwrap();
    let h = g.matmul(x, w).unwrap();
    let h = g.relu(h).unwrap();
    let (best, place) = g.op_pair(&[h], |t| TopK::new(&t[0], 2)).unwrap();
    let y = g.matmul(best, v).unwrap();
    g.output("y", y).unwrap();
    g.output("place", place).unwrap();
    g.finish().unwrap()
}

fn runtime(scripts: impl IntoIterator<Item = Script>) -> Runtime {
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new()));
    let backend = scripts.into_iter().fold(backend, VirtualBackend::device);
    Runtime::builder().backend(Arc::new(backend)).build().unwrap()
}

fn expect(runtime: &Runtime, op: &RunGraph, outputs: &[Tensor]) {
    let expected = reference(&op.clone().into_op().unwrap()).unwrap();
    let close = Tolerance::Close { relative: 1e-5, absolute: 1e-5 };
    for (expected, got) in expected.tensors().zip(outputs) {
        let got = match got.location() {
            Location::Host => got.clone(),
            Location::Device(_) => runtime.run(Transfer::to_host(got)).wait().unwrap(),
        };
        assert_eq!(difference(expected, &got, close), None);
    }
}

#[test]
fn a_graph_is_an_op_like_the_others() {
    let runtime = runtime([Script::new()]);
    let (graph, x) = (graph(), random_tensor(DType::F32, &[5, 8], 3));
    let op = RunGraph::new(&graph, &[&x]);
    let Outcome { output, report } = runtime.run(op.clone()).with_report().wait().unwrap();
    expect(&runtime, &op, &output);
    assert_eq!((report.device, report.cuts.len(), output.len()), (FIRST, 0, 2));
    let wrong = random_tensor(DType::F32, &[5, 7], 3);
    let refused = runtime.run(RunGraph::new(&graph, &[&wrong])).wait().unwrap_err();
    assert!(matches!(&refused, Error::Node { node, .. } if node.contains("x")), "{refused}");
}

/// The devices of the graph's ops: a device without `topk`, one without `matmul`, and one that has
/// all.
fn without_topk() -> Script {
    Script::new().resident().without("topk")
}

fn without_matmul() -> Script {
    Script::new().resident().without("matmul")
}

#[test]
fn a_graph_that_no_device_runs_whole_is_cut_by_itself() {
    let runtime = runtime([without_topk(), without_matmul()]);
    let (graph, x) = (graph(), random_tensor(DType::F32, &[5, 8], 3));
    let op = RunGraph::new(&graph, &[&x]);
    for to_host in [false, true] {
        let options = RunOptions { to_host, ..RunOptions::default() };
        let Outcome { output, report } = runtime.run_with(op.clone(), options).with_report().wait().unwrap();
        assert_eq!(output.iter().all(|tensor| tensor.location() == Location::Host), to_host);
        expect(&runtime, &op, &output);
        assert_eq!((report.device, report.attempts, &report.fallback), (FIRST, 1, &None), "the last part");
        let [cut] = report.cuts.as_slice() else { panic!("{:?}", report.cuts) };
        assert_eq!((cut.from, cut.to), (FIRST, SECOND));
        assert!(cut.reason.contains("topk") && cut.bytes == (5 * 6 + 2 * 5 * 2) * 4, "{cut:?}");
        assert!(report.queued + report.ran < Duration::from_secs(30), "{report:?}");
    }
    assert_eq!(runtime.decide(&op.clone().into_op().unwrap(), &RunOptions::default()), Ok(FIRST));
    let pinned = runtime.run_with(op.clone(), RunOptions::require(FIRST)).wait().unwrap_err();
    assert!(matches!(&pinned, Error::Unsupported { reason, .. } if reason.contains("topk")), "{pinned}");
    let alone = RunOptions::default().forbid([SECOND]);
    let refused = runtime.run_with(op, alone).wait().unwrap_err();
    assert!(matches!(&refused, Error::Node { node, .. } if node.contains("topk")), "{refused}");
    for worker in runtime.workers() {
        let counters = worker.counters;
        let ended = counters.completed + counters.failed + counters.cancelled + counters.moved;
        assert_eq!((counters.accepted, counters.fallbacks), (ended, 0), "{counters:?}");
    }
}

#[test]
fn a_graph_is_cut_for_the_device_that_its_caller_prefers() {
    let runtime = runtime([without_topk(), Script::new().resident()]);
    let (graph, x) = (graph(), random_tensor(DType::F32, &[5, 8], 3));
    let op = RunGraph::new(&graph, &[&x]);
    // Without a wish the graph runs whole where it can, and the router explains its choice.
    let alternatives = runtime.explain(op.clone(), &RunOptions::default()).unwrap();
    let first = alternatives.iter().find(|alternative| alternative.device == FIRST).unwrap();
    assert!(format!("{:?}", first.verdict).contains("topk"), "{:?}", first.verdict);
    let Outcome { output, report } = runtime.run(op.clone()).with_report().wait().unwrap();
    expect(&runtime, &op, &output);
    assert_eq!((report.device, report.cuts.len()), (SECOND, 0));
    for (device, cuts) in [(FIRST, 1), (SECOND, 0)] {
        let ran = runtime.run_with(op.clone(), RunOptions::prefer(device)).with_report().wait();
        let Outcome { output, report } = ran.unwrap();
        expect(&runtime, &op, &output);
        assert_eq!((report.device, report.cuts.len()), (device, cuts));
    }
}

#[test]
fn parts_have_one_deadline_one_caller_and_their_own_fallbacks() {
    let slow = Duration::from_millis(60);
    let backend = VirtualBackend::new(Arc::new(CpuBackend::new()));
    let backend = backend.device(without_topk().latency(slow)).device(without_matmul()).device(without_matmul());
    let (topk, other) = (backend.control(1).unwrap(), backend.control(2).unwrap());
    let runtime = Runtime::builder().backend(Arc::new(backend)).build().unwrap();
    let (graph, x) = (graph(), random_tensor(DType::F32, &[5, 8], 3));
    let op = RunGraph::new(&graph, &[&x]);
    // The deadline passes while the first part runs, which takes longer than the deadline alone.
    let soon = RunOptions::default().deadline(Instant::now() + slow / 3);
    let late = runtime.run_with(op.clone(), soon).wait().unwrap_err();
    assert!(matches!(late, Error::DeadlineExceeded { .. }), "{late}");
    // When a caller drops its future, parts that have not begun are cancelled.
    drop(runtime.run(op.clone()));
    let quiet = || runtime.workers().iter().all(|worker| worker.queued == 0);
    let started = Instant::now();
    while !quiet() && started.elapsed() < Duration::from_secs(10) {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(slow * 2);
    assert_eq!((topk.counters().submitted, other.counters().submitted), (0, 0));
    // A part whose device fails goes to another device that can run it, and the report says so.
    topk.inject(Fault::Error);
    other.inject(Fault::Error);
    let ran = runtime.run(op.clone()).with_report().wait();
    let counts = (topk.counters().submitted, other.counters().submitted);
    match ran {
        // Both devices failed, so the caller gets the error.
        Err(error) => assert!(error.kind() == ErrorKind::Device && counts == (1, 1), "{error}: {counts:?}"),
        Ok(outcome) => panic!("{:?}", outcome.report),
    }
    topk.inject(Fault::Error);
    let Outcome { output, report } = runtime.run(op.clone()).with_report().wait().unwrap();
    expect(&runtime, &op, &output);
    let [cut] = report.cuts.as_slice() else { panic!("{:?}", report.cuts) };
    let fallback = report.fallback.clone().unwrap();
    assert_eq!((fallback.from, cut.to, report.attempts), (SECOND, DeviceId { index: 2, ..SECOND }, 2), "{report:?}");
    assert_eq!(report.device, FIRST);
}

/// Devices that fail from time to time while many graphs run in parts: each graph has one outcome,
/// and if that is an answer, it is the right one.
#[test]
fn every_cut_graph_has_one_outcome_whatever_its_devices_do() {
    const GRAPHS: usize = 300;
    let rates = Rates { error: 10_000, lost: 1_500, panic: 1_500, out_of_memory: 5_000, ..Rates::default() };
    let faulty = |script: Script, seed: u64| script.random_faults(seed, rates, Duration::ZERO);
    let runtime =
        runtime([faulty(without_topk(), 1), faulty(without_topk(), 2), faulty(without_matmul(), 3), without_matmul()]);
    let graph = graph();
    let ops: Vec<RunGraph> = (0..GRAPHS)
        .map(|number| RunGraph::new(&graph, &[&random_tensor(DType::F32, &[1 + number % 5, 8], number as u64)]))
        .collect();
    let options = RunOptions::default().to_host();
    let (mut answered, mut moved) = (0, 0);
    for wave in ops.chunks(20) {
        let send = |op: &RunGraph| runtime.run_with(op.clone(), options.clone()).with_report();
        let mut pending: Vec<_> = wave.iter().map(|op| (op, send(op))).collect();
        // A caller that does not wait for its graph.
        drop(pending.swap_remove(7));
        for (op, pending) in pending {
            match pending.wait() {
                Ok(Outcome { output, report }) => {
                    expect(&runtime, op, &output);
                    assert_eq!(report.cuts.len(), 1, "{report:?}");
                    answered += 1;
                    moved += usize::from(report.fallback.is_some());
                }
                // Both devices that have the ops of a part failed it, or are being reopened.
                Err(error) => assert!(matches!(error.kind(), ErrorKind::Device | ErrorKind::Capacity), "{error}"),
            }
        }
    }
    assert!(answered > GRAPHS / 2 && moved > 0, "{answered} answered, {moved} moved");
    let ended = runtime.shutdown(Duration::from_secs(30));
    assert!(ended.drained, "{ended:?}");
    for worker in runtime.workers() {
        let counters = worker.counters;
        let ended = counters.completed + counters.failed + counters.cancelled + counters.moved;
        assert_eq!(counters.accepted, ended, "{counters:?}");
    }
}

#[test]
fn a_runtime_that_ends_answers_the_parts_that_are_left() {
    let slow = Duration::from_millis(80);
    let runtime = runtime([without_topk().latency(slow), without_matmul().latency(slow)]);
    let (graph, x) = (graph(), random_tensor(DType::F32, &[5, 8], 3));
    let pending: Vec<_> = (0..4).map(|_| runtime.run(RunGraph::new(&graph, &[&x]))).collect();
    std::thread::sleep(slow / 2);
    runtime.abort();
    for pending in pending {
        let answer = pending.wait();
        assert!(answer.is_ok() || answer.unwrap_err().kind() == ErrorKind::Capacity);
    }
    assert_eq!(runtime.run(RunGraph::new(&graph, &[&x])).wait().unwrap_err(), Error::ShuttingDown);
}

#[test]
fn a_graph_goes_where_its_peak_fits() {
    let small = Script::new().memory_bytes(100 << 10);
    let runtime = runtime([small, Script::new()]);
    let mut g = Graph::builder("wide");
    let rows = g.symbol("rows").unwrap();
    let x = g.input("x", DType::F32, &[rows, 64.into()]).unwrap();
    let w = g.constant("w", &random_tensor(DType::F32, &[64, 64], 1)).unwrap();
    let h = g.matmul(x, w).unwrap();
    let s = g.softmax(h, 1).unwrap();
    let y = g.matmul(s, w).unwrap();
    g.output("y", y).unwrap();
    let graph = g.finish().unwrap();
    let device = |rows: usize, options: RunOptions| {
        let x = random_tensor(DType::F32, &[rows, 64], 3);
        let op = RunGraph::new(&graph, &[&x]);
        let Outcome { output, report } = runtime.run_with(op.clone(), options).with_report().wait()?;
        expect(&runtime, &op, &output);
        Ok(report.device)
    };
    assert_eq!(device(16, RunOptions::prefer(FIRST)), Ok(FIRST));
    assert_eq!(device(512, RunOptions::prefer(FIRST)), Ok(SECOND), "half a megabyte at its peak");
    let refused: Error = device(512, RunOptions::require(FIRST)).unwrap_err();
    let told = refused.to_string();
    assert!(told.contains("102400") && told.contains("at its peak") && told.contains("between steps"), "{told}");
}

#[test]
fn callers_rows_are_joined() {
    let mut g = Graph::builder("rows");
    let batch = g.symbol("batch").unwrap();
    let x = g.input("x", DType::F32, &[batch, 64.into()]).unwrap();
    let w = g.constant("w", &random_tensor(DType::F32, &[64, 16], 1)).unwrap();
    let h = g.matmul(x, w).unwrap();
    let h = g.softmax(h, 1).unwrap();
    g.output("h", h).unwrap();
    let graph = g.finish().unwrap();
    let batching = Batching::TimeOrSize { size_max: 8, wait_max: Duration::from_millis(20) };
    let runtime = Runtime::builder().backend(Arc::new(CpuBackend::new())).batching(batching).build().unwrap();
    let ops: Vec<RunGraph> =
        (1..9).map(|rows| RunGraph::new(&graph, &[&random_tensor(DType::F32, &[rows, 64], rows as u64)])).collect();
    let pending: Vec<_> = ops.iter().map(|op| runtime.run(op.clone()).with_report()).collect();
    let mut joined = 0;
    for (op, pending) in ops.iter().zip(pending) {
        let Outcome { output, report } = pending.wait().unwrap();
        expect(&runtime, op, &output);
        joined = joined.max(report.batch_size);
    }
    assert!(joined > 1, "some of eight callers ran together");
}
