//! The queue between callers and instances.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use panoply_runtime::RunOptions;

use super::{ServeOptions, rank, stopped};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::model::Outputs;

/// A request that waits.
pub(super) struct Request {
    pub inputs: Vec<(String, Array)>,
    /// What requests that join have in common; `None` where it joins none.
    pub key: Option<Vec<u64>>,
    pub rows: usize,
    pub bytes: u64,
    pub arrived: Instant,
    pub run: RunOptions,
    pub answer: SyncSender<Result<Outputs>>,
}

impl Request {
    pub(super) fn answer(self, answer: Result<Outputs>) {
        // A caller that is gone wants no answer.
        let _ = self.answer.send(answer);
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
    /// One list for each priority.
    waiting: [VecDeque<Request>; 3],
    /// The rows that wait, by what requests have in common that join.
    rows: HashMap<Vec<u64>, usize>,
    bytes: u64,
    instances: usize,
    closed: bool,
}

impl State {
    fn len(&self) -> usize {
        self.waiting.iter().map(VecDeque::len).sum()
    }

    /// The rows that would join the oldest request, and since when that waits.
    fn front(&self, batch_max: usize) -> Option<(usize, Instant)> {
        let front = self.waiting.iter().find_map(VecDeque::front)?;
        if front.key.is_none() || front.rows >= batch_max {
            return Some((batch_max, front.arrived));
        }
        let rows = front.key.as_ref().and_then(|key| self.rows.get(key)).copied().unwrap_or(front.rows);
        Some((rows, front.arrived))
    }

    /// Adds a request. Says whether an instance is to look: there was none, or it is the first now, or a batch is full. Other requests join
    /// one that an instance waits with already.
    fn put(&mut self, request: Request, batch_max: usize) -> bool {
        let rank = usize::from(rank(request.run.priority));
        let is_first = self.waiting[..=rank].iter().all(VecDeque::is_empty);
        let is_full = match &request.key {
            None => true,
            Some(key) => {
                let rows = self.rows.entry(key.clone()).or_default();
                *rows = rows.saturating_add(request.rows);
                *rows >= batch_max
            }
        };
        self.waiting[rank].push_back(request);
        is_first || is_full
    }

    /// Takes the oldest request and what joins it, the rows of all within a bound.
    fn take(&mut self, rows_max: usize) -> Vec<Request> {
        let Some(front) = self.waiting.iter_mut().find_map(VecDeque::pop_front) else { return Vec::new() };
        let (mut rows, key) = (front.rows, front.key.clone());
        let mut batch = vec![front];
        for list in &mut self.waiting {
            let mut place = 0;
            while key.is_some() && place < list.len() && rows < rows_max {
                if list[place].key == key && rows.saturating_add(list[place].rows) <= rows_max {
                    rows += list[place].rows;
                    batch.extend(list.remove(place));
                } else {
                    place += 1;
                }
            }
        }
        if let Some(key) = key
            && let Some(left) = self.rows.get_mut(&key)
        {
            *left = left.saturating_sub(rows);
            if *left == 0 {
                self.rows.remove(&key);
            }
        }
        self.bytes -= batch.iter().map(|request| request.bytes).sum::<u64>().min(self.bytes);
        batch
    }
}

/// Held by an instance: the queue knows how many there are.
pub(super) struct Open(Arc<Queue>);

impl Drop for Open {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.instances -= 1;
        if state.instances == 0 {
            state.closed = true;
            let left: Vec<Request> = state.waiting.iter_mut().flat_map(|list| list.drain(..)).collect();
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

    pub(super) fn open(self: &Arc<Queue>) -> Open {
        self.lock().instances += 1;
        Open(Arc::clone(self))
    }

    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.arrived.notify_all();
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    pub(super) fn batches(&self) -> (u64, u64) {
        (self.batches.load(Ordering::Relaxed), self.rows.load(Ordering::Relaxed))
    }

    pub(super) fn put(&self, request: Request) -> Result<()> {
        let mut state = self.lock();
        if state.closed || state.instances == 0 {
            return Err(stopped());
        }
        let bytes = state.bytes.saturating_add(request.bytes);
        if state.len() >= self.options.queue_depth_max {
            let (what, limit) = ("the requests that wait for a model", self.options.queue_depth_max as u64);
            return Err(Error::Busy { what, limit });
        }
        if bytes > self.options.queue_bytes_max {
            return Err(Error::Busy { what: "the bytes that wait for a model", limit: self.options.queue_bytes_max });
        }
        state.bytes = bytes;
        let is_awaited = state.put(request, self.options.batch_max);
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
            let Some((rows, since)) = state.front(self.options.batch_max) else {
                if state.closed {
                    return None;
                }
                state = self.arrived.wait(state).unwrap_or_else(|poisoned| poisoned.into_inner());
                continue;
            };
            let left = self.options.wait_max.saturating_sub(since.elapsed());
            if rows >= self.options.batch_max || state.closed || left == Duration::ZERO {
                let batch = state.take(self.options.batch_max);
                let more = state.len() > 0;
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
