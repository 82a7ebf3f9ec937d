//! Pools of a program's own workers.
//!
//! ```
//! use panoply_runtime::worker::BoxError;
//! use panoply_runtime::{Envelope, PoolOptions, Worker, WorkerPool};
//!
//! struct Sum(u64);
//! impl Worker for Sum {
//!     type Message = u64;
//!     type Reply = u64;
//!     fn handle(&mut self, envelope: Envelope<u64>) -> Result<u64, BoxError> {
//!         self.0 += envelope.message;
//!         Ok(self.0)
//!     }
//! }
//!
//! let pool = WorkerPool::start(PoolOptions { workers: 1, ..Default::default() }, |_| Sum(0))?;
//! pool.send(20)?;
//! assert_eq!(pool.request(22)?.wait()?, 42);
//! # Ok::<(), panoply_runtime::WorkerError>(())
//! ```

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use panoply_core::cpu_set::CpuSet;
use panoply_lockfree::blocking::block_until;
use panoply_lockfree::foreign::discard;
use panoply_lockfree::queue::{PushError, QUEUE_DEPTH_MAX, Queue};
use panoply_lockfree::sleeper::{SPIN_US_MAX, spin};
use panoply_lockfree::slot::{Receiver, Ticket, WaitError, slot};
use panoply_placement::PlacementError;
use panoply_placement::affinity::{RealtimePriority, pin_current, set_realtime};

use crate::address_space;
use crate::partition::{Partitioner, RoundRobin, choose};
use crate::process::{self, Process};
use crate::worker::thread::{Letter, LetterTicket, Mailbox, Postmark, WorkerContext};
use crate::worker::waits::{self, WorkerKey};
use crate::worker::{Worker, WorkerError};

/// The most workers of one pool: each is a thread.
pub const WORKERS_MAX: usize = 1024;
/// The most bytes of all queues of one pool, without the data that messages point to.
pub const QUEUES_BYTES_MAX: u64 = 1 << 32;

/// The options of a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Number of workers, each on a thread of its own: 1 to [`WORKERS_MAX`].
    pub workers: usize,
    /// The name of the threads; the worker's index is appended.
    pub name: String,
    /// Capacity of each worker's queue: 1 to 2^20, rounded up to a power of two, at least 2. All
    /// queues together take at most [`QUEUES_BYTES_MAX`] bytes.
    pub queue_depth_max: usize,
    /// How often `tick` is called, if at all.
    pub tick_every: Option<Duration>,
    /// Whether envelopes carry the time at which they were sent.
    pub timestamps: bool,
    /// The CPUs of worker 0, 1, …; a worker beyond the list runs anywhere.
    pub cpus: Vec<CpuSet>,
    /// The real-time priority of the workers' threads, for work with deadlines. If it is not
    /// permitted, the pool does not start, and its error names the missing permission.
    pub realtime: Option<RealtimePriority>,
    /// The wait before a failed worker's first restart. It doubles with each further failure in a
    /// row.
    pub restart_wait_min: Duration,
    /// The longest wait before a restart.
    pub restart_wait_max: Duration,
    /// How many restarts in a row, without a handled message in between, before a worker is given
    /// up.
    pub restarts_max: u32,
}

impl Default for PoolOptions {
    fn default() -> PoolOptions {
        PoolOptions {
            workers: 1,
            name: "worker".to_owned(),
            queue_depth_max: 1024,
            tick_every: None,
            timestamps: false,
            cpus: Vec::new(),
            realtime: None,
            restart_wait_min: Duration::from_millis(1),
            restart_wait_max: Duration::from_secs(1),
            restarts_max: 10,
        }
    }
}

/// The status of one worker of a pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerStatus {
    /// Its `init` has not returned yet.
    Starting,
    /// It handles messages, or waits for them.
    Running,
    /// It failed and waits to be restarted.
    Restarting {
        /// The failure.
        cause: WorkerError,
    },
    /// It failed too often.
    GivenUp {
        /// The last failure.
        cause: WorkerError,
    },
    /// It has ended with the pool.
    Stopped,
}

/// One worker of a pool as its users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerHealth {
    /// The worker's status.
    pub status: WorkerStatus,
    /// Whether it is paused.
    pub paused: bool,
    /// Messages handled so far, failed ones included.
    pub handled: u64,
    /// How often the worker was restarted.
    pub restarts: u64,
    /// Number of queued messages.
    pub queued: usize,
}

