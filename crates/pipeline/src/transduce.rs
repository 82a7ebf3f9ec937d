//! Stages that output another number of items than they take: batches, their inverse, and windows.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use panoply_lockfree::foreign::discard;
use panoply_lockfree::ring::{Item, Ring};
use panoply_runtime::time::later;

use super::control::{Failure, Verdict};
use super::error::Cause;
use super::meter::StageCounters;
use super::options::ErrorPolicy;
use super::serial::{Advance, Body, StageContext, TURN_MAX};

/// Takes items in and gives items out, in order. Each output has the birth time of the oldest item
/// that went into it.
pub(crate) trait Transducer<T, U>: Send + 'static {
    /// Takes an item in. Only called when `pull` has nothing left.
    fn push(&mut self, born: Instant, value: T);

    /// The next item out, if there is one.
    fn pull(&mut self) -> Option<(Instant, U)>;

    /// Called when no more items come in: the kept items must go out.
    fn finish(&mut self);

    /// When the kept items must go out even if nothing comes in.
    fn due(&self) -> Option<Instant> {
        None
    }

    /// How many items are kept.
    fn holds(&self) -> u64;
}

/// Joins `size` items. Batches are smaller at the end, and when the oldest item has waited for
/// `wait_max`.
pub(crate) struct Batch<T> {
    size: usize,
    wait_max: Option<Duration>,
    kept: Vec<T>,
    oldest: Option<Instant>,
    flush: bool,
}

impl<T> Batch<T> {
    pub(crate) fn new(size: usize, wait_max: Option<Duration>) -> Batch<T> {
        Batch { size, wait_max, kept: Vec::new(), oldest: None, flush: false }
    }
}

impl<T: Send + 'static> Transducer<T, Vec<T>> for Batch<T> {
    fn push(&mut self, born: Instant, value: T) {
        self.oldest.get_or_insert(born);
        self.kept.push(value);
    }

    fn pull(&mut self) -> Option<(Instant, Vec<T>)> {
        let full = self.kept.len() >= self.size || std::mem::take(&mut self.flush);
        if !full || self.kept.is_empty() {
            return None;
        }
        // The next batch is likely as large as this one.
        let next = Vec::with_capacity(self.kept.len());
        let batch = std::mem::replace(&mut self.kept, next);
        Some((self.oldest.take()?, batch))
    }

    fn finish(&mut self) {
        self.flush = true;
    }

    fn due(&self) -> Option<Instant> {
        Some(later(self.oldest?, self.wait_max?))
    }

    fn holds(&self) -> u64 {
        self.kept.len() as u64
    }
}

/// Outputs the elements of an item, one by one.
pub(crate) struct Spread<F, I> {
    spread: F,
    current: Option<(Instant, I)>,
}

impl<F, I> Spread<F, I> {
    pub(crate) fn new(spread: F) -> Spread<F, I> {
        Spread { spread, current: None }
    }
}

impl<T, I, F> Transducer<T, I::Item> for Spread<F, I>
where
    I: Iterator + Send + 'static,
    F: FnMut(T) -> I + Send + 'static,
{
    fn push(&mut self, born: Instant, value: T) {
        self.current = Some((born, (self.spread)(value)));
    }

    fn pull(&mut self) -> Option<(Instant, I::Item)> {
        let (born, items) = self.current.as_mut()?;
        let next = items.next().map(|item| (*born, item));
        if next.is_none() {
            self.current = None;
        }
        next
    }

    fn finish(&mut self) {}

    fn holds(&self) -> u64 {
        u64::from(self.current.is_some())
    }
}

/// The last `size` items after every `step` items.
pub(crate) struct Window<T> {
    size: usize,
    step: usize,
    kept: VecDeque<(Instant, T)>,
    /// How many more items must come before the next window is due.
    missing: usize,
}

impl<T> Window<T> {
    pub(crate) fn new(size: usize, step: usize) -> Window<T> {
        Window { size, step, kept: VecDeque::new(), missing: size }
    }
}

impl<T: Clone + Send + 'static> Transducer<T, Vec<T>> for Window<T> {
    fn push(&mut self, born: Instant, value: T) {
        if self.kept.len() == self.size {
            self.kept.pop_front();
        }
        self.kept.push_back((born, value));
        self.missing = self.missing.saturating_sub(1);
    }

    fn pull(&mut self) -> Option<(Instant, Vec<T>)> {
        if self.missing > 0 {
            return None;
        }
        self.missing = self.step;
        let born = self.kept.front()?.0;
        Some((born, self.kept.iter().map(|(_, value)| value.clone()).collect()))
    }

    fn finish(&mut self) {}

    fn holds(&self) -> u64 {
        // Items that are kept for later windows have been output before, unless no window was full.
        0
    }
}

