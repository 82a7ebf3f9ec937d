//! Searches that arrive at the same time run as one batch.
//!
//! 1. A search that arrives while no batch runs is started at once, as a batch of its own.
//! 2. Searches that arrive while a batch runs enter a queue. There is no timer: a search never
//!    waits for others to arrive while the devices have nothing to do.
//! 3. Rows on the host are searched by one batch at a time. If devices hold rows, a second batch
//!    starts beside the first as soon as half of the callers wait: the device then has its next
//!    batch before the callers of the last one were woken and came back. With fewer it would be
//!    small, and a device takes nearly as long for one query as for thirty. The number of callers
//!    is estimated from the batches before.
//! 4. The thread that runs a batch is its leader. When the batch is done, the leader first passes
//!    the lead to the first search in the queue and only then answers the searches of its own
//!    batch, so that the next batch runs meanwhile. Each caller converts its candidates into hits
//!    on its own thread.
//! 5. Waking a thread is a system call, so a leader wakes two of its callers, and each of these two
//!    more.
//! 6. The new leader takes its own search and the searches with equal options from the queue, up to
//!    `batch_queries_max` queries.
//! 7. A blocking caller leads on its own thread. A task may never be polled, so the collection's
//!    search thread leads for async searches.
//! 8. A signal handler may fork while a caller is blocked in the queue. No thread leads in the
//!    child, so a blocked caller looks every [`FORK_LOOK_EVERY`] whether it is still in the
//!    process, and gets an error if not.
//! 9. A batch takes its snapshot when it begins, which is after all of its searches were called.
//!    Each search therefore sees every write that returned before the search was called.

use std::collections::VecDeque;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use super::hits::BatchCandidates;
use super::run;
use super::{SearchOptions, SearchResults};
use crate::error::{Error, Result};
use crate::segment::SegmentView;
use crate::state::CollectionState;
use crate::task::{FORK_LOOK_EVERY, Task, task};

/// Maximum number of queries of async searches in the queue. A single search may have more if no
/// other is queued.
const QUERIES_WAITING_MAX: usize = 1 << 16;

/// Queries that must wait before a second batch starts beside the first.
const SECOND_BATCH_QUERIES_MIN: usize = 4;
/// The share (1/8) of a fall in the number of callers by which each batch lowers the estimate.
const CALLERS_FALL_SHARE: usize = 8;
/// How many others a woken caller wakes.
const WAKES_EACH: usize = 2;

/// The queue of searches, and the batches that run.
pub(crate) struct Gather {
    shared: Arc<CollectionState>,
    line: Mutex<SearchQueue>,
    /// Wakes the search thread, which leads batches for async searches.
    dispatcher: OnceLock<Sender<()>>,
}

#[derive(Default)]
struct SearchQueue {
    /// Number of batches that run, or whose leader was told to run them.
    under_way: usize,
    /// Whether a leader was told and has not begun. It takes what is in the queue then.
    is_led: bool,
    /// Number of queries in the batches that run.
    queries_under_way: usize,
    waiting: VecDeque<Arc<QueuedSearch>>,
    /// Number of queries in the queue.
    queries_waiting: usize,
    /// Number of queries of the async searches in the queue.
    queries_awaited: usize,
    /// Estimate of the queries that callers ask at the same time.
    queries_at_once: usize,
}

impl SearchQueue {
    fn push(&mut self, job: Arc<QueuedSearch>) {
        self.queries_waiting += job.count;
        if job.awaited {
            self.queries_awaited += job.count;
        }
        self.waiting.push_back(job);
    }

    /// Whether the queue should become a batch now. `overlaps`: whether two may run.
    fn is_due(&self, overlaps: impl FnOnce() -> bool) -> bool {
        match self.under_way {
            0 => !self.waiting.is_empty(),
            1 if !self.is_led => {
                let enough = self.queries_waiting.saturating_mul(2) >= self.queries_at_once;
                // The search thread, which leads for tasks, leads one batch at a time.
                let is_blocked = self.waiting.front().is_some_and(|first| !first.awaited);
                is_blocked && enough && self.queries_waiting >= SECOND_BATCH_QUERIES_MIN && overlaps()
            }
            _ => false,
        }
    }

