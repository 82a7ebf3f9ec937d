//! The worker's loop, one step at a time. Nothing here blocks except foreign code, and time comes from a clock that may be
//! virtual: a thread drives it for real, a simulation drives thousands of them in one thread.
//!
//! 1. Every call into the engine goes through `inside`, and so does the delivery of what it has finished, which calls callers'
//!    wakers. While a driver is inside it may be replaced, and then its step is its last: it touches the lane no more.
//! 2. Outside it cannot be replaced (see `tenure`), and so need not look.
//! 3. No panic leaves a step. One inside the engine loses the engine, with everything it held answered; so does one of our own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use panoply_core::clock::Clock;
use panoply_core::{Backend, Describe, Engine, Error, Finished, Item, OpenOptions, Result};
use tracing::Level;

use super::Times;
use super::flights::{Flight, FlightTable, Flights};
use super::landing::Landing;
use crate::batcher::Batcher;
use crate::foreign::{contain, discard, tell};
use crate::health::{Circuit, Mark};
use crate::lane::{Lane, Leg, OpTicket, WorkerState};
use crate::learned::model::Key;
use crate::options::{Goal, Priority};
use crate::tenure::Tenure;
use crate::time::{later, nanoseconds};

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
    pub(crate) tenure: Tenure,
    pub(crate) flights: Arc<FlightTable>,
    /// What the tenure counts time from.
    epoch: Instant,
}

