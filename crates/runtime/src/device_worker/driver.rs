//! The worker's loop as a state machine that takes one step at a time. Only foreign code can block
//! here, and time comes from a clock that may be virtual: a thread drives the machine for real, and
//! a simulation drives thousands of machines in one thread.
//!
//! 1. Every call into foreign code goes through `inside`: the engine's methods, the code that ends
//!    an op (its caller's waker, the destructors of its inputs), the methods of an extension op,
//!    and event listeners. A driver that is inside may be replaced. Its step is then its last, and
//!    it does not touch the lane again.
//! 2. A driver that is outside cannot be replaced (see `tenure`), so it need not check.
//! 3. While inside, a driver holds at most one ticket itself: the ticket of the op whose code it
//!    calls. All others are in the lane or in the table of flights, where the driver's replacement
//!    and the supervisor find them.
//! 4. No panic leaves a step. A panic inside the engine, or in the driver itself, loses the engine,
//!    and every op that the engine held is answered.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use panoply_core::clock::Clock;
use panoply_core::{Backend, Engine, Error, FinishedOp, Item, OpenOptions};
use panoply_lockfree::foreign::{contain, discard, tell};
use panoply_placement::WorkerPlace;
use tracing::Level;

use super::flights::Flights;
use super::landing::Landing;
use super::visit::{Generation, Interruption, aside, inside};
use crate::batcher::Batcher;
use crate::health::Circuit;
use crate::lane::{Lane, WorkerState};
use crate::time::later;

/// A device that is overdue is watched for this fraction of the limit longer, up to the maximum
/// below, before it counts as hung: the process itself may have been stopped, and the device with
/// it.
const HUNG_AFTER_SHARE: u32 = 8;
const HUNG_AFTER_MAX: Duration = Duration::from_millis(250);
/// The least time between two looks at the device that other threads ask for.
const LOOK_WAIT_MIN: Duration = Duration::from_millis(20);

/// How often an engine is looked at after its last op, before its worker sleeps until the next.
const IDLE_LOOKS: u8 = 2;

/// When the driver wants its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DriverStep {
    /// At once: this step did something.
    Worked,
    /// Soon: ops are in flight in the engine and none has finished.
    InFlight,
    /// When an op arrives.
    Idle,
    /// At this time, or when an op arrives.
    IdleUntil(Instant),
    /// At this time, and not before.
    Until(Instant),
    /// Never: the worker has ended and every op is answered.
    Exit,
}

/// The parts that a driver needs to open its device.
#[derive(Clone)]
pub(crate) struct Opener {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) options: OpenOptions,
    pub(crate) clock: Arc<dyn Clock>,
    /// Where the worker's thread runs.
    pub(crate) place: WorkerPlace,
}

/// The worker's state machine. It owns the engine.
pub(crate) struct Driver {
    pub(super) lane: Arc<Lane>,
    backend: Arc<dyn Backend>,
    options: OpenOptions,
    pub(super) clock: Arc<dyn Clock>,
    place: WorkerPlace,
    pub(super) engine: Option<Box<dyn Engine>>,
    pub(super) flights: Flights,
    pub(super) generation: Arc<Generation>,
    pub(super) batch: Vec<Item>,
    pub(super) batcher: Batcher<Item>,
    finished: Vec<FinishedOp>,
    last_landed: Option<Instant>,
    /// Since when an answer is overdue.
    overdue_since: Option<Instant>,
    reopen: Reopen,
    /// The current position in the turns of the priorities.
    pub(super) turn: u32,
    next_look: Instant,
    /// Looks at the engine that are still due although it is idle: an engine then ends the things
    /// that it kept for further ops, such as sessions of keys.
    looks_due: u8,
    last_look: Option<Instant>,
    /// Whether another thread waits for the next look.
    is_asked: bool,
}

/// When to open the device again. A failed attempt to open the device and the loss of the device
/// both count as failures; an op that succeeds resets the count.
#[derive(Default)]
struct Reopen {
    failures_in_a_row: u32,
    not_before: Option<Instant>,
    opened_before: bool,
}

