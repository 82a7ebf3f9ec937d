//! The thread of one worker of a pool: handles letters, ticks, and restarts the worker after a
//! failure.
//!
//! The worker is foreign code, and so are its messages, replies and errors, with their destructors.
//! A panic in any of them is either the worker's failure or ignored; the thread goes on, and every
//! request is answered.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use panoply_lockfree::CacheLine;
use panoply_lockfree::foreign::{contain, discard};
use panoply_lockfree::queue::Queue;
use panoply_lockfree::sleeper::Sleeper;
use panoply_lockfree::slot::Ticket;

use super::waits::WorkerKey;
use super::{BoxError, Envelope, Worker, WorkerError};
use crate::pool::{PoolOptions, WorkerStatus};
use crate::time::later;
use panoply_lockfree::room::Room;

/// How many letters are taken from the queue at once.
const LETTERS_AT_ONCE: usize = 256;

pub(crate) type Reply<W> = Result<<W as Worker>::Reply, WorkerError>;

/// A message on its way. Most letters carry only the message, so that several fit a cache line. The
/// rare additional data (a sender, a time, the duty to reply) lies behind the ticket.
pub(crate) struct Letter<W: Worker> {
    pub(crate) message: W::Message,
    pub(crate) ticket: LetterTicket<W>,
}

pub(crate) type LetterTicket<W> = Ticket<Postmark, Reply<W>>;

/// The metadata of a letter.
#[derive(Clone, Copy, Default)]
pub(crate) struct Postmark {
    pub(crate) source: Option<u32>,
    pub(crate) sent_at: Option<Instant>,
}

/// The state that a worker shares with the pool's users.
pub(crate) struct Mailbox<W: Worker> {
    pub(crate) queue: Queue<Letter<W>>,
    /// Written by the worker for every batch, so it has its own cache line.
    pub(crate) handled: CacheLine<AtomicU64>,
    // The following fields are read by both sides and rarely written.
    pub(crate) sleeper: Sleeper,
    pub(crate) room: Room,
    pub(crate) restarts: AtomicU64,
    pub(crate) paused: AtomicBool,
    /// Identifies the worker in the table of waits.
    pub(crate) key: WorkerKey,
    /// Written on transitions only.
    pub(crate) status: std::sync::Mutex<WorkerStatus>,
}

