//! Lanes, on which independent ops overlap. Each has a compute stream and a download stream; the
//! upload stream is common to all. The rules:
//!
//! 1. An op runs on one lane. Ops on one lane run in order.
//! 2. The tensors of an op need no waiting: an op is answered when the device has finished it, so
//!    the inputs of every op are complete when it is queued. For the same reason memory of the pool
//!    can be used on any lane at once.
//! 3. Memory that ops write one after the other (counters, boards of scans, arenas and recordings
//!    of graphs) exists once per lane, or its user [follows](Context::follow) the lane of its last
//!    user.
//! 4. Memory that an op writes for later ops to read (tables, constants, programs) is
//!    [published](Context::publish): every other lane follows the writer before its next op.
//! 5. Resources that ops of any lane may use are released behind all lanes
//!    ([`Context::release_behind_all`]).
//! 6. To follow a lane is to wait for all work that is queued on it now. A lane that has finished
//!    is not waited for, so ops that run alone cause no driver call here.

use panoply_core::Result;

use super::Context;
use crate::driver::{Driver, LANES_MAX, Stream};

/// The progress of each lane, as far as the host has seen it.
pub(super) struct Lanes {
    lanes: [Lane; LANES_MAX],
    count: usize,
    current: usize,
}

#[derive(Clone, Copy, Default)]
struct Lane {
    /// Number of the last work queued on it, and of the last work that it has finished.
    queued: u64,
    finished: u64,
    /// The lanes to be followed before the next op: a bit for each.
    behind: u32,
}

impl Lanes {
    pub(super) fn new(driver: &dyn Driver) -> Lanes {
        let count = driver.lanes().clamp(1, LANES_MAX);
        Lanes { lanes: [Lane::default(); LANES_MAX], count, current: 0 }
    }
}

impl Context {
    /// Number of lanes.
    pub(crate) fn lane_count(&self) -> usize {
        self.lanes.count
    }

    /// The lane of the current op.
    pub(crate) fn lane(&self) -> usize {
        self.lanes.current
    }

    /// Begins an op on this lane.
    pub(crate) fn enter_lane(&mut self, lane: usize) -> Result<()> {
        self.select(lane);
        let behind = std::mem::take(&mut self.lanes.lanes[lane].behind);
        if behind == 0 {
            return Ok(());
        }
        let others = (0..self.lanes.count).filter(|other| behind & (1 << other) != 0);
        let followed = others.into_iter().try_for_each(|other| self.follow(other));
        if followed.is_err() {
            // The next op on the lane must not read what it has not waited for.
            self.lanes.lanes[lane].behind |= behind;
        }
        followed
    }

    fn select(&mut self, lane: usize) {
        if self.lanes.current != lane {
            self.lanes.current = lane;
            self.memory.lane = lane;
            self.driver.use_lane(lane);
        }
    }

    /// Numbers the kernels that the current op is about to queue. The lane counts as busy until
    /// [`Context::lane_finished`] gets this number, or a later one.
    pub(crate) fn number_work(&mut self) -> u64 {
        let lane = &mut self.lanes.lanes[self.lanes.current];
        lane.queued += 1;
        lane.queued
    }

    /// Notes that a lane has finished the work of this number, and all before it.
    pub(crate) fn lane_finished(&mut self, lane: usize, number: u64) {
        self.lanes.lanes[lane].finished = number;
    }

    /// Makes the current lane wait for everything queued on another lane so far.
    pub(crate) fn follow(&mut self, other: usize) -> Result<()> {
        self.follow_on(Stream::Compute, other)
    }

    /// Makes the current lane wait for everything queued on all lanes so far.
    pub(crate) fn follow_all(&mut self) -> Result<()> {
        self.follow_all_on(Stream::Compute)
    }

    /// Makes a stream of the current lane wait for everything queued on all lanes so far.
    pub(crate) fn follow_all_on(&mut self, stream: Stream) -> Result<()> {
        (0..self.lanes.count).try_for_each(|other| self.follow_on(stream, other))
    }

    fn follow_on(&mut self, stream: Stream, other: usize) -> Result<()> {
        let current = self.lanes.current;
        let Lane { queued, finished, .. } = self.lanes.lanes[other];
        // Work of its own lane is ahead on the compute stream alone.
        if (other == current && stream == Stream::Compute) || queued == finished {
            return Ok(());
        }
        let event = self.event()?;
        self.select(other);
        let recorded = self.driver.record(event, Stream::Compute);
        self.select(current);
        let waits = recorded.and_then(|()| self.driver.wait_for(stream, event));
        // The wait refers to this recording of the event, which may be recorded again.
        self.give_back(event);
        waits
    }

    /// Notes that the current lane writes memory that ops of every lane will read.
    pub(crate) fn publish(&mut self) {
        self.number_work();
        let writer = self.lanes.current;
        for (number, lane) in self.lanes.lanes[..self.lanes.count].iter_mut().enumerate() {
            if number != writer {
                lane.behind |= 1 << writer;
            }
        }
    }

    /// Makes the end of the current op wait for all lanes: resources that it holds may be in use
    /// there.
    pub(crate) fn release_behind_all(&mut self) {
        self.queued.is_behind_all = true;
    }
}
