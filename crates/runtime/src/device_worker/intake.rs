//! How a driver takes ops out of its lane: into the engine's next batch, to an end, or to other
//! devices. These are steps of the machine in `driver`, and its rules hold here too.

use std::sync::Arc;
use std::time::Instant;

use panoply_core::op::BatchKey;
use panoply_core::sink::Watch;
use panoply_core::{Describe, Error, Item, Op};
use panoply_lockfree::foreign::discard;

use super::driver::Driver;
use super::flights::Flight;
use super::visit::{Interruption, inside};
use crate::batcher::share_of;
use crate::domain_pools::PoolName;
use crate::health::Mark;
use crate::lane::{Lane, OpRequest, OpStage, OpTicket, task};
use crate::options::{Goal, Priority};

/// The predicted work, in nanoseconds, above which an engine gets no further op. An op that still
/// waits in the queue can go to another device, and urgent ops can overtake it. One millisecond is
/// more than enough to keep a device busy.
const ENGINE_NS_MAX: u64 = 1_000_000;
/// A device that computes asynchronously gets at least this many ops, however long they take, so
/// that one is copied while another runs.
const ENGINE_OPS_MIN: usize = 8;

impl Driver {
    /// Sends every waiting op to another device, under its fallback policy. An op that has nowhere
    /// else to go stays. Returns false if the driver was replaced meanwhile.
    pub(super) fn evacuate(&mut self, cause: &Error) -> bool {
        let now = self.clock.now();
        let mut left = if self.lane.is_open() { self.lane.queued() + self.lane.waiting() } else { 0 };
        while left > 0
            && let Some(ticket) = self.pop()
        {
            left -= 1;
            let stays = self.end_op(|lane| send_away(lane, ticket, cause, now));
            if !stays {
                return false;
            }
            // Callers that waited for room get in, and their ops leave at once too.
            self.lane.made_room();
        }
        true
    }

    fn pop(&mut self) -> Option<OpTicket> {
        let mut popped = None;
        self.lane.pop_many(1, &mut self.turn, |ticket| popped = Some(ticket));
        popped
    }

    /// Moves waiting ops into the batch, one by one, until the engine has enough to do. Returns
    /// whether there were any. `None` if the driver was replaced meanwhile.
    pub(super) fn take_from_queue(&mut self, now: Instant) -> Option<bool> {
        let mut popped = 0;
        let batch_max = share_of(self.lane.limits.batch_max, self.lane.gate.capacity());
        while popped < batch_max
            && self.wants_more()
            && let Some(ticket) = self.pop()
        {
            popped += 1;
            if !self.take(ticket, now) {
                return None;
            }
        }
        if popped > 0 {
            self.lane.made_room();
        }
        Some(popped > 0)
    }

    /// Whether the engine should get another op. A batching strategy can join only ops that were
    /// taken from the queue, so a driver whose batcher holds ops back takes them even while the
    /// engine is busy. A worker for short ops holds few of them: one may turn out to be long.
    fn wants_more(&self) -> bool {
        let takes_few = self.lane.info.computes_in_submit || self.lane.pool == Some(PoolName::Short);
        let ops_min = if takes_few { 1 } else { ENGINE_OPS_MIN };
        let (ops, expected_ns) = self.flights.load();
        let busy = ops >= ops_min && expected_ns >= ENGINE_NS_MAX && !self.batcher.holds();
        self.flights.room() > 0 && !busy
    }

    /// Takes an op. An op whose caller has gone, or whose deadline has passed, ends here. Returns
    /// false if the driver was replaced meanwhile.
    fn take(&mut self, mut ticket: OpTicket, now: Instant) -> bool {
        ticket.fetch();
        if ticket.is_cancelled() {
            return self.end_op(|lane| lane.cancel(ticket, now));
        }
        let (id, device, holds) = (self.lane.id, self.lane.info.id, self.batcher.holds());
        let Some(task) = ticket.question_mut() else { return self.end_op(|_| drop(ticket)) };
        if let Some(deadline) = task.wishes.deadline.filter(|deadline| now > *deadline) {
            return self.end_op(|lane| lane.fail(ticket, Error::DeadlineExceeded { late_by: now - deadline }));
        }
        if matches!(task.op, Some(Op::Extension(_))) {
            return self.take_foreign(ticket, now);
        }
        let Some((op, leg)) = task.next_item(id, device) else { return self.refuse_stray(ticket) };
        let key = if holds && joins(task) { op.batch_key() } else { None };
        if task.session && leg == OpStage::Run {
            watch(&self.lane, &op);
        }
        self.take_off(ticket, op, leg, key, now);
        true
    }

