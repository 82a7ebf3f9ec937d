//! Sends an op to the lane that was chosen for it.

use std::sync::Arc;
use std::time::Instant;

use panoply_core::{Describe, Error, Op, Result};

use super::Router;
use crate::lane::{Lane, OpReceiver, OpTicket, Task};
use crate::options::{FallbackPolicy, Wishes};
use crate::slot::slot;

/// An op that was sent, or waits for room.
pub(crate) struct Sent {
    pub(crate) receiver: OpReceiver,
    /// The first lane that it visits.
    pub(crate) lane: Arc<Lane>,
    /// Still to be put into the lane's queue, which is full.
    pub(crate) unsent: Option<OpTicket>,
}

impl Router {
    /// An op is about to come. Where there is one device its worker, if it sleeps, wakes up while the op is made ready: waking
    /// takes longer than that. Of several devices the one that is chosen is told.
    pub(crate) fn expect_op(&self) {
        if self.lanes.len() == 1
            && let Some(only) = self.lanes.get(0)
        {
            only.lane.sleeper.wake();
        }
    }

    /// Chooses a lane and sends the op there. Where that lane is full the op waits for room, or goes to the next best one
    /// where it must not wait; where the lane is gone it goes to the next best one in any case. Of a graph that must be cut the first
    /// part is sent.
    pub(crate) fn send(&self, mut op: Op, mut wishes: Wishes, now: Instant, may_wait: bool) -> Result<Sent> {
        let mut parts = self.cut(&op, &wishes)?;
        if let Some(parts) = &parts {
            op = parts.op()?;
            (wishes.prefer, wishes.to_host) = (self.lane_of_part(parts)?, parts.is_wanted_on_host());
        }
        let mut allowed = wishes.allowed;
        let mut first_refusal = None;
        loop {
            let mut task = match self.task(op, &Wishes { allowed, ..wishes }, now) {
                Ok(task) => task,
                Err(error) => return Err(first_refusal.unwrap_or(error)),
            };
            task.wishes.allowed = wishes.allowed;
            if parts.is_some() {
                task.history().parts = parts.take();
            }
            let target = task.forecast.target;
            let Some(lane) = self.next_stop(&mut task) else { return Err(Error::ShuttingDown) };
            lane.sleeper.wake();
            let (ticket, receiver) = slot(task);
            let (mut ticket, error) = match lane.try_send(ticket) {
                Ok(()) => return Ok(Sent { receiver, lane, unsent: None }),
                Err((ticket, Error::Busy { .. })) if may_wait => {
                    return Ok(Sent { receiver, lane, unsent: Some(ticket) });
                }
                Err(refused) => refused,
            };
            let Some(task) = ticket.take_question() else { return Err(error) };
            // Nobody waits for this ticket; its answer tells nobody.
            ticket.answer(Err(Error::Cancelled));
            allowed &= !(1_u64 << target);
            parts = task.history.and_then(|history| history.parts);
            let error = first_refusal.unwrap_or(error);
            match task.op.filter(|_| !wishes.pinned) {
                Some(back) => op = back,
                None => return Err(error),
            }
            first_refusal = Some(error);
        }
    }

    /// Chooses, and makes the record that travels with the op.
    fn task(&self, op: Op, wishes: &Wishes, accepted: Instant) -> Result<Task> {
        let forecast = self.choose(&op, wishes, accepted)?.forecast;
        let again = match wishes.policy {
            FallbackPolicy::None => false,
            FallbackPolicy::Retry { .. } => true,
            FallbackPolicy::Alternate | FallbackPolicy::Cpu => self.lanes.len() > 1,
        };
        let (keep, session) = (again && op.is_repeatable(), op.is_session());
        let (seat, history) = (None, None);
        let mut task = Task { op: None, accepted, wishes: *wishes, forecast, load_ns: 0, keep, session, seat, history };
        if forecast.probe || forecast.explored {
            self.take_seat(&mut task);
        }
        if wishes.explain {
            let taken = Some((forecast.target, forecast.explored));
            task.history().alternatives = self.alternatives(&op, wishes, accepted, taken);
        }
        task.op = Some(op);
        Ok(task)
    }
}
