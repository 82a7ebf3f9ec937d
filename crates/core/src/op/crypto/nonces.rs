//! Nonces: numbers that may be used only once with a key.

use super::key::Key;
use crate::bytes::Bytes;
use crate::error::{Error, Result};
use crate::part::{PartMut, PartRef, Parts};

/// Length of a nonce in bytes.
pub const NONCE_BYTES: usize = 12;

/// One nonce.
pub type NonceBytes = [u8; NONCE_BYTES];

/// The nonces of an op's messages.
#[derive(Clone, Debug)]
pub enum Nonces {
    /// Twelve bytes for each message, one after the other. The caller must ensure that none was
    /// used with the key before; two equal ones in one op are refused.
    Given(Bytes),
    /// A prefix, followed by the message's number, big-endian, counted up from the first.
    Counted {
        /// The first four bytes.
        prefix: [u8; 4],
        /// The number of the first message.
        first: u64,
    },
}

impl Nonces {
    /// The nonce of a message. Fails if a list is too short or a counter is exhausted.
    pub fn get(&self, index: usize) -> Result<NonceBytes> {
        match self {
            Nonces::Given(bytes) => {
                let list = bytes.as_slice()?.as_chunks().0;
                let absent = || Error::invalid("nonces", format!("one for message {index}"), list.len());
                list.get(index).copied().ok_or_else(absent)
            }
            Nonces::Counted { prefix, first } => {
                let (left, asked) = (u64::MAX - first, (index as u64).saturating_add(1));
                if left < asked {
                    return Err(Error::NoncesExhausted { left, asked });
                }
                let mut nonce = [0; NONCE_BYTES];
                nonce[..4].copy_from_slice(prefix);
                nonce[4..].copy_from_slice(&(first + index as u64).to_be_bytes());
                Ok(nonce)
            }
        }
    }

    /// The nonces of the first `count` messages, if they are on the host.
    pub fn list(&self, count: usize) -> Result<Vec<NonceBytes>> {
        (0..count).map(|index| self.get(index)).collect()
    }

    /// Whether there is a nonce for each of `count` messages.
    pub(super) fn check(&self, count: usize) -> Result<()> {
        match self {
            Nonces::Given(bytes) => expect_len("nonces", NONCE_BYTES, count, bytes.len()),
            Nonces::Counted { first, .. } => match u64::MAX - first {
                left if left < count as u64 => Err(Error::NoncesExhausted { left, asked: count as u64 }),
                _ => Ok(()),
            },
        }
    }

    /// Refuses two messages with the same nonce. Nonces on a device cannot be checked; the caller
    /// is responsible for them.
    pub(super) fn check_distinct(&self) -> Result<()> {
        match self {
            Nonces::Given(bytes) => match bytes.as_slice() {
                Ok(bytes) => distinct::<NONCE_BYTES>(bytes),
                Err(_) => Ok(()),
            },
            Nonces::Counted { .. } => Ok(()),
        }
    }

    /// Refuses nonces given by the caller under a prefix that a session of the key counts under.
    /// Nonces on a device are not checked.
    pub(super) fn check_unclaimed(&self, key: &Key) -> Result<()> {
        let claimed = match self {
            Nonces::Given(bytes) => {
                let list = bytes.as_slice().map_or(&[][..], |bytes| bytes.as_chunks::<NONCE_BYTES>().0);
                key.position_of_claimed(list.iter().map(|nonce| [nonce[0], nonce[1], nonce[2], nonce[3]]))?
            }
            Nonces::Counted { prefix, .. } => key.position_of_claimed(std::iter::once(*prefix))?,
        };
        match claimed {
            Some(index) => {
                let got = format!("a session's, for message {index}");
                Err(Error::invalid("seal: nonces", "a prefix that no session of this key counts under", got))
            }
            None => Ok(()),
        }
    }
}

impl Parts for Nonces {
    fn visit(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        if let Nonces::Given(bytes) = self {
            visit(bytes.into());
        }
    }

    fn visit_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        if let Nonces::Given(bytes) = self {
            visit(bytes.into());
        }
    }
}

impl From<NonceBytes> for Nonces {
    fn from(nonce: NonceBytes) -> Nonces {
        Nonces::Given(Bytes::from_vec(nonce.to_vec()))
    }
}

/// Refuses a buffer that does not have `each` bytes for each of `count` messages.
pub(super) fn expect_len(what: &'static str, each: usize, count: usize, got: usize) -> Result<()> {
    if Some(got) == each.checked_mul(count) {
        return Ok(());
    }
    Err(Error::invalid(what, format!("{each} bytes for each of {count} messages"), format!("{got} bytes")))
}

/// Refuses two equal pieces of `N` bytes. Ascending ones, such as counted ones, are distinct;
/// others go to an open-addressing hash table that is at most half full.
pub(super) fn distinct<const N: usize>(bytes: &[u8]) -> Result<()> {
    let pieces = bytes.as_chunks::<N>().0;
    if pieces.is_sorted_by(|before, after| before < after) {
        return Ok(());
    }
    let (size, state) = ((2 * pieces.len()).next_power_of_two(), std::hash::RandomState::new());
    let salt = std::hash::BuildHasher::hash_one(&state, size as u64) | 1;
    let mut table = vec![u32::MAX; size];
    for (index, piece) in pieces.iter().enumerate() {
        let mut at = place_of(piece, salt) as usize & (size - 1);
        while let Some(known) = pieces.get(table[at] as usize) {
            if known == piece {
                return Err(Error::RepeatedNonce { index });
            }
            at = (at + 1) & (size - 1);
        }
        table[at] = index as u32;
    }
    Ok(())
}

/// Hashes a piece, with a salt of the process, so that an attacker cannot choose colliding pieces.
fn place_of(piece: &[u8], salt: u64) -> u64 {
    piece.chunks(8).fold(salt, |hash, chunk| {
        let word = chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
        let wide = u128::from(hash ^ word) * u128::from(salt ^ 0x9e37_79b9_7f4a_7c15 | 1);
        (wide as u64) ^ (wide >> 64) as u64
    })
}
