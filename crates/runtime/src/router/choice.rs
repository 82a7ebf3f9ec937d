//! The choice of a device.
//!
//! 1. Every lane that may take the op gets a [`LanePrediction`]: how fit it is, and its predicted
//!    queue, transfer and run time.
//! 2. Lanes are ordered by fitness, then by score. The score is the predicted finish time, or
//!    another measure that the caller's goal asks for. If ops are queued, the score is multiplied
//!    by a penalty: the square root of the op's cost on this device over its cost on the cheapest
//!    device. Without it, an op that leaves a queue for a device that is slow at it would delay the
//!    ops that this device is fast at.
//! 3. Hardware that two APIs reach counts once: the API that is faster for this op is used, and the
//!    backlogs of both are added.
//! 4. A lane without measurements for this op gets one from time to time, one op at a time and
//!    within a budget. So does the lane with the second best score, to notice when it has become
//!    faster, and a lane whose circuit is half-open, as a probe.

use std::time::Instant;

use panoply_core::{DeviceKind, FirstGuess, Op, Result, Warmth};

use super::facts::Facts;
use super::lanes::{Candidate, LANES_MAX};
use super::workers::{ExpectedTime, worker_for};
use super::{Decision, Router, account};
use crate::health::Admission;
use crate::lane::{Forecast, WorkerState};
use crate::learned::model::Estimate;
use crate::options::{Goal, Wishes};
use crate::time::nanoseconds;

/// One in this many choices takes the runner-up, to see whether it has become faster.
const RUNNER_UP_ONE_IN: u64 = 128;
/// The largest expected time of such a runner-up, as a multiple of the best.
const RUNNER_UP_FACTOR_MAX: f32 = 2.5;
/// The largest expected time of a device that is probed or tried for the first time, as a multiple
/// of the best.
const TRIAL_FACTOR_MAX: f32 = 16.0;
/// A trial may always take this long, however short the best time is.
const TRIAL_NS_MIN: f32 = 200_000.0;

/// The fitness of a lane for an op; smaller is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Fitness {
    /// Takes the op at once.
    Fit,
    /// Must be warmed up first; other lanes serve meanwhile.
    Cold,
    /// Is failing, full or not open. Used only if no other lane can run the op.
    Unfit,
    /// Cannot run the op.
    Out,
}

/// The router's prediction for one op on one lane.
#[derive(Clone, Copy, Debug)]
pub(super) struct LanePrediction {
    /// The id of the lane that takes the op: the device's own, or one of its pools.
    pub(super) id: u16,
    pub(super) fitness: Fitness,
    pub(super) measured: bool,
    /// Whether enough ops of about this size were measured.
    pub(super) settled: bool,
    /// Whether too few ops of about this size were measured, and the budget allows another.
    pub(super) explorable: bool,
    pub(super) probe: bool,
    pub(super) queue_ns: f32,
    pub(super) transfer_ns: f32,
    pub(super) run_ns: f32,
    pub(super) service_ns: f32,
    pub(super) score: f32,
    /// The lane that reaches the same hardware through a faster API.
    pub(super) outdone_by: Option<u8>,
}

const UNSEEN: LanePrediction = LanePrediction {
    id: u16::MAX,
    fitness: Fitness::Out,
    measured: false,
    settled: false,
    explorable: false,
    probe: false,
    queue_ns: 0.0,
    transfer_ns: 0.0,
    run_ns: 0.0,
    service_ns: 0.0,
    score: f32::INFINITY,
    outdone_by: None,
};

/// The router's predictions for one op on every lane.
pub(super) struct LanePredictions {
    pub(super) of: [LanePrediction; LANES_MAX],
    pub(super) facts: Facts,
}

/// The chosen lane, and whether it was chosen to measure it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) lane: u8,
    pub(super) explored: bool,
}

