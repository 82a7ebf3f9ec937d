//! Picks the device for an op: among the workers that can run it, the one with the fewest ops waiting; the first where
//! several have equally few.

use std::sync::Arc;

use panoply_core::{Backend, Describe, DeviceId, Error, Op, Result, Support};

use crate::device_worker::{Lane, WorkerState};

/// One device that ops may be sent to.
pub(crate) struct Candidate {
    pub(crate) lane: Arc<Lane>,
    pub(crate) backend: Arc<dyn Backend>,
}

/// The device for this op; `wanted` restricts the choice to one.
pub(crate) fn choose<'a>(candidates: &'a [Candidate], op: &Op, wanted: Option<DeviceId>) -> Result<&'a Candidate> {
    if let Some(device) = wanted
        && !candidates.iter().any(|candidate| candidate.lane.info.id == device)
    {
        return Err(Error::NoSuchDevice { device, known: names(candidates) });
    }
    let mut best: Option<(&Candidate, usize)> = None;
    for candidate in candidates {
        let allowed = wanted.is_none_or(|device| candidate.lane.info.id == device);
        let alive = !matches!(candidate.lane.state(), WorkerState::Failed | WorkerState::Stopped);
        // A device that the caller insists on is asked even when it is gone: its refusal says why.
        if !allowed || (!alive && wanted.is_none()) {
            continue;
        }
        let waiting = candidate.lane.queue.len();
        if best.is_none_or(|(_, fewest)| waiting < fewest)
            && candidate.backend.supports(&candidate.lane.info, op).is_yes()
        {
            best = Some((candidate, waiting));
        }
    }
    best.map(|(candidate, _)| candidate).ok_or_else(|| refusal(candidates, op, wanted))
}

/// Why no device runs this op: each one's own reason.
fn refusal(candidates: &[Candidate], op: &Op, wanted: Option<DeviceId>) -> Error {
    let of_interest = candidates.iter().filter(|candidate| wanted.is_none_or(|id| candidate.lane.info.id == id));
    let reasons: Vec<String> = of_interest
        .map(|candidate| {
            let reason = match candidate.backend.supports(&candidate.lane.info, op) {
                Support::No(reason) => reason,
                Support::Yes => format!("it is {:?}", candidate.lane.state()),
            };
            format!("{}: {reason}", candidate.lane.info.id)
        })
        .collect();
    let reason = if reasons.is_empty() { "there is no device".to_owned() } else { reasons.join("; ") };
    Error::Unsupported { op: op.name(), reason }
}

fn names(candidates: &[Candidate]) -> String {
    let names: Vec<String> = candidates.iter().map(|candidate| candidate.lane.info.id.to_string()).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(", ") }
}
