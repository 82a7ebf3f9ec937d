//! Runs the ops of a step. On one device with one part, a step is one graph. Otherwise every
//! replica computes the gradients of each part of the batch, and then applies the optimiser's step.

use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, DeviceId, Outcome, Tensor};
use panoply_runtime::{Pending, RunOptions};

use super::session::{Replica, Session, StepOutcome};
use super::step::{InputRole, OutputRole, StepGraph, trained};
use crate::error::{Error, Result};
use crate::optim::HYPER;
use crate::random;

impl Session {
    /// Runs one step over these parts of a batch and stores the new parameters and state. A step
    /// that fails changes nothing.
    pub(super) fn run(&mut self, parts: &[Vec<Tensor>], step: u64, scale: f32, applied: u64) -> Result<StepOutcome> {
        let inputs = self.inputs(step, scale, applied)?;
        match (parts, &self.graphs.gradients) {
            ([batch], _) if self.replicas.len() == 1 => self.run_whole(batch, &inputs, step),
            (_, Some(_)) => self.run_apart(parts, inputs, step),
            ([], _) => Err(Error::invalid("session: a batch", "at least one part", "none")),
            (_, None) => Err(Error::invalid("session: a batch", "one part", parts.len())),
        }
    }

    fn run_whole(&mut self, batch: &[Tensor], inputs: &Inputs, step: u64) -> Result<StepOutcome> {
        let replica = &self.replicas[0];
        let given = inputs.of(&self.graphs.whole, &Sources { batch, replica, before: replica, sums: &[] })?;
        let Outcome { output, report } = self.send(&self.graphs.whole, &given, replica.device).with_report().wait()?;
        let mut new = StepOutputs::default();
        new.take(&self.graphs.whole, output, &mut self.replicas[0]);
        self.last_norm = new.norm;
        self.remember(step, new.named);
        Ok(StepOutcome { step, reports: vec![report] })
    }

    fn run_apart(&mut self, parts: &[Vec<Tensor>], inputs: Inputs, step: u64) -> Result<StepOutcome> {
        let mut apart = SplitStep {
            replicas: self.replicas.clone(),
            sums: vec![self.zeros()?; self.replicas.len()],
            rows: vec![0; self.replicas.len()],
            named: Vec::new(),
            reports: Vec::new(),
        };
        let rows_all: usize = parts.iter().map(|part| rows_of(part)).sum();
        for (number, part) in parts.iter().enumerate() {
            self.add_gradients(&mut apart, part, rows_all, |share| {
                Ok(Inputs { seed: self.seed(step, number, share)?, ..inputs.clone() })
            })?;
        }
        self.average_buffers(&mut apart)?;
        let norm = self.apply(&mut apart, &inputs)?;
        let figures = self.averaged(&apart.named)?;
        self.remember(step, figures);
        self.replicas = apart.replicas;
        self.last_norm = norm;
        Ok(StepOutcome { step, reports: apart.reports })
    }

    /// Zeros in the shape of each trained parameter.
    fn zeros(&self) -> Result<Vec<Tensor>> {
        let zeros = |spec: &usize| Tensor::zeros(DType::F32, &self.recording.specs[*spec].dims);
        Ok(trained(&self.recording).iter().map(zeros).collect::<panoply_core::Result<_>>()?)
    }

    /// Runs each replica on its share of a part of the batch. The gradients are added to the sums
    /// so far, and the buffers are updated.
    fn add_gradients(
        &self,
        apart: &mut SplitStep,
        part: &[Tensor],
        rows_all: usize,
        inputs: impl Fn(usize) -> Result<Inputs>,
    ) -> Result<()> {
        let graph = self.graphs.gradients.as_ref().ok_or_else(one_graph)?;
        let mut pending = Vec::new();
        for (place, share) in split_rows(part, apart.replicas.len())?.iter().enumerate() {
            let rows = rows_of(share);
            let weight = rows as f32 / rows_all.max(1) as f32;
            let inputs = Inputs { weight: Tensor::scalar(weight)?, ..inputs(place)? };
            let (replica, sums) = (&apart.replicas[place], &apart.sums[place..=place]);
            let given = inputs.of(graph, &Sources { batch: share, replica, before: replica, sums })?;
            apart.rows[place] += rows;
            pending.push((place, weight, self.send(graph, &given, replica.device)));
        }
        for (place, weight, answer) in pending {
            let Outcome { output, report } = answer.with_report().wait()?;
            let mut new = StepOutputs::default();
            new.take(graph, output, &mut apart.replicas[place]);
            apart.sums[place] = new.gradients;
            apart.named.push((weight, new.named));
            apart.reports.push(report);
        }
        Ok(())
    }

