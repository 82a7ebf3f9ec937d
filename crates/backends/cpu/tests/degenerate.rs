//! Ops over tensors without elements whose other dimensions may be enormous: rows of length zero,
//! kernels without channels, empty batches. There is almost nothing to compute, so engine and
//! reference must answer at once. A loop over the enormous dimension would block the device for
//! minutes.
//!
//! The ops come from the conformance suite, and only their shapes are changed here, so that new ops
//! are tested automatically.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::collections::BTreeMap;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use panoply_conformance::reference::reference;
use panoply_conformance::{cases, run_one};
use panoply_core::op::Describe;
use panoply_core::op::compute::Pool2d;
use panoply_core::{Backend, Op, OpenOptions, Operation, Tensor};
use panoply_cpu::CpuBackend;

/// Time limit of a case. No case takes a millisecond; the margin is for a busy machine.
const TIME_MAX: Duration = Duration::from_secs(1);
/// Number of elements of the enormous dimensions together, as a power of two: too many to iterate
/// over within the time limit.
const ENORMOUS_LOG2: u32 = 36;
/// Maximum elements of an op: an op that reads or writes more elements has real work to do.
const ELEMENTS_MAX: usize = 1 << 16;
/// Maximum cases of each op, and maximum changes that are tried and run for each case.
const CASES_MAX: usize = 24;
const CHANGES_MAX: usize = 20_000;
const RUNS_MAX: usize = 60;

/// Variants of a tensor's dimensions: unchanged first, then with one dimension zero and others
/// enormous.
fn changes(dims: &[usize]) -> Vec<Vec<usize>> {
    let rank = dims.len();
    let mut changes = vec![dims.to_vec()];
    for zero in 0..rank {
        let others: Vec<usize> = (0..rank).filter(|axis| *axis != zero).collect();
        let mut sets: Vec<Vec<usize>> = others.iter().map(|axis| vec![*axis]).collect();
        sets.extend([vec![], others.clone(), others.iter().rev().take(2).copied().collect()]);
        for set in sets {
            let mut changed = dims.to_vec();
            changed[zero] = 0;
            let each = 1_usize << (ENORMOUS_LOG2 / (set.len().max(1) as u32));
            set.iter().for_each(|axis| changed[*axis] = each);
            changes.push(changed);
        }
    }
    changes.dedup();
    changes
}

/// The op with tensors of these shapes, if it accepts them and has almost nothing to do.
fn changed(op: &Op, shapes: &[Vec<usize>]) -> Option<Op> {
    let mut op = op.clone();
    let (mut next, mut fits) = (shapes.iter(), true);
    op.for_each_tensor_mut(&mut |tensor| match next.next() {
        Some(dims) if dims == tensor.shape().dims() => {}
        Some(dims) => match Tensor::zeros(tensor.dtype(), dims) {
            Ok(zeros) => *tensor = zeros,
            Err(_) => fits = false,
        },
        None => fits = false,
    });
    if !fits || op.validate().is_err() {
        return None;
    }
    let is_short = match op.outputs() {
        Ok(outputs) => outputs.iter().all(|(_, shape)| shape.elements() <= ELEMENTS_MAX),
        // The output is not known before the op runs, but there is at most one result for each row.
        Err(_) => {
            let rows = |dims: &Vec<usize>| dims.iter().rev().skip(1).product::<usize>();
            shapes.iter().all(|dims| rows(dims) <= ELEMENTS_MAX)
        }
    };
    is_short.then_some(op)
}

/// The changed ops, grouped by op name.
fn degenerate() -> BTreeMap<String, Vec<Op>> {
    let mut found: BTreeMap<String, (usize, Vec<Op>)> = BTreeMap::new();
    for case in cases() {
        let mut shapes = Vec::new();
        case.op.for_each_tensor(&mut |tensor| shapes.push(changes(tensor.shape().dims())));
        let (seen, ops) = found.entry(case.op.name().to_owned()).or_default();
        let is_small = shapes.iter().all(|changes| changes[0].iter().product::<usize>() <= ELEMENTS_MAX);
        if shapes.is_empty() || !is_small || *seen >= CASES_MAX {
            continue;
        }
        *seen += 1;
        let all: usize = shapes.iter().map(Vec::len).product();
        // Every combination if there are few, else every `step`th.
        let step = all.div_ceil(CHANGES_MAX).max(1) | 1;
        let ops_before = ops.len();
        for number in (1..all).step_by(step) {
            let mut rest = number;
            let mut pick = |changes: &Vec<Vec<usize>>| {
                let place = rest % changes.len();
                rest /= changes.len();
                changes[place].clone()
            };
            let shapes: Vec<Vec<usize>> = shapes.iter().map(&mut pick).collect();
            ops.extend(changed(&case.op, &shapes));
            if ops.len() - ops_before >= RUNS_MAX {
                break;
            }
        }
    }
    found.into_iter().map(|(name, (_, ops))| (name, ops)).collect()
}

fn shapes_of(op: &Op) -> String {
    let mut shapes = Vec::new();
    op.for_each_tensor(&mut |tensor| shapes.push(format!("{:?}", tensor.shape().dims())));
    format!("{} of {}", op.name(), shapes.join(", "))
}

