//! The messages of the crypto domain's cases: random bytes of awkward lengths, in every form.

use std::sync::Arc;

use panoply_core::Bytes;
use panoply_core::op::crypto::Messages;

use crate::values::Random;

/// Lengths around the blocks of ciphers (16, 64) and of hashes (64, 128), and around the chunks
/// that engines process at a time (256 and more).
pub(super) const LENS: [usize; 24] =
    [0, 1, 3, 15, 16, 17, 31, 47, 55, 56, 63, 64, 65, 111, 112, 127, 128, 129, 255, 256, 257, 1000, 1024, 5003];

/// Random bytes.
pub(super) fn random(len: usize, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..len).map(|_| random.next_u64() as u8).collect()
}

/// The batches for every op: each length alone, all lengths as a list whose messages start at odd
/// addresses, all in one buffer with a gap before the first, no messages, and many small ones.
pub(super) fn batches(lens: &[usize], make: impl Fn(usize) -> Vec<u8>) -> Vec<(String, Messages)> {
    let mut batches: Vec<(String, Messages)> =
        lens.iter().map(|len| (format!("one/{len}"), make(*len).into())).collect();
    batches.push(("list".to_owned(), lens.iter().map(|len| at_odd_address(&make(*len))).collect::<Vec<_>>().into()));
    batches.push(("list/none".to_owned(), Messages::List(Arc::new([]))));
    batches.push(("packed".to_owned(), packed(lens.iter().copied(), &make)));
    batches.push(("packed/none".to_owned(), packed(std::iter::empty(), &make)));
    let short = lens.iter().copied().filter(|len| *len <= 64);
    batches.push(("packed/many".to_owned(), packed(short.cycle().take(300), &make)));
    // Many messages of one length, for engines that process messages in lanes.
    for len in lens.iter().copied().filter(|len| matches!(len, 16 | 55 | 56 | 112 | 128 | 256)) {
        batches.push((format!("packed/alike/{len}"), packed(std::iter::repeat_n(len, 37), &make)));
    }
    batches
}

fn packed(lens: impl Iterator<Item = usize>, make: &impl Fn(usize) -> Vec<u8>) -> Messages {
    let (mut bytes, mut offsets) = (vec![9; 3], vec![3]);
    for len in lens {
        bytes.extend(make(len));
        offsets.push(bytes.len());
    }
    bytes.extend([9; 5]);
    Messages::packed(Bytes::from_vec(bytes), offsets).unwrap_or_else(|error| panic!("a batch: {error}"))
}

/// A view that begins one byte after an aligned address.
fn at_odd_address(bytes: &[u8]) -> Bytes {
    let shifted = Bytes::from_vec([&[1], bytes].concat());
    shifted.slice(1, bytes.len() + 1).unwrap_or_else(|error| panic!("a view: {error}"))
}