/// Workers of one kind, each with its own thread and queue. Dropping the pool stops it.
pub struct WorkerPool<W: Worker> {
    mailboxes: Vec<Arc<Mailbox<W>>>,
    threads: Mutex<Vec<PoolThread>>,
    partitioner: Box<dyn Partitioner<W::Message>>,
    turn: AtomicUsize,
    timestamps: bool,
    /// The process that the threads run in.
    process: Process,
}

impl<W: Worker> WorkerPool<W> {
    /// Starts a pool whose `send_partitioned` sends to the workers in turn. `make` is called with
    /// the worker's index on the worker's own thread, and again for each restart.
    pub fn start<F>(options: PoolOptions, make: F) -> Result<WorkerPool<W>, WorkerError>
    where
        F: Fn(usize) -> W + Send + Sync + 'static,
    {
        WorkerPool::start_partitioned(options, RoundRobin::new(), make)
    }

    /// Starts a pool with a partitioner for `send_partitioned`. Returns after every worker's `init`
    /// has returned. The first failure stops the other workers and is returned.
    pub fn start_partitioned<F, P>(options: PoolOptions, partitioner: P, make: F) -> Result<WorkerPool<W>, WorkerError>
    where
        F: Fn(usize) -> W + Send + Sync + 'static,
        P: Partitioner<W::Message> + 'static,
    {
        check(&options)?;
        check_queues::<W>(&options)?;
        partitioner.for_workers(options.workers)?;
        let mailboxes = (0..options.workers).map(|_| Arc::new(Mailbox::new(options.queue_depth_max))).collect();
        let pool = WorkerPool {
            mailboxes,
            threads: Mutex::new(Vec::new()),
            partitioner: Box::new(partitioner),
            turn: AtomicUsize::new(0),
            timestamps: options.timestamps,
            process: Process::current(),
        };
        let make = Arc::new(make);
        let mut first_failure = None;
        for index in 0..options.workers {
            if let Err(error) = pool.start_worker(index, &options, &make) {
                first_failure = Some(error);
                break;
            }
        }
        match first_failure {
            None => Ok(pool),
            Some(error) => {
                pool.close_and_join();
                Err(error)
            }
        }
    }

    /// Number of workers.
    pub fn workers(&self) -> usize {
        self.mailboxes.len()
    }

    /// Sends to the next worker in turn, waiting while its queue is full.
    pub fn send(&self, message: W::Message) -> Result<(), WorkerError> {
        self.post(self.next_turn(), message, self.postmark(None))
    }

    /// Sends to one worker, waiting while its queue is full.
    pub fn send_to(&self, worker: usize, message: W::Message) -> Result<(), WorkerError> {
        self.post(worker, message, self.postmark(None))
    }

    /// Sends to the worker that the partitioner chooses for the message.
    pub fn send_partitioned(&self, message: W::Message) -> Result<(), WorkerError> {
        let worker = choose(self.partitioner.as_ref(), &message, self.workers())?;
        self.post(worker, message, self.postmark(None))
    }

    /// Sends to one worker, with the number of the sender.
    pub fn send_from(&self, source: u32, worker: usize, message: W::Message) -> Result<(), WorkerError> {
        self.post(worker, message, self.postmark(Some(source)))
    }

    /// Sends to one worker if there is room; otherwise returns the message.
    pub fn try_send_to(&self, worker: usize, message: W::Message) -> Result<(), (W::Message, WorkerError)> {
        self.try_post(worker, message, self.postmark(None))
    }

    /// Sends a copy to every worker.
    pub fn broadcast(&self, message: W::Message) -> Result<(), WorkerError>
    where
        W::Message: Clone,
    {
        (0..self.workers()).try_for_each(|worker| self.send_to(worker, message.clone()))
    }

    /// Sends a request to the next worker in turn.
    pub fn request(&self, message: W::Message) -> Result<PendingReply<W>, WorkerError> {
        self.request_to(self.next_turn(), message)
    }

    /// Sends a request to one worker.
    pub fn request_to(&self, worker: usize, message: W::Message) -> Result<PendingReply<W>, WorkerError> {
        let sent_at = self.timestamps.then(Instant::now);
        let (ticket, receiver) = slot(Postmark { source: None, sent_at });
        self.post(worker, message, ticket)?;
        Ok(self.pending(receiver, worker))
    }

    /// Sends a request to the worker that the partitioner chooses for the message.
    pub fn request_partitioned(&self, message: W::Message) -> Result<PendingReply<W>, WorkerError> {
        let worker = choose(self.partitioner.as_ref(), &message, self.workers())?;
        self.request_to(worker, message)
    }