impl Driver {
    pub(crate) fn new(lane: Arc<Lane>, opener: Opener, epoch: Instant) -> Driver {
        let Opener { backend, options, clock, place } = opener;
        let flights = Flights::new(lane.limits.in_flight_max, epoch);
        let generation = Arc::new(Generation::of(flights.table(), epoch));
        Driver {
            batcher: Batcher::new(lane.batching),
            next_look: clock.now(),
            lane,
            backend,
            options,
            clock,
            place,
            engine: None,
            flights,
            generation,
            batch: Vec::new(),
            finished: Vec::new(),
            last_landed: None,
            overdue_since: None,
            reopen: Reopen::default(),
            turn: 0,
            looks_due: 0,
            last_look: None,
            is_asked: false,
        }
    }

    pub(crate) fn lane(&self) -> Arc<Lane> {
        Arc::clone(&self.lane)
    }

    pub(crate) fn generation(&self) -> Arc<Generation> {
        Arc::clone(&self.generation)
    }

    /// Takes one step. While ops are in flight and none has finished, the engine may wait for up to
    /// `wait_max`.
    pub(crate) fn step(&mut self, wait_max: Duration) -> DriverStep {
        if self.generation.tenure.is_over() {
            return DriverStep::Exit;
        }
        match contain(|| self.take_step(wait_max)) {
            Ok(step) => step,
            Err(message) => {
                let error = self.panicked(message);
                let now = self.clock.now();
                contain(|| self.lose_engine(now, error)).unwrap_or(DriverStep::Worked)
            }
        }
    }

    fn take_step(&mut self, wait_max: Duration) -> DriverStep {
        if self.lane.is_aborting() {
            return self.abort();
        }
        if self.lane.is_finished() && self.flights.is_empty() {
            return self.end();
        }
        if self.lane.state() == WorkerState::Failed {
            return DriverStep::Exit;
        }
        let is_asked = self.lane.looks.take();
        let now = self.clock.now();
        if is_asked {
            self.is_asked = true;
            self.next_look = self.next_look.min(self.last_look.map_or(now, |last| later(last, LOOK_WAIT_MIN)));
        }
        if self.engine.is_none() {
            return self.open(now);
        }
        if now >= self.next_look
            && let Some(step) = self.look(now)
        {
            return step;
        }
        if self.lane.take_tripped() {
            let reason = "its circuit was opened".to_owned();
            let error = Error::DeviceUnavailable { device: self.lane.info.id, reason };
            if !self.end_op(Lane::tell_tripped) || !self.evacuate(&error) {
                return DriverStep::Exit;
            }
        }
        self.batcher.set_capacity(self.lane.gate.capacity());
        if let Some(step) = self.answer_memory_request() {
            return step;
        }
        let Some(took) = self.take_from_queue(now) else { return DriverStep::Exit };
        self.take_from_batcher(now);
        let submits = !self.batch.is_empty();
        if submits {
            self.looks_due = IDLE_LOOKS;
            if let Some(step) = self.submit(now) {
                return step;
            }
        }
        if self.flights.engine_is_idle() {
            return if took { DriverStep::Worked } else { self.idle() };
        }
        // Each call has the whole time limit. The submission may have used up time, so the clock is
        // read again.
        let now = if submits { self.clock.now() } else { now };
        self.poll(now, if took { Duration::ZERO } else { self.poll_wait(now, wait_max) })
    }

    /// The step to take while the engine has nothing to do.
    fn idle(&mut self) -> DriverStep {
        if self.batcher.is_empty()
            && let Some(step) = self.warm_up()
        {
            return step;
        }
        self.lane.note_idle();
        let looks = self.is_asked || self.lane.gate.is_ailing() || self.looks_due > 0;
        let look = looks.then_some(self.next_look);
        match self.batcher.due().into_iter().chain(look).min() {
            Some(time) => DriverStep::IdleUntil(time),
            None => DriverStep::Idle,
        }
    }

    /// How long the engine may wait without making a group of ops wait too long.
    fn poll_wait(&self, now: Instant, wait_max: Duration) -> Duration {
        self.batcher.due().map_or(wait_max, |due| due.saturating_duration_since(now).min(wait_max))
    }