/// Why a call into the engine gave nothing.
enum Interrupted {
    /// It panicked, with this message.
    Panicked(String),
    /// The driver was replaced meanwhile.
    Replaced,
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
        let generation = Arc::new(Generation { tenure: Tenure::new(), flights: flights.table(), epoch });
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
        if self.generation.tenure.is_over() {
            return Step::Exit;
        }
        match contain(|| self.take_step(wait_max)) {
            Ok(step) => step,
            Err(message) => {
                let error = self.panicked(message);
                let now = self.clock.now();
                contain(|| self.lose_engine(now, error)).unwrap_or(Step::Worked)
            }
        }
    }

    fn take_step(&mut self, wait_max: Duration) -> Step {
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
        if !self.batch.is_empty()
            && let Some(step) = self.submit(now)
        {
            return step;
        }
        if self.flights.engine_is_idle() {
            return if took { Step::Worked } else { self.idle() };
        }
        self.poll(now, if took { Duration::ZERO } else { self.poll_wait(now, wait_max) })
    }

    /// What to do while the engine has nothing to do.
    fn idle(&mut self) -> Step {
        if self.batcher.is_empty()
            && let Some(step) = self.warm_up()
        {
            return step;
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
        self.next_look = later(now, self.lane.rules.look_every);
        let Driver { engine: Some(engine), generation, lane, .. } = self else { return None };
        let asked = inside(generation, now, || (engine.health(), engine.memory()));
        let (health, memory) = match asked {
            Ok(answers) => answers,
            Err(interrupted) => return Some(self.interrupted(now, interrupted)),
        };
        lane.metrics.set_memory(memory);
        if let Some(fault) = health.fault.clone() {
            return Some(self.lose_engine(now, fault));
        }
        if lane.gate.examine(health, &lane.rules) {
            let report = lane.gate.report();
            tell(Level::INFO, || {
                let (device, capacity, full) = (lane.info.id, report.capacity, report.full);
                tracing::info!(target: "panoply::health", %device, capacity, full);
            });
        }
        None
    }

    /// Compiles what an op needs that was sent elsewhere meanwhile.
    fn warm_up(&mut self) -> Option<Step> {
        let Driver { engine: Some(engine), generation, lane, clock, .. } = self else { return None };
        let op = lane.warm_ups.next()?;
        let key = Key::new(op.name(), op.dtype(), op.cost_class());
        let now = clock.now();
        let warmed = inside(generation, now, || engine.warm_up(&op));
        // Whoever comes after a driver that was replaced may be asked for this op again.
        lane.warm_ups.done(key);
        discard(op);
        Some(warmed.map_or_else(|interrupted| self.interrupted(now, interrupted), |()| Step::Worked))
    }

    fn abort(&mut self) -> Step {
        self.let_go(&Error::ShuttingDown);
        self.lane.refuse_queued();
        self.end()
    }

    fn end(&mut self) -> Step {
        if self.drop_engine() && self.lane.state() != WorkerState::Failed {
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
                let objects = lane.objects.make_again(engine.as_mut(), clock.as_ref(), lane.limits.op_time_max)?;
                Ok((engine, objects))
            })
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(Interrupted::Panicked(message)) => Err(self.panicked(message)),
            Err(Interrupted::Replaced) => return Step::Exit,
        };
        match opened {
            Ok((engine, objects)) => {
                self.engine = Some(engine);
                objects.take_effect();
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
        let not_before = later(now, doubled.min(limits.reopen_wait_max));
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
                lane.settle(task, Mark::Neither, now);
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
                return lane.cancel(ticket, now);
            }
            let Some(task) = ticket.question_mut() else { return };
            if let Some(deadline) = task.wishes.deadline.filter(|deadline| now > *deadline) {
                return lane.fail(ticket, Error::DeadlineExceeded { late_by: now - deadline });
            }
            let times = Times { accepted: task.accepted, submitted: now };
            let at_once = task.wishes.goal == Goal::Latency || task.wishes.priority == Priority::Urgent;
            let service_ns = task.load_ns as f32;
            let joins = batcher.holds() && !at_once;
            // What an op says of itself may be foreign code, and its panic is the op's alone.
            let next = contain(|| {
                let (op, leg) = task.next_item(lane.number, lane.info.id)?;
                let key = if joins { op.batch_key() } else { None };
                let session = leg == Leg::Run && op.is_session();
                Some((op, leg, key, session))
            });
            let (op, leg, key, session) = match next {
                Ok(Some(next)) => next,
                Ok(None) => {
                    // It came here for an input that is not here, which says that somebody lost count.
                    let reason = "the op was sent to the wrong device".to_owned();
                    return lane.fail(ticket, Error::DeviceUnavailable { device: lane.info.id, reason });
                }
                Err(panic) => return lane.fail(ticket, Error::invalid("op", "a description without a panic", panic)),
            };
            let flight = Flight { times, leg, submitted: key.is_none(), alone: false, session, service_ns };
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

    fn submit(&mut self, now: Instant) -> Option<Step> {
        let Driver { engine: Some(engine), batch, generation, flights, .. } = self else { return None };
        if let [only] = batch.as_slice() {
            flights.note_alone(only.token);
        }
        let submitted = inside(generation, now, || {
            let _span = tracing::trace_span!(target: "panoply::engine", "submit", ops = batch.len()).entered();
            engine.submit(batch);
        });
        let step = submitted.err().map(|interrupted| self.interrupted(now, interrupted));
        if !self.batch.is_empty() {
            // The engine left some behind; they land with an error when it is seen to have lost track of them.
            discard(std::mem::take(&mut self.batch));
        }
        step
    }

    fn poll(&mut self, now: Instant, wait_max: Duration) -> Step {
        let Driver { engine: Some(engine), finished, generation, .. } = self else { return Step::Worked };
        generation.enter(now);
        let polled = contain(|| engine.poll(finished, wait_max));
        let delivered = if polled.is_ok() { self.deliver() } else { Delivered::default() };
        if !self.generation.tenure.leave() {
            return Step::Exit;
        }
        let under_way = match polled {
            Ok(under_way) => under_way,
            Err(message) => return self.interrupted(now, Interrupted::Panicked(message)),
        };
        if let Some(error) = delivered.lost {
            return self.lose_engine(self.clock.now(), error);
        }
        if delivered.tripped {
            let reason = "it fails too often".to_owned();
            self.evacuate(&Error::DeviceUnavailable { device: self.lane.info.id, reason });
        }
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
        if delivered.any { Step::Worked } else { Step::InFlight }
    }

    /// Answers what the engine has finished, and goes on with what has further to go. The driver is inside a call meanwhile.
    fn deliver(&mut self) -> Delivered {
        if self.finished.is_empty() {
            return Delivered::default();
        }
        let now = self.clock.now();
        let before = self.lane.gate.breaker.circuit();
        let mut finished = std::mem::take(&mut self.finished);
        let mut landing = Landing::new(&self.lane, &self.flights, &finished, self.last_landed, now);
        self.last_landed = Some(now);
        for done in finished.drain(..) {
            let Some(landed) = self.flights.land(done.token) else {
                self.lane.counts.stray_answers.fetch_add(1, Ordering::Relaxed);
                discard(done);
                continue;
            };
            if done.result.is_ok() {
                self.reopen.failures_in_a_row = 0;
            }
            match contain(|| landing.receive(landed, done)) {
                Ok(Some((ticket, op, flight))) => {
                    self.batch.push(Item { token: self.flights.take_off(ticket, flight), op });
                }
                Ok(None) => {}
                // Its ticket was answered, or dropped, which answers too.
                Err(_) => _ = self.lane.counts.panics.fetch_add(1, Ordering::Relaxed),
            }
        }
        self.finished = finished;
        let tripped = before == Circuit::Closed && self.lane.gate.breaker.circuit() == Circuit::Open;
        Delivered { any: true, lost: landing.lost.take(), tripped }
    }

    fn panicked(&self, message: String) -> Error {
        self.lane.counts.panics.fetch_add(1, Ordering::Relaxed);
        Error::EnginePanicked { device: self.lane.info.id, message }
    }

    /// Ends the step of a call that gave nothing.
    fn interrupted(&mut self, now: Instant, interrupted: Interrupted) -> Step {
        match interrupted {
            Interrupted::Replaced => Step::Exit,
            Interrupted::Panicked(message) => {
                let error = self.panicked(message);
                self.lose_engine(now, error)
            }
        }
    }

    /// Answers everything the engine held with this error, drops it, and has it opened again after a wait.
    fn lose_engine(&mut self, now: Instant, error: Error) -> Step {
        self.let_go(&error);
        if self.drop_engine() { self.back_off(now, error) } else { Step::Exit }
    }

    /// Answers everything the engine holds with this error.
    fn let_go(&mut self, error: &Error) {
        let Driver { lane, flights, batch, batcher, finished, .. } = self;
        flights.land_all(|ticket| lane.fail(ticket, error.clone()));
        discard((batcher.take_all(), std::mem::take(batch), std::mem::take(finished)));
    }

    /// Drops the engine. False where the driver was replaced meanwhile.
    fn drop_engine(&mut self) -> bool {
        let Some(engine) = self.engine.take() else { return true };
        // An engine that panics while it is dropped is gone all the same.
        !matches!(inside(&self.generation, self.clock.now(), || drop(engine)), Err(Interrupted::Replaced))
    }
}

