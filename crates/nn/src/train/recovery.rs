//! Recovery from lost devices: a copy on the host, and the batches since then, which are run again.

use panoply_core::{DeviceId, Location, Tensor};

use super::session::{Replica, Session};
use super::step::application;
use crate::error::{Error, Result};

/// The copy on the host: parameters and state before `step`, and the inputs of the steps since.
pub(super) struct Copy {
    step: u64,
    values: Vec<Tensor>,
    state: Vec<Tensor>,
    since: Vec<StepInputs>,
}

/// The inputs of one step.
#[derive(Clone)]
pub(super) struct StepInputs {
    pub(super) parts: Vec<Vec<Tensor>>,
    pub(super) scale: f32,
    pub(super) applied: u64,
}

impl Copy {
    pub(super) fn new(step: u64, values: Vec<Tensor>, state: Vec<Tensor>) -> Copy {
        Copy { step, values, state, since: Vec::new() }
    }
}

impl Session {
    /// The batch of a step, copied to the host for recovery. Empty if no copies are kept.
    pub(super) fn to_keep(&self, parts: &[Vec<Tensor>]) -> Result<Vec<Vec<Tensor>>> {
        let host = |part: &Vec<Tensor>| part.iter().map(|tensor| self.to_host(tensor)).collect::<Result<_>>();
        match self.options.copy_every {
            0 => Ok(Vec::new()),
            _ => parts.iter().map(host).collect(),
        }
    }

    /// Keeps the inputs of a step. Makes a new copy instead if parameters and state are on the host
    /// anyway, or if the last copy is old.
    pub(super) fn keep(&mut self, step: StepInputs) {
        if self.options.copy_every == 0 {
            return;
        }
        let replica = &self.replicas[0];
        let at_host = replica.values.iter().chain(&replica.state).all(|tensor| tensor.location() == Location::Host);
        let is_old = self.copy.since.len() + 1 >= self.options.copy_every;
        // If a device is lost during the copy, the next step meets the loss again and recovers from
        // the previous copy.
        if !(at_host || is_old) || self.new_copy().is_err() {
            self.copy.since.push(step);
        }
    }

    /// Copies parameters, state, the last norm and the recent figures to the host.
    fn new_copy(&mut self) -> Result<()> {
        let copied = |tensors: &[Tensor]| tensors.iter().map(|tensor| self.to_host(tensor)).collect::<Result<Vec<_>>>();
        let replica = &self.replicas[0];
        let (values, state) = (copied(&replica.values)?, copied(&replica.state)?);
        let norm = self.last_norm.as_ref().map(|norm| self.to_host(norm)).transpose()?;
        let recent = self.recent.iter().map(|(step, figures)| Ok((*step, copied(figures)?))).collect::<Result<_>>()?;
        (self.recent, self.last_norm) = (recent, norm);
        self.copy = Copy::new(self.step, values, state);
        Ok(())
    }

    /// Handles a lost device: drops its replica if others are left; otherwise goes back to the copy
    /// on the host.
    pub(super) fn recover(&mut self, cause: Error) -> Result<()> {
        let lost = |replica: &Replica| {
            let gone = replica.values.iter().chain(&replica.state).any(|value| self.to_host(value).is_err());
            gone || replica.device.is_some() && replica.device == device_of(&cause)
        };
        let standing: Vec<Replica> = match self.replicas.len() {
            1 => Vec::new(),
            _ => self.replicas.iter().filter(|replica| !lost(replica)).cloned().collect(),
        };
        if !standing.is_empty() {
            self.replicas = standing;
            let (scaled, count) = (self.options.loss_scale.is_some(), self.replicas.len());
            self.graphs.application = Some(application(&self.recording, &self.optimiser, scaled, count)?);
        } else if self.options.copy_every == 0 {
            return Err(cause);
        } else {
            for replica in &mut self.replicas {
                replica.values.clone_from(&self.copy.values);
                replica.state.clone_from(&self.copy.state);
            }
            self.at = self.copy.step;
        }
        self.recoveries += 1;
        Ok(())
    }

    /// Brings the replicas up to the last step that was taken. If a step fails here, the next call
    /// tries it again.
    pub(super) fn catch_up(&mut self) -> Result<()> {
        while self.at < self.step {
            let lost = || Error::invalid("session: steps since the copy", "all", "fewer");
            let place = self.at.checked_sub(self.copy.step).ok_or_else(lost)?;
            let StepInputs { parts, scale, applied } = self.copy.since.get(place as usize).ok_or_else(lost)?.clone();
            self.run(&parts, self.at, scale, applied)?;
            self.at += 1;
        }
        Ok(())
    }
}

/// The device that an error names.
fn device_of(error: &Error) -> Option<DeviceId> {
    use panoply_core::Error as Cause;
    let Error::Op(mut cause) = error.clone() else { return None };
    while let Cause::Node { cause: inner, .. } = cause {
        cause = *inner;
    }
    match cause {
        Cause::DeviceLost { device, .. }
        | Cause::DeviceFault { device, .. }
        | Cause::Timeout { device, .. }
        | Cause::EnginePanicked { device, .. }
        | Cause::DeviceUnavailable { device, .. } => Some(device),
        _ => None,
    }
}
