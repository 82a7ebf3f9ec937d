//! Searches that arrive at the same time run as one batch.
//!
//! 1. One batch runs at a time. A search that arrives while none runs is started at once, as a
//!    batch of its own.
//! 2. Searches that arrive while a batch runs enter a queue. There is no timer: a search never
//!    waits for others to arrive.
//! 3. The thread that runs a batch is its leader. When the batch is done, the leader first passes
//!    the lead to the first search in the queue and only then answers the searches of its own
//!    batch, so that the next batch runs meanwhile. Each caller converts its candidates into hits
//!    on its own thread.
//! 4. The new leader takes its own search and the searches with equal options from the queue, up to
//!    `batch_queries_max` queries.
//! 5. A blocking caller leads on its own thread. A task may never be polled, so the collection's
//!    search thread leads for async searches.
//! 6. A signal handler may fork while a caller is blocked in the queue. No thread leads in the
//!    child, so a blocked caller looks every [`FORK_LOOK_EVERY`] whether it is still in the
//!    process, and gets an error if not.
//! 7. A batch takes its snapshot when it begins, which is after all of its searches were called.
//!    Each search therefore sees every write that returned before the search was called.

use std::collections::VecDeque;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, OnceLock, PoisonError, Weak};

use super::run::{self, BatchCandidates};
use super::{SearchOptions, SearchResults};
use crate::error::{Error, Result};
use crate::state::CollectionState;
use crate::task::{FORK_LOOK_EVERY, Task, task};

/// Maximum number of queries of async searches in the queue. A single search may have more if no
/// other is queued.
const QUERIES_WAITING_MAX: usize = 1 << 16;

/// The queue of searches, and the batch that runs.
pub(crate) struct Gather {
    shared: Arc<CollectionState>,
    line: Mutex<SearchQueue>,
    /// Wakes the search thread, which leads batches for async searches.
    dispatcher: OnceLock<Sender<()>>,
}

#[derive(Default)]
struct SearchQueue {
    under_way: bool,
    waiting: VecDeque<Arc<QueuedSearch>>,
    /// Number of queries of the async searches in the queue.
    queries_awaited: usize,
}

impl SearchQueue {
    fn take_first(&mut self) -> Option<Arc<QueuedSearch>> {
        let first = self.waiting.pop_front();
        first.iter().for_each(|job| self.note_left(job));
        first
    }

    /// Updates the count after a search has left the queue.
    fn note_left(&mut self, job: &QueuedSearch) {
        if job.awaited {
            self.queries_awaited = self.queries_awaited.saturating_sub(job.count);
        }
    }
}

/// A search in the queue.
struct QueuedSearch {
    queries: Vec<f32>,
    count: usize,
    options: SearchOptions,
    /// Whether a task waits for the answer, rather than a blocked thread.
    awaited: bool,
    place: Mutex<WaiterState>,
    changed: Condvar,
}

enum WaiterState {
    /// A thread is blocked on the search.
    Blocked,
    /// The blocked thread must lead the next batch.
    Leads,
    /// The answer for the blocked thread.
    Done(Result<BatchCandidates>),
    /// A task waits for the answer.
    Awaited(Box<dyn FnOnce(Result<BatchCandidates>) + Send>),
    /// The answer was taken or sent.
    Gone,
}

impl Gather {
    pub(crate) fn new(shared: Arc<CollectionState>) -> Arc<Gather> {
        Arc::new(Gather { shared, line: Mutex::default(), dispatcher: OnceLock::new() })
    }

