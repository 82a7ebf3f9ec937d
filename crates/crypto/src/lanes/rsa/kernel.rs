//! Products of eight numbers by eight, and their reduction, with AVX-512 F.
//!
//! * A product of two limbs, a b, is made of doubles: 2^104 + a b, rounded towards zero, has the upper 52 bits in its mantissa, and
//!   2^52 + a b - 2^52 upper the lower 52 bits. The bits of both doubles are summed up as integers; what their exponents add is known, and stands
//!   in each sum from the start, negated.
//! * A product is summed up column by column, five rows at a time, which stay in registers. A column has less than 64 bits, so nothing is carried.
//! * It is reduced five columns at a time. N times k = -1 / N modulo 2^260 is 2^260 above - 1. So adding the lowest five limbs times N k means
//!   to leave them out and to add them times `above` five columns higher: no limb waits for the one before. Only in the last five columns would that
//!   give a multiple of N k that is too long; there it is the limbs times k, modulo 2^260, by N itself.
//!
//! No step depends on the numbers. Doubles are whole numbers or zero, so none is slower than others.

use std::arch::x86_64::*;

use super::limbs::{BLOCK, LIMB_BITS, LIMB_MASK, Limbs};
use super::numbers::{LANES, Numbers, Vector};

/// 2^52 as a double, whose bits stand above those of a lower half.
const LOW: u64 = 0x4330_0000_0000_0000;
/// 2^104 as a double, whose bits stand above those of an upper half.
const HIGH: u64 = 0x4670_0000_0000_0000;
const TO_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;
const SHIFT: u32 = LIMB_BITS as u32;
/// Limbs of each entry of a table that are looked up together.
const SELECTED: usize = 2 * BLOCK;

type Rows = [__m512i; BLOCK];

/// What the kernel needs of a modulus, as operands.
pub(super) struct Constants {
    n: Limbs,
    above: Limbs,
    k: Limbs,
    /// What each column of a product starts with: what the exponents add, negated.
    starts: Vec<u64>,
}

impl Constants {
    /// The modulus, and the two numbers that are named above.
    pub(super) fn new(n: Limbs, above: Limbs, k: Limbs) -> Constants {
        assert!(n.len().is_multiple_of(SELECTED) && above.len() == n.len() && k.len() == BLOCK);
        let starts = starts(n.len());
        Constants { n, above, k, starts }
    }
}

/// See [`Constants::starts`]. The last block's lowest columns are not in it: those are read before the block's products are added.
fn starts(len: usize) -> Vec<u64> {
    let mut starts = vec![0_u64; 2 * len + 1];
    let mut add = |column: usize, from: usize| {
        for (column, bits) in [(column, LOW), (column + 1, HIGH)] {
            if column >= from {
                starts[column] = starts[column].wrapping_sub(bits);
            }
        }
    };
    for row in 0..len {
        for limb in 0..len {
            add(row + limb, 0);
            match row + BLOCK < len {
                true => add(row + BLOCK + limb, 0),
                false => add(row + limb, len),
            }
        }
    }
    starts.truncate(2 * len);
    starts
}

/// What so many lower and upper halves add to a column, negated.
#[inline]
#[target_feature(enable = "avx512f")]
fn start(lows: usize, highs: usize) -> __m512i {
    let sum = LOW.wrapping_mul(lows as u64).wrapping_add(HIGH.wrapping_mul(highs as u64));
    _mm512_set1_epi64(sum.wrapping_neg() as i64)
}

/// `a = a b / R` modulo the modulus.
///
/// # Safety
/// The CPU must have AVX-512 F. The numbers must have as many limbs as the modulus, and the columns twice as many.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn multiply(a: &mut [Vector], b: &[Vector], columns: &mut Numbers, constants: &Constants) {
    let (len, t, x) = (a.len(), columns.as_mut_ptr(), a.as_ptr().cast());
    // SAFETY: the caller says that the columns are there; each of the rows begins a block below the numbers' length.
    unsafe {
        for (column, start) in constants.starts.iter().enumerate() {
            _mm512_store_si512(t.add(column).cast(), _mm512_set1_epi64(*start as i64));
        }
        for row in (0..len).step_by(BLOCK) {
            sweep::<false>(t.add(row), &rows(b.as_ptr().add(row).cast()), x, len);
        }
        reduce(a.as_mut_ptr(), t, len, constants);
    }
}

