//! A driver's calls into foreign code, as its supervisor sees them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_lockfree::foreign::{contain, discard};
use panoply_lockfree::tenure::Tenure;
use panoply_lockfree::wakes::Board;

use super::flights::FlightTable;
use crate::lane::OpTicket;
use crate::time::nanoseconds;

/// The part of a driver that its supervisor can see.
pub(crate) struct Generation {
    pub(crate) tenure: Tenure,
    pub(crate) flights: Arc<FlightTable>,
    /// The callers that the driver is about to wake.
    pub(super) board: Arc<Board>,
    /// The instant from which the tenure counts time.
    pub(super) epoch: Instant,
}

/// Why a call into foreign code returned no result.
pub(super) enum Interruption {
    /// It panicked, with this message.
    Panicked(String),
    /// The driver was replaced meanwhile.
    Replaced,
}

impl Generation {
    pub(super) fn of(flights: Arc<FlightTable>, epoch: Instant) -> Generation {
        Generation { tenure: Tenure::new(), flights, board: Arc::new(Board::new()), epoch }
    }

    #[cfg(test)]
    pub(super) fn new(in_flight_max: usize, epoch: Instant) -> Generation {
        Generation::of(Arc::new(FlightTable::new(in_flight_max)), epoch)
    }

    /// Takes over the duties of a driver that is stuck or gone: the tickets that its engine held,
    /// and the wakeups of callers that have their outcomes and were not woken yet.
    pub(super) fn empty(&self, tickets: &mut Vec<OpTicket>) {
        self.flights.take_all(|ticket| tickets.push(ticket));
        self.board.wake_all();
    }

    pub(super) fn enter(&self, now: Instant) {
        self.tenure.enter(self.since_epoch_ns(now));
    }

    /// How long ago the call began that the tenure's word identifies.
    pub(super) fn since(&self, word: u64, now: Instant) -> Duration {
        Duration::from_nanos(self.since_epoch_ns(now).saturating_sub(word))
    }

    /// Replaces the driver if it has been inside one call for longer than `inside_max`, by a clock
    /// that never stops by itself. The caller must then empty its table of flights, and repeat this
    /// until its thread has ended.
    #[cfg(test)]
    pub(crate) fn replace_if_stuck(&self, now: Instant, inside_max: Duration) -> bool {
        let Some(entered) = self.tenure.entered() else { return false };
        self.since(entered, now) > inside_max && self.tenure.replace(entered)
    }

    /// Nanoseconds since the tenure's epoch.
    pub(super) fn since_epoch_ns(&self, now: Instant) -> u64 {
        nanoseconds(now.saturating_duration_since(self.epoch))
    }
}

/// [`inside`] for a call that returns nothing. Returns false if the driver was replaced meanwhile.
pub(super) fn aside(generation: &Generation, now: Instant, call: impl FnOnce()) -> bool {
    !matches!(inside(generation, now, call), Err(Interruption::Replaced))
}

/// Calls foreign code. A panic becomes its message, and the supervisor sees how long the call
/// lasts.
pub(super) fn inside<T>(generation: &Generation, now: Instant, call: impl FnOnce() -> T) -> Result<T, Interruption> {
    generation.enter(now);
    let result = contain(call);
    if generation.tenure.leave() {
        return result.map_err(Interruption::Panicked);
    }
    discard(result);
    Err(Interruption::Replaced)
}
