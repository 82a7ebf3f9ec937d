//! A session: a network's parameters and optimiser's state on one or several devices, and steps
//! that change them.
//!
//! 1. A step is an op that takes the parameters and returns new ones. Nothing is changed in place,
//!    so a failed step has no effect and can be run again.
//! 2. Parameters and state stay where they were computed. The host keeps a copy that is at most
//!    [`SessionOptions::copy_every`] steps old, and the batches since. After a device is lost,
//!    these batches are run again with the same random numbers, and training goes on. The session
//!    records which steps its replicas have run (`at`). If the recovery itself fails, the next call
//!    runs the missing steps.
//! 3. With several devices each device has all parameters, runs its share of the batch, and applies
//!    the sum of all gradients itself. A lost device is dropped for the rest of the session; the
//!    other devices have all data.
//!
//! `run` has the ops of a step, `recovery` the copy and its use, `scale` the loss scale.

use std::collections::BTreeMap;
use std::sync::Arc;

use panoply_core::graph::Graph;
use panoply_core::op::compute::Transfer;
use panoply_core::{DType, DeviceId, Location, Report, Tensor};
use panoply_runtime::Runtime;

use super::origin::first_bad_op;
use super::recovery::{Copy, StepInputs};
use super::run::{Sources, rows_of, split_rows};
use super::scale::LossScale;
use super::step::{StepGraph, application, gradients, trained, whole};
use crate::error::{Error, Result};
use crate::net::{Recording, Role};
use crate::optim::Optimiser;
use crate::parameters::Parameters;

/// The options of a session.
#[derive(Clone, Debug)]
pub struct SessionOptions {
    /// The seed of initial values, dropout and the order of rows.
    pub seed: u64,
    /// The devices that share each batch. If empty, the runtime chooses the device of each step.
    pub devices: Vec<DeviceId>,
    /// Number of parts into which each batch is cut; their gradients are summed for one step.
    pub accumulate: usize,
    /// The initial loss scale, for 16-bit floats. It is halved when a gradient is not finite, and
    /// doubled after 2,000 successive steps with finite gradients. With `None` the loss is not
    /// scaled.
    pub loss_scale: Option<f32>,
    /// Number of steps between two copies of parameters and state on the host, for devices with
    /// their own memory. A batch on a device is copied in every step. With 0 nothing is copied, and
    /// the loss of the device ends training.
    pub copy_every: usize,
    /// Whether the loss of each step is read at once. If it is not finite, the op that produced it
    /// is searched.
    pub debug: bool,
}

impl Default for SessionOptions {
    fn default() -> SessionOptions {
        let (devices, loss_scale) = (Vec::new(), None);
        SessionOptions { seed: 0, devices, accumulate: 1, loss_scale, copy_every: 16, debug: false }
    }
}

/// The result of a step. Loss and metrics stay on the device until they are read
/// ([`Session::figures`]).
#[derive(Clone, Debug)]
pub struct StepOutcome {
    /// The step's number, from 0.
    pub step: u64,
    /// The reports of the step's ops: the device and the time of each.
    pub reports: Vec<Report>,
}

/// The progress of a session. With the parameters and the optimiser's tensors this is all that a
/// session needs to go on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Position {
    /// The number of the next step.
    pub step: u64,
    /// Number of steps that changed parameters: all but those whose gradients were not finite.
    pub applied: u64,
    /// The loss scale.
    pub scale: f32,
    /// Number of successive steps with finite gradients at this loss scale.
    pub scale_good: u32,
}

/// Number of steps whose figures can still be read.
const RECENT_MAX: usize = 256;
/// The largest number of times that an operation is restarted after a lost device.
const RECOVERIES_MAX: u32 = 8;
/// The largest number of parts that are summed.
const ACCUMULATE_MAX: usize = 65_536;
/// The largest number of steps that are run again.
const COPY_EVERY_MAX: usize = 65_536;

