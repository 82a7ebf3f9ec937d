//! Verify with ECDSA over P-256: one thread for each signature, all under one key. Many signatures
//! are worth a table of multiples of the base and of the key.

use panoply_core::op::crypto::{EcdsaEncoding, HashAlgorithm, Key, Purpose, SignatureAlgorithm, Verify};
use panoply_core::{Result, Value};
use panoply_kernels::c::{Kernel, P256, P256_TABLES};

use super::sha;
use super::signatures::{Signatures, thread_each, verdicts};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::ops::messages::place_plain;

/// From this number of signatures on, a table saves more than it costs.
const TABLE_COUNT_MIN: usize = 4096;
/// Bits of the table's windows, and number of entries that a thread computes.
const TABLE_WINDOW: usize = 8;
const TABLE_RUN: usize = 16;
pub(super) const NUMBER_BYTES: usize = 32;
/// The bytes before the point in a SubjectPublicKeyInfo.
const KEY_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// The byte before the coordinates of an uncompressed point.
const UNCOMPRESSED: u8 = 4;

/// Whether this is a P-256 public key on the host, in a supported form.
pub(super) fn is_for(key: &Key) -> bool {
    encoding(key).is_some() && coordinates(key).is_some()
}

fn encoding(key: &Key) -> Option<EcdsaEncoding> {
    match key.purpose() {
        Purpose::Verify(SignatureAlgorithm::EcdsaP256(encoding)) => Some(encoding),
        _ => None,
    }
}

pub(super) fn verify(op: &Verify, context: &mut Context) -> Result<Value> {
    let point = coordinates(op.key()).and_then(decoded).ok_or_else(|| op.key().invalid())?;
    let is_der = encoding(op.key()) == Some(EcdsaEncoding::Der);
    verdicts(op, context, |all, context| launch_verify(all, &point, is_der, context))
}

/// Verifies under a key.
pub(super) fn launch_verify(all: &Signatures, point: &[U256; 2], is_der: bool, context: &mut Context) -> Result<()> {
    let has_table = all.count() >= TABLE_COUNT_MIN;
    let key = place_plain(bytemuck::cast_slice(point.as_flattened()), context)?;
    let table = if has_table { multiples(key, context)? } else { key };
    let first = place_plain(sha::first_state(HashAlgorithm::Sha256), context)?;
    let kernel = Kernel::new(P256, "p256_verify").flag("WIDE", false).flag("TABLE", has_table);
    let arguments = all.arguments().address(table).address(first);
    context.launch(&kernel, thread_each(all.count()), &mut all.add_to(arguments).u32(u32::from(is_der)))
}

/// The table of multiples of the base and of the key.
fn multiples(key: Address, context: &mut Context) -> Result<Address> {
    let table = context.scratch(multiples_bytes(TABLE_WINDOW, 2))?;
    make_multiples(table, key, TABLE_WINDOW, 2, context)?;
    Ok(table)
}

/// Bytes of a table of the multiples of `points` points.
pub(super) const fn multiples_bytes(window: usize, points: usize) -> usize {
    points * ((256 / window) << window) * 2 * NUMBER_BYTES
}

/// Computes the table for windows of `window` bits: of one point, the base, or of two, the base and
/// the key.
pub(super) fn make_multiples(
    table: Address,
    key: Address,
    window: usize,
    points: usize,
    context: &mut Context,
) -> Result<()> {
    let kernel = |entry| Kernel::new(P256_TABLES, entry).flag("WIDE", false).integer("WINDOW", window);
    let bases = context.scratch(points * (256 / window) * 3 * NUMBER_BYTES)?;
    let mut arguments = Arguments::new().address(bases).address(key).size(points);
    context.launch(&kernel("p256_bases"), Launch::new(1, 32), &mut arguments)?;
    let runs = multiples_bytes(window, points) / (2 * NUMBER_BYTES) / TABLE_RUN;
    context.launch(&kernel("p256_table"), thread_each(runs), &mut Arguments::new().address(table).address(bases))
}

/// Both coordinates of the point, bare or in a SubjectPublicKeyInfo, big-endian.
fn coordinates(key: &Key) -> Option<&[u8; 2 * NUMBER_BYTES]> {
    let bytes = key.material().as_slice().ok()?;
    let bytes = bytes.strip_prefix(&KEY_PREFIX).unwrap_or(bytes);
    bytes.strip_prefix(&[UNCOMPRESSED])?.try_into().ok()
}

/// Four words, the lowest first.
pub(super) type U256 = [u64; 4];

const P: U256 = [u64::MAX, 0xffff_ffff, 0, 0xffff_ffff_0000_0001];
/// The curve's b: y² = x³ - 3 x + b.
const B: U256 = [0x3bce_3c3e_27d2_604b, 0x651d_06b0_cc53_b0f6, 0xb3eb_bd55_7698_86bc, 0x5ac6_35d8_aa3a_93e7];

