//! How ops get into a lane's queue and out of it: by priority, first come first served. A new op
//! never overtakes one that waits for room.

use std::collections::VecDeque;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::Instant;

use panoply_core::{Error, Result};
use panoply_lockfree::queue::PushError;

use super::line::OpQueue;
use super::{Lane, OpTicket};
use crate::health::Mark;
use crate::options::Priority;

/// The position at which an op waits for room in a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PlaceInLine {
    priority: Priority,
    number: u64,
}

impl Lane {
    /// Puts an op into the queue, or returns it with the reason. While any op waits for room, the
    /// queue counts as full.
    pub(crate) fn try_send(&self, mut ticket: OpTicket) -> Result<(), (OpTicket, Error)> {
        let (priority, load_ns) = priority_and_load(&mut ticket);
        self.enter(priority, load_ns, |line| line.push(ticket))
    }

    /// Puts an op that has come from another lane into the urgent queue: it has waited before, so
    /// it goes before others.
    pub(crate) fn try_relay(&self, mut ticket: OpTicket) -> Result<(), (OpTicket, Error)> {
        let (_, load_ns) = priority_and_load(&mut ticket);
        self.enter(Priority::Urgent, load_ns, |line| line.push_past(ticket))
    }

    /// Makes an op wait for room behind those that wait already. Returns the op if the lane is
    /// closed.
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

    fn line(&self, priority: Priority) -> &OpQueue {
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
        push: impl FnOnce(&OpQueue) -> Result<(), PushError<OpTicket>>,
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

    /// Takes up to `count_max` ops out. If some are urgent or patient, the queues take turns.
    pub(crate) fn pop_many(&self, count_max: usize, turn: &mut u32, mut receive: impl FnMut(OpTicket)) -> usize {
        if !self.mixed.load(Ordering::Acquire) {
            return self.normal.pop_run(count_max, receive);
        }
        let mut taken = 0;
        while taken < count_max {
            *turn = turn.wrapping_add(1) % Priority::TURNS;
            let order = Priority::order_at(*turn);
            let Some(ticket) = order.into_iter().find_map(|priority| self.line(priority).pop()) else { break };
            receive(ticket);
            taken += 1;
        }
        taken
    }

    /// Passes every queued op to `keep`, in the order in which the ops are likely to be served,
    /// with the load of all of them. An op that `keep` returns goes back to its place; `keep` is
    /// responsible for the others. The look holds one op at a time. If `keep` does not return,
    /// [`Lane::end_look`] puts the rest back, and the late look, for which `acts` then returns
    /// false, leaves them alone.
    pub(crate) fn look_through(
        &self,
        acts: &dyn Fn() -> bool,
        mut keep: impl FnMut(u64, OpTicket) -> Option<OpTicket>,
    ) {
        let mut all_ns = 0;
        {
            let mut looked_at = self.looked_at();
            for priority in [Priority::Urgent, Priority::Normal, Priority::Patient] {
                let line = self.line(priority);
                let taken = (0..line.capacity()).map_while(|_| line.pop());
                looked_at.extend(taken.map(|mut ticket| {
                    all_ns += priority_and_load(&mut ticket).1;
                    (priority, ticket)
                }));
            }
            if looked_at.is_empty() {
                return;
            }
        }
        self.note_mixed();
        while acts()
            && let Some((priority, ticket)) = self.next_looked_at()
        {
            if let Some(ticket) = keep(all_ns, ticket) {
                self.put_back(priority, ticket);
            }
        }
        self.sleeper.wake();
        self.made_room();
    }

    /// Puts back the ops that a look left behind because it did not return.
    pub(crate) fn end_look(&self) {
        while let Some((priority, ticket)) = self.next_looked_at() {
            self.put_back(priority, ticket);
        }
        self.sleeper.wake();
        self.made_room();
    }

    fn put_back(&self, priority: Priority, ticket: OpTicket) {
        // There is always room for an op that was taken out: only a line that was closed meanwhile
        // refuses it.
        if let Err(PushError::Full(ticket) | PushError::Closed(ticket)) = self.line(priority).put_back(ticket) {
            self.fail(ticket, self.refusal());
        }
    }

    fn looked_at(&self) -> MutexGuard<'_, VecDeque<(Priority, OpTicket)>> {
        self.looked_at.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn next_looked_at(&self) -> Option<(Priority, OpTicket)> {
        self.looked_at().pop_front()
    }

    /// Admits callers that wait for room. Consumers call this after they took an op out.
    pub(crate) fn made_room(&self) {
        let lines = [&self.normal, &self.urgent, &self.patient];
        let mixed = self.mixed.load(Ordering::Acquire);
        if lines[..if mixed { 3 } else { 1 }].iter().filter(|line| line.made_room()).count() > 0 {
            self.sleeper.wake();
        }
    }

    /// Number of ops in the queue.
    pub(crate) fn queued(&self) -> usize {
        let others = if self.mixed.load(Ordering::Acquire) { self.urgent.len() + self.patient.len() } else { 0 };
        self.normal.len() + others
    }

    /// Number of ops whose callers wait for room in the queue.
    pub(crate) fn waiting(&self) -> usize {
        self.normal.waiting() + self.urgent.waiting() + self.patient.waiting()
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
                    self.settle(task, Mark::Neither, now);
                    task.history().evacuated = true;
                }
                self.hand_over(ticket, false);
            }
        }
    }

    /// Takes out an op that waits for room.
    pub(crate) fn next_waiting(&self) -> Option<OpTicket> {
        [&self.normal, &self.urgent, &self.patient].into_iter().find_map(OpQueue::take_waiting)
    }

    /// Takes out an op of a closed lane, whether it is in a queue, waits for room, or was taken by
    /// a relay that is stuck. `None` when nothing is left.
    pub(crate) fn next_left(&self) -> Option<OpTicket> {
        loop {
            let lines = [&self.normal, &self.urgent, &self.patient];
            let queued = lines.into_iter().find_map(OpQueue::pop).or_else(|| self.next_waiting());
            let ticket = queued.or_else(|| Some(self.next_looked_at()?.1));
            if ticket.is_some() || self.is_finished() {
                return ticket;
            }
            // A push has claimed its slot and is about to fill it.
            std::thread::yield_now();
        }
    }

    /// Whether an idle worker has a reason to take a step.
    pub(crate) fn has_news(&self) -> bool {
        let others = || self.normal.has_news() || self.urgent.has_news() || self.patient.has_news();
        let requests = || self.warm_ups.has_news() || self.memory_requests.has_news() || self.looks.has_news();
        self.normal.queue_has_news() || (self.mixed.load(Ordering::Acquire) && others()) || requests()
    }

    /// Whether no op waits and none can arrive any more.
    pub(crate) fn is_finished(&self) -> bool {
        self.normal.is_finished() && self.urgent.is_finished() && self.patient.is_finished()
    }
}

/// The priority of an op, and its share of the backlog in nanoseconds.
fn priority_and_load(ticket: &mut OpTicket) -> (Priority, u64) {
    ticket.question_mut().map_or((Priority::Normal, 0), |task| (task.wishes.priority, task.load_ns))
}