/// The parameters and state of a network in training.
pub struct Session {
    pub(super) runtime: Arc<Runtime>,
    pub(super) recording: Recording,
    pub(super) optimiser: Optimiser,
    pub(super) options: SessionOptions,
    pub(super) graphs: Graphs,
    pub(super) replicas: Vec<Replica>,
    /// The next step, and the next step that the replicas have not run.
    pub(super) step: u64,
    pub(super) at: u64,
    /// Number of steps before `settled` that changed the parameters. The gradient norms of the
    /// steps before `settled` have been read.
    applied: u64,
    settled: u64,
    pub(super) scale: LossScale,
    /// The norm of the last step's gradients; it is finite if they were.
    pub(super) last_norm: Option<Tensor>,
    pub(super) copy: Copy,
    /// The scalars of the network's named outputs, by step.
    pub(super) recent: BTreeMap<u64, Vec<Tensor>>,
    pub(super) recoveries: u32,
}

/// The graphs of a step.
pub(super) struct Graphs {
    pub(super) whole: StepGraph,
    pub(super) gradients: Option<StepGraph>,
    pub(super) application: Option<StepGraph>,
}

/// The parameters and state on one device.
#[derive(Clone)]
pub(super) struct Replica {
    pub(super) device: Option<DeviceId>,
    pub(super) values: Vec<Tensor>,
    pub(super) state: Vec<Tensor>,
}

impl Session {
    /// A session over a recorded network whose first output is the loss. Without `parameters` the
    /// network starts from its initial values.
    pub fn new(
        runtime: impl Into<Arc<Runtime>>,
        recording: Recording,
        optimiser: Optimiser,
        parameters: Option<&Parameters>,
        options: SessionOptions,
    ) -> Result<Session> {
        let scale = check(&options)?;
        let runtime = runtime.into();
        let mut values = Vec::new();
        for spec in &recording.specs {
            values.push(match parameters {
                Some(parameters) => to_host(&runtime, parameters.for_spec(spec)?)?,
                None => spec.first(options.seed)?,
            });
        }
        let scaled = options.loss_scale.is_some();
        let replicas = options.devices.len().max(1);
        let apart = options.accumulate > 1 || replicas > 1;
        let graphs = Graphs {
            whole: whole(&recording, &optimiser, scaled)?,
            gradients: apart.then(|| gradients(&recording, scaled)).transpose()?,
            application: apart.then(|| application(&recording, &optimiser, scaled, replicas)).transpose()?,
        };
        let mut state = Vec::new();
        for spec in trained(&recording) {
            for _ in 0..optimiser.state_count() {
                state.push(Tensor::zeros(DType::F32, &recording.specs[spec].dims)?);
            }
        }
        let devices: Vec<Option<DeviceId>> = match options.devices.is_empty() {
            true => vec![None],
            false => options.devices.iter().copied().map(Some).collect(),
        };
        let replica = |device| Replica { device, values: values.clone(), state: state.clone() };
        let replicas = devices.into_iter().map(replica).collect();
        Ok(Session {
            runtime,
            recording,
            optimiser,
            options,
            graphs,
            replicas,
            step: 0,
            at: 0,
            applied: 0,
            settled: 0,
            scale,
            last_norm: None,
            copy: Copy::new(0, values, state),
            recent: BTreeMap::new(),
            recoveries: 0,
        })
    }

    /// The number of the next step.
    pub fn step_number(&self) -> u64 {
        self.step
    }

    /// The recorded network.
    pub fn recording(&self) -> &Recording {
        &self.recording
    }

    /// A step as one graph: forward, backward and the optimiser's step. With several devices or
    /// several parts of a batch the session runs two graphs instead.
    pub fn graph(&self) -> &Graph {
        &self.graphs.whole.graph
    }

    /// The optimiser.
    pub fn optimiser(&self) -> &Optimiser {
        &self.optimiser
    }

    /// The current loss scale.
    pub fn loss_scale(&self) -> f32 {
        self.scale.factor
    }

    /// Number of times that a step was restarted because a device was lost.
    pub fn recoveries(&self) -> u32 {
        self.recoveries
    }

    /// The devices that still share the work. If empty, the runtime chooses the device.
    pub fn devices(&self) -> Vec<DeviceId> {
        self.replicas.iter().filter_map(|replica| replica.device).collect()
    }

