//! What callers, the worker and its supervisor share.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use panoply_core::clock::Clock;
use panoply_core::{DeviceId, DeviceInfo, Error, ErrorKind, Op, Result};
use tracing::Level;

use super::line::Line;
use super::objects::Objects;
use super::task::Place;
use super::{OpTicket, Task, WorkerCounters, WorkerLimits, WorkerReport, WorkerState};
use crate::batcher::Batching;
use crate::foreign::{discard, tell};
use crate::health::{Gate, HealthRules, Verdict};
use crate::options::{Priority, nanoseconds};
use crate::queue::{PushError, Queue};
use crate::relay::Inlet;
use crate::router::links::Links;
use crate::router::model::{Key, Model};
use crate::sleeper::Sleeper;
use crate::sync::CacheLine;
use crate::telemetry::LaneMetrics;

/// A device may be explored for this long, and for one in so many nanoseconds of its life.
const EXPLORED_NS_FIRST: u64 = 50_000_000;
const EXPLORED_ONE_IN: u64 = 32;
const RUN: u8 = 0;
const DRAIN: u8 = 1;
const ABORT: u8 = 2;

/// How many ops may wait for their kernels to be compiled.
const WARM_UPS_MAX: usize = 16;
/// Of so many ops taken from mixed queues, one comes from the most patient.
const TURNS: u32 = 8;

/// One device as the runtime sees it.
pub(crate) struct Lane {
    /// Its number among the lanes of its runtime.
    pub(crate) number: u8,
    pub(crate) info: DeviceInfo,
    pub(crate) limits: WorkerLimits,
    pub(crate) rules: HealthRules,
    pub(crate) batching: Batching,
    pub(crate) sleeper: Sleeper,
    pub(crate) counts: Counts,
    pub(crate) model: Model,
    pub(crate) links: Links,
    pub(crate) gate: Gate,
    pub(crate) metrics: LaneMetrics,
    /// The device objects that a lost engine's successor makes again.
    pub(crate) objects: Objects,
    /// Ops sent to learn how fast the device is that have not come back.
    pub(crate) exploring: AtomicU32,
    /// How long the device worked on such ops.
    pub(crate) explored_ns: AtomicU64,
    /// The work that waits or runs, in nanoseconds as predicted.
    backlog_ns: CacheLine<AtomicU64>,
    normal: Line,
    urgent: Line,
    patient: Line,
    /// Set by the first op that is urgent or patient, or was put back.
    mixed: AtomicBool,
    warm_ups: Queue<Op>,
    /// The keys of the ops in `warm_ups`, so that none is asked for twice.
    warming: [AtomicU64; WARM_UPS_MAX],
    mode: AtomicU8,
    state: AtomicU8,
    /// Written on transitions only, never on the path of an op.
    trouble: Mutex<Option<Error>>,
    inlet: Arc<Inlet>,
    clock: Arc<dyn Clock>,
    epoch: Instant,
}

/// Where an op waits for room in a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceInLine {
    priority: Priority,
    number: u64,
}

/// What the lanes of one runtime have in common.
#[derive(Clone)]
pub(crate) struct LaneSetup {
    pub(crate) limits: WorkerLimits,
    pub(crate) rules: HealthRules,
    pub(crate) batching: Batching,
    pub(crate) inlet: Arc<Inlet>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) epoch: Instant,
    /// Devices that get no lane.
    pub(crate) leave_out: Vec<DeviceId>,
}

#[derive(Default)]
pub(crate) struct Counts {
    /// Written by callers; the rest by the worker. Neither shall slow the other down.
    pub(crate) accepted: CacheLine<AtomicU64>,
    pub(crate) completed: AtomicU64,
    pub(crate) failed: AtomicU64,
    pub(crate) cancelled: AtomicU64,
    pub(crate) moved: AtomicU64,
    pub(crate) fallbacks: AtomicU64,
    pub(crate) relieved: AtomicU64,
    pub(crate) panics: AtomicU64,
    pub(crate) reopened: AtomicU64,
    pub(crate) replaced: AtomicU64,
    pub(crate) stray_answers: AtomicU64,
}

