//! A stage that is a program's closure, called by several threads at a time, up to a limit.
//!
//! 1. A thread takes a run of items, and a position in the next ring for each, under the stage's
//!    lock, and calls the closure for each item without the lock. It reads the clock once before
//!    the run and once after it.
//! 2. A run takes about [`LONG`]: many items if each is quick, and one if each is slow. A run is
//!    divided among the stage's threads only if each part is worth the lock and the wake-up.
//! 3. The output of a call is put into its position at once, under the lock of that ring alone. A
//!    closure may wait for a stage behind it (for a buffer that the sink gives back), so no output
//!    is held back until the run ends.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use panoply_lockfree::foreign::{contain, discard};
use panoply_lockfree::ring::{Item, Ring};
use panoply_runtime::time::nanoseconds;
use panoply_runtime::worker::BoxError;

use super::control::{Control, Failure, Verdict, lock};
use super::error::Cause;
use super::meter::{Idle, Meter, StageCounters};
use super::options::StageOptions;
use super::report::StageReport;
use super::stage::{LONG, Pace, SHARED_ITEM_NS_MIN, Stage, StageDemand, StepOutcome, summary};
use super::watch::Watch;

/// The most items in a run.
const RUN_MAX: usize = 32;
/// A run is divided only if every part takes at least this long.
const PART_NS_MIN: u64 = 5_000;

/// The work of a closure stage on an item: takes the item or leaves it, and returns its output, or
/// `None` if it leaves the item out.
pub(crate) trait ItemFn<T, U>:
    Fn(&mut Option<T>) -> Result<Option<U>, BoxError> + Send + Sync + 'static
{
}

impl<T, U, F: Fn(&mut Option<T>) -> Result<Option<U>, BoxError> + Send + Sync + 'static> ItemFn<T, U> for F {}

pub(crate) struct Parallel<T, U, F> {
    options: StageOptions,
    lanes_max: usize,
    input: Arc<Ring<T>>,
    output: Arc<Ring<U>>,
    work: F,
    lanes: Mutex<Lanes<T>>,
    active: AtomicUsize,
    /// Why the stage is idle, as its meter knows it; [`WORKS`] while it works.
    idle: AtomicU8,
    /// How long an item takes.
    item: Pace,
    watch: Watch,
    counts: StageCounters,
    done: AtomicBool,
}

struct Lanes<T> {
    /// The free lanes, each with the memory for its runs.
    free: Vec<(usize, Vec<Item<T>>)>,
    meter: Meter,
}

/// The value of [`Parallel::idle`] while the stage works.
const WORKS: u8 = u8::MAX;

/// A run that a thread has taken.
struct Run<T> {
    lane: usize,
    items: Vec<Item<T>>,
    /// The position of the first item in the next ring.
    place: u64,
    began: Instant,
}

