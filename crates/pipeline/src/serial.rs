//! A stage in which one thread at a time works: sources, sinks, and stages that join, split or
//! count items.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use panoply_lockfree::foreign::contain;
use panoply_lockfree::ring::Ring;
use panoply_runtime::time::{nanoseconds, sooner};

use super::control::{Control, lock};
use super::error::{Cause, PipelineError};
use super::meter::{Idle, Meter, StageCounters};
use super::options::StageOptions;
use super::report::StageReport;
use super::stage::{LONG, Pace, SHARED_ITEM_NS_MIN, Stage, StageDemand, StepOutcome, summary};
use super::watch::Watch;

/// How many items a body moves before other stages get their turn.
pub(crate) const TURN_MAX: usize = 32;
/// How long a body that calls a program's code goes on before other stages get their turn.
pub(crate) const TURN_TIME: Duration = LONG;

/// The work of a serial stage.
pub(crate) trait Body: Send + 'static {
    /// Moves some items, at most [`TURN_MAX`].
    fn advance(&mut self, stage: &StageContext<'_>) -> Advance;

    /// When the body must be called even if nothing else happens.
    fn alarm(&self) -> Option<Instant> {
        None
    }

    /// Discards everything that the body holds, and returns the number of its items.
    fn abandon(&mut self) -> u64;

    /// How many items the body holds.
    fn holds(&self) -> u64 {
        0
    }
}

/// A body's view of its stage and run.
pub(crate) struct StageContext<'a> {
    pub(crate) name: &'a str,
    pub(crate) counts: &'a StageCounters,
    pub(crate) control: &'a Control,
    watch: &'a Watch,
}

impl StageContext<'_> {
    /// Calls a program's code for an item, and records a span in the trace. A panic becomes its
    /// message.
    pub(crate) fn call<R>(&self, item: u64, call: impl FnOnce() -> R) -> Result<R, String> {
        self.watch.call(0, item, self.control, call)
    }

    /// [`StageContext::call`] without a span, for a call that is not work on a single item.
    pub(crate) fn call_untraced<R>(&self, item: u64, call: impl FnOnce() -> R) -> Result<R, String> {
        self.watch.call_untraced(0, item, self.control, call)
    }
}

/// The result of `Body::advance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    Moved,
    Starved,
    Blocked,
    /// No more items will come, and the output has been ended.
    Finished,
}

/// The state of a serial stage's rings and wakers, read without a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingState {
    Ready,
    Starved,
    Blocked,
}

/// Reads the state of a stage's rings, and fills in the queue of a report.
pub(crate) trait ObserveRings: Send + Sync + 'static {
    fn look(&self, control: &Control) -> RingState;

    fn queue(&self, _report: &mut StageReport) {}

    /// How many items wait to be taken.
    fn waiting(&self) -> u64 {
        0
    }
}

/// The input of a stage: a ring, or two whose items are taken in pairs.
pub(crate) trait Inlet: Send + Sync + 'static {
    fn ready(&self) -> usize;
    fn is_finished(&self) -> bool;
    fn used(&self) -> usize;
    fn queue(&self, report: &mut StageReport);
}

impl<T: Send + 'static> Inlet for Arc<Ring<T>> {
    fn ready(&self) -> usize {
        Ring::ready(self)
    }

    fn is_finished(&self) -> bool {
        Ring::is_finished(self)
    }

    fn used(&self) -> usize {
        Ring::used(self)
    }

    fn queue(&self, report: &mut StageReport) {
        report.queue(self);
    }
}

impl<A: Send + 'static, B: Send + 'static> Inlet for (Arc<Ring<A>>, Arc<Ring<B>>) {
    fn ready(&self) -> usize {
        self.0.ready().min(self.1.ready())
    }

    fn is_finished(&self) -> bool {
        self.0.is_finished() || self.1.is_finished()
    }

    fn used(&self) -> usize {
        self.0.used().max(self.1.used())
    }

    fn queue(&self, report: &mut StageReport) {
        report.queue(&self.0);
    }
}

/// The output of a stage: a ring, two rings that each get every item, or nothing.
pub(crate) trait Outlet: Send + Sync + 'static {
    fn room(&self) -> usize;
}

impl<T: Send + 'static> Outlet for Arc<Ring<T>> {
    fn room(&self) -> usize {
        Ring::room(self)
    }
}

impl<A: Send + 'static, B: Send + 'static> Outlet for (Arc<Ring<A>>, Arc<Ring<B>>) {
    fn room(&self) -> usize {
        self.0.room().min(self.1.room())
    }
}

impl Outlet for () {
    fn room(&self) -> usize {
        usize::MAX
    }
}

/// The glance of a stage between rings.
pub(crate) struct RingPair<I, O> {
    pub(crate) input: I,
    pub(crate) output: O,
}

impl<I: Inlet, O: Outlet> ObserveRings for RingPair<I, O> {
    fn look(&self, _control: &Control) -> RingState {
        if self.output.room() == 0 {
            RingState::Blocked
        } else if self.input.ready() > 0 || self.input.is_finished() {
            RingState::Ready
        } else {
            RingState::Starved
        }
    }

    fn queue(&self, report: &mut StageReport) {
        self.input.queue(report);
    }

    fn waiting(&self) -> u64 {
        self.input.used() as u64
    }
}

pub(crate) struct Serial<B, G> {
    name: String,
    heavy: bool,
    glance: G,
    /// Locked while a thread is inside, possibly inside a program's code.
    body: Mutex<B>,
    /// Whether a thread is inside.
    inside: AtomicBool,
    /// How long a turn takes.
    turn: Pace,
    /// Locked only for a moment.
    meter: Mutex<Meter>,
    /// The body's last alarm. Locked only for a moment.
    alarm: Mutex<Option<Instant>>,
    watch: Watch,
    counts: StageCounters,
    done: AtomicBool,
}