    /// Asks the engine about the device's health and memory.
    fn look(&mut self, now: Instant) -> Option<DriverStep> {
        self.next_look = later(now, self.lane.rules.look_every);
        if self.flights.engine_is_idle() {
            self.looks_due = self.looks_due.saturating_sub(1);
        }
        (self.last_look, self.is_asked) = (Some(now), false);
        let Driver { engine: Some(engine), generation, lane, clock, .. } = self else { return None };
        let asked = inside(generation, now, || (engine.health(), engine.memory()));
        let (health, memory) = match asked {
            Ok(answers) => answers,
            Err(interrupted) => return Some(self.interrupted(now, interrupted)),
        };
        lane.metrics.set_memory(memory);
        if let Some(fault) = health.fault.clone() {
            return Some(self.lose_engine(now, fault));
        }
        let changed = lane.gate.examine(health, &lane.rules);
        lane.note_look(now);
        let told = !changed
            || aside(generation, clock.now(), || {
                let report = lane.gate.report(lane.process);
                tell(Level::INFO, || {
                    let (device, capacity, full) = (lane.info.id, report.capacity, report.full);
                    tracing::info!(target: "panoply::health", %device, capacity, full);
                });
            });
        (!told).then_some(DriverStep::Exit)
    }

    /// Compiles the kernels of an op that was meanwhile sent elsewhere.
    fn warm_up(&mut self) -> Option<DriverStep> {
        let Driver { engine: Some(engine), generation, lane, clock, .. } = self else { return None };
        let (key, op) = lane.warm_ups.next()?;
        let now = clock.now();
        let warmed = inside(generation, now, || {
            let warmed = contain(|| engine.warm_up(&op));
            discard(op);
            warmed
        });
        // Marked as done even after a replacement: the next driver may then be asked for this op
        // again.
        lane.warm_ups.done(key);
        let warmed = warmed.and_then(|warmed| warmed.map_err(Interruption::Panicked));
        Some(warmed.map_or_else(|interrupted| self.interrupted(now, interrupted), |()| DriverStep::Worked))
    }

    fn abort(&mut self) -> DriverStep {
        if self.let_go(&Error::ShuttingDown) && self.refuse_queued() { self.end() } else { DriverStep::Exit }
    }

    fn end(&mut self) -> DriverStep {
        if self.drop_engine() && self.lane.state() != WorkerState::Failed {
            self.set_state(WorkerState::Stopped, None);
        }
        self.lane.refuse_memory_requests();
        DriverStep::Exit
    }

    /// Answers every op that waits in the closed lane, or hands it on. Returns false if the driver
    /// was replaced meanwhile.
    fn refuse_queued(&self) -> bool {
        while let Some(ticket) = self.lane.next_left() {
            if !self.end_op(|lane| lane.fail(ticket, lane.refusal())) {
                return false;
            }
        }
        true
    }

    /// Sets the lane's state and notifies listeners. Returns false if the driver was replaced
    /// meanwhile.
    fn set_state(&self, state: WorkerState, trouble: Option<Error>) -> bool {
        let changed = self.lane.put_state(state, trouble.clone());
        !changed || self.end_op(|lane| lane.tell_state(state, trouble.as_ref()))
    }

    /// Ends an op, or makes another call into foreign code that returns nothing. Returns false if
    /// the driver was replaced meanwhile.
    pub(super) fn end_op(&self, call: impl FnOnce(&Lane)) -> bool {
        let lane = &self.lane;
        aside(&self.generation, self.clock.now(), || call(lane))
    }

    fn open(&mut self, now: Instant) -> DriverStep {
        if let Some(not_before) = self.reopen.not_before
            && now < not_before
        {
            return DriverStep::Until(not_before);
        }
        let begun = self.place.begin();
        let opened = {
            let Driver { backend, lane, options, clock, generation, .. } = self;
            inside(generation, now, || {
                let mut engine = backend.open(&lane.info, options)?;
                let next = || generation.tenure.renew(generation.since_epoch_ns(clock.now()));
                let op_time_max = lane.limits.op_time_max;
                let objects = lane.objects.make_again(engine.as_mut(), clock.as_ref(), op_time_max, &next)?;
                Ok((engine, objects))
            })
        };
        let opened = match opened {
            Ok(opened) => opened,
            Err(Interruption::Panicked(message)) => Err(self.panicked(message)),
            Err(Interruption::Replaced) => return DriverStep::Exit,
        };
        match opened {
            Ok((engine, objects)) => {
                self.engine = Some(engine);
                self.lane.put_placement(self.place.settle(begun));
                objects.take_effect();
                if std::mem::replace(&mut self.reopen.opened_before, true) {
                    self.lane.counts.reopened.fetch_add(1, Ordering::Relaxed);
                }
                // Handles that are the last ones by now drop their recipes here.
                let stays = self.end_op(|_| discard(objects)) && self.set_state(WorkerState::Ready, None);
                if stays { DriverStep::Worked } else { DriverStep::Exit }
            }
            Err(error) => self.back_off(now, error),
        }
    }