pub(crate) struct TransduceBody<T, U, X> {
    /// `None` after the last item.
    transducer: Option<X>,
    input: Arc<Ring<T>>,
    output: Arc<Ring<U>>,
    policy: ErrorPolicy,
    given: u64,
    finishing: bool,
    types: PhantomData<fn(T) -> U>,
}

impl<T: Send + 'static, U: Send + 'static, X: Transducer<T, U>> TransduceBody<T, U, X> {
    pub(crate) fn new(transducer: X, input: Arc<Ring<T>>, output: Arc<Ring<U>>, policy: ErrorPolicy) -> Self {
        TransduceBody {
            transducer: Some(transducer),
            input,
            output,
            policy,
            given: 0,
            finishing: false,
            types: PhantomData,
        }
    }

    /// Outputs the next item, if there is one. Returns false if there is none, or if the program's
    /// code failed.
    fn give(&mut self, stage: &StageContext<'_>) -> bool {
        let taken = stage.counts.taken.load(Ordering::Relaxed).saturating_sub(1);
        let pulled = stage.call_untraced(taken, || self.transducer.as_mut().and_then(Transducer::pull));
        let Some((born, value)) = self.checked(pulled, stage).flatten() else { return false };
        let item = Item { number: self.given, born, value: Some(value) };
        self.given += 1;
        let was_empty = self.output.ready() == 0;
        if let Err(item) = self.output.push(item) {
            discard(item);
            StageCounters::add(&stage.counts.dropped, 1);
        }
        if was_empty {
            stage.control.signals.bell.ring();
        }
        StageCounters::add(&stage.counts.given, 1);
        true
    }

    fn take(&mut self, item: Item<T>, stage: &StageContext<'_>) {
        let Some(value) = item.value else { return };
        StageCounters::add(&stage.counts.taken, 1);
        let Some(transducer) = &mut self.transducer else { return discard(value) };
        let pushed = stage.call(item.number, || transducer.push(item.born, value));
        self.checked(pushed, stage);
    }

    fn checked<R>(&self, called: Result<R, String>, stage: &StageContext<'_>) -> Option<R> {
        let message = match called {
            Ok(result) => return Some(result),
            Err(message) => message,
        };
        let cause = Cause::Panicked(message);
        let item = stage.counts.taken.load(Ordering::Relaxed).saturating_sub(1);
        if let Verdict::Over(finally) = stage.control.judge(&self.policy, u32::MAX, &cause, false) {
            let failure = Failure { stage: stage.name, item, attempts: 1 };
            stage.control.give_up(failure, cause, finally, None::<T>, stage.counts);
        }
        None
    }
}

impl<T: Send + 'static, U: Send + 'static, X: Transducer<T, U>> Body for TransduceBody<T, U, X> {
    fn advance(&mut self, stage: &StageContext<'_>) -> Advance {
        let mut moved = false;
        for _ in 0..TURN_MAX {
            if stage.control.is_stopped() || self.output.room() == 0 {
                return if moved { Advance::Moved } else { Advance::Blocked };
            }
            if self.give(stage) {
                moved = true;
                continue;
            }
            let was_full = self.input.room() == 0;
            if let Some(item) = self.input.pop() {
                if was_full {
                    stage.control.signals.bell.ring();
                }
                self.take(item, stage);
                moved = true;
            } else if self.input.is_finished() {
                if std::mem::replace(&mut self.finishing, true) {
                    discard(self.transducer.take());
                    self.output.end();
                    return Advance::Finished;
                }
                self.transducer.iter_mut().for_each(Transducer::finish);
            } else if self.alarm().is_some_and(|due| stage.control.now() >= due) {
                self.transducer.iter_mut().for_each(Transducer::finish);
            } else {
                return if moved { Advance::Moved } else { Advance::Starved };
            }
        }
        Advance::Moved
    }

    fn alarm(&self) -> Option<Instant> {
        self.transducer.as_ref()?.due()
    }

    fn abandon(&mut self) -> u64 {
        let kept = self.holds();
        discard(self.transducer.take());
        self.output.end();
        kept + self.input.abandon()
    }

    fn holds(&self) -> u64 {
        self.transducer.as_ref().map_or(0, Transducer::holds)
    }
}
