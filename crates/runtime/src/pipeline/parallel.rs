//! A stage that is a program's closure, called by up to so many threads at a time.
//!
//! A thread takes a run of items, and a place in the next ring for each, under the stage's lock; calls the closure for each
//! without it; and puts what comes out into its place. Runs are as long as the items are quick, so that the lock costs
//! little, and one item long where each takes its time.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::control::{Control, Failure, Verdict, lock};
use super::error::Cause;
use super::meter::{Counts, Idle, Meter};
use super::options::StageOptions;
use super::report::StageReport;
use super::ring::{Item, Ring};
use super::stage::{Stage, Step, summary};
use super::watch::Watch;
use crate::foreign::{contain, discard};
use crate::time::nanoseconds;
use crate::worker::BoxError;

/// The longest run, and the time that one should take.
const RUN_MAX: usize = 32;
const RUN_TIME: Duration = Duration::from_micros(20);

/// What a closure stage does with an item: takes it or leaves it, and gives what it makes of it; nothing where it leaves the
/// item out.
pub(crate) trait Work<T, U>: Fn(&mut Option<T>) -> Result<Option<U>, BoxError> + Send + Sync + 'static {}

impl<T, U, F: Fn(&mut Option<T>) -> Result<Option<U>, BoxError> + Send + Sync + 'static> Work<T, U> for F {}

pub(crate) struct Parallel<T, U, F> {
    options: StageOptions,
    lanes_max: usize,
    input: Arc<Ring<T>>,
    output: Arc<Ring<U>>,
    work: F,
    lanes: Mutex<Lanes<T>>,
    active: AtomicUsize,
    watch: Watch,
    counts: Counts,
    done: AtomicBool,
}

struct Lanes<T> {
    /// A lane that is free, with the memory for its runs.
    free: Vec<(usize, Vec<Item<T>>)>,
    meter: Meter,
    /// How long an item takes, smoothed.
    item_ns: f64,
}

impl<T: Send + 'static, U: Send + 'static, F: Work<T, U>> Parallel<T, U, F> {
    pub(crate) fn new(
        index: usize,
        options: StageOptions,
        threads: usize,
        rings: (Arc<Ring<T>>, Arc<Ring<U>>),
        work: F,
        now: Instant,
    ) -> Parallel<T, U, F> {
        let lanes_max = options.lanes(threads);
        let free = (0..lanes_max).map(|lane| (lane, Vec::with_capacity(RUN_MAX))).collect();
        let watch = Watch::new(index, options.time_max, lanes_max, now);
        Parallel {
            options,
            lanes_max,
            input: rings.0,
            output: rings.1,
            work,
            lanes: Mutex::new(Lanes { free, meter: Meter::new(now), item_ns: nanoseconds(RUN_TIME) as f64 }),
            active: AtomicUsize::new(0),
            watch,
            counts: Counts::default(),
            done: AtomicBool::new(false),
        }
    }

    /// Takes a run of items and a place for each.
    fn claim(&self, control: &Control) -> Result<(usize, Vec<Item<T>>, u64), Step> {
        let mut lanes = lock(&self.lanes);
        let idle = if control.signals.is_paused() {
            Some(Idle::Held)
        } else if self.input.ready() == 0 {
            Some(Idle::Starved)
        } else if self.output.room() == 0 {
            Some(Idle::Blocked)
        } else {
            None
        };
        if let Some(idle) = idle {
            if lanes.meter.differs(idle) {
                lanes.meter.idle(idle, control.now());
            }
            return Err(self.finish(&lanes));
        }
        // A run leaves enough for the other lanes.
        let share = self.input.ready().div_ceil(lanes.free.len().max(1));
        let quick = (nanoseconds(RUN_TIME) as f64 / lanes.item_ns.max(1.0)) as usize;
        let count = quick.clamp(1, RUN_MAX).min(share).min(self.output.room());
        let Some((lane, mut run)) = lanes.free.pop() else { return Err(Step::Nothing) };
        let was_full = self.input.room() == 0;
        self.input.pop_into(count, &mut run);
        if run.is_empty() {
            lanes.free.push((lane, run));
            return Err(Step::Nothing);
        }
        let place = if self.options.ordered {
            self.output.reserve(run.len())
        } else {
            self.output.promise(run.len());
            0
        };
        self.active.fetch_add(1, Ordering::AcqRel);
        lanes.meter.begin(control.now());
        drop(lanes);
        if was_full {
            control.signals.bell.ring();
        }
        Ok((lane, run, place))
    }

    /// Ends the output when nothing is left and nothing will come.
    fn finish(&self, lanes: &Lanes<T>) -> Step {
        if self.input.is_finished() && lanes.free.len() == self.lanes_max {
            self.output.end();
            self.done.store(true, Ordering::Release);
            return Step::Done;
        }
        Step::Nothing
    }

