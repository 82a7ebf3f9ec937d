//! Plain loops over a small tile, which the compiler turns into the vectors of the target's
//! baseline.

use panoply_core::dtype::Complex64;

use super::super::element::Accumulator;

/// A packed word that holds one number.
pub(super) trait PackedNumber<A>: Copy {
    fn number(self) -> A;
    /// `sum + x * y`.
    fn multiply_add(x: A, y: A, sum: A) -> A;
}

macro_rules! float_number {
    ($word:ty, $float:ty) => {
        impl PackedNumber<$float> for $word {
            #[inline(always)]
            fn number(self) -> $float {
                <$float>::from_bits(self)
            }
            #[inline(always)]
            fn multiply_add(x: $float, y: $float, sum: $float) -> $float {
                // Without a fused instruction, `mul_add` would be a slow call.
                if cfg!(any(target_arch = "aarch64", target_feature = "fma")) { x.mul_add(y, sum) } else { x * y + sum }
            }
        }
    };
}

float_number!(u32, f32);
float_number!(u64, f64);

impl PackedNumber<i32> for u32 {
    #[inline(always)]
    fn number(self) -> i32 {
        self as i32
    }
    #[inline(always)]
    fn multiply_add(x: i32, y: i32, sum: i32) -> i32 {
        sum.wrapping_add(x.wrapping_mul(y))
    }
}

impl PackedNumber<Complex64> for u64 {
    #[inline(always)]
    fn number(self) -> Complex64 {
        Complex64::new(f32::from_bits(self as u32), f32::from_bits((self >> 32) as u32))
    }
    #[inline(always)]
    fn multiply_add(x: Complex64, y: Complex64, sum: Complex64) -> Complex64 {
        sum + x * y
    }
}

/// A kernel as described by [`TileFn`](super::TileFn).
///
/// # Safety
/// As for [`TileFn`](super::TileFn); `R` and `C` are the heights of A's and B's panels.
pub(super) unsafe fn tile<W: PackedNumber<A>, A: Accumulator, const R: usize, const C: usize>(
    steps: usize,
    a: *const W,
    b: *const W,
    dst: *mut A,
    ld: usize,
    rows: usize,
    cols: usize,
    accumulate: bool,
    _ahead: *const W,
) {
    let chunk = 64 / size_of::<W>();
    let mut sums = [[A::zeroed(); C]; R];
    for step in 0..steps {
        let base = step / chunk * chunk * R + step % chunk;
        // SAFETY: a step of B's panel has `C` words, a chunk of A's panel `R` lines of `chunk`
        // words.
        let (wide, lines) = unsafe { (&*b.add(step * C).cast::<[W; C]>(), a.add(base)) };
        for (r, sums) in sums.iter_mut().enumerate() {
            // SAFETY: as above.
            let one = unsafe { *lines.add(r * chunk) }.number();
            for (sum, word) in sums.iter_mut().zip(wide) {
                *sum = W::multiply_add(one, word.number(), *sum);
            }
        }
    }
    // SAFETY: `dst` has `rows` rows of `cols` elements.
    unsafe { put_down(&sums.as_flattened()[..rows * C], C, dst, ld, cols, accumulate) };
}

/// Copies or adds the first `cols` columns of a full tile to `dst`.
///
/// # Safety
/// `dst` has room for the rows of `full`, `cols` elements each, `ld` apart, and no other task
/// accesses them.
pub(super) unsafe fn put_down<A: Accumulator>(
    full: &[A],
    full_ld: usize,
    dst: *mut A,
    ld: usize,
    cols: usize,
    accumulate: bool,
) {
    for (row, sums) in full.chunks_exact(full_ld).enumerate() {
        // SAFETY: row `row` of `dst` has `cols` elements.
        let to = unsafe { std::slice::from_raw_parts_mut(dst.add(row * ld), cols) };
        if accumulate {
            to.iter_mut().zip(sums).for_each(|(old, sum)| *old = old.plus(*sum));
        } else {
            to.copy_from_slice(&sums[..cols]);
        }
    }
}
