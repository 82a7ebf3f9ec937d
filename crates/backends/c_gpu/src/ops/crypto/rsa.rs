//! Verify with RSA, both paddings, with the exponent 65537: one thread for each signature, all
//! under one key. Keys with other exponents are left to other devices.

use panoply_core::op::crypto::{HashAlgorithm, Key, Purpose, RsaPadding, SignatureAlgorithm, Verify};
use panoply_core::{Result, Value};
use panoply_kernels::c::{Kernel, RSA};

use super::sha;
use super::signatures::{thread_each, verdicts};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::ops::messages::place_plain;

const EXPONENT: &[u8] = &[1, 0, 1];
/// DER tags.
const SEQUENCE: u8 = 0x30;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
/// The algorithm identifier of RSA without parameters, as in a SubjectPublicKeyInfo.
const ALGORITHM: [u8; 13] = [0x06, 0x09, 0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01, 0x01, 0x01, 0x05, 0x00];

/// Whether this is an RSA public key on the host, in a supported form.
pub(super) fn is_for(key: &Key) -> bool {
    parts(key).is_some()
}

/// The parts of a key, with a big-endian modulus.
struct KeyParts<'a> {
    hash: HashAlgorithm,
    padding: RsaPadding,
    modulus: &'a [u8],
}

fn parts(key: &Key) -> Option<KeyParts<'_>> {
    let Purpose::Verify(SignatureAlgorithm::Rsa { bits, padding, hash }) = key.purpose() else {
        return None;
    };
    let modulus = modulus(key.material().as_slice().ok()?)?;
    let fits = modulus.len() == bits.bytes() && modulus[0] >= 0x80 && modulus.last()? % 2 == 1;
    fits.then_some(KeyParts { hash, padding, modulus })
}

/// The modulus of an RSAPublicKey with the usual exponent, bare or in a SubjectPublicKeyInfo.
fn modulus(der: &[u8]) -> Option<&[u8]> {
    let mut fields = whole(SEQUENCE, der)?;
    if let Some((algorithm, rest)) = element(SEQUENCE, fields) {
        let bits = whole(BIT_STRING, rest).filter(|_| algorithm == ALGORITHM)?;
        fields = whole(SEQUENCE, bits.strip_prefix(&[0])?)?;
    }
    let (modulus, rest) = element(INTEGER, fields)?;
    let (exponent, rest) = element(INTEGER, rest)?;
    (exponent == EXPONENT && rest.is_empty()).then_some(())?;
    // The highest bit of a modulus is set, so a zero byte precedes it.
    modulus.strip_prefix(&[0])
}

/// The content of the only element, which must have this tag.
fn whole(tag: u8, der: &[u8]) -> Option<&[u8]> {
    element(tag, der).filter(|(_, rest)| rest.is_empty()).map(|(content, _)| content)
}

/// The content of the first element, which must have this tag, and the rest. Lengths must be in
/// their shortest form.
fn element(tag: u8, der: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = match der.strip_prefix(&[tag])? {
        [len @ 0..=0x7f, rest @ ..] => (usize::from(*len), rest),
        [0x81, len @ 0x80..=0xff, rest @ ..] => (usize::from(*len), rest),
        [0x82, high @ 1..=0xff, low, rest @ ..] => (usize::from(*high) << 8 | usize::from(*low), rest),
        _ => return None,
    };
    rest.split_at_checked(len)
}