/// What a look at the engine brought back.
#[derive(Default)]
struct Delivered {
    any: bool,
    /// The loss of the device, if an op told of it.
    lost: Option<Error>,
    /// Its circuit has opened.
    tripped: bool,
}

impl Drop for Driver {
    fn drop(&mut self) {
        let reason = "its worker was replaced".to_owned();
        let error = Error::DeviceUnavailable { device: self.lane.info.id, reason };
        // A driver that is being dropped has nobody left to tell of a panic.
        let _ = contain(|| self.let_go(&error));
        discard(self.engine.take());
    }
}

impl Generation {
    fn enter(&self, now: Instant) {
        self.tenure.enter(self.since_epoch_ns(now));
    }

    /// Replaces the driver if it has been inside one call for longer than this. Whoever does must empty its table of flights,
    /// and go on doing so until its thread has ended.
    pub(crate) fn replace_if_stuck(&self, now: Instant, inside_max: Duration) -> bool {
        let Some(entered) = self.tenure.entered() else { return false };
        let inside = Duration::from_nanos(self.since_epoch_ns(now).saturating_sub(entered));
        inside > inside_max && self.tenure.replace(entered)
    }

    fn since_epoch_ns(&self, now: Instant) -> u64 {
        nanoseconds(now.saturating_duration_since(self.epoch))
    }
}

/// Calls into the engine: a panic becomes its message, and the supervisor sees for how long the call lasts.
fn inside<T>(generation: &Generation, now: Instant, call: impl FnOnce() -> T) -> Result<T, Interrupted> {
    generation.enter(now);
    let result = contain(call);
    if generation.tenure.leave() {
        return result.map_err(Interrupted::Panicked);
    }
    discard(result);
    Err(Interrupted::Replaced)
}
