//! Products of eight numbers by eight, and their reduction, with AVX-512 F, and with IFMA where the CPU has it.
//!
//! * How two limbs are multiplied is [`super::arithmetic`]'s. What it adds above a product's halves is known, and stands in each sum from the start, negated.
//! * A product is summed up column by column, five rows at a time, which stay in registers. A column has less than 64 bits, so nothing is carried.
//! * It is reduced five columns at a time. N times k = -1 / N modulo 2^260 is 2^260 above - 1. So adding the lowest five limbs times N k means
//!   to leave them out and to add them times `above` five columns higher: no limb waits for the one before. Only in the last five columns would that
//!   give a multiple of N k that is too long; there it is the limbs times k, modulo 2^260, by N itself.
//!
//! No step depends on the numbers.
//!
//! The functions that `entries` makes are compiled for their instructions; all others are inlined into those.

use std::arch::x86_64::*;

use super::arithmetic::{Arithmetic, Doubles, Integers, Kind};
use super::limbs::{BLOCK, LIMB_BITS, Limbs};
use super::numbers::{LANES, Numbers, Vector};

const SHIFT: u32 = LIMB_BITS as u32;
/// Limbs of each entry of a table that are looked up together.
const SELECTED: usize = 2 * BLOCK;

type Rows = [__m512i; BLOCK];

/// What the kernel needs of a modulus, as operands.
pub(super) struct Constants {
    n: Limbs,
    above: Limbs,
    k: Limbs,
    /// What each column of a product starts with: what stands above the halves, negated.
    starts: Vec<u64>,
    kind: Kind,
}

impl Constants {
    /// The modulus, and the two numbers that are named above. `None` where the CPU lacks the instructions.
    pub(super) fn new(kind: Kind, n: Limbs, above: Limbs, k: Limbs) -> Option<Constants> {
        assert!(n.len().is_multiple_of(SELECTED) && above.len() == n.len() && k.len() == BLOCK);
        let starts = match kind {
            Kind::Doubles => starts::<Doubles>(n.len()),
            Kind::Integers => starts::<Integers>(n.len()),
        };
        kind.is_there().then_some(Constants { n, above, k, starts, kind })
    }

    /// Which instructions are used.
    pub(super) fn kind(&self) -> Kind {
        self.kind
    }
}

/// See [`Constants::starts`]. The last block's lowest columns are not in it: those are read before the block's products are added.
fn starts<A: Arithmetic>(len: usize) -> Vec<u64> {
    let mut starts = vec![0_u64; 2 * len + 1];
    let mut add = |column: usize, from: usize| {
        for (column, bits) in [(column, A::LOW), (column + 1, A::HIGH)] {
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

/// What a modulus calls, compiled for the instructions of one arithmetic.
macro_rules! entries {
    ($entries:ident, $arithmetic:ty, $features:tt) => {
        mod $entries {
            use super::{Constants, Numbers, Vector};

            /// # Safety
            /// The CPU must have the instructions; else as for the function that is inlined, here and below.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn multiply(
                a: &mut [Vector],
                b: &[Vector],
                columns: &mut Numbers,
                constants: &Constants,
            ) {
                // SAFETY: the caller says so.
                unsafe { super::multiply_with::<$arithmetic>(a, b, columns, constants) }
            }

            /// # Safety
            /// As above.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn square(a: &mut [Vector], columns: &mut Numbers, constants: &Constants) {
                // SAFETY: the caller says so.
                unsafe { super::square_with::<$arithmetic>(a, columns, constants) }
            }

            /// # Safety
            /// As above.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn add(a: &mut [Vector], b: &[Vector]) {
                // SAFETY: the caller says so.
                unsafe { super::add_with::<$arithmetic>(a, b) }
            }

            /// # Safety
            /// As above.
            #[target_feature(enable = $features)]
            pub(super) unsafe fn subtract(a: &mut [Vector], b: &[Vector], constants: &Constants) {
                // SAFETY: the caller says so.
                unsafe { super::subtract_with::<$arithmetic>(a, b, constants) }
            }
        }
    };
}

entries!(doubles, super::Doubles, "avx512f");
entries!(integers, super::Integers, "avx512f,avx512ifma");