/// `a = a a / R` modulo the modulus.
///
/// # Safety
/// As for `multiply`.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn square(a: &mut [Vector], columns: &mut Numbers, constants: &Constants) {
    let (len, t, x) = (a.len(), columns.as_mut_ptr(), a.as_ptr());
    let starts = constants.starts.as_ptr();
    // SAFETY: as in `multiply`.
    unsafe {
        for column in 0..2 * len {
            _mm512_store_si512(t.add(column).cast(), _mm512_setzero_si512());
        }
        for row in (0..len).step_by(BLOCK) {
            sweep_above(t.add(2 * row), x.add(row).cast(), len - row);
        }
        // What was summed up stands on both sides of the diagonal, which is added.
        for limb in 0..len {
            let factor = load::<false>(x.cast(), limb);
            let even = _mm512_load_si512(t.add(2 * limb).cast());
            let odd = _mm512_load_si512(t.add(2 * limb + 1).cast());
            let even = _mm512_add_epi64(_mm512_add_epi64(even, even), load::<true>(starts, 2 * limb));
            let odd = _mm512_add_epi64(_mm512_add_epi64(odd, odd), load::<true>(starts, 2 * limb + 1));
            let (even, odd) = product(even, odd, factor, factor);
            _mm512_store_si512(t.add(2 * limb).cast(), even);
            _mm512_store_si512(t.add(2 * limb + 1).cast(), odd);
        }
        reduce(a.as_mut_ptr(), t, len, constants);
    }
}

/// `a = a + b`.
///
/// # Safety
/// The CPU must have AVX-512 F. Both must have as many limbs.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn add(a: &mut [Vector], b: &[Vector]) {
    let mut carry = _mm512_setzero_si512();
    for (a, b) in a.iter_mut().zip(b) {
        // SAFETY: a vector is as long as a register, and aligned as it must be.
        let [x, y] = unsafe { [loaded(a), loaded(b)] };
        carry = _mm512_add_epi64(carry, _mm512_add_epi64(limb(x), limb(y)));
        // SAFETY: as above.
        unsafe { _mm512_store_si512((&raw mut *a).cast(), operand(carry)) };
        carry = _mm512_srli_epi64::<SHIFT>(carry);
    }
}

/// `a = a - b + 4 n`.
///
/// # Safety
/// The CPU must have AVX-512 F. All must have as many limbs.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn subtract(a: &mut [Vector], b: &[Vector], constants: &Constants) {
    let mut carry = _mm512_setzero_si512();
    for ((a, b), n) in a.iter_mut().zip(b).zip(constants.n.iter()) {
        // SAFETY: a vector is as long as a register, and aligned as it must be.
        let [x, y] = unsafe { [loaded(a), loaded(b)] };
        let n = _mm512_slli_epi64::<2>(limb(_mm512_set1_epi64(*n as i64)));
        carry = _mm512_add_epi64(carry, _mm512_add_epi64(_mm512_sub_epi64(limb(x), limb(y)), n));
        // SAFETY: as above.
        unsafe { _mm512_store_si512((&raw mut *a).cast(), operand(carry)) };
        carry = _mm512_srai_epi64::<SHIFT>(carry);
    }
}

/// Copies entry `digit` of a table, of which it reads every entry.
///
/// # Safety
/// The CPU must have AVX-512 F. The table must consist of entries that are as long as `to`, and that of a modulus.
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn select(to: &mut [Vector], table: &[Vector], digit: u8) {
    let len = to.len();
    for (part, to) in to.chunks_exact_mut(SELECTED).enumerate() {
        let mut sums = [_mm512_setzero_si512(); SELECTED];
        for (place, entry) in table.chunks_exact(len).enumerate() {
            // All ones where the entry is the one; hidden from the compiler, which could else leave out the others.
            let differs = u64::from(digit) ^ place as u64;
            let mask = std::hint::black_box((differs.wrapping_sub(1) >> 63).wrapping_neg());
            let mask = _mm512_set1_epi64(mask as i64);
            for (sum, vector) in sums.iter_mut().zip(&entry[part * SELECTED..]) {
                // SAFETY: a vector is as long as a register, and aligned as it must be.
                let vector = unsafe { loaded(vector) };
                *sum = _mm512_or_si512(*sum, _mm512_and_si512(vector, mask));
            }
        }
        for (to, sum) in to.iter_mut().zip(sums) {
            // SAFETY: as above.
            unsafe { _mm512_store_si512((&raw mut *to).cast(), sum) };
        }
    }
}

