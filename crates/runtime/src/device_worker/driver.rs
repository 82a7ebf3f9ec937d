//! The worker's loop, one step at a time. Nothing here blocks except the engine itself, and time comes from a clock that
//! may be virtual: a thread drives it for real, a simulation drives thousands of them in one thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use panoply_core::clock::Clock;
use panoply_core::error::panic_message;
use panoply_core::{Backend, Engine, Error, Finished, Item, OpenOptions, Outcome, Report, Result};

use super::flights::{FlightTable, Flights, Landed};
use super::{Lane, OpTicket, Times, WorkerState};

/// What the driver wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Another step at once: something was done.
    Worked,
    /// Ops are under way in the engine and none has finished: step again soon.
    InFlight,
    /// Nothing to do until an op arrives.
    Idle,
    /// Nothing to do before this time.
    Until(Instant),
    /// The worker has ended, with everything answered.
    Exit,
}

/// What a driver shows to its supervisor.
pub(crate) struct Generation {
    /// Nanoseconds since the supervisor's start when the engine was last entered; zero while outside of it.
    pub(crate) entered_ns: AtomicU64,
    /// Set by the supervisor when it has given this driver up.
    pub(crate) superseded: AtomicBool,
    pub(crate) flights: Arc<FlightTable>,
    epoch: Instant,
}

/// What a driver needs to open its device.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: OpenOptions,
    pub(crate) clock: Arc<dyn Clock>,
}

/// Owns the engine.
pub(crate) struct Driver {
    lane: Arc<Lane>,
    backend: Arc<dyn Backend>,
    options: OpenOptions,
    clock: Arc<dyn Clock>,
    engine: Option<Box<dyn Engine>>,
    flights: Flights,
    generation: Arc<Generation>,
    batch: Vec<Item>,
    finished: Vec<Finished>,
    last_landed: Option<Instant>,
    reopen: Reopen,
}

/// When to open the device again. A failure is a failed attempt to open it, or its loss; an op that succeeds ends the
/// count.
#[derive(Default)]
struct Reopen {
    failures_in_a_row: u32,
    not_before: Option<Instant>,
    opened_before: bool,
}

impl Driver {
    pub(crate) fn new(lane: Arc<Lane>, opener: Opener, epoch: Instant) -> Driver {
        let Opener { backend, options, clock } = opener;
        let flights = Flights::new(lane.limits.in_flight_max, epoch);
        let generation = Arc::new(Generation {
            entered_ns: AtomicU64::new(0),
            superseded: AtomicBool::new(false),
            flights: flights.table(),
            epoch,
        });
        Driver {
            lane,
            backend,
            options,
            clock,
            engine: None,
            flights,
            generation,
            batch: Vec::new(),
            finished: Vec::new(),
            last_landed: None,
            reopen: Reopen::default(),
        }
    }

    pub(crate) fn lane(&self) -> Arc<Lane> {
        Arc::clone(&self.lane)
    }

    pub(crate) fn generation(&self) -> Arc<Generation> {
        Arc::clone(&self.generation)
    }

    /// One step. While ops are under way and none has finished the engine may wait up to `wait_max`.
    pub(crate) fn step(&mut self, wait_max: Duration) -> Step {
        if self.is_superseded() {
            return Step::Exit;
        }
        if self.lane.is_aborting() {
            return self.abort();
        }
        if self.lane.queue.is_finished() && self.flights.is_empty() {
            return self.end();
        }
        if self.lane.state() == WorkerState::Failed {
            return Step::Exit;
        }
        let now = self.clock.now();
        if self.engine.is_none() {
            return self.open(now);
        }
        let took = self.take_from_queue(now);
        if !self.batch.is_empty() {
            self.submit(now);
        }
        if self.engine.is_none() {
            return Step::Worked;
        }
        if self.flights.is_empty() {
            return if took { Step::Worked } else { Step::Idle };
        }
        self.poll(now, if took { Duration::ZERO } else { wait_max })
    }

    fn is_superseded(&self) -> bool {
        self.generation.superseded.load(Ordering::Acquire)
    }

    fn abort(&mut self) -> Step {
        self.flights.land_all(|ticket, _| self.lane.fail(ticket, Error::ShuttingDown));
        self.lane.refuse_queued();
        self.end()
    }