    /// Runs a search of valid queries on the caller's thread, alone or in a batch.
    pub(crate) fn search(&self, queries: &[f32], count: usize, options: &SearchOptions) -> Result<SearchResults> {
        let mut line = lock(&self.line);
        if !line.under_way {
            line.under_way = true;
            drop(line);
            let lead = BatchLead { gather: self };
            let found = run::search(&self.shared, queries, count, options);
            drop(lead);
            return found.map(BatchCandidates::into_hits);
        }
        let job = Arc::new(QueuedSearch::new(queries.to_vec(), count, options.clone(), WaiterState::Blocked));
        line.waiting.push_back(Arc::clone(&job));
        drop(line);
        let mut place = lock(&job.place);
        loop {
            match std::mem::replace(&mut *place, WaiterState::Gone) {
                WaiterState::Done(result) => {
                    drop(place);
                    return result.map(BatchCandidates::into_hits);
                }
                WaiterState::Leads => {
                    *place = WaiterState::Blocked;
                    drop(place);
                    self.lead();
                    place = lock(&job.place);
                }
                other => {
                    *place = other;
                    let waited = job.changed.wait_timeout(place, FORK_LOOK_EVERY);
                    place = waited.unwrap_or_else(PoisonError::into_inner).0;
                    self.shared.check_process()?;
                }
            }
        }
    }

    /// Queues a search of valid queries for a task.
    pub(crate) fn search_async<T: Send + 'static>(
        self: &Arc<Gather>,
        queries: Vec<f32>,
        count: usize,
        options: SearchOptions,
        convert: impl FnOnce(SearchResults) -> T + Send + 'static,
    ) -> Task<T> {
        self.start_dispatcher();
        let (answer, task) = task();
        let answer = move |found: Result<BatchCandidates>| answer.send(found.map(|found| convert(found.into_hits())));
        let job = Arc::new(QueuedSearch::new(queries, count, options, WaiterState::Awaited(Box::new(answer))));
        let mut line = lock(&self.line);
        let waiting: usize = line.queries_awaited;
        if waiting > 0 && waiting.saturating_add(job.count) > QUERIES_WAITING_MAX {
            drop(line);
            job.finish(Err(Error::Busy { waiting_max: QUERIES_WAITING_MAX, unit: "queries" }));
            return task;
        }
        line.queries_awaited += job.count;
        line.waiting.push_back(job);
        let idle = !std::mem::replace(&mut line.under_way, true);
        drop(line);
        if idle {
            self.hand_over();
        }
        task
    }

    /// Passes the lead to the first search in the queue. With an empty queue, records that no batch
    /// runs.
    fn hand_over(&self) {
        let mut line = lock(&self.line);
        while let Some(first) = line.waiting.front() {
            let mut place = lock(&first.place);
            match &*place {
                WaiterState::Blocked => {
                    *place = WaiterState::Leads;
                    first.changed.notify_one();
                    return;
                }
                WaiterState::Awaited(_) => {
                    drop(place);
                    if self.wake_dispatcher() {
                        return;
                    }
                    // There is no search thread, so the task gets an error. The lock is released
                    // first, since the task's waker may search again at once.
                    let job = line.take_first();
                    drop(line);
                    job.iter().for_each(|job| job.finish(Err(Error::Closed)));
                    line = lock(&self.line);
                }
                _ => {
                    drop(place);
                    line.take_first();
                }
            }
        }
        line.under_way = false;
    }

    /// Runs one batch: the first search in the queue and those with equal options.
    fn lead(&self) {
        let jobs = self.take_batch();
        let lead = BatchLead { gather: self };
        let mut unanswered = UnansweredSearches { jobs };
        let result = match &unanswered.jobs[..] {
            [] => return,
            [job] => run::search(&self.shared, &job.queries, job.count, &job.options),
            jobs => {
                let queries: Vec<f32> = jobs.iter().flat_map(|job| job.queries.iter().copied()).collect();
                let count = jobs.iter().map(|job| job.count).sum();
                run::search(&self.shared, &queries, count, &jobs[0].options)
            }
        };
        drop(lead);
        let jobs = std::mem::take(&mut unanswered.jobs);
        match result {
            Err(error) => jobs.iter().for_each(|job| job.finish(Err(error.clone()))),
            Ok(BatchCandidates { snapshot, found, report }) => {
                let mut found = found.into_iter();
                for job in jobs {
                    let (snapshot, report) = (Arc::clone(&snapshot), report.clone());
                    job.finish(Ok(BatchCandidates {
                        snapshot,
                        found: found.by_ref().take(job.count).collect(),
                        report,
                    }));
                }
            }
        }
    }

    fn take_batch(&self) -> Vec<Arc<QueuedSearch>> {
        let mut line = lock(&self.line);
        let Some(first) = line.take_first() else { return Vec::new() };
        let queries_max = self.shared.options.batch_queries_max.max(1);
        let mut queries = first.count;
        let mut batch = vec![first];
        let mut others = VecDeque::with_capacity(line.waiting.len());
        for job in line.waiting.drain(..) {
            if queries + job.count <= queries_max && job.options == batch[0].options {
                queries += job.count;
                batch.push(job);
            } else {
                others.push_back(job);
            }
        }
        line.waiting = others;
        batch[1..].iter().for_each(|job| line.note_left(job));
        batch
    }

    fn wake_dispatcher(&self) -> bool {
        self.dispatcher.get().is_some_and(|sender| sender.send(()).is_ok())
    }

    /// Starts the search thread if it does not run yet.
    fn start_dispatcher(self: &Arc<Gather>) {
        self.dispatcher.get_or_init(|| {
            let (sender, receiver) = channel();
            let gather: Weak<Gather> = Arc::downgrade(self);
            let thread = std::thread::Builder::new().name("panoply-vectors-search".to_owned());
            // If the thread cannot be started, the receiver is dropped and async searches are
            // answered with an error.
            let _ = thread.spawn(move || {
                while receiver.recv().is_ok() {
                    let Some(gather) = gather.upgrade() else { return };
                    gather.lead();
                }
            });
            sender
        });
    }
}

