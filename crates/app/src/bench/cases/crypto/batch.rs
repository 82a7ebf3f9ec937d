//! Batches of messages: the inputs of the crypto domain's cases.

use panoply::Bytes;
use panoply::crypto::Messages;

use crate::bench::cases::case::{Amount, MI, Scale};

/// The bytes of a KiB.
pub const KI: usize = 1 << 10;
/// Many short messages.
pub const SHORT: Batch = Batch { count: 10_000, len: KI };
/// Many long messages.
pub const LONG: Batch = Batch { count: 1000, len: 16 * KI };
/// Enough messages for a device with its own memory.
pub const MANY: Batch = Batch { count: 65_536, len: 16 * KI };

/// Messages of one length.
#[derive(Clone, Copy)]
pub struct Batch {
    pub count: usize,
    pub len: usize,
}

/// One message.
pub const fn one(len: usize) -> Batch {
    Batch { count: 1, len }
}

impl Batch {
    /// The number and the length of the messages, as in a case's name.
    pub fn name(&self) -> String {
        let len = match self.len {
            len if len.is_multiple_of(MI) => format!("{}MiB", len / MI),
            len if len.is_multiple_of(KI) => format!("{}KiB", len / KI),
            len => format!("{len}B"),
        };
        if self.count == 1 { len } else { format!("{}x{len}", self.count) }
    }

    /// The bytes of all messages.
    pub fn amount(&self) -> Amount {
        Amount::Bytes((self.count * self.len) as f64)
    }

    /// The scale of a batch. The short set has the batches of the usual algorithms.
    pub fn scale(&self, is_usual: bool) -> Scale {
        match self.count {
            count if count == MANY.count => Scale::Huge,
            count if is_usual && count > 1 => Scale::Medium,
            _ => Scale::Large,
        }
    }

    /// Makes the messages: one message, or many in one buffer.
    pub fn messages(&self) -> panoply::Result<Messages> {
        let bytes = Bytes::from_vec(vec![3; self.count * self.len]);
        if self.count == 1 { Ok(bytes.into()) } else { Messages::split(bytes, self.len) }
    }

    /// Makes `len_each` bytes for each message; they begin with the message's number, so that no
    /// two are alike.
    pub fn numbers(&self, len_each: usize) -> Bytes {
        let mut numbers = vec![0; len_each * self.count];
        for (number, bytes) in (0_u64..).zip(numbers.chunks_mut(len_each)) {
            bytes[..8].copy_from_slice(&number.to_le_bytes());
        }
        Bytes::from_vec(numbers)
    }
}
