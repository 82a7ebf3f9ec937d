//! A run of a graph that was refused leaves nothing behind for the next one.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::time::Duration;

use panoply_conformance::reference::reference;
use panoply_core::graph::Graph;
use panoply_core::op::compute::Gather;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Backend, DType, Engine, Item, Op, OpenOptions, Operation, Result, Tensor, Value};
use panoply_cpu::CpuBackend;

const ROWS: usize = 8;

/// A graph that gathers rows of the input, and then uses the input itself.
fn graph() -> Graph {
    let mut g = Graph::builder("rows in another order");
    let x = g.input("x", DType::F32, &[ROWS.into(), ROWS.into()]).unwrap();
    let order = g.input("order", DType::I32, &[ROWS.into()]).unwrap();
    let rows = g.op(&[x, order], |t| Gather::new(&t[0], &t[1], 0)).unwrap();
    let shares = g.softmax(rows, 1).unwrap();
    let own = g.softmax(x, 1).unwrap();
    g.output("shares", shares).unwrap();
    g.output("own", own).unwrap();
    g.finish().unwrap()
}

fn run(engine: &mut dyn Engine, op: &Op) -> Result<Value> {
    engine.submit(&mut vec![Item { token: 1, op: op.clone() }]);
    let mut finished = Vec::new();
    engine.poll(&mut finished, Duration::ZERO);
    finished.remove(0).result
}

fn numbers(value: &Value) -> Vec<Vec<f32>> {
    value.tensors().map(|tensor| tensor.to_vec().unwrap()).collect()
}

/// The failed step has announced its output and allocated nothing. An input of the same size, which
/// must be copied because it is a view, must not be placed at that output's memory.
#[test]
fn a_run_after_one_with_an_index_out_of_range_is_right() {
    let backend = CpuBackend::new();
    let device = &backend.discover().unwrap()[0];
    let mut engine = backend.open(device, &OpenOptions { threads: Some(1), ..OpenOptions::default() }).unwrap();
    let graph = graph();
    let values = Tensor::from_vec((0..ROWS * ROWS).map(|x| (x * 7 % 64) as f32 * 0.1).collect(), [ROWS, ROWS]).unwrap();
    let turned = values.transpose().unwrap();
    let order = |last: i32| Tensor::from_vec(vec![7, 6, 5, 4, 3, 2, 1, last], [ROWS]).unwrap();
    let op = |x: &Tensor, last: i32| RunGraph::new(&graph, &[x, &order(last)]).into_op().unwrap();
    for x in [&values, &turned] {
        run(engine.as_mut(), &op(&values, 0)).unwrap();
        assert!(run(engine.as_mut(), &op(&values, 99)).is_err());
        let got = run(engine.as_mut(), &op(x, 0)).unwrap();
        let expected = reference(&op(x, 0)).unwrap();
        for (got, expected) in numbers(&got).iter().flatten().zip(numbers(&expected).iter().flatten()) {
            assert!((got - expected).abs() < 1e-5, "expected {expected}, got {got}");
        }
    }
}
