//! Multiples of P-256 points in eight lanes, and verification of ECDSA signatures under one key: u1
//! G + u2 Q is computed from tables of multiples of the base and of the key, without doublings.
//!
//! Points are x / z² and y / z³ (Jacobian). The sum of two equal or opposite points gets a z of
//! zero, and so does every later sum. A caller whose points may be equal or opposite checks z at
//! the end.

use std::arch::x86_64::*;

use panoply_core::once::OnceBox;

use super::field_p256::{
    Field, LIMBS, MODULUS, are_zero, chosen, difference, difference_of_products, entered, from_entered, inverse,
    less_twice, one, product, square,
};
use super::number::{Modulus, U256, is_below, subtracted};
use super::table::{Digit, Digits, LANES, Table, stored};

/// The order of the base point.
pub(super) const ORDER: Modulus =
    Modulus::new([0xf3b9_cac2_fc63_2551, 0xbce6_faad_a717_9e84, u64::MAX, 0xffff_ffff_0000_0000]);
/// Half of the order, rounded down.
const HALF: U256 = [0x79dc_e561_7e31_92a8, 0xde73_7d56_d38b_cf42, 0x7fff_ffff_ffff_ffff, 0x7fff_ffff_8000_0000];
const BASE: [U256; 2] = [
    [0xf4a1_3945_d898_c296, 0x7703_7d81_2deb_33a0, 0xf8bc_e6e5_63a4_40f2, 0x6b17_d1f2_e12c_4247],
    [0xcbb6_4068_37bf_51f5, 0x2bce_3357_6b31_5ece, 0x8ee7_eb4a_7c0f_9e16, 0x4fe3_42e2_fe1a_7f9b],
];

/// Number of signatures that share one inversion.
pub(super) const CHUNK: usize = 16 * LANES;
const DIGEST_BYTES: usize = 32;

/// x and y of multiples of a point.
pub(super) type Multiples<const PAIRS: usize> = Table<{ 2 * LIMBS }, PAIRS>;

/// The precomputed table of a public key.
pub struct P256Lanes {
    multiples: Multiples<1>,
}

/// A signature whose numbers are in range.
struct Candidate {
    index: usize,
    r: U256,
    /// The hash, below the order.
    hash: U256,
}

/// Points in lanes.
#[derive(Clone, Copy)]
pub(super) struct Point {
    pub x: Field,
    pub y: Field,
    pub z: Field,
}

/// A partial sum; lanes of the mask are still empty.
#[derive(Clone, Copy)]
pub(super) struct Sum {
    pub point: Point,
    is_empty: __mmask8,
    one: Field,
}

impl P256Lanes {
    /// Takes a key that is a point of the curve, as big-endian coordinates. `None` if the CPU lacks
    /// the instructions.
    pub fn new(coordinates: &[u8; 64]) -> Option<P256Lanes> {
        super::detected().then_some(())?;
        crate::lanes::entries::enter();
        let (x, y) = coordinates.split_first_chunk()?;
        let point = [of_big_endian(x), of_big_endian(y.try_into().ok()?)];
        // SAFETY: the CPU's features were checked.
        Some(P256Lanes { multiples: unsafe { multiples(&point) } })
    }

    /// Writes verdicts for digests and signatures (r and s, big-endian). It leaves out signatures
    /// whose numbers are out of range, and sums that need another method.
    pub fn verify(
        &self,
        digests: &[[u8; DIGEST_BYTES]],
        signatures: &[Option<[u8; 64]>],
        verdicts: &mut [Option<bool>],
    ) {
        let chunks = digests.chunks(CHUNK).zip(signatures.chunks(CHUNK)).zip(verdicts.chunks_mut(CHUNK));
        for ((digests, signatures), verdicts) in chunks {
            let (mut candidates, mut inverses) = (Vec::with_capacity(CHUNK), Vec::with_capacity(CHUNK));
            for (index, signature) in signatures.iter().enumerate() {
                let Some((r, s)) = signature.as_ref().and_then(|signature| signature.split_first_chunk()) else {
                    continue;
                };
                let Ok(s) = s.try_into().map(of_big_endian) else { continue };
                let r = of_big_endian(r);
                let in_range = |number: &U256| *number != [0; 4] && is_below(number, &ORDER.modulus);
                // If r plus the order is below p, that sum could be x as well.
                let (beyond, _) = subtracted(&MODULUS.modulus, &ORDER.modulus);
                if in_range(&r) && in_range(&s) && !is_below(&r, &beyond) {
                    candidates.push(Candidate { index, r, hash: ORDER.below(of_big_endian(&digests[index]), 0) });
                    inverses.push(ORDER.entered(&s));
                }
            }
            ORDER.invert(&mut inverses);
            // SAFETY: a value of this type exists only if the CPU has the instructions.
            let found = unsafe { self.verified(&candidates, &inverses) };
            for (candidate, found) in candidates.iter().zip(found) {
                verdicts[candidate.index] = found;
            }
        }
    }

