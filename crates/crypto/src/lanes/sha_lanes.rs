//! Messages hashed side by side: those of SHA-384 and SHA-512 that have as many blocks, and any of SHA-256.

use panoply_core::op::crypto::HashAlgorithm;

use super::{sha256, sha512};

/// Messages that are worth a thread's while.
pub const HASHED_LANES: usize = sha256::LANES;
const LANES: usize = 8;
const BLOCK_BYTES: usize = 128;
/// Fewer messages are hashed faster one by one.
const MESSAGES_MIN: usize = 3;

/// Whether this CPU has what the lanes of hashes need.
pub fn detected_for_hash() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

/// Hashes some of `messages`, from the first on, into `out`, digest after digest. Says how many were hashed: none where there are too few.
///
/// # Safety
/// [`detected_for_hash`] must have said yes.
pub unsafe fn hash_alike(algorithm: HashAlgorithm, messages: &[&[u8]], out: &mut [u8]) -> usize {
    // Which eight of the starts are the algorithm's.
    let start = match algorithm {
        HashAlgorithm::Sha256 if messages.len() < MESSAGES_MIN => return 0,
        HashAlgorithm::Sha256 => {
            // SAFETY: the caller says that the instructions are there.
            unsafe { sha256::hash_many(messages, out) };
            return messages.len();
        }
        HashAlgorithm::Sha384 => 8,
        HashAlgorithm::Sha512 => 0,
    };
    let Some(first) = messages.first() else { return 0 };
    let blocks = blocks_of(first.len());
    let alike = messages.iter().take(LANES).take_while(|message| blocks_of(message.len()) == blocks).count();
    if alike < MESSAGES_MIN {
        return 0;
    }
    // Lanes without a message do the first one once more.
    let lane = |index: usize| if index < alike { messages[index] } else { first };
    let padded: [Padded<'_>; LANES] = std::array::from_fn(|index| Padded::new(lane(index)));
    let place = |lane: usize, number: usize| padded[lane].block(number);
    // SAFETY: the caller says that the instructions are there; every lane has as many whole blocks.
    unsafe { sha512::hash(start, algorithm.digest_bytes(), blocks, place, alike, out) };
    alike
}

/// Blocks of a message with its padding: a one, and its length in sixteen bytes.
fn blocks_of(len: usize) -> usize {
    (len + 1 + 16).div_ceil(BLOCK_BYTES)
}

/// A message in blocks, with its padding in one block or two of its own.
struct Padded<'a> {
    message: &'a [u8],
    tail: [u8; 2 * BLOCK_BYTES],
}

impl<'a> Padded<'a> {
    fn new(message: &'a [u8]) -> Padded<'a> {
        let whole = message.len() / BLOCK_BYTES;
        let rest = &message[whole * BLOCK_BYTES..];
        let mut tail = [0; 2 * BLOCK_BYTES];
        tail[..rest.len()].copy_from_slice(rest);
        tail[rest.len()] = 0x80;
        let end = (blocks_of(message.len()) - whole) * BLOCK_BYTES;
        tail[end - 8..end].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
        Padded { message, tail }
    }

    /// A whole block.
    fn block(&self, number: usize) -> *const u8 {
        let whole = self.message.len() / BLOCK_BYTES;
        let (bytes, number) = if number < whole { (self.message, number) } else { (&self.tail[..], number - whole) };
        bytes[number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES].as_ptr()
    }
}
