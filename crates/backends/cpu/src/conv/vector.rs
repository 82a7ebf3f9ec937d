//! The vector operations that the convolution kernels are written in, for each instruction set.
//!
//! Every method is inlined into a kernel that was compiled for the instruction set, which is why they are unsafe: the
//! caller guarantees that the CPU has it, and that the pointers are good for the lanes that are touched.

/// A register of [`Vector::LANES`] numbers.
pub(super) trait Vector: Copy {
    /// The number in one lane.
    type Scalar: Copy;
    /// How many numbers a register holds; at most 32, so that a lane mask fits a `u32`.
    const LANES: usize;

    /// The same number in every lane.
    unsafe fn splat(value: Self::Scalar) -> Self;
    /// Loads `LANES` numbers, from any alignment.
    unsafe fn load(from: *const Self::Scalar) -> Self;
    /// Loads the lanes whose bit is set in `mask` and zeroes the others. All `LANES` numbers must be readable.
    unsafe fn load_where(from: *const Self::Scalar, mask: u32) -> Self;
    /// `self * factor + sum`, lane by lane. Fused where the instruction set has it.
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self;
    /// Writes the lanes whose bit is set in `mask` one after another; nothing beyond them is touched.
    unsafe fn compress(self, to: *mut Self::Scalar, mask: u32);
    /// Undoes [`Vector::compress`]: reads as many numbers as `mask` has bits into those lanes, zero in the others.
    unsafe fn expand(from: *const Self::Scalar, mask: u32) -> Self;
}

/// The mask with all lanes of `V` set.
pub(super) const fn all_lanes(lanes: usize) -> u32 {
    u32::MAX >> (32 - lanes)
}

/// Plain Rust that the compiler turns into 128-bit vectors where there are any.
#[derive(Clone, Copy)]
pub(super) struct Plain<T, const N: usize>([T; N]);

macro_rules! plain_vector {
    ($scalar:ty, $lanes:literal) => {
        impl Vector for Plain<$scalar, $lanes> {
            type Scalar = $scalar;
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn splat(value: $scalar) -> Self {
                Plain([value; $lanes])
            }
            #[inline(always)]
            unsafe fn load(from: *const $scalar) -> Self {
                // SAFETY: the caller guarantees that `LANES` numbers are readable.
                Plain(unsafe { from.cast::<[$scalar; $lanes]>().read_unaligned() })
            }
            #[inline(always)]
            unsafe fn load_where(from: *const $scalar, mask: u32) -> Self {
                // SAFETY: as for `load`.
                let all = unsafe { Self::load(from) }.0;
                Plain(std::array::from_fn(|lane| if mask >> lane & 1 == 1 { all[lane] } else { 0.0 }))
            }
            #[inline(always)]
            unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
                // Not `f32::mul_add`, which is a library call where the target has no fused instruction.
                Plain(std::array::from_fn(|lane| self.0[lane] * factor.0[lane] + sum.0[lane]))
            }
            #[inline(always)]
            unsafe fn compress(self, to: *mut $scalar, mask: u32) {
                // SAFETY: the caller guarantees room for as many numbers as the mask has bits.
                unsafe { compress_lanes(&self.0, to, mask) }
            }
            #[inline(always)]
            unsafe fn expand(from: *const $scalar, mask: u32) -> Self {
                // SAFETY: the caller guarantees as many numbers as the mask has bits.
                Plain(unsafe { expand_lanes(from, mask) })
            }
        }
    };
}

plain_vector!(f32, 4);
plain_vector!(f64, 2);

#[inline(always)]
unsafe fn compress_lanes<T: Copy, const N: usize>(lanes: &[T; N], to: *mut T, mask: u32) {
    if mask == all_lanes(N) {
        // SAFETY: all lanes are selected, so the caller guarantees room for all of them.
        return unsafe { to.cast::<[T; N]>().write_unaligned(*lanes) };
    }
    let mut written = 0;
    for (lane, value) in lanes.iter().enumerate() {
        if mask >> lane & 1 == 1 {
            // SAFETY: `written` counts the selected lanes so far, for which the caller guarantees room.
            unsafe { to.add(written).write(*value) };
            written += 1;
        }
    }
}

