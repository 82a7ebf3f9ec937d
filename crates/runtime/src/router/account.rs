//! Explains a choice: why no device is left, and what the alternatives were. Only computed on
//! request.

use std::time::{Duration, Instant};

use panoply_core::{Alternative, Describe, Error, Op, Prediction, Support, Verdict};

use super::Router;
use super::choice::{self, Choice, Fitness, LanePrediction, LanePredictions};
use super::lanes::Candidate;
use crate::health::Circuit;
use crate::lane::WorkerState;
use crate::options::Wishes;

impl Router {
    /// Every device as the router sees it for this op now. `taken`: the lane that the op was sent
    /// to and whether it explored, if it was sent.
    pub(crate) fn alternatives(
        &self,
        op: &Op,
        wishes: &Wishes,
        now: Instant,
        taken: Option<(u16, bool)>,
    ) -> Vec<Alternative> {
        let sights = choice::look(self, op, wishes, now);
        let best = || choice::pick(self, &sights, wishes, self.lanes.len());
        let taken = taken.and_then(|(id, explored)| Some((self.lanes.made(id)?.lane.number, explored)));
        let chosen = taken.map(|(lane, explored)| Choice { lane, explored }).or_else(best);
        let of = |candidate: &Candidate| {
            let sight = &sights.of[usize::from(candidate.lane.number)];
            let able = sight.fitness != Fitness::Out;
            Alternative {
                device: candidate.lane.info.id,
                prediction: able.then(|| prediction(sight)),
                measured: sight.measured,
                verdict: self.verdict(candidate, &sights, chosen, op, wishes),
            }
        };
        self.lanes.iter().map(of).collect()
    }

    fn verdict(
        &self,
        candidate: &Candidate,
        sights: &LanePredictions,
        chosen: Option<Choice>,
        op: &Op,
        wishes: &Wishes,
    ) -> Verdict {
        let lane = &candidate.lane;
        let sight = &sights.of[usize::from(lane.number)];
        if let Some(choice) = chosen.filter(|choice| choice.lane == lane.number) {
            return if choice.explored { Verdict::Explored } else { Verdict::Chosen };
        }
        if !wishes.allows(lane.number, lane.placed()) {
            return Verdict::NotAllowed;
        }
        match sight.fitness {
            Fitness::Out => match candidate.supports(op) {
                Support::No(reason) => Verdict::Unsupported(reason),
                Support::Yes if candidate.is_alive() => Verdict::NotAllowed,
                Support::Yes => Verdict::Unfit(unfit(candidate)),
            },
            Fitness::Unfit => Verdict::Unfit(unfit(candidate)),
            Fitness::Cold => Verdict::Cold,
            Fitness::Fit => match sight.outdone_by.and_then(|other| self.lanes.get(usize::from(other))) {
                Some(other) => Verdict::SameHardware(other.lane.info.id),
                None if chosen.is_some_and(|choice| choice::is_costlier(sights, lane.number, choice, wishes)) => {
                    Verdict::Costlier
                }
                None => Verdict::Slower,
            },
        }
    }
}

/// Why no device runs this op: each device's own reason, or that the device of an object that the
/// op names was given up.
pub(super) fn refusal(router: &Router, op: &Op, wishes: &Wishes) -> Error {
    let mut lost = None;
    op.for_each_part(&mut |part| {
        if let Some(object) = part.object()
            && lost.is_none()
            && let Some(candidate) = router.lanes.newest_of(object.device())
            && (candidate.lane.is_replaced() || !candidate.is_alive())
        {
            let reason = format!("its device was given up: {}", unfit(candidate));
            lost = Some(Error::ObjectLost { kind: object.kind(), device: object.device(), reason });
        }
    });
    if let Some(lost) = lost {
        return lost;
    }
    let reasons: Vec<String> = router
        .lanes
        .iter()
        .filter(|candidate| wishes.allows(candidate.lane.number, candidate.lane.placed()))
        .map(|candidate| {
            let reason = match candidate.supports(op) {
                Support::No(reason) => reason,
                Support::Yes => unfit(candidate),
            };
            format!("{}: {reason}", candidate.lane.info.id)
        })
        .collect();
    let reason = if reasons.is_empty() { "there is no device that may".to_owned() } else { reasons.join("; ") };
    Error::Unsupported { op: op.name(), reason }
}

fn prediction(sight: &LanePrediction) -> Prediction {
    let time = |ns: f32| Duration::from_nanos(ns as u64);
    Prediction { queue: time(sight.queue_ns), transfer: time(sight.transfer_ns), run: time(sight.run_ns) }
}

fn unfit(candidate: &Candidate) -> String {
    let lane = &candidate.lane;
    let health = lane.gate.report(lane.process);
    match lane.state() {
        WorkerState::Ready if health.circuit != Circuit::Closed => {
            "it failed too often, and its circuit is open".to_owned()
        }
        WorkerState::Ready if health.full => "its memory is full".to_owned(),
        state => format!("it is {state:?}"),
    }
}