    /// Updates the figures when a batch of so many queries starts, which have left the queue.
    fn note_started(&mut self, queries: usize) {
        self.queries_under_way += queries;
        let seen = self.queries_under_way + self.queries_waiting;
        let fall = self.queries_at_once.saturating_sub(seen).div_ceil(CALLERS_FALL_SHARE);
        self.queries_at_once = seen.max(self.queries_at_once - fall);
    }

    fn take_first(&mut self) -> Option<Arc<QueuedSearch>> {
        let first = self.waiting.pop_front();
        first.iter().for_each(|job| self.note_left(job));
        first
    }

    /// Updates the count after a search has left the queue.
    fn note_left(&mut self, job: &QueuedSearch) {
        self.queries_waiting = self.queries_waiting.saturating_sub(job.count);
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
    /// The blocked callers to be woken once this one is.
    wakes_next: OnceLock<Vec<Arc<QueuedSearch>>>,
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
        if line.under_way == 0 {
            line.under_way = 1;
            line.note_started(count);
            drop(line);
            let lead = BatchLead { gather: self, queries: count };
            let found = run::search(&self.shared, queries, count, options);
            drop(lead);
            return found.map(BatchCandidates::into_hits);
        }
        let job = Arc::new(QueuedSearch::new(queries.to_vec(), count, options.clone(), WaiterState::Blocked));
        line.push(Arc::clone(&job));
        // No leader was told, so this thread takes the whole queue at once.
        let leads = line.is_due(|| self.overlaps());
        (line.under_way, line.is_led) = (line.under_way + usize::from(leads), line.is_led || leads);
        drop(line);
        if leads {
            self.lead();
        }
        let mut place = lock(&job.place);
        loop {
            match std::mem::replace(&mut *place, WaiterState::Gone) {
                WaiterState::Done(result) => {
                    drop(place);
                    job.wake_next();
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
        line.push(job);
        self.hand_over(line);
        task
    }

    /// Whether two batches may run at the same time: a device that holds rows works while the
    /// host's threads do something else.
    fn overlaps(&self) -> bool {
        let holds = |segment: &Arc<SegmentView>| !segment.shared.resident.state().blocks.is_empty();
        self.shared.snapshot().segments.iter().any(holds)
    }

    /// Passes the lead to the first search in the queue, if a batch is due.
    fn hand_over<'a>(&'a self, mut line: MutexGuard<'a, SearchQueue>) {
        while line.is_due(|| self.overlaps()) {
            let Some(first) = line.waiting.front().cloned() else { return };
            let mut place = lock(&first.place);
            match &*place {
                WaiterState::Blocked => {
                    *place = WaiterState::Leads;
                    line.under_way += 1;
                    line.is_led = true;
                    first.changed.notify_one();
                    return;
                }
                WaiterState::Awaited(_) => {
                    drop(place);
                    if self.wake_dispatcher() {
                        line.under_way += 1;
                        line.is_led = true;
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
    }

    /// Runs one batch: the first search in the queue and those with equal options.
    fn lead(&self) {
        let jobs = self.take_batch();
        let lead = BatchLead { gather: self, queries: jobs.iter().map(|job| job.count).sum() };
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
                let mut own = |job: &QueuedSearch| BatchCandidates {
                    snapshot: Arc::clone(&snapshot),
                    found: found.by_ref().take(job.count).collect(),
                    report: report.clone(),
                };
                let (tasks, blocked): (Vec<_>, Vec<_>) =
                    jobs.into_iter().map(|job| (own(&job), job)).partition(|(_, job)| job.awaited);
                answer_blocked(blocked);
                tasks.into_iter().for_each(|(found, job)| job.finish(Ok(found)));
            }
        }
    }

    fn take_batch(&self) -> Vec<Arc<QueuedSearch>> {
        let mut line = lock(&self.line);
        line.is_led = false;
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
        line.note_started(queries);
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
        let (place, changed, wakes_next) = (Mutex::new(place), Condvar::new(), OnceLock::new());
        QueuedSearch { queries, count, options, awaited, place, changed, wakes_next }
    }

    /// Wakes the callers that were left to this one.
    fn wake_next(&self) {
        self.wakes_next.get().into_iter().flatten().for_each(|next| next.changed.notify_one());
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

/// Answers blocked callers. Every answer is in its place before the first caller is woken, so a
/// caller that wakes by itself takes it as well.
fn answer_blocked(answers: Vec<(BatchCandidates, Arc<QueuedSearch>)>) {
    let (found, jobs): (Vec<BatchCandidates>, Vec<Arc<QueuedSearch>>) = answers.into_iter().unzip();
    for (place, (found, job)) in found.into_iter().zip(&jobs).enumerate() {
        let first = (place + 1) * WAKES_EACH;
        let next = jobs.iter().skip(first).take(WAKES_EACH).cloned().collect();
        let _ = job.wakes_next.set(next);
        *lock(&job.place) = WaiterState::Done(Ok(found));
    }
    jobs.iter().take(WAKES_EACH).for_each(|job| job.changed.notify_one());
}

/// The lead of a batch. It is passed on when dropped, also during a panic.
struct BatchLead<'a> {
    gather: &'a Gather,
    /// Number of queries of the batch.
    queries: usize,
}

impl Drop for BatchLead<'_> {
    fn drop(&mut self) {
        let mut line = lock(&self.gather.line);
        line.under_way = line.under_way.saturating_sub(1);
        line.queries_under_way = line.queries_under_way.saturating_sub(self.queries);
        self.gather.hand_over(line);
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

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
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
        lock(&gather.line).under_way = 1;
        let mut first = search(QUERIES_WAITING_MAX + 1);
        let refused = search(1).wait();
        assert!(matches!(refused, Err(Error::Busy { unit: "queries", .. })), "{refused:?}");
        let context = &mut Context::from_waker(Waker::noop());
        assert!(Pin::new(&mut first).poll(context).is_pending());
        drop(BatchLead { gather: &gather, queries: 0 });
        assert_eq!(first.wait().unwrap(), QUERIES_WAITING_MAX + 1);
        assert_eq!(search(1).wait().unwrap(), 1);
        assert_eq!(lock(&gather.line).queries_awaited, 0);
    }

    /// A second batch starts beside the first if half of the callers wait, and not before.
    #[test]
    fn a_second_batch_starts_for_half_of_the_callers() {
        let queued = || Arc::new(QueuedSearch::new(vec![1.0], 1, SearchOptions::new(1), WaiterState::Blocked));
        let mut line = SearchQueue { under_way: 1, ..SearchQueue::default() };
        (0..63).for_each(|_| line.push(queued()));
        line.note_started(1);
        assert_eq!(line.queries_at_once, 64);
        while line.queries_waiting >= 32 {
            assert!(line.is_due(|| true) && !line.is_due(|| false));
            line.take_first();
        }
        assert!(!line.is_due(|| true), "a small batch would hold up the device");
        line.under_way = 0;
        assert!(line.is_due(|| false), "nothing runs, so nothing waits");
        (line.under_way, line.is_led) = (1, true);
        line.push(queued());
        assert!(!line.is_due(|| true), "the leader that was told takes the queue");
        // Fewer callers lower the estimate.
        (line.is_led, line.queries_under_way) = (false, 0);
        line.waiting.truncate(8);
        line.queries_waiting = 8;
        (0..40).for_each(|_| line.note_started(0));
        assert_eq!(line.queries_at_once, 8);
        assert!(line.is_due(|| true));
    }
}
