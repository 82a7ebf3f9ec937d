//! The choice among the workers of one device: its own, and those of its pools. The rules stand in
//! [`domain_pools`](crate::domain_pools).
//!
//! An op is short if its measured time is within `short_run_max`. The less is known about an op,
//! the smaller its expected time must be: a wrong guess keeps the queue of short ops waiting.

use panoply_core::Domain;

use super::Router;
use super::facts::Facts;
use super::lanes::Candidate;
use crate::domain_pools::PoolName;
use crate::lane::WorkerState;
use crate::options::Wishes;

/// The share of `short_run_max` up to which an op counts as short if only ops of other sizes were
/// measured.
const OTHER_SIZES_SHARE: f32 = 0.25;
/// The share of `short_run_max` up to which an op counts as short if none of its kind was measured.
const GUESSED_SHARE: f32 = 0.125;

/// The expected time of an op on a device, and how much is known about it.
#[derive(Clone, Copy)]
pub(super) struct ExpectedTime {
    pub(super) run_ns: f32,
    /// Whether ops of its kind were measured there.
    pub(super) is_measured: bool,
    /// Whether they were of about its size.
    pub(super) is_near: bool,
}

impl ExpectedTime {
    fn is_short(self, facts: &Facts, short_run_max_ns: f32) -> bool {
        let share = match self {
            ExpectedTime { is_near: true, .. } => 1.0,
            ExpectedTime { is_measured: true, .. } => OTHER_SIZES_SHARE,
            // Nothing of a graph says how long it takes.
            _ if facts.domain == Some(Domain::Graph) => return false,
            _ => GUESSED_SHARE,
        };
        self.run_ns <= share * short_run_max_ns
    }
}

/// The worker of the candidate's device that takes the op: the one with the least work in the pool
/// that takes such ops, otherwise the device's own.
pub(super) fn worker_for<'a>(
    router: &'a Router,
    candidate: &'a Candidate,
    facts: &Facts,
    wishes: &Wishes,
    expected: ExpectedTime,
) -> &'a Candidate {
    let lane = &candidate.lane;
    // A tensor that stays on the device stays in the memory of one engine.
    let may_leave = lane.info.shares_host_memory || wishes.to_host && facts.is_on_host();
    let mut of_domain: Option<&Candidate> = None;
    let mut of_short: Option<&Candidate> = None;
    let less = |best: Option<&Candidate>, other: &Candidate| {
        best.is_none_or(|best| other.lane.backlog_ns() < best.lane.backlog_ns())
    };
    for worker in router.lanes.pool_lanes(candidate).filter(|_| may_leave) {
        let is_ready = worker.lane.state() == WorkerState::Ready && worker.lane.is_open();
        match worker.lane.pool {
            Some(PoolName::Domain(domain)) if Some(domain) == facts.domain => {
                if facts.keeps_state && worker.lane.pool_number == 0 && worker.lane.is_open() {
                    return worker;
                }
                if is_ready && !facts.keeps_state && less(of_domain, worker) {
                    of_domain = Some(worker);
                }
            }
            Some(PoolName::Short) if is_ready && !facts.keeps_state && less(of_short, worker) => {
                of_short = Some(worker);
            }
            _ => {}
        }
    }
    let short_run_max_ns = lane.pools.short_run_max.as_nanos() as f32;
    let of_short = of_short.filter(|_| expected.is_short(facts, short_run_max_ns));
    of_domain.or(of_short).unwrap_or(candidate)
}
