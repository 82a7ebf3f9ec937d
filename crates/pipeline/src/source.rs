//! The sources of a pipeline: iterators, and streams that are polled.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_core::Stream;
use panoply_lockfree::foreign::discard;
use panoply_lockfree::ring::{Item, Ring};
use panoply_runtime::worker::BoxError;

use super::control::{Control, Failure, Signals, Verdict};
use super::error::{Cause, PipelineError};
use super::meter::StageCounters;
use super::options::{ErrorPolicy, Finally};
use super::parallel::told;
use super::serial::{Advance, Body, ObserveRings, RingState, StageContext, TURN_MAX};

/// A source's answer to a request for an item.
type NextItem<T> = Poll<Option<Result<T, BoxError>>>;

/// A source that is asked for items, one after the other.
pub(crate) trait ItemSource<T>: Send + 'static {
    fn next(&mut self) -> NextItem<T>;
}

/// An iterator. It may block: only its own thread waits.
pub(crate) struct FromIterator<I>(pub(crate) I);

impl<T, I: Iterator<Item = Result<T, BoxError>> + Send + 'static> ItemSource<T> for FromIterator<I> {
    fn next(&mut self) -> NextItem<T> {
        Poll::Ready(self.0.next())
    }
}

/// A stream, polled when its waker was called.
pub(crate) struct FromStream<S> {
    stream: Pin<Box<S>>,
    waker: Waker,
    flag: Arc<Flag>,
}

/// Raised when a stream must be polled.
pub(crate) struct Flag {
    raised: AtomicBool,
    signals: Arc<Signals>,
}

impl Wake for Flag {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.raised.store(true, Ordering::Release);
        self.signals.bell.ring();
    }
}

impl<S> FromStream<S> {
    pub(crate) fn new(stream: S, signals: &Arc<Signals>) -> (FromStream<S>, Arc<Flag>) {
        let flag = Arc::new(Flag { raised: AtomicBool::new(true), signals: Arc::clone(signals) });
        let source =
            FromStream { stream: Box::pin(stream), waker: Waker::from(Arc::clone(&flag)), flag: Arc::clone(&flag) };
        (source, flag)
    }
}

impl<T, S: Stream<Item = T> + Send + 'static> ItemSource<T> for FromStream<S> {
    fn next(&mut self) -> NextItem<T> {
        self.flag.raised.store(false, Ordering::Release);
        let polled = self.stream.as_mut().poll_next(&mut Context::from_waker(&self.waker));
        if polled.is_ready() {
            self.flag.raised.store(true, Ordering::Release);
        }
        polled.map(|item| item.map(Ok))
    }
}

/// Asks a source for items while there is room for them.
pub(crate) struct SourceBody<T, S> {
    source: Option<S>,
    output: Arc<Ring<T>>,
    policy: ErrorPolicy,
    /// Items it gave, plus answers that were errors.
    asked: u64,
    /// Number of consecutive errors.
    failures: u32,
    taken: Arc<AtomicU64>,
}

impl<T: Send + 'static, S: ItemSource<T>> SourceBody<T, S> {
    pub(crate) fn new(source: S, output: Arc<Ring<T>>, policy: ErrorPolicy, taken: Arc<AtomicU64>) -> SourceBody<T, S> {
        SourceBody { source: Some(source), output, policy, asked: 0, failures: 0, taken }
    }

    fn finish(&mut self) -> Advance {
        discard(self.source.take());
        self.output.end();
        Advance::Finished
    }

    /// Handles an answer that is an error. The source is asked again, as often as its policy says,
    /// before the error counts.
    fn answer_failed(&mut self, cause: Cause, stage: &StageContext<'_>) {
        self.failures = self.failures.saturating_add(1);
        match stage.control.judge(&self.policy, self.failures, &cause, true) {
            Verdict::Again(wait) => {
                discard(cause);
                StageCounters::add(&stage.counts.retried, 1);
                stage.control.wait(wait);
            }
            Verdict::Over(finally) => {
                self.fail(cause, finally, stage);
                self.failures = 0;
            }
        }
    }

    /// Handles an error that counts, or a panic.
    fn fail(&mut self, cause: Cause, finally: Finally, stage: &StageContext<'_>) {
        if finally == Finally::Stop {
            let (stage_name, taken) = (stage.name.to_owned(), stage.counts.given.load(Ordering::Relaxed));
            stage.control.signals.stop(PipelineError::SourceFailed { stage: stage_name, taken, cause });
            return;
        }
        let failure = Failure { stage: stage.name, item: self.asked, attempts: self.failures.max(1) };
        stage.control.give_up(failure, cause, finally, None::<T>, stage.counts);
    }

    fn give(&mut self, value: T, stage: &StageContext<'_>) {
        self.failures = 0;
        let item = Item { number: self.asked, born: stage.control.now(), value: Some(value) };
        let was_empty = self.output.ready() == 0;
        if let Err(item) = self.output.push(item) {
            // There was room, and no other thread pushes, so this fails only if the run has ended.
            discard(item);
            StageCounters::add(&stage.counts.dropped, 1);
        }
        StageCounters::add(&stage.counts.given, 1);
        self.taken.fetch_add(1, Ordering::Relaxed);
        if was_empty {
            // The next item may take long.
            stage.control.signals.bell.ring();
        }
    }
}

impl<T: Send + 'static, S: ItemSource<T>> Body for SourceBody<T, S> {
    fn advance(&mut self, stage: &StageContext<'_>) -> Advance {
        let control = stage.control;
        for turn in 0..TURN_MAX {
            let Some(source) = self.source.as_mut().filter(|_| !control.signals.is_draining()) else {
                return self.finish();
            };
            if control.is_stopped() || self.output.room() == 0 {
                return if turn > 0 { Advance::Moved } else { Advance::Blocked };
            }
            match stage.call(self.asked, || source.next()) {
                Ok(Poll::Ready(Some(Ok(value)))) => self.give(value, stage),
                Ok(Poll::Ready(Some(Err(error)))) => self.answer_failed(told(error), stage),
                Ok(Poll::Ready(None)) => return self.finish(),
                Ok(Poll::Pending) => return if turn > 0 { Advance::Moved } else { Advance::Starved },
                Err(message) => {
                    // Answers after a panic are meaningless, so the run ends.
                    self.fail(Cause::Panicked(message), Finally::Stop, stage);
                    return Advance::Blocked;
                }
            }
            self.asked += 1;
            StageCounters::add(&stage.counts.taken, 1);
        }
        Advance::Moved
    }

    fn abandon(&mut self) -> u64 {
        discard(self.source.take());
        self.output.end();
        0
    }
}

/// The glance of a source: whether there is room, and whether a stream must be polled.
pub(crate) struct SourceRings<T> {
    pub(crate) output: Arc<Ring<T>>,
    pub(crate) flag: Option<Arc<Flag>>,
}

impl<T: Send + 'static> ObserveRings for SourceRings<T> {
    fn look(&self, control: &Control) -> RingState {
        if control.signals.is_draining() {
            RingState::Ready
        } else if self.output.room() == 0 {
            RingState::Blocked
        } else if self.flag.as_ref().is_some_and(|flag| !flag.raised.load(Ordering::Acquire)) {
            RingState::Starved
        } else {
            RingState::Ready
        }
    }
}