impl Lane {
    pub(crate) fn new(number: u8, info: DeviceInfo, setup: &LaneSetup) -> Lane {
        let depth = setup.limits.queue_depth_max;
        setup.inlet.expect_lane(number);
        Lane {
            number,
            info,
            limits: setup.limits.clone(),
            rules: setup.rules.clone(),
            batching: setup.batching,
            sleeper: Sleeper::new(),
            counts: Counts::default(),
            model: Model::new(),
            links: Links::default(),
            gate: Gate::new(),
            metrics: LaneMetrics::new(),
            objects: Objects::default(),
            exploring: AtomicU32::new(0),
            explored_ns: AtomicU64::new(0),
            backlog_ns: CacheLine(AtomicU64::new(0)),
            normal: Line::new(depth),
            urgent: Line::new(depth),
            patient: Line::new(depth),
            mixed: AtomicBool::new(false),
            warm_ups: Queue::new(WARM_UPS_MAX),
            warming: [const { AtomicU64::new(0) }; WARM_UPS_MAX],
            mode: AtomicU8::new(RUN),
            state: AtomicU8::new(WorkerState::Opening as u8),
            trouble: Mutex::new(None),
            inlet: Arc::clone(&setup.inlet),
            clock: Arc::clone(&setup.clock),
            epoch: setup.epoch,
        }
    }

    /// Puts an op into the queue, or hands it back with the reason. It is full for everybody while somebody waits.
    pub(crate) fn try_send(&self, mut ticket: OpTicket) -> Result<(), (OpTicket, Error)> {
        let (priority, load_ns) = priority_and_load(&mut ticket);
        self.enter(priority, load_ns, |line| line.push(ticket))
    }

    /// Puts an op that has come from another lane into the queue: it has waited before, and goes before others.
    pub(crate) fn try_relay(&self, mut ticket: OpTicket) -> Result<(), (OpTicket, Error)> {
        let (_, load_ns) = priority_and_load(&mut ticket);
        self.enter(Priority::Urgent, load_ns, |line| line.push_past(ticket))
    }

    /// Has an op wait for room behind those that wait already, or hands it back where the lane takes nothing any more.
    pub(crate) fn wait_in_line(&self, mut ticket: OpTicket) -> Result<PlaceInLine, (OpTicket, Error)> {
        let (priority, load_ns) = priority_and_load(&mut ticket);
        let mut number = 0;
        self.enter(priority, load_ns, |line| {
            number = line.wait(ticket).map_err(PushError::Closed)?;
            Ok(())
        })?;
        Ok(PlaceInLine { priority, number })
    }

    /// Ends an op whose caller has gone, if it still waits for room.
    pub(crate) fn leave_line(&self, place: PlaceInLine) {
        if let Some(ticket) = self.line(place.priority).leave(place.number) {
            self.cancel(ticket, self.clock.now());
        }
    }

    fn line(&self, priority: Priority) -> &Line {
        match priority {
            Priority::Normal => &self.normal,
            Priority::Urgent => &self.urgent,
            Priority::Patient => &self.patient,
        }
    }

    fn enter(
        &self,
        priority: Priority,
        load_ns: u64,
        push: impl FnOnce(&Line) -> Result<(), PushError<OpTicket>>,
    ) -> Result<(), (OpTicket, Error)> {
        let line = self.line(priority);
        if priority != Priority::Normal {
            self.note_mixed();
        }
        let before_ns = self.backlog_ns.fetch_add(load_ns, Ordering::Relaxed);
        match push(line) {
            Ok(()) => {
                self.counts.accepted.fetch_add(1, Ordering::Relaxed);
                self.sleeper.wake();
                self.inlet.note_backlog(before_ns);
                Ok(())
            }
            Err(PushError::Full(ticket)) => {
                self.unload(load_ns);
                let queue_depth_max = line.capacity();
                Err((ticket, Error::Busy { device: self.info.id, queue_depth_max }))
            }
            Err(PushError::Closed(ticket)) => {
                self.unload(load_ns);
                Err((ticket, self.refusal()))
            }
        }
    }

