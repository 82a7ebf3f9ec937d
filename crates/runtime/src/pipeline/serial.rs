//! A stage that one thread at a time works in: sources, sinks, and what joins, splits or counts items.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::control::{Control, lock};
use super::error::{Cause, PipelineError};
use super::meter::{Counts, Idle, Meter};
use super::report::StageReport;
use super::stage::{Stage, Step, summary};
use crate::foreign::contain;

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
    pub(crate) index: usize,
    pub(crate) name: &'a str,
    pub(crate) counts: &'a Counts,
    pub(crate) control: &'a Control,
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

pub(crate) struct Serial<B, G> {
    index: usize,
    name: String,
    heavy: bool,
    glance: G,
    /// Held for as long as a thread is inside, which may be inside a program's code.
    body: Mutex<B>,
    /// Held for a moment.
    meter: Mutex<Meter>,
    /// What the body said last of when it must be called; held for a moment.
    alarm: Mutex<Option<Instant>>,
    counts: Counts,
    done: AtomicBool,
}

impl<B: Body, G: Glance> Serial<B, G> {
    pub(crate) fn new(index: usize, name: &str, heavy: bool, body: B, glance: G, now: Instant) -> Serial<B, G> {
        Serial {
            index,
            name: name.to_owned(),
            heavy,
            glance,
            body: Mutex::new(body),
            meter: Mutex::new(Meter::new(now)),
            alarm: Mutex::new(None),
            counts: Counts::default(),
            done: AtomicBool::new(false),
        }
    }

    /// Notes when the body must be called next. The thread that is here may go on into a program's code, so that another one
    /// must know.
    fn note_alarm(&self, alarm: Option<Instant>, control: &Control) {
        let before = std::mem::replace(&mut *lock(&self.alarm), alarm);
        if alarm.is_some() && alarm != before {
            control.signals.bell.ring();
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
        let face = Face { index: self.index, name: &self.name, counts: &self.counts, control };
        let advance = contain(|| body.advance(&face));
        lock(&self.meter).end(control.now());
        self.note_alarm(body.alarm(), control);
        match advance {
            Ok(Advance::Moved) => Step::Moved,
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

    fn alarm(&self, control: &Control, _now: Instant) -> Option<Instant> {
        // Without room nothing can be given, whatever the time; whoever makes room looks here.
        if self.glance.look(control) == Look::Blocked { None } else { *lock(&self.alarm) }
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
