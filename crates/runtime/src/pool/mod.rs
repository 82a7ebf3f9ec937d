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

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use panoply_core::cpu_set::CpuSet;

use crate::blocking::block_until;
use crate::foreign::discard;
use crate::partition::{Partitioner, RoundRobin, choose};
use crate::placement::PlacementError;
use crate::placement::affinity::{RealtimePriority, pin_current, set_realtime};
use crate::queue::PushError;
use crate::slot::{Receiver, slot};
use crate::worker::thread::{Keeper, Letter, LetterTicket, Mailbox, Postmark};
use crate::worker::{Worker, WorkerError};

/// How a pool is made.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// How many workers, each on a thread of its own.
    pub workers: usize,
    /// The name of the threads; the worker's index is appended.
    pub name: String,
    /// How many messages each worker's queue holds. Rounded up to a power of two.
    pub queue_depth_max: usize,
    /// How often `tick` is called, if at all.
    pub tick_every: Option<Duration>,
    /// Whether envelopes carry the time they were sent at.
    pub timestamps: bool,
    /// The CPUs of worker 0, 1, …; a worker beyond the list runs anywhere.
    pub cpus: Vec<CpuSet>,
    /// The real-time priority of the workers' threads, for work that must not be late. Where it is not permitted the pool
    /// does not start, and its error says what is missing.
    pub realtime: Option<RealtimePriority>,
    /// The wait before a failed worker's first restart; doubled for each further failure in a row.
    pub restart_wait_min: Duration,
    /// The longest wait before a restart.
    pub restart_wait_max: Duration,
    /// How many restarts in a row, without a message handled in between, before a worker is given up.
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

/// What one worker of a pool is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkerStatus {
    /// Its `init` has not returned yet.
    Starting,
    /// Handling messages, or waiting for them.
    Running,
    /// It failed and waits to be started again.
    Restarting {
        /// What went wrong.
        cause: WorkerError,
    },
    /// It failed too often.
    GivenUp {
        /// What went wrong last.
        cause: WorkerError,
    },
    /// It has ended with the pool.
    Stopped,
}

/// One worker of a pool as its users see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkerHealth {
    /// What it is doing.
    pub status: WorkerStatus,
    /// Whether it is paused.
    pub paused: bool,
    /// Messages handled so far, failed ones included.
    pub handled: u64,
    /// How often it was started again.
    pub restarts: u64,
    /// Messages that wait.
    pub queued: usize,
}

/// Workers of one kind, each with a thread and a queue of its own. Dropping the pool stops it.
pub struct WorkerPool<W: Worker> {
    mailboxes: Vec<Arc<Mailbox<W>>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    partitioner: Box<dyn Partitioner<W::Message>>,
    turn: AtomicUsize,
    timestamps: bool,
}

impl<W: Worker> WorkerPool<W> {
    /// Starts a pool whose `send_partitioned` takes turns. `make` is called with the worker's index on the worker's own
    /// thread, and again for each restart.
    pub fn start<F>(options: PoolOptions, make: F) -> Result<WorkerPool<W>, WorkerError>
    where
        F: Fn(usize) -> W + Send + Sync + 'static,
    {
        WorkerPool::start_partitioned(options, RoundRobin::new(), make)
    }

