//! Sends an op to the lane that was chosen for it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use panoply_core::{Describe, Error, Op, Result};
use panoply_lockfree::slot::slot;

use super::Router;
use crate::lane::{Lane, OpReceiver, OpRequest, OpTicket};
use crate::options::{FallbackPolicy, Wishes};

/// An op that was sent, or that waits for room.
pub(crate) struct Dispatch {
    pub(crate) receiver: OpReceiver,
    /// The first lane that it visits.
    pub(crate) lane: Arc<Lane>,
    /// The ticket that must still be put into the lane's queue, which is full.
    pub(crate) unsent: Option<OpTicket>,
}

impl Router {
    /// Called when an op is about to come. If there is only one device, its sleeping worker wakes
    /// up while the op is prepared, because waking takes longer than the preparation. Of several
    /// workers, that is the one that got the last op. With several devices, only the chosen one is
    /// woken, later.
    pub(crate) fn expect_op(&self) {
        if self.lanes.len() == 1
            && let Some(recent) = self.lanes.made(self.recent.load(Ordering::Relaxed))
        {
            recent.lane.sleeper.wake();
        }
    }

    fn note_recent(&self, lane: &Lane) {
        // Most programs send op after op to one worker: the cache line stays shared.
        if self.recent.load(Ordering::Relaxed) != lane.id {
            self.recent.store(lane.id, Ordering::Relaxed);
        }
    }

    /// Chooses a lane and sends the op there. If that lane is full, the op waits for room, or goes
    /// to the next best lane if it must not wait. If the lane is gone, the op always goes to the
    /// next best lane; where the lane of a pool is gone, that is the device's own. For a graph that
    /// must be cut, the first part is sent.
    pub(crate) fn send(&self, mut op: Op, mut wishes: Wishes, now: Instant, may_wait: bool) -> Result<Dispatch> {
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
            let target = self.lanes.made(task.forecast.target).map_or(0, |target| 1_u64 << target.lane.number);
            let Some(lane) = self.next_stop(&mut task) else { return Err(Error::ShuttingDown) };
            lane.sleeper.wake();
            self.note_recent(&lane);
            let (ticket, receiver) = slot(task);
            let (mut ticket, error) = match lane.try_send(ticket) {
                Ok(()) => return Ok(Dispatch { receiver, lane, unsent: None }),
                Err((ticket, Error::Busy { .. })) if may_wait => {
                    return Ok(Dispatch { receiver, lane, unsent: Some(ticket) });
                }
                Err(refused) => refused,
            };
            let Some(task) = ticket.take_question() else { return Err(error) };
            // No caller waits for this ticket, so its answer is never read.
            ticket.answer(Err(Error::Cancelled));
            parts = task.history.and_then(|history| history.parts);
            // The worker of a pool is gone: the next choice passes it over.
            let is_pool_gone = lane.pool.is_some() && !matches!(error, Error::Busy { .. });
            let error = first_refusal.take().unwrap_or(error);
            match task.op.filter(|_| !wishes.pinned || is_pool_gone) {
                Some(back) => op = back,
                None => return Err(error),
            }
            if !is_pool_gone {
                allowed &= !target;
                first_refusal = Some(error);
            }
        }
    }

    /// Chooses a lane, and creates the record that travels with the op.
    fn task(&self, op: Op, wishes: &Wishes, accepted: Instant) -> Result<OpRequest> {
        let forecast = self.choose(&op, wishes, accepted)?.forecast;
        let again = match wishes.policy {
            FallbackPolicy::None => false,
            FallbackPolicy::Retry { .. } => true,
            FallbackPolicy::Alternate | FallbackPolicy::Cpu => self.lanes.len() > 1,
        };
        let target = self.lanes.made(forecast.target).filter(|_| !wishes.is_second);
        let verify = target.is_some_and(|target| target.lane.is_chosen(&op, wishes.verify_every, forecast.probe));
        let (keep, session) = (verify || again && op.is_repeatable(), op.is_session());
        let (seat, history) = (None, None);
        let wishes_of = *wishes;
        let mut task = OpRequest {
            op: None,
            accepted,
            wishes: wishes_of,
            forecast,
            load_ns: 0,
            keep,
            verify,
            session,
            seat,
            history,
        };
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
