//! The sinks of a pipeline: closures, lists and files. Channels take their items from the last
//! ring.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use panoply_lockfree::foreign::discard;
use panoply_lockfree::ring::{Item, Ring};
use panoply_runtime::worker::BoxError;

use super::control::{Failure, Verdict};
use super::error::{Cause, PipelineError};
use super::meter::StageCounters;
use super::options::ErrorPolicy;
use super::parallel::told;
use super::serial::{Advance, Body, StageContext, TURN_MAX, TURN_TIME};

/// Takes a run's items, one after the other.
pub(crate) trait Takes<T>: Send + 'static {
    /// Takes an item, or leaves it in place to be tried again.
    fn take(&mut self, item: &mut Option<T>) -> Result<(), BoxError>;

    /// Called after every item has been taken.
    fn finish(&mut self) -> Result<(), BoxError> {
        Ok(())
    }
}

/// A sink that calls a closure.
pub(crate) struct ByClosure<F>(pub(crate) F);

impl<T, F: FnMut(&mut Option<T>) -> Result<(), BoxError> + Send + 'static> Takes<T> for ByClosure<F> {
    fn take(&mut self, item: &mut Option<T>) -> Result<(), BoxError> {
        (self.0)(item)
    }
}

pub(crate) struct SinkBody<T, S> {
    pub(crate) input: Arc<Ring<T>>,
    pub(crate) sink: Option<S>,
    pub(crate) policy: ErrorPolicy,
    /// How many items have arrived.
    pub(crate) arrived: Arc<AtomicU64>,
}

impl<T: Send + 'static, S: Takes<T>> SinkBody<T, S> {
    fn take(&mut self, mut item: Item<T>, stage: &StageContext<'_>) {
        let control = stage.control;
        if item.value.is_none() {
            return;
        }
        StageCounters::add(&stage.counts.taken, 1);
        let mut attempts = 0_u32;
        loop {
            let Some(sink) = self.sink.as_mut().filter(|_| !control.is_stopped()) else {
                discard(item.value.take());
                return StageCounters::add(&stage.counts.dropped, 1);
            };
            attempts = attempts.saturating_add(1);
            let called = match control.lateness(item.born) {
                Some(late) => Err(late),
                None => match stage.call(item.number, || sink.take(&mut item.value)) {
                    Ok(Ok(())) => Ok(()),
                    Ok(Err(error)) => Err(told(error)),
                    Err(message) => Err(Cause::Panicked(message)),
                },
            };
            let Err(cause) = called else {
                self.arrived.fetch_add(1, Ordering::Relaxed);
                discard(item.value.take());
                return StageCounters::add(&stage.counts.given, 1);
            };
            match control.judge(&self.policy, attempts, &cause, item.value.is_some()) {
                Verdict::Again(wait) => {
                    StageCounters::add(&stage.counts.retried, 1);
                    control.wait(wait);
                }
                Verdict::Over(finally) => {
                    let failure = Failure { stage: stage.name, item: item.number, attempts };
                    return control.give_up(failure, cause, finally, item.value.take(), stage.counts);
                }
            }
        }
    }

    fn finish(&mut self, stage: &StageContext<'_>) -> Advance {
        let items = stage.counts.taken.load(Ordering::Relaxed);
        let finished = self.sink.as_mut().map(|sink| stage.call_untraced(items, || sink.finish()));
        let cause = match finished {
            None | Some(Ok(Ok(()))) => None,
            Some(Ok(Err(error))) => Some(told(error)),
            Some(Err(message)) => Some(Cause::Panicked(message)),
        };
        if let Some(cause) = cause {
            let failed = PipelineError::Failed { stage: stage.name.to_owned(), item: items, attempts: 1, cause };
            stage.control.signals.stop(failed);
        }
        discard(self.sink.take());
        Advance::Finished
    }
}

impl<T: Send + 'static, S: Takes<T>> Body for SinkBody<T, S> {
    fn advance(&mut self, stage: &StageContext<'_>) -> Advance {
        let start = stage.control.now();
        for turn in 0..TURN_MAX {
            let was_full = self.input.room() == 0;
            match self.input.pop() {
                Some(item) => {
                    if was_full {
                        stage.control.signals.bell.ring();
                    }
                    self.take(item, stage);
                }
                None if self.input.is_finished() => return self.finish(stage),
                None => return if turn > 0 { Advance::Moved } else { Advance::Starved },
            }
            if stage.control.now().saturating_duration_since(start) >= TURN_TIME {
                break;
            }
        }
        Advance::Moved
    }

    fn abandon(&mut self) -> u64 {
        discard(self.sink.take());
        self.input.abandon()
    }
}