#[inline(always)]
unsafe fn expand_lanes<T: Copy + Default, const N: usize>(from: *const T, mask: u32) -> [T; N] {
    let mut lanes = [T::default(); N];
    let mut read = 0;
    for (lane, value) in lanes.iter_mut().enumerate() {
        if mask >> lane & 1 == 1 {
            // SAFETY: `read` counts the selected lanes so far, which the caller guarantees to be readable.
            *value = unsafe { from.add(read).read() };
            read += 1;
        }
    }
    lanes
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Vector, all_lanes, compress_lanes, expand_lanes};
    use std::arch::x86_64::*;

    macro_rules! avx512_vector {
        ($vector:ty, $scalar:ty, $lanes:literal, $mask:ty, $splat:ident, $load:ident, $load_where:ident, $fma:ident,
         $store:ident, $store_where:ident, $compress:ident, $expand:ident) => {
            impl Vector for $vector {
                type Scalar = $scalar;
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn splat(value: $scalar) -> Self {
                    // SAFETY: the caller guarantees AVX-512.
                    unsafe { $splat(value) }
                }
                #[inline(always)]
                unsafe fn load(from: *const $scalar) -> Self {
                    // SAFETY: the caller guarantees AVX-512 and readable lanes.
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn load_where(from: *const $scalar, mask: u32) -> Self {
                    // SAFETY: the caller guarantees AVX-512 and readable lanes.
                    unsafe { $load_where(mask as $mask, from) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
                    // SAFETY: the caller guarantees AVX-512.
                    unsafe { $fma(self, factor, sum) }
                }
                #[inline(always)]
                unsafe fn compress(self, to: *mut $scalar, mask: u32) {
                    // SAFETY: the caller guarantees AVX-512 and room for the selected lanes; only those are written.
                    unsafe {
                        if mask == all_lanes($lanes) {
                            return $store(to, self);
                        }
                        let packed = $compress(mask as $mask, self);
                        $store_where(to, ((1_u32 << mask.count_ones()) - 1) as $mask, packed);
                    }
                }
                #[inline(always)]
                unsafe fn expand(from: *const $scalar, mask: u32) -> Self {
                    // SAFETY: the caller guarantees AVX-512 and the numbers for the selected lanes; only those are read.
                    unsafe {
                        if mask == all_lanes($lanes) {
                            return $load(from);
                        }
                        let packed = $load_where(((1_u32 << mask.count_ones()) - 1) as $mask, from);
                        $expand(mask as $mask, packed)
                    }
                }
            }
        };
    }

    avx512_vector!(
        __m512,
        f32,
        16,
        __mmask16,
        _mm512_set1_ps,
        _mm512_loadu_ps,
        _mm512_maskz_loadu_ps,
        _mm512_fmadd_ps,
        _mm512_storeu_ps,
        _mm512_mask_storeu_ps,
        _mm512_maskz_compress_ps,
        _mm512_maskz_expand_ps
    );
    avx512_vector!(
        __m512d,
        f64,
        8,
        __mmask8,
        _mm512_set1_pd,
        _mm512_loadu_pd,
        _mm512_maskz_loadu_pd,
        _mm512_fmadd_pd,
        _mm512_storeu_pd,
        _mm512_mask_storeu_pd,
        _mm512_maskz_compress_pd,
        _mm512_maskz_expand_pd
    );

    macro_rules! avx2_vector {
        ($vector:ty, $scalar:ty, $lanes:literal, $splat:ident, $load:ident, $mask_load:ident, $masks:ident, $fma:ident,
         $store:ident) => {
            impl Vector for $vector {
                type Scalar = $scalar;
                const LANES: usize = $lanes;

                #[inline(always)]
                unsafe fn splat(value: $scalar) -> Self {
                    // SAFETY: the caller guarantees AVX2.
                    unsafe { $splat(value) }
                }
                #[inline(always)]
                unsafe fn load(from: *const $scalar) -> Self {
                    // SAFETY: the caller guarantees AVX2 and readable lanes.
                    unsafe { $load(from) }
                }
                #[inline(always)]
                unsafe fn load_where(from: *const $scalar, mask: u32) -> Self {
                    // SAFETY: the caller guarantees AVX2 and readable lanes.
                    unsafe { $mask_load(from, $masks(mask)) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
                    // SAFETY: the caller guarantees FMA.
                    unsafe { $fma(self, factor, sum) }
                }
                #[inline(always)]
                unsafe fn compress(self, to: *mut $scalar, mask: u32) {
                    // SAFETY: the caller guarantees AVX2 and room for the selected lanes; the array has `LANES` numbers.
                    unsafe {
                        if mask == all_lanes($lanes) {
                            return $store(to, self);
                        }
                        let mut lanes = [0.0; $lanes];
                        $store(lanes.as_mut_ptr(), self);
                        compress_lanes(&lanes, to, mask);
                    }
                }
                #[inline(always)]
                unsafe fn expand(from: *const $scalar, mask: u32) -> Self {
                    // SAFETY: the caller guarantees AVX2 and the numbers for the selected lanes.
                    unsafe {
                        if mask == all_lanes($lanes) {
                            return $load(from);
                        }
                        let lanes: [$scalar; $lanes] = expand_lanes(from, mask);
                        $load(lanes.as_ptr())
                    }
                }
            }
        };
    }

    avx2_vector!(
        __m256,
        f32,
        8,
        _mm256_set1_ps,
        _mm256_loadu_ps,
        _mm256_maskload_ps,
        lane_masks_32,
        _mm256_fmadd_ps,
        _mm256_storeu_ps
    );
    avx2_vector!(
        __m256d,
        f64,
        4,
        _mm256_set1_pd,
        _mm256_loadu_pd,
        _mm256_maskload_pd,
        lane_masks_64,
        _mm256_fmadd_pd,
        _mm256_storeu_pd
    );

    #[inline(always)]
    unsafe fn lane_masks_32(mask: u32) -> __m256i {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
            _mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask as i32), bits), bits)
        }
    }

    #[inline(always)]
    unsafe fn lane_masks_64(mask: u32) -> __m256i {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let bits = _mm256_setr_epi64x(1, 2, 4, 8);
            _mm256_cmpeq_epi64(_mm256_and_si256(_mm256_set1_epi64x(i64::from(mask)), bits), bits)
        }
    }
}