    /// Trains on one batch: its data tensors in the order in which the network recorded them. The
    /// batch is cut into [`SessionOptions::accumulate`] parts.
    pub fn step(&mut self, batch: &[Tensor]) -> Result<StepOutcome> {
        self.check_batch(batch)?;
        self.settle()?;
        let parts = self.parts(batch)?;
        // Copy the batch before the step: a batch on a device may be lost with it.
        let kept = self.to_keep(&parts)?;
        let before = self.options.debug.then(|| self.replicas[0].clone());
        let (step, scale, applied) = (self.step, self.scale.factor, self.applied);
        let outcome = self.persistently(|session| {
            let outcome = session.run(&parts, step, scale, applied)?;
            session.at = step + 1;
            Ok(outcome)
        })?;
        self.step += 1;
        self.keep(StepInputs { parts: kept, scale, applied });
        if let Some(before) = before {
            let loss = self.figures(step)?.first().copied().unwrap_or(f32::NAN);
            if !loss.is_finite() {
                let origin = self.origin(batch, &before, step);
                return Err(Error::Diverged { step, loss, origin });
            }
        }
        Ok(outcome)
    }

    /// The loss and the other outputs of one of the last steps, copied to the host. Figures that
    /// were lost with their device are computed again.
    pub fn figures(&mut self, step: u64) -> Result<Vec<f32>> {
        self.persistently(|session| {
            let unknown = || Error::invalid("session: a step", "one of the last few", step);
            let scalars = session.recent.get(&step).ok_or_else(unknown)?;
            scalars.iter().map(|scalar| session.read(scalar)).collect()
        })
    }

    /// The parameters and buffers, copied to the host.
    pub fn parameters(&mut self) -> Result<Parameters> {
        self.persistently(|session| {
            let named = session.recording.specs.iter().zip(&session.replicas[0].values);
            named.map(|(spec, value)| Ok((spec.name.clone(), session.to_host(value)?))).collect()
        })
    }

    /// The optimiser's tensors, copied to the host, in the optimiser's own order.
    pub fn state(&mut self) -> Result<Vec<Tensor>> {
        self.persistently(|session| session.replicas[0].state.iter().map(|tensor| session.to_host(tensor)).collect())
    }

    /// The progress of the session. Waits for the last step.
    pub fn position(&mut self) -> Result<Position> {
        self.settle()?;
        let LossScale { factor, good, .. } = self.scale;
        Ok(Position { step: self.step, applied: self.applied, scale: factor, scale_good: good })
    }

    /// Continues from a saved state: parameters, the optimiser's tensors and the position.
    pub fn restore(&mut self, parameters: &Parameters, state: &[Tensor], position: Position) -> Result<()> {
        let given = self.recording.specs.iter().map(|spec| self.to_host(parameters.for_spec(spec)?));
        let values: Vec<Tensor> = given.collect::<Result<_>>()?;
        let state: Vec<Tensor> = state.iter().map(|tensor| self.to_host(tensor)).collect::<Result<_>>()?;
        let fits = |(new, old): (&Tensor, &Tensor)| new.shape() == old.shape() && new.dtype() == old.dtype();
        let own = &self.replicas[0].state;
        if own.len() != state.len() || !state.iter().zip(own).all(fits) {
            let expected = format!("{} tensors of the parameters' shapes", own.len());
            return Err(Error::invalid("session: the optimiser's state", expected, state.len()));
        }
        let Position { step, applied, scale, scale_good } = position;
        if applied > step {
            return Err(Error::invalid("session: steps that changed parameters", format!("at most {step}"), applied));
        }
        self.scale.restore(scale, scale_good)?;
        for replica in &mut self.replicas {
            replica.values.clone_from(&values);
            replica.state.clone_from(&state);
        }
        (self.step, self.at, self.settled, self.applied, self.last_norm) = (step, step, step, applied, None);
        self.recent.clear();
        self.copy = Copy::new(step, values, state);
        Ok(())
    }

    /// Runs `act` until it succeeds, if it fails because of a lost device. The replicas are brought
    /// up to the last step before each attempt.
    pub(super) fn persistently<T>(&mut self, mut act: impl FnMut(&mut Session) -> Result<T>) -> Result<T> {
        let mut recoveries = 0;
        loop {
            match self.catch_up().and_then(|()| act(self)) {
                Err(error) if error.is_device() && recoveries < RECOVERIES_MAX => {
                    recoveries += 1;
                    self.recover(error)?;
                }
                done => return done,
            }
        }
    }