    fn release(&self, lane: usize, run: Vec<Item<T>>, took: Duration, count: usize, control: &Control) {
        let mut lanes = lock(&self.lanes);
        lanes.free.push((lane, run));
        lanes.meter.end(control.now());
        let each = nanoseconds(took) as f64 / count.max(1) as f64;
        lanes.item_ns += (each - lanes.item_ns) * 0.25;
        self.active.fetch_sub(1, Ordering::AcqRel);
        drop(lanes);
        Counts::add(&self.counts.taken, count as u64);
    }

    /// What the closure makes of one item, by the stage's policy; nothing where it is left out.
    fn apply(&self, lane: usize, item: &mut Item<T>, control: &Control) -> Option<U> {
        let mut attempts = 0_u32;
        loop {
            item.value.as_ref()?;
            if control.is_stopped() {
                discard(item.value.take());
                Counts::add(&self.counts.dropped, 1);
                return None;
            }
            attempts = attempts.saturating_add(1);
            let called = match control.lateness(item.born) {
                Some(late) => Err(late),
                None => self.call(lane, item, control),
            };
            let cause = match called {
                Ok(output) => {
                    let counter = if output.is_some() { &self.counts.given } else { &self.counts.skipped };
                    Counts::add(counter, 1);
                    discard(item.value.take());
                    return output;
                }
                Err(cause) => cause,
            };
            match control.judge(&self.options.policy, attempts, &cause, item.value.is_some()) {
                Verdict::Again(wait) => {
                    Counts::add(&self.counts.retried, 1);
                    control.wait(wait);
                }
                Verdict::Over(finally) => {
                    let failure = Failure { stage: &self.options.name, item: item.number, attempts };
                    control.give_up(failure, cause, finally, item.value.take(), &self.counts);
                    return None;
                }
            }
        }
    }

    fn call(&self, lane: usize, item: &mut Item<T>, control: &Control) -> Result<Option<U>, Cause> {
        let number = item.number;
        match self.watch.call(lane, number, control, || (self.work)(&mut item.value)) {
            Ok(Ok(output)) => Ok(output),
            Ok(Err(error)) => Err(told(error)),
            Err(message) => Err(Cause::Panicked(message)),
        }
    }
}

/// What a program's own error says of itself.
pub(crate) fn told(error: BoxError) -> Cause {
    let reason = contain(|| error.to_string()).unwrap_or_else(|panic| panic);
    discard(error);
    Cause::Error(reason)
}

impl<T: Send + 'static, U: Send + 'static, F: Work<T, U>> Stage for Parallel<T, U, F> {
    fn step(&self, control: &Control) -> Step {
        if self.done.load(Ordering::Acquire) {
            return Step::Done;
        }
        let (lane, mut run, place) = match self.claim(control) {
            Ok(claimed) => claimed,
            Err(step) => return step,
        };
        let (start, count) = (control.now(), run.len());
        for (offset, item) in run.iter_mut().enumerate() {
            let value = self.apply(lane, item, control);
            let output = item.with(value);
            let was_empty = self.output.ready() == 0;
            if self.options.ordered {
                self.output.fill(place + offset as u64, output);
            } else {
                self.output.fulfil(output);
            }
            if was_empty && offset + 1 < count {
                control.signals.bell.ring();
            }
        }
        run.clear();
        self.release(lane, run, control.now().saturating_duration_since(start), count, control);
        Step::Moved
    }

    fn wants(&self, control: &Control) -> usize {
        if self.done.load(Ordering::Acquire) || control.signals.is_paused() {
            return 0;
        }
        let active = self.active.load(Ordering::Acquire);
        if active == 0 && self.input.is_finished() {
            return 1;
        }
        self.input.ready().min(self.output.room()).min(self.lanes_max.saturating_sub(active))
    }

    fn is_heavy(&self) -> bool {
        true
    }

    fn threads_max(&self) -> usize {
        self.lanes_max
    }

    fn alarm(&self, _control: &Control, now: Instant) -> Option<Instant> {
        self.watch.alarm(now)
    }

    fn hung(&self, now: Instant) -> Option<(u64, Duration)> {
        self.watch.hung(now)
    }

    fn abandon(&self) {
        Counts::add(&self.counts.dropped, self.input.abandon());
    }

    fn holds(&self) -> u64 {
        (self.input.used() + self.active.load(Ordering::Acquire)) as u64
    }

    fn report(&self, now: Instant, reports: &mut Vec<StageReport>) {
        let times = lock(&self.lanes).meter.read(now);
        let mut report = summary(&self.options.name, &self.counts, times, self.lanes_max);
        report.queue(&self.input);
        reports.push(report);
    }

    fn name(&self) -> &str {
        &self.options.name
    }
}