    /// Sends a request to the worker that the partitioner chooses for the message, if there is room
    /// in its queue.
    pub fn try_request_partitioned(&self, message: W::Message) -> Result<PendingReply<W>, WorkerError> {
        let worker = choose(self.partitioner.as_ref(), &message, self.workers())?;
        let sent_at = self.timestamps.then(Instant::now);
        let (ticket, receiver) = slot(Postmark { source: None, sent_at });
        self.try_post(worker, message, ticket).map_err(|(message, error)| {
            discard(message);
            error
        })?;
        Ok(self.pending(receiver, worker))
    }

    /// Stops handling messages; they wait in the queues. A message that a worker has already taken
    /// out is still handled.
    pub fn pause(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.paused.store(true, Ordering::Release));
    }

    /// Goes on handling messages.
    pub fn resume(&self) {
        for mailbox in &self.mailboxes {
            mailbox.paused.store(false, Ordering::Release);
            mailbox.sleeper.wake();
        }
    }

    /// The health of each worker.
    pub fn health(&self) -> Vec<WorkerHealth> {
        let health = self.mailboxes.iter().map(|mailbox| WorkerHealth {
            status: process::lock(&mailbox.status, self.process).map_or(WorkerStatus::Stopped, |status| status.clone()),
            paused: mailbox.paused.load(Ordering::Acquire),
            handled: mailbox.handled.load(Ordering::Relaxed),
            restarts: mailbox.restarts.load(Ordering::Relaxed),
            queued: mailbox.queue.len(),
        });
        health.collect()
    }

    /// Refuses further messages, handles every message that was sent, paused or not, and ends the
    /// threads.
    pub fn stop(&self) -> Vec<WorkerHealth> {
        self.close_and_join();
        self.health()
    }

    fn start_worker<F>(&self, index: usize, options: &PoolOptions, make: &Arc<F>) -> Result<(), WorkerError>
    where
        F: Fn(usize) -> W + Send + Sync + 'static,
    {
        let (started, mut hears) = slot(());
        let (ends, ended) = slot(());
        let (mailbox, options, make) = (Arc::clone(&self.mailboxes[index]), options.clone(), Arc::clone(make));
        let key = mailbox.key;
        let init_failed = |reason: String| WorkerError::InitFailed { worker: index, reason };
        let no_thread = |error| init_failed(format!("no thread: {error}"));
        address_space::check_room_for_thread().map_err(no_thread)?;
        let thread = std::thread::Builder::new()
            .name(format!("{}-{index}", options.name))
            .spawn(move || {
                // Dropped last, on every way out.
                let _ends: Ticket<(), ()> = ends;
                if let Err(error) = settle(index, &options) {
                    started.answer(Err(WorkerError::InitFailed { worker: index, reason: error.to_string() }));
                    return;
                }
                WorkerContext::new(index, mailbox, options, make).run(started);
            })
            .map_err(no_thread)?;
        let thread = PoolThread { key, thread, ended };
        self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(thread);
        match hears.wait_for(self.process, None, 0) {
            Ok(answer) => answer.unwrap_or_else(|| Err(init_failed("its thread ended".to_owned()))),
            Err(_) => Err(forked(self.process)),
        }
    }

    fn pending(&self, receiver: ReplyReceiver<W>, worker: usize) -> PendingReply<W> {
        PendingReply { receiver, worker, process: self.process, key: self.mailboxes[worker].key }
    }

    fn next_turn(&self) -> usize {
        match self.workers() {
            1 => 0,
            workers => self.turn.fetch_add(1, Ordering::Relaxed) % workers,
        }
    }

    /// The ticket of a letter that wants no reply, which is usually empty.
    fn postmark(&self, source: Option<u32>) -> LetterTicket<W> {
        if source.is_none() && !self.timestamps {
            return LetterTicket::<W>::none();
        }
        slot(Postmark { source, sent_at: self.timestamps.then(Instant::now) }).0
    }

    fn try_post(
        &self,
        worker: usize,
        message: W::Message,
        ticket: LetterTicket<W>,
    ) -> Result<(), (W::Message, WorkerError)> {
        if let Err(error) = self.check_process() {
            return Err((message, error));
        }
        let Some(mailbox) = self.mailboxes.get(worker) else {
            return Err((message, WorkerError::NoSuchWorker { worker, workers: self.workers() }));
        };
        match mailbox.queue.push(Letter { message, ticket }) {
            Ok(()) => {
                mailbox.sleeper.wake();
                Ok(())
            }
            Err(PushError::Full(letter)) => {
                let queue_depth_max = mailbox.queue.capacity();
                Err((letter.message, WorkerError::Busy { worker, queue_depth_max }))
            }
            Err(PushError::Closed(letter)) => Err((letter.message, self.refusal(worker))),
        }
    }

    fn post(&self, worker: usize, message: W::Message, ticket: LetterTicket<W>) -> Result<(), WorkerError> {
        self.check_process()?;
        let workers = self.workers();
        let mailbox = self.mailboxes.get(worker).ok_or(WorkerError::NoSuchWorker { worker, workers })?;
        let letter = Letter { message, ticket };
        match mailbox.queue.push(letter) {
            Ok(()) => {}
            Err(PushError::Closed(_)) => return Err(self.refusal(worker)),
            Err(PushError::Full(letter)) => self.wait_for_room(mailbox, worker, letter)?,
        }
        mailbox.sleeper.wake();
        Ok(())
    }

    #[cold]
    fn wait_for_room(&self, mailbox: &Arc<Mailbox<W>>, worker: usize, letter: Letter<W>) -> Result<(), WorkerError> {
        let mut unsent = Some(letter);
        let mut send = || match unsent.take().map(|letter| mailbox.queue.push(letter)) {
            None | Some(Ok(())) => Poll::Ready(Ok(())),
            Some(Err(PushError::Closed(_))) => Poll::Ready(Err(self.refusal(worker))),
            Some(Err(PushError::Full(letter))) => {
                unsent = Some(letter);
                Poll::Pending
            }
        };
        if spin(SPIN_US_MAX, &mut || mailbox.queue.has_room_for_a_run())
            && let Poll::Ready(result) = send()
        {
            return result;
        }
        let itself = |_| WorkerError::WaitsForItself { worker };
        let asked = Arc::clone(mailbox);
        let wait = waits::wait_for(mailbox.key, move || asked.takes_or_refuses()).map_err(itself)?;
        let sent = block_until(self.process, None, |context| {
            mailbox.room.wait(self.process, context.waker());
            wait.attempt(&mut send).map(|sent| sent.map_err(itself).flatten())
        });
        sent.unwrap_or_else(|_| Err(forked(self.process)))
    }

    fn check_process(&self) -> Result<(), WorkerError> {
        if self.process.is_here() { Ok(()) } else { Err(forked(self.process)) }
    }

    /// Why a closed queue accepts no messages.
    fn refusal(&self, worker: usize) -> WorkerError {
        let status = self.mailboxes[worker].status.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match &*status {
            WorkerStatus::GivenUp { cause } => cause.clone(),
            _ => WorkerError::Stopped,
        }
    }

    fn close_and_join(&self) {
        if !self.process.is_here() {
            return;
        }
        self.mailboxes.iter().for_each(|mailbox| mailbox.close());
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let mut threads = VecDeque::from(threads);
        while let Some(PoolThread { key, thread, mut ended }) = threads.pop_front() {
            // A worker that stops its own pool, or drops its last handle, joins neither its own
            // thread nor a thread that waits for it. These threads end by themselves. A thread that
            // has ended waits for no other, so this wait is not part of a circle.
            if let Ok(_wait) = waits::wait_for(key, || false) {
                if ended.wait_for(self.process, None, 0) == Err(WaitError::Forked) {
                    // The handles are the parent's.
                    return std::mem::forget((thread, threads));
                }
                // The thread has ended except for its locals' destructors. The keeper contains the
                // worker's panics, so the result of the join carries no information.
                let _ = thread.join();
            }
        }
    }
}

