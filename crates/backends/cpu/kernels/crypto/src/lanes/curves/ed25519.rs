//! Verifies Ed25519 signatures under one key, eight at a time. s B - h A is computed from tables of
//! multiples of the base and of the key, without doublings, and compared with the encoded R. The
//! formulas are complete, so each verdict depends on its own signature alone.
//!
//! All data here is public.

use std::arch::x86_64::*;

use panoply_core::once::OnceBox;
use panoply_core::op::crypto::HashAlgorithm;

use super::field25519::{Field, LIMBS, constant, difference, entered, inverse, left, product, sum};
use super::number::{Modulus, U256, is_below, of_little_endian};
use super::table::{Digit, Digits, LANES, Table, stored};
use crate::hash::hash_parts;
use crate::lanes::{detected_for_hash, hash_alike};

pub(super) const FIELD: Modulus =
    Modulus::new([0xffff_ffff_ffff_ffed, 0xffff_ffff_ffff_ffff, 0xffff_ffff_ffff_ffff, 0x7fff_ffff_ffff_ffff]);
/// The order of the base point.
pub(super) const ORDER: Modulus =
    Modulus::new([0x5812_631a_5cf5_d3ed, 0x14de_f9de_a2f7_9cd6, 0, 0x1000_0000_0000_0000]);
/// The curve's d: -x² + y² = 1 + d x² y².
pub(super) const D: U256 = [0x75eb_4dca_1359_78a3, 0x0070_0a4d_4141_d8ab, 0x8cc7_4079_7779_e898, 0x5203_6cee_2b6f_fe73];
/// A square root of -1.
const ROOT: U256 = [0xc4ee_1b27_4a0e_a0b0, 0x2f43_1806_ad2f_e478, 0x2b4d_0099_3dfb_d7a7, 0x2b83_2480_4fc1_df0b];
/// (p - 5) / 8.
const EIGHTH: U256 = [0xffff_ffff_ffff_fffd, u64::MAX, u64::MAX, 0x0fff_ffff_ffff_ffff];
/// The encoded base point: y is four fifths, x even.
pub(super) const BASE: [u8; 32] = {
    let mut bytes = [0x66; 32];
    bytes[0] = 0x58;
    bytes
};

/// Number of signatures that share one inversion.
const CHUNK: usize = 16 * LANES;
/// Longer messages are not copied, but hashed in place, one at a time.
const COPIED_BYTES_MAX: usize = 2048;
const DIGEST_BYTES: usize = 64;

/// y + x, y - x and 2 d x y of multiples of a point.
type Multiples<const PAIRS: usize> = Table<{ 3 * LIMBS }, PAIRS>;

/// The precomputed tables of a public key.
pub struct Ed25519Lanes {
    encoded: [u8; 32],
    /// Multiples of the negated key.
    multiples: Multiples<1>,
}

/// A signature whose s is below the order.
struct Candidate {
    index: usize,
    r: [u8; 32],
    s: U256,
    h: U256,
}

/// A point: x / z, y / z, and t / z = x y / z².
#[derive(Clone, Copy)]
struct Point {
    x: Field,
    y: Field,
    z: Field,
    t: Field,
}

impl Ed25519Lanes {
    /// Takes a key that is a point of the curve. `None` if it is not one, or if the CPU lacks the
    /// instructions.
    pub fn new(encoded: &[u8; 32]) -> Option<Ed25519Lanes> {
        super::detected().then_some(())?;
        crate::lanes::entries::enter();
        let (x, y) = decoded(encoded)?;
        // SAFETY: the CPU's features were checked.
        let multiples = unsafe { multiples(&FIELD.negated(&x), &y) };
        Some(Ed25519Lanes { encoded: *encoded, multiples })
    }

