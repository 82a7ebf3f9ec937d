//! A stage that one thread at a time works in: sources, sinks, and what joins, splits or counts items.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::control::{Control, lock};
use super::error::{Cause, PipelineError};
use super::meter::{Counts, Idle, Meter};
use super::options::StageOptions;
use super::report::StageReport;
use super::ring::Ring;
use super::stage::{Stage, Step, summary};
use super::watch::Watch;
use crate::foreign::contain;
use crate::time::sooner;

/// How many items a body moves before others get their turn.
pub(crate) const TURN_MAX: usize = 32;
/// How long a body that calls a program's code goes on before others get their turn.
pub(crate) const TURN_TIME: Duration = Duration::from_micros(20);

/// What a serial stage does.
pub(crate) trait Body: Send + 'static {
    /// Moves some items, at most [`TURN_MAX`].
    fn advance(&mut self, stage: &Face<'_>) -> Advance;

    /// When it must be called though nothing else happens.
    fn alarm(&self) -> Option<Instant> {
        None
    }

    /// Lets go of everything it holds; returns how many items that were.
    fn abandon(&mut self) -> u64;

    /// How many items it holds.
    fn holds(&self) -> u64 {
        0
    }
}

/// What a body knows of its stage and run.
pub(crate) struct Face<'a> {
    pub(crate) name: &'a str,
    pub(crate) counts: &'a Counts,
    pub(crate) control: &'a Control,
    watch: &'a Watch,
}

impl Face<'_> {
    /// Calls a program's code for an item, and draws it. A panic becomes its message.
    pub(crate) fn call<R>(&self, item: u64, call: impl FnOnce() -> R) -> Result<R, String> {
        self.watch.call(0, item, self.control, call)
    }

    /// [`Face::call`] of what is no work on an item by itself.
    pub(crate) fn call_untraced<R>(&self, item: u64, call: impl FnOnce() -> R) -> Result<R, String> {
        self.watch.call_untraced(0, item, self.control, call)
    }
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advance {
    Moved,
    Starved,
    Blocked,
    /// Nothing will come any more. What it gives has been ended.
    Finished,
}

/// What the rings and wakers of a serial stage say, by a look that takes no lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    Ready,
    Starved,
    Blocked,
}

/// Tells how it looks, and fills in a report's queue.
pub(crate) trait Glance: Send + Sync + 'static {
    fn look(&self, control: &Control) -> Look;

    fn queue(&self, _report: &mut StageReport) {}

    /// How many items wait to be taken.
    fn waiting(&self) -> u64 {
        0
    }
}

/// Where a stage takes its items from: a ring, or two whose items are taken in pairs.
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

/// Where a stage's items go: a ring, two of which each gets every item, or nowhere.
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

/// How a stage between rings looks.
pub(crate) struct Between<I, O> {
    pub(crate) input: I,
    pub(crate) output: O,
}

impl<I: Inlet, O: Outlet> Glance for Between<I, O> {
    fn look(&self, _control: &Control) -> Look {
        if self.output.room() == 0 {
            Look::Blocked
        } else if self.input.ready() > 0 || self.input.is_finished() {
            Look::Ready
        } else {
            Look::Starved
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
    /// Held for as long as a thread is inside, which may be inside a program's code.
    body: Mutex<B>,
    /// Held for a moment.
    meter: Mutex<Meter>,
    /// What the body said last of when it must be called; held for a moment.
    alarm: Mutex<Option<Instant>>,
    watch: Watch,
    counts: Counts,
    done: AtomicBool,
}

impl<B: Body, G: Glance> Serial<B, G> {
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
            meter: Mutex::new(Meter::new(now)),
            alarm: Mutex::new(None),
            watch: Watch::new(index, options.time_max, 1, now),
            counts: Counts::default(),
            done: AtomicBool::new(false),
        }
    }

    /// Notes when the body must be called next. The thread that is here may go on into a program's code, so that another one
    /// must know.
    fn note_alarm(&self, alarm: Option<Instant>, control: &Control) {
        let before = std::mem::replace(&mut *lock(&self.alarm), alarm);
        if alarm.is_some_and(|alarm| before.is_none_or(|before| alarm < before)) {
            control.signals.bell.ring_for_time();
        }
    }

    fn idle(&self, idle: Idle, control: &Control) -> Step {
        let mut meter = lock(&self.meter);
        if meter.differs(idle) {
            meter.idle(idle, control.now());
        }
        Step::Nothing
    }
}

impl<B: Body, G: Glance> Stage for Serial<B, G> {
    fn step(&self, control: &Control) -> Step {
        if self.done.load(Ordering::Acquire) {
            return Step::Done;
        }
        let Ok(mut body) = self.body.try_lock() else { return Step::Nothing };
        if control.signals.is_paused() {
            return self.idle(Idle::Held, control);
        }
        let now = control.now();
        if body.alarm().is_none_or(|alarm| now < alarm) {
            match self.glance.look(control) {
                Look::Ready => {}
                Look::Starved => return self.idle(Idle::Starved, control),
                Look::Blocked => return self.idle(Idle::Blocked, control),
            }
        }
        lock(&self.meter).begin(now);
        let face = Face { name: &self.name, counts: &self.counts, control, watch: &self.watch };
        let advance = contain(|| body.advance(&face));
        lock(&self.meter).end(control.now());
        self.note_alarm(body.alarm(), control);
        drop(body);
        match advance {
            Ok(Advance::Moved) => Step::Moved,
            // Whoever came while this thread was inside relies on it.
            Ok(_) if advance != Ok(Advance::Finished) && self.wants(control) > 0 => Step::Moved,
            Ok(Advance::Starved) => self.idle(Idle::Starved, control),
            Ok(Advance::Blocked) => self.idle(Idle::Blocked, control),
            Ok(Advance::Finished) => {
                self.done.store(true, Ordering::Release);
                Step::Done
            }
            // Bodies contain what is foreign; this is for what they do not expect.
            Err(message) => {
                let (stage, item) = (self.name.clone(), self.counts.taken.load(Ordering::Relaxed));
                let cause = Cause::Panicked(message);
                control.signals.stop(PipelineError::Failed { stage, item, attempts: 1, cause });
                Step::Nothing
            }
        }
    }

    fn wants(&self, control: &Control) -> usize {
        let quiet = self.done.load(Ordering::Acquire) || control.signals.is_paused();
        usize::from(!quiet && self.glance.look(control) == Look::Ready)
    }

    fn is_heavy(&self) -> bool {
        self.heavy
    }

    fn threads_max(&self) -> usize {
        1
    }

    fn alarm(&self, control: &Control, now: Instant) -> Option<Instant> {
        // Without room nothing can be given, whatever the time; whoever makes room looks here.
        let due = if self.glance.look(control) == Look::Blocked { None } else { *lock(&self.alarm) };
        sooner(due, self.watch.alarm(now))
    }

    fn hung(&self, now: Instant) -> Option<(u64, Duration)> {
        self.watch.hung(now)
    }

    fn abandon(&self) {
        if let Ok(mut body) = self.body.try_lock() {
            Counts::add(&self.counts.dropped, body.abandon());
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