pub(super) fn choose(router: &Router, op: &Op, wishes: &Wishes, now: Instant) -> Result<Decision> {
    let sights = look(router, op, wishes, now);
    let Some(choice) = pick(router, &sights, wishes, router.lanes.len()) else {
        return Err(account::refusal(router, op, wishes));
    };
    warm_up_colder(router, &sights, choice, op, wishes);
    Ok(Decision { forecast: forecast(router, &sights, choice) })
}

/// The forecast for the op on the worker of this device that would take it now. `None` if the
/// device cannot run it.
pub(super) fn at_device(
    router: &Router,
    candidate: &Candidate,
    op: &Op,
    wishes: &Wishes,
    now: Instant,
) -> Option<Forecast> {
    let mut sights = LanePredictions { of: [UNSEEN; LANES_MAX], facts: Facts::of(op) };
    let number = candidate.lane.number;
    let sight = look_at(router, candidate, op, &sights.facts, wishes, now);
    sights.of[usize::from(number)] = sight;
    let choice = Choice { lane: number, explored: false };
    (sight.fitness == Fitness::Fit && !sight.probe).then(|| forecast(router, &sights, choice))
}

/// The forecast for the best of the allowed lanes that are fit and measured for this op. It
/// explores no lane.
pub(super) fn soonest(router: &Router, op: &Op, wishes: &Wishes, now: Instant) -> Option<Forecast> {
    let sights = look(router, op, wishes, now);
    let seen = &sights.of[..router.lanes.len()];
    let sure = |lane: usize| {
        let sight = &seen[lane];
        sight.fitness == Fitness::Fit && sight.measured && !sight.probe && sight.outdone_by.is_none()
    };
    let best = better_of(seen, sure)?;
    Some(forecast(router, &sights, Choice { lane: best as u8, explored: false }))
}

fn forecast(router: &Router, sights: &LanePredictions, choice: Choice) -> Forecast {
    let (explored, sight) = (choice.explored, &sights.of[usize::from(choice.lane)]);
    let target = router.lanes.made(sight.id);
    Forecast {
        key: sights.facts.key,
        work_log2: sights.facts.work_log2,
        queue_ns: sight.queue_ns,
        transfer_ns: sight.transfer_ns,
        run_ns: sight.run_ns,
        service_ns: sight.service_ns,
        target: sight.id,
        probe: sight.probe,
        settled: sight.settled,
        explored,
        foreign: target.is_some_and(|target| sights.facts.is_foreign_to(target)),
    }
}

/// Looks at every lane.
pub(super) fn look(router: &Router, op: &Op, wishes: &Wishes, now: Instant) -> LanePredictions {
    let mut sights = LanePredictions { of: [UNSEEN; LANES_MAX], facts: Facts::of(op) };
    let bound = match sights.facts.bound_to {
        // Any lane may run a transfer to a device that has no lane. No lane may run an op on the
        // object of such a device.
        Some(device) => router.lanes.mask_of(device).unwrap_or(if sights.facts.has_object { 0 } else { u64::MAX }),
        None => u64::MAX,
    };
    let allowed = wishes.allowed & bound;
    let wishes = &Wishes { allowed, ..*wishes };
    for candidate in router.lanes.iter() {
        let number = candidate.lane.number;
        if wishes.allows(number, candidate.lane.placed()) && (wishes.pinned || candidate.is_alive()) {
            sights.of[usize::from(number)] = look_at(router, candidate, op, &sights.facts, wishes, now);
        }
    }
    if !wishes.pinned {
        outdo(router, &mut sights);
        if weighs(wishes.goal) {
            weigh(&mut sights.of[..router.lanes.len()]);
        }
    }
    sights
}

/// Whether scores have the penalty of rule 2.
fn weighs(goal: Goal) -> bool {
    matches!(goal, Goal::Soonest | Goal::Throughput)
}