    /// Adjusts the loss scale to the last step. If the scale was too large, the step itself left
    /// everything unchanged.
    fn settle(&mut self) -> Result<()> {
        if self.settled == self.step {
            return Ok(());
        }
        let is_applied = match self.scale.is_on() {
            false => true,
            true => {
                let norm = self.persistently(|session| {
                    let unknown = || Error::invalid("session: the last step", "a norm of its gradients", "none");
                    session.read(session.last_norm.as_ref().ok_or_else(unknown)?)
                })?;
                self.scale.learn(norm, self.step - 1)?
            }
        };
        self.settled = self.step;
        self.applied += u64::from(is_applied);
        Ok(())
    }

    /// The batch in as many parts as are summed. A batch that must be cut is copied to the host.
    fn parts(&self, batch: &[Tensor]) -> Result<Vec<Vec<Tensor>>> {
        if self.options.accumulate == 1 && self.replicas.len() == 1 {
            return Ok(vec![batch.to_vec()]);
        }
        let batch: Vec<Tensor> = batch.iter().map(|tensor| self.to_host(tensor)).collect::<Result<_>>()?;
        split_rows(&batch, self.options.accumulate)
    }

    /// The value of a scalar, copied to the host.
    pub(super) fn read(&self, scalar: &Tensor) -> Result<f32> {
        let values = self.to_host(scalar)?.to_vec::<f32>()?;
        values.first().copied().ok_or_else(|| Error::invalid("session: a scalar", "one element", "none"))
    }

    pub(super) fn to_host(&self, tensor: &Tensor) -> Result<Tensor> {
        to_host(&self.runtime, tensor)
    }

    fn check_batch(&self, batch: &[Tensor]) -> Result<()> {
        let expected = self.recording.roles.iter().filter(|role| matches!(role, Role::Data(_))).count();
        if batch.len() != expected {
            return Err(Error::invalid("session: a batch", format!("{expected} tensors"), batch.len()));
        }
        match expected > 0 && rows_of(batch) == 0 && batch[0].shape().rank() > 0 {
            true => Err(Error::invalid("session: a batch", "at least one row", 0)),
            false => Ok(()),
        }
    }

    pub(super) fn remember(&mut self, step: u64, figures: Vec<Tensor>) {
        self.recent.insert(step, figures);
        while self.recent.len() > RECENT_MAX {
            self.recent.pop_first();
        }
    }

    /// Describes the first op of a step that produced a NaN or an infinity. `before` is the state
    /// before the step.
    fn origin(&self, batch: &[Tensor], before: &Replica, step: u64) -> String {
        let find = || {
            let inputs = self.inputs(step, self.scale.factor, self.applied)?;
            let given = inputs.of(&self.graphs.whole, &Sources { batch, replica: before, before, sums: &[] })?;
            first_bad_op(&self.runtime, &self.graphs.whole.graph, &given)
        };
        match find() {
            Ok(Some(origin)) => format!("the first op that made it is {origin}"),
            Ok(None) => "run op by op it is finite: what is fused overflows".to_owned(),
            Err(error) => format!("its origin could not be found: {error}"),
        }
    }
}

fn to_host(runtime: &Runtime, tensor: &Tensor) -> Result<Tensor> {
    match tensor.location() {
        Location::Host => Ok(tensor.clone()),
        Location::Device(_) => Ok(runtime.run(Transfer::to_host(tensor)).wait()?),
    }
}

/// The loss scale of the options. Fails if the options are inconsistent.
fn check(options: &SessionOptions) -> Result<LossScale> {
    if !(1..=ACCUMULATE_MAX).contains(&options.accumulate) {
        return Err(Error::invalid("session: accumulate", format!("1 to {ACCUMULATE_MAX}"), options.accumulate));
    }
    if options.copy_every > COPY_EVERY_MAX {
        return Err(Error::invalid("session: copy_every", format!("at most {COPY_EVERY_MAX}"), options.copy_every));
    }
    let again = |place: usize| options.devices[..place].contains(&options.devices[place]);
    if let Some(place) = (0..options.devices.len()).find(|place| again(*place)) {
        return Err(Error::invalid("session: devices", "each once", options.devices[place]));
    }
    LossScale::new(options.loss_scale)
}