/// Runs each op on an engine and with the reference, and sends a message when each begins.
fn run_all(ops: &[Op], begun: &Sender<usize>, wrong: &Mutex<Vec<String>>) {
    let backend = CpuBackend::new();
    let device = backend.discover().unwrap().remove(0);
    let mut engine = backend.open(&device, &OpenOptions::default()).unwrap();
    for (number, op) in ops.iter().enumerate() {
        if begun.send(2 * number).is_err() {
            return;
        }
        let got = run_one(engine.as_mut(), op.clone());
        if begun.send(2 * number + 1).is_err() {
            return;
        }
        let expected = reference(op);
        if got.is_ok() != expected.is_ok() {
            wrong.lock().unwrap().push(format!("{}: {got:?} and {expected:?}", shapes_of(op)));
        }
    }
}

/// The first op that exceeds the time limit or panics, if any, and the ops whose results differ.
fn faults(ops: Vec<Op>) -> Vec<String> {
    let (begun, hears) = channel();
    let (all, wrong) = (ops.clone(), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&wrong);
    let runs = std::thread::spawn(move || run_all(&all, &begun, &noted));
    let (mut last, mut since) = (None, Instant::now());
    loop {
        match hears.recv_timeout(if last.is_some() { TIME_MAX } else { 20 * TIME_MAX }) {
            Ok(number) => (last, since) = (Some(number), Instant::now()),
            Err(RecvTimeoutError::Timeout) => {
                let number = last.unwrap_or(0);
                let who = if number % 2 == 0 { "the engine" } else { "the reference" };
                let slow = format!("{} by {who}, after {:?}", shapes_of(&ops[number / 2]), since.elapsed());
                wrong.lock().unwrap().push(slow);
                return std::mem::take(&mut *wrong.lock().unwrap());
            }
            Err(RecvTimeoutError::Disconnected) => {
                if runs.join().is_err() {
                    let number = last.unwrap_or(0);
                    wrong.lock().unwrap().push(format!("{} panicked", shapes_of(&ops[number / 2])));
                }
                return std::mem::take(&mut *wrong.lock().unwrap());
            }
        }
    }
}

#[test]
fn ops_with_nothing_to_do_are_done_at_once() {
    let ops = degenerate();
    let taken = ops.values().filter(|ops| !ops.is_empty()).count();
    assert!(taken > 40, "only {taken} ops took such shapes");
    let runs: usize = ops.values().map(Vec::len).sum();
    assert!(runs > 1000, "only {runs} of them");
    let faults: Vec<String> = ops.into_values().flat_map(faults).collect();
    assert!(faults.is_empty(), "{} ops are wrong or not over in time:\n{}", faults.len(), faults.join("\n"));
}

/// Runs an op on the CPU and, if `checked`, with the reference, each within the time limit.
fn run_in_time(op: Op, checked: bool) -> Tensor {
    let (done, hears) = channel();
    let name = shapes_of(&op);
    std::thread::spawn(move || {
        let backend = CpuBackend::new();
        let device = backend.discover().unwrap().remove(0);
        let mut engine = backend.open(&device, &OpenOptions::default()).unwrap();
        let got = run_one(engine.as_mut(), op.clone()).unwrap().into_tensor().unwrap();
        if checked {
            let expected = reference(&op).unwrap().into_tensor().unwrap();
            assert_eq!(got.to_vec::<f32>().unwrap(), expected.to_vec::<f32>().unwrap());
        }
        let _ = done.send(got);
    });
    hears.recv_timeout(5 * TIME_MAX).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn windows_far_larger_than_the_image_cost_no_more_than_what_they_give() {
    let one = Tensor::from_vec(vec![3.0_f32], [1, 1, 1, 1]).unwrap();
    let enormous = 1_usize << 30;
    for pool in [Pool2d::max(&one, [enormous; 2]), Pool2d::average(&one, [enormous; 2])] {
        let pool = pool.padding([enormous - 1, enormous - 1, 0, 0]).stride([1, 1]);
        assert_eq!(run_in_time(pool.into_op().unwrap(), true).to_vec::<f32>().unwrap(), [3.0]);
    }
    // Millions of windows, nearly all of which cover the whole line: computing each one would
    // combine thousands of numbers.
    let (len, kernel) = (1024_usize, 1_usize << 20);
    let numbers: Vec<f32> = (0..len).map(|number| number as f32).collect();
    for axis in [0, 1] {
        let shape = if axis == 0 { [1, 1, len, 1] } else { [1, 1, 1, len] };
        let line = Tensor::from_vec(numbers.clone(), shape).unwrap();
        let (mut size, mut padding) = ([1; 2], [0; 4]);
        size[axis] = kernel;
        (padding[axis], padding[axis + 2]) = (kernel - 1, kernel - 1);
        for (pool, whole) in [(Pool2d::max(&line, size), 1023.0), (Pool2d::average(&line, size), 511.5)] {
            let pooled = run_in_time(pool.padding(padding).stride([1, 1]).into_op().unwrap(), false);
            let pooled = pooled.to_vec::<f32>().unwrap();
            assert_eq!(pooled.len(), len + kernel - 1);
            // The first window has only the first number, and the last window only the last number.
            assert_eq!((pooled[0], pooled[pooled.len() - 1]), (0.0, 1023.0));
            assert!(pooled[len - 1..kernel].iter().all(|number| *number == whole));
        }
    }
}