    /// Applies the optimiser's step with the sum of all gradients on every replica. Returns the
    /// norm of the gradients.
    fn apply(&self, apart: &mut SplitStep, inputs: &Inputs) -> Result<Option<Tensor>> {
        let graph = self.graphs.application.as_ref().ok_or_else(one_graph)?;
        let mut pending = Vec::new();
        for (replica, before) in apart.replicas.iter().zip(&self.replicas) {
            let given = inputs.of(graph, &Sources { batch: &[], replica, before, sums: &apart.sums })?;
            pending.push(self.send(graph, &given, replica.device));
        }
        let mut norm = None;
        for (replica, answer) in apart.replicas.iter_mut().zip(pending) {
            let Outcome { output, report } = answer.with_report().wait()?;
            let mut new = StepOutputs::default();
            new.take(graph, output, replica);
            norm = new.norm.or(norm);
            apart.reports.push(report);
        }
        Ok(norm)
    }

    /// The losses and metrics of the parts, averaged with the number of rows as weights.
    fn averaged(&self, named: &[(f32, Vec<Tensor>)]) -> Result<Vec<Tensor>> {
        let count = named.first().map_or(0, |(_, tensors)| tensors.len());
        let mut sums = vec![0.0_f32; count];
        for (weight, tensors) in named {
            for (sum, tensor) in sums.iter_mut().zip(tensors) {
                *sum += weight * self.read(tensor)?;
            }
        }
        Ok(sums.into_iter().map(Tensor::scalar).collect::<panoply_core::Result<_>>()?)
    }

    /// Replaces the buffers, which each replica updated from its own share, by their mean, weighted
    /// by the rows of each replica.
    fn average_buffers(&self, apart: &mut SplitStep) -> Result<()> {
        let all: usize = apart.rows.iter().sum();
        if apart.replicas.len() < 2 || all == 0 {
            return Ok(());
        }
        for spec in &self.recording.updates {
            let dims = &self.recording.specs[*spec].dims;
            let mut mean = vec![0.0_f64; dims.iter().product()];
            for (replica, rows) in apart.replicas.iter().zip(&apart.rows).filter(|(_, rows)| **rows > 0) {
                let weight = *rows as f64 / all as f64;
                let values = self.to_host(&replica.values[*spec])?.to_vec::<f32>()?;
                mean.iter_mut().zip(values).for_each(|(mean, value)| *mean += f64::from(value) * weight);
            }
            let mean = Tensor::from_vec(mean.into_iter().map(|value| value as f32).collect(), dims)?;
            apart.replicas.iter_mut().for_each(|replica| replica.values[*spec] = mean.clone());
        }
        Ok(())
    }

    fn send(&self, step: &StepGraph, given: &[Tensor], device: Option<DeviceId>) -> Pending<Vec<Tensor>> {
        let op = RunGraph::new(&step.graph, &given.iter().collect::<Vec<_>>());
        let options = device.map_or_else(RunOptions::default, RunOptions::require);
        self.runtime.run_with(op, options)
    }

    pub(super) fn inputs(&self, step: u64, scale: f32, applied: u64) -> Result<Inputs> {
        Ok(Inputs {
            hyper: Tensor::from_slice(&self.optimiser.hyper(step, applied), [HYPER])?,
            scale: Tensor::scalar(scale)?,
            seed: self.seed(step, 0, 0)?,
            weight: Tensor::scalar(1.0_f32)?,
        })
    }

    /// The seed of the masks. It differs for each step, each part of the batch and each share of a
    /// part.
    fn seed(&self, step: u64, part: usize, share: usize) -> Result<Tensor> {
        let stream = match (part, share) {
            (0, 0) => format!("step {step}"),
            _ => format!("step {step}, part {part}, share {share}"),
        };
        Ok(Tensor::scalar(random::key(self.options.seed, &stream))?)
    }
}

