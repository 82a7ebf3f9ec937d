//! Products too small to be worth packing: one row of the result at a time, sums in registers.

use super::element::{Accumulator, Operand, Output};
use super::epilogue::WriteBack;
use super::kernel::Isa;
use super::view::MatRef;
use crate::simd::Simd;

/// Columns of the result that are summed together.
const STRIP: usize = 32;

/// Writes every element of `a · b` to `write` on the calling thread.
pub(super) fn multiply<T: Operand, R: Output<Acc = T::Acc>>(
    isa: Isa,
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    write: &WriteBack<'_, R>,
) {
    match isa.simd {
        // SAFETY: `isa` has only instructions of this CPU.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { multiply_avx512(a, b, write) },
        // SAFETY: as above.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { multiply_avx2(a, b, write) },
        _ => loops::<T, R, { cfg!(target_arch = "aarch64") }>(a, b, write),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma")]
unsafe fn multiply_avx512<T: Operand, R: Output<Acc = T::Acc>>(
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    write: &WriteBack<'_, R>,
) {
    loops::<T, R, true>(a, b, write);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn multiply_avx2<T: Operand, R: Output<Acc = T::Acc>>(
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    write: &WriteBack<'_, R>,
) {
    loops::<T, R, true>(a, b, write);
}

#[inline(always)]
fn loops<T: Operand, R: Output<Acc = T::Acc>, const FUSED: bool>(
    a: MatRef<'_, T>,
    b: MatRef<'_, T>,
    write: &WriteBack<'_, R>,
) {
    let (rows, cols, depth) = (a.rows(), b.cols(), a.cols());
    for row in 0..rows {
        for start in (0..cols).step_by(STRIP) {
            let count = STRIP.min(cols - start);
            let mut sums = [<T::Acc as bytemuck::Zeroable>::zeroed(); STRIP];
            for k in 0..depth {
                let factor = a.get(row, k).widen();
                match b.row_slice(k, start, count) {
                    Some(elements) if count == STRIP => {
                        for (sum, element) in sums.iter_mut().zip(&elements[..STRIP]) {
                            *sum = sum.plus_product::<FUSED>(factor, element.widen());
                        }
                    }
                    Some(elements) => {
                        for (sum, element) in sums.iter_mut().zip(elements) {
                            *sum = sum.plus_product::<FUSED>(factor, element.widen());
                        }
                    }
                    None => {
                        for (offset, sum) in sums[..count].iter_mut().enumerate() {
                            *sum = sum.plus_product::<FUSED>(factor, b.get(k, start + offset).widen());
                        }
                    }
                }
            }
            // SAFETY: the strip is inside the result, which only this call accesses, and `sums`
            // holds `count` sums.
            unsafe { write.put(row..row + 1, start..start + count, sums.as_ptr(), STRIP) };
        }
    }
}
