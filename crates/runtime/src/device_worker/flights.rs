//! The worker's own records of the ops that an engine holds. They lie beside the table of the ops'
//! tickets, which the worker shares with its supervisor.
//!
//! 1. Only the worker puts tickets into the table. The rest of an entry's data belongs to the
//!    worker alone.
//! 2. A token names an entry and the use of that entry. So an engine that answers an op twice,
//!    answers before it was given the op, or makes up a token is detected, and the answer is
//!    ignored.
//! 3. Engines answer in the order of submission, or run ops side by side. So the time of an op
//!    starts to count when it becomes the oldest op that was submitted and not answered; later ops
//!    that land before it do not extend its time.

use std::sync::Arc;
use std::time::Instant;

use super::Times;
use crate::lane::{OpAnswer, OpRequest, OpStage, OpTicket};

pub(crate) type FlightTable = panoply_lockfree::flight_table::FlightTable<OpRequest, OpAnswer>;

/// The worker's side of the table.
pub(crate) struct Flights {
    table: Arc<FlightTable>,
    uses: Vec<Use>,
    free: Vec<u32>,
    /// How many of the ops the engine does not have yet.
    held: u32,
    /// How long all of the ops are expected to keep the device busy.
    expected_ns: u64,
    /// How many ops were submitted so far.
    submissions: u64,
    /// The submission number of the op whose answer must come next, and since when it is owed.
    owed: Option<(u64, Instant)>,
}

struct Use {
    number: u32,
    active: bool,
    /// Its position in the order of submission.
    submission: u64,
    flight: Flight,
}

/// The worker's notes about an op in its engine.
#[derive(Clone, Copy)]
pub(crate) struct Flight {
    pub(crate) times: Times,
    pub(crate) leg: OpStage,
    /// Whether the engine has the op; otherwise the op waits to be joined with others.
    pub(crate) submitted: bool,
    /// Whether the engine had nothing else to do when it got the op.
    pub(crate) alone: bool,
    /// Whether the op is a session, which has no time limit.
    pub(crate) session: bool,
    /// How long the op is expected to keep the device busy.
    pub(crate) service_ns: f32,
}

impl Flight {
    /// The record of an op that the engine is about to get.
    pub(crate) fn new(now: Instant) -> Flight {
        let times = Times { accepted: now, submitted: now };
        Flight { times, leg: OpStage::Run, submitted: true, alone: false, session: false, service_ns: 0.0 }
    }
}

/// An op that has landed.
pub(crate) struct LandedOp {
    /// `None` if the supervisor has answered the op meanwhile.
    pub(crate) ticket: Option<OpTicket>,
    pub(crate) flight: Flight,
}

impl Flights {
    pub(crate) fn new(capacity: usize, now: Instant) -> Flights {
        let capacity = capacity.clamp(1, 1 << 16);
        let flight = Flight { submitted: false, ..Flight::new(now) };
        Flights {
            table: Arc::new(FlightTable::new(capacity)),
            uses: (0..capacity).map(|_| Use { number: 0, active: false, submission: 0, flight }).collect(),
            free: (0..capacity as u32).rev().collect(),
            held: 0,
            expected_ns: 0,
            submissions: 0,
            owed: None,
        }
    }

    /// The side that is shared with the supervisor.
    pub(crate) fn table(&self) -> Arc<FlightTable> {
        Arc::clone(&self.table)
    }

    /// How many more ops fit.
    pub(crate) fn room(&self) -> usize {
        self.free.len()
    }

