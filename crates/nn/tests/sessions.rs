//! Disturbed sessions: skipped steps, failing recoveries, checkpoints of other trainings, and
//! training that resumes with the same results.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use panoply_conformance::virtual_device::{Fault, Script, VirtualBackend};
use panoply_core::op::compute::Transfer;
use panoply_core::{Api, DType, DeviceId, Tensor};
use panoply_cpu::CpuBackend;
use panoply_nn::layers::{BatchNorm, Dropout, Linear, Relu};
use panoply_nn::random::Random;
use panoply_nn::train::checkpoint::Marks;
use panoply_nn::train::{Checkpoints, Dataset, EarlyStop, Session, SessionOptions, Trainer};
use panoply_nn::{Error, Init, Layer, Mode, Net, Optimiser, Recording, Sequential, loss};
use panoply_runtime::Runtime;

const FIRST: DeviceId = DeviceId { api: Api::SIMULATED, index: 0 };
const SECOND: DeviceId = DeviceId { api: Api::SIMULATED, index: 1 };

fn cpu() -> Arc<Runtime> {
    Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap())
}

fn virtual_devices(scripts: Vec<Script>) -> Arc<Runtime> {
    let backend = scripts.into_iter().fold(VirtualBackend::new(Arc::new(CpuBackend::new())), VirtualBackend::device);
    Arc::new(Runtime::builder().backend(Arc::new(backend)).build().unwrap())
}

/// A classifier of three classes over rows of twelve numbers.
fn classifier(layers: &dyn Layer, compute: DType) -> Recording {
    let mut net = Net::new("classifier", Mode::Train).with_compute(compute);
    let batch = net.symbol("batch").unwrap();
    let x = net.data("x", DType::F32, &[batch, 12.into()]).unwrap();
    let labels = net.data("labels", DType::U32, &[batch]).unwrap();
    let logits = layers.forward(&mut net, x).unwrap();
    let loss = loss::cross_entropy(&mut net, logits, labels, 0.0).unwrap();
    net.finish(&[("loss", loss)]).unwrap()
}

fn mlp() -> Sequential {
    Sequential::new("").with(Linear::new("fc1", 12, 16)).with(Relu).with(Linear::new("fc2", 16, 3))
}

fn rows(count: usize, seed: u64) -> Vec<Tensor> {
    let mut random = Random::new(seed, "rows");
    let labels: Vec<u32> = (0..count as u32).map(|row| row % 3).collect();
    let value =
        |label: u32, place: usize, noise: f32| noise * 0.5 + if place % 3 == label as usize { 1.0 } else { -0.3 };
    let values: Vec<f32> = (0..count * 12).map(|at| value(labels[at / 12], at % 12, random.normal())).collect();
    vec![Tensor::from_vec(values, [count, 12]).unwrap(), Tensor::from_vec(labels, [count]).unwrap()]
}

fn session(runtime: &Arc<Runtime>, layers: &dyn Layer, options: SessionOptions) -> Session {
    let recording = classifier(layers, DType::F32);
    Session::new(Arc::clone(runtime), recording, Optimiser::adam(0.02), None, options).unwrap()
}

fn step(session: &mut Session, batch: &[Tensor]) -> f32 {
    let outcome = session.step(batch).unwrap();
    session.figures(outcome.step).unwrap()[0]
}

