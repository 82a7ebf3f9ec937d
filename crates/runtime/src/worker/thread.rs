//! The thread of one worker of a pool: handles letters, ticks, and starts again after a failure.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use super::{BoxError, Envelope, Worker, WorkerError};
use crate::device_worker::driver::panic_message;
use crate::pool::{PoolOptions, WorkerStatus};
use crate::queue::Queue;
use crate::room::Room;
use crate::sleeper::Sleeper;
use crate::slot::Ticket;

/// How many letters are taken from the queue at once.
const LETTERS_AT_ONCE: usize = 256;

pub(crate) type Reply<W> = Result<<W as Worker>::Reply, WorkerError>;

/// A message with the duty to answer it, if it is a request.
pub(crate) struct Letter<W: Worker> {
    pub(crate) envelope: Envelope<W::Message>,
    pub(crate) reply: Option<Ticket<(), Reply<W>>>,
}

/// What a worker shares with the pool's users.
pub(crate) struct Mailbox<W: Worker> {
    pub(crate) queue: Queue<Letter<W>>,
    pub(crate) sleeper: Sleeper,
    pub(crate) room: Room,
    pub(crate) next_id: AtomicU64,
    pub(crate) handled: AtomicU64,
    pub(crate) restarts: AtomicU64,
    pub(crate) paused: AtomicBool,
    /// Written on transitions only.
    pub(crate) status: std::sync::Mutex<WorkerStatus>,
}

impl<W: Worker> Mailbox<W> {
    pub(crate) fn new(queue_depth_max: usize) -> Mailbox<W> {
        Mailbox {
            queue: Queue::new(queue_depth_max),
            sleeper: Sleeper::new(),
            room: Room::default(),
            next_id: AtomicU64::new(1),
            handled: AtomicU64::new(0),
            restarts: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            status: std::sync::Mutex::new(WorkerStatus::Starting),
        }
    }

    pub(crate) fn set_status(&self, status: WorkerStatus) {
        *self.status.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = status;
    }

    pub(crate) fn close(&self) {
        self.queue.close();
        self.sleeper.wake();
        self.room.wake_all();
    }

    fn has_news(&self) -> bool {
        self.queue.is_closed() || (self.queue.len() > 0 && !self.paused.load(Ordering::Acquire))
    }
}

/// Everything the thread owns.
pub(crate) struct Keeper<W: Worker, F> {
    pub(crate) index: usize,
    pub(crate) mailbox: Arc<Mailbox<W>>,
    pub(crate) options: PoolOptions,
    pub(crate) make: Arc<F>,
    letters: VecDeque<Letter<W>>,
    failures_in_a_row: u32,
}

/// Why a worker's life ended.
enum End {
    Finished,
    Failed(WorkerError),
}

impl<W: Worker, F: Fn(usize) -> W> Keeper<W, F> {
    pub(crate) fn new(index: usize, mailbox: Arc<Mailbox<W>>, options: PoolOptions, make: Arc<F>) -> Keeper<W, F> {
        Keeper { index, mailbox, options, make, letters: VecDeque::new(), failures_in_a_row: 0 }
    }

    /// The thread's whole life. `started` hears how the first start went.
    pub(crate) fn run(mut self, started: &SyncSender<Result<(), WorkerError>>) {
        let mut first = true;
        loop {
            let worker = self.start();
            if std::mem::take(&mut first) {
                let report = worker.as_ref().map(drop).map_err(|failure| self.init_failed(failure));
                let failed = report.is_err();
                let _ = started.send(report);
                if failed {
                    return self.leave(WorkerError::Stopped);
                }
            }
            let end = match worker {
                Ok(worker) => self.live(worker),
                Err(error) => End::Failed(error),
            };
            match end {
                End::Finished => {
                    self.mailbox.set_status(WorkerStatus::Stopped);
                    return;
                }
                End::Failed(error) => {
                    if let Err(given_up) = self.back_off(error) {
                        return self.leave(given_up);
                    }
                }
            }
        }
    }

    fn start(&self) -> Result<W, WorkerError> {
        let started = catch_unwind(AssertUnwindSafe(|| {
            let mut worker = (self.make)(self.index);
            worker.init().map(|()| worker)
        }));
        let worker = self.outcome(started)?;
        self.mailbox.set_status(WorkerStatus::Running);
        Ok(worker)
    }

