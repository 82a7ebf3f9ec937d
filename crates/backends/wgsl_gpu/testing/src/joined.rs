//! Checks that small maps are joined into one dispatch, and that the results are the same.

use std::time::Duration;

use panoply_conformance::reference::reference;
use panoply_conformance::values::difference;
use panoply_core::expr::Expr;
use panoply_core::op::compute::{Gather, Map, MatMul, Reduce, Softmax, Sort, Transfer};
use panoply_core::{
    DType, Describe, Error, FinishedOp, Item, MemoryLimits, Op, OpenOptions, Operation, Result, Tensor,
};
use panoply_kernels::wgsl::Kernel;
use panoply_wgsl_gpu::internals::SLOT_BYTES;

use crate::form::{CLOSE, floats};
use crate::{DeviceLimits, TestBackend, TestEngine, engine};

/// The longest time for one op.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn submit(engine: &mut dyn TestEngine, ops: Vec<impl Operation>) {
    submit_ops(engine, ops.into_iter().map(Operation::into_op).collect());
}

fn submit_ops(engine: &mut dyn TestEngine, ops: Vec<Result<Op>>) {
    let item = |(token, op): (usize, Result<Op>)| Item { token: token as u64, op: op.unwrap() };
    engine.submit(&mut ops.into_iter().enumerate().map(item).collect());
}

fn wait(engine: &mut dyn TestEngine) -> Vec<FinishedOp> {
    let mut finished = Vec::new();
    while engine.poll(&mut finished, WAIT_MAX) > 0 {}
    finished
}

fn run(engine: &mut dyn TestEngine, ops: Vec<impl Operation>) -> Vec<Tensor> {
    submit(engine, ops);
    wait(engine).into_iter().map(|done| done.result.unwrap().into_tensor().unwrap()).collect()
}

/// Records an op and returns its output before anything has run. Callers of an engine must wait for
/// that.
fn record(engine: &mut dyn TestEngine, op: impl Operation) -> Tensor {
    engine.record(&op.into_op().unwrap()).unwrap().into_tensor().unwrap()
}

fn here(engine: &mut dyn TestEngine, tensor: &Tensor) -> Tensor {
    let device = engine.device();
    run(engine, vec![Transfer::to_device(tensor, device)]).remove(0)
}

fn to_host(engine: &mut dyn TestEngine, tensor: &Tensor) -> Vec<f32> {
    run(engine, vec![Transfer::to_host(tensor)])[0].to_vec().unwrap()
}

/// A tensor of `count` elements, all of one value.
fn all(engine: &mut dyn TestEngine, value: f32, count: usize) -> Tensor {
    here(engine, &Tensor::from_vec(vec![value; count], [count]).unwrap())
}

fn dispatches(engine: &mut dyn TestEngine) -> u64 {
    engine.dispatches()
}

pub fn many_maps_are_few_dispatches(backend: &dyn TestBackend) {
    // With parameters in the dispatch itself, and in a buffer.
    let without = DeviceLimits { without_immediates: true, ..DeviceLimits::default() };
    let limited = backend.limited(without);
    for backend in [backend, &*limited] {
        let Some(mut engine) = engine(backend) else { return };
        for count in [64, 7, SLOT_BYTES / 4] {
            let inputs: Vec<Tensor> = (0..10).map(|seed| here(&mut *engine, &floats(&[count], seed))).collect();
            let values: Vec<Vec<f32>> = inputs.iter().map(|input| to_host(&mut *engine, input)).collect();
            run(&mut *engine, vec![Map::sub(&inputs[0], &inputs[0])]);
            let before = dispatches(&mut *engine);
            let pairs: Vec<(usize, usize)> = (0..400).map(|number| (number % 10, number / 10 % 10)).collect();
            let outputs = run(&mut *engine, pairs.iter().map(|(a, b)| Map::sub(&inputs[*a], &inputs[*b])).collect());
            let made = dispatches(&mut *engine) - before;
            assert_eq!(made, 2, "for {} maps of {count}, of which 340 fit one dispatch", pairs.len());
            for ((a, b), output) in pairs.iter().zip(&outputs) {
                let expected: Vec<f32> = values[*a].iter().zip(&values[*b]).map(|(a, b)| a - b).collect();
                assert_eq!(to_host(&mut *engine, output), expected);
            }
        }
    }
}

