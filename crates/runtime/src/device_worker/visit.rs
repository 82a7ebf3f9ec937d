//! A driver's visits to foreign code, as its supervisor sees them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::flights::FlightTable;
use crate::foreign::{contain, discard};
use crate::lane::OpTicket;
use crate::tenure::Tenure;
use crate::time::nanoseconds;
use crate::wakes::Board;

/// What a driver shows to its supervisor.
pub(crate) struct Generation {
    pub(crate) tenure: Tenure,
    pub(crate) flights: Arc<FlightTable>,
    /// Those whom it is about to wake.
    pub(super) board: Arc<Board>,
    /// What the tenure counts time from.
    pub(super) epoch: Instant,
}

/// Why a call into foreign code gave nothing.
pub(super) enum Interrupted {
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

    /// Takes everything over from a driver that is stuck, or gone: the ops that its engine held, and callers that have their
    /// outcomes and were not woken yet.
    pub(super) fn empty(&self, tickets: &mut Vec<OpTicket>) {
        self.flights.take_all(|ticket| tickets.push(ticket));
        self.board.wake_all();
    }

    pub(super) fn enter(&self, now: Instant) {
        self.tenure.enter(self.since_epoch_ns(now));
    }

    /// How long ago a call began that the tenure's word tells of.
    pub(super) fn since(&self, word: u64, now: Instant) -> Duration {
        Duration::from_nanos(self.since_epoch_ns(now).saturating_sub(word))
    }

    /// Replaces the driver if it has been inside one call for longer than this, by a clock that never stops by itself. Whoever does
    /// must empty its table of flights, and go on doing so until its thread has ended.
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

/// [`inside`] for a call of which nothing is expected. False where the driver was replaced meanwhile.
pub(super) fn aside(generation: &Generation, now: Instant, call: impl FnOnce()) -> bool {
    !matches!(inside(generation, now, call), Err(Interrupted::Replaced))
}

/// Calls foreign code: a panic becomes its message, and the supervisor sees for how long the call lasts.
pub(super) fn inside<T>(generation: &Generation, now: Instant, call: impl FnOnce() -> T) -> Result<T, Interrupted> {
    generation.enter(now);
    let result = contain(call);
    if generation.tenure.leave() {
        return result.map_err(Interrupted::Panicked);
    }
    discard(result);
    Err(Interrupted::Replaced)
}