/// A point of the curve: x and y below p. `None` if the bytes are not a point. Keys are public, so
/// this need not run in constant time.
pub(super) fn decoded(coordinates: &[u8; 2 * NUMBER_BYTES]) -> Option<[U256; 2]> {
    let (words, _) = coordinates.as_chunks();
    let number = |first: usize| std::array::from_fn(|index| u64::from_be_bytes(words[first + 3 - index]));
    let (x, y): (U256, U256) = (number(0), number(4));
    if !is_below(&x, &P) || !is_below(&y, &P) {
        return None;
    }
    let cube = product(&product(&x, &x), &x);
    let thrice = sum(&sum(&x, &x), &x);
    (sum(&product(&y, &y), &thrice) == sum(&cube, &B)).then_some([x, y])
}

fn is_below(a: &U256, b: &U256) -> bool {
    a.iter().rev().lt(b.iter().rev())
}

/// The sum modulo p of two numbers below p.
fn sum(a: &U256, b: &U256) -> U256 {
    let (mut words, mut carry) = ([0; 4], 0_u128);
    for ((word, a), b) in words.iter_mut().zip(a).zip(b) {
        carry += u128::from(*a) + u128::from(*b);
        *word = carry as u64;
        carry >>= 64;
    }
    if carry == 0 && is_below(&words, &P) {
        return words;
    }
    let mut borrow = 0_i128;
    for (word, p) in words.iter_mut().zip(&P) {
        borrow += i128::from(*word) - i128::from(*p);
        *word = borrow as u64;
        borrow >>= 64;
    }
    words
}

/// The product modulo p, bit by bit.
fn product(a: &U256, b: &U256) -> U256 {
    let mut result = [0; 4];
    for bit in (0..256).rev() {
        result = sum(&result, &result);
        if a[bit / 64] >> (bit % 64) & 1 == 1 {
            result = sum(&result, b);
        }
    }
    result
}

#[cfg(test)]
mod tests {
    use panoply_conformance::run_one;
    use panoply_core::op::crypto::Messages;
    use panoply_core::{Backend, Bytes, OpenOptions, Operation};

    use super::*;
    use crate::{EmulatedBackend, GpuBackend};

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap()).collect()
    }

    /// The key of RFC 6979, A.2.5.
    const POINT: &str = "0460fed4ba255a9d31c961eb74c6356d68c049b8923b61fa6ce669622e60f29fb6\
        7903fe1008b8bc99a41ae9e95628bc64f2f1b20c2d7e9f5177a3c294d4462299";
    /// Its signatures of "sample" and "test" with SHA-256.
    const SAMPLE: &str = "efd48b2aacb6a8fd1140dd9cd45e81d69d2c877b56aaf991c34d0ea84eaf3716\
        f7cb1c942d657c41d436c7a1b6e29f65f3e900dbb9aff4064dc4ab2f843acda8";
    const TEST: &str = "f1abb023518351cd71d881567b1ea663ed3efcf6c5132b354f28d3b0b7d38367\
        019f4113742a2b14bd25926b49c649155f267e60d3814b4c0cc84250e46f0083";

    /// A message, its signature, and the verdict.
    type SignatureCase<'a> = (&'a [u8], &'a [u8], u8);

    #[test]
    fn points_that_are_not_on_the_curve_are_refused() {
        let point: [u8; 64] = bytes(POINT)[1..].try_into().unwrap();
        assert!(decoded(&point).is_some());
        for place in [0, 31, 32, 63] {
            let mut wrong = point;
            wrong[place] ^= 1;
            assert_eq!(decoded(&wrong), None, "{place}");
        }
        assert_eq!(decoded(&[0xff; 64]), None);
        assert_eq!(decoded(&[0; 64]), None);
    }

    /// Few signatures, and enough for a table: valid ones, of another message, altered, too short.
    #[test]
    fn few_and_many_signatures_are_verified() {
        let backend = match EmulatedBackend::new() {
            Ok(backend) => backend,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let info = backend.discover().unwrap().remove(0);
        let mut engine = backend.open_engine(&info, &OpenOptions::default()).unwrap();
        let key = Key::verify(SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Fixed), &bytes(POINT)).unwrap();
        let (sample, test) = (bytes(SAMPLE), bytes(TEST));
        let mut altered = sample.clone();
        altered[40] ^= 4;
        let kinds = [
            (&b"sample"[..], &sample[..], 1),
            (b"test", &test, 1),
            (b"test", &sample, 0),
            (b"sample", &altered, 0),
            (b"test", &test[..63], 0),
        ];
        for count in [7, TABLE_COUNT_MIN + 1] {
            let each = || kinds.iter().cycle().take(count);
            let list = |part: fn(&SignatureCase<'_>) -> Vec<u8>| {
                Messages::from(each().map(|kind| Bytes::from_vec(part(kind))).collect::<Vec<_>>())
            };
            let op = Verify::new(&key, list(|kind| kind.0.to_vec()), list(|kind| kind.1.to_vec()));
            let verdicts = run_one(&mut engine, op.into_op().unwrap()).unwrap().into_bytes().unwrap();
            let expected: Vec<u8> = each().map(|kind| kind.2).collect();
            assert_eq!(verdicts.as_slice().unwrap(), expected, "{count}");
        }
    }
}