    fn note_mixed(&self) {
        if !self.mixed.load(Ordering::Relaxed) {
            self.mixed.store(true, Ordering::Release);
        }
    }

    /// Takes up to so many ops out, by turns where some are urgent or patient.
    pub(crate) fn pop_many(&self, count_max: usize, turn: &mut u32, mut receive: impl FnMut(OpTicket)) -> usize {
        if !self.mixed.load(Ordering::Acquire) {
            return self.normal.pop_run(count_max, receive);
        }
        let mut taken = 0;
        while taken < count_max {
            *turn = turn.wrapping_add(1) % TURNS;
            let order = match *turn {
                0 => [&self.patient, &self.normal, &self.urgent],
                3 | 6 => [&self.normal, &self.patient, &self.urgent],
                _ => [&self.urgent, &self.normal, &self.patient],
            };
            let Some(ticket) = order.into_iter().find_map(Line::pop) else { break };
            receive(ticket);
            taken += 1;
        }
        taken
    }

    /// Takes every op out of the queue to be looked at, each with the number of its line, those first whose turn is likely
    /// first. What `keep` gives back goes to its place; for the rest `keep` is answerable.
    pub(crate) fn look_through(&self, keep: impl FnOnce(Vec<(usize, OpTicket)>) -> Vec<(usize, OpTicket)>) {
        let lines = [&self.urgent, &self.normal, &self.patient];
        let mut tickets = Vec::new();
        for (number, line) in lines.iter().enumerate() {
            let taken = (0..line.capacity()).map_while(|_| line.pop());
            tickets.extend(taken.map(|ticket| (number, ticket)));
        }
        if tickets.is_empty() {
            return;
        }
        self.note_mixed();
        for (number, ticket) in keep(tickets) {
            // There is always room for what was taken out: only a line that was closed meanwhile refuses.
            if let Err(PushError::Full(ticket) | PushError::Closed(ticket)) = lines[number].put_back(ticket) {
                self.fail(ticket, self.refusal());
            }
        }
        self.sleeper.wake();
        self.made_room();
    }

    /// Called by consumers after they took something out: callers that wait get in.
    pub(crate) fn made_room(&self) {
        let lines = [&self.normal, &self.urgent, &self.patient];
        let mixed = self.mixed.load(Ordering::Acquire);
        if lines[..if mixed { 3 } else { 1 }].iter().filter(|line| line.made_room()).count() > 0 {
            self.sleeper.wake();
        }
    }

    /// Ops in the queue.
    pub(crate) fn queued(&self) -> usize {
        let others = if self.mixed.load(Ordering::Acquire) { self.urgent.len() + self.patient.len() } else { 0 };
        self.normal.len() + others
    }

    /// Ops whose callers wait for room in the queue.
    pub(crate) fn waiting(&self) -> usize {
        self.normal.waiting() + self.urgent.waiting() + self.patient.waiting()
    }

    /// Ops that were accepted and have not ended, about.
    pub(crate) fn under_way(&self) -> u64 {
        let counts = &self.counts;
        let ended = [&counts.completed, &counts.failed, &counts.cancelled, &counts.moved];
        let ended: u64 = ended.iter().map(|counter| counter.load(Ordering::Relaxed)).sum();
        counts.accepted.load(Ordering::Relaxed).saturating_sub(ended)
    }

