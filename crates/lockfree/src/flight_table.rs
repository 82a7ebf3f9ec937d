//! The tickets of the ops inside one engine, where a driver and its supervisor both reach them.
//!
//! Each entry is an atomic pointer to a ticket, or null. The thread that swaps a ticket out owns it
//! and must answer it. So an op that the driver finishes and the supervisor gives up at the same
//! moment is answered exactly once. Only the driver puts tickets in.

use crate::slot::Ticket;
use crate::sync::{AtomicPtr, Ordering};

/// A fixed table of tickets that two threads may empty. See the module.
pub struct FlightTable<Q, A> {
    tickets: Box<[AtomicPtr<()>]>,
    /// Marks that the table owns tickets of this type.
    of: std::marker::PhantomData<Ticket<Q, A>>,
}

// SAFETY: the entries are tickets, which may be sent to other threads if questions and answers may.
unsafe impl<Q: Send, A: Send> Send for FlightTable<Q, A> {}
// SAFETY: an entry is accessed only by an atomic swap, after which the ticket belongs to one
// thread.
unsafe impl<Q: Send, A: Send> Sync for FlightTable<Q, A> {}

impl<Q, A> FlightTable<Q, A> {
    /// An empty table.
    pub fn new(capacity: usize) -> FlightTable<Q, A> {
        let tickets = (0..capacity).map(|_| AtomicPtr::new(std::ptr::null_mut())).collect();
        FlightTable { tickets, of: std::marker::PhantomData }
    }

    /// Puts a ticket into a free entry.
    pub fn put(&self, index: usize, ticket: Ticket<Q, A>) {
        let raw = ticket.into_raw();
        // The model checker lets a swap overtake a plain store that it has not read, and then loses
        // the stored value. The language does not: a swap that comes later in the modification
        // order always reads the stored value, with any memory ordering.
        #[cfg(loom)]
        self.tickets[index].swap(raw, Ordering::AcqRel);
        #[cfg(not(loom))]
        self.tickets[index].store(raw, Ordering::Release);
    }

    /// Takes the ticket of an entry out, if there is one.
    pub fn take(&self, index: usize) -> Option<Ticket<Q, A>> {
        let raw = self.tickets.get(index)?.swap(std::ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: a non-null entry came from `Ticket::into_raw`, and the swap removed it from the
        // table permanently.
        (!raw.is_null()).then(|| unsafe { Ticket::from_raw(raw) })
    }

    /// Takes every ticket out and passes it to `receive`.
    pub fn take_all(&self, mut receive: impl FnMut(Ticket<Q, A>)) {
        for index in 0..self.tickets.len() {
            if let Some(ticket) = self.take(index) {
                receive(ticket);
            }
        }
    }
}

impl<Q, A> Drop for FlightTable<Q, A> {
    fn drop(&mut self) {
        self.take_all(drop);
    }
}