/// Adds both halves of a product, with the bits above them.
#[inline]
#[target_feature(enable = "avx512f")]
fn product(low: __m512i, high: __m512i, a: __m512i, b: __m512i) -> (__m512i, __m512i) {
    let (a, b) = (_mm512_castsi512_pd(a), _mm512_castsi512_pd(b));
    let upper = _mm512_fmadd_round_pd::<TO_ZERO>(a, b, _mm512_castsi512_pd(_mm512_set1_epi64(HIGH as i64)));
    // 2^104 + 2^52, of which the upper half with its bits is taken away: exact, since the difference has no more than 52 bits.
    let without = _mm512_sub_pd(_mm512_castsi512_pd(_mm512_set1_epi64(HIGH as i64 + 1)), upper);
    let lower = _mm512_fmadd_round_pd::<TO_ZERO>(a, b, without);
    (_mm512_add_epi64(low, _mm512_castpd_si512(lower)), _mm512_add_epi64(high, _mm512_castpd_si512(upper)))
}

/// The lowest 52 bits, as an operand.
#[inline]
#[target_feature(enable = "avx512f")]
fn operand(sum: __m512i) -> __m512i {
    let above = _mm512_set1_epi64(LOW as i64);
    let bits = _mm512_or_si512(_mm512_and_si512(sum, _mm512_set1_epi64(LIMB_MASK as i64)), above);
    _mm512_castpd_si512(_mm512_sub_pd(_mm512_castsi512_pd(bits), _mm512_castsi512_pd(above)))
}

/// An operand as an integer.
#[inline]
#[target_feature(enable = "avx512f")]
fn limb(operand: __m512i) -> __m512i {
    let above = _mm512_set1_epi64(LOW as i64);
    let bits = _mm512_add_pd(_mm512_castsi512_pd(operand), _mm512_castsi512_pd(above));
    _mm512_xor_si512(_mm512_castpd_si512(bits), above)
}

/// # Safety
/// Has no requirements but AVX-512 F.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn loaded(vector: &Vector) -> __m512i {
    // SAFETY: a vector is as long as a register, and aligned as it must be.
    unsafe { _mm512_load_si512((&raw const *vector).cast()) }
}

/// Limb `limb` of eight numbers, or of one for all of them.
///
/// # Safety
/// It must be there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn load<const ALIKE: bool>(x: *const u64, limb: usize) -> __m512i {
    // SAFETY: the caller says so.
    unsafe {
        match ALIKE {
            true => _mm512_set1_epi64(*x.add(limb) as i64),
            false => _mm512_load_si512(x.add(LANES * limb).cast()),
        }
    }
}

/// # Safety
/// There must be five.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn rows(x: *const u64) -> Rows {
    // SAFETY: the caller says so.
    unsafe { [load::<false>(x, 0), load::<false>(x, 1), load::<false>(x, 2), load::<false>(x, 3), load::<false>(x, 4)] }
}

/// Adds to one column what the rows from `FROM` to `TO` have in it, and what was carried; the upper halves are for the next one.
///
/// # Safety
/// The column must be there, and the limbs that meet the rows in it.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn column<const FROM: usize, const TO: usize, const ALIKE: bool>(
    t: *mut Vector,
    column: usize,
    carried: __m512i,
    rows: &Rows,
    x: *const u64,
) -> __m512i {
    // SAFETY: the caller says so.
    unsafe {
        let low = _mm512_add_epi64(_mm512_load_si512(t.add(column).cast()), carried);
        let (low, high) = products::<FROM, TO, ALIKE>(low, column, rows, x);
        _mm512_store_si512(t.add(column).cast(), low);
        high
    }
}