    /// # Safety
    /// The CPU must have AVX-512 F.
    #[target_feature(enable = "avx512f")]
    unsafe fn verified(&self, candidates: &[Candidate], inverses: &[U256]) -> Vec<Option<bool>> {
        // Lanes without a signature repeat the last one.
        let groups = candidates.chunks(LANES).zip(inverses.chunks(LANES));
        let digits: Vec<(Digits, Digits)> = groups
            .map(|(group, inverses)| {
                let own = |lane: usize| lane.min(group.len() - 1);
                let factor = |factor: fn(&Candidate) -> &U256| {
                    halved(std::array::from_fn(|lane| ORDER.product(factor(&group[own(lane)]), &inverses[own(lane)])))
                };
                let (u1, u1_is_negated) = factor(|candidate| &candidate.hash);
                let (u2, u2_is_negated) = factor(|candidate| &candidate.r);
                (Multiples::<4>::digits(&u1, u1_is_negated), Multiples::<1>::digits(&u2, u2_is_negated))
            })
            .collect();
        let (mut sums, base) = (vec![Sum::new(); digits.len()], base());
        // Window by window, so that each table entry is read once for all signatures.
        for window in 0..Multiples::<4>::WINDOWS {
            for (sum, (u1, _)) in sums.iter_mut().zip(&digits) {
                sum.add_multiple(base, window, &u1[window]);
            }
        }
        for window in 0..Multiples::<1>::WINDOWS {
            for (sum, (_, u2)) in sums.iter_mut().zip(&digits) {
                sum.add_multiple(&self.multiples, window, &u2[window]);
            }
        }
        let mut found = Vec::with_capacity(candidates.len());
        for (group, sum) in candidates.chunks(LANES).zip(&sums) {
            let r = entered(&std::array::from_fn(|lane| group[lane.min(group.len() - 1)].r));
            let are_open = are_zero(&sum.point.z) | sum.is_empty;
            let are_equal = are_zero(&difference(&product(&r, &square(&sum.point.z)), &sum.point.x));
            let verdict = |lane: usize| (are_open >> lane & 1 == 0).then_some(are_equal >> lane & 1 == 1);
            found.extend((0..group.len()).map(verdict));
        }
        found
    }
}

/// Replaces numbers above half of the order by their negatives; also returns which were negated.
fn halved(numbers: [U256; LANES]) -> ([U256; LANES], [bool; LANES]) {
    let is_above = numbers.map(|number| is_below(&HALF, &number));
    (std::array::from_fn(|lane| if is_above[lane] { ORDER.negated(&numbers[lane]) } else { numbers[lane] }), is_above)
}

/// Multiples of the base point, computed once.
pub(super) fn base() -> &'static Multiples<4> {
    static TABLE: OnceBox<Multiples<4>> = OnceBox::new();
    // SAFETY: the CPU's features were checked before anything was verified or signed.
    TABLE.get_or_make(|| unsafe { multiples(&BASE) })
}

impl Sum {
    /// An empty sum.
    #[target_feature(enable = "avx512f")]
    pub fn new() -> Sum {
        let one = one();
        Sum { point: Point { x: one, y: one, z: one }, is_empty: 0xff, one }
    }

    /// Adds multiples of a table's point. No branch and no address depends on a digit.
    #[target_feature(enable = "avx512f")]
    pub fn add_multiple<const PAIRS: usize>(&mut self, table: &Multiples<PAIRS>, window: usize, digits: &[i16; LANES]) {
        let digit = Digit::new(digits);
        let entry = table.entries(window, &digit);
        let extended = |limb: usize| _mm512_srai_epi64::<32>(_mm512_slli_epi64::<32>(entry[limb]));
        let x: Field = std::array::from_fn(extended);
        let y: Field = std::array::from_fn(|limb| {
            let y = extended(LIMBS + limb);
            _mm512_mask_sub_epi64(y, digit.is_negative, _mm512_setzero_si512(), y)
        });
        let sum = added(&self.point, &x, &y);
        let pick =
            |own: &Field, sum: &Field, first: &Field| chosen(digit.is_zero, own, &chosen(self.is_empty, first, sum));
        self.point = Point {
            x: pick(&self.point.x, &sum.x, &x),
            y: pick(&self.point.y, &sum.y, &y),
            z: pick(&self.point.z, &sum.z, &self.one),
        };
        self.is_empty &= digit.is_zero;
    }
}

/// The sum with a point whose z is one.
#[inline]
#[target_feature(enable = "avx512f")]
fn added(p: &Point, x: &Field, y: &Field) -> Point {
    let z2 = square(&p.z);
    let h = difference(&product(x, &z2), &p.x);
    let r = difference(&product(y, &product(&p.z, &z2)), &p.y);
    let h2 = square(&h);
    let h3 = product(&h, &h2);
    let v = product(&p.x, &h2);
    let x = less_twice(&square(&r), &h3, &v);
    Point { x, y: difference_of_products(&r, &difference(&v, &x), &p.y, &h3), z: product(&p.z, &h) }
}

