//! Digits are learned, training resumes from checkpoints, and it ends when it no longer improves.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use panoply_core::DType;
use panoply_cpu::CpuBackend;
use panoply_nn::samples::{self, Classifier, Pictures};
use panoply_nn::train::curve::svg;
use panoply_nn::train::{Checkpoints, EarlyStop, Session, SessionOptions, Summary, Trainer};
use panoply_nn::{Mode, Optimiser, Schedule};
use panoply_runtime::Runtime;

fn cpu() -> Arc<Runtime> {
    Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap())
}

fn digits() -> Pictures {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../app/data/digits.u8");
    samples::digits(&std::fs::read(path).unwrap(), 0).unwrap()
}

struct TrainingPlan {
    classifier: Classifier,
    batch: usize,
    epochs: u64,
    rate: f64,
}

fn session(runtime: &Arc<Runtime>, pictures: &Pictures, plan: &TrainingPlan) -> Session {
    let recording = plan.classifier.record(pictures, Mode::Train, DType::F32).unwrap();
    let steps = plan.epochs * (pictures.train.len() / plan.batch) as u64;
    let optimiser = Optimiser::adam(plan.rate).schedule(Schedule::Cosine { steps, last: 0.02 });
    Session::new(Arc::clone(runtime), recording, optimiser, None, SessionOptions::default()).unwrap()
}

fn train(pictures: &Pictures, plan: &TrainingPlan) -> (Summary, f64) {
    let runtime = cpu();
    let mut session = session(&runtime, pictures, plan);
    let used = plan.classifier.record(pictures, Mode::Use, DType::F32).unwrap();
    let trainer =
        Trainer { evaluate: Some((&used, &pictures.test)), ..Trainer::new(&pictures.train, plan.batch, plan.epochs) };
    let started = Instant::now();
    let summary = trainer.run(&runtime, &mut session, &mut |_| {}).unwrap();
    let seconds = started.elapsed().as_secs_f64();
    let last = summary.epochs.last().unwrap();
    println!("{:?}: accuracy {:.4} after {} epochs in {seconds:.1} s", plan.classifier, last.evaluated[1], plan.epochs);
    (summary, seconds)
}

#[test]
fn digits_are_learned_to_98_per_cent() {
    let pictures = digits();
    let plan = TrainingPlan { classifier: Classifier::Cnn, batch: 16, epochs: 30, rate: 3e-3 };
    let (summary, _) = train(&pictures, &plan);
    let accuracy = summary.epochs.last().unwrap().evaluated[1];
    assert!(accuracy >= 0.98, "{accuracy}");
    let picture = svg("digits", &summary.curves(&["loss", "accuracy"]));
    assert_eq!(picture.matches("<polyline").count(), 3);
}

/// Reads MNIST's files from the folder in `PANOPLY_MNIST`.
#[test]
fn mnist_is_learned_in_time() {
    let Some(folder) = std::env::var_os("PANOPLY_MNIST") else {
        eprintln!("skipped: PANOPLY_MNIST does not name the folder with MNIST's four files");
        return;
    };
    let pictures = samples::mnist(folder.as_ref()).unwrap();
    let plans = [
        (TrainingPlan { classifier: Classifier::Mlp, batch: 64, epochs: 3, rate: 1.5e-3 }, 0.972),
        (TrainingPlan { classifier: Classifier::Cnn, batch: 32, epochs: 1, rate: 4e-3 }, 0.980),
    ];
    for (plan, wanted) in plans {
        let (summary, _) = train(&pictures, &plan);
        let accuracy = summary.epochs.last().unwrap().evaluated[1];
        assert!(accuracy >= wanted, "{:?}: {accuracy}", plan.classifier);
    }
}

fn folder(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("panoply-nn-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    path
}

#[test]
fn training_goes_on_from_the_newest_whole_checkpoint() {
    let pictures = digits();
    let plan = TrainingPlan { classifier: Classifier::Mlp, batch: 64, epochs: 4, rate: 2e-3 };
    let runtime = cpu();
    let mut whole = session(&runtime, &pictures, &plan);
    let trainer = Trainer::new(&pictures.train, plan.batch, plan.epochs);
    let expected = trainer.run(&runtime, &mut whole, &mut |_| {}).unwrap();

    let folder = folder("checkpoints");
    let checkpoints = Checkpoints::new(&folder, 3).unwrap();
    let mut first = session(&runtime, &pictures, &plan);
    let half = Trainer { epochs: 3, checkpoints: Some(&checkpoints), ..Trainer::new(&pictures.train, plan.batch, 3) };
    half.run(&runtime, &mut first, &mut |_| {}).unwrap();
    // The newest checkpoint is damaged, and an interrupted write has left half a file. The second
    // checkpoint is used, and the third epoch is trained again.
    let mut files: Vec<PathBuf> = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    assert_eq!(files.len(), 3);
    let mut bytes = std::fs::read(&files[2]).unwrap();
    let last = bytes.len() - 3;
    bytes[last] ^= 1;
    std::fs::write(&files[2], &bytes).unwrap();
    let half = folder.join("checkpoint-000000009999.safetensors.tmp");
    std::fs::write(&half, &bytes[..100]).unwrap();
    let mut again = session(&runtime, &pictures, &plan);
    let rest = Trainer { checkpoints: Some(&checkpoints), ..Trainer::new(&pictures.train, plan.batch, plan.epochs) };
    let summary = rest.run(&runtime, &mut again, &mut |_| {}).unwrap();
    assert_eq!((summary.epochs.len(), summary.refused.len()), (2, 1));
    assert!(summary.refused[0].to_string().contains("checksum"), "{}", summary.refused[0]);
    let (got, wanted) = (summary.epochs.last().unwrap().loss, expected.epochs.last().unwrap().loss);
    assert!((got - wanted).abs() < 1e-5, "{got} and {wanted}: the same as without a stop");
    assert!(!half.exists(), "the next checkpoint removes it");
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn training_ends_when_it_gets_no_better() {
    let pictures = digits();
    let plan = TrainingPlan { classifier: Classifier::Mlp, batch: 64, epochs: 50, rate: 0.0 };
    let runtime = cpu();
    let mut session = session(&runtime, &pictures, &plan);
    let early_stop = Some(EarlyStop { patience: 2, by_least: 1e-3 });
    let trainer = Trainer { early_stop, ..Trainer::new(&pictures.train, plan.batch, plan.epochs) };
    let mut told = 0;
    let summary = trainer.run(&runtime, &mut session, &mut |progress| told += progress.done).unwrap();
    assert!(summary.stopped_early && summary.epochs.len() == 4, "{}", summary.epochs.len());
    assert!(told > 0);
}
