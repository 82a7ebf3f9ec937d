//! What a card can do, whatever it is reached through.
//!
//! 1. Packets are answered one for one, in the order in which they were started.
//! 2. At most [`RING_PACKETS`] are under way. A card refuses more with [`CardError::RingFull`].
//! 3. Nothing here waits longer than it is told to. A card that does not answer gives `None`; the [driver](crate::driver) knows when that is too
//!    long.
//! 4. After an error a card is not used again: what its streams still hold is not known.

use std::path::Path;
use std::time::Duration;

use crate::map::Register;

pub mod simulated;
pub mod xdma;
pub mod xrt;

/// The most packets under way on a card.
pub const RING_PACKETS: usize = 4;
/// The most bytes of a packet's payload, and of an answer's.
pub const PACKET_BYTES_MAX: usize = 4 << 20;

/// One opened card.
pub trait Card {
    /// Reads a register.
    fn read(&mut self, register: Register) -> Result<u32, CardError>;

    /// Writes a register.
    fn write(&mut self, register: Register, value: u32) -> Result<(), CardError>;

    /// Starts a packet, header included, whose answer has so many bytes.
    fn start(&mut self, packet: Vec<u8>, answer_bytes: usize) -> Result<(), CardError>;

    /// The answer to the oldest packet under way, where it comes within this time.
    fn finish(&mut self, wait_max: Duration) -> Result<Option<Vec<u8>>, CardError>;

    /// Puts another bitstream onto the card. What was identified before does not hold any more.
    fn load(&mut self, bitstream: &Path) -> Result<(), CardError>;

    /// How long a packet may go without an answer before the card counts as silent.
    fn silence_max(&self) -> Duration {
        Duration::from_secs(2)
    }
}

/// How a card tells that an answer is there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// By an interrupt, where the card has one.
    #[default]
    Interrupt,
    /// By a register that is read over and over.
    Polling,
}

/// What can go wrong with a card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// Something else is on the card.
    #[error("not a card of Panoply's: its identification reads {got:#010x}")]
    NotOurs {
        /// What was read.
        got: u32,
    },
    /// The map on the card is another.
    #[error("the card's register map has version {got:#010x}; this driver knows {expected:#010x}")]
    Version {
        /// What this driver knows.
        expected: u32,
        /// What was read.
        got: u32,
    },
    /// A register holds what it cannot.
    #[error("{register} reads {got:#x}; expected {expected}")]
    Impossible {
        /// Which register.
        register: &'static str,
        /// What it may hold.
        expected: String,
        /// What was read.
        got: u32,
    },
    /// Every bit of a register is set, as where nobody answers on the bus.
    #[error("the card is gone from the bus")]
    Gone,
    /// An answer ended early.
    #[error("an answer ended after {got} of {expected} bytes")]
    Short {
        /// Bytes of the answer.
        expected: usize,
        /// Bytes that came.
        got: usize,
    },
    /// An answer belongs to another packet, or to none.
    #[error("an answer has the header {got:#018x}; expected {expected:#018x} but for its clocks")]
    Garbled {
        /// The header without its clocks.
        expected: u64,
        /// What came.
        got: u64,
    },
    /// The card refused a packet's header.
    #[error("the card lost track of packets, and waits for a reset")]
    Broken,
    /// The card was reset behind the driver's back.
    #[error("the card was reset while it was in use")]
    Reset,
    /// The card's counters do not fit what was sent.
    #[error("the card counts {got} packets answered; expected {expected}")]
    Miscounted {
        /// Packets that were answered.
        expected: u32,
        /// What the card counts.
        got: u32,
    },
    /// No answer came in time.
    #[error("the card has not answered for {after:?}")]
    Silent {
        /// How long.
        after: Duration,
    },
    /// Too many packets are under way.
    #[error("{RING_PACKETS} packets are under way already")]
    RingFull,
    /// A packet or an answer is longer than a packet may be.
    #[error("a packet of {got} bytes; expected 1 to {PACKET_BYTES_MAX}")]
    PacketSize {
        /// Its bytes.
        got: usize,
    },
    /// A file or a device node failed.
    #[error("{what}: {reason}")]
    System {
        /// What was done with it.
        what: String,
        /// What the system said.
        reason: String,
    },
    /// A bitstream cannot be loaded.
    #[error("the bitstream is not loaded: {reason}")]
    Bitstream {
        /// Why.
        reason: String,
    },
}

impl CardError {
    /// What the system said about something that was done.
    pub(crate) fn system(what: impl Into<String>, reason: impl std::fmt::Display) -> CardError {
        CardError::System { what: what.into(), reason: reason.to_string() }
    }
}
