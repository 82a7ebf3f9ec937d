//! `panoply train`: trains a network on handwritten digits on this machine's devices, and reports
//! its accuracy.

use std::collections::HashMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context, Result};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use lz4_flex::frame::FrameDecoder;
use panoply::graph::svg::bytes_text;
use panoply::graph::{SymbolSizes, compile, processor_target, target_of};
use panoply::nn::samples::{self, Pictures};
use panoply::nn::train::{Checkpoints, Progress, Session, SessionOptions, Summary, Trainer, curve};
use panoply::nn::{Mode, Optimiser, Schedule, files};
use panoply::{DType, DeviceInfo, Runtime};
use serde::Serialize;

use crate::configuration::Format;
use crate::configuration::train::TrainOptions;
use crate::failure::{Failure, say_on_interrupt};
use crate::gate::Gate;
use crate::partial::Partial;
use crate::screen::Screen;
use crate::vectors::start;

/// The digits, compressed by the build script.
const DIGITS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/digits.u8.lz4"));
/// The number of checkpoints to keep.
const CHECKPOINTS: usize = 3;
/// The initial loss scale when products are f16.
const LOSS_SCALE: f32 = 65_536.0;
/// The final learning rate, as a share of the initial one.
const LAST_RATE: f64 = 0.02;

/// The results of training, in the form of the JSON output.
#[derive(Serialize)]
struct TrainReport {
    network: String,
    parameters: usize,
    pictures: usize,
    kept_aside: usize,
    epochs: Vec<EpochRow>,
    /// The share of the held-out pictures that are classified correctly.
    accuracy: Option<f64>,
    steps: u64,
    seconds: f64,
    /// The peak memory of a step, in bytes: its inputs (parameters, the optimiser's state, the
    /// batch), the intermediate values between its ops, and its outputs.
    step_peak_bytes: u64,
    stopped_early: bool,
    recoveries: u32,
    fallbacks: Vec<String>,
    refused_checkpoints: Vec<String>,
}

#[derive(Serialize)]
struct EpochRow {
    epoch: u64,
    training_loss: f64,
    loss: Option<f64>,
    accuracy: Option<f64>,
    seconds: f64,
}

/// Runs `panoply train`.
pub fn run(options: &TrainOptions, screen: &mut Screen) -> Result<(), Failure> {
    // An unusable path fails here, before the training.
    for file in options.save.iter().chain(&options.curve) {
        if file.is_dir() {
            return Err(Failure::Usage(format!("expected a file to write, got the folder {}", file.display())));
        }
        drop(Partial::create(file, true)?);
    }
    let pictures = pictures(options)?;
    let runtime = start()?;
    let mut session = session(&runtime, &pictures, options)?;
    let used = options.network.record(&pictures, Mode::Use, options.precision).map_err(anyhow::Error::new)?;
    let saved = announce(options);
    let checkpoints = options.checkpoints.as_ref().map(|folder| Checkpoints::new(folder, CHECKPOINTS)).transpose();
    let checkpoints = checkpoints.map_err(anyhow::Error::new)?;
    let trainer = Trainer {
        evaluate: Some((&used, &pictures.test)),
        checkpoints: checkpoints.as_ref(),
        seed: options.seed,
        ..Trainer::new(&pictures.train, options.batch, options.epochs)
    };
    let step_peak_bytes = step_peak_bytes(&runtime, &session, options)?;
    let bar = progress_bar();
    let started = Instant::now();
    let summary = trainer.run(&runtime, &mut session, &mut |progress| show_progress(&bar, options, progress));
    bar.finish_and_clear();
    let summary = summary.map_err(anyhow::Error::new)?;
    let seconds = started.elapsed().as_secs_f64();
    let parameters = session.parameters().map_err(anyhow::Error::new)?;
    if let Some(file) = &options.save {
        let mut saved = saved.pass();
        files::save(file, &parameters, HashMap::new()).map_err(anyhow::Error::new)?;
        *saved = true;
    }
    if let Some(file) = &options.curve {
        let network = format!("{:?}", options.network).to_uppercase();
        let title = format!("{network} trained on {} pictures", pictures.train.len());
        let picture = curve::svg(&title, &summary.curves(&["loss on pictures kept aside", "accuracy (share of 1)"]));
        Partial::create(file, true)?.finish_with(picture.as_bytes())?;
    }
    let findings = TrainReport {
        network: format!("{:?}", options.network).to_lowercase(),
        parameters: parameters.elements(),
        pictures: pictures.train.len(),
        kept_aside: pictures.test.len(),
        step_peak_bytes,
        ..findings(&summary, session.step_number(), seconds)
    };
    match options.format {
        Format::Json => screen.json(&findings),
        Format::Table => print(&findings, screen),
    }
}

/// Sets the message that a signal prints: which files are written, and from which step the same
/// command goes on. Returns whether the parameters are saved.
fn announce(options: &TrainOptions) -> Arc<Gate<bool>> {
    let saved: Arc<Gate<bool>> = Arc::default();
    let known = Arc::clone(&saved);
    let (save, curve) = (options.save.clone(), options.curve.clone());
    let checkpoints = options.checkpoints.clone();
    if save.is_none() && curve.is_none() && checkpoints.is_none() {
        return saved;
    }
    say_on_interrupt(move |given_up| {
        let is = |is_written: Option<bool>| match is_written {
            Some(true) => "is written",
            Some(false) => "is not written",
            None => "is written or not, and whole in either case",
        };
        let file = |file: &PathBuf, is_written| format!("{} {}", file.display(), is(is_written));
        let saved = save.as_ref().map(|save| file(save, known.close(|saved| *saved)));
        let drawn = curve.as_ref().map(|curve| file(curve, given_up.map(|files| files.completed > 0)));
        let words = [saved, drawn, checkpoints.as_deref().map(kept)];
        format!("interrupted; {}", words.into_iter().flatten().collect::<Vec<_>>().join("; "))
    });
    saved
}