pub fn a_map_that_needs_the_one_before_finds_it_done(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let (one, two) = (all(&mut *engine, 1.0, 64), all(&mut *engine, 2.0, 64));
    record(&mut *engine, Map::add(&one, &two));
    let mut sum = one.clone();
    let mut sums = Vec::new();
    let before = dispatches(&mut *engine);
    for _ in 0..50 {
        sum = record(&mut *engine, Map::add(&sum, &two));
        // These maps need nothing of each other, and wait with the sum.
        sums.push((record(&mut *engine, Map::add(&one, &two)), sum.clone()));
    }
    assert!(dispatches(&mut *engine) - before >= 49);
    for (number, (apart, sum)) in sums.iter().enumerate() {
        assert_eq!(to_host(&mut *engine, apart), [3.0; 64]);
        assert_eq!(to_host(&mut *engine, sum), [3.0 + 2.0 * number as f32; 64]);
    }
}

pub fn other_ops_and_submissions_find_those_that_wait_done(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let (one, two) = (all(&mut *engine, 1.0, 64), all(&mut *engine, 2.0, 64));
    record(&mut *engine, Map::add(&one, &two));
    let mut found = Vec::new();
    for number in 0..10 {
        // The kernel of softmax begins a pass, in which the sum waits when the next kernel comes.
        record(&mut *engine, Softmax::new(&one));
        let more = all(&mut *engine, number as f32, 64);
        record(&mut *engine, Softmax::new(&one));
        let sum = record(&mut *engine, Map::add(&one, &more));
        found.push((64.0 * (1.0 + number as f32), record(&mut *engine, Reduce::sum(&sum))));
    }
    for (expected, sum) in &found {
        assert_eq!(to_host(&mut *engine, sum), [*expected]);
    }
    assert!(!engine.submits_recorded());
    let waiting = record(&mut *engine, Map::add(&two, &two));
    assert!(engine.submits_recorded(), "a map that waits is something to submit");
    assert!(!engine.submits_recorded());
    assert_eq!(to_host(&mut *engine, &waiting), [4.0; 64]);
}

pub fn memory_that_is_given_back_early_is_written_in_order(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let inputs: Vec<Tensor> = (0..20).map(|value| all(&mut *engine, value as f32, 512)).collect();
    record(&mut *engine, Map::add(&inputs[0], &inputs[0]));
    let mut kept = Vec::new();
    for (number, input) in inputs.iter().enumerate() {
        // The next map writes to the same memory, which is read at once.
        drop(record(&mut *engine, Map::add(&inputs[3], &inputs[3])));
        let sum = record(&mut *engine, Map::add(input, input));
        drop(record(&mut *engine, Map::add(&sum, input)));
        kept.push((number as f32 * 2.0, sum));
        // Memory that was just read is written.
        let input = all(&mut *engine, 7.0, 512);
        let other = record(&mut *engine, Map::add(&input, &input));
        drop(input);
        drop(record(&mut *engine, Map::add(&inputs[1], &inputs[2])));
        kept.push((14.0, other));
    }
    for (value, tensor) in &kept {
        assert_eq!(to_host(&mut *engine, tensor), [*value; 512]);
    }
}