/// The sum of a column, and the upper halves.
///
/// # Safety
/// The limbs that meet the rows must be there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn products<const FROM: usize, const TO: usize, const ALIKE: bool>(
    mut low: __m512i,
    column: usize,
    rows: &Rows,
    x: *const u64,
) -> (__m512i, __m512i) {
    let (mut high, mut row) = (_mm512_setzero_si512(), FROM);
    // Not an iterator's loop, which is not always unrolled: then the rows lie in memory.
    while row < TO {
        // SAFETY: the caller says so.
        (low, high) = product(low, high, unsafe { load::<ALIKE>(x, column - row) }, rows[row]);
        row += 1;
    }
    (low, high)
}

/// Adds to a column.
///
/// # Safety
/// It must be there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn add_to(t: *mut Vector, carried: __m512i) {
    // SAFETY: the caller says so.
    unsafe { _mm512_store_si512(t.cast(), _mm512_add_epi64(_mm512_load_si512(t.cast()), carried)) }
}

/// Adds five rows times all of `x`.
///
/// # Safety
/// There must be five columns more than limbs, of which there are at least five.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn sweep<const ALIKE: bool>(t: *mut Vector, rows: &Rows, x: *const u64, len: usize) {
    // SAFETY: the caller says so.
    unsafe {
        let mut high = column::<0, 1, ALIKE>(t, 0, _mm512_setzero_si512(), rows, x);
        high = column::<0, 2, ALIKE>(t, 1, high, rows, x);
        high = column::<0, 3, ALIKE>(t, 2, high, rows, x);
        high = column::<0, 4, ALIKE>(t, 3, high, rows, x);
        for at in 4..len {
            high = column::<0, 5, ALIKE>(t, at, high, rows, x);
        }
        end_of_sweep::<ALIKE>(t, high, rows, x, len);
    }
}

/// The columns above the last limb.
///
/// # Safety
/// As for `sweep`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn end_of_sweep<const ALIKE: bool>(t: *mut Vector, high: __m512i, rows: &Rows, x: *const u64, len: usize) {
    // SAFETY: the caller says so.
    unsafe {
        let mut high = column::<1, 5, ALIKE>(t, len, high, rows, x);
        high = column::<2, 5, ALIKE>(t, len + 1, high, rows, x);
        high = column::<3, 5, ALIKE>(t, len + 2, high, rows, x);
        high = column::<4, 5, ALIKE>(t, len + 3, high, rows, x);
        add_to(t.add(len + 4), high);
    }
}

/// Adds the first five limbs times those that stand behind each.
///
/// # Safety
/// As for `sweep`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn sweep_above(t: *mut Vector, x: *const u64, len: usize) {
    // SAFETY: the caller says so; a number of more than five limbs has at least ten.
    unsafe {
        let rows = &rows(x);
        let mut high = column::<0, 1, false>(t, 1, _mm512_setzero_si512(), rows, x);
        high = column::<0, 1, false>(t, 2, high, rows, x);
        high = column::<0, 2, false>(t, 3, high, rows, x);
        high = column::<0, 2, false>(t, 4, high, rows, x);
        if len == BLOCK {
            high = column::<1, 3, false>(t, 5, high, rows, x);
            high = column::<2, 3, false>(t, 6, high, rows, x);
            high = column::<3, 4, false>(t, 7, high, rows, x);
            return add_to(t.add(8), high);
        }
        high = column::<0, 3, false>(t, 5, high, rows, x);
        high = column::<0, 3, false>(t, 6, high, rows, x);
        high = column::<0, 4, false>(t, 7, high, rows, x);
        high = column::<0, 4, false>(t, 8, high, rows, x);
        for at in 9..len {
            high = column::<0, 5, false>(t, at, high, rows, x);
        }
        end_of_sweep::<false>(t, high, rows, x, len);
    }
}

/// The limbs of five columns, as operands. What they have above that is added to the sixth.
///
/// # Safety
/// Six columns must be there.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn lowest(t: *mut Vector) -> Rows {
    let mut carry = _mm512_setzero_si512();
    let mut limbs = [carry; BLOCK];
    for (column, limb) in limbs.iter_mut().enumerate() {
        // SAFETY: the caller says so.
        let sum = _mm512_add_epi64(unsafe { _mm512_load_si512(t.add(column).cast()) }, carry);
        *limb = operand(sum);
        carry = _mm512_srli_epi64::<SHIFT>(sum);
    }
    // SAFETY: the caller says so.
    unsafe { add_to(t.add(BLOCK), carry) };
    limbs
}