    /// Whether everything that was accepted has ended.
    pub(crate) fn is_quiet(&self) -> bool {
        let counts = &self.counts;
        let ended = [&counts.completed, &counts.failed, &counts.cancelled, &counts.moved];
        let ended: u64 = ended.iter().map(|counter| counter.load(Ordering::Acquire)).sum();
        ended >= counts.accepted.load(Ordering::Acquire)
    }

    /// The work that waits or runs, in nanoseconds as predicted.
    pub(crate) fn backlog_ns(&self) -> u64 {
        self.backlog_ns.load(Ordering::Relaxed)
    }

    /// Whether an op may be sent to learn how fast the device is: one at a time, and for a small part of all time, so that a
    /// slow device costs no more to know than a fast one.
    pub(crate) fn may_be_explored(&self, now: Instant) -> bool {
        let allowed_ns = EXPLORED_NS_FIRST + self.since_epoch_ns(now) / EXPLORED_ONE_IN;
        self.exploring.load(Ordering::Relaxed) == 0 && self.explored_ns.load(Ordering::Relaxed) < allowed_ns
    }

    /// Nanoseconds since the lane's epoch.
    pub(crate) fn since_epoch_ns(&self, now: Instant) -> u64 {
        nanoseconds(now.saturating_duration_since(self.epoch))
    }

    pub(crate) fn state(&self) -> WorkerState {
        WorkerState::from_u8(self.state.load(Ordering::Acquire))
    }

    pub(crate) fn set_state(&self, state: WorkerState, trouble: Option<Error>) {
        if self.put_state(state, trouble.clone()) {
            self.tell_state(state, trouble.as_ref());
        }
    }

    /// [`Lane::set_state`] that tells nobody, for those who hold a lock. Returns whether there is something to tell.
    pub(crate) fn put_state(&self, state: WorkerState, trouble: Option<Error>) -> bool {
        *self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = trouble;
        self.state.swap(state as u8, Ordering::AcqRel) != state as u8
    }

    pub(crate) fn tell_state(&self, state: WorkerState, trouble: Option<&Error>) {
        tell(Level::INFO, || {
            tracing::info!(target: "panoply::health", device = %self.info.id, ?state, ?trouble, "device worker");
        });
    }

    /// Gives the device up: what waits goes elsewhere, and the worker ends with what it has under way.
    pub(crate) fn retire(&self) {
        let reason = "it was not found any more".to_owned();
        let cause = Error::DeviceLost { device: self.info.id, reason };
        self.set_state(WorkerState::Failed, Some(cause));
        self.close();
        self.refuse_queued();
    }

    /// Takes no more ops, and ends the worker when the ones it has are done.
    pub(crate) fn drain(&self) {
        self.mode.fetch_max(DRAIN, Ordering::AcqRel);
        self.close();
    }

    /// Takes no more ops, and answers the ones it has with [`Error::ShuttingDown`].
    pub(crate) fn abort(&self) {
        self.mode.fetch_max(ABORT, Ordering::AcqRel);
        self.close();
    }

    pub(crate) fn is_aborting(&self) -> bool {
        self.mode.load(Ordering::Acquire) == ABORT
    }

    /// Called by the worker when it has run out of work.
    pub(crate) fn note_idle(&self) {
        self.inlet.note_idle();
    }

    /// Whether an idle worker has a reason to take a step.
    pub(crate) fn has_news(&self) -> bool {
        let others = || self.normal.has_news() || self.urgent.has_news() || self.patient.has_news();
        self.normal.queue_has_news() || (self.mixed.load(Ordering::Acquire) && others()) || self.warm_ups.has_news()
    }

    /// Whether nothing waits and nothing can come any more.
    pub(crate) fn is_finished(&self) -> bool {
        self.normal.is_finished() && self.urgent.is_finished() && self.patient.is_finished()
    }

    /// Refuses everything from now on, without ending the worker's duty to what it has. Callers that wait for room have not
    /// got in, and never will.
    pub(crate) fn close(&self) {
        let lines = [&self.normal, &self.urgent, &self.patient];
        lines.iter().for_each(|line| line.close());
        self.sleeper.wake();
        for line in lines {
            line.take_waiting(|ticket| self.fail(ticket, self.refusal()));
        }
    }