    /// Writes the verdicts; malformed signatures are left out.
    pub fn verify(&self, messages: &[&[u8]], signatures: &[&[u8]], verdicts: &mut [Option<bool>]) {
        let chunks = messages.chunks(CHUNK).zip(signatures.chunks(CHUNK)).zip(verdicts.chunks_mut(CHUNK));
        for ((messages, signatures), verdicts) in chunks {
            let candidates = self.candidates(messages, signatures);
            // SAFETY: a value of this type exists only if the CPU has the instructions.
            let found = unsafe { self.verified(&candidates) };
            for (candidate, found) in candidates.iter().zip(found) {
                verdicts[candidate.index] = Some(found);
            }
        }
    }

    fn candidates(&self, messages: &[&[u8]], signatures: &[&[u8]]) -> Vec<Candidate> {
        let mut candidates = Vec::with_capacity(messages.len());
        for (index, signature) in signatures.iter().enumerate() {
            let Some((r, s)) = signature.split_first_chunk() else { continue };
            let Ok(s) = s.try_into().map(of_little_endian) else { continue };
            if is_below(&s, &ORDER.modulus) {
                candidates.push(Candidate { index, r: *r, s, h: [0; 4] });
            }
        }
        let of_digest = |digest: &[u8; DIGEST_BYTES]| {
            let (low, high) = digest.split_at(32);
            let word = |half: &[u8]| half.try_into().map(of_little_endian).unwrap_or_default();
            ORDER.of_wide(&word(low), &word(high))
        };
        let wide = detected_for_hash();
        let (long, short): (Vec<_>, Vec<_>) =
            candidates.iter_mut().partition(|candidate| !wide || messages[candidate.index].len() > COPIED_BYTES_MAX);
        for candidate in long {
            let mut digest = [0; DIGEST_BYTES];
            hash_parts(HashAlgorithm::Sha512, &[&candidate.r, &self.encoded, messages[candidate.index]], &mut digest);
            candidate.h = of_digest(&digest);
        }
        let texts: Vec<Vec<u8>> =
            short.iter().map(|candidate| [&candidate.r, &self.encoded, messages[candidate.index]].concat()).collect();
        for (candidate, digest) in short.into_iter().zip(hashed(&texts)) {
            candidate.h = of_digest(&digest);
        }
        candidates
    }

    /// # Safety
    /// The CPU must have AVX-512 F.
    #[target_feature(enable = "avx512f")]
    unsafe fn verified(&self, candidates: &[Candidate]) -> Vec<bool> {
        let digits: Vec<(Digits, Digits)> = candidates
            .chunks(LANES)
            .map(|group| {
                // Lanes without a signature repeat the last one.
                let own = |lane: usize| &group[lane.min(group.len() - 1)];
                let s = Multiples::<4>::digits(&std::array::from_fn(|lane| own(lane).s), [false; LANES]);
                (s, Multiples::<1>::digits(&std::array::from_fn(|lane| own(lane).h), [false; LANES]))
            })
            .collect();
        let neutral = Point { x: constant(0), y: constant(1), z: constant(1), t: constant(0) };
        let (base, mut points) = (base(), vec![neutral; digits.len()]);
        // Window by window, so that each table entry is read once for all signatures.
        for window in 0..Multiples::<4>::WINDOWS {
            for (point, (s, _)) in points.iter_mut().zip(&digits) {
                *point = added_multiple(point, base, window, &s[window]);
            }
        }
        for window in 0..Multiples::<1>::WINDOWS {
            for (point, (_, h)) in points.iter_mut().zip(&digits) {
                *point = added_multiple(point, &self.multiples, window, &h[window]);
            }
        }
        let mut found = Vec::with_capacity(candidates.len());
        let affine = affine(&points);
        for (group, (x, y)) in candidates.chunks(LANES).zip(&affine) {
            let (x, y) = (left(x), left(y));
            for (lane, candidate) in group.iter().enumerate() {
                let mut encoded = y[lane];
                encoded[3] |= x[lane][0] << 63;
                found.push(encoded == of_little_endian(&candidate.r));
            }
        }
        found
    }
}