impl<B: Body, G: ObserveRings> Serial<B, G> {
    pub(crate) fn new(
        index: usize,
        options: &StageOptions,
        heavy: bool,
        body: B,
        glance: G,
        now: Instant,
    ) -> Serial<B, G> {
        Serial {
            name: options.name.clone(),
            heavy,
            glance,
            body: Mutex::new(body),
            inside: AtomicBool::new(false),
            turn: Pace::new(),
            meter: Mutex::new(Meter::new(now)),
            alarm: Mutex::new(None),
            watch: Watch::new(index, options.time_max, 1, now),
            counts: StageCounters::default(),
            done: AtomicBool::new(false),
        }
    }

    /// Notes when the body must be called next. The calling thread may go on into a program's code,
    /// so another thread must know this time.
    fn note_alarm(&self, alarm: Option<Instant>, control: &Control) {
        let before = std::mem::replace(&mut *lock(&self.alarm), alarm);
        if alarm.is_some_and(|alarm| before.is_none_or(|before| alarm < before)) {
            control.signals.bell.ring_for_time();
        }
    }

    /// Whether a thread would find something to do. This check takes no lock.
    fn wants(&self, control: &Control) -> bool {
        let quiet = self.done.load(Ordering::Acquire) || control.signals.is_paused();
        !quiet && !self.inside.load(Ordering::Acquire) && self.glance.look(control) == RingState::Ready
    }

    fn idle(&self, idle: Idle, control: &Control) -> StepOutcome {
        let mut meter = lock(&self.meter);
        if meter.differs(idle) {
            meter.idle(idle, control.now());
        }
        StepOutcome::Nothing
    }
}

impl<B: Body, G: ObserveRings> Stage for Serial<B, G> {
    fn step(&self, control: &Control) -> StepOutcome {
        if self.done.load(Ordering::Acquire) {
            return StepOutcome::Done;
        }
        let Ok(mut body) = self.body.try_lock() else { return StepOutcome::Nothing };
        if control.signals.is_paused() {
            return self.idle(Idle::Held, control);
        }
        let now = control.now();
        if body.alarm().is_none_or(|alarm| now < alarm) {
            match self.glance.look(control) {
                RingState::Ready => {}
                RingState::Starved => return self.idle(Idle::Starved, control),
                RingState::Blocked => return self.idle(Idle::Blocked, control),
            }
        }
        lock(&self.meter).begin(now);
        self.inside.store(true, Ordering::Release);
        let face = StageContext { name: &self.name, counts: &self.counts, control, watch: &self.watch };
        let advance = contain(|| body.advance(&face));
        let end = control.now();
        lock(&self.meter).end(end);
        self.turn.note(nanoseconds(end.saturating_duration_since(now)));
        self.note_alarm(body.alarm(), control);
        self.inside.store(false, Ordering::Release);
        drop(body);
        match advance {
            Ok(Advance::Moved) => StepOutcome::Moved,
            // Threads that came while this thread was inside rely on it.
            Ok(_) if advance != Ok(Advance::Finished) && self.wants(control) => StepOutcome::Moved,
            Ok(Advance::Starved) => self.idle(Idle::Starved, control),
            Ok(Advance::Blocked) => self.idle(Idle::Blocked, control),
            Ok(Advance::Finished) => {
                self.done.store(true, Ordering::Release);
                StepOutcome::Done
            }
            // Bodies contain panics of foreign code; this handles unexpected ones.
            Err(message) => {
                let (stage, item) = (self.name.clone(), self.counts.taken.load(Ordering::Relaxed));
                let cause = Cause::Panicked(message);
                control.signals.stop(PipelineError::Failed { stage, item, attempts: 1, cause });
                StepOutcome::Nothing
            }
        }
    }

    fn wanted(&self, control: &Control) -> StageDemand {
        if !self.wants(control) {
            return StageDemand::NOTHING;
        }
        let is_worth_it = self.turn.ns() >= SHARED_ITEM_NS_MIN * TURN_MAX as u64;
        StageDemand { threads: 1, time_ns: if is_worth_it { self.turn.ns() } else { 0 } }
    }

    fn is_slow(&self, control: &Control) -> bool {
        self.turn.is_long() && self.wants(control)
    }

    fn is_heavy(&self) -> bool {
        self.heavy
    }

    fn threads_max(&self) -> usize {
        1
    }

    fn alarm(&self, control: &Control, now: Instant) -> Option<Instant> {
        // Without room no item can be output, even when the alarm is due; the thread that makes
        // room looks here.
        let due = if self.glance.look(control) == RingState::Blocked { None } else { *lock(&self.alarm) };
        sooner(due, self.watch.alarm(now))
    }

    fn hung(&self, now: Instant) -> Option<(u64, Duration)> {
        self.watch.hung(now)
    }

    fn abandon(&self) {
        if let Ok(mut body) = self.body.try_lock() {
            StageCounters::add(&self.counts.dropped, body.abandon());
        }
    }

    fn holds(&self) -> u64 {
        self.glance.waiting() + self.body.try_lock().map_or(1, |body| body.holds())
    }

    fn report(&self, now: Instant, reports: &mut Vec<StageReport>) {
        let times = lock(&self.meter).read(now);
        let mut report = summary(&self.name, &self.counts, times, 1);
        self.glance.queue(&mut report);
        reports.push(report);
    }

    fn name(&self) -> &str {
        &self.name
    }
}