/// The inverse z coordinates of points.
#[target_feature(enable = "avx512f")]
pub(super) fn inverses(points: &[Point]) -> Vec<Field> {
    let mut all = one();
    let mut inverses = Vec::with_capacity(points.len());
    for point in points {
        inverses.push(all);
        all = product(&all, &point.z);
    }
    let mut over = inverse(&all);
    for (point, place) in points.iter().zip(&mut inverses).rev() {
        *place = product(&over, place);
        over = product(&over, &point.z);
    }
    inverses
}

/// The table of a point's multiples, computed with one lane per window.
///
/// # Safety
/// The CPU must have AVX-512 F.
#[target_feature(enable = "avx512f")]
unsafe fn multiples<const PAIRS: usize>(point: &[U256; 2]) -> Multiples<PAIRS> {
    let (mut table, entries) = (Multiples::new(), Multiples::<PAIRS>::ENTRIES);
    let bases = doubled_bases(point, Multiples::<PAIRS>::BITS, Multiples::<PAIRS>::WINDOWS);
    let (mut points, one) = (Vec::new(), one());
    for bases in bases.chunks(LANES) {
        let own = |lane: usize| &bases[lane.min(bases.len() - 1)];
        let [x, y, x2, y2] = [0, 1, 2, 3].map(|part| from_entered(&std::array::from_fn(|lane| own(lane)[part])));
        points.push(Point { x, y, z: one });
        let mut point = Point { x: x2, y: y2, z: one };
        for _ in 1..entries {
            points.push(point);
            point = added(&point, &x, &y);
        }
    }
    for (number, (point, over)) in points.iter().zip(inverses(&points)).enumerate() {
        let (first, times) = (number / entries * LANES, number % entries + 1);
        let over2 = square(&over);
        let parts = [product(&point.x, &over2), product(&point.y, &product(&over2, &over))];
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

/// Affine coordinates of the point and of its double, then of the point doubled `bits` times and
/// its double, and so on; in Montgomery form.
fn doubled_bases(point: &[U256; 2], bits: usize, count: usize) -> Vec<[U256; 4]> {
    let mut point = [MODULUS.entered(&point[0]), MODULUS.entered(&point[1]), MODULUS.one];
    let (mut points, mut over) = (Vec::with_capacity(2 * count), Vec::with_capacity(2 * count));
    for _ in 0..count {
        for bit in 0..bits {
            if bit < 2 {
                points.push(point);
                over.push(point[2]);
            }
            point = doubled(&point);
        }
    }
    MODULUS.invert(&mut over);
    let affine = |at: usize| {
        let ([x, y, _], over) = (&points[at], &over[at]);
        let over2 = MODULUS.product(over, over);
        (MODULUS.product(x, &over2), MODULUS.product(y, &MODULUS.product(&over2, over)))
    };
    let pair = |window: usize| {
        let ((x, y), (x2, y2)) = (affine(2 * window), affine(2 * window + 1));
        [x, y, x2, y2]
    };
    (0..count).map(pair).collect()
}

fn doubled([x, y, z]: &[U256; 3]) -> [U256; 3] {
    let (product, sum, difference) = (
        |a: &U256, b: &U256| MODULUS.product(a, b),
        |a: &U256, b: &U256| MODULUS.sum(a, b),
        |a: &U256, b: &U256| MODULUS.difference(a, b),
    );
    let (delta, gamma) = (product(z, z), product(y, y));
    let beta = product(x, &gamma);
    let alpha = product(&difference(x, &delta), &sum(x, &delta));
    let alpha = sum(&sum(&alpha, &alpha), &alpha);
    let beta2 = sum(&beta, &beta);
    let beta4 = sum(&beta2, &beta2);
    let x = difference(&product(&alpha, &alpha), &sum(&beta4, &beta4));
    let both = sum(y, z);
    let z = difference(&difference(&product(&both, &both), &gamma), &delta);
    let gamma2 = sum(&gamma, &gamma);
    let square = product(&gamma2, &gamma2);
    let y = difference(&product(&alpha, &difference(&beta4, &x)), &sum(&square, &square));
    [x, y, z]
}

/// Reads 32 big-endian bytes.
pub(super) fn of_big_endian(bytes: &[u8; 32]) -> U256 {
    let (words, _) = bytes.as_chunks();
    std::array::from_fn(|place| u64::from_be_bytes(words[3 - place]))
}

/// Writes 32 big-endian bytes.
pub(super) fn to_big_endian(number: &U256) -> [u8; 32] {
    let mut bytes = [0; 32];
    for (bytes, word) in bytes.chunks_exact_mut(8).zip(number.iter().rev()) {
        bytes.copy_from_slice(&word.to_be_bytes());
    }
    bytes
}