impl<W: Worker> Drop for WorkerPool<W> {
    fn drop(&mut self) {
        self.close_and_join();
        if self.process.is_here() {
            return;
        }
        // The threads belong to the parent process, and so does the state they share: it is leaked.
        let threads = self.threads.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::forget((std::mem::take(&mut self.mailboxes), std::mem::take(threads)));
    }
}

/// The thread of a worker.
struct PoolThread {
    key: WorkerKey,
    thread: JoinHandle<()>,
    /// Its ticket is dropped when the thread's main function returns.
    ended: Receiver<(), ()>,
}

type ReplyReceiver<W> = Receiver<Postmark, Result<<W as Worker>::Reply, WorkerError>>;

/// A pending reply. It comes from `.await` or from [`PendingReply::wait`].
///
/// A worker that needs the reply of another worker should call `wait`, which detects workers that
/// wait for each other. Awaiting inside the worker's own executor is not detected, and may wait for
/// ever.
#[must_use = "a reply that nobody waits for is lost; use `send` where none is needed"]
pub struct PendingReply<W: Worker> {
    receiver: ReplyReceiver<W>,
    worker: usize,
    key: WorkerKey,
    process: Process,
}

impl<W: Worker> PendingReply<W> {
    /// The error of a request that was sent before a fork, in the child process: its reply goes to
    /// the parent.
    fn lost_in_fork(&self) -> Option<WorkerError> {
        let lost = !self.process.is_here() && !self.receiver.is_done();
        lost.then(|| forked(self.process))
    }