/// `a = a b / R` modulo the modulus.
///
/// # Safety
/// The numbers must have as many limbs as the modulus, and the columns twice as many.
pub(super) unsafe fn multiply(a: &mut [Vector], b: &[Vector], columns: &mut Numbers, constants: &Constants) {
    // SAFETY: constants are made only where the CPU has their instructions; the caller says the rest.
    unsafe {
        match constants.kind {
            Kind::Doubles => doubles::multiply(a, b, columns, constants),
            Kind::Integers => integers::multiply(a, b, columns, constants),
        }
    }
}

/// `a = a a / R` modulo the modulus.
///
/// # Safety
/// As for `multiply`.
pub(super) unsafe fn square(a: &mut [Vector], columns: &mut Numbers, constants: &Constants) {
    // SAFETY: as above.
    unsafe {
        match constants.kind {
            Kind::Doubles => doubles::square(a, columns, constants),
            Kind::Integers => integers::square(a, columns, constants),
        }
    }
}

/// `a = a + b`.
///
/// # Safety
/// Both must have as many limbs.
pub(super) unsafe fn add(a: &mut [Vector], b: &[Vector], constants: &Constants) {
    // SAFETY: as above.
    unsafe {
        match constants.kind {
            Kind::Doubles => doubles::add(a, b),
            Kind::Integers => integers::add(a, b),
        }
    }
}

/// `a = a - b + 4 n`.
///
/// # Safety
/// All must have as many limbs.
pub(super) unsafe fn subtract(a: &mut [Vector], b: &[Vector], constants: &Constants) {
    // SAFETY: as above.
    unsafe {
        match constants.kind {
            Kind::Doubles => doubles::subtract(a, b, constants),
            Kind::Integers => integers::subtract(a, b, constants),
        }
    }
}

/// What so many lower and upper halves add to a column, negated.
///
/// # Safety
/// The CPU must have the instructions, here and below.
#[inline(always)]
unsafe fn start<A: Arithmetic>(lows: usize, highs: usize) -> __m512i {
    let sum = A::LOW.wrapping_mul(lows as u64).wrapping_add(A::HIGH.wrapping_mul(highs as u64));
    // SAFETY: the caller says so.
    unsafe { _mm512_set1_epi64(sum.wrapping_neg() as i64) }
}

/// `a = a b / R` modulo the modulus.
///
/// # Safety
/// As for [`multiply`], with a CPU that has the instructions.
#[inline(always)]
unsafe fn multiply_with<A: Arithmetic>(a: &mut [Vector], b: &[Vector], columns: &mut Numbers, constants: &Constants) {
    let (len, t, x) = (a.len(), columns.as_mut_ptr(), a.as_ptr().cast());
    // SAFETY: the caller says that the columns are there; each of the rows begins a block below the numbers' length.
    unsafe {
        for (column, start) in constants.starts.iter().enumerate() {
            _mm512_store_si512(t.add(column).cast(), _mm512_set1_epi64(*start as i64));
        }
        for row in (0..len).step_by(BLOCK) {
            sweep::<A, false>(t.add(row), &rows(b.as_ptr().add(row).cast()), x, len);
        }
        reduce::<A>(a.as_mut_ptr(), t, len, constants);
    }
}

/// `a = a a / R` modulo the modulus.
///
/// # Safety
/// As for [`square`], with a CPU that has the instructions.
#[inline(always)]
unsafe fn square_with<A: Arithmetic>(a: &mut [Vector], columns: &mut Numbers, constants: &Constants) {
    let (len, t, x) = (a.len(), columns.as_mut_ptr(), a.as_ptr());
    let starts = constants.starts.as_ptr();
    // SAFETY: as in `multiply`.
    unsafe {
        for column in 0..2 * len {
            _mm512_store_si512(t.add(column).cast(), _mm512_setzero_si512());
        }
        for row in (0..len).step_by(BLOCK) {
            sweep_above::<A>(t.add(2 * row), x.add(row).cast(), len - row);
        }
        // What was summed up stands on both sides of the diagonal, which is added.
        for limb in 0..len {
            let factor = load::<false>(x.cast(), limb);
            let even = _mm512_load_si512(t.add(2 * limb).cast());
            let odd = _mm512_load_si512(t.add(2 * limb + 1).cast());
            let even = _mm512_add_epi64(_mm512_add_epi64(even, even), load::<true>(starts, 2 * limb));
            let odd = _mm512_add_epi64(_mm512_add_epi64(odd, odd), load::<true>(starts, 2 * limb + 1));
            let (even, odd) = A::product(even, odd, factor, factor);
            _mm512_store_si512(t.add(2 * limb).cast(), even);
            _mm512_store_si512(t.add(2 * limb + 1).cast(), odd);
        }
        reduce::<A>(a.as_mut_ptr(), t, len, constants);
    }
}

