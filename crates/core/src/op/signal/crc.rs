//! Crc: cyclic redundancy checks.

use crate::error::{Error, Result};
use crate::op::crypto::Messages;
use crate::op::{BatchKey, CostClass, Describe, Value};

/// The algorithm of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Checksum {
    /// CRC-8/SMBUS.
    Crc8,
    /// CRC-16/ARC.
    Crc16,
    /// CRC-16/IBM-3740, also called CCITT-FALSE.
    Crc16Ccitt,
    /// CRC-32/ISO-HDLC, of Ethernet, gzip and PNG.
    Crc32,
    /// CRC-32/ISCSI, also called CRC-32C.
    Crc32c,
    /// CRC-64/NVME.
    Crc64,
}

impl Checksum {
    /// Every check.
    pub const ALL: [Checksum; 6] =
        [Checksum::Crc8, Checksum::Crc16, Checksum::Crc16Ccitt, Checksum::Crc32, Checksum::Crc32c, Checksum::Crc64];

    /// The name used in benchmarks and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Checksum::Crc8 => "crc8",
            Checksum::Crc16 => "crc16",
            Checksum::Crc16Ccitt => "crc16-ccitt",
            Checksum::Crc32 => "crc32",
            Checksum::Crc32c => "crc32c",
            Checksum::Crc64 => "crc64",
        }
    }
}

/// Computes the check of each message, in the lowest bits of a number.
#[derive(Clone, Debug)]
pub struct Crc {
    /// The algorithm.
    pub kind: Checksum,
    /// The messages.
    pub messages: Messages,
}

/// Fixed cost of a message, in bytes, in addition to its length.
const MESSAGE_COST_BYTES: u64 = 256;

impl Crc {
    /// Computes the check of each message.
    pub fn new(kind: Checksum, messages: impl Into<Messages>) -> Crc {
        Crc { kind, messages: messages.into() }
    }

    /// Takes the checks out of an engine's answer: eight bytes for each, little-endian.
    pub(in crate::op) fn checks(value: Value) -> Result<Vec<u64>> {
        let bytes = value.into_bytes()?;
        let (words, rest) = bytes.as_slice()?.as_chunks::<8>();
        if !rest.is_empty() {
            return Err(Error::invalid("the engine's answer", "checks of eight bytes", bytes.len()));
        }
        Ok(words.iter().map(|word| u64::from_le_bytes(*word)).collect())
    }
}

impl Describe for Crc {
    fn name(&self) -> &'static str {
        "crc"
    }

    fn validate(&self) -> Result<()> {
        self.messages.check()
    }

    crate::parts!(messages);

    fn work(&self) -> u64 {
        let messages = (self.messages.count() as u64).saturating_mul(MESSAGE_COST_BYTES);
        (self.messages.total_bytes() as u64).saturating_add(messages)
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.kind.name())
    }

    fn batch_key(&self) -> Option<BatchKey> {
        Some(BatchKey::of(("crc", self.kind)))
    }
}