    /// [`Driver::take`] for an extension op, whose methods are foreign code. Its ticket is in the
    /// table of flights while they are called.
    fn take_foreign(&mut self, mut ticket: OpTicket, now: Instant) -> bool {
        let (id, device) = (self.lane.id, self.lane.info.id);
        let Some(task) = ticket.question_mut() else { return self.end_op(|_| drop(ticket)) };
        let (keep, session, runs) = (task.keep, task.session, task.forecast.target == id);
        let joins = self.batcher.holds() && joins(task);
        let Some(op) = task.op.take() else { return self.refuse_stray(ticket) };
        let token = self.flights.take_off(ticket, Flight::new(now));
        let told = inside(&self.generation, self.clock.now(), || {
            if !runs {
                return (task::fetch(&op, device), None);
            }
            if session {
                watch(&self.lane, &op);
            }
            (keep.then(|| op.clone()), if joins { op.batch_key() } else { None })
        });
        if matches!(told, Err(Interruption::Replaced)) {
            return false;
        }
        // A shutdown may have answered it.
        let landed = self.flights.land(token).and_then(|landed| landed.ticket);
        let Some(mut ticket) = landed else { return self.end_op(|_| discard((op, told.ok()))) };
        let (item, leg, key, back) = match told {
            Ok((copy, key)) if runs => (op, OpStage::Run, key, copy),
            Ok((Some(transfer), _)) => (transfer, OpStage::Fetch, None, Some(op)),
            Err(Interruption::Panicked(panic)) => {
                let error = Error::invalid("op", "a description without a panic", panic);
                return self.end_op(|lane| {
                    lane.fail(ticket, error);
                    discard(op);
                });
            }
            Ok((None, _)) | Err(Interruption::Replaced) => {
                return self.refuse_stray(ticket) && self.end_op(|_| discard(op));
            }
        };
        if let Some(task) = ticket.question_mut() {
            task.op = back;
        }
        self.take_off(ticket, item, leg, key, now);
        true
    }

    /// Records an op as held by the engine, or as held back until other ops have joined it.
    fn take_off(&mut self, mut ticket: OpTicket, op: Op, leg: OpStage, key: Option<BatchKey>, now: Instant) {
        let mut flight = Flight { leg, submitted: key.is_none(), ..Flight::new(now) };
        if let Some(task) = ticket.question_mut() {
            flight.times.accepted = task.accepted;
            flight.session = leg == OpStage::Run && task.session;
            flight.service_ns = task.load_ns as f32;
            if self.lane.pool == Some(PoolName::Short) && !task.forecast.settled {
                // Its time is a guess. Nothing else goes to the engine until it is known.
                flight.service_ns = flight.service_ns.max(ENGINE_NS_MAX as f32);
            }
        }
        let item = Item { token: self.flights.take_off(ticket, flight), op };
        match key {
            Some(key) => self.batcher.offer(key, item, now),
            None => self.batch.push(item),
        }
    }

    /// Ends an op that came here for an input that is not here. This means that the stops of the op
    /// were miscounted.
    fn refuse_stray(&self, ticket: OpTicket) -> bool {
        let reason = "the op was sent to the wrong device".to_owned();
        let error = Error::DeviceUnavailable { device: self.lane.info.id, reason };
        self.end_op(|lane| lane.fail(ticket, error))
    }

    /// Moves the groups of ops that are ready into the batch.
    pub(super) fn take_from_batcher(&mut self, now: Instant) {
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
}

/// Sends an op away from a device that cannot serve it now. An op that may not move goes back into
/// the queue.
fn send_away(lane: &Lane, mut ticket: OpTicket, cause: &Error, now: Instant) {
    let moves = ticket.question_mut().is_some_and(|task| task.evacuate(lane.id, lane.info.id, cause));
    if !moves {
        return lane.requeue(ticket, now);
    }
    if let Some(task) = ticket.question_mut() {
        lane.settle(task, Mark::Neither, now);
    }
    lane.hand_over(ticket, true);
}

/// Whether an op may wait for others to join it.
fn joins(task: &OpRequest) -> bool {
    task.wishes.goal != Goal::Latency && task.wishes.priority != Priority::Urgent
}

/// Makes the lane watch the device objects that an op sends through its sinks.
fn watch(lane: &Lane, op: &Op) {
    op.for_each_part(&mut |part| {
        if let Some(sink) = part.sink() {
            sink.watch(Arc::clone(&lane.objects) as Arc<dyn Watch>);
        }
    });
}
