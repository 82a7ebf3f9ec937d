//! The suite's cases with their inputs on the device, where views keep their strides: what comes from the host is made
//! contiguous on its way, so this is where kernels meet other layouts, and indices that the host has not seen.
//! `PANOPLY_CASES=prefix` runs the cases whose names begin so; unless it is set, the emulated device gets a sample.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.

use panoply_conformance::reference::reference;
use panoply_conformance::values::difference;
use panoply_conformance::{Case, cases, run_one};
use panoply_core::op::compute::{ComputeOp, Transfer};
use panoply_core::{
    Backend, Buffer, Describe, DeviceInfo, Engine, Finished, Item, Op, OpenOptions, Operation, Result, Support, Tensor,
};
use panoply_cuda::CudaBackend;
use std::time::Duration;

/// The emulated device gets every so-manieth case.
const SAMPLE: usize = 37;

fn run(backend: &dyn Backend, step: usize) {
    let devices = match backend.discover() {
        Ok(devices) => devices,
        Err(absence) => return println!("skipped: {absence}"),
    };
    let asked = std::env::var("PANOPLY_CASES").ok();
    let (prefix, step) = asked.as_deref().map_or(("", step), |prefix| (prefix, 1));
    for device in devices {
        let mut engine = backend.open(&device, &OpenOptions::default()).unwrap();
        let (mut passed, mut failed) = (0, Vec::new());
        for case in cases().into_iter().filter(|case| case.name.starts_with(prefix)).step_by(step) {
            let is_transfer = matches!(case.op, Op::Compute(ComputeOp::Transfer(_)));
            if is_transfer || matches!(backend.supports(&device, &case.op), Support::No(_)) {
                continue;
            }
            match wrong(engine.as_mut(), &device, &case) {
                Some(what) => failed.push((case.name, what)),
                None => passed += 1,
            }
        }
        println!("{}: {passed} passed", device.id);
        assert!(failed.is_empty(), "{} failed: {failed:#?}", device.id);
        assert!(passed > 0);
    }
}

/// What is wrong with the answer to a case whose inputs are on the device.
fn wrong(engine: &mut dyn Engine, device: &DeviceInfo, case: &Case) -> Option<String> {
    let mut op = case.op.clone();
    let mut moved = Ok(());
    op.for_each_input_mut(&mut |tensor| match to_device(engine, device, tensor) {
        Ok(resident) => *tensor = resident,
        Err(error) => moved = Err(error),
    });
    if let Err(error) = moved {
        return Some(format!("not moved to the device: {error}"));
    }
    match (reference(&case.op), run_one(engine, op)) {
        (Ok(expected), Ok(got)) => {
            let mut pairs = expected.tensors().zip(got.tensors());
            pairs.find_map(|(expected, got)| difference(expected, got, case.tolerance))
        }
        (Err(expected), Err(got)) if expected.kind() == got.kind() => None,
        (expected, got) => Some(format!("expected {:?}, got {:?}", expected.err(), got.err())),
    }
}

/// The whole buffer behind a tensor on the device, and the same view of it.
fn to_device(engine: &mut dyn Engine, device: &DeviceInfo, tensor: &Tensor) -> Result<Tensor> {
    let bytes = tensor.host_bytes()?;
    let elements = bytes.len() / tensor.dtype().size_bytes();
    let Buffer::Host(buffer) = tensor.buffer() else { return Ok(tensor.clone()) };
    let whole = Tensor::from_host(tensor.dtype(), panoply_core::Shape::new([elements])?, buffer.clone())?;
    let op = Transfer::to_device(&whole, device.id).into_op()?;
    let mut batch = vec![Item { token: 1, op }];
    engine.submit(&mut batch);
    let mut finished: Vec<Finished> = Vec::new();
    while finished.is_empty() {
        engine.poll(&mut finished, Duration::from_millis(10));
    }
    let moved = finished.remove(0).result?.into_tensor()?;
    Tensor::from_parts(tensor.dtype(), *tensor.shape(), *tensor.strides(), tensor.offset(), moved.buffer().clone())
}

#[test]
fn every_case_on_every_gpu() {
    run(&CudaBackend::new(), 1);
}

#[test]
fn every_case_on_the_emulated_device() {
    let compiler = std::env::var("CXX").unwrap_or_else(|_| "c++".to_owned());
    match std::process::Command::new(&compiler).arg("--version").output() {
        Ok(output) if output.status.success() => run(&CudaBackend::emulated(compiler), SAMPLE),
        _ => println!("skipped: no C++ compiler («{compiler}») to compile kernels for the host; set CXX"),
    }
}
