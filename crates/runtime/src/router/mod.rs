//! Picks the device for an op.
//!
//! Capability is a hard filter. Among the capable devices, the one with the smallest predicted
//! finish time is taken: the time until its queue is free, plus the time to bring the data there,
//! plus the time to run the op there. Every input of a prediction is read from atomics: a choice
//! takes no lock and allocates nothing.
//!
//! * `lanes`: the devices, in slots that are reused;
//! * `wishes`: a caller's wishes in terms of the lanes;
//! * `facts`: the properties of an op that matter for the choice;
//! * `choice`: the choice itself, `workers`, the choice among the workers of one device, and
//!   `dispatch`, which sends the op there;
//! * `cuts`: graphs that no device runs whole;
//! * `balance`: moves waiting ops to idle devices if they finish sooner there;
//! * `account`: why no device is left, and the alternatives that a caller asked for;
//! * `profile`: saves and loads what was learned;
//! * `system`: how much of the devices' capacity is fit for work.

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use std::time::Instant;

use panoply_core::{Op, Result};
use panoply_lockfree::CacheLine;

use crate::lane::task::ProbeSeat;
use crate::lane::{Forecast, Lane, OpRequest, WorkerReport};
use crate::options::Wishes;

mod account;
pub(crate) mod balance;
mod choice;
mod cuts;
pub(crate) mod dispatch;
mod facts;
mod lanes;
pub mod profile;
mod system;
mod wishes;
mod workers;

pub(crate) use lanes::{Candidate, LANES_MAX, LaneList};
pub(crate) use system::DegradedMode;
pub use system::SystemCapacity;

/// How much the router explores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exploration {
    /// One in this many ops may be sent to a device only to learn how fast it is there. Zero: none.
    pub one_in: u32,
    /// In addition, this many ops may explore at the beginning.
    pub first: u32,
}

impl Default for Exploration {
    fn default() -> Exploration {
        Exploration { one_in: 32, first: 64 }
    }
}

/// The router's decision.
pub(crate) struct Decision {
    pub(crate) forecast: Forecast,
}

/// The router of a runtime. See the module.
pub(crate) struct Router {
    pub(crate) lanes: LaneList,
    exploration: Exploration,
    routed: CacheLine<AtomicU64>,
    explored: AtomicU64,
    /// The id of the lane that got the last op, where there is only one device.
    recent: AtomicU16,
}

impl Router {
    pub(crate) fn new(exploration: Exploration) -> Router {
        Router {
            lanes: LaneList::new(),
            exploration,
            routed: CacheLine(AtomicU64::new(0)),
            explored: AtomicU64::new(0),
            recent: AtomicU16::new(0),
        }
    }

    /// Chooses the lane for this op.
    pub(crate) fn choose(&self, op: &Op, wishes: &Wishes, now: Instant) -> Result<Decision> {
        choice::choose(self, op, wishes, now)
    }

    /// Takes the seat that a chosen op needs in its lane.
    pub(crate) fn take_seat(&self, task: &mut OpRequest) {
        let candidate = self.lanes.made(task.forecast.target);
        task.seat = candidate.and_then(|candidate| ProbeSeat::take(&candidate.lane, &task.forecast));
        if task.forecast.explored {
            self.explored.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The report of a device: the sums over its own worker and those of its pools.
    pub(crate) fn report(&self, device: &Candidate) -> WorkerReport {
        let mut report = device.lane.report();
        for worker in self.lanes.pool_lanes(device) {
            if let Some(pool) = worker.lane.pool {
                report.add(pool, worker.lane.report());
            }
        }
        report
    }

    /// Redirects an op whose lane was given up to the lane that its device got when it was found
    /// again, if there is one.
    pub(crate) fn follow(&self, task: &mut OpRequest) {
        let Some(target) = self.lanes.made(task.forecast.target) else { return };
        if !target.is_alive()
            && let Some(newer) = self.lanes.serving(target.lane.info.id).filter(|newer| newer.is_alive())
        {
            task.seat = None;
            task.forecast.target = newer.lane.id;
        }
    }

    /// [`Router::follow`] for an op whose worker of a pool was given up while its device was not.
    /// Returns whether the op goes on to the device's own worker.
    pub(crate) fn leave_pool(&self, task: &mut OpRequest) -> bool {
        let of_pool = |id| self.lanes.made(id).is_some_and(|target: &Candidate| target.lane.pool.is_some());
        let before = task.forecast.target;
        if of_pool(before) {
            self.follow(task);
        }
        before != task.forecast.target
    }

    /// The lane that the op visits next: the lane that holds an input to fetch, or the one that
    /// runs the op. Stores the op's load on that lane in the task.
    pub(crate) fn next_stop(&self, task: &mut OpRequest) -> Option<Arc<Lane>> {
        let target = &self.lanes.made(task.forecast.target)?.lane;
        let owner = task.next_owner(target.info.id);
        let source = owner.and_then(|owner| self.lanes.serving(owner));
        let (lane, load_ns) = match source {
            Some(candidate) => (&candidate.lane, task.forecast.transfer_ns),
            None => (target, task.forecast.transfer_ns + task.forecast.service_ns),
        };
        task.load_ns = load_ns as u64;
        Some(Arc::clone(lane))
    }

    /// The lanes of the processor's own cores.
    pub(crate) fn cpu_mask(&self) -> u64 {
        let cpus = self.lanes.iter().filter(|candidate| candidate.lane.info.is_processor());
        cpus.fold(0, |mask, candidate| mask | (1 << candidate.lane.number))
    }

    /// How many choices were made, and how many of them explored.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.routed.load(Ordering::Relaxed), self.explored.load(Ordering::Relaxed))
    }

    /// Counts a choice, and returns its number.
    fn count(&self) -> u64 {
        self.routed.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether another op may be spent on exploring.
    fn may_explore(&self, routed: u64) -> bool {
        let Exploration { one_in, first } = self.exploration;
        let allowed = u64::from(first) + routed / u64::from(one_in.max(1));
        one_in > 0 && self.explored.load(Ordering::Relaxed) < allowed
    }
}
