//! The interface of a card, independent of how it is connected.
//!
//! 1. Each packet has one answer, in the order in which the packets were started.
//! 2. At most [`RING_PACKETS`] are in flight. A card refuses more with [`CardError::RingFull`].
//! 3. No call waits longer than its time limit. A card that does not answer in time returns `None`.
//!    The [driver](crate::driver) decides when this is too long.
//! 4. After an error a card is not used again, because the contents of its streams are unknown.

use std::path::Path;
use std::time::Duration;

use crate::map::Register;

pub mod simulated;
pub mod xdma;
pub mod xrt;

/// Maximum number of packets in flight on a card.
pub const RING_PACKETS: usize = 4;
/// Maximum size of a packet's payload and of an answer's payload.
pub const PACKET_BYTES_MAX: usize = 4 << 20;

/// One opened card.
pub trait Card {
    /// Reads a register.
    fn read(&mut self, register: Register) -> Result<u32, CardError>;

    /// Writes a register.
    fn write(&mut self, register: Register, value: u32) -> Result<(), CardError>;

    /// Starts a packet with its header. The answer will have `answer_bytes` bytes.
    fn start(&mut self, packet: Vec<u8>, answer_bytes: usize) -> Result<(), CardError>;

    /// Returns the answer to the oldest packet in flight. `None` if it does not arrive within
    /// `wait_max`.
    fn finish(&mut self, wait_max: Duration) -> Result<Option<Vec<u8>>, CardError>;

    /// Loads another bitstream onto the card. An earlier identification becomes invalid.
    fn load(&mut self, bitstream: &Path) -> Result<(), CardError>;

    /// The time without an answer after which the card counts as silent.
    fn silence_max(&self) -> Duration {
        Duration::from_secs(2)
    }
}

/// How the driver detects that an answer has arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Completion {
    /// By an interrupt, if the card has one.
    #[default]
    Interrupt,
    /// By polling a register.
    Polling,
}

/// Errors of a card.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CardError {
    /// The card contains something else.
    #[error("not a card of Panoply's: its identification reads {got:#010x}")]
    NotOurs {
        /// The value read from IDENT.
        got: u32,
    },
    /// The card has another version of the register map.
    #[error("the card's register map has version {got:#010x}; this driver knows {expected:#010x}")]
    Version {
        /// The version of this driver.
        expected: u32,
        /// The version read from the card.
        got: u32,
    },
    /// A register contains an impossible value.
    #[error("{register} reads {got:#x}; expected {expected}")]
    Impossible {
        /// The register's name.
        register: &'static str,
        /// The possible values.
        expected: String,
        /// The value that was read.
        got: u32,
    },
    /// All bits of a register are set, as when no device answers on the bus.
    #[error("the card is gone from the bus")]
    Gone,
    /// An answer has the wrong length.
    #[error("an answer ended after {got} of {expected} bytes")]
    Short {
        /// Expected number of bytes.
        expected: usize,
        /// Received number of bytes.
        got: usize,
    },
    /// The header of an answer does not match the packet.
    #[error("an answer has the header {got:#018x}; expected {expected:#018x} but for its clocks")]
    Garbled {
        /// The expected header without its clocks.
        expected: u64,
        /// The received header.
        got: u64,
    },
    /// The card refused a packet's header.
    #[error("the card lost track of packets, and waits for a reset")]
    Broken,
    /// The card was reset by something other than this driver.
    #[error("the card was reset while it was in use")]
    Reset,
    /// The card's counters do not match the number of packets.
    #[error("the card counts {got} packets answered; expected {expected}")]
    Miscounted {
        /// Number of packets that were answered.
        expected: u32,
        /// Number of packets that the card counted.
        got: u32,
    },
    /// No answer came in time.
    #[error("the card has not answered for {after:?}")]
    Silent {
        /// The time without an answer.
        after: Duration,
    },
    /// The maximum number of packets is already in flight.
    #[error("{RING_PACKETS} packets are under way already")]
    RingFull,
    /// A packet or an answer is empty or too long.
    #[error("a packet of {got} bytes; expected 1 to {PACKET_BYTES_MAX}")]
    PacketSize {
        /// Size in bytes.
        got: usize,
    },
    /// An operation on a file or a device node failed.
    #[error("{what}: {reason}")]
    System {
        /// The operation or its object.
        what: String,
        /// The system's message.
        reason: String,
    },
    /// A bitstream cannot be loaded.
    #[error("the bitstream is not loaded: {reason}")]
    Bitstream {
        /// The reason.
        reason: String,
    },
}

impl CardError {
    /// Wraps an error of the system.
    pub(crate) fn system(what: impl Into<String>, reason: impl std::fmt::Display) -> CardError {
        CardError::System { what: what.into(), reason: reason.to_string() }
    }
}