    /// Plans the next attempt to open the device, or gives the device up.
    fn back_off(&mut self, now: Instant, error: Error) -> DriverStep {
        let limits = &self.lane.limits;
        self.reopen.failures_in_a_row += 1;
        if self.reopen.failures_in_a_row > limits.reopen_attempts_max {
            return self.give_up(error);
        }
        let doubled = limits.reopen_wait_min.saturating_mul(1 << (self.reopen.failures_in_a_row - 1).min(20));
        let not_before = later(now, doubled.min(limits.reopen_wait_max));
        self.reopen.not_before = Some(not_before);
        let stays = self.set_state(WorkerState::Reopening, Some(error.clone())) && self.evacuate(&error);
        if stays { DriverStep::Until(not_before) } else { DriverStep::Exit }
    }

    fn give_up(&mut self, error: Error) -> DriverStep {
        if self.set_state(WorkerState::Failed, Some(error)) {
            self.lane.shut();
            self.refuse_queued();
            self.lane.refuse_memory_requests();
        }
        DriverStep::Exit
    }

    fn submit(&mut self, now: Instant) -> Option<DriverStep> {
        let Driver { engine: Some(engine), batch, generation, flights, .. } = self else { return None };
        if let [only] = batch.as_slice() {
            flights.note_alone(only.token);
        }
        let submitted = inside(generation, now, || {
            let submitted = contain(|| {
                let _span = tracing::trace_span!(target: "panoply::engine", "submit", ops = batch.len()).entered();
                engine.submit(batch);
            });
            if !batch.is_empty() {
                // The engine left some ops behind. They are answered with an error once the engine
                // is found to have lost track of them.
                discard(std::mem::take(batch));
            }
            submitted
        });
        let submitted = submitted.and_then(|submitted| submitted.map_err(Interruption::Panicked));
        submitted.err().map(|interrupted| self.interrupted(now, interrupted))
    }

    fn poll(&mut self, now: Instant, wait_max: Duration) -> DriverStep {
        let Driver { engine: Some(engine), finished, generation, .. } = self else { return DriverStep::Worked };
        generation.enter(now);
        let polled = contain(|| engine.poll(finished, wait_max));
        let delivered = if polled.is_ok() { self.deliver() } else { PollResult::default() };
        if !self.generation.tenure.leave() {
            return DriverStep::Exit;
        }
        let under_way = match polled {
            Ok(under_way) => under_way,
            Err(message) => return self.interrupted(now, Interruption::Panicked(message)),
        };
        if let Some(error) = delivered.lost {
            return self.lose_engine(self.clock.now(), error);
        }
        if delivered.tripped {
            self.lane.note_tripped_elsewhere();
            let reason = "it fails too often".to_owned();
            if !self.evacuate(&Error::DeviceUnavailable { device: self.lane.info.id, reason }) {
                return DriverStep::Exit;
            }
        }
        if under_way == 0 && !self.flights.engine_is_idle() && self.batch.is_empty() {
            let reason = "the engine lost track of the op".to_owned();
            return self.lose_engine(now, Error::DeviceFault { device: self.lane.info.id, reason });
        }
        if self.flights.engine_is_idle() {
            return DriverStep::Worked;
        }
        // The device works on its ops in order, so it hangs when the next answer is overdue,
        // however many ops wait.
        let since = self.flights.owed_since(self.last_landed);
        if since.is_some_and(|since| self.hangs(now, since)) {
            let after = self.lane.limits.op_time_max;
            return self.lose_engine(now, Error::Timeout { device: self.lane.info.id, after });
        }
        if delivered.any || !self.batch.is_empty() { DriverStep::Worked } else { DriverStep::InFlight }
    }

