//! Moves queued ops to idle devices: an op that is predicted to finish sooner on a device without a
//! backlog goes there. The relay calls this; workers do not know each other.
//!
//! Among the workers of one device, an op moves if it turned out to be shorter or longer than was
//! guessed when it was sent: short ops leave the queue behind a long op, and long ops leave the
//! queue of short ones.
//!
//! A queue is walked from its front. The predicted finish of an op in its present lane grows with
//! the backlog before it, so the first ops stay and later ops may go. Each op is moved only if that
//! op itself finishes sooner. Ops that stay keep their order.

use std::sync::atomic::Ordering;
use std::time::Instant;

use panoply_lockfree::foreign::{contain, tell};

use super::lanes::Candidate;
use super::{Router, choice};
use crate::domain_pools::PoolName;
use crate::health::Circuit;
use crate::lane::inlet::BACKLOG_NS_MIN;
use crate::lane::{Forecast, Lane, OpRequest, OpTicket, WorkerState};
use crate::options::{Goal, Wishes};

/// By what factor, and by how much, an op must be expected to finish sooner elsewhere: predictions
/// are not exact, and moving is not free.
const SOONER_FACTOR: f32 = 1.2;
const SOONER_NS_MIN: f32 = 50_000.0;

/// The result of one look at all lanes.
pub(crate) struct BalanceReport {
    /// Whether some lane has a backlog of more than [`BACKLOG_NS_MIN`].
    pub(crate) uneven: bool,
    /// Whether some lane was idle and no queued op would have finished sooner there.
    pub(crate) in_vain: bool,
}

/// Looks at every lane once, and moves ops from lanes with a backlog to idle lanes, and between the
/// workers of one device. `acts` returns whether the looking relay has not been replaced meanwhile.
pub(crate) fn round(router: &Router, now: Instant, acts: &dyn Fn() -> bool) -> BalanceReport {
    let idle = router.lanes.iter().filter(|candidate| router.lanes.group(candidate).any(is_idle));
    let idle = idle.fold(0_u64, |mask, candidate| mask | (1 << candidate.lane.number));
    let (mut found, mut moved) = (BalanceReport { uneven: false, in_vain: false }, 0);
    for candidate in router.lanes.iter() {
        let has_pools = router.lanes.pool_lanes(candidate).next().is_some();
        for Candidate { lane, .. } in router.lanes.group(candidate) {
            let is_behind = lane.backlog_ns() > BACKLOG_NS_MIN || lane.pool == Some(PoolName::Short);
            if !is_behind || lane.queued() == 0 || !lane.is_open() {
                continue;
            }
            found.uneven = true;
            if (has_pools || idle & !(1 << lane.number) != 0) && acts() {
                moved += relieve(router, candidate, lane, idle, now, acts);
                found.in_vain = true;
            }
        }
    }
    found.in_vain &= moved == 0;
    found
}

fn is_idle(candidate: &Candidate) -> bool {
    let lane = &candidate.lane;
    let well = lane.state() == WorkerState::Ready
        && lane.gate.breaker.circuit() == Circuit::Closed
        && !lane.gate.is_full()
        && lane.is_open();
    well && lane.backlog_ns() == 0 && lane.queued() == 0
}

