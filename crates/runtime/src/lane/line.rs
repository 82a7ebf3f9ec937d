//! The ops that wait for one device, at one priority, first come first served.
//!
//! 1. Callers push into `queue`, which is bounded and lock-free.
//! 2. A caller that finds the queue full and can wait leaves its ticket in `waiting`, under an
//!    increasing number. A consumer that pops from the queue moves tickets from `waiting` into it,
//!    lowest number first, whether or not their callers poll. While a ticket is in `waiting`,
//!    `push` reports a full queue, so that no later caller gets in before it. A caller that drops
//!    its future takes its ticket out, so `waiting` never has more tickets than there are callers.
//! 3. A caller puts its ticket into `waiting`, passes a sequentially consistent fence, and looks
//!    for room once more. A consumer pops, passes the same fence, and looks at `waiting`. So one of
//!    them sees the other. The lock is taken only while there are tickets in `waiting`.
//! 4. The relay pops tickets to look at them. Those that stay go to `returned`, which is popped
//!    before `queue`, so that they keep their order.
//! 5. Closing closes all three. The thread that closes a line takes out the tickets in `waiting`;
//!    nothing enters a closed line. An empty closed line can be opened again, for another worker.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Mutex, MutexGuard};

use panoply_lockfree::queue::{PushError, Queue};

use super::OpTicket;

/// One queue of ops with its waiting callers. See the module's rules.
pub(crate) struct OpQueue {
    queue: Queue<OpTicket>,
    returned: Queue<OpTicket>,
    waiting_count: AtomicUsize,
    waiting: Mutex<NumberedTickets>,
}

/// Tickets that wait for room, by their numbers.
#[derive(Default)]
struct NumberedTickets {
    next: u64,
    tickets: BTreeMap<u64, OpTicket>,
}

impl OpQueue {
    /// The size in bytes of a line for `depth` tickets, without the data of ops.
    pub(crate) fn bytes(depth: usize) -> u64 {
        Queue::<OpTicket>::bytes(depth).saturating_mul(2)
    }

    pub(crate) fn new(depth: usize) -> OpQueue {
        OpQueue {
            queue: Queue::new(depth),
            returned: Queue::new(depth),
            waiting_count: AtomicUsize::new(0),
            waiting: Mutex::default(),
        }
    }

    /// Puts a ticket in, unless the queue is full or `waiting` is not empty.
    pub(crate) fn push(&self, ticket: OpTicket) -> Result<(), PushError<OpTicket>> {
        if self.waiting_count.load(Ordering::Relaxed) > 0 && !self.queue.is_closed() {
            return Err(PushError::Full(ticket));
        }
        self.queue.push(ticket)
    }

    /// Puts a ticket of another line in, before the tickets in `waiting`.
    pub(crate) fn push_past(&self, ticket: OpTicket) -> Result<(), PushError<OpTicket>> {
        self.queue.push(ticket)
    }

    /// Puts back a ticket that was popped to be looked at. It comes out before those in the queue,
    /// in the order of putting back.
    pub(crate) fn put_back(&self, ticket: OpTicket) -> Result<(), PushError<OpTicket>> {
        match self.returned.push(ticket) {
            Err(PushError::Full(ticket)) => self.queue.push(ticket),
            other => other,
        }
    }