/// Whether this lane has the earlier predicted finish, and the penalty of rule 2 made the chosen
/// lane win.
pub(super) fn is_costlier(sights: &LanePredictions, lane: u8, choice: Choice, wishes: &Wishes) -> bool {
    let finish_ns = |lane: u8| {
        let LanePrediction { queue_ns, transfer_ns, run_ns, .. } = sights.of[usize::from(lane)];
        queue_ns + transfer_ns + run_ns
    };
    weighs(wishes.goal) && wishes.prefer.is_none() && !choice.explored && finish_ns(lane) < finish_ns(choice.lane)
}

/// Multiplies every score by the penalty of rule 2. If no lane has a queue, there is no penalty.
fn weigh(seen: &mut [LanePrediction]) {
    if seen.iter().all(|sight| sight.queue_ns <= 0.0) {
        return;
    }
    let cost_ns = |sight: &LanePrediction| sight.transfer_ns + sight.service_ns;
    let fit = |sight: &&LanePrediction| sight.fitness == Fitness::Fit && sight.measured;
    let least_ns = seen.iter().filter(fit).map(cost_ns).fold(f32::INFINITY, f32::min);
    for sight in seen.iter_mut().filter(|sight| sight.measured) {
        sight.score *= reluctance(cost_ns(sight), least_ns);
    }
}

/// The penalty of rule 2. The square root keeps it below the ratio of costs, so that no op waits
/// long while another device is idle.
pub(super) fn reluctance(cost_ns: f32, least_ns: f32) -> f32 {
    (cost_ns.max(1.0) / least_ns.max(1.0)).max(1.0).sqrt()
}

fn look_at(
    router: &Router,
    candidate: &Candidate,
    op: &Op,
    facts: &Facts,
    wishes: &Wishes,
    now: Instant,
) -> LanePrediction {
    let lane = &candidate.lane;
    if !candidate.can_run(op) {
        return UNSEEN;
    }
    let host_memory = lane.info.shares_host_memory;
    let known = lane.model.estimate(facts.key, facts.work_log2);
    let estimate = known.unwrap_or_else(|| estimate_of(candidate.first_guess(op), facts.work_log2));
    let expected = ExpectedTime { run_ns: estimate.run_ns, is_measured: known.is_some(), is_near: estimate.near };
    let worker = worker_for(router, candidate, facts, wishes, expected);
    let capacity = lane.gate.capacity();
    let mut transfer_ns = facts.transfer_ns(lane, &router.lanes, host_memory);
    if wishes.to_host && !host_memory {
        transfer_ns += lane.links.down.time_ns(estimate.output_bytes());
    }
    let mut sight = LanePrediction {
        id: worker.lane.id,
        fitness: Fitness::Fit,
        measured: estimate.near,
        settled: estimate.settled,
        explorable: !estimate.settled && lane.may_be_explored(now),
        probe: false,
        queue_ns: backlog_ns(router, candidate, worker) / capacity,
        transfer_ns,
        run_ns: estimate.run_ns / capacity,
        service_ns: estimate.service_ns / capacity,
        score: 0.0,
        outdone_by: None,
    };
    match lane.gate.breaker.passage(|| lane.since_epoch_ns(now), &lane.rules) {
        Admission::Free => {}
        Admission::Probe => sight.probe = true,
        Admission::Barred => sight.fitness = Fitness::Unfit,
    }
    if lane.gate.is_full() || lane.state() != WorkerState::Ready {
        sight.fitness = Fitness::Unfit;
    }
    if sight.fitness == Fitness::Fit && candidate.warmth(op) == Warmth::Cold {
        sight.fitness = Fitness::Cold;
    }
    sight.score = score(&sight, wishes, now, || watts(candidate));
    sight
}