/// `a = a + b`.
///
/// # Safety
/// As for [`add`], with a CPU that has the instructions.
#[inline(always)]
unsafe fn add_with<A: Arithmetic>(a: &mut [Vector], b: &[Vector]) {
    // SAFETY: the caller says that the instructions are there. A vector is as long as a register, and aligned as it must be.
    unsafe {
        let mut carry = _mm512_setzero_si512();
        for (a, b) in a.iter_mut().zip(b) {
            let (x, y) = (A::limb(loaded(a)), A::limb(loaded(b)));
            carry = _mm512_add_epi64(carry, _mm512_add_epi64(x, y));
            _mm512_store_si512((&raw mut *a).cast(), A::operand(carry));
            carry = _mm512_srli_epi64::<SHIFT>(carry);
        }
    }
}

/// `a = a - b + 4 n`.
///
/// # Safety
/// As for [`subtract`], with a CPU that has the instructions.
#[inline(always)]
unsafe fn subtract_with<A: Arithmetic>(a: &mut [Vector], b: &[Vector], constants: &Constants) {
    // SAFETY: as in `add`.
    unsafe {
        let mut carry = _mm512_setzero_si512();
        for ((a, b), n) in a.iter_mut().zip(b).zip(constants.n.iter()) {
            let (x, y) = (A::limb(loaded(a)), A::limb(loaded(b)));
            let n = _mm512_slli_epi64::<2>(A::limb(_mm512_set1_epi64(*n as i64)));
            carry = _mm512_add_epi64(carry, _mm512_add_epi64(_mm512_sub_epi64(x, y), n));
            _mm512_store_si512((&raw mut *a).cast(), A::operand(carry));
            carry = _mm512_srai_epi64::<SHIFT>(carry);
        }
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

/// # Safety
/// Has no requirements but AVX-512 F.
#[inline(always)]
unsafe fn loaded(vector: &Vector) -> __m512i {
    // SAFETY: a vector is as long as a register, and aligned as it must be.
    unsafe { _mm512_load_si512((&raw const *vector).cast()) }
}

/// Limb `limb` of eight numbers, or of one for all of them.
///
/// # Safety
/// It must be there.
#[inline(always)]
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
#[inline(always)]
unsafe fn rows(x: *const u64) -> Rows {
    // SAFETY: the caller says so.
    unsafe { [load::<false>(x, 0), load::<false>(x, 1), load::<false>(x, 2), load::<false>(x, 3), load::<false>(x, 4)] }
}

/// Adds to one column what the rows from `FROM` to `TO` have in it, and what was carried; the upper halves are for the next one.
///
/// # Safety
/// The column must be there, and the limbs that meet the rows in it.
#[inline(always)]
unsafe fn column<A: Arithmetic, const FROM: usize, const TO: usize, const ALIKE: bool>(
    t: *mut Vector,
    column: usize,
    carried: __m512i,
    rows: &Rows,
    x: *const u64,
) -> __m512i {
    // SAFETY: the caller says so.
    unsafe {
        let low = _mm512_add_epi64(_mm512_load_si512(t.add(column).cast()), carried);
        let (low, high) = products::<A, FROM, TO, ALIKE>(low, column, rows, x);
        _mm512_store_si512(t.add(column).cast(), low);
        high
    }
}

/// The sum of a column, and the upper halves.
///
/// # Safety
/// The limbs that meet the rows must be there.
#[inline(always)]
unsafe fn products<A: Arithmetic, const FROM: usize, const TO: usize, const ALIKE: bool>(
    mut low: __m512i,
    column: usize,
    rows: &Rows,
    x: *const u64,
) -> (__m512i, __m512i) {
    // SAFETY: the caller says so.
    unsafe {
        let (mut high, mut row) = (_mm512_setzero_si512(), FROM);
        // Not an iterator's loop, which is not always unrolled: then the rows lie in memory.
        while row < TO {
            (low, high) = A::product(low, high, load::<ALIKE>(x, column - row), rows[row]);
            row += 1;
        }
        (low, high)
    }
}

/// Adds to a column.
///
/// # Safety
/// It must be there.
#[inline(always)]
unsafe fn add_to(t: *mut Vector, carried: __m512i) {
    // SAFETY: the caller says so.
    unsafe { _mm512_store_si512(t.cast(), _mm512_add_epi64(_mm512_load_si512(t.cast()), carried)) }
}

/// Adds five rows times all of `x`.
///
/// # Safety
/// There must be five columns more than limbs, of which there are at least five.
#[inline(always)]
unsafe fn sweep<A: Arithmetic, const ALIKE: bool>(t: *mut Vector, rows: &Rows, x: *const u64, len: usize) {
    // SAFETY: the caller says so.
    unsafe {
        let mut high = column::<A, 0, 1, ALIKE>(t, 0, _mm512_setzero_si512(), rows, x);
        high = column::<A, 0, 2, ALIKE>(t, 1, high, rows, x);
        high = column::<A, 0, 3, ALIKE>(t, 2, high, rows, x);
        high = column::<A, 0, 4, ALIKE>(t, 3, high, rows, x);
        for at in 4..len {
            high = column::<A, 0, 5, ALIKE>(t, at, high, rows, x);
        }
        end_of_sweep::<A, ALIKE>(t, high, rows, x, len);
    }
}

/// The columns above the last limb.
///
/// # Safety
/// As for `sweep`.
#[inline(always)]
unsafe fn end_of_sweep<A: Arithmetic, const ALIKE: bool>(
    t: *mut Vector,
    high: __m512i,
    rows: &Rows,
    x: *const u64,
    len: usize,
) {
    // SAFETY: the caller says so.
    unsafe {
        let mut high = column::<A, 1, 5, ALIKE>(t, len, high, rows, x);
        high = column::<A, 2, 5, ALIKE>(t, len + 1, high, rows, x);
        high = column::<A, 3, 5, ALIKE>(t, len + 2, high, rows, x);
        high = column::<A, 4, 5, ALIKE>(t, len + 3, high, rows, x);
        add_to(t.add(len + 4), high);
    }
}

/// Adds the first five limbs times those that stand behind each.
///
/// # Safety
/// As for `sweep`.
#[inline(always)]
unsafe fn sweep_above<A: Arithmetic>(t: *mut Vector, x: *const u64, len: usize) {
    // SAFETY: the caller says so; a number of more than five limbs has at least ten.
    unsafe {
        let rows = &rows(x);
        let mut high = column::<A, 0, 1, false>(t, 1, _mm512_setzero_si512(), rows, x);
        high = column::<A, 0, 1, false>(t, 2, high, rows, x);
        high = column::<A, 0, 2, false>(t, 3, high, rows, x);
        high = column::<A, 0, 2, false>(t, 4, high, rows, x);
        if len == BLOCK {
            high = column::<A, 1, 3, false>(t, 5, high, rows, x);
            high = column::<A, 2, 3, false>(t, 6, high, rows, x);
            high = column::<A, 3, 4, false>(t, 7, high, rows, x);
            return add_to(t.add(8), high);
        }
        high = column::<A, 0, 3, false>(t, 5, high, rows, x);
        high = column::<A, 0, 3, false>(t, 6, high, rows, x);
        high = column::<A, 0, 4, false>(t, 7, high, rows, x);
        high = column::<A, 0, 4, false>(t, 8, high, rows, x);
        for at in 9..len {
            high = column::<A, 0, 5, false>(t, at, high, rows, x);
        }
        end_of_sweep::<A, false>(t, high, rows, x, len);
    }
}

/// The limbs of five columns, as operands. What they have above that is added to the sixth.
///
/// # Safety
/// Six columns must be there.
#[inline(always)]
unsafe fn lowest<A: Arithmetic>(t: *mut Vector) -> Rows {
    // SAFETY: the caller says so.
    unsafe {
        let mut carry = _mm512_setzero_si512();
        let mut limbs = [carry; BLOCK];
        for (column, limb) in limbs.iter_mut().enumerate() {
            let sum = _mm512_add_epi64(_mm512_load_si512(t.add(column).cast()), carry);
            *limb = A::operand(sum);
            carry = _mm512_srli_epi64::<SHIFT>(sum);
        }
        add_to(t.add(BLOCK), carry);
        limbs
    }
}

/// The columns, divided by R, modulo the modulus.
///
/// # Safety
/// There must be twice as many columns as limbs, and `out` as long as the modulus.
#[inline(always)]
unsafe fn reduce<A: Arithmetic>(out: *mut Vector, t: *mut Vector, len: usize, constants: &Constants) {
    // SAFETY: the caller says so.
    unsafe {
        for at in (0..len - BLOCK).step_by(BLOCK) {
            let limbs = lowest::<A>(t.add(at));
            sweep::<A, true>(t.add(at + BLOCK), &limbs, constants.above.as_ptr(), len);
        }
        let t = t.add(len - BLOCK);
        let (rows, carried) = last_rows::<A>(&lowest::<A>(t), constants);
        let mut carried = (_mm512_setzero_si512(), carried);
        let (rows, x) = (&rows, constants.n.as_ptr());
        for at in BLOCK..len {
            carried = last_column::<A, 0>(out, t, at, carried, rows, x);
        }
        carried = last_column::<A, 1>(out, t, len, carried, rows, x);
        carried = last_column::<A, 2>(out, t, len + 1, carried, rows, x);
        carried = last_column::<A, 3>(out, t, len + 2, carried, rows, x);
        carried = last_column::<A, 4>(out, t, len + 3, carried, rows, x);
        last_column::<A, 5>(out, t, len + 4, carried, rows, x);
    }
}

/// A column of the last block, from row `FROM` on, whose lowest bits are a limb of the answer. What is carried are the upper halves of its products, and what
/// the column has above a limb: only this waits for the columns before, and is added last.
///
/// # Safety
/// As for `reduce`.
#[inline(always)]
unsafe fn last_column<A: Arithmetic, const FROM: usize>(
    out: *mut Vector,
    t: *mut Vector,
    at: usize,
    (upper, carry): (__m512i, __m512i),
    rows: &Rows,
    x: *const u64,
) -> (__m512i, __m512i) {
    // SAFETY: the caller says so.
    unsafe {
        let sum = _mm512_add_epi64(_mm512_load_si512(t.add(at).cast()), upper);
        let (low, high) = products::<A, FROM, 5, true>(sum, at, rows, x);
        let low = _mm512_add_epi64(low, carry);
        _mm512_store_si512(out.add(at - BLOCK).cast(), A::operand(low));
        (high, _mm512_srli_epi64::<SHIFT>(low))
    }
}

/// The rows by which the modulus is multiplied in the last block, whose limbs are `limbs`: these times k, modulo 2^260. And what the block's columns,
/// which become zero, carry.
///
/// # Safety
/// The CPU must have the instructions.
#[allow(clippy::needless_range_loop)] // The numbers of the columns count.
#[inline(always)]
unsafe fn last_rows<A: Arithmetic>(limbs: &Rows, constants: &Constants) -> (Rows, __m512i) {
    let (k, n) = (&constants.k[..BLOCK], &constants.n[..BLOCK]);
    // SAFETY: the caller says so.
    unsafe {
        let mut carried = _mm512_setzero_si512();
        let mut rows = [carried; BLOCK];
        for column in 0..BLOCK {
            let sum = _mm512_add_epi64(carried, start::<A>(column + 1, column));
            let (low, high) = last_products::<A>(sum, column, limbs, k);
            rows[column] = A::operand(low);
            carried = _mm512_add_epi64(high, _mm512_srli_epi64::<SHIFT>(low));
        }
        carried = _mm512_setzero_si512();
        for column in 0..BLOCK {
            let sum = _mm512_add_epi64(carried, A::limb(limbs[column]));
            let sum = _mm512_add_epi64(sum, start::<A>(column + 1, column));
            let (low, high) = last_products::<A>(sum, column, &rows, n);
            carried = _mm512_add_epi64(high, _mm512_srli_epi64::<SHIFT>(low));
        }
        // The upper halves of the last of them; those before were taken with their column's start.
        (rows, carried)
    }
}

/// The products of a column below the fifth.
///
/// # Safety
/// The CPU must have the instructions.
#[inline(always)]
unsafe fn last_products<A: Arithmetic>(mut low: __m512i, column: usize, rows: &Rows, x: &[u64]) -> (__m512i, __m512i) {
    // SAFETY: the caller says so.
    unsafe {
        let (mut high, mut row) = (_mm512_setzero_si512(), 0);
        while row <= column {
            (low, high) = A::product(low, high, _mm512_set1_epi64(x[column - row] as i64), rows[row]);
            row += 1;
        }
        (low, high)
    }
}
