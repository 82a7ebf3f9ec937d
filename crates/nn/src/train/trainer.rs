//! A trainer: epochs over a dataset, with progress, metrics, early stopping and checkpoints.

use std::time::{Duration, Instant};

use panoply_core::Tensor;
use panoply_core::op::compute::Transfer;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Location, Report};
use panoply_runtime::Runtime;

use super::checkpoint::{Checkpoints, Marks};
use super::curve::Series;
use super::data::Dataset;
use super::session::Session;
use crate::error::{Error, Result};
use crate::net::{Recording, Role};
use crate::parameters::Parameters;

/// Number of losses that are read together, because reading a loss waits for its step.
const READ_EVERY: usize = 16;

/// The condition for ending training before the last epoch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EarlyStop {
    /// Number of successive epochs without an improvement that are tolerated.
    pub patience: u32,
    /// The least decrease of the figure that counts as an improvement.
    pub by_least: f64,
}

/// The progress that is reported during training.
#[derive(Clone, Copy, Debug)]
pub struct Progress {
    /// The epoch, from 0.
    pub epoch: u64,
    /// Number of batches of the epoch that are done.
    pub done: usize,
    /// Number of batches in the epoch.
    pub batches: usize,
    /// The loss of the last batch that was read.
    pub loss: f32,
}

/// The result of an epoch.
#[derive(Clone, Debug, PartialEq)]
pub struct Epoch {
    /// The number of the epoch, from 0.
    pub epoch: u64,
    /// The mean loss of the epoch's batches.
    pub loss: f64,
    /// The mean loss and the means of the other outputs over the evaluation set. Empty without such
    /// a set.
    pub evaluated: Vec<f64>,
    /// The duration of training, without evaluation.
    pub trained: Duration,
}

/// The result of training.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// The epochs.
    pub epochs: Vec<Epoch>,
    /// The number and the loss of every step.
    pub losses: Vec<(f64, f64)>,
    /// Whether training ended early.
    pub stopped_early: bool,
    /// Number of steps that were restarted because a device was lost.
    pub recoveries: u32,
    /// The ops that ran on another device than the chosen one, and why.
    pub fallbacks: Vec<String>,
    /// The errors of checkpoints that were refused.
    pub refused: Vec<Error>,
}

impl Summary {
    /// The curves: the loss of every step, and each evaluated figure of every epoch, with these
    /// names.
    pub fn curves(&self, figures: &[&str]) -> Vec<Series> {
        let mut lines = vec![Series { name: "training loss".to_owned(), counted: "step", points: self.losses.clone() }];
        for (place, name) in figures.iter().enumerate() {
            let point = |epoch: &Epoch| Some(((epoch.epoch + 1) as f64, *epoch.evaluated.get(place)?));
            let points = self.epochs.iter().filter_map(point).collect();
            lines.push(Series { name: (*name).to_owned(), counted: "epoch", points });
        }
        lines
    }
}

/// The settings of a training.
pub struct Trainer<'a> {
    /// The rows to train on.
    pub train: &'a Dataset,
    /// The network recorded for inference, with the evaluation set. Its first output is the loss.
    pub evaluate: Option<(&'a Recording, &'a Dataset)>,
    /// Number of rows in a batch.
    pub batch: usize,
    /// The largest number of epochs.
    pub epochs: u64,
    /// The condition for ending earlier, judged by the first evaluated figure.
    pub early_stop: Option<EarlyStop>,
    /// The folder in which training is saved after each epoch, and from which it resumes.
    pub checkpoints: Option<&'a Checkpoints>,
    /// The seed of the order of rows.
    pub seed: u64,
}