pub fn different_maps_in_turn_and_what_comes_between(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let device = engine.device();
    let (x, y) = (floats(&[8, 8], 1), floats(&[8, 8], 2));
    let (x_here, y_here) = (here(&mut *engine, &x), here(&mut *engine, &y));
    let part = |tensor: &Tensor| tensor.slice(0, 2, 5).unwrap();
    let fused = Expr::input(0) * 2.0 + Expr::input(1);
    let batch = |x: &Tensor, y: &Tensor| {
        vec![
            Map::add(x, y).into_op(),
            Map::add(y, y).into_op(),
            Map::mul(x, y).into_op(),
            Map::add(x, y).into_op(),
            Map::new(fused.clone(), &[y, x]).into_op(),
            Map::neg(y).into_op(),
            Map::neg(x).into_op(),
            Softmax::new(x).into_op(),
            Map::add(&part(x), &part(y)).into_op(),
            Map::add(x, x).into_op(),
            Transfer::to_host(&part(x)).into_op(),
            Map::add(x, y).into_op(),
            Map::pow(x, y).into_op(),
            MatMul::new(x, y).into_op(),
            Map::add(y, x).into_op(),
            Reduce::sum(&part(x)).into_op(),
        ]
    };
    let expected = batch(&x, &y);
    for round in 0..3 {
        let mut ops = batch(&x_here, &y_here);
        // One input on the host, in between.
        ops.insert(9, Map::add(&x, &y_here).into_op());
        submit_ops(&mut *engine, ops);
        engine.submit(&mut vec![Item { token: 99, op: Transfer::to_device(&y, device).into_op().unwrap() }]);
        let mut answers: Vec<Tensor> =
            wait(&mut *engine).into_iter().map(|done| done.result.unwrap().into_tensor().unwrap()).collect();
        assert_eq!(to_host(&mut *engine, &answers.pop().unwrap()), y.to_vec::<f32>().unwrap());
        let mixed = answers.remove(9);
        assert_eq!(to_host(&mut *engine, &mixed), to_host(&mut *engine, &answers[0]));
        for (number, (op, answer)) in expected.iter().zip(&answers).enumerate() {
            let right = reference(op.as_ref().unwrap()).unwrap().into_tensor().unwrap();
            let got = run(&mut *engine, vec![Transfer::to_host(answer)]).remove(0);
            assert_eq!(difference(&right, &got, CLOSE), None, "round {round}, op {number}");
        }
    }
}

pub fn a_full_arena_is_no_error(backend: &dyn TestBackend) {
    let limits = DeviceLimits { binding_bytes_max: Some(1 << 16), ..DeviceLimits::default() };
    let Some(mut engine) = engine(&*backend.limited(limits)) else { return };
    let slots = (1 << 16) / SLOT_BYTES;
    let (one, two) = (all(&mut *engine, 1.0, 64), all(&mut *engine, 2.0, 64));
    let mut kept = vec![(1.0, one.clone()), (2.0, two.clone())];
    for round in 0..3 {
        let ops = (0..slots).map(|_| if round == 1 { Map::sub(&one, &two) } else { Map::add(&one, &two) }).collect();
        let value = if round == 1 { -1.0 } else { 3.0 };
        kept.extend(run(&mut *engine, ops).into_iter().map(|tensor| (value, tensor)));
        // Frees some room for the next round.
        kept.remove(5);
        kept.push((8.0, all(&mut *engine, 8.0, 64)));
        kept.push((9.0, all(&mut *engine, 9.0, 64)));
    }
    for (value, tensor) in &kept {
        assert_eq!(to_host(&mut *engine, tensor), [*value; 64]);
    }
    let stats = engine.memory();
    assert!(stats.lent_bytes >= (kept.len() * SLOT_BYTES) as u64, "{stats:?}");
    drop((kept, one, two));
    let stats = engine.memory();
    assert_eq!(stats.lent_bytes, 0, "{stats:?}");
    assert!(stats.cached_bytes >= 1 << 16 && stats.cached_bytes <= stats.peak_bytes, "{stats:?}");
}

