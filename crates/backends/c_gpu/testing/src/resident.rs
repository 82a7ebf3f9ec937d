//! The suite's cases with their inputs on the device, where views keep their strides. Inputs from
//! the host are made contiguous on the way, so only here do kernels meet other layouts, and indices
//! that the host has not checked. A case runs with its buffers at the beginning of their memory,
//! and one element after it, where nothing is aligned for wide loads. `PANOPLY_CASES=prefix` runs
//! the cases whose names have that prefix; without it, every n-th case runs. Kernels are compiled
//! ahead for some hundred cases at a time.

use panoply_c_gpu::{GpuBackend, GpuEngine};
use panoply_conformance::reference::reference;
use panoply_conformance::{Case, cases, run_one};
use panoply_core::op::compute::{ComputeOp, Transfer};
use panoply_core::{
    Bytes, Describe, DeviceInfo, Engine, FinishedOp, HostBufferMut, Item, Op, OpenOptions, Operation, PartMut, Result,
    Shape, Support, Tensor,
};
use std::time::Duration;

/// Number of cases whose kernels are compiled in parallel.
const CASES_AT_ONCE: usize = 200;
/// Numbers of elements in front of a buffer. In a sample, each case has one of them, in turn.
const SHIFTS: [usize; 2] = [0, 1];

/// A case with its inputs on the device.
struct Resident<'a> {
    case: &'a Case,
    shift: usize,
    op: Result<Op>,
}

/// Runs every n-th case on every device of the backend.
pub fn run(backend: &dyn GpuBackend, step: usize) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let asked = std::env::var("PANOPLY_CASES").ok();
    let (prefix, step) = asked.as_deref().map_or(("", step), |prefix| (prefix, 1));
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.name.starts_with(prefix)).step_by(step).collect();
    let is_transfer = |case: &Case| matches!(case.op, Op::Compute(ComputeOp::Transfer(_)));
    if cases.iter().all(is_transfer) {
        return println!("skipped: a transfer of what is on the device is what every other case begins with");
    }
    for device in devices {
        let mut engine = backend.open_engine(&device, &OpenOptions::default()).unwrap();
        let (mut passed, mut failed) = (0, Vec::new());
        let is_run = |case: &&Case| !is_transfer(case) && backend.supports(&device, &case.op) == Support::Yes;
        let chosen: Vec<(usize, &Case)> = cases.iter().filter(is_run).enumerate().collect();
        for some in chosen.chunks(CASES_AT_ONCE) {
            let shifts = |number: usize| if step == 1 { &SHIFTS[..] } else { &SHIFTS[number % 2..][..1] };
            let shifted = some.iter().flat_map(|(number, case)| shifts(*number).iter().map(|shift| (*case, *shift)));
            let resident: Vec<Resident<'_>> = shifted
                .map(|(case, shift)| Resident { case, shift, op: moved(&mut engine, &device, case, shift) })
                .collect();
            engine.compile_ahead(&mut resident.iter().filter_map(|one| one.op.as_ref().ok()), &mut |_, _| {});
            for one in resident {
                match wrong(&mut engine, one.case, one.op) {
                    Some(what) => failed.push((one.case.name.clone(), one.shift, what)),
                    None => passed += 1,
                }
            }
        }
        println!("{}: {passed} passed", device.id);
        assert!(failed.is_empty(), "{} failed: {failed:#?}", device.id);
        assert!(passed > 0);
    }
}

/// A case's op with its inputs on the device, `shift` elements after the beginning of their memory.
fn moved(engine: &mut GpuEngine, device: &DeviceInfo, case: &Case, shift: usize) -> Result<Op> {
    let mut op = case.op.clone();
    let mut moved = Ok(());
    op.for_each_part_mut(&mut |part| {
        let result = match part {
            PartMut::Tensor(tensor) => to_device(engine, device, tensor, shift).map(|resident| *tensor = resident),
            // Secrets stay on the host.
            PartMut::Bytes(bytes) if !bytes.is_secret() => {
                bytes_to_device(engine, device, bytes, shift).map(|resident| *bytes = resident)
            }
            _ => Ok(()),
        };
        if let Err(error) = result {
            moved = Err(error);
        }
    });
    moved.map(|()| op)
}

fn bytes_to_device(engine: &mut dyn Engine, device: &DeviceInfo, bytes: &Bytes, shift: usize) -> Result<Bytes> {
    Bytes::from_tensor(&to_device(engine, device, &bytes.to_tensor()?, shift)?)
}

/// The fault of the result of a case with its inputs on the device.
fn wrong(engine: &mut GpuEngine, case: &Case, op: Result<Op>) -> Option<String> {
    let op = match op {
        Ok(op) => op,
        Err(error) => return Some(format!("not moved to the device: {error}")),
    };
    match (reference(&case.op), run_one(engine, op)) {
        (Ok(expected), Ok(got)) => case.judge.difference(&case.op, &expected, &got),
        (Err(expected), Err(got)) if expected.kind() == got.kind() => None,
        (expected, got) => Some(format!("expected {:?}, got {:?}", expected.err(), got.err())),
    }
}

/// Places the whole buffer of a tensor on the device after `shift` other elements, and returns the
/// same view of it.
fn to_device(engine: &mut dyn Engine, device: &DeviceInfo, tensor: &Tensor, shift: usize) -> Result<Tensor> {
    let (bytes, size) = (tensor.host_bytes()?, tensor.dtype().size_bytes());
    let elements = bytes.len() / size + shift;
    let mut shifted = HostBufferMut::zeroed(elements * size)?;
    shifted.bytes_mut()[shift * size..].copy_from_slice(bytes);
    let whole = Tensor::from_host(tensor.dtype(), Shape::new([elements])?, shifted.freeze())?;
    let op = Transfer::to_device(&whole, device.id).into_op()?;
    let mut batch = vec![Item { token: 1, op }];
    engine.submit(&mut batch);
    let mut finished: Vec<FinishedOp> = Vec::new();
    while finished.is_empty() {
        engine.poll(&mut finished, Duration::from_millis(10));
    }
    let moved = finished.remove(0).result?.into_tensor()?;
    Tensor::from_parts(
        tensor.dtype(),
        *tensor.shape(),
        *tensor.strides(),
        tensor.offset() + shift,
        moved.buffer().clone(),
    )
}