    /// Makes a ticket wait for room. Returns its number, or the ticket if the line is closed.
    pub(crate) fn wait(&self, ticket: OpTicket) -> Result<u64, OpTicket> {
        let mut waiting = self.lock();
        if self.queue.is_closed() {
            return Err(ticket);
        }
        let number = waiting.next;
        waiting.next += 1;
        waiting.tickets.insert(number, ticket);
        self.waiting_count.store(waiting.tickets.len(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.admit(&mut waiting);
        Ok(number)
    }

    /// Takes the ticket with this number out, if it still waits.
    pub(crate) fn leave(&self, number: u64) -> Option<OpTicket> {
        let mut waiting = self.lock();
        let ticket = waiting.tickets.remove(&number);
        self.waiting_count.store(waiting.tickets.len(), Ordering::Relaxed);
        ticket
    }

    /// Called after a pop: moves tickets from `waiting` into the queue. Returns whether any was
    /// moved.
    pub(crate) fn made_room(&self) -> bool {
        fence(Ordering::SeqCst);
        self.waiting_count.load(Ordering::Relaxed) > 0 && self.admit(&mut self.lock())
    }

    /// Takes one ticket out.
    pub(crate) fn pop(&self) -> Option<OpTicket> {
        self.returned.pop().or_else(|| self.queue.pop())
    }

    /// Takes up to `count_max` tickets out of the queue alone, for a line into which nothing was
    /// put back.
    pub(crate) fn pop_run(&self, count_max: usize, receive: impl FnMut(OpTicket)) -> usize {
        self.queue.pop_many(count_max, receive)
    }

    /// Takes the first ticket out of `waiting`. Only one: a thread that gets stuck in foreign code
    /// while it ends an op must not hold the tickets of others.
    pub(crate) fn take_waiting(&self) -> Option<OpTicket> {
        let mut waiting = self.lock();
        let first = waiting.tickets.pop_first();
        self.waiting_count.store(waiting.tickets.len(), Ordering::Relaxed);
        first.map(|(_, ticket)| ticket)
    }

    /// Tickets in the queue.
    pub(crate) fn len(&self) -> usize {
        self.queue.len() + self.returned.len()
    }

    /// Tickets that wait to get into the queue.
    pub(crate) fn waiting(&self) -> usize {
        self.waiting_count.load(Ordering::Relaxed)
    }

    pub(crate) fn capacity(&self) -> usize {
        self.queue.capacity()
    }

    pub(crate) fn has_news(&self) -> bool {
        self.queue.has_news() || self.returned.has_news()
    }

    pub(crate) fn queue_has_news(&self) -> bool {
        self.queue.has_news()
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.queue.is_closed()
    }

    /// Whether no ticket is left and none can arrive any more.
    pub(crate) fn is_finished(&self) -> bool {
        self.queue.is_finished() && self.returned.is_finished()
    }

    /// Refuses tickets from now on. The caller must take out the tickets in `waiting`.
    pub(crate) fn close(&self) {
        self.queue.close();
        self.returned.close();
    }

    /// Accepts tickets again, after the line was closed and emptied.
    pub(crate) fn open_again(&self) {
        self.returned.open_again();
        self.queue.open_again();
    }

    fn admit(&self, waiting: &mut NumberedTickets) -> bool {
        let tickets = &mut waiting.tickets;
        let before = tickets.len();
        while let Some((number, ticket)) = tickets.pop_first() {
            if let Err(PushError::Full(ticket) | PushError::Closed(ticket)) = self.queue.push(ticket) {
                tickets.insert(number, ticket);
                break;
            }
        }
        self.waiting_count.store(tickets.len(), Ordering::Relaxed);
        tickets.len() < before
    }

    fn lock(&self) -> MutexGuard<'_, NumberedTickets> {
        self.waiting.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::super::OpReceiver;
    use super::super::tests::ticket;
    use super::*;

    /// Drops the next ticket, which answers it, and returns the index of its receiver.
    fn next(line: &OpQueue, receivers: &[OpReceiver]) -> Option<usize> {
        drop(line.pop()?);
        line.made_room();
        let done: Vec<usize> = (0..receivers.len()).filter(|index| receivers[*index].is_done()).collect();
        done.last().copied()
    }

    #[test]
    fn who_waits_first_gets_in_first_and_nobody_gets_past() {
        let line = OpQueue::new(2);
        let mut receivers = Vec::new();
        for place in 0..6 {
            let (ticket, receiver) = ticket();
            receivers.push(receiver);
            match line.push(ticket) {
                Ok(()) => assert!(place < 2),
                Err(PushError::Full(ticket)) => assert_eq!(line.wait(ticket).ok(), Some(place - 2)),
                Err(PushError::Closed(_)) => panic!("the line is open"),
            }
        }
        assert_eq!((line.len(), line.waiting()), (2, 4));
        for expected in 0..6 {
            // The room belongs to a waiting ticket, and not to this one.
            let (late, _receiver) = ticket();
            let refused = matches!(line.push(late), Err(PushError::Full(_)));
            assert!(refused || line.waiting() == 0 && expected > 4, "somebody got past at {expected}");
            assert_eq!(next(&line, &receivers), Some(expected));
        }
    }

    #[test]
    fn who_goes_away_takes_its_ticket_along() {
        let line = OpQueue::new(2);
        let numbers: Vec<_> = (0..1000).map(|_| line.wait(ticket().0).ok().unwrap()).collect();
        assert_eq!((line.len(), line.waiting()), (2, 998));
        assert!(line.leave(numbers[1]).is_none(), "it is in the queue already");
        assert!(numbers[2..].iter().rev().all(|number| line.leave(*number).is_some()));
        assert!(line.leave(numbers[5]).is_none());
        assert_eq!((line.len(), line.waiting()), (2, 0));
        assert!(line.push(ticket().0).is_err() && line.pop().is_some() && line.push(ticket().0).is_ok());
    }

    #[test]
    fn what_is_put_back_keeps_its_place() {
        let line = OpQueue::new(4);
        let mut receivers = Vec::new();
        for _ in 0..4 {
            let (ticket, receiver) = ticket();
            receivers.push(receiver);
            assert!(line.push(ticket).is_ok());
        }
        let (first, second) = (line.pop().unwrap(), line.pop().unwrap());
        assert!(line.put_back(first).is_ok() && line.put_back(second).is_ok());
        for expected in 0..4 {
            assert_eq!(next(&line, &receivers), Some(expected));
        }
        assert!(line.pop().is_none());
    }

    #[test]
    fn a_closed_line_takes_nobody_and_forgets_nobody() {
        let line = OpQueue::new(2);
        let mut tickets: Vec<_> = (0..4).map(|_| ticket()).collect();
        for (ticket, _) in tickets.drain(..) {
            if let Err(PushError::Full(ticket)) = line.push(ticket) {
                assert!(line.wait(ticket).is_ok());
            }
        }
        line.close();
        assert!(line.wait(ticket().0).is_err());
        let given = std::iter::from_fn(|| line.take_waiting()).count();
        assert_eq!((given, line.len(), line.waiting()), (2, 2, 0));
        assert!(line.pop().is_some() && line.pop().is_some() && line.is_finished());
    }
}
