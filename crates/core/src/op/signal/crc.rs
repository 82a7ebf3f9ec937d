//! Crc: cyclic redundancy checks.

use crate::error::{Error, Result};
use crate::op::crypto::Messages;
use crate::op::{BatchKey, CostClass, Describe, Value};
use crate::part::{PartMut, PartRef};

/// Which check.
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

/// The check of each message, in the lowest bits of a number.
#[derive(Clone, Debug)]
pub struct Crc {
    /// Which check.
    pub kind: Checksum,
    /// What is checked.
    pub messages: Messages,
}

/// What a message costs beside its bytes, in bytes.
const MESSAGE_COST_BYTES: u64 = 256;

impl Crc {
    /// Checks each message.
    pub fn new(kind: Checksum, messages: impl Into<Messages>) -> Crc {
        Crc { kind, messages: messages.into() }
    }

    /// The checks from an engine's answer: eight bytes for each, the lowest first.
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

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.messages.visit(visit);
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.messages.visit_mut(visit);
    }

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