    /// Whether no op is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.free.len() == self.uses.len()
    }

    /// Puts a ticket into a free entry and returns its token. There must be room.
    pub(crate) fn take_off(&mut self, ticket: OpTicket, flight: Flight) -> u64 {
        let Some(index) = self.free.pop() else {
            debug_assert!(false, "the worker takes no more ops than there is room for");
            return u64::MAX;
        };
        let entry = &mut self.uses[index as usize];
        entry.number = entry.number.wrapping_add(1);
        entry.active = true;
        entry.flight = flight;
        self.submissions += 1;
        entry.submission = self.submissions;
        self.held += u32::from(!flight.submitted);
        self.expected_ns = self.expected_ns.saturating_add(flight.service_ns as u64);
        self.table.put(index as usize, ticket);
        (u64::from(entry.number) << 32) | u64::from(index)
    }

    /// Takes out the op of this token. `None` for a token that the engine does not hold.
    pub(crate) fn land(&mut self, token: u64) -> Option<LandedOp> {
        let (number, index) = ((token >> 32) as u32, token as u32);
        let holds = |entry: &&mut Use| entry.active && entry.number == number && entry.flight.submitted;
        let entry = self.uses.get_mut(index as usize).filter(holds)?;
        entry.active = false;
        let flight = entry.flight;
        self.expected_ns = self.expected_ns.saturating_sub(flight.service_ns as u64);
        self.free.push(index);
        Some(LandedOp { ticket: self.table.take(index as usize), flight })
    }

    /// Notes that the engine gets an op that was held back.
    pub(crate) fn submit(&mut self, token: u64, now: Instant) {
        if let Some(entry) = self.uses.get_mut(token as u32 as usize).filter(|entry| entry.active) {
            self.held -= u32::from(!entry.flight.submitted);
            self.submissions += 1;
            entry.submission = self.submissions;
            entry.flight.submitted = true;
            entry.flight.times.submitted = now;
        }
    }

    /// Notes whether an op that is about to be submitted has the engine to itself.
    pub(crate) fn note_alone(&mut self, token: u64) {
        let alone = self.uses.len() - self.free.len() - self.held as usize == 1;
        if let Some(entry) = self.uses.get_mut(token as u32 as usize) {
            entry.flight.alone = alone;
        }
    }

    /// The number of ops in flight, and how long all of them are expected to keep the device busy.
    pub(crate) fn load(&self) -> (usize, u64) {
        (self.uses.len() - self.free.len(), self.expected_ns)
    }

    /// Whether the engine has nothing to do.
    pub(crate) fn engine_is_idle(&self) -> bool {
        self.uses.len() - self.free.len() == self.held as usize
    }

    /// When an op was submitted, and how long it is expected to keep the device busy. `None` for a
    /// token that is not in flight.
    pub(crate) fn expectation(&self, token: u64) -> Option<(Instant, f32)> {
        let number = (token >> 32) as u32;
        let entry = self.uses.get(token as u32 as usize).filter(|entry| entry.active && entry.number == number)?;
        Some((entry.flight.times.submitted, entry.flight.service_ns))
    }

    /// Since when the engine owes the answer that must come next: since its op was submitted, or
    /// since the previous answer came, if that is later. Sessions are not counted.
    pub(crate) fn owed_since(&mut self, last_landed: Option<Instant>) -> Option<Instant> {
        let owed = |entry: &&Use| entry.active && entry.flight.submitted && !entry.flight.session;
        let first = self.uses.iter().filter(owed).min_by_key(|entry| entry.submission)?;
        if let Some((submission, since)) = self.owed
            && submission == first.submission
        {
            return Some(since);
        }
        let submitted = first.flight.times.submitted;
        let since = last_landed.map_or(submitted, |landed| landed.max(submitted));
        self.owed = Some((first.submission, since));
        Some(since)
    }

    /// Takes all ops out.
    pub(crate) fn land_all(&mut self, mut receive: impl FnMut(OpTicket)) {
        self.held = 0;
        self.expected_ns = 0;
        for index in 0..self.uses.len() {
            if std::mem::replace(&mut self.uses[index].active, false) {
                self.free.push(index as u32);
                if let Some(ticket) = self.table.take(index) {
                    receive(ticket);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::tests::ticket;

    #[test]
    fn wrong_tokens_are_found_out() {
        let mut flights = Flights::new(2, Instant::now());
        let (first, _receiver) = ticket();
        let token = flights.take_off(first, Flight::new(Instant::now()));
        assert!(flights.land(token ^ (1 << 32)).is_none());
        assert!(flights.land(u64::MAX).is_none());
        assert!(flights.land(token).is_some_and(|landed| landed.ticket.is_some()));
        assert!(flights.land(token).is_none(), "an op lands once");
        assert_eq!(flights.room(), 2);
    }

    #[test]
    fn an_op_that_the_engine_was_not_given_does_not_land() {
        let mut flights = Flights::new(2, Instant::now());
        let (first, receiver) = ticket();
        let token = flights.take_off(first, Flight { submitted: false, ..Flight::new(Instant::now()) });
        assert!(flights.land(token).is_none() && !receiver.is_done());
        flights.submit(token, Instant::now());
        assert!(flights.land(token).is_some());
    }

    #[test]
    fn others_that_land_give_an_overtaken_op_no_more_time() {
        let start = Instant::now();
        let at = |ms| start + std::time::Duration::from_millis(ms);
        let mut flights = Flights::new(4, start);
        let take_off = |flights: &mut Flights, ms| flights.take_off(ticket().0, Flight::new(at(ms)));
        let [first, second, third] = [0, 0, 1].map(|ms| take_off(&mut flights, ms));
        assert_eq!(flights.owed_since(None), Some(at(0)));
        flights.land(first);
        assert_eq!(flights.owed_since(Some(at(10))), Some(at(10)), "it had its turn when the one before it landed");
        flights.land(third);
        assert_eq!(flights.owed_since(Some(at(20))), Some(at(10)), "it was overtaken");
        let fourth = take_off(&mut flights, 30);
        flights.land(second);
        assert_eq!(flights.owed_since(Some(at(25))), Some(at(30)), "nothing was owed before it was submitted");
        flights.land(fourth);
        assert_eq!(flights.owed_since(Some(at(40))), None);
    }

    #[test]
    fn what_the_supervisor_took_lands_without_a_ticket() {
        let mut flights = Flights::new(2, Instant::now());
        let (first, _receiver) = ticket();
        let token = flights.take_off(first, Flight::new(Instant::now()));
        let mut taken = 0;
        flights.table().take_all(|_| taken += 1);
        assert_eq!(taken, 1);
        assert!(flights.land(token).is_some_and(|landed| landed.ticket.is_none()));
    }
}