/// Moves the ops of a lane's queue that would finish sooner on an idle lane, or that belong to
/// another worker of the lane's device, which is `device`. Returns how many were moved.
fn relieve(
    router: &Router,
    device: &Candidate,
    lane: &Lane,
    idle: u64,
    now: Instant,
    acts: &dyn Fn() -> bool,
) -> usize {
    let (mut moved, mut ahead_ns) = (0, None);
    lane.look_through(acts, |queued_ns, mut ticket| {
        // The ops in the engine come before the first queued op.
        let ahead_ns = ahead_ns.get_or_insert_with(|| lane.backlog_ns().saturating_sub(queued_ns) as f32);
        // An op that panics when it is asked about itself stays in place, and affects no other op.
        let better = |task: &mut OpRequest| {
            misplaced(router, device, lane, task, now).or_else(|| sooner(router, lane, task, *ahead_ns, idle, now))
        };
        let asked = |task: &mut OpRequest| contain(|| better(task)).ok().flatten();
        let Some(forecast) = ticket.question_mut().and_then(asked) else {
            *ahead_ns += ticket.question_mut().map_or(0.0, |task| task.load_ns as f32);
            return Some(ticket);
        };
        give(router, lane, ticket, forecast);
        moved += 1;
        None
    });
    if moved > 0 {
        tell(tracing::Level::DEBUG, || {
            tracing::debug!(target: "panoply::router", device = %lane.info.id, moved, "ops go where they finish sooner");
        });
    }
    moved
}

/// The forecast for an op that another worker of its device takes by now, since more is known about
/// it than when it was sent. An op leaves the queue of short ops only if it is much too long.
fn misplaced(router: &Router, device: &Candidate, lane: &Lane, task: &OpRequest, now: Instant) -> Option<Forecast> {
    if task.seat.is_some() || task.forecast.target != lane.id || router.lanes.pool_lanes(device).next().is_none() {
        return None;
    }
    let here = choice::at_device(router, device, task.op.as_ref()?, &task.wishes, now)?;
    let target = router.lanes.made(here.target)?;
    let moves = match (lane.pool, target.lane.pool) {
        (from, to) if from == to => false,
        (_, Some(PoolName::Short)) => true,
        (Some(PoolName::Short), _) => here.run_ns > lane.overlong_ns(),
        _ => false,
    };
    moves.then_some(here)
}

/// The forecast for an op on an idle lane, if the op may go there and would finish sooner.
fn sooner(router: &Router, lane: &Lane, task: &OpRequest, ahead_ns: f32, idle: u64, now: Instant) -> Option<Forecast> {
    let Wishes { pinned, prefer, goal, .. } = task.wishes;
    // Ops that are pinned, prefer a device, probe or explore stay. So do ops that only fetch an
    // input here.
    let bound = pinned || prefer.is_some() || goal == Goal::Energy || task.seat.is_some();
    if bound || task.forecast.target != lane.id {
        return None;
    }
    let tried = task.history.as_ref().map_or(0, |history| history.tried);
    let allowed = task.wishes.allowed & idle & !tried & !(1 << lane.number);
    if allowed == 0 {
        return None;
    }
    let there = choice::soonest(router, task.op.as_ref()?, &Wishes { allowed, ..task.wishes }, now)?;
    let here_ns = ahead_ns + task.forecast.transfer_ns + task.forecast.run_ns;
    let there_ns = there.queue_ns + there.transfer_ns + there.run_ns;
    let cost_ns = |forecast: &Forecast| forecast.transfer_ns + forecast.service_ns;
    let reluctance = choice::reluctance(cost_ns(&there), cost_ns(&task.forecast));
    (there_ns * reluctance * SOONER_FACTOR + SOONER_NS_MIN < here_ns).then_some(there)
}

/// Takes an op's load off its lane and sends the op to another one.
fn give(router: &Router, lane: &Lane, mut ticket: OpTicket, forecast: Forecast) {
    let Some(task) = ticket.question_mut() else { return };
    lane.unload(std::mem::take(&mut task.load_ns));
    task.forecast = forecast;
    let Some(next) = router.next_stop(task) else { return lane.hand_over(ticket, false) };
    match next.try_relay(ticket) {
        Ok(()) => {
            lane.counts.relieved.fetch_add(1, Ordering::Relaxed);
            lane.counts.moved.fetch_add(1, Ordering::Release);
        }
        // The lane was closed meanwhile: the relay finds another one.
        Err((mut ticket, _)) => {
            if let Some(task) = ticket.question_mut() {
                task.load_ns = 0;
            }
            lane.hand_over(ticket, false);
        }
    }
}