    /// Answers everything that waits in the closed queues, or hands it on.
    pub(crate) fn refuse_queued(&self) {
        while !self.is_finished() {
            let mut popped = 0;
            for line in [&self.normal, &self.urgent, &self.patient] {
                while let Some(ticket) = line.pop() {
                    self.fail(ticket, self.refusal());
                    popped += 1;
                }
            }
            if popped == 0 {
                // A push has claimed its slot and is about to fill it.
                std::thread::yield_now();
            }
        }
    }

    /// Ends an op with an error: it goes elsewhere where its caller allows that, and otherwise the caller gets the error.
    pub(crate) fn fail(&self, mut ticket: OpTicket, error: Error) {
        let verdict = match error.kind() {
            ErrorKind::Device if !matches!(error, Error::DeviceUnavailable { .. } | Error::ObjectLost { .. }) => {
                Verdict::Failure
            }
            _ => Verdict::Neither,
        };
        let may_move = match ticket.question_mut() {
            Some(task) => {
                self.settle(task, verdict, self.clock.now());
                let may_move = task.may_move(&error) && self.mode.load(Ordering::Acquire) != ABORT;
                if may_move {
                    task.note_failure(self.number, self.info.id, &error);
                }
                may_move
            }
            None => false,
        };
        if !may_move {
            return self.fail_finally(ticket, error);
        }
        tell(Level::DEBUG, || {
            tracing::debug!(target: "panoply::fallback", device = %self.info.id, %error, "an op leaves its device");
        });
        self.hand_over(ticket, true);
    }

    /// Ends an op that waited for room in a lane that is closed.
    pub(crate) fn refuse(&self, mut ticket: OpTicket, error: Error) {
        if let Some(task) = ticket.question_mut() {
            // It was never in the queue, and so is on no books but the router's.
            task.load_ns = 0;
        }
        self.counts.accepted.fetch_add(1, Ordering::Relaxed);
        self.fail(ticket, error);
    }

    /// Sends an op on, by way of the relay.
    pub(crate) fn hand_over(&self, ticket: OpTicket, fallback: bool) {
        match self.inlet.take(ticket, self.info.id) {
            Ok(()) => {
                self.counts.fallbacks.fetch_add(u64::from(fallback), Ordering::Relaxed);
                self.counts.moved.fetch_add(1, Ordering::Release);
            }
            Err((mut ticket, refusal)) => {
                let failure = ticket.question_mut().and_then(|task| task.history.as_mut()?.failure.take());
                self.fail_finally(ticket, failure.unwrap_or(refusal));
            }
        }
    }

    /// Puts an op that was taken out back at the end of its queue.
    pub(crate) fn requeue(&self, mut ticket: OpTicket, now: Instant) {
        let (priority, load_ns) = priority_and_load(&mut ticket);
        self.unload(load_ns);
        match self.enter(priority, load_ns, |line| line.push_past(ticket)) {
            Ok(()) => {
                self.counts.moved.fetch_add(1, Ordering::Release);
            }
            Err((mut ticket, _)) => {
                if let Some(task) = ticket.question_mut() {
                    task.load_ns = 0;
                    self.settle(task, Verdict::Neither, now);
                    task.history().evacuated = true;
                }
                self.hand_over(ticket, false);
            }
        }
    }

    /// Whether it still takes ops.
    pub(crate) fn is_open(&self) -> bool {
        !self.normal.is_closed()
    }

    /// Ends an op that was settled before with an error for its caller.
    pub(crate) fn fail_finally(&self, mut ticket: OpTicket, error: Error) {
        self.counts.failed.fetch_add(1, Ordering::Release);
        discard(ticket.take_question());
        ticket.answer(Err(error));
    }