impl<W: Worker> Mailbox<W> {
    pub(crate) fn new(queue_depth_max: usize) -> Mailbox<W> {
        Mailbox {
            queue: Queue::new(queue_depth_max),
            sleeper: Sleeper::new(),
            room: Room::default(),
            handled: CacheLine(AtomicU64::new(0)),
            restarts: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            key: WorkerKey::new(),
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

    /// Whether a sender need not wait: there is room, or there never will be.
    pub(crate) fn takes_or_refuses(&self) -> bool {
        self.queue.len() < self.queue.capacity() || self.queue.is_closed()
    }

    fn has_news(&self) -> bool {
        self.queue.is_closed() || (self.queue.has_news() && !self.paused.load(Ordering::Acquire))
    }
}

/// The state that the worker's thread owns.
pub(crate) struct WorkerContext<W: Worker, F> {
    pub(crate) index: usize,
    pub(crate) mailbox: Arc<Mailbox<W>>,
    pub(crate) options: PoolOptions,
    pub(crate) make: Arc<F>,
    /// Letters taken from the queue, each with its number.
    letters: VecDeque<(u64, Letter<W>)>,
    failures_in_a_row: u32,
}

/// How one worker value ended.
enum WorkerEnd {
    Finished,
    Failed(WorkerError),
}

impl<W: Worker, F: Fn(usize) -> W> WorkerContext<W, F> {
    pub(crate) fn new(
        index: usize,
        mailbox: Arc<Mailbox<W>>,
        options: PoolOptions,
        make: Arc<F>,
    ) -> WorkerContext<W, F> {
        WorkerContext { index, mailbox, options, make, letters: VecDeque::new(), failures_in_a_row: 0 }
    }

    /// The main function of the thread. `started` receives the result of the first start.
    pub(crate) fn run(mut self, started: Ticket<(), Result<(), WorkerError>>) {
        self.mailbox.key.settle();
        if let Err(reason) = contain(|| self.serve(started)) {
            // In any case, no caller may wait for an answer from a thread that is gone.
            self.leave(WorkerError::Panicked { worker: self.index, reason });
        }
    }

    fn serve(&mut self, started: Ticket<(), Result<(), WorkerError>>) {
        let mut started = Some(started);
        loop {
            let worker = self.start();
            if let Some(started) = started.take() {
                let report = worker.as_ref().map(drop).map_err(|failure| self.init_failed(failure));
                let failed = report.is_err();
                started.answer(report);
                if failed {
                    return self.leave(WorkerError::Stopped);
                }
            }
            let end = match worker {
                Ok(worker) => self.live(worker),
                Err(error) => WorkerEnd::Failed(error),
            };
            match end {
                WorkerEnd::Finished => {
                    self.mailbox.set_status(WorkerStatus::Stopped);
                    return;
                }
                WorkerEnd::Failed(error) => {
                    if let Err(given_up) = self.back_off(error) {
                        return self.leave(given_up);
                    }
                }
            }
        }
    }

    fn start(&self) -> Result<W, WorkerError> {
        let started = contain(|| {
            let mut worker = (self.make)(self.index);
            worker.init().map(|()| worker)
        });
        let worker = self.outcome(started)?;
        self.mailbox.set_status(WorkerStatus::Running);
        Ok(worker)
    }

    /// Runs one worker value to its end. The result is known before the value is dropped, and its
    /// destructor does not change it.
    fn live(&mut self, mut worker: W) -> WorkerEnd {
        let end = self.work(&mut worker);
        discard(worker);
        end
    }

    /// Handles letters until the queue is closed and empty, or until the worker fails.
    fn work(&mut self, worker: &mut W) -> WorkerEnd {
        let mailbox = Arc::clone(&self.mailbox);
        let mut next_tick = self.options.tick_every.map(|every| later(Instant::now(), every));
        loop {
            if let Err(error) = self.handle_letters(worker) {
                return WorkerEnd::Failed(error);
            }
            if let (Some(at), Some(every)) = (next_tick, self.options.tick_every)
                && Instant::now() >= at
            {
                let ticked = contain(|| worker.tick());
                if let Err(error) = self.outcome(ticked) {
                    return WorkerEnd::Failed(error);
                }
                next_tick = Some(later(Instant::now(), every));
            }
            let paused = mailbox.paused.load(Ordering::Acquire) && !mailbox.queue.is_closed();
            let limit = LETTERS_AT_ONCE.saturating_sub(self.letters.len());
            let keep = |position: usize, letter| self.letters.push_back((position as u64 + 1, letter));
            let popped = if paused { 0 } else { mailbox.queue.pop_numbered(limit, keep) };
            if popped > 0 {
                mailbox.room.wake_all();
            } else if mailbox.queue.is_finished() {
                // A failure of `shutdown` can no longer affect any request.
                let _ = contain(|| worker.shutdown());
                return WorkerEnd::Finished;
            } else {
                mailbox.sleeper.sleep(next_tick, || mailbox.has_news());
            }
        }
    }

    /// Handles the letters taken from the queue. On a failure, the rest stays for the next worker.
    fn handle_letters(&mut self, worker: &mut W) -> Result<(), WorkerError> {
        while !self.letters.is_empty() {
            let mut unanswered = LetterTicket::<W>::none();
            let mut handled = 0;
            let target = self.index as u32;
            let result = contain(|| {
                while let Some((id, Letter { message, ticket })) = self.letters.pop_front() {
                    handled += 1;
                    unanswered = ticket;
                    let Postmark { source, sent_at } = unanswered.take_question().unwrap_or_default();
                    let answer = worker.handle(Envelope { id, source, target, sent_at, message })?;
                    std::mem::replace(&mut unanswered, Ticket::none()).answer(Ok(answer));
                }
                Ok(())
            });
            self.mailbox.handled.fetch_add(handled, Ordering::Relaxed);
            match self.outcome(result) {
                Ok(()) => self.failures_in_a_row = 0,
                Err(error) => {
                    if handled > 1 {
                        self.failures_in_a_row = 0;
                    }
                    unanswered.answer(Err(error.clone()));
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// The result of a call into the worker's own code.
    fn outcome<T>(&self, result: Result<Result<T, BoxError>, String>) -> Result<T, WorkerError> {
        let worker = self.index;
        match result {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => {
                let reason = contain(|| error.to_string()).unwrap_or_else(|panic| panic);
                discard(error);
                Err(WorkerError::Failed { worker, reason })
            }
            Err(reason) => Err(WorkerError::Panicked { worker, reason }),
        }
    }

    fn init_failed(&self, failure: &WorkerError) -> WorkerError {
        WorkerError::InitFailed { worker: self.index, reason: failure.to_string() }
    }

    /// Waits before the next start, or returns the error if there will be none.
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
        // A pool that is stopped meanwhile must not wait for this.
        let (mailbox, start) = (&self.mailbox, Instant::now());
        while start.elapsed() < wait && !mailbox.queue.is_closed() {
            mailbox.sleeper.rest(Some(later(start, wait)), || mailbox.queue.is_closed());
        }
        Ok(())
    }

    /// Ends the worker: every letter that is in the queue, or still arrives, is answered with the
    /// error.
    fn leave(&mut self, error: WorkerError) {
        self.mailbox.close();
        let refuse = |letter: Letter<W>| {
            letter.ticket.answer(Err(error.clone()));
            discard(letter.message);
        };
        self.letters.drain(..).for_each(|(_, letter)| refuse(letter));
        while !self.mailbox.queue.is_finished() {
            if self.mailbox.queue.pop_many(LETTERS_AT_ONCE, refuse) == 0 {
                std::thread::yield_now();
            }
        }
        self.mailbox.room.wake_all();
        self.mailbox.set_status(WorkerStatus::GivenUp { cause: error });
    }
}