pub fn other_ops_read_views_of_what_lies_in_the_arena(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let host: Vec<Tensor> = (0..3).map(|seed| floats(&[12, 10], seed)).collect();
    let small: Tensor = Tensor::from_vec((0_u8..120).collect(), [120]).unwrap();
    let indices = Tensor::from_vec(vec![3_u32, 11, 0, 7], [4]).unwrap();
    let resident: Vec<Tensor> = host.iter().map(|tensor| here(&mut *engine, tensor)).collect();
    let (small_here, indices_here) = (here(&mut *engine, &small), here(&mut *engine, &indices));
    let part = |tensor: &Tensor| tensor.slice(0, 3, 9).unwrap().slice(1, 1, 7).unwrap();
    let turned = |tensor: &Tensor| tensor.permute(&[1, 0]).unwrap();
    let batch = |all: &[Tensor], small: &Tensor, indices: &Tensor| {
        vec![
            Softmax::new(&part(&all[0])).into_op(),
            MatMul::new(&all[0], &turned(&all[1])).into_op(),
            Gather::new(&all[2], indices, 0).into_op(),
            Sort::new(&turned(&all[1])).into_op(),
            Map::add(&part(&all[0]), &part(&all[1])).into_op(),
            Map::add(&turned(&all[0]), &turned(&all[2])).into_op(),
            Map::neg(&small.slice(0, 5, 50).unwrap()).into_op(),
            Map::cast(&small.slice(0, 7, 90).unwrap(), DType::F32).into_op(),
            Transfer::to_host(&small.slice(0, 3, 77).unwrap()).into_op(),
            Transfer::to_host(&part(&all[1])).into_op(),
        ]
    };
    let expected = batch(&host, &small, &indices);
    submit_ops(&mut *engine, batch(&resident, &small_here, &indices_here));
    let answers = wait(&mut *engine);
    assert_eq!(answers.len(), expected.len());
    for (op, answer) in expected.into_iter().zip(answers) {
        let op = op.unwrap();
        let answer = answer.result.unwrap().into_tensor().unwrap();
        let got = run(&mut *engine, vec![Transfer::to_host(&answer)]).remove(0);
        assert_eq!(difference(&reference(&op).unwrap().into_tensor().unwrap(), &got, CLOSE), None, "{}", op.name());
    }
}

pub fn a_rehearsal_leaves_those_that_wait_and_compiles_what_joins_them(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let (one, two) = (all(&mut *engine, 1.0, 64), all(&mut *engine, 2.0, 64));
    run(&mut *engine, vec![Map::add(&one, &two)]);
    submit(&mut *engine, vec![Map::add(&one, &two), Map::add(&two, &two)]);
    engine.warm_up(&Map::maximum(&one, &two).into_op().unwrap());
    engine.warm_up(&Map::add(&one, &two).into_op().unwrap());
    let answers = wait(&mut *engine);
    let values: Vec<Tensor> = answers.into_iter().map(|done| done.result.unwrap().into_tensor().unwrap()).collect();
    assert_eq!(values.iter().map(|tensor| to_host(&mut *engine, tensor)[63]).collect::<Vec<_>>(), [3.0, 4.0]);
    let joined = |engine: &mut dyn TestEngine| {
        engine.kernels().iter().filter(|kernel| matches!(kernel, Kernel::Map(map) if map.joined.is_some())).count()
    };
    let compiled = joined(&mut *engine);
    assert!(compiled >= 2, "{compiled}");
    let larger = run(&mut *engine, vec![Map::maximum(&one, &two); 30]);
    assert_eq!(to_host(&mut *engine, &larger[2]), [2.0; 64]);
    assert_eq!(joined(&mut *engine), compiled, "nothing was left to compile");
}

pub fn maps_that_wait_when_the_device_is_lost_are_answered(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let one = all(&mut *engine, 1.0, 64);
    run(&mut *engine, vec![Map::add(&one, &one)]);
    for _ in 0..3 {
        record(&mut *engine, Map::add(&one, &one));
    }
    engine.lose();
    submit(&mut *engine, vec![Map::add(&one, &one); 5]);
    let answers = wait(&mut *engine);
    assert_eq!(answers.len(), 5);
    for done in answers {
        assert!(matches!(done.result, Err(Error::DeviceLost { .. })), "{:?}", done.result);
    }
}

pub fn large_tensors_and_small_pools_stay_out_of_the_arena(backend: &dyn TestBackend) {
    let Ok(devices) = backend.discover() else { return };
    let memory = MemoryLimits { pool_bytes_max: Some(SLOT_BYTES), ..MemoryLimits::default() };
    let options = OpenOptions { memory, ..OpenOptions::default() };
    let mut engine = backend.open_engine(&devices[0], &options).unwrap();
    let one = all(&mut *engine, 1.0, 64);
    let sums = run(&mut *engine, vec![Map::add(&one, &one); 2]);
    assert_eq!(to_host(&mut *engine, &sums[1]), [2.0; 64]);
    assert!(!engine.has_arena());
    let Some(mut engine) = crate::engine(backend) else { return };
    let large = all(&mut *engine, 1.0, SLOT_BYTES / 4 + 1);
    run(&mut *engine, vec![Map::add(&large, &large); 2]);
    assert!(!engine.has_arena());
}