    /// Ends an op whose caller has gone.
    pub(crate) fn cancel(&self, mut ticket: OpTicket, now: Instant) {
        if let Some(task) = ticket.question_mut() {
            self.settle(task, Verdict::Neither, now);
        }
        self.counts.cancelled.fetch_add(1, Ordering::Release);
        discard(ticket.take_question());
        ticket.answer(Err(Error::Cancelled));
    }

    /// Takes an op off the lane's books.
    pub(crate) fn settle(&self, task: &mut Task, verdict: Verdict, now: Instant) {
        self.unload(std::mem::take(&mut task.load_ns));
        // At other stops than its target an op is neither a probe nor an explorer.
        let place = if task.forecast.target == self.number { task.place.take() } else { None };
        let probe = place.is_some_and(Place::end_probe);
        if self.gate.breaker.note(verdict, probe, self.since_epoch_ns(now), &self.rules) {
            tell(Level::WARN, || {
                let device = self.info.id;
                tracing::warn!(target: "panoply::health", %device, "the device fails too often: its circuit opens");
            });
        }
    }

    pub(crate) fn unload(&self, load_ns: u64) {
        if load_ns > 0 {
            self.backlog_ns.fetch_sub(load_ns, Ordering::Relaxed);
        }
    }

    /// Asks the worker to compile what this op needs, unless it was asked before.
    pub(crate) fn ask_warm_up(&self, key: Key, op: &Op) {
        let asked = |place: &AtomicU64| place.load(Ordering::Relaxed) == key.0;
        if self.warming.iter().any(asked) {
            return;
        }
        let free = self
            .warming
            .iter()
            .find(|place| place.compare_exchange(0, key.0, Ordering::AcqRel, Ordering::Relaxed).is_ok());
        if let Some(place) = free {
            match self.warm_ups.push(op.clone()) {
                Ok(()) => self.sleeper.wake(),
                Err(_) => place.store(0, Ordering::Release),
            }
        }
    }

    /// The next op whose kernels are to be compiled.
    pub(crate) fn next_warm_up(&self) -> Option<Op> {
        self.warm_ups.pop()
    }

    /// Notes that an op's kernels have been compiled.
    pub(crate) fn warmed_up(&self, key: Key) {
        let place = self.warming.iter().find(|place| place.load(Ordering::Relaxed) == key.0);
        if let Some(place) = place {
            place.store(0, Ordering::Release);
        }
    }

    pub(crate) fn report(&self) -> WorkerReport {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = &self.counts;
        WorkerReport {
            device: self.info.id,
            state: self.state(),
            trouble: self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone(),
            queued: self.queued(),
            waiting: self.waiting(),
            queue_depth_max: self.normal.capacity(),
            counters: WorkerCounters {
                accepted: read(&counts.accepted),
                completed: read(&counts.completed),
                failed: read(&counts.failed),
                cancelled: read(&counts.cancelled),
                moved: read(&counts.moved),
                fallbacks: read(&counts.fallbacks),
                relieved: read(&counts.relieved),
                panics: read(&counts.panics),
                reopened: read(&counts.reopened),
                replaced: read(&counts.replaced),
                stray_answers: read(&counts.stray_answers),
            },
            health: self.gate.report(),
        }
    }

    /// Why a closed lane takes nothing.
    fn refusal(&self) -> Error {
        let trouble = self.trouble.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match (self.state(), &*trouble) {
            (WorkerState::Failed, Some(cause)) if self.mode.load(Ordering::Acquire) == RUN => {
                Error::DeviceUnavailable { device: self.info.id, reason: cause.to_string() }
            }
            _ => Error::ShuttingDown,
        }
    }
}

/// Whose turn an op is, and what it adds to the backlog.
fn priority_and_load(ticket: &mut OpTicket) -> (Priority, u64) {
    ticket.question_mut().map_or((Priority::Normal, 0), |task| (task.wishes.priority, task.load_ns))
}