fn losses(session: &mut Session, batch: &[Tensor], steps: usize) -> Vec<f32> {
    (0..steps).map(|_| step(session, batch)).collect()
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("panoply-nn-sessions-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

/// One parameter with the loss `x · w`, so its gradient is the value in the batch.
fn line(optimiser: Optimiser, options: SessionOptions) -> Session {
    let mut net = Net::new("line", Mode::Train);
    let w = net.parameter("w", &[1], Init::Constant(1.0)).unwrap();
    let seen = net.buffer("seen", &[1], Init::Constant(0.0)).unwrap();
    let x = net.data("x", DType::F32, &[1.into()]).unwrap();
    let new = net.add(seen, x).unwrap();
    net.update("seen", new).unwrap();
    let product = net.mul(x, w).unwrap();
    let loss = loss::mean(&mut net, product).unwrap();
    Session::new(cpu(), net.finish(&[("loss", loss)]).unwrap(), optimiser, None, options).unwrap()
}

fn get(session: &mut Session, name: &str) -> f32 {
    session.parameters().unwrap().get(name).unwrap().to_vec::<f32>().unwrap()[0]
}

#[test]
fn a_step_that_is_left_out_counts_for_nothing() {
    let options = SessionOptions { loss_scale: Some(8.0), ..SessionOptions::default() };
    let (mut calm, mut disturbed) = (line(Optimiser::adam(0.1), options.clone()), line(Optimiser::adam(0.1), options));
    let of = |x: f32| [Tensor::from_vec(vec![x], [1]).unwrap()];
    for x in [1.0, 2.0, -1.0] {
        disturbed.step(&of(f32::INFINITY)).unwrap();
        assert_eq!(get(&mut disturbed, "seen"), get(&mut calm, "seen"), "a buffer is left alone, too");
        calm.step(&of(x)).unwrap();
        disturbed.step(&of(x)).unwrap();
    }
    // Adam's corrections depend on the number of applied steps.
    assert_eq!(get(&mut calm, "w"), get(&mut disturbed, "w"));
    assert_eq!((get(&mut calm, "seen"), get(&mut disturbed, "seen")), (2.0, 2.0));
    assert_eq!((disturbed.position().unwrap().step, disturbed.position().unwrap().applied), (6, 3));
}

#[test]
fn a_step_apart_that_is_left_out_leaves_buffers_alone() {
    let layers = Sequential::new("").with(BatchNorm::new("norm", 12)).with(Linear::new("fc", 12, 3));
    let options = SessionOptions { loss_scale: Some(8.0), accumulate: 2, ..SessionOptions::default() };
    let mut session = session(&cpu(), &layers, options);
    let batch = rows(8, 1);
    session.step(&batch).unwrap();
    let before = session.parameters().unwrap();
    let mut bad = batch[0].to_vec::<f32>().unwrap();
    bad[95] = f32::INFINITY;
    session.step(&[Tensor::from_vec(bad, [8, 12]).unwrap(), batch[1].clone()]).unwrap();
    for (name, tensor) in session.parameters().unwrap().iter() {
        assert_eq!(tensor.to_vec::<f32>().unwrap(), before.get(name).unwrap().to_vec::<f32>().unwrap(), "{name}");
    }
}

#[test]
fn gradients_that_are_never_finite_end_training() {
    let options = SessionOptions { loss_scale: Some(1024.0), ..SessionOptions::default() };
    let mut session = line(Optimiser::sgd(0.1), options);
    let bad = [Tensor::from_vec(vec![f32::NAN], [1]).unwrap()];
    let refused = (0..100).find_map(|_| session.step(&bad).err());
    assert!(matches!(refused, Some(Error::NotFinite { .. })), "{refused:?}");
}

#[test]
fn parts_of_a_batch_are_dropped_apart() {
    // The weights after one step from zero; each is proportional to the gradient of its column.
    let dropped = |accumulate: usize| {
        let mut net = Net::new("drop", Mode::Train);
        let batch = net.symbol("batch").unwrap();
        let x = net.data("x", DType::F32, &[batch, 64.into()]).unwrap();
        let w = net.parameter("w", &[64], Init::Constant(0.0)).unwrap();
        let y = net.add(x, w).unwrap();
        let y = Dropout::new("drop", 0.5).forward(&mut net, y).unwrap();
        let loss = loss::mean(&mut net, y).unwrap();
        let recording = net.finish(&[("loss", loss)]).unwrap();
        let options = SessionOptions { accumulate, ..SessionOptions::default() };
        let mut session = Session::new(cpu(), recording, Optimiser::sgd(1.0), None, options).unwrap();
        session.step(&[Tensor::from_vec(vec![1.0_f32; 256], [4, 64]).unwrap()]).unwrap();
        session.parameters().unwrap().get("w").unwrap().to_vec::<f32>().unwrap()
    };
    // The gradient of a column counts the rows in which the column was kept. If all four rows had
    // the same mask, the count would be four or zero.
    let kinds: std::collections::BTreeSet<i32> = dropped(4).iter().map(|w| (w * -256.0 / 2.0).round() as i32).collect();
    assert!(kinds.len() > 2, "{kinds:?}");
}

#[test]
fn buffers_of_two_devices_are_weighted_by_their_rows() {
    let mut net = Net::new("mean", Mode::Train);
    let batch = net.symbol("batch").unwrap();
    let x = net.data("x", DType::F32, &[batch, 1.into()]).unwrap();
    let w = net.parameter("w", &[1], Init::Constant(1.0)).unwrap();
    let seen = net.buffer("seen", &[1], Init::Constant(0.0)).unwrap();
    let mean = net.reduce(panoply_core::op::compute::Reduction::Mean, x, &[0]).unwrap();
    let new = net.map(&[seen, mean], |v| v[0].clone() * 0.0 + v[1].clone()).unwrap();
    net.update("seen", new).unwrap();
    let y = net.mul(x, w).unwrap();
    let loss = loss::mean(&mut net, y).unwrap();
    let recording = net.finish(&[("loss", loss)]).unwrap();
    let runtime = virtual_devices(vec![Script::new().resident(), Script::new().resident()]);
    let options = SessionOptions { devices: vec![FIRST, SECOND], ..SessionOptions::default() };
    let mut session = Session::new(runtime, recording, Optimiser::sgd(0.0), None, options).unwrap();
    session.step(&[Tensor::from_vec(vec![0.0_f32, 3.0, 3.0], [3, 1]).unwrap()]).unwrap();
    assert_eq!(get(&mut session, "seen"), 2.0, "the mean of all rows, not of the two means");
}

#[test]
fn a_replay_that_fails_is_made_up_for() {
    let batch = rows(30, 6);
    let expected = losses(&mut session(&cpu(), &mlp(), SessionOptions::default()), &batch, 20);
    // The device is lost once, and again while the earlier steps are run again.
    let lost = Script::new().resident().fault_at(12, Fault::Lost).fault_at(18, Fault::Lost);
    let options = SessionOptions { copy_every: 50, ..SessionOptions::default() };
    let mut disturbed = session(&virtual_devices(vec![lost]), &mlp(), options);
    let mut failures = 0;
    while disturbed.step_number() < 20 {
        if let Err(error) = disturbed.step(&batch) {
            assert!(error.is_device(), "{error}");
            failures += 1;
            assert!(failures < 200, "{error}");
            // A lost device is opened again after a while.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    assert!(disturbed.recoveries() > 0);
    let found: Vec<f32> = (0..20).map(|step| disturbed.figures(step).unwrap()[0]).collect();
    assert!(expected.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-5), "{expected:?} {found:?}");
}

#[test]
fn batches_on_a_device_are_lost_with_it_and_made_again() {
    let batch = rows(30, 6);
    let expected = losses(&mut session(&cpu(), &mlp(), SessionOptions::default()), &batch, 12);
    let runtime = virtual_devices(vec![Script::new().resident().fault_at(30, Fault::Lost)]);
    let options = SessionOptions { copy_every: 50, ..SessionOptions::default() };
    let mut disturbed = session(&runtime, &mlp(), options);
    let mut failures = 0;
    while disturbed.step_number() < 12 {
        let there = |tensor: &Tensor| runtime.run(Transfer::to_device(tensor, FIRST)).wait();
        let resident: panoply_core::Result<Vec<Tensor>> = batch.iter().map(there).collect();
        // A batch that is lost in transfer is sent again, because a failed step has no effect.
        if !resident.is_ok_and(|resident| disturbed.step(&resident).is_ok()) {
            failures += 1;
            assert!(failures < 200);
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
    let found: Vec<f32> = (0..12).map(|step| disturbed.figures(step).unwrap()[0]).collect();
    assert!(disturbed.recoveries() > 0);
    assert!(expected.iter().zip(&found).all(|(a, b)| (a - b).abs() < 1e-5), "{expected:?} {found:?}");
}

#[test]
fn without_copies_training_ends_with_its_device() {
    let runtime = virtual_devices(vec![Script::new().resident().fault_at(9, Fault::Lost)]);
    let options = SessionOptions { copy_every: 0, ..SessionOptions::default() };
    let mut session = session(&runtime, &mlp(), options);
    let refused = (0..12).find_map(|_| session.step(&rows(30, 6)).err());
    assert!(refused.is_some_and(|error| error.is_device()));
}

fn files(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = entries.collect();
    names.sort();
    names
}

#[test]
fn the_checkpoint_that_was_just_written_stays() {
    let folder = folder("stays");
    let checkpoints = Checkpoints::new(&folder, 2).unwrap();
    for step in [100, 200, 300] {
        std::fs::write(folder.join(format!("checkpoint-{step:012}.safetensors")), "damaged").unwrap();
    }
    let mut session = session(&cpu(), &mlp(), SessionOptions::default());
    let batch = rows(30, 6);
    for epoch in 1..=3 {
        step(&mut session, &batch);
        let path = checkpoints.save(&mut session, Marks { epoch, ..Marks::default() }).unwrap();
        assert!(path.exists());
    }
    assert_eq!(files(&folder)[..2], ["checkpoint-000000000002.safetensors", "checkpoint-000000000003.safetensors"]);
    let (found, refused) = checkpoints.newest().unwrap();
    assert_eq!((found.unwrap().marks.epoch, refused.len()), (3, 3));
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn whatever_of_a_checkpoint_is_changed_is_noticed() {
    let folder = folder("changed");
    let checkpoints = Checkpoints::new(&folder, 2).unwrap();
    let mut session = session(&cpu(), &mlp(), SessionOptions::default());
    step(&mut session, &rows(30, 6));
    let path = checkpoints.save(&mut session, Marks { epoch: 7, ..Marks::default() }).unwrap();
    let whole = std::fs::read(&path).unwrap();
    // A changed note of the same length, another element type of the same size, and a changed loss
    // scale.
    let changes =
        [("\"epoch\":\"7\"", "\"epoch\":\"9\""), ("\"F32\"", "\"I32\""), ("\"scale\":\"1\"", "\"scale\":\"9\"")];
    for (from, to) in changes {
        let at = whole.windows(from.len()).position(|window| window == from.as_bytes()).unwrap();
        let mut changed = whole.clone();
        changed[at..at + from.len()].copy_from_slice(to.as_bytes());
        std::fs::write(&path, &changed).unwrap();
        let (found, refused) = checkpoints.newest().unwrap();
        assert!(found.is_none() && refused.len() == 1, "{from}");
    }
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn training_that_was_stopped_goes_on_to_the_bit() {
    let batch = rows(30, 6);
    let options = || SessionOptions { loss_scale: Some(1e9), ..SessionOptions::default() };
    let layers = Sequential::new("")
        .with(Linear::new("fc1", 12, 16))
        .with(Relu)
        .with(Dropout::new("drop", 0.3))
        .with(Linear::new("fc2", 16, 3));
    let made = || {
        let recording = classifier(&layers, DType::F16);
        Session::new(cpu(), recording, Optimiser::adam(0.02), None, options()).unwrap()
    };
    let mut whole = made();
    let expected = losses(&mut whole, &batch, 40);
    let folder = folder("bit");
    let checkpoints = Checkpoints::new(&folder, 2).unwrap();
    let mut found = Vec::new();
    for _ in 0..8 {
        let mut part = made();
        checkpoints.resume(&mut part).unwrap();
        found.extend(losses(&mut part, &batch, 5));
        checkpoints.save(&mut part, Marks::default()).unwrap();
    }
    assert_eq!(expected, found);
    let mut last = made();
    checkpoints.resume(&mut last).unwrap();
    assert_eq!(last.position().unwrap(), whole.position().unwrap());
    assert!(whole.position().unwrap().applied < 40, "some were left out");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn an_early_end_is_where_it_would_have_been() {
    let set = Dataset::new(rows(30, 6)).unwrap();
    let early_stop = Some(EarlyStop { patience: 2, by_least: 10.0 });
    let runtime = cpu();
    let folder = folder("early");
    let checkpoints = Checkpoints::new(&folder, 2).unwrap();
    let mut epochs = 0;
    for until in [1, 2, 50, 50] {
        let mut part = session(&runtime, &mlp(), SessionOptions::default());
        let trainer = Trainer { early_stop, checkpoints: Some(&checkpoints), ..Trainer::new(&set, 10, until) };
        let summary = trainer.run(&runtime, &mut part, &mut |_| {}).unwrap();
        epochs += summary.epochs.len();
        assert_eq!(summary.stopped_early, until == 50);
    }
    // The first epoch improves on no result, and the next three do not improve on the first.
    assert_eq!(epochs, 4);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn trainers_and_sessions_that_make_no_sense_are_refused() {
    let (runtime, set) = (cpu(), Dataset::new(rows(30, 6)).unwrap());
    let mut session = session(&runtime, &mlp(), SessionOptions::default());
    let refused = Trainer::new(&set, 0, 1).run(&runtime, &mut session, &mut |_| {}).unwrap_err();
    assert!(refused.to_string().contains("batch"), "{refused}");
    let nothing = set.split_at(0).unwrap().0;
    assert!(Trainer::new(&nothing, 4, 1).run(&runtime, &mut session, &mut |_| {}).is_err());
    assert!(session.step(&nothing.rows(&[]).unwrap()).is_err(), "no rows");
    let absurd = [
        SessionOptions { accumulate: 0, ..SessionOptions::default() },
        SessionOptions { accumulate: usize::MAX, ..SessionOptions::default() },
        SessionOptions { copy_every: usize::MAX, ..SessionOptions::default() },
        SessionOptions { loss_scale: Some(f32::INFINITY), ..SessionOptions::default() },
        SessionOptions { loss_scale: Some(0.0), ..SessionOptions::default() },
        SessionOptions { devices: vec![FIRST, FIRST], ..SessionOptions::default() },
    ];
    for options in absurd {
        let recording = classifier(&mlp(), DType::F32);
        assert!(Session::new(cpu(), recording, Optimiser::sgd(0.1), None, options.clone()).is_err(), "{options:?}");
    }
}