/// The score of a prediction under the caller's goal.
fn score(sight: &LanePrediction, wishes: &Wishes, now: Instant, watts: impl FnOnce() -> f32) -> f32 {
    let finish_ns = sight.queue_ns + sight.transfer_ns + sight.run_ns;
    let score = match wishes.goal {
        Goal::Soonest | Goal::Latency => finish_ns,
        // Transfers overlap with other ops, so only the time that keeps the device busy counts in
        // full.
        Goal::Throughput => sight.queue_ns + sight.service_ns.max(sight.transfer_ns) + 0.1 * sight.transfer_ns,
        Goal::Energy => watts() * (sight.run_ns + sight.transfer_ns) + 1e-3 * finish_ns,
    };
    let late =
        wishes.deadline.is_some_and(|deadline| finish_ns > nanoseconds(deadline.saturating_duration_since(now)) as f32);
    // A lane that would miss the deadline comes after every lane that would meet it.
    if late { score + 1e15 } else { score }
}

/// Of the lanes that reach the same hardware, keeps only the one that is faster for this op.
fn outdo(router: &Router, sights: &mut LanePredictions) {
    for (number, candidate) in router.lanes.iter().enumerate() {
        let mut siblings = candidate.same_hardware.load(std::sync::atomic::Ordering::Relaxed);
        let mine = sights.of[number];
        while siblings != 0 && mine.fitness != Fitness::Out {
            let other = siblings.trailing_zeros() as usize;
            siblings &= siblings - 1;
            let theirs = sights.of[other];
            let cost = |sight: &LanePrediction| sight.transfer_ns + sight.run_ns;
            let better =
                (theirs.fitness, !theirs.measured, cost(&theirs)) < (mine.fitness, !mine.measured, cost(&mine));
            if theirs.fitness != Fitness::Out && better {
                sights.of[number].outdone_by = Some(other as u8);
            }
        }
    }
}

/// The lane that takes the op.
pub(super) fn pick(router: &Router, sights: &LanePredictions, wishes: &Wishes, lanes: usize) -> Option<Choice> {
    let seen = &sights.of[..lanes];
    let fit = |lane: usize| seen[lane].fitness == Fitness::Fit && seen[lane].outdone_by.is_none();
    if let Some(preferred) = wishes.prefer
        && let Some(slot) = router.lanes.made(preferred).map(|preferred| usize::from(preferred.lane.number))
        && seen.get(slot).is_some_and(|sight| sight.fitness == Fitness::Fit)
        && router.lanes.get(slot).is_some_and(|serving| serving.lane.id == preferred)
    {
        return Some(Choice { lane: slot as u8, explored: false });
    }
    let best = better_of(seen, |lane| seen[lane].fitness != Fitness::Out && seen[lane].outdone_by.is_none())?;
    let plain = Choice { lane: best as u8, explored: false };
    if lanes < 2 || wishes.pinned || seen[best].fitness != Fitness::Fit {
        return Some(plain);
    }
    let routed = router.count();
    let limit_ns = seen[best].score * TRIAL_FACTOR_MAX + TRIAL_NS_MIN;
    let trial = better_of(seen, |lane| {
        let worth_it = seen[lane].score <= limit_ns && wishes.deadline.is_none();
        let LanePrediction { explorable, probe, .. } = seen[lane];
        worth_it && seen[lane].fitness == Fitness::Fit && (explorable && lane != best || probe)
    });
    if let Some(trial) = trial
        && (seen[trial].probe || router.may_explore(routed))
    {
        return Some(Choice { lane: trial as u8, explored: !seen[trial].probe });
    }
    if routed % RUNNER_UP_ONE_IN == RUNNER_UP_ONE_IN - 1 && router.may_explore(routed) {
        let second = better_of(seen, |lane| lane != best && fit(lane) && !seen[lane].probe);
        let close = |lane: &usize| seen[*lane].score <= seen[best].score * RUNNER_UP_FACTOR_MAX;
        if let Some(second) = second.filter(close) {
            return Some(Choice { lane: second as u8, explored: true });
        }
    }
    Some(plain)
}

