//! Picks the device for an op.
//!
//! Capability is a hard filter. Among the devices that can, the one with the smallest predicted finish time is taken:
//! the time until its queue is free, plus the time to bring the data there, plus the time to run it there. Everything that
//! goes into a prediction is read from atomics: a choice takes no lock and allocates nothing.
//!
//! * `lanes`: the devices, in a list that only grows;
//! * `wishes`: what a caller's wishes mean for them;
//! * `facts`: what about an op matters for the choice;
//! * `choice`: the choice itself, and `dispatch`, which sends the op there;
//! * `cuts`: graphs that no device runs whole;
//! * `balance`: ops that wait go to a device that has nothing to do, where that finishes them sooner;
//! * `account`: why no device is left, and the alternatives that a caller asked for;
//! * `profile`: what was learned, written down and read again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use panoply_core::{Op, Result};

use crate::lane::task::Seat;
use crate::lane::{Forecast, Lane, Task};
use crate::options::Wishes;
use crate::sync::CacheLine;

mod account;
pub(crate) mod balance;
mod choice;
mod cuts;
pub(crate) mod dispatch;
mod facts;
mod lanes;
pub mod profile;
mod wishes;

pub(crate) use lanes::{LANES_MAX, LaneList};

/// How much the router tries out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exploration {
    /// One in so many ops may be sent to a device only to learn how fast it is there. Zero: none.
    pub one_in: u32,
    /// As many ops more, at the beginning.
    pub first: u32,
}

impl Default for Exploration {
    fn default() -> Exploration {
        Exploration { one_in: 32, first: 64 }
    }
}

/// What the router decided.
pub(crate) struct Decision {
    pub(crate) forecast: Forecast,
}

/// See the module.
pub(crate) struct Router {
    pub(crate) lanes: LaneList,
    exploration: Exploration,
    routed: CacheLine<AtomicU64>,
    explored: AtomicU64,
}

impl Router {
    pub(crate) fn new(exploration: Exploration) -> Router {
        Router {
            lanes: LaneList::new(),
            exploration,
            routed: CacheLine(AtomicU64::new(0)),
            explored: AtomicU64::new(0),
        }
    }

    /// The lane for this op.
    pub(crate) fn choose(&self, op: &Op, wishes: &Wishes, now: Instant) -> Result<Decision> {
        choice::choose(self, op, wishes, now)
    }

    /// Takes the seat that a chosen op needs in its lane.
    pub(crate) fn take_seat(&self, task: &mut Task) {
        let candidate = self.lanes.get(usize::from(task.forecast.target));
        task.seat = candidate.and_then(|candidate| Seat::take(&candidate.lane, &task.forecast));
        if task.forecast.explored {
            self.explored.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Has an op whose lane was given up go to the lane that its device got when it was found again, where there is one.
    pub(crate) fn follow(&self, task: &mut Task) {
        let Some(target) = self.lanes.get(usize::from(task.forecast.target)) else { return };
        if !target.is_alive()
            && let Some(newer) = self.lanes.serving(target.lane.info.id).filter(|newer| newer.is_alive())
        {
            task.seat = None;
            task.forecast.target = newer.lane.number;
        }
    }

    /// The lane that the op visits next: the one that holds an input to be fetched, or the one that runs it. Notes what
    /// the op adds to that lane's backlog.
    pub(crate) fn next_stop(&self, task: &mut Task) -> Option<Arc<Lane>> {
        let target = &self.lanes.get(usize::from(task.forecast.target))?.lane;
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

    /// How many choices were made, and how many of them to learn.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.routed.load(Ordering::Relaxed), self.explored.load(Ordering::Relaxed))
    }

    /// Counts a choice, and tells its number.
    fn count(&self) -> u64 {
        self.routed.fetch_add(1, Ordering::Relaxed)
    }

    /// Whether another op may be spent on learning.
    fn may_explore(&self, routed: u64) -> bool {
        let Exploration { one_in, first } = self.exploration;
        let allowed = u64::from(first) + routed / u64::from(one_in.max(1));
        one_in > 0 && self.explored.load(Ordering::Relaxed) < allowed
    }
}
