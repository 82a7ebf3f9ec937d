//! Training gives the same result everywhere: equal seeds give equal losses, step by step, on the
//! CPU, on Vulkan, on CUDA and on an emulated device.
#![cfg(all(feature = "cpu", feature = "nn"))]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::path::PathBuf;
use std::sync::Arc;

use panoply::nn::layers::{BatchNorm, Conv2d, Dropout, Flatten, Linear, MaxPool2d, Relu};
use panoply::nn::samples::{self, Pictures};
use panoply::nn::train::{Session, SessionOptions};
use panoply::nn::{Layer, Mode, Net, Optimiser, Recording, Sequential, loss};
use panoply::prelude::*;

const STEPS: u64 = 100;
const BATCH: usize = 16;
/// Losses of the same step differ by rounding errors, which training accumulates and amplifies.
/// These are the largest relative and absolute differences.
const RELATIVE_MAX: f32 = 2e-3;
const ABSOLUTE_MAX: f32 = 2e-4;

fn digits() -> Pictures {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../app/data/digits.u8");
    samples::digits(&std::fs::read(path).unwrap(), 0).unwrap()
}

/// A network with every kind of layer for pictures, including random layers.
fn recording() -> Recording {
    let layers = Sequential::new("")
        .with(Conv2d::new("conv", 1, 8, 3).padding(1))
        .with(BatchNorm::new("norm", 8))
        .with(Relu)
        .with(MaxPool2d::new(2))
        .with(Flatten)
        .with(Dropout::new("drop", 0.2))
        .with(Linear::new("fc", 8 * 16, 10));
    let mut net = Net::new("digits", Mode::Train);
    let x = net.data("pictures", DType::U8, &[BATCH.into(), 1.into(), 8.into(), 8.into()]).unwrap();
    let labels = net.data("labels", DType::U32, &[BATCH.into()]).unwrap();
    let x = net.cast(x, DType::F32).unwrap();
    let x = net.map(&[x], |v| v[0].clone() * (1.0 / 16.0)).unwrap();
    let logits = layers.forward(&mut net, x).unwrap();
    let loss = loss::cross_entropy(&mut net, logits, labels, 0.0).unwrap();
    net.finish(&[("loss", loss)]).unwrap()
}

/// Returns the losses of a hundred steps on the runtime's first device. No step may run elsewhere.
fn losses(runtime: Runtime, pictures: &Pictures) -> Vec<f32> {
    let device = runtime.devices().next().unwrap().id;
    let options = SessionOptions { seed: 5, devices: vec![device], ..SessionOptions::default() };
    let mut session = Session::new(&runtime, recording(), Optimiser::adam(5e-3), None, options).unwrap();
    let order = pictures.train.order(5, 0);
    let mut losses = Vec::new();
    for step in 0..STEPS {
        let start = step as usize % (order.len() / BATCH) * BATCH;
        let outcome = session.step(&pictures.train.rows(&order[start..start + BATCH]).unwrap()).unwrap();
        assert!(outcome.reports.iter().all(|report| report.device == device), "{:?}", outcome.reports);
        losses.push(session.figures(outcome.step).unwrap()[0]);
    }
    losses
}

fn compare(name: &str, runtime: Runtime) {
    let pictures = digits();
    let expected = losses(Runtime::builder().only([Api::CPU]).without_profile().build().unwrap(), &pictures);
    let mean = |part: &[f32]| part.iter().sum::<f32>() / part.len() as f32;
    let (first, last) = (mean(&expected[..10]), mean(&expected[90..]));
    assert!(first > 1.5 && last < 0.7, "something is learned: {first} to {last}");
    let found = losses(runtime, &pictures);
    let mut worst = 0.0_f32;
    for (step, (expected, found)) in expected.iter().zip(&found).enumerate() {
        let distance = (expected - found).abs();
        worst = worst.max(distance / (ABSOLUTE_MAX + RELATIVE_MAX * expected));
        assert!(distance <= ABSOLUTE_MAX + RELATIVE_MAX * expected, "step {step}: {expected} and {found} on {name}");
    }
    println!("{name}: {STEPS} steps, the farthest at {:.2} % of what is allowed", worst * 100.0);
}

#[test]
fn a_hundred_steps_are_the_same_on_an_emulated_device() {
    let emulated = match panoply_c_gpu::EmulatedBackend::new() {
        Ok(backend) => backend,
        Err(absence) => return eprintln!("skipped: {absence}"),
    };
    let runtime = Runtime::builder().only([]).backend(Arc::new(emulated)).without_profile().build().unwrap();
    compare("an emulated device", runtime);
}

#[cfg(feature = "vulkan")]
#[test]
fn a_hundred_steps_are_the_same_on_vulkan() {
    match Runtime::builder().only([Api::VULKAN]).without_profile().build() {
        Ok(runtime) => compare("Vulkan", runtime),
        Err(absence) => eprintln!("skipped: {absence}"),
    }
}

#[cfg(feature = "cuda")]
#[test]
fn a_hundred_steps_are_the_same_on_cuda() {
    match Runtime::builder().only([Api::CUDA]).without_profile().build() {
        Ok(runtime) => compare("CUDA", runtime),
        Err(absence) => eprintln!("skipped: {absence}"),
    }
}
