//! Graphs through the runtime: whole, joined with others by their rows, and cut at ops that a device lacks.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::time::Duration;

use panoply_conformance::Tolerance;
use panoply_conformance::reference::reference;
use panoply_conformance::values::{difference, random_tensor};
use panoply_conformance::virtual_device::{Script, VirtualBackend};
use panoply_core::graph::Graph;
use panoply_core::op::compute::{TopK, Transfer};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Api, DType, DeviceId, Error, Location, Operation, Outcome, Tensor};
use panoply_cpu::CpuBackend;
use panoply_runtime::{Batching, RunOptions, Runtime};

const FIRST: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };
const SECOND: DeviceId = DeviceId { api: Api::SIMULATED, index: 1 };

/// A layer, the two largest of each row, and another layer of them.
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

#[test]
fn a_graph_is_cut_at_what_a_device_lacks() {
    let runtime = runtime([Script::new().resident().without("topk"), Script::new().resident()]);
    let (graph, x) = (graph(), random_tensor(DType::F32, &[5, 8], 3));
    let op = RunGraph::new(&graph, &[&x]);
    // As one op it can only run on the second device, and the router says why.
    let alternatives = runtime.explain(op.clone(), &RunOptions::default()).unwrap();
    let first = alternatives.iter().find(|alternative| alternative.device == FIRST).unwrap();
    assert!(format!("{:?}", first.verdict).contains("topk"), "{:?}", first.verdict);
    let Outcome { output, report } = runtime.run_in_parts(&op, FIRST, &RunOptions::default()).unwrap();
    expect(&runtime, &op, &output);
    assert_eq!(report.device, FIRST, "the last part");
    let [cut] = report.cuts.as_slice() else { panic!("{:?}", report.cuts) };
    assert_eq!((cut.from, cut.to), (FIRST, SECOND));
    assert!(cut.reason.contains("topk") && cut.bytes == (5 * 6 + 2 * 5 * 2) * 4, "{cut:?}");
    let Outcome { output, report } = runtime.run_in_parts(&op, SECOND, &RunOptions::default()).unwrap();
    expect(&runtime, &op, &output);
    assert_eq!((report.device, report.cuts.len()), (SECOND, 0));
    let nobody = DeviceId { api: Api::SIMULATED, index: 7 };
    assert!(matches!(runtime.run_in_parts(&op, nobody, &RunOptions::default()), Err(Error::NoSuchDevice { .. })));
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