/// The fittest lane with the smallest score among the lanes for which `counts` is true.
fn better_of(seen: &[LanePrediction], counts: impl Fn(usize) -> bool) -> Option<usize> {
    let mut best: Option<usize> = None;
    for lane in (0..seen.len()).filter(|lane| counts(*lane)) {
        let better =
            best.is_none_or(|best| (seen[lane].fitness, seen[lane].score) < (seen[best].fitness, seen[best].score));
        if better {
            best = Some(lane);
        }
    }
    best
}

/// Makes cold lanes compile the op's kernels, if their score is better than the chosen one's, if
/// they are unmeasured, or if the caller prefers them.
fn warm_up_colder(router: &Router, sights: &LanePredictions, choice: Choice, op: &Op, wishes: &Wishes) {
    let chosen = sights.of[usize::from(choice.lane)].score;
    for (number, candidate) in router.lanes.iter().enumerate() {
        let sight = &sights.of[number];
        let is_wanted = sight.score < chosen || !sight.measured || wishes.prefer == Some(candidate.lane.id);
        if sight.fitness == Fitness::Cold && is_wanted {
            candidate.lane.ask_warm_up(sights.facts.key, op);
        }
    }
}

/// The backlog before an op of this worker: its own, and those of other APIs for the hardware. The
/// device's other workers share its cores by time, so the op does not wait for them.
fn backlog_ns(router: &Router, candidate: &Candidate, worker: &Candidate) -> f32 {
    let mut backlog = worker.lane.backlog_ns() as f32;
    let mut siblings = candidate.same_hardware.load(std::sync::atomic::Ordering::Relaxed);
    while siblings != 0 {
        let other = router.lanes.get(siblings.trailing_zeros() as usize);
        backlog += other.map_or(0.0, |other| other.lane.backlog_ns() as f32);
        siblings &= siblings - 1;
    }
    backlog
}

/// The run time that a backend guesses for this much work. A guess that is not finite counts as
/// zero.
fn estimate_of(guess: FirstGuess, work_log2: f32) -> Estimate {
    let guessed_ns = guess.overhead_ns + work_log2.exp2() * guess.work_unit_ns;
    let run_ns = if guessed_ns.is_finite() { guessed_ns.max(0.0) } else { 0.0 };
    Estimate { near: false, settled: false, run_ns, service_ns: run_ns, output_log2: work_log2.min(30.0) }
}

/// The power that the device draws while it works, as reported, or estimated from its kind.
fn watts(candidate: &Candidate) -> f32 {
    let by_kind = match candidate.lane.info.kind {
        DeviceKind::Cpu | DeviceKind::SoftwareGpu => 10.0 * candidate.lane.info.compute_units.unwrap_or(8) as f32,
        DeviceKind::IntegratedGpu => 15.0,
        _ => 300.0,
    };
    candidate.lane.gate.watts().unwrap_or(by_kind)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sight(queue_ns: f32, run_ns: f32) -> LanePrediction {
        let score = queue_ns + run_ns;
        LanePrediction { fitness: Fitness::Fit, measured: true, queue_ns, run_ns, service_ns: run_ns, score, ..UNSEEN }
    }

    fn chosen(mut seen: [LanePrediction; 2]) -> usize {
        weigh(&mut seen);
        better_of(&seen, |_| true).unwrap()
    }

    #[test]
    fn an_op_leaves_the_device_that_is_good_at_it_only_where_that_pays_clearly() {
        assert_eq!(chosen([sight(0.0, 5e3), sight(0.0, 45e3)]), 0);
        assert_eq!(chosen([sight(100e3, 5e3), sight(0.0, 45e3)]), 0, "nine times the cost for half the time");
        assert_eq!(chosen([sight(400e3, 5e3), sight(0.0, 45e3)]), 1, "nobody waits long beside an idle device");
        assert_eq!(chosen([sight(100e3, 40e3), sight(0.0, 45e3)]), 1, "two that are as good share the work");
    }
}