/// The columns, divided by R, modulo the modulus.
///
/// # Safety
/// There must be twice as many columns as limbs, and `out` as long as the modulus.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn reduce(out: *mut Vector, t: *mut Vector, len: usize, constants: &Constants) {
    // SAFETY: the caller says so.
    unsafe {
        for at in (0..len - BLOCK).step_by(BLOCK) {
            let limbs = lowest(t.add(at));
            sweep::<true>(t.add(at + BLOCK), &limbs, constants.above.as_ptr(), len);
        }
        let t = t.add(len - BLOCK);
        let (rows, mut carried) = last_rows(&lowest(t), constants);
        let (rows, x) = (&rows, constants.n.as_ptr());
        for at in BLOCK..len {
            carried = last_column::<0>(out, t, at, carried, rows, x);
        }
        carried = last_column::<1>(out, t, len, carried, rows, x);
        carried = last_column::<2>(out, t, len + 1, carried, rows, x);
        carried = last_column::<3>(out, t, len + 2, carried, rows, x);
        carried = last_column::<4>(out, t, len + 3, carried, rows, x);
        last_column::<5>(out, t, len + 4, carried, rows, x);
    }
}

/// A column of the last block, from row `FROM` on, whose lowest bits are a limb of the answer, and what is carried.
///
/// # Safety
/// As for `reduce`.
#[inline]
#[target_feature(enable = "avx512f")]
unsafe fn last_column<const FROM: usize>(
    out: *mut Vector,
    t: *mut Vector,
    at: usize,
    carried: __m512i,
    rows: &Rows,
    x: *const u64,
) -> __m512i {
    // SAFETY: the caller says so.
    unsafe {
        let sum = _mm512_add_epi64(_mm512_load_si512(t.add(at).cast()), carried);
        let (low, high) = products::<FROM, 5, true>(sum, at, rows, x);
        _mm512_store_si512(out.add(at - BLOCK).cast(), operand(low));
        _mm512_add_epi64(high, _mm512_srli_epi64::<SHIFT>(low))
    }
}

/// The rows by which the modulus is multiplied in the last block, whose limbs are `limbs`: these times k, modulo 2^260. And what the block's columns,
/// which become zero, carry.
#[allow(clippy::needless_range_loop)] // The numbers of the columns count.
#[inline]
#[target_feature(enable = "avx512f")]
fn last_rows(limbs: &Rows, constants: &Constants) -> (Rows, __m512i) {
    let (k, n) = (&constants.k[..BLOCK], &constants.n[..BLOCK]);
    let mut carried = _mm512_setzero_si512();
    let mut rows = [carried; BLOCK];
    for column in 0..BLOCK {
        let (low, high) = last_products(_mm512_add_epi64(carried, start(column + 1, column)), column, limbs, k);
        rows[column] = operand(low);
        carried = _mm512_add_epi64(high, _mm512_srli_epi64::<SHIFT>(low));
    }
    carried = _mm512_setzero_si512();
    for column in 0..BLOCK {
        let sum = _mm512_add_epi64(_mm512_add_epi64(carried, limb(limbs[column])), start(column + 1, column));
        let (low, high) = last_products(sum, column, &rows, n);
        carried = _mm512_add_epi64(high, _mm512_srli_epi64::<SHIFT>(low));
    }
    // The upper halves of the last of them; those before were taken with their column's start.
    (rows, carried)
}

/// The products of a column below the fifth.
#[inline]
#[target_feature(enable = "avx512f")]
fn last_products(mut low: __m512i, column: usize, rows: &Rows, x: &[u64]) -> (__m512i, __m512i) {
    let (mut high, mut row) = (_mm512_setzero_si512(), 0);
    while row <= column {
        (low, high) = product(low, high, _mm512_set1_epi64(x[column - row] as i64), rows[row]);
        row += 1;
    }
    (low, high)
}
