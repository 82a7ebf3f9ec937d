//! Hashes messages in parallel: for SHA-384 and SHA-512 messages with the same number of blocks,
//! for SHA-256 any.

use panoply_core::op::crypto::HashAlgorithm;

use super::{sha256, sha512};

/// Number of messages that are worth a thread.
pub const HASHED_LANES: usize = sha256::LANES;
const LANES: usize = 8;
const BLOCK_BYTES: usize = 128;
/// Fewer messages are hashed faster one by one.
const MESSAGES_MIN: usize = 3;

/// Whether this CPU has the instructions for the hash lanes.
pub fn detected_for_hash() -> bool {
    is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw")
}

/// Hashes some of `messages`, from the first on, into `out`, digest after digest. Returns how many:
/// zero if there are too few.
///
/// # Safety
/// [`detected_for_hash`] must have returned true.
pub unsafe fn hash_alike(algorithm: HashAlgorithm, messages: &[&[u8]], out: &mut [u8]) -> usize {
    super::entries::enter();
    // The index of the algorithm's eight start values.
    let start = match algorithm {
        HashAlgorithm::Sha256 if messages.len() < MESSAGES_MIN => return 0,
        HashAlgorithm::Sha256 => {
            // SAFETY: the caller guarantees that the CPU has the instructions.
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
    // Lanes without a message repeat the first one.
    let lane = |index: usize| if index < alike { messages[index] } else { first };
    let padded: [PaddedMessage<'_>; LANES] = std::array::from_fn(|index| PaddedMessage::new(lane(index)));
    let place = |lane: usize, number: usize| padded[lane].block(number);
    // SAFETY: the caller guarantees the instructions; every lane has the same number of whole
    // blocks.
    unsafe { sha512::hash(start, algorithm.digest_bytes(), blocks, place, alike, out) };
    alike
}

/// Blocks of a message with its padding: a one bit, and its length in sixteen bytes.
fn blocks_of(len: usize) -> usize {
    (len + 1 + 16).div_ceil(BLOCK_BYTES)
}

/// A message in blocks, with its padding in one or two blocks of its own.
struct PaddedMessage<'a> {
    message: &'a [u8],
    tail: [u8; 2 * BLOCK_BYTES],
}

impl<'a> PaddedMessage<'a> {
    fn new(message: &'a [u8]) -> PaddedMessage<'a> {
        let whole = message.len() / BLOCK_BYTES;
        let rest = &message[whole * BLOCK_BYTES..];
        let mut tail = [0; 2 * BLOCK_BYTES];
        tail[..rest.len()].copy_from_slice(rest);
        tail[rest.len()] = 0x80;
        let end = (blocks_of(message.len()) - whole) * BLOCK_BYTES;
        tail[end - 8..end].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
        PaddedMessage { message, tail }
    }

    /// A whole block.
    fn block(&self, number: usize) -> *const u8 {
        let whole = self.message.len() / BLOCK_BYTES;
        let (bytes, number) = if number < whole { (self.message, number) } else { (&self.tail[..], number - whole) };
        bytes[number * BLOCK_BYTES..(number + 1) * BLOCK_BYTES].as_ptr()
    }
}