impl QueuedSearch {
    fn new(queries: Vec<f32>, count: usize, options: SearchOptions, place: WaiterState) -> QueuedSearch {
        let awaited = matches!(place, WaiterState::Awaited(_));
        QueuedSearch { queries, count, options, awaited, place: Mutex::new(place), changed: Condvar::new() }
    }

    fn finish(&self, result: Result<BatchCandidates>) {
        let mut place = lock(&self.place);
        match std::mem::replace(&mut *place, WaiterState::Gone) {
            WaiterState::Awaited(answer) => answer(result),
            WaiterState::Done(earlier) => *place = WaiterState::Done(earlier),
            WaiterState::Gone => {}
            WaiterState::Blocked | WaiterState::Leads => {
                *place = WaiterState::Done(result);
                self.changed.notify_one();
            }
        }
    }
}

/// The lead of a batch. It is passed on when dropped, also during a panic.
struct BatchLead<'a> {
    gather: &'a Gather,
}

impl Drop for BatchLead<'_> {
    fn drop(&mut self) {
        self.gather.hand_over();
    }
}

/// Searches of a batch without an answer. On drop they get an error, also during a panic.
struct UnansweredSearches {
    jobs: Vec<Arc<QueuedSearch>>,
}

impl Drop for UnansweredSearches {
    fn drop(&mut self) {
        self.jobs.iter().for_each(|job| job.finish(Err(Error::Closed)));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::Pin;
    use std::task::{Context, Waker};

    use panoply_cpu::CpuBackend;
    use panoply_runtime::Runtime;

    use super::*;
    use crate::{Metric, Options, Schema};

    #[test]
    fn awaited_searches_wait_in_a_line_that_ends() {
        let runtime = Arc::new(Runtime::builder().backend(Arc::new(CpuBackend::new())).build().unwrap());
        let schema = Arc::new(Schema::new("line", 1, Metric::Dot));
        let shared = Arc::new(CollectionState::new(schema, Options::default(), runtime, None));
        let gather = Gather::new(shared);
        let search = |count: usize| {
            gather.search_async(vec![1.0; count], count, SearchOptions::new(1), |found| found.hits.len())
        };
        // Simulate another running batch.
        lock(&gather.line).under_way = true;
        let mut first = search(QUERIES_WAITING_MAX + 1);
        let refused = search(1).wait();
        assert!(matches!(refused, Err(Error::Busy { unit: "queries", .. })), "{refused:?}");
        let context = &mut Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut first).poll(context).is_pending());
        drop(BatchLead { gather: &gather });
        assert_eq!(first.wait().unwrap(), QUERIES_WAITING_MAX + 1);
        assert_eq!(search(1).wait().unwrap(), 1);
        assert_eq!(lock(&gather.line).queries_awaited, 0);
    }
}
