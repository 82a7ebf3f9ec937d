//! The queue between callers and instances.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use panoply_lockfree::slot;
use panoply_models::{Array, Outputs};
use panoply_runtime::{RunOptions, TaskOutcome};

use super::waiting::{JoinKey, WaitingRequests};
use super::{ServeOptions, stopped};
use crate::error::{Error, Result};

/// A waiting request.
pub(super) struct Request {
    pub inputs: Vec<(String, Array)>,
    /// The key that joinable requests share; `None` if it is never joined.
    pub key: JoinKey,
    pub rows: usize,
    pub bytes: u64,
    pub arrived: Instant,
    pub run: RunOptions,
    pub answer: slot::Ticket<(), Answer>,
}

/// The answer of a request.
pub(super) type Answer = Result<TaskOutcome<Outputs>>;

impl Request {
    pub(super) fn answer(self, answer: Answer) {
        self.answer.answer(answer);
    }

    /// Whether somebody still waits for the answer.
    pub(super) fn is_wanted(&self) -> bool {
        !self.answer.is_cancelled()
    }

    /// Whether somebody still waits, and the deadline has not passed.
    pub(super) fn is_worth_a_step(&self) -> bool {
        self.is_wanted() && self.run.deadline.is_none_or(|deadline| Instant::now() < deadline)
    }
}

pub(super) struct Queue {
    pub options: ServeOptions,
    state: Mutex<State>,
    arrived: Condvar,
    batches: AtomicU64,
    rows: AtomicU64,
}

#[derive(Default)]
struct State {
    waiting: WaitingRequests,
    instances: usize,
    closed: bool,
}

/// Held by an instance, so that the queue knows the number of instances.
pub(super) struct InstanceGuard(Arc<Queue>);

impl Drop for InstanceGuard {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.instances -= 1;
        if state.instances == 0 {
            state.closed = true;
            let left = state.waiting.drain();
            drop(state);
            left.into_iter().for_each(|request| request.answer(Err(stopped())));
        }
    }
}

impl Queue {
    pub(super) fn new(options: ServeOptions) -> Queue {
        let (batches, rows) = (AtomicU64::new(0), AtomicU64::new(0));
        Queue { options, state: Mutex::default(), arrived: Condvar::new(), batches, rows }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    pub(super) fn open(self: &Arc<Queue>) -> InstanceGuard {
        self.lock().instances += 1;
        InstanceGuard(Arc::clone(self))
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    pub(super) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    pub(super) fn batches(&self) -> (u64, u64) {
        (self.batches.load(Ordering::Relaxed), self.rows.load(Ordering::Relaxed))
    }

    pub(super) fn put(&self, request: Request) -> Result<()> {
        let mut state = self.lock();
        if state.closed || state.instances == 0 {
            return Err(stopped());
        }
        let is_full = |waiting: &WaitingRequests| {
            let bytes = waiting.bytes().saturating_add(request.bytes);
            waiting.len() >= self.options.queue_depth_max || bytes > self.options.queue_bytes_max
        };
        if is_full(&state.waiting) {
            state.waiting.drop_unwanted(self.options.batch_max);
        }
        let bytes = state.waiting.bytes().saturating_add(request.bytes);
        if state.waiting.len() >= self.options.queue_depth_max {
            let (what, limit) = ("the requests that wait for a model", self.options.queue_depth_max as u64);
            return Err(Error::Busy { what, limit });
        }
        if bytes > self.options.queue_bytes_max {
            return Err(Error::Busy { what: "the bytes that wait for a model", limit: self.options.queue_bytes_max });
        }
        let is_awaited = state.waiting.put(request, self.options.batch_max);
        drop(state);
        if is_awaited {
            self.arrived.notify_one();
        }
        Ok(())
    }

    /// The next batch; `None` when the queue is closed and empty.
    pub(super) fn take(&self) -> Option<Vec<Request>> {
        let mut state = self.lock();
        loop {
            let Some((rows, since)) = state.waiting.front(self.options.batch_max) else {
                if state.closed {
                    return None;
                }
                state = self.arrived.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            let left = self.options.wait_max.saturating_sub(since.elapsed());
            if rows >= self.options.batch_max || state.closed || left == Duration::ZERO {
                let mut batch = state.waiting.take(self.options.batch_max);
                batch.retain(Request::is_wanted);
                if batch.is_empty() {
                    continue;
                }
                let more = state.waiting.len() > 0;
                drop(state);
                if more {
                    self.arrived.notify_one();
                }
                self.batches.fetch_add(1, Ordering::Relaxed);
                self.rows.fetch_add(batch.iter().map(|request| request.rows as u64).sum(), Ordering::Relaxed);
                return Some(batch);
            }
            let waited = self.arrived.wait_timeout(state, left);
            state = waited.unwrap_or_else(|poisoned| poisoned.into_inner()).0;
        }
    }
}