    /// Whether the device hangs, which has owed an answer since `since`.
    fn hangs(&mut self, now: Instant, since: Instant) -> bool {
        let op_time_max = self.lane.limits.op_time_max;
        if now.saturating_duration_since(since) <= op_time_max {
            self.overdue_since = None;
            return false;
        }
        let overdue_since = *self.overdue_since.get_or_insert(now);
        now.saturating_duration_since(overdue_since) >= (op_time_max / HUNG_AFTER_SHARE).min(HUNG_AFTER_MAX)
    }

    /// Answers the ops that the engine has finished, and continues those that have another leg. The
    /// driver is inside a call meanwhile.
    fn deliver(&mut self) -> PollResult {
        if self.finished.is_empty() {
            return PollResult::default();
        }
        let now = self.clock.now();
        let before = self.lane.gate.breaker.circuit();
        let mut finished = std::mem::take(&mut self.finished);
        let caller = Landing::caller(finished.len(), &self.generation);
        let mut landing = Landing::new(&self.lane, &self.flights, &finished, self.last_landed, now, caller);
        for done in finished.drain(..) {
            let Some(landed) = self.flights.land(done.token) else {
                self.lane.counts.stray_answers.fetch_add(1, Ordering::Relaxed);
                discard(done);
                continue;
            };
            self.last_landed = Some(now);
            if done.result.is_ok() {
                self.reopen.failures_in_a_row = 0;
            }
            match contain(|| landing.receive(landed, done)) {
                Ok(Some((ticket, op, flight))) => {
                    self.batch.push(Item { token: self.flights.take_off(ticket, flight), op });
                }
                Ok(None) => {}
                // Its ticket was answered, or was dropped, which answers it too.
                Err(_) => _ = self.lane.counts.panics.fetch_add(1, Ordering::Relaxed),
            }
            // Each op's waker and destructors have the whole time limit. If the driver was
            // replaced, the tickets of the remaining ops belong to the supervisor.
            self.generation.tenure.go_on();
        }
        self.finished = finished;
        let tripped = before == Circuit::Closed && self.lane.gate.breaker.circuit() == Circuit::Open;
        PollResult { any: true, lost: landing.lost.take(), tripped }
    }

    fn panicked(&self, message: String) -> Error {
        self.lane.counts.panics.fetch_add(1, Ordering::Relaxed);
        Error::EnginePanicked { device: self.lane.info.id, message }
    }

    /// Ends the step of a call that panicked or during which the driver was replaced.
    pub(super) fn interrupted(&mut self, now: Instant, interrupted: Interruption) -> DriverStep {
        match interrupted {
            Interruption::Replaced => DriverStep::Exit,
            Interruption::Panicked(message) => {
                let error = self.panicked(message);
                self.lose_engine(now, error)
            }
        }
    }

    /// Answers every op that the engine held with this error, drops the engine, and schedules
    /// opening it again after a wait.
    fn lose_engine(&mut self, now: Instant, error: Error) -> DriverStep {
        self.overdue_since = None;
        if self.let_go(&error) && self.drop_engine() { self.back_off(now, error) } else { DriverStep::Exit }
    }

    /// Answers every op that the engine holds with this error. Returns false if the driver was
    /// replaced meanwhile.
    fn let_go(&mut self, error: &Error) -> bool {
        let Driver { lane, flights, batch, batcher, finished, generation, clock, .. } = self;
        aside(generation, clock.now(), || {
            flights.land_all(|ticket| {
                lane.fail(ticket, error.clone());
                generation.tenure.go_on();
            });
            discard((batcher.take_all(), std::mem::take(batch), std::mem::take(finished)));
        })
    }

    /// Drops the engine. Returns false if the driver was replaced meanwhile.
    fn drop_engine(&mut self) -> bool {
        let Some(engine) = self.engine.take() else { return true };
        // An engine that panics while it is dropped is gone all the same.
        aside(&self.generation, self.clock.now(), || drop(engine))
    }
}

/// The result of one poll of the engine.
#[derive(Default)]
struct PollResult {
    any: bool,
    /// The loss of the device, if an op reported it.
    lost: Option<Error>,
    /// Whether the device's circuit opened.
    tripped: bool,
}

impl Drop for Driver {
    fn drop(&mut self) {
        let reason = "its worker was replaced".to_owned();
        let error = Error::DeviceUnavailable { device: self.lane.info.id, reason };
        self.let_go(&error);
        discard(self.engine.take());
    }
}
