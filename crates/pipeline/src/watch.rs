//! Calls into a program's code. A panic becomes its message, a span is recorded if there is a
//! trace, and a call that does not return in time is detected if its stage has a time limit.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use panoply_lockfree::foreign::contain;
use panoply_runtime::time::{later, nanoseconds};

use super::control::Control;

/// The calls of one stage.
pub(crate) struct Watch {
    /// The index of the stage in traces.
    pub(crate) stage: usize,
    time_max: Option<Duration>,
    epoch: Instant,
    lanes: Vec<Lane>,
}

/// The current call of a lane: when it began, in nanoseconds after the epoch plus one (zero outside
/// a call), and for which item.
#[derive(Default)]
struct Lane {
    began: AtomicU64,
    item: AtomicU64,
}

impl Watch {
    pub(crate) fn new(stage: usize, time_max: Option<Duration>, lanes: usize, now: Instant) -> Watch {
        Watch { stage, time_max, epoch: now, lanes: (0..lanes).map(|_| Lane::default()).collect() }
    }

    /// Calls a program's code for an item, and records a span.
    pub(crate) fn call<R>(
        &self,
        lane: usize,
        item: u64,
        control: &Control,
        call: impl FnOnce() -> R,
    ) -> Result<R, String> {
        let start = control.tracer.as_ref().map(|_| control.now());
        let called = self.call_untraced(lane, item, control, call);
        if let (Some(tracer), Some(start)) = (&control.tracer, start) {
            tracer.stage(self.stage, item, start, control.now());
        }
        called
    }

    /// Calls a program's code for an item.
    pub(crate) fn call_untraced<R>(
        &self,
        lane: usize,
        item: u64,
        control: &Control,
        call: impl FnOnce() -> R,
    ) -> Result<R, String> {
        let lane = self.lanes.get(lane).filter(|_| self.time_max.is_some());
        if let Some(lane) = lane {
            lane.item.store(item, Ordering::Relaxed);
            let began = nanoseconds(control.now().saturating_duration_since(self.epoch));
            lane.began.store(began.saturating_add(1), Ordering::Release);
        }
        let called = contain(call);
        if let Some(lane) = lane {
            lane.began.store(0, Ordering::Release);
        }
        called
    }

    /// When a thread must check whether a call has returned.
    pub(crate) fn alarm(&self, now: Instant) -> Option<Instant> {
        // A call that begins after this check does not exceed its limit before then.
        let began = |time_max| later(self.oldest().map_or(now, |(began, _)| began), time_max);
        self.time_max.map(began)
    }

    /// The item of a call that has not returned in time, and the limit.
    pub(crate) fn hung(&self, now: Instant) -> Option<(u64, Duration)> {
        let time_max = self.time_max?;
        let (began, item) = self.oldest()?;
        (now.saturating_duration_since(began) >= time_max).then_some((item, time_max))
    }

    /// The call that began first, with its item.
    fn oldest(&self) -> Option<(Instant, u64)> {
        let begun = self.lanes.iter().filter_map(|lane| {
            let ns = lane.began.load(Ordering::Acquire).checked_sub(1)?;
            Some((later(self.epoch, Duration::from_nanos(ns)), lane.item.load(Ordering::Relaxed)))
        });
        begun.min()
    }
}