    /// Blocks until the reply arrives. A worker that would wait for itself, directly or through
    /// workers that wait for it, is refused with [`WorkerError::WaitsForItself`]; its message is
    /// handled all the same.
    pub fn wait(mut self) -> Result<W::Reply, WorkerError> {
        if let Some(error) = self.lost_in_fork() {
            return Err(error);
        }
        let wait = (!self.receiver.is_done()).then(|| waits::wait_for(self.key, self.receiver.probe()));
        if let Some(Err(waits::Circle)) = wait {
            return Err(WorkerError::WaitsForItself { worker: self.worker });
        }
        match self.receiver.wait(self.process, None) {
            Ok(Some(reply)) => reply,
            Err(WaitError::Forked) => Err(forked(self.process)),
            _ => Err(WorkerError::Stopped),
        }
    }

    /// Blocks until the reply arrives, for `time_max` at the longest.
    pub fn wait_for(mut self, time_max: Duration) -> Result<W::Reply, WorkerError> {
        if let Some(error) = self.lost_in_fork() {
            return Err(error);
        }
        match self.receiver.wait(self.process, Instant::now().checked_add(time_max)) {
            Ok(Some(reply)) => reply,
            Ok(None) => Err(WorkerError::Stopped),
            Err(WaitError::Forked) => Err(forked(self.process)),
            Err(WaitError::TimedOut) => Err(WorkerError::TimedOut { worker: self.worker }),
        }
    }
}

impl<W: Worker> Future for PendingReply<W> {
    type Output = Result<W::Reply, WorkerError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(error) = self.lost_in_fork() {
            return Poll::Ready(Err(error));
        }
        self.receiver.poll(context).map(|reply| reply.unwrap_or(Err(WorkerError::Stopped)))
    }
}

/// The error for a caller in another process.
#[cold]
fn forked(made_in: Process) -> WorkerError {
    WorkerError::Forked { made_in: made_in.id(), called_in: std::process::id() }
}

/// Applies the CPUs and the priority of the options to the calling thread.
fn settle(index: usize, options: &PoolOptions) -> Result<(), PlacementError> {
    if let Some(cpus) = options.cpus.get(index) {
        pin_current(cpus)?;
    }
    options.realtime.map_or(Ok(()), set_realtime)
}

fn check(options: &PoolOptions) -> Result<(), WorkerError> {
    let bad = |what, expected, got: String| Err(WorkerError::BadOption { what, expected, got });
    if !(1..=WORKERS_MAX).contains(&options.workers) {
        return bad("workers", WORKERS_EXPECTED, options.workers.to_string());
    }
    if !(1..=QUEUE_DEPTH_MAX).contains(&options.queue_depth_max) {
        return bad("queue_depth_max", QUEUE_DEPTH_EXPECTED, options.queue_depth_max.to_string());
    }
    if options.name.contains('\0') {
        return bad("name", "no character with the code 0", options.name.escape_default().to_string());
    }
    if options.tick_every.is_some_and(|every| every.is_zero()) {
        return bad("tick_every", "more than 0 s, or none", "0 s".to_owned());
    }
    Ok(())
}

const WORKERS_EXPECTED: &str = "1 to 1024";
const QUEUE_DEPTH_EXPECTED: &str = "1 to 1048576";

/// Refuses queues that would use up the machine's memory before the first message is sent.
fn check_queues<W: Worker>(options: &PoolOptions) -> Result<(), WorkerError> {
    let each = Queue::<Letter<W>>::bytes(options.queue_depth_max);
    let all = each.saturating_mul(options.workers as u64);
    if all > QUEUES_BYTES_MAX {
        let expected = "queues of at most 4 GiB in all: fewer workers, shorter queues, or smaller messages";
        let got = format!("{} queues of {each} bytes", options.workers);
        return Err(WorkerError::BadOption { what: "queue_depth_max", expected, got });
    }
    address_space::check_room(all).map_err(|error| {
        let expected = "queues for which there is memory";
        let got = format!("{} queues of {each} bytes: {error}", options.workers);
        WorkerError::BadOption { what: "queue_depth_max", expected, got }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bounds_in_messages_are_the_bounds_that_are_checked() {
        assert_eq!(WORKERS_EXPECTED, format!("1 to {WORKERS_MAX}"));
        assert_eq!(QUEUE_DEPTH_EXPECTED, format!("1 to {QUEUE_DEPTH_MAX}"));
        assert_eq!(QUEUES_BYTES_MAX >> 30, 4);
    }
}