    /// Handles letters until the queue is closed and empty, or until the worker fails.
    fn live(&mut self, mut worker: W) -> End {
        let mailbox = Arc::clone(&self.mailbox);
        let mut next_tick = self.options.tick_every.map(|every| Instant::now() + every);
        loop {
            if let Err(error) = self.handle_letters(&mut worker) {
                return End::Failed(error);
            }
            if let (Some(at), Some(every)) = (next_tick, self.options.tick_every)
                && Instant::now() >= at
            {
                let ticked = catch_unwind(AssertUnwindSafe(|| worker.tick()));
                if let Err(error) = self.outcome(ticked) {
                    return End::Failed(error);
                }
                next_tick = Some(Instant::now() + every);
            }
            let paused = mailbox.paused.load(Ordering::Acquire) && !mailbox.queue.is_closed();
            let limit = LETTERS_AT_ONCE.saturating_sub(self.letters.len());
            let popped =
                if paused { 0 } else { mailbox.queue.pop_many(limit, |letter| self.letters.push_back(letter)) };
            if popped > 0 {
                mailbox.room.wake_all();
            } else if mailbox.queue.is_finished() {
                // What a worker does on its way out cannot fail anybody any more.
                let _ = catch_unwind(AssertUnwindSafe(|| worker.shutdown()));
                return End::Finished;
            } else {
                mailbox.sleeper.sleep(next_tick, || mailbox.has_news());
            }
        }
    }

    /// Handles what was taken from the queue. On a failure the rest stays for the next worker.
    fn handle_letters(&mut self, worker: &mut W) -> Result<(), WorkerError> {
        while !self.letters.is_empty() {
            let mut reply = None;
            let mut handled = 0;
            let result = catch_unwind(AssertUnwindSafe(|| {
                while let Some(letter) = self.letters.pop_front() {
                    reply = letter.reply;
                    handled += 1;
                    let answer = worker.handle(letter.envelope)?;
                    if let Some(ticket) = reply.take() {
                        ticket.answer(Ok(answer));
                    }
                }
                Ok(())
            }));
            self.mailbox.handled.fetch_add(handled, Ordering::Relaxed);
            match self.outcome(result) {
                Ok(()) => self.failures_in_a_row = 0,
                Err(error) => {
                    if handled > 1 {
                        self.failures_in_a_row = 0;
                    }
                    if let Some(ticket) = reply {
                        ticket.answer(Err(error.clone()));
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// What a call into the worker's own code came to.
    fn outcome<T>(&self, result: std::thread::Result<Result<T, BoxError>>) -> Result<T, WorkerError> {
        match result {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(WorkerError::Failed { worker: self.index, reason: error.to_string() }),
            Err(panic) => Err(WorkerError::Panicked { worker: self.index, reason: panic_message(panic.as_ref()) }),
        }
    }

    fn init_failed(&self, failure: &WorkerError) -> WorkerError {
        WorkerError::InitFailed { worker: self.index, reason: failure.to_string() }
    }

    /// Waits before the next start, or says that there will be none.
    fn back_off(&mut self, error: WorkerError) -> Result<(), WorkerError> {
        self.failures_in_a_row += 1;
        if self.failures_in_a_row > self.options.restarts_max {
            let restarts = self.failures_in_a_row - 1;
            return Err(WorkerError::GivenUp { worker: self.index, restarts, reason: error.to_string() });
        }
        self.mailbox.restarts.fetch_add(1, Ordering::Relaxed);
        let doubled = self.options.restart_wait_min.saturating_mul(1 << (self.failures_in_a_row - 1).min(20));
        let wait = doubled.min(self.options.restart_wait_max);
        self.mailbox.set_status(WorkerStatus::Restarting { cause: error });
        if wait > Duration::ZERO {
            std::thread::sleep(wait);
        }
        Ok(())
    }

    /// Ends for good: every letter that is there, or still comes, is answered with the error.
    fn leave(&mut self, error: WorkerError) {
        self.mailbox.close();
        let refuse = |letter: Letter<W>| {
            if let Some(ticket) = letter.reply {
                ticket.answer(Err(error.clone()));
            }
        };
        self.letters.drain(..).for_each(refuse);
        while !self.mailbox.queue.is_finished() {
            if self.mailbox.queue.pop_many(LETTERS_AT_ONCE, refuse) == 0 {
                std::thread::yield_now();
            }
        }
        self.mailbox.room.wake_all();
        self.mailbox.set_status(WorkerStatus::GivenUp { cause: error });
    }
}
