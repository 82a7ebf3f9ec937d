//! The worker's loop, one step at a time. Nothing here blocks except the engine itself, and time comes from a clock that
//! may be virtual: a thread drives it for real, a simulation drives thousands of them in one thread.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use panoply_core::clock::Clock;
use panoply_core::error::panic_message;
use panoply_core::{Backend, Describe, Engine, Error, Finished, Item, OpenOptions, Result};

use super::flights::{Flight, FlightTable, Flights};
use super::landing::Landing;
use super::{Lane, OpTicket, Times, WorkerState};
use crate::batcher::Batcher;
use crate::health::{Circuit, Verdict};
use crate::options::{Goal, Priority};
use crate::router::model::Key;

/// An engine gets no more ops while it has this much to do, as predicted: what waits in the queue can still go elsewhere, and
/// whoever is urgent goes before it. It is more than enough to keep a device busy.
const ENGINE_NS_MAX: u64 = 1_000_000;
/// A device that works by itself gets so many ops whatever they take, so that one is copied while another runs.
const ENGINE_OPS_MIN: usize = 8;

/// What the driver wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Another step at once: something was done.
    Worked,
    /// Ops are under way in the engine and none has finished: step again soon.
    InFlight,
    /// Nothing to do until an op arrives.
    Idle,
    /// Nothing to do before this time, unless an op arrives.
    IdleUntil(Instant),
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
    batcher: Batcher<Item>,
    finished: Vec<Finished>,
    last_landed: Option<Instant>,
    reopen: Reopen,
    /// Whose turn it is among the priorities.
    turn: u32,
    next_look: Instant,
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
            batcher: Batcher::new(lane.batching),
            next_look: clock.now(),
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
            turn: 0,
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
        if self.lane.is_finished() && self.flights.is_empty() {
            return self.end();
        }
        if self.lane.state() == WorkerState::Failed {
            return Step::Exit;
        }
        let now = self.clock.now();
        if self.engine.is_none() {
            return self.open(now);
        }
        if now >= self.next_look
            && let Some(step) = self.look(now)
        {
            return step;
        }
        let took = self.take_from_queue(now);
        self.take_from_batcher(now);
        if !self.batch.is_empty() {
            self.submit(now);
        }
        if self.engine.is_none() {
            return Step::Worked;
        }
        if self.flights.engine_is_idle() {
            return if took { Step::Worked } else { self.idle() };
        }
        self.poll(now, if took { Duration::ZERO } else { self.poll_wait(now, wait_max) })
    }

    /// What to do while the engine has nothing to do.
    fn idle(&mut self) -> Step {
        if self.batcher.is_empty() && self.warm_up() {
            return Step::Worked;
        }
        self.lane.note_idle();
        let look = self.lane.gate.is_ailing().then_some(self.next_look);
        match self.batcher.due().into_iter().chain(look).min() {
            Some(time) => Step::IdleUntil(time),
            None => Step::Idle,
        }
    }

    /// How long the engine may wait, so that no group of ops waits too long.
    fn poll_wait(&self, now: Instant, wait_max: Duration) -> Duration {
        self.batcher.due().map_or(wait_max, |due| due.saturating_duration_since(now).min(wait_max))
    }

    /// Asks the engine how the device is.
    fn look(&mut self, now: Instant) -> Option<Step> {
        self.next_look = now + self.lane.rules.look_every;
        let Driver { engine: Some(engine), generation, lane, .. } = self else { return None };
        let asked = inside(generation, now, || (engine.health(), engine.memory()));
        let (health, memory) = match asked {
            Ok(answers) => answers,
            Err(message) => {
                let error = self.panicked(message);
                return Some(self.lose_engine(now, error));
            }
        };
        lane.metrics.set_memory(memory);
        if let Some(fault) = health.fault.clone() {
            return Some(self.lose_engine(now, fault));
        }
        if lane.gate.examine(health, &lane.rules) {
            let report = lane.gate.report();
            tracing::info!(target: "panoply::health", device = %lane.info.id, capacity = report.capacity, full = report.full);
        }
        None
    }

    /// Compiles what an op needs that was sent elsewhere meanwhile.
    fn warm_up(&mut self) -> bool {
        let Driver { engine: Some(engine), generation, lane, clock, .. } = self else { return false };
        let Some(op) = lane.next_warm_up() else { return false };
        let key = Key::new(op.name(), op.dtype(), op.cost_class());
        let warmed = inside(generation, clock.now(), || engine.warm_up(&op));
        lane.warmed_up(key);
        if let Err(message) = warmed {
            let error = self.panicked(message);
            self.lose_engine(self.clock.now(), error);
        }
        true
    }

    fn is_superseded(&self) -> bool {
        self.generation.superseded.load(Ordering::Acquire)
    }

    fn abort(&mut self) -> Step {
        let lane = &self.lane;
        self.batcher.clear();
        self.flights.land_all(|ticket| lane.fail(ticket, Error::ShuttingDown));
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
            let (backend, lane, options, clock) = (&self.backend, &self.lane, &self.options, &self.clock);
            inside(&self.generation, now, || {
                let mut engine = backend.open(&lane.info, options)?;
                lane.objects.make_again(engine.as_mut(), clock.as_ref(), lane.limits.op_time_max)?;
                Ok(engine)
            })
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
        self.lane.set_state(WorkerState::Reopening, Some(error.clone()));
        self.evacuate(&error);
        Step::Until(not_before)
    }

    fn give_up(&mut self, error: Error) -> Step {
        self.lane.set_state(WorkerState::Failed, Some(error));
        self.lane.close();
        self.lane.refuse_queued();
        Step::Exit
    }

    /// Sends everything that waits to other devices, under its fallback policy. What has nowhere else to go stays.
    fn evacuate(&mut self, cause: &Error) {
        let Driver { lane, turn, clock, .. } = self;
        if !lane.is_open() {
            return;
        }
        let now = clock.now();
        let mut left = lane.queued() + lane.waiting();
        while left > 0 {
            let mut leaving = Vec::new();
            let popped = lane.pop_many(left, turn, |ticket| leaving.push(ticket));
            // Callers that waited for room come in, to leave at once.
            lane.made_room();
            if popped == 0 {
                break;
            }
            left = left.saturating_sub(popped);
            Self::send_away(lane, leaving, cause, now);
        }
    }

    fn send_away(lane: &Lane, leaving: Vec<OpTicket>, cause: &Error, now: Instant) {
        for mut ticket in leaving {
            let moves = ticket.question_mut().is_some_and(|task| task.evacuate(lane.number, lane.info.id, cause));
            if !moves {
                lane.requeue(ticket, now);
                continue;
            }
            if let Some(task) = ticket.question_mut() {
                lane.settle(task, Verdict::Neither, now);
            }
            lane.hand_over(ticket, true);
        }
    }

    /// Moves waiting ops into the batch, one by one, until the engine has enough to do.
    fn take_from_queue(&mut self, now: Instant) -> bool {
        let mut popped = 0;
        while popped < self.lane.limits.batch_max.max(1) && self.wants_more() && self.take_one(now) {
            popped += 1;
        }
        if popped > 0 {
            self.lane.made_room();
        }
        popped > 0
    }

    /// Whether the engine shall have another op. Ops that wait to be joined must be taken to be seen.
    fn wants_more(&self) -> bool {
        let ops_min = if self.lane.info.computes_in_submit { 1 } else { ENGINE_OPS_MIN };
        let (ops, expected_ns) = self.flights.load();
        let busy = ops >= ops_min && expected_ns >= ENGINE_NS_MAX && !self.batcher.holds();
        self.flights.room() > 0 && !busy
    }

    /// Takes an op. One whose caller has gone, or whose deadline has passed, ends here.
    fn take_one(&mut self, now: Instant) -> bool {
        let Driver { lane, flights, batch, batcher, turn, .. } = self;
        let popped = lane.pop_many(1, turn, |mut ticket: OpTicket| {
            ticket.fetch();
            if ticket.is_cancelled() {
                return cancel(lane, ticket, now);
            }
            let Some(task) = ticket.question_mut() else { return };
            if let Some(deadline) = task.wishes.deadline.filter(|deadline| now > *deadline) {
                return lane.fail(ticket, Error::DeadlineExceeded { late_by: now - deadline });
            }
            let times = Times { accepted: task.accepted, submitted: now };
            let at_once = task.wishes.goal == Goal::Latency || task.wishes.priority == Priority::Urgent;
            let service_ns = task.load_ns as f32;
            let Some((op, leg)) = task.next_item(lane.number, lane.info.id) else {
                // It came here for an input that is not here, which says that somebody lost count.
                let reason = "the op was sent to the wrong device".to_owned();
                return lane.fail(ticket, Error::DeviceUnavailable { device: lane.info.id, reason });
            };
            let key = if batcher.holds() && !at_once { op.batch_key() } else { None };
            let flight = Flight { times, leg, submitted: key.is_none(), alone: false, service_ns };
            let item = Item { token: flights.take_off(ticket, flight), op };
            match key {
                Some(key) => batcher.offer(key, item, now),
                None => batch.push(item),
            }
        });
        popped > 0
    }

    /// Moves groups of ops whose time has come into the batch.
    fn take_from_batcher(&mut self, now: Instant) {
        if self.batcher.is_empty() {
            return;
        }
        let before = self.batch.len();
        let busy = !self.flights.engine_is_idle();
        self.batcher.take_ready(now, busy, &mut self.batch);
        for item in &self.batch[before..] {
            self.flights.submit(item.token, now);
        }
    }

    fn submit(&mut self, now: Instant) {
        let Driver { engine: Some(engine), batch, generation, flights, .. } = self else { return };
        if let [only] = batch.as_slice() {
            flights.note_alone(only.token);
        }
        let _span = tracing::trace_span!(target: "panoply::engine", "submit", ops = batch.len()).entered();
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
        if under_way == 0 && !self.flights.engine_is_idle() && self.batch.is_empty() {
            let reason = "the engine lost track of the op".to_owned();
            return self.lose_engine(now, Error::DeviceFault { device: self.lane.info.id, reason });
        }
        if self.flights.engine_is_idle() || !self.batch.is_empty() {
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

    /// Answers what the engine has finished, and goes on with what has further to go.
    fn deliver(&mut self) -> bool {
        if self.finished.is_empty() {
            return false;
        }
        let now = self.clock.now();
        let before = self.lane.gate.breaker.circuit();
        let mut finished = std::mem::take(&mut self.finished);
        let mut landing = Landing::new(&self.lane, &self.flights, &finished, self.last_landed, now);
        self.last_landed = Some(now);
        for done in finished.drain(..) {
            let Some(landed) = self.flights.land(done.token) else {
                self.lane.counts.stray_answers.fetch_add(1, Ordering::Relaxed);
                continue;
            };
            if done.result.is_ok() {
                self.reopen.failures_in_a_row = 0;
            }
            if let Some((ticket, op, flight)) = landing.receive(landed, done) {
                self.batch.push(Item { token: self.flights.take_off(ticket, flight), op });
            }
        }
        self.finished = finished;
        if let Some(error) = landing.lost.take() {
            self.lose_engine(now, error);
        } else if before == Circuit::Closed && self.lane.gate.breaker.circuit() == Circuit::Open {
            let reason = "it fails too often".to_owned();
            self.evacuate(&Error::DeviceUnavailable { device: self.lane.info.id, reason });
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
        self.batcher.clear();
        self.batch.clear();
        self.flights.land_all(|ticket| lane.fail(ticket, error.clone()));
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
        self.flights.land_all(|ticket| lane.fail(ticket, error.clone()));
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

fn cancel(lane: &Lane, mut ticket: OpTicket, now: Instant) {
    if let Some(task) = ticket.question_mut() {
        lane.settle(task, Verdict::Neither, now);
    }
    lane.counts.cancelled.fetch_add(1, Ordering::Release);
    drop(ticket.take_question());
    ticket.answer(Err(Error::Cancelled));
}