    fn end(&mut self) -> Step {
        self.drop_engine();
        if self.lane.state() != WorkerState::Failed {
            self.lane.set_state(WorkerState::Stopped, None);
        }
        Step::Exit
    }

    fn open(&mut self, now: Instant) -> Step {
        if let Some(not_before) = self.reopen.not_before
            && now < not_before
        {
            return Step::Until(not_before);
        }
        let opened = {
            let (backend, lane, options) = (&self.backend, &self.lane, &self.options);
            inside(&self.generation, now, || backend.open(&lane.info, options))
        };
        match opened.unwrap_or_else(|message| Err(self.panicked(message))) {
            Ok(engine) => {
                self.engine = Some(engine);
                if std::mem::replace(&mut self.reopen.opened_before, true) {
                    self.lane.counts.reopened.fetch_add(1, Ordering::Relaxed);
                }
                self.lane.set_state(WorkerState::Ready, None);
                Step::Worked
            }
            Err(error) => self.back_off(now, error),
        }
    }

    /// Plans the next attempt to open the device, or gives it up.
    fn back_off(&mut self, now: Instant, error: Error) -> Step {
        let limits = &self.lane.limits;
        self.reopen.failures_in_a_row += 1;
        if self.reopen.failures_in_a_row > limits.reopen_attempts_max {
            return self.give_up(error);
        }
        let doubled = limits.reopen_wait_min.saturating_mul(1 << (self.reopen.failures_in_a_row - 1).min(20));
        let not_before = now + doubled.min(limits.reopen_wait_max);
        self.reopen.not_before = Some(not_before);
        self.lane.set_state(WorkerState::Reopening, Some(error));
        Step::Until(not_before)
    }

    fn give_up(&mut self, error: Error) -> Step {
        self.lane.set_state(WorkerState::Failed, Some(error));
        self.lane.close();
        self.lane.refuse_queued();
        Step::Exit
    }

    /// Moves waiting ops into the batch. Ops whose callers have gone, or whose deadlines have passed, end here.
    fn take_from_queue(&mut self, now: Instant) -> bool {
        let Driver { lane, flights, batch, .. } = self;
        let count_max = lane.limits.batch_max.max(1).min(flights.room());
        let popped = lane.queue.pop_many(count_max, |mut ticket| {
            if ticket.is_cancelled() {
                lane.counts.cancelled.fetch_add(1, Ordering::Relaxed);
                return ticket.answer(Err(Error::Cancelled));
            }
            let Some(task) = ticket.take_question() else { return };
            match task.deadline {
                Some(deadline) if now > deadline => {
                    lane.fail(ticket, Error::DeadlineExceeded { late_by: now - deadline });
                }
                _ => {
                    let times = Times { accepted: task.accepted, submitted: now };
                    batch.push(Item { token: flights.take_off(ticket, times), op: task.op });
                }
            }
        });
        if popped > 0 {
            lane.made_room();
        }
        popped > 0
    }

    fn submit(&mut self, now: Instant) {
        let Driver { engine: Some(engine), batch, generation, .. } = self else { return };
        if let Err(message) = inside(generation, now, || engine.submit(batch)) {
            let error = self.panicked(message);
            self.lose_engine(now, error);
        }
        self.batch.clear();
    }

    fn poll(&mut self, now: Instant, wait_max: Duration) -> Step {
        let Driver { engine: Some(engine), finished, generation, .. } = self else { return Step::Worked };
        let under_way = match inside(generation, now, || engine.poll(finished, wait_max)) {
            Ok(under_way) => under_way,
            Err(message) => {
                let error = self.panicked(message);
                return self.lose_engine(now, error);
            }
        };
        let delivered = self.deliver();
        if under_way == 0 && !self.flights.is_empty() {
            let reason = "the engine lost track of the op".to_owned();
            return self.lose_engine(now, Error::DeviceFault { device: self.lane.info.id, reason });
        }
        if self.flights.is_empty() {
            return Step::Worked;
        }
        // The device works its ops off in order, so it hangs when nothing has landed for too long, however many wait.
        let since = self.flights.oldest().map(|oldest| oldest.max(self.last_landed.unwrap_or(oldest)));
        let overdue = since.is_some_and(|since| now.saturating_duration_since(since) > self.lane.limits.op_time_max);
        if overdue {
            let after = self.lane.limits.op_time_max;
            return self.lose_engine(now, Error::Timeout { device: self.lane.info.id, after });
        }
        if delivered { Step::Worked } else { Step::InFlight }
    }