/// SHA-512 of texts, in lanes.
fn hashed(texts: &[Vec<u8>]) -> Vec<[u8; DIGEST_BYTES]> {
    let slices: Vec<&[u8]> = texts.iter().map(Vec::as_slice).collect();
    let mut digests = vec![[0; DIGEST_BYTES]; texts.len()];
    let (mut rest, mut out) = (slices.as_slice(), digests.as_flattened_mut());
    while let Some(first) = rest.first() {
        // SAFETY: texts exist only if the CPU has the lanes.
        let done = unsafe { hash_alike(HashAlgorithm::Sha512, rest, out) };
        if done == 0 {
            hash_parts(HashAlgorithm::Sha512, &[first], &mut out[..DIGEST_BYTES]);
        }
        let done = done.max(1);
        (rest, out) = (&rest[done..], &mut out[done * DIGEST_BYTES..]);
    }
    digests
}

/// Multiples of the base point, computed once.
fn base() -> &'static Multiples<4> {
    static TABLE: OnceBox<Multiples<4>> = OnceBox::new();
    TABLE.get_or_make(|| {
        let (x, y) = decoded(&BASE).unwrap_or_default();
        // SAFETY: the CPU's features were checked before anything was verified.
        unsafe { multiples(&x, &y) }
    })
}

/// The point plus multiples of a table's point.
#[target_feature(enable = "avx512f")]
fn added_multiple<const PAIRS: usize>(
    point: &Point,
    table: &Multiples<PAIRS>,
    window: usize,
    digits: &[i16; LANES],
) -> Point {
    let digit = Digit::new(digits);
    let entry = table.entries(window, &digit);
    let (zero, one) = (_mm512_setzero_si512(), constant(1));
    let (mut plus, mut minus, mut product) = (one, one, one);
    for limb in 0..LIMBS {
        let (first, second, third) = (entry[limb], entry[LIMBS + limb], entry[2 * LIMBS + limb]);
        let swapped = _mm512_mask_blend_epi64(digit.is_negative, first, second);
        plus[limb] = _mm512_mask_mov_epi64(swapped, digit.is_zero, one[limb]);
        let swapped = _mm512_mask_blend_epi64(digit.is_negative, second, first);
        minus[limb] = _mm512_mask_mov_epi64(swapped, digit.is_zero, one[limb]);
        let negated = _mm512_mask_sub_epi64(third, digit.is_negative, zero, third);
        product[limb] = _mm512_mask_mov_epi64(negated, digit.is_zero, zero);
    }
    added(point, &plus, &minus, &product)
}

/// The sum with a point that is given as y + x, y - x and 2 d x y.
#[inline]
#[target_feature(enable = "avx512f")]
fn added(p: &Point, plus: &Field, minus: &Field, product_2d: &Field) -> Point {
    let a = product(&difference(&p.y, &p.x), minus);
    let b = product(&sum(&p.y, &p.x), plus);
    let c = product(&p.t, product_2d);
    let d = sum(&p.z, &p.z);
    let (e, f, g, h) = (difference(&b, &a), difference(&d, &c), sum(&d, &c), sum(&b, &a));
    Point { x: product(&e, &f), y: product(&g, &h), z: product(&f, &g), t: product(&e, &h) }
}

/// The affine coordinates of points.
#[target_feature(enable = "avx512f")]
fn affine(points: &[Point]) -> Vec<(Field, Field)> {
    let mut products = Vec::with_capacity(points.len());
    let mut all = constant(1);
    for point in points {
        products.push(all);
        all = product(&all, &point.z);
    }
    let mut over = inverse(&all);
    let mut affine = vec![(constant(0), constant(0)); points.len()];
    for ((point, before), place) in points.iter().zip(&products).zip(&mut affine).rev() {
        let own = product(&over, before);
        over = product(&over, &point.z);
        *place = (product(&point.x, &own), product(&point.y, &own));
    }
    affine
}