impl<T: Send + 'static, U: Send + 'static, F: ItemFn<T, U>> Parallel<T, U, F> {
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
            lanes: Mutex::new(Lanes { free, meter: Meter::new(now) }),
            active: AtomicUsize::new(0),
            idle: AtomicU8::new(Idle::Starved as u8),
            item: Pace::new(),
            watch,
            counts: StageCounters::default(),
            done: AtomicBool::new(false),
        }
    }

    /// Why no run can be taken now.
    fn idleness(&self, control: &Control) -> Option<Idle> {
        if control.signals.is_paused() {
            Some(Idle::Held)
        } else if self.input.ready() == 0 {
            Some(Idle::Starved)
        } else if self.output.room() == 0 {
            Some(Idle::Blocked)
        } else {
            None
        }
    }

    /// Takes a run of items and a position for each.
    fn claim(&self, control: &Control) -> Result<Run<T>, StepOutcome> {
        if let Some(idle) = self.idleness(control)
            && !self.input.is_finished()
            && matches!(self.idle.load(Ordering::Acquire), known if known == WORKS || known == idle as u8)
        {
            // The meter knows this reason already, and nothing has ended, so no lock is needed to
            // do nothing.
            return Err(StepOutcome::Nothing);
        }
        let now = control.now();
        let mut lanes = lock(&self.lanes);
        if let Some(idle) = self.idleness(control) {
            if self.active.load(Ordering::Acquire) == 0 {
                self.idle.store(idle as u8, Ordering::Release);
            }
            lanes.meter.idle(idle, now);
            return Err(self.finish(&lanes));
        }
        let count = self.run_length(self.input.ready(), lanes.free.len()).min(self.output.room());
        let Some((lane, mut items)) = lanes.free.pop() else { return Err(StepOutcome::Nothing) };
        let was_full = self.input.room() == 0;
        self.input.pop_into(count, &mut items);
        if items.is_empty() {
            lanes.free.push((lane, items));
            return Err(StepOutcome::Nothing);
        }
        let place = if self.options.ordered {
            self.output.reserve(items.len())
        } else {
            self.output.promise(items.len());
            0
        };
        self.active.fetch_add(1, Ordering::AcqRel);
        self.idle.store(WORKS, Ordering::Release);
        lanes.meter.begin(now);
        drop(lanes);
        if was_full {
            control.signals.bell.ring();
        }
        Ok(Run { lane, items, place, began: now })
    }

    /// How many of `ready` items a thread takes while `free` lanes are free.
    fn run_length(&self, ready: usize, free: usize) -> usize {
        let item_ns = self.item.ns();
        let quick = usize::try_from(nanoseconds(LONG) / item_ns).unwrap_or(usize::MAX).clamp(1, RUN_MAX);
        if item_ns < SHARED_ITEM_NS_MIN {
            return quick.min(ready);
        }
        let share = ready.div_ceil(free.max(1));
        let part = usize::try_from(PART_NS_MIN.div_ceil(item_ns)).unwrap_or(usize::MAX);
        quick.min(share.max(part)).min(ready)
    }

    /// Ends the output when no item is left and none can come.
    fn finish(&self, lanes: &Lanes<T>) -> StepOutcome {
        if self.input.is_finished() && lanes.free.len() == self.lanes_max {
            self.output.end();
            self.done.store(true, Ordering::Release);
            return StepOutcome::Done;
        }
        StepOutcome::Nothing
    }

    fn release(&self, run: Run<T>, count: usize, control: &Control) {
        let Run { lane, items, began, .. } = run;
        let now = control.now();
        let mut lanes = lock(&self.lanes);
        lanes.free.push((lane, items));
        lanes.meter.end(now);
        self.item.note(nanoseconds(now.saturating_duration_since(began)) / count.max(1) as u64);
        if self.active.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.idle.store(Idle::Held as u8, Ordering::Release);
        }
        drop(lanes);
        StageCounters::add(&self.counts.taken, count as u64);
    }

    /// The closure's output for one item, after the stage's policy; `None` if the item is left out.
    fn apply(&self, lane: usize, item: &mut Item<T>, control: &Control) -> Option<U> {
        let mut attempts = 0_u32;
        loop {
            item.value.as_ref()?;
            if control.is_stopped() {
                discard(item.value.take());
                StageCounters::add(&self.counts.dropped, 1);
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
                    StageCounters::add(counter, 1);
                    discard(item.value.take());
                    return output;
                }
                Err(cause) => cause,
            };
            match control.judge(&self.options.policy, attempts, &cause, item.value.is_some()) {
                Verdict::Again(wait) => {
                    StageCounters::add(&self.counts.retried, 1);
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

/// The message of a program's own error.
pub(crate) fn told(error: BoxError) -> Cause {
    let reason = contain(|| error.to_string()).unwrap_or_else(|panic| panic);
    discard(error);
    Cause::Error(reason)
}

impl<T: Send + 'static, U: Send + 'static, F: ItemFn<T, U>> Stage for Parallel<T, U, F> {
    fn step(&self, control: &Control) -> StepOutcome {
        if self.done.load(Ordering::Acquire) {
            return StepOutcome::Done;
        }
        let mut run = match self.claim(control) {
            Ok(run) => run,
            Err(step) => return step,
        };
        let count = run.items.len();
        for (offset, item) in run.items.iter_mut().enumerate() {
            let value = self.apply(run.lane, item, control);
            let output = item.with(value);
            let was_empty = self.output.ready() == 0;
            if self.options.ordered {
                self.output.fill(run.place + offset as u64, output);
            } else {
                self.output.fulfil(output);
            }
            if was_empty && offset + 1 < count {
                control.signals.bell.ring();
            }
        }
        run.items.clear();
        self.release(run, count, control);
        StepOutcome::Moved
    }

    fn wanted(&self, control: &Control) -> StageDemand {
        if self.done.load(Ordering::Acquire) || control.signals.is_paused() {
            return StageDemand::NOTHING;
        }
        let active = self.active.load(Ordering::Acquire);
        if active == 0 && self.input.is_finished() {
            return StageDemand { threads: 1, time_ns: 0 };
        }
        let items = self.input.ready().min(self.output.room());
        let threads = items.min(self.lanes_max.saturating_sub(active));
        let is_worth_it = threads > 0 && self.item.ns() >= SHARED_ITEM_NS_MIN;
        let time_ns = if is_worth_it { self.item.ns().saturating_mul(items as u64) } else { 0 };
        StageDemand { threads, time_ns }
    }

    fn is_slow(&self, control: &Control) -> bool {
        self.item.is_long() && self.wanted(control).threads > 0
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
        StageCounters::add(&self.counts.dropped, self.input.abandon());
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
