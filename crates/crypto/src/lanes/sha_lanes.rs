//! Messages of as many blocks each, hashed side by side.

use panoply_core::op::crypto::HashAlgorithm;

use super::{sha256, sha512};

/// The most lanes: SHA-256 has sixteen, SHA-384 and SHA-512 eight.
const LANES_MAX: usize = 16;
/// Fewer messages are hashed faster one by one.
const SHA256_MESSAGES_MIN: usize = 6;
const SHA512_MESSAGES_MIN: usize = 3;

/// Hashes the first of `messages` that have as many blocks each, up to the number of lanes, into `out`, digest after digest. Says how many
/// were hashed: none where there are too few.
///
/// # Safety
/// [`super::detected`] must have said yes.
pub unsafe fn hash_alike(algorithm: HashAlgorithm, messages: &[&[u8]], out: &mut [u8]) -> usize {
    let (lanes, block, fewest) = match algorithm {
        HashAlgorithm::Sha256 => (16, 64, SHA256_MESSAGES_MIN),
        HashAlgorithm::Sha384 | HashAlgorithm::Sha512 => (8, 128, SHA512_MESSAGES_MIN),
    };
    let Some(first) = messages.first() else { return 0 };
    let blocks = blocks_of(first.len(), block);
    let alike = messages.iter().take(lanes).take_while(|message| blocks_of(message.len(), block) == blocks).count();
    if alike < fewest {
        return 0;
    }
    // Lanes without a message do the first one once more.
    let lane = |index: usize| if index < alike { messages[index] } else { first };
    let tails: [Tail; LANES_MAX] = std::array::from_fn(|index| Tail::new(lane(index), block, blocks));
    let place = |index: usize, number: usize| {
        let message = lane(index);
        match message.get(number * block..(number + 1) * block) {
            Some(whole) => whole.as_ptr(),
            None => tails[index].block(number, block),
        }
    };
    // SAFETY: the caller says that the instructions are there; `place` gives whole blocks of a message or of its tail.
    unsafe {
        match algorithm {
            HashAlgorithm::Sha256 => sha256::hash(blocks, place, alike, out),
            HashAlgorithm::Sha384 => sha512::hash(8, 48, blocks, place, alike, out),
            HashAlgorithm::Sha512 => sha512::hash(0, 64, blocks, place, alike, out),
        }
    }
    alike
}

/// Blocks of a message with its padding: a one, and its length in an eighth of a block.
fn blocks_of(len: usize, block: usize) -> usize {
    (len + 1 + block / 8).div_ceil(block)
}

/// What follows the last whole block of a message: one block or two.
struct Tail {
    bytes: [u8; 256],
    /// The number of its first block.
    first: usize,
}

impl Tail {
    fn new(message: &[u8], block: usize, blocks: usize) -> Tail {
        let first = message.len() / block;
        let rest = &message[first * block..];
        let mut bytes = [0; 256];
        bytes[..rest.len()].copy_from_slice(rest);
        bytes[rest.len()] = 0x80;
        let end = (blocks - first) * block;
        bytes[end - 8..end].copy_from_slice(&(message.len() as u64 * 8).to_be_bytes());
        Tail { bytes, first }
    }

    fn block(&self, number: usize, block: usize) -> *const u8 {
        self.bytes[(number - self.first) * block..].as_ptr()
    }
}
