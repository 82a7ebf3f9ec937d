//! The entrance of the relay, where workers put ops that go to another device: a bounded queue, and
//! what the relay at its other end must know about the lanes.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use panoply_core::{DeviceId, Error, Result};
use panoply_lockfree::queue::{PushError, Queue};
use panoply_lockfree::sleeper::Sleeper;

use super::OpTicket;

/// How many tickets may wait for the relay. The relay itself may hold the same number again.
pub(crate) const RELAY_DEPTH_MAX: usize = 8192;
/// Predicted work, in nanoseconds, below which a lane is not worth relieving.
pub(crate) const BACKLOG_NS_MIN: u64 = 200_000;

/// The entrance of the relay. See the module.
pub(crate) struct Inlet {
    pub(crate) queue: Queue<OpTicket>,
    pub(crate) sleeper: Sleeper,
    pub(crate) count: AtomicUsize,
    /// Number of lanes. A single lane has no other to give ops to.
    lanes: AtomicUsize,
    /// Whether some lane has more than `BACKLOG_NS_MIN` of work.
    pub(crate) uneven: AtomicBool,
    /// Whether a worker ran out of work while `uneven` was set.
    pub(crate) idle: AtomicBool,
}

impl Inlet {
    pub(crate) fn new() -> Inlet {
        Inlet {
            queue: Queue::new(RELAY_DEPTH_MAX),
            sleeper: Sleeper::new(),
            count: AtomicUsize::new(0),
            lanes: AtomicUsize::new(0),
            uneven: AtomicBool::new(false),
            idle: AtomicBool::new(false),
        }
    }

    /// Counts a lane that uses this inlet.
    pub(crate) fn expect_lane(&self, number: u8) {
        self.lanes.fetch_max(usize::from(number) + 1, Ordering::Relaxed);
    }

    /// Makes the relay look at the lanes if a lane got an op while its backlog was this long. On
    /// the path of every op, this is one comparison.
    pub(crate) fn note_backlog(&self, backlog_ns: u64) {
        let uneven = backlog_ns > BACKLOG_NS_MIN && self.lanes.load(Ordering::Relaxed) > 1;
        if uneven && !self.uneven.load(Ordering::Relaxed) {
            self.uneven.store(true, Ordering::Release);
            self.sleeper.wake();
        }
    }

    /// Makes the relay look at all lanes once.
    pub(crate) fn ask(&self) {
        self.uneven.store(true, Ordering::Release);
        self.idle.store(true, Ordering::Release);
        self.sleeper.wake();
    }

    /// Called by a worker that has run out of work. If some lane has too much, the relay looks at
    /// once.
    pub(crate) fn note_idle(&self) {
        if self.uneven.load(Ordering::Relaxed) && !self.idle.load(Ordering::Relaxed) {
            self.idle.store(true, Ordering::Release);
            self.sleeper.wake();
        }
    }

    /// Takes a ticket from the lane of a device, or returns it with the reason.
    pub(crate) fn take(&self, ticket: OpTicket, device: DeviceId) -> Result<(), (OpTicket, Error)> {
        self.count.fetch_add(1, Ordering::AcqRel);
        let refused = match self.queue.push(ticket) {
            Ok(()) => {
                self.sleeper.wake();
                return Ok(());
            }
            Err(PushError::Full(ticket)) => (ticket, Error::Busy { device, queue_depth_max: RELAY_DEPTH_MAX }),
            Err(PushError::Closed(ticket)) => (ticket, Error::ShuttingDown),
        };
        self.count.fetch_sub(1, Ordering::AcqRel);
        Err(refused)
    }

    /// Whether the relay has a ticket to route, or lanes to look at.
    pub(crate) fn has_news(&self) -> bool {
        self.queue.has_news() || self.uneven.load(Ordering::Acquire)
    }

    /// Whether a ticket, or an idle worker, waits for the relay.
    pub(crate) fn is_asked(&self) -> bool {
        self.queue.has_news() || self.idle.load(Ordering::Acquire)
    }

    /// Number of tickets on their way.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Refuses tickets from now on.
    pub(crate) fn close(&self) {
        self.queue.close();
        self.sleeper.wake();
    }
}