    /// Starts a pool with a partitioner for `send_partitioned`. Returns when every worker's `init` has; the first failure
    /// stops the others and is returned.
    pub fn start_partitioned<F, P>(options: PoolOptions, partitioner: P, make: F) -> Result<WorkerPool<W>, WorkerError>
    where
        F: Fn(usize) -> W + Send + Sync + 'static,
        P: Partitioner<W::Message> + 'static,
    {
        check(&options)?;
        partitioner.for_workers(options.workers)?;
        let mailboxes = (0..options.workers).map(|_| Arc::new(Mailbox::new(options.queue_depth_max))).collect();
        let pool = WorkerPool {
            mailboxes,
            threads: Mutex::new(Vec::new()),
            partitioner: Box::new(partitioner),
            turn: AtomicUsize::new(0),
            timestamps: options.timestamps,
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

    /// How many workers there are.
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

    /// Sends to one worker and says who sent it.
    pub fn send_from(&self, source: u32, worker: usize, message: W::Message) -> Result<(), WorkerError> {
        self.post(worker, message, self.postmark(Some(source)))
    }

    /// Sends to one worker if there is room; otherwise hands the message back.
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

    /// Asks the next worker in turn.
    pub fn request(&self, message: W::Message) -> Result<PendingReply<W>, WorkerError> {
        self.request_to(self.next_turn(), message)
    }

    /// Asks one worker.
    pub fn request_to(&self, worker: usize, message: W::Message) -> Result<PendingReply<W>, WorkerError> {
        let sent_at = self.timestamps.then(Instant::now);
        let (ticket, receiver) = slot(Postmark { source: None, sent_at });
        self.post(worker, message, ticket)?;
        Ok(PendingReply { receiver, worker })
    }

    /// Asks the worker that the partitioner chooses for the message.
    pub fn request_partitioned(&self, message: W::Message) -> Result<PendingReply<W>, WorkerError> {
        let worker = choose(self.partitioner.as_ref(), &message, self.workers())?;
        self.request_to(worker, message)
    }

    /// Asks the worker that the partitioner chooses for the message, if there is room in its queue.
    pub fn try_request_partitioned(&self, message: W::Message) -> Result<PendingReply<W>, WorkerError> {
        let worker = choose(self.partitioner.as_ref(), &message, self.workers())?;
        let sent_at = self.timestamps.then(Instant::now);
        let (ticket, receiver) = slot(Postmark { source: None, sent_at });
        self.try_post(worker, message, ticket).map_err(|(message, error)| {
            discard(message);
            error
        })?;
        Ok(PendingReply { receiver, worker })
    }

    /// Stops handling messages; they wait in the queues. What a worker has taken out already is still handled.
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

    /// How each worker is.
    pub fn health(&self) -> Vec<WorkerHealth> {
        let health = self.mailboxes.iter().map(|mailbox| WorkerHealth {
            status: mailbox.status.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone(),
            paused: mailbox.paused.load(Ordering::Acquire),
            handled: mailbox.handled.load(Ordering::Relaxed),
            restarts: mailbox.restarts.load(Ordering::Relaxed),
            queued: mailbox.queue.len(),
        });
        health.collect()
    }

    /// Takes no more messages, handles every one that was sent, paused or not, and ends the threads.
    pub fn stop(&self) -> Vec<WorkerHealth> {
        self.close_and_join();
        self.health()
    }

    fn start_worker<F>(&self, index: usize, options: &PoolOptions, make: &Arc<F>) -> Result<(), WorkerError>
    where
        F: Fn(usize) -> W + Send + Sync + 'static,
    {
        let (started, hears) = std::sync::mpsc::sync_channel(1);
        let (mailbox, options, make) = (Arc::clone(&self.mailboxes[index]), options.clone(), Arc::clone(make));
        let init_failed = |reason: String| WorkerError::InitFailed { worker: index, reason };
        let thread = std::thread::Builder::new()
            .name(format!("{}-{index}", options.name))
            .spawn(move || {
                if let Err(error) = settle(index, &options) {
                    let _ = started.send(Err(WorkerError::InitFailed { worker: index, reason: error.to_string() }));
                    return;
                }
                Keeper::new(index, mailbox, options, make).run(&started);
            })
            .map_err(|error| init_failed(format!("no thread: {error}")))?;
        self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(thread);
        hears.recv().unwrap_or_else(|_| Err(init_failed("its thread ended".to_owned())))
    }

    fn next_turn(&self) -> usize {
        match self.workers() {
            1 => 0,
            workers => self.turn.fetch_add(1, Ordering::Relaxed) % workers,
        }
    }

    /// What a letter that wants no reply carries: mostly nothing.
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
    fn wait_for_room(&self, mailbox: &Mailbox<W>, worker: usize, letter: Letter<W>) -> Result<(), WorkerError> {
        let mut unsent = Some(letter);
        let mut send = || match unsent.take().map(|letter| mailbox.queue.push(letter)) {
            None | Some(Ok(())) => Poll::Ready(Ok(())),
            Some(Err(PushError::Closed(_))) => Poll::Ready(Err(self.refusal(worker))),
            Some(Err(PushError::Full(letter))) => {
                unsent = Some(letter);
                Poll::Pending
            }
        };
        if crate::sleeper::spin(crate::sleeper::SPIN_US_MAX, &mut || mailbox.queue.has_room_for_a_run())
            && let Poll::Ready(result) = send()
        {
            return result;
        }
        let sent = block_until(None, |context| {
            mailbox.room.wait(context.waker());
            send()
        });
        sent.unwrap_or(Err(WorkerError::Stopped))
    }

    /// Why a closed queue takes nothing.
    fn refusal(&self, worker: usize) -> WorkerError {
        let status = self.mailboxes[worker].status.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match &*status {
            WorkerStatus::GivenUp { cause } => cause.clone(),
            _ => WorkerError::Stopped,
        }
    }

    fn close_and_join(&self) {
        self.mailboxes.iter().for_each(|mailbox| mailbox.close());
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let here = std::thread::current().id();
        // A worker that holds the last handle of its own pool drops it on its own thread, which ends by itself.
        for thread in threads.into_iter().filter(|thread| thread.thread().id() != here) {
            // The keeper contains the worker's panics, so a join can tell nothing more.
            let _ = thread.join();
        }
    }
}

impl<W: Worker> Drop for WorkerPool<W> {
    fn drop(&mut self) {
        self.close_and_join();
    }
}

/// A reply under way. It comes from `.await` or from [`PendingReply::wait`].
#[must_use = "a reply that nobody waits for is lost; use `send` where none is needed"]
pub struct PendingReply<W: Worker> {
    receiver: Receiver<Postmark, Result<W::Reply, WorkerError>>,
    worker: usize,
}

impl<W: Worker> PendingReply<W> {
    /// Blocks until the reply is there.
    pub fn wait(mut self) -> Result<W::Reply, WorkerError> {
        match self.receiver.wait(None) {
            Ok(Some(reply)) => reply,
            _ => Err(WorkerError::Stopped),
        }
    }

    /// Blocks until the reply is there, at the longest for this time.
    pub fn wait_for(mut self, time_max: Duration) -> Result<W::Reply, WorkerError> {
        match self.receiver.wait(Instant::now().checked_add(time_max)) {
            Ok(Some(reply)) => reply,
            Ok(None) => Err(WorkerError::Stopped),
            Err(_) => Err(WorkerError::TimedOut { worker: self.worker }),
        }
    }
}

impl<W: Worker> Future for PendingReply<W> {
    type Output = Result<W::Reply, WorkerError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.receiver.poll(context).map(|reply| reply.unwrap_or(Err(WorkerError::Stopped)))
    }
}

/// Puts the calling thread where the options want it.
fn settle(index: usize, options: &PoolOptions) -> Result<(), PlacementError> {
    if let Some(cpus) = options.cpus.get(index) {
        pin_current(cpus)?;
    }
    options.realtime.map_or(Ok(()), set_realtime)
}

fn check(options: &PoolOptions) -> Result<(), WorkerError> {
    let zero = |what| WorkerError::BadOption { what, expected: "at least 1", got: "0".to_owned() };
    if options.workers == 0 {
        return Err(zero("workers"));
    }
    if options.queue_depth_max == 0 {
        return Err(zero("queue_depth_max"));
    }
    if options.name.contains('\0') {
        let (what, expected) = ("name", "no character with the code 0");
        return Err(WorkerError::BadOption { what, expected, got: options.name.escape_default().to_string() });
    }
    if options.tick_every.is_some_and(|every| every.is_zero()) {
        let (what, expected) = ("tick_every", "more than 0 s, or none");
        return Err(WorkerError::BadOption { what, expected, got: "0 s".to_owned() });
    }
    if u32::try_from(options.workers).is_err() {
        let (what, expected) = ("workers", "at most 2^32 - 1");
        return Err(WorkerError::BadOption { what, expected, got: options.workers.to_string() });
    }
    Ok(())
}