/// The text about a folder of checkpoints.
fn kept(folder: &Path) -> String {
    // A folder that does not exist is not made.
    let steps = || Checkpoints::new(folder, CHECKPOINTS).and_then(|kept| kept.steps()).ok();
    let newest = if folder.is_dir() { steps().and_then(|steps| steps.last().copied()) } else { None };
    let folder = folder.display();
    match newest {
        Some(step) => format!("{folder} has a checkpoint of step {step}, from which the same command goes on"),
        None => format!("{folder} has no checkpoint yet"),
    }
}

fn pictures(options: &TrainOptions) -> Result<Pictures> {
    if let Some(folder) = &options.mnist {
        return samples::mnist(folder).context("MNIST could not be read");
    }
    let mut rows = Vec::new();
    FrameDecoder::new(DIGITS).read_to_end(&mut rows).context("the digits that this command carries are damaged")?;
    Ok(samples::digits(&rows, options.seed)?)
}

fn session(runtime: &Runtime, pictures: &Pictures, options: &TrainOptions) -> Result<Session> {
    let recording = options.network.record(pictures, Mode::Train, options.precision)?;
    let steps = options.epochs * (pictures.train.len() / options.batch).max(1) as u64;
    let optimiser = Optimiser::adam(options.rate).schedule(Schedule::Cosine { steps, last: LAST_RATE });
    let loss_scale = (options.precision == DType::F16).then_some(LOSS_SCALE);
    let (seed, devices, debug) = (options.seed, options.devices.clone(), options.debug);
    let options = SessionOptions { seed, devices, loss_scale, debug, ..SessionOptions::default() };
    Ok(Session::new(runtime, recording, optimiser, None, options)?)
}

/// Returns the peak memory of the step's plan, for the kind of device that runs the step.
fn step_peak_bytes(runtime: &Runtime, session: &Session, options: &TrainOptions) -> Result<u64> {
    let is_chosen = |device: &DeviceInfo| options.devices.first().is_none_or(|chosen| device.id == *chosen);
    let target = runtime.devices().find(is_chosen).map_or_else(processor_target, |device| target_of(&device))?;
    let plan = compile(session.graph(), &SymbolSizes([options.batch, 1, 1, 1]), &target.facts)?;
    Ok(plan.peak.bytes(false))
}

fn progress_bar() -> ProgressBar {
    if !crate::verbosity::shows_progress() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(1), ProgressDrawTarget::stderr());
    let style = ProgressStyle::with_template("{bar:30} {pos}/{len} steps  {eta} left  {msg}");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

fn show_progress(bar: &ProgressBar, options: &TrainOptions, progress: &Progress) {
    bar.set_length(options.epochs * progress.batches as u64);
    bar.set_position(progress.epoch * progress.batches as u64 + progress.done as u64);
    bar.set_message(format!("epoch {}, loss {:.4}", progress.epoch + 1, progress.loss));
}

fn findings(summary: &Summary, steps: u64, seconds: f64) -> TrainReport {
    let row = |epoch: &panoply::nn::train::Epoch| EpochRow {
        epoch: epoch.epoch + 1,
        training_loss: epoch.loss,
        loss: epoch.evaluated.first().copied(),
        accuracy: epoch.evaluated.get(1).copied(),
        seconds: epoch.trained.as_secs_f64(),
    };
    let epochs: Vec<EpochRow> = summary.epochs.iter().map(row).collect();
    TrainReport {
        network: String::new(),
        parameters: 0,
        pictures: 0,
        kept_aside: 0,
        accuracy: epochs.last().and_then(|epoch| epoch.accuracy),
        epochs,
        steps,
        seconds,
        step_peak_bytes: 0,
        stopped_early: summary.stopped_early,
        recoveries: summary.recoveries,
        fallbacks: summary.fallbacks.clone(),
        refused_checkpoints: summary.refused.iter().map(ToString::to_string).collect(),
    }
}

fn print(findings: &TrainReport, screen: &mut Screen) -> Result<(), Failure> {
    for refused in &findings.refused_checkpoints {
        screen.line(screen.alarming(&format!("a checkpoint was refused: {refused}")))?;
    }
    for row in &findings.epochs {
        let accuracy = row.accuracy.map_or(String::new(), |share| format!("{:.2} % right", share * 100.0));
        let EpochRow { epoch, training_loss, seconds, .. } = row;
        screen.line(format!("epoch {epoch:>3}   loss {training_loss:.4}   {accuracy}   {seconds:.1} s"))?;
    }
    for fallback in &findings.fallbacks {
        screen.line(screen.alarming(&format!("a step ran elsewhere: {fallback}")))?;
    }
    if findings.recoveries > 0 {
        screen.line(format!(
            "{} times a device was lost, and training went on from its last step",
            findings.recoveries
        ))?;
    }
    let TrainReport { network, parameters, pictures, kept_aside, steps, seconds, .. } = findings;
    match findings.accuracy {
        Some(share) => {
            let reached = screen.strong(&format!("{:.2} %", share * 100.0));
            screen.line(format!("a step uses at most {} of memory", bytes_text(findings.step_peak_bytes)))?;
            screen.line(format!(
                "{reached} of {kept_aside} digits that it had not seen are read right: {network} with {parameters} parameters, \
                 {pictures} digits, {steps} steps, {seconds:.1} s"
            ))
        }
        None => screen.line("nothing was left to train: the checkpoints have all epochs"),
    }
}