/// The table of a point's multiples, computed with one lane per window.
///
/// # Safety
/// The CPU must have AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn multiples<const PAIRS: usize>(x: &U256, y: &U256) -> Multiples<PAIRS> {
    let (mut table, entries) = (Multiples::new(), Multiples::<PAIRS>::ENTRIES);
    let bases = doubled_bases(x, y, Multiples::<PAIRS>::BITS, Multiples::<PAIRS>::WINDOWS);
    let d2 = FIELD.sum(&D, &D);
    let d2 = entered(&[d2; LANES]);
    let mut points = Vec::new();
    for bases in bases.chunks(LANES) {
        let own = |lane: usize| &bases[lane.min(bases.len() - 1)];
        let x = entered(&std::array::from_fn(|lane| own(lane).0));
        let y = entered(&std::array::from_fn(|lane| own(lane).1));
        let t = product(&x, &y);
        let (plus, minus, t_2d) = (sum(&y, &x), difference(&y, &x), product(&t, &d2));
        let mut point = Point { x, y, z: constant(1), t };
        for _ in 0..entries {
            points.push(point);
            point = added(&point, &plus, &minus, &t_2d);
        }
    }
    for (number, (x, y)) in affine(&points).iter().enumerate() {
        let (first, times) = (number / entries * LANES, number % entries + 1);
        let parts = [sum(y, x), difference(y, x), product(&product(x, y), &d2)];
        for (part, value) in parts.iter().enumerate() {
            for (limb, lanes) in stored(value).iter().enumerate() {
                for (window, value) in (first..Multiples::<PAIRS>::WINDOWS).zip(lanes) {
                    table.set(window, times, part * LIMBS + limb, *value);
                }
            }
        }
    }
    table
}

/// Affine coordinates of the point, of the point doubled `bits` times, and so on.
fn doubled_bases(x: &U256, y: &U256, bits: usize, count: usize) -> Vec<(U256, U256)> {
    let (product, sum, difference) = (
        |a: &U256, b: &U256| FIELD.product(a, b),
        |a: &U256, b: &U256| FIELD.sum(a, b),
        |a: &U256, b: &U256| FIELD.difference(a, b),
    );
    let (mut x, mut y, mut z) = (FIELD.entered(x), FIELD.entered(y), FIELD.one);
    let (mut points, mut over) = (Vec::with_capacity(count), Vec::with_capacity(count));
    for _ in 0..count {
        points.push((x, y));
        over.push(z);
        for _ in 0..bits {
            let (a, b, c, both) = (product(&x, &x), product(&y, &y), product(&z, &z), sum(&x, &y));
            let (h, g) = (sum(&a, &b), difference(&a, &b));
            let e = difference(&h, &product(&both, &both));
            let f = sum(&sum(&c, &c), &g);
            (x, y, z) = (product(&e, &f), product(&g, &h), product(&f, &g));
        }
    }
    FIELD.invert(&mut over);
    let each = points.iter().zip(&over);
    each.map(|((x, y), over)| (FIELD.left(&product(x, over)), FIELD.left(&product(y, over)))).collect()
}

/// The coordinates of an encoded point; `None` if it is not on the curve.
pub(super) fn decoded(encoded: &[u8; 32]) -> Option<(U256, U256)> {
    let mut y = of_little_endian(encoded);
    let is_odd = y[3] >> 63;
    y[3] &= i64::MAX as u64;
    if !is_below(&y, &FIELD.modulus) {
        return None;
    }
    // x² = u / v; a root is u v³ (u v⁷)^((p - 5) / 8), or that times a root of -1.
    let product = |a: &U256, b: &U256| FIELD.product(a, b);
    let entered = FIELD.entered(&y);
    let square = product(&entered, &entered);
    let u = FIELD.difference(&square, &FIELD.one);
    let v = FIELD.sum(&product(&FIELD.entered(&D), &square), &FIELD.one);
    let v3 = product(&product(&v, &v), &v);
    let v7 = product(&product(&v3, &v3), &v);
    let mut x = product(&product(&u, &v3), &FIELD.power(&product(&u, &v7), &EIGHTH));
    let check = product(&v, &product(&x, &x));
    if check == FIELD.negated(&u) {
        x = product(&x, &FIELD.entered(&ROOT));
    } else if check != u {
        return None;
    }
    let x = FIELD.left(&x);
    let x = if x[0] & 1 == is_odd { x } else { FIELD.negated(&x) };
    // Zero has no negative sign.
    (x[0] & 1 == is_odd).then_some((x, y))
}