impl<'a> Trainer<'a> {
    /// A trainer for `epochs` epochs over a dataset, in batches of `batch` rows.
    pub fn new(train: &'a Dataset, batch: usize, epochs: u64) -> Trainer<'a> {
        Trainer { train, evaluate: None, batch, epochs, early_stop: None, checkpoints: None, seed: 0 }
    }

    /// Trains a session and reports progress to `tell`. Resumes from the newest checkpoint if there
    /// is one.
    pub fn run(&self, runtime: &Runtime, session: &mut Session, tell: &mut dyn FnMut(&Progress)) -> Result<Summary> {
        if self.batch == 0 {
            return Err(Error::invalid("trainer: batch", "at least one row", 0));
        }
        if self.train.is_empty() {
            return Err(Error::invalid("trainer: rows to train on", "at least one", 0));
        }
        let mut summary = Summary::default();
        let mut marks = Marks::default();
        if let Some(checkpoints) = self.checkpoints {
            let (found, refused) = checkpoints.resume(session)?;
            (marks, summary.refused) = (found.unwrap_or_default(), refused);
        }
        while marks.epoch < self.epochs && !self.is_over(&marks) {
            let epoch = marks.epoch;
            let started = Instant::now();
            let loss = self.epoch(session, epoch, &mut summary, tell)?;
            let trained = started.elapsed();
            let evaluated = match self.evaluate {
                Some((recording, set)) => {
                    evaluate(runtime, recording, &session.parameters()?, set, self.batch.max(256))?
                }
                None => Vec::new(),
            };
            marks = self.after(marks, evaluated.first().copied().unwrap_or(loss));
            summary.epochs.push(Epoch { epoch, loss, evaluated, trained });
            if let Some(checkpoints) = self.checkpoints {
                checkpoints.save(session, marks)?;
            }
        }
        summary.stopped_early = marks.epoch < self.epochs;
        summary.recoveries = session.recoveries();
        Ok(summary)
    }

    /// The progress after an epoch with this figure.
    fn after(&self, marks: Marks, figure: f64) -> Marks {
        let Marks { epoch, best, without } = marks;
        let by_least = self.early_stop.map_or(0.0, |stop| stop.by_least);
        let without = if figure < best - by_least { 0 } else { without.saturating_add(1) };
        Marks { epoch: epoch + 1, best: best.min(figure), without }
    }

    /// Whether the figure has not improved for more epochs than are tolerated.
    fn is_over(&self, marks: &Marks) -> bool {
        self.early_stop.is_some_and(|stop| marks.without > stop.patience)
    }

    fn epoch(
        &self,
        session: &mut Session,
        epoch: u64,
        summary: &mut Summary,
        tell: &mut dyn FnMut(&Progress),
    ) -> Result<f64> {
        let order = self.train.order(self.seed, epoch);
        let whole_only = self.train.len() > self.batch;
        let batches = if whole_only { self.train.len() / self.batch } else { 1 };
        let mut unread: Vec<u64> = Vec::new();
        let mut sum = 0.0;
        for (done, batch) in self.train.batches(order, self.batch, whole_only)?.enumerate() {
            let outcome = session.step(&batch?)?;
            summary.fallbacks.extend(outcome.reports.iter().filter_map(fallback));
            unread.push(outcome.step);
            if unread.len() == READ_EVERY || done + 1 == batches {
                let mut loss = 0.0;
                for step in unread.drain(..) {
                    loss = session.figures(step)?.first().copied().unwrap_or(f32::NAN);
                    if !loss.is_finite() {
                        let origin = "train with `debug` to learn which op made it".to_owned();
                        return Err(Error::Diverged { step, loss, origin });
                    }
                    sum += f64::from(loss);
                    summary.losses.push((step as f64, f64::from(loss)));
                }
                tell(&Progress { epoch, done: done + 1, batches, loss });
            }
        }
        Ok(sum / batches.max(1) as f64)
    }
}

fn fallback(report: &Report) -> Option<String> {
    let fallback = report.fallback.as_ref()?;
    Some(format!("{} instead of {}: {}", report.device, fallback.from, fallback.cause))
}

/// The mean of every output of a network over a dataset, weighted by rows. The network's outputs
/// must be scalars that are means over a batch.
pub fn evaluate(
    runtime: &Runtime,
    recording: &Recording,
    parameters: &Parameters,
    set: &Dataset,
    batch: usize,
) -> Result<Vec<f64>> {
    if set.is_empty() {
        return Err(Error::invalid("evaluate: rows", "at least one", 0));
    }
    let order: Vec<u32> = (0..set.len() as u32).collect();
    let mut sums = vec![0.0; recording.named];
    for rows in set.batches(order, batch, false)? {
        let rows = rows?;
        let count = rows.first().and_then(|tensor| tensor.shape().first().copied()).unwrap_or(0);
        let outputs = apply(runtime, recording, parameters, &rows)?;
        for (sum, output) in sums.iter_mut().zip(outputs) {
            let value = output.to_vec::<f32>()?.first().copied().unwrap_or(f32::NAN);
            *sum += f64::from(value) * count as f64 / set.len() as f64;
        }
    }
    Ok(sums)
}

/// Runs a recorded network with these parameters on data tensors, given in the order of recording.
/// The outputs are copied to the host.
pub fn apply(
    runtime: &Runtime,
    recording: &Recording,
    parameters: &Parameters,
    data: &[Tensor],
) -> Result<Vec<Tensor>> {
    let mut data = data.iter();
    let mut inputs = Vec::new();
    for role in &recording.roles {
        inputs.push(match role {
            Role::Value(spec) => parameters.for_spec(&recording.specs[*spec])?.clone(),
            Role::Seed => Tensor::scalar(0_u32)?,
            Role::Data(name) => {
                let missing = || Error::invalid("network: data", format!("a tensor for {name}"), "none");
                data.next().ok_or_else(missing)?.clone()
            }
        });
    }
    let op = RunGraph::new(&recording.graph, &inputs.iter().collect::<Vec<_>>());
    let outputs = runtime.run(op).wait()?;
    let host = |tensor: &Tensor| match tensor.location() {
        Location::Host => Ok(tensor.clone()),
        Location::Device(_) => runtime.run(Transfer::to_host(tensor)).wait(),
    };
    Ok(outputs.iter().take(recording.named).map(host).collect::<panoply_core::Result<_>>()?)
}
