//! The state that all threads of a run share: whether it goes on, why it ended, the time, the dead
//! letters and the trace.

use std::any::Any;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use panoply_core::clock::Clock;
use panoply_lockfree::bell::Bell;
use panoply_lockfree::foreign::discard;
use panoply_lockfree::process::Process;
use panoply_lockfree::room::Room;
use panoply_runtime::time::{later, sooner};

use super::error::{Cause, DeadLetter, PipelineError};
use super::meter::StageCounters;
use super::options::{ErrorPolicy, Finally, RunChoices};
use super::report::Report;
use super::trace::Tracer;

const PAUSED: u8 = 1;
const DRAINING: u8 = 2;
const STOPPED: u8 = 4;

/// The longest part of a wait between two attempts after which the end of the run is checked.
const WAIT_SLICE: Duration = Duration::from_millis(1);

/// The state that channel ends share with a run, from before it begins until after it ends.
#[derive(Default)]
pub(crate) struct Signals {
    flags: AtomicU8,
    failure: Mutex<Option<PipelineError>>,
    pub(crate) bell: Bell,
    pub(crate) ending: Mutex<Ending>,
    /// The waiters for the end: woken when the run was stopped, and when its report is
    /// available.
    pub(crate) ended: Room,
    /// The process that has the run's threads.
    pub(crate) process: Process,
}

/// How a run ends.
#[derive(Default)]
pub(crate) struct Ending {
    /// Threads that have not ended yet.
    pub(crate) threads: usize,
    /// The report, once everything has been released.
    pub(crate) report: Option<Report>,
}

impl Signals {
    /// Ends the run as soon as possible. The first error is the one that is reported.
    pub(crate) fn stop(&self, error: PipelineError) {
        {
            let mut failure = lock(&self.failure);
            if self.is_stopped() {
                return;
            }
            failure.get_or_insert(error);
            self.flags.fetch_or(STOPPED, Ordering::SeqCst);
        }
        self.bell.ring_all();
        self.ended.wake_all();
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.flags.load(Ordering::Acquire) & STOPPED != 0
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.flags.load(Ordering::Acquire) & PAUSED != 0
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.flags.load(Ordering::Acquire) & DRAINING != 0
    }

    pub(crate) fn pause(&self, paused: bool) {
        if paused {
            self.flags.fetch_or(PAUSED, Ordering::SeqCst);
        } else {
            self.flags.fetch_and(!PAUSED, Ordering::SeqCst);
        }
        self.bell.ring_all();
    }

    /// Stops asking the sources for items.
    pub(crate) fn drain(&self) {
        self.flags.fetch_or(DRAINING, Ordering::SeqCst);
        self.bell.ring_all();
    }

    pub(crate) fn failure(&self) -> Option<PipelineError> {
        lock(&self.failure).clone()
    }
}

/// The shared state of a run. See the module.
pub(crate) struct Control {
    pub(crate) signals: Arc<Signals>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) started: Instant,
    pub(crate) deadline: Option<Instant>,
    pub(crate) choices: RunChoices,
    pub(crate) tracer: Option<Tracer>,
    dead: Mutex<Vec<DeadLetter>>,
}

/// The verdict on an item that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Try again after the wait.
    Again(Duration),
    /// The item has failed, and is not tried again.
    Over(Finally),
}

/// An item that failed, for messages.
#[derive(Clone, Copy)]
pub(crate) struct Failure<'a> {
    pub(crate) stage: &'a str,
    pub(crate) item: u64,
    pub(crate) attempts: u32,
}

impl Control {
    pub(crate) fn new(signals: Arc<Signals>, clock: Arc<dyn Clock>, choices: RunChoices) -> Control {
        let started = clock.now();
        let deadline = choices.time_max.map(|time| later(started, time));
        let tracer = (choices.trace_spans_max > 0).then(|| Tracer::new(started, choices.trace_spans_max));
        Control { signals, clock, started, deadline, choices, tracer, dead: Mutex::new(Vec::new()) }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.signals.is_stopped()
    }

    /// The deadline of an item, if there is one: the item's own, or the run's.
    pub(crate) fn deadline_of(&self, born: Instant) -> Option<Instant> {
        sooner(self.item_deadline_of(born), self.deadline)
    }

    /// The deadline of an item by its own time limit, regardless of the run's.
    pub(crate) fn item_deadline_of(&self, born: Instant) -> Option<Instant> {
        self.choices.item_time_max.map(|time| later(born, time))
    }

    /// The failure cause, if an item has been in flight for too long.
    pub(crate) fn lateness(&self, born: Instant) -> Option<Cause> {
        let after = self.choices.item_time_max?;
        (self.now().saturating_duration_since(born) > after).then_some(Cause::Late { after })
    }

    /// The policy's verdict on an item that failed this many times. A late item is not retried: it
    /// would still be late.
    pub(crate) fn judge(&self, policy: &ErrorPolicy, attempts: u32, cause: &Cause, can_repeat: bool) -> Verdict {
        let again = can_repeat && attempts <= policy.retries && !matches!(cause, Cause::Late { .. });
        if again && !self.is_stopped() { Verdict::Again(policy.retry_wait) } else { Verdict::Over(policy.finally) }
    }

    /// Handles an item that failed and is not tried again.
    pub(crate) fn give_up<T: Send + 'static>(
        &self,
        failure: Failure<'_>,
        cause: Cause,
        finally: Finally,
        value: Option<T>,
        counts: &StageCounters,
    ) {
        let Failure { stage, item, attempts } = failure;
        let stage = stage.to_owned();
        match finally {
            Finally::Stop => {
                discard(value);
                StageCounters::add(&counts.dropped, 1);
                self.signals.stop(PipelineError::Failed { stage, item, attempts, cause });
            }
            Finally::Skip => {
                discard(value);
                StageCounters::add(&counts.skipped, 1);
            }
            Finally::DeadLetter => {
                let dead_letters_max = self.choices.dead_letters_max;
                let mut dead = lock(&self.dead);
                if dead.len() >= dead_letters_max {
                    drop(dead);
                    discard(value);
                    StageCounters::add(&counts.dropped, 1);
                    return self.signals.stop(PipelineError::DeadLettersFull { stage, item, dead_letters_max, cause });
                }
                let value = value.map(|value| Box::new(value) as Box<dyn Any + Send>);
                dead.push(DeadLetter { stage, item, attempts, cause, value });
                drop(dead);
                StageCounters::add(&counts.dead, 1);
            }
        }
    }

    pub(crate) fn take_dead_letters(&self) -> Vec<DeadLetter> {
        std::mem::take(&mut *lock(&self.dead))
    }

    /// Waits before another attempt. Ends early if the run ends.
    pub(crate) fn wait(&self, time: Duration) {
        let mut left = time;
        while !left.is_zero() && !self.is_stopped() {
            let slice = left.min(WAIT_SLICE);
            self.clock.sleep(slice);
            left -= slice;
        }
    }
}

/// Locks a mutex whose holder may have panicked: the data it guards is consistent all the same.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