    /// Answers what the engine has finished.
    fn deliver(&mut self) -> bool {
        if self.finished.is_empty() {
            return false;
        }
        let now = self.clock.now();
        self.last_landed = Some(now);
        let mut lost = None;
        let mut finished = std::mem::take(&mut self.finished);
        for done in finished.drain(..) {
            let Some(Landed { ticket, times }) = self.flights.land(done.token) else {
                self.lane.counts.stray_answers.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            match &done.result {
                Ok(_) => self.reopen.failures_in_a_row = 0,
                Err(error @ Error::DeviceLost { .. }) => lost = Some(error.clone()),
                Err(_) => {}
            }
            if let Some(ticket) = ticket {
                answer(&self.lane, ticket, times, done, now);
            }
        }
        self.finished = finished;
        if let Some(error) = lost {
            self.lose_engine(now, error);
        }
        true
    }

    fn panicked(&self, message: String) -> Error {
        self.lane.counts.panics.fetch_add(1, Ordering::Relaxed);
        Error::EnginePanicked { device: self.lane.info.id, message }
    }

    /// Answers everything the engine held with this error, drops it, and has it opened again after a wait.
    fn lose_engine(&mut self, now: Instant, error: Error) -> Step {
        let lane = &self.lane;
        self.flights.land_all(|ticket, _| lane.fail(ticket, error.clone()));
        self.batch.clear();
        self.finished.clear();
        self.drop_engine();
        self.back_off(now, error)
    }

    fn drop_engine(&mut self) {
        if let Some(engine) = self.engine.take() {
            // An engine that panics while it is dropped is gone all the same.
            let _ = catch_unwind(AssertUnwindSafe(|| drop(engine)));
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let lane = Arc::clone(&self.lane);
        let reason = "its worker was replaced".to_owned();
        let error = Error::DeviceUnavailable { device: lane.info.id, reason };
        self.flights.land_all(|ticket, _| lane.fail(ticket, error.clone()));
        self.drop_engine();
    }
}

impl Generation {
    /// How long the engine has been inside one call, if it is.
    pub(crate) fn inside_for(&self, now: Instant) -> Option<Duration> {
        match self.entered_ns.load(Ordering::Acquire) {
            0 => None,
            entered => Some(now.saturating_duration_since(self.epoch).saturating_sub(Duration::from_nanos(entered))),
        }
    }
}

/// Calls into the engine: a panic becomes its message, and the supervisor sees for how long the call lasts.
fn inside<T>(generation: &Generation, now: Instant, call: impl FnOnce() -> T) -> Result<T, String> {
    let since_epoch = now.saturating_duration_since(generation.epoch).as_nanos();
    generation.entered_ns.store(u64::try_from(since_epoch).unwrap_or(u64::MAX).max(1), Ordering::Release);
    let result = catch_unwind(AssertUnwindSafe(call));
    generation.entered_ns.store(0, Ordering::Release);
    result.map_err(|panic| panic_message(panic.as_ref()))
}

fn answer(lane: &Lane, ticket: OpTicket, times: Times, done: Finished, now: Instant) {
    let answer = done.result.map(|output| Outcome {
        output,
        report: Report {
            device: lane.info.id,
            queued: times.submitted.saturating_duration_since(times.accepted),
            transferred: done.transferred,
            ran: now.saturating_duration_since(times.submitted),
            device_time: done.device_time,
            batch_size: done.batch_size,
            bytes_moved: done.bytes_moved,
            fallback: None,
            attempts: 1,
            predicted: None,
            alternatives: Vec::new(),
        },
    });
    let counter = if answer.is_ok() { &lane.counts.completed } else { &lane.counts.failed };
    counter.fetch_add(1, Ordering::Relaxed);
    ticket.answer(answer);
}
