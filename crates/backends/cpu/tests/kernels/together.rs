//! Batches: small ops share one parallel region, and searches of the same rows share one pass over
//! them.

use panoply_conformance::run_one;
use panoply_core::op::compute::{ComputeOp, Map, MatMul, Metric, Search};
use panoply_core::{Backend, Engine, FinishedOp, Item, Op, OpenOptions, Operation, Tensor, Value};
use panoply_cpu::CpuBackend;

fn engine() -> Box<dyn Engine> {
    let backend = CpuBackend::new();
    let info = backend.discover().unwrap().remove(0);
    backend.open(&info, &OpenOptions::default()).unwrap()
}

fn values(seed: usize, dims: &[usize]) -> Tensor {
    let count: usize = dims.iter().product();
    let value = |index: usize| ((index * 7 + seed * 13) % 17) as f32 - 8.0;
    Tensor::from_vec((0..count).map(value).collect(), dims).unwrap()
}

/// The results of a batch, in the order of its ops.
fn run(ops: Vec<Op>) -> Vec<FinishedOp> {
    let mut items: Vec<Item> =
        ops.into_iter().enumerate().map(|(token, op)| Item { token: token as u64, op }).collect();
    let (mut engine, mut finished) = (engine(), Vec::new());
    engine.submit(&mut items);
    engine.poll(&mut finished, std::time::Duration::ZERO);
    finished.sort_by_key(|finished| finished.token);
    finished
}

/// The results of the same ops, run one by one.
fn alone(ops: &[Op]) -> Vec<Value> {
    let mut engine = engine();
    ops.iter().map(|op| run_one(&mut *engine, op.clone()).unwrap()).collect()
}

fn bytes(value: &Value) -> Vec<Vec<u8>> {
    value.tensors().map(|tensor| tensor.as_bytes().unwrap().to_vec()).collect()
}

#[test]
fn small_ops_of_any_kind_run_side_by_side_and_in_order() {
    let mut ops = Vec::new();
    for number in 0..40 {
        let size = 8 + number % 5 * 16;
        let (a, b) = (values(number, &[size, size]), values(number + 1, &[size, size]));
        ops.push(MatMul::new(&a, &b).into_op().unwrap());
        ops.push(Map::add(&a, &b).into_op().unwrap());
    }
    let expected = alone(&ops);
    let ran = run(ops);
    assert!(ran.iter().all(|ran| ran.batch_size == 80), "one region for all of them");
    for (ran, expected) in ran.iter().zip(&expected) {
        assert_eq!(bytes(ran.result.as_ref().unwrap()), bytes(expected));
    }
}

#[test]
fn searches_of_the_same_rows_are_one_pass() {
    let (rows, other) = (values(1, &[500, 24]), values(2, &[500, 24]));
    let search = |rows: &Tensor, seed: usize, queries: usize, k: usize| {
        Search::new(rows, &values(seed, &[queries, 24]), Metric::Euclidean, k).into_op().unwrap()
    };
    let ops = vec![search(&rows, 3, 1, 4), search(&other, 4, 1, 4), search(&rows, 5, 2, 4), search(&rows, 6, 1, 5)];
    let expected = alone(&ops);
    let ran = run(ops);
    let sizes: Vec<bool> = ran.iter().map(|ran| ran.batch_size == 2).collect();
    assert!(sizes[0] && sizes[2], "the first and the third differ in their queries alone");
    for (ran, expected) in ran.iter().zip(&expected) {
        assert_eq!(bytes(ran.result.as_ref().unwrap()), bytes(expected));
    }
}

#[test]
fn one_bad_item_fails_alone() {
    let good = |seed: usize| MatMul::new(&values(seed, &[64, 64]), &values(seed + 1, &[64, 64])).into_op().unwrap();
    // The operands do not fit. Validation would have rejected the op, but the engine must still not
    // panic.
    let bad = Op::Compute(ComputeOp::MatMul(MatMul::new(&values(1, &[64, 64]), &values(2, &[63, 64]))));
    let ops = vec![good(1), good(2), bad, good(3), good(4), good(5)];
    let ran = run(ops);
    let failed: Vec<usize> = (0..ran.len()).filter(|index| ran[*index].result.is_err()).collect();
    assert_eq!(failed, [2]);
}