/// A step in progress whose gradients and application are separate graphs.
struct SplitStep {
    replicas: Vec<Replica>,
    /// For each replica the gradients so far, and the number of rows that they cover.
    sums: Vec<Vec<Tensor>>,
    rows: Vec<usize>,
    /// For each share its weight and the named outputs of the network.
    named: Vec<(f32, Vec<Tensor>)>,
    reports: Vec<panoply_core::Report>,
}

fn one_graph() -> Error {
    Error::invalid("session: graphs", "gradients and a step apart", "one graph")
}

/// Inputs of a step besides parameters, state and data.
#[derive(Clone)]
pub(super) struct Inputs {
    hyper: Tensor,
    scale: Tensor,
    seed: Tensor,
    weight: Tensor,
}

/// The other sources of a graph's inputs.
pub(super) struct Sources<'a> {
    pub(super) batch: &'a [Tensor],
    pub(super) replica: &'a Replica,
    /// The replica before the step.
    pub(super) before: &'a Replica,
    pub(super) sums: &'a [Vec<Tensor>],
}

impl Inputs {
    pub(super) fn of(&self, step: &StepGraph, sources: &Sources<'_>) -> Result<Vec<Tensor>> {
        let missing = || Error::invalid("session: an input of the step", "a tensor", "none");
        let pick = |given: &InputRole| {
            Some(match given {
                InputRole::Data(place) => sources.batch.get(*place)?.clone(),
                InputRole::Value(spec) => sources.replica.values.get(*spec)?.clone(),
                InputRole::Before(spec) => sources.before.values.get(*spec)?.clone(),
                InputRole::Seed => self.seed.clone(),
                InputRole::Scale => self.scale.clone(),
                InputRole::Hyper => self.hyper.clone(),
                InputRole::Weight => self.weight.clone(),
                InputRole::Gradient(place, source) => sources.sums.get(*source)?.get(*place)?.clone(),
                InputRole::State(number) => sources.replica.state.get(*number)?.clone(),
            })
        };
        step.given.iter().map(|given| pick(given).ok_or_else(missing)).collect()
    }
}

/// Outputs of a step's graph that are neither parameters nor state.
#[derive(Default)]
struct StepOutputs {
    named: Vec<Tensor>,
    gradients: Vec<Tensor>,
    norm: Option<Tensor>,
}

impl StepOutputs {
    fn take(&mut self, step: &StepGraph, output: Vec<Tensor>, replica: &mut Replica) {
        for (made, tensor) in step.made.iter().zip(output) {
            match made {
                OutputRole::Named(_) => self.named.push(tensor),
                OutputRole::Value(spec) => replica.values[*spec] = tensor,
                OutputRole::Gradient(_) => self.gradients.push(tensor),
                OutputRole::State(number) => replica.state[*number] = tensor,
                OutputRole::Norm => self.norm = Some(tensor),
            }
        }
    }
}

pub(super) fn rows_of(batch: &[Tensor]) -> usize {
    batch.first().and_then(|tensor| tensor.shape().first()).copied().unwrap_or(0)
}

/// Splits the rows of a batch into `parts` parts of about the same size, or into fewer if there are
/// fewer rows.
pub(super) fn split_rows(batch: &[Tensor], parts: usize) -> Result<Vec<Vec<Tensor>>> {
    let rows = rows_of(batch);
    let parts = parts.clamp(1, rows.max(1));
    if parts == 1 {
        return Ok(vec![batch.to_vec()]);
    }
    if let Some(other) = batch.iter().find(|tensor| tensor.shape().first() != Some(&rows)) {
        let got = format!("{:?}", other.shape().dims());
        return Err(Error::invalid("session: a batch that is cut", format!("{rows} rows in every tensor"), got));
    }
    let mut split = Vec::new();
    for part in 0..parts {
        let (start, end) = (part * rows / parts, (part + 1) * rows / parts);
        let cut = |tensor: &Tensor| tensor.slice(0, start, end).and_then(|view| view.contiguous());
        split.push(batch.iter().map(cut).collect::<panoply_core::Result<_>>()?);
    }
    Ok(split)
}