pub(super) fn verify(op: &Verify, context: &mut Context) -> Result<Value> {
    let KeyParts { hash, padding, modulus } = parts(op.key()).ok_or_else(|| op.key().invalid())?;
    verdicts(op, context, |all, context| {
        let digests = sha::digests(hash, &all.texts, &all.batch, context)?;
        let words: Vec<u32> = modulus.rchunks(4).map(word).collect();
        let key: Vec<u32> = words.iter().copied().chain(square(&words)).collect();
        let key = place_plain(bytemuck::cast_slice(&key), context)?;
        let is_pss = padding == RsaPadding::Pss;
        let given = match padding {
            RsaPadding::Pss => place_plain(sha::first_state(hash), context)?,
            RsaPadding::Pkcs1 => place_plain(&digest_prefix(hash), context)?,
        };
        let arguments = Arguments::new()
            .address(all.verdicts)
            .address(digests)
            .address(all.given.address)
            .address(all.given_batch.rows())
            .address(key)
            .address(given);
        let arguments = all.given_batch.add_to(arguments).u32(inverse(words[0]));
        let kernel = Kernel::new(RSA, "rsa_verify").integer("LIMBS", words.len()).flag("PSS", is_pss);
        let kernel = kernel.flag("WIDE", is_pss && hash != HashAlgorithm::Sha256);
        context.launch(&kernel, thread_each(all.count()), &mut arguments.size(hash.digest_bytes()))
    })
}

/// A word from up to four big-endian bytes.
fn word(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

/// The DigestInfo bytes before a digest.
fn digest_prefix(hash: HashAlgorithm) -> [u8; 19] {
    let number = match hash {
        HashAlgorithm::Sha256 => 1,
        HashAlgorithm::Sha384 => 2,
        HashAlgorithm::Sha512 => 3,
    };
    let len = hash.digest_bytes() as u8;
    [0x30, 0x11 + len, 0x30, 0x0d, 0x06, 0x09, 0x60, 0x86, 0x48, 0x01, 0x65, 0x03, 0x04, 0x02, number, 0x05, 0, 4, len]
}

/// -1 / n modulo 2^32, for an odd n.
fn inverse(n: u32) -> u32 {
    let found = (0..5).fold(1_u32, |found, _| found.wrapping_mul(2_u32.wrapping_sub(n.wrapping_mul(found))));
    found.wrapping_neg()
}

/// 2^(64 words) modulo n, whose highest bit must be set.
fn square(n: &[u32]) -> Vec<u32> {
    // 2^(32 words) minus n.
    let mut number: Vec<u32> = vec![0; n.len()];
    subtract(&mut number, n);
    for _ in 0..32 * n.len() {
        let mut carry = 0;
        for word in &mut number {
            (*word, carry) = (*word << 1 | carry, *word >> 31);
        }
        if carry == 1 || number.iter().rev().ge(n.iter().rev()) {
            subtract(&mut number, n);
        }
    }
    number
}

/// The difference modulo 2^(32 words).
fn subtract(from: &mut [u32], n: &[u32]) {
    let mut borrow = 0_i64;
    for (word, n) in from.iter_mut().zip(n) {
        borrow += i64::from(*word) - i64::from(*n);
        *word = borrow as u32;
        borrow >>= 32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_of_a_modulus_are_what_they_say() {
        // Compared with 128-bit integers for a modulus of two words.
        let n = 0xf123_4567_89ab_cdef_u64;
        let words = [n as u32, (n >> 32) as u32];
        let expected = (u128::MAX % u128::from(n) + 1) % u128::from(n);
        assert_eq!(square(&words), [expected as u32, (expected >> 32) as u32]);
        assert_eq!(inverse(words[0]).wrapping_mul(words[0]), u32::MAX);
    }

    #[test]
    fn only_whole_keys_are_taken() {
        let mut key = vec![SEQUENCE, 0x82, 1, 10, INTEGER, 0x82, 1, 1, 0];
        key.extend([0xff; 256]);
        key.extend([INTEGER, 3, 1, 0, 1]);
        assert_eq!(modulus(&key), Some(&[0xff; 256][..]));
        for len in 0..key.len() {
            assert_eq!(modulus(&key[..len]), None, "{len}");
        }
        for place in [0, 1, 2, 3, 4, 5, 6, 7, 8, 265, 266, 267, 268, 269] {
            let mut altered = key.clone();
            altered[place] ^= 4;
            assert_eq!(modulus(&altered), None, "{place}");
        }
        key.push(0);
        assert_eq!(modulus(&key), None);
    }
}
