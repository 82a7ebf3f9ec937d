//! Encodes a digest as the number that is signed: EMSA-PKCS1-v1_5 and EMSA-PSS of RFC 8017. PSS
//! uses the same hash for its masks and a salt as long as the digest.

use panoply_core::op::crypto::HashAlgorithm;

use crate::hash::hash as hash_into;

/// The longest digest.
pub(super) const DIGEST_BYTES_MAX: usize = 64;

/// Writes the PKCS#1 v1.5 encoding, as long as the modulus.
pub(super) fn write_pkcs1(hash: HashAlgorithm, digest: &[u8], out: &mut [u8]) {
    let head = digest_head(hash);
    let (padding, end) = out.split_at_mut(out.len() - head.len() - digest.len());
    let last = padding.len() - 1;
    padding.fill(0xff);
    (padding[0], padding[1], padding[last]) = (0, 1, 0);
    end[..head.len()].copy_from_slice(&head);
    end[head.len()..].copy_from_slice(digest);
}

/// Whether this is the PKCS#1 v1.5 encoding.
pub(super) fn is_pkcs1(hash: HashAlgorithm, digest: &[u8], number: &[u8]) -> bool {
    let mut expected = [0; 512];
    let expected = &mut expected[..number.len()];
    write_pkcs1(hash, digest, expected);
    expected == number
}

/// The bytes before a digest: the hash's name in a DigestInfo.
fn digest_head(hash: HashAlgorithm) -> [u8; 19] {
    let number = match hash {
        HashAlgorithm::Sha256 => 1,
        HashAlgorithm::Sha384 => 2,
        HashAlgorithm::Sha512 => 3,
    };
    let len = hash.digest_bytes() as u8;
    [0x30, 0x11 + len, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, number, 0x05, 0, 4, len]
}

/// Writes the PSS encoding for a modulus of `bits` bits, as long as the modulus.
pub(super) fn write_pss(hash: HashAlgorithm, digest: &[u8], salt: &[u8], bits: usize, out: &mut [u8]) {
    out.fill(0);
    let (skipped, mask) = top(bits);
    let (block, digest_of_salt) = split(&mut out[skipped..], digest.len());
    salted(hash, digest, salt, digest_of_salt);
    let one = block.len() - salt.len() - 1;
    block[one] = 1;
    block[one + 1..].copy_from_slice(salt);
    apply_mask(hash, digest_of_salt, block);
    block[0] &= mask;
    if let Some(last) = out.last_mut() {
        *last = 0xbc;
    }
}

/// Whether this is a valid PSS encoding; it is unmasked in place.
pub(super) fn is_pss(hash: HashAlgorithm, digest: &[u8], bits: usize, number: &mut [u8]) -> bool {
    let (skipped, mask) = top(bits);
    if number.last() != Some(&0xbc) || number[..skipped] != [0; 1][..skipped] || number[skipped] & !mask != 0 {
        return false;
    }
    let (block, digest_of_salt) = split(&mut number[skipped..], digest.len());
    apply_mask(hash, digest_of_salt, block);
    block[0] &= mask;
    let (padding, salt) = block.split_at(block.len() - digest.len());
    let Some((one, zeros)) = padding.split_last() else { return false };
    let mut expected = [0; DIGEST_BYTES_MAX];
    let expected = &mut expected[..digest.len()];
    salted(hash, digest, salt, expected);
    *one == 1 && zeros.iter().all(|byte| *byte == 0) && expected == digest_of_salt
}

/// The encoding has one bit less than the modulus: the number of leading zero bytes, and a mask of
/// the used bits in the first byte.
fn top(bits: usize) -> (usize, u8) {
    match (bits - 1) % 8 {
        0 => (1, 0xff),
        used => (0, 0xff >> (8 - used)),
    }
}

/// The masked block and the digest behind it.
fn split(number: &mut [u8], digest_bytes: usize) -> (&mut [u8], &mut [u8]) {
    let (block, rest) = number.split_at_mut(number.len() - digest_bytes - 1);
    (block, &mut rest[..digest_bytes])
}

/// The digest of eight zeros, a digest and a salt of the same length.
fn salted(hash: HashAlgorithm, digest: &[u8], salt: &[u8], out: &mut [u8]) {
    let mut text = [0; 8 + 2 * DIGEST_BYTES_MAX];
    let len = digest.len();
    text[8..8 + len].copy_from_slice(digest);
    text[8 + len..8 + 2 * len].copy_from_slice(salt);
    hash_into(hash, &text[..8 + 2 * len], out);
}

/// MGF1: xors the digests of the seed and a counter into the block.
fn apply_mask(hash: HashAlgorithm, seed: &[u8], block: &mut [u8]) {
    let mut text = [0; DIGEST_BYTES_MAX + 4];
    let mut mask = [0; DIGEST_BYTES_MAX];
    let len = seed.len();
    text[..len].copy_from_slice(seed);
    for (counter, part) in (0_u32..).zip(block.chunks_mut(len)) {
        text[len..len + 4].copy_from_slice(&counter.to_be_bytes());
        hash_into(hash, &text[..len + 4], &mut mask[..len]);
        part.iter_mut().zip(mask).for_each(|(byte, mask)| *byte ^= mask);
    }
}
