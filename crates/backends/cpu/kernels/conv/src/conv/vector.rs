//! The vector operations of the convolution kernels, for each instruction set.
//!
//! Every method is inlined into a kernel that was compiled for the instruction set, so the methods
//! are unsafe: the caller guarantees that the CPU has the instruction set, and that the pointers
//! are valid for the lanes that are read or written.

/// A register of [`Vector::LANES`] numbers.
pub(super) trait Vector: Copy {
    /// The number in one lane.
    type Scalar: Copy + From<i8>;
    /// Number of lanes of a register; at most 32, so that a lane mask fits a `u32`.
    const LANES: usize;

    /// The same number in every lane.
    unsafe fn splat(value: Self::Scalar) -> Self;
    /// Loads `LANES` numbers, from any alignment.
    unsafe fn load(from: *const Self::Scalar) -> Self;
    /// Loads the selected lanes and zeroes the others. All `LANES` numbers must be readable.
    unsafe fn load_where(from: *const Self::Scalar, mask: LaneMask) -> Self;
    /// Loads the selected lanes and zeroes the others. Numbers of other lanes are not read: they
    /// may be in invalid memory.
    unsafe fn load_inside(from: *const Self::Scalar, mask: LaneMask) -> Self;
    /// The lanes 0, 2, 4 and so on of the concatenation of both.
    unsafe fn evens(low: Self, high: Self) -> Self;
    /// Interleaves the lanes of both: first the lower halves, then the upper halves.
    unsafe fn zip(first: Self, second: Self) -> (Self, Self);
    /// Stores `LANES` numbers, at any alignment.
    unsafe fn store(self, to: *mut Self::Scalar);
    /// `self * factor + sum`, lane by lane. Fused where the instruction set has it.
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self;
    /// Writes the selected lanes contiguously, and nothing after them.
    unsafe fn compress(self, to: *mut Self::Scalar, mask: LaneMask);
    /// The inverse of [`Vector::compress`]: reads contiguous numbers into the selected lanes and
    /// zeroes the others.
    unsafe fn expand(from: *const Self::Scalar, mask: LaneMask) -> Self;
}

/// A set of lanes of a vector: bit `i` selects lane `i`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct LaneMask {
    selected: u32,
    /// The lowest bits, as many as lanes are selected. Stored because not every CPU counts bits in
    /// one instruction.
    packed: u32,
}

impl LaneMask {
    /// The lanes whose bit is set.
    pub fn new(selected: u32) -> LaneMask {
        LaneMask { selected, packed: ((1_u64 << selected.count_ones()) - 1) as u32 }
    }

    /// The first `lanes` lanes.
    pub const fn all(lanes: usize) -> LaneMask {
        let bits = u32::MAX >> (32 - lanes);
        LaneMask { selected: bits, packed: bits }
    }

    #[inline(always)]
    fn has(self, lane: usize) -> bool {
        self.selected >> lane & 1 == 1
    }
}

/// Plain Rust that the compiler turns into 128-bit vectors if the CPU has them.
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
            unsafe fn load_where(from: *const $scalar, mask: LaneMask) -> Self {
                // SAFETY: as for `load`.
                let all = unsafe { Self::load(from) }.0;
                Plain(std::array::from_fn(|lane| if mask.has(lane) { all[lane] } else { 0.0 }))
            }
            #[inline(always)]
            unsafe fn load_inside(from: *const $scalar, mask: LaneMask) -> Self {
                // SAFETY: the caller guarantees that the selected lanes are readable.
                let lane = |lane: usize| unsafe { from.wrapping_add(lane).read_unaligned() };
                Plain(std::array::from_fn(|index| if mask.has(index) { lane(index) } else { 0.0 }))
            }
            #[inline(always)]
            unsafe fn evens(low: Self, high: Self) -> Self {
                Plain(std::array::from_fn(|lane| {
                    let lane = 2 * lane;
                    if lane < $lanes { low.0[lane] } else { high.0[lane - $lanes] }
                }))
            }
            #[inline(always)]
            unsafe fn zip(first: Self, second: Self) -> (Self, Self) {
                let lane = |lane: usize| if lane % 2 == 0 { first.0[lane / 2] } else { second.0[lane / 2] };
                (Plain(std::array::from_fn(lane)), Plain(std::array::from_fn(|index| lane($lanes + index))))
            }
            #[inline(always)]
            unsafe fn store(self, to: *mut $scalar) {
                // SAFETY: the caller guarantees room for `LANES` numbers.
                unsafe { to.cast::<[$scalar; $lanes]>().write_unaligned(self.0) }
            }
            #[inline(always)]
            unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
                // Not `f32::mul_add`, which is a library call if the target has no fused
                // instruction.
                Plain(std::array::from_fn(|lane| self.0[lane] * factor.0[lane] + sum.0[lane]))
            }
            #[inline(always)]
            unsafe fn compress(self, to: *mut $scalar, mask: LaneMask) {
                // SAFETY: the caller guarantees room for as many numbers as the mask has bits.
                unsafe { compress_lanes(&self.0, to, mask) }
            }
            #[inline(always)]
            unsafe fn expand(from: *const $scalar, mask: LaneMask) -> Self {
                // SAFETY: the caller guarantees as many numbers as the mask has bits.
                Plain(unsafe { expand_lanes(from, mask) })
            }
        }
    };
}

plain_vector!(f32, 4);
plain_vector!(f64, 2);

#[inline(always)]
unsafe fn compress_lanes<T: Copy, const N: usize>(lanes: &[T; N], to: *mut T, mask: LaneMask) {
    let mut written = 0;
    for (lane, value) in lanes.iter().enumerate() {
        if mask.has(lane) {
            // SAFETY: `written` counts the selected lanes so far, for which the caller guarantees
            // room.
            unsafe { to.add(written).write(*value) };
            written += 1;
        }
    }
}

#[inline(always)]
unsafe fn expand_lanes<T: Copy + Default, const N: usize>(from: *const T, mask: LaneMask) -> [T; N] {
    let mut lanes = [T::default(); N];
    let mut read = 0;
    for (lane, value) in lanes.iter_mut().enumerate() {
        if mask.has(lane) {
            // SAFETY: `read` counts the selected lanes so far, which the caller guarantees to be
            // readable.
            *value = unsafe { from.add(read).read() };
            read += 1;
        }
    }
    lanes
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{LaneMask, Vector, compress_lanes, expand_lanes};
    use std::arch::x86_64::*;

    macro_rules! avx512_vector {
        ($vector:ty, $scalar:ty, $lanes:literal, $mask:ty, $splat:ident, $load:ident, $load_where:ident, $fma:ident,
         $store:ident, $store_where:ident, $compress:ident, $expand:ident, $evens:ident, $zip:ident) => {
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
                unsafe fn load_where(from: *const $scalar, mask: LaneMask) -> Self {
                    // SAFETY: the caller guarantees AVX-512 and readable lanes.
                    unsafe { $load_where(mask.selected as $mask, from) }
                }
                #[inline(always)]
                unsafe fn load_inside(from: *const $scalar, mask: LaneMask) -> Self {
                    // SAFETY: the caller guarantees AVX-512 and the selected lanes; the instruction
                    // reads no others.
                    unsafe { $load_where(mask.selected as $mask, from) }
                }
                #[inline(always)]
                unsafe fn evens(low: Self, high: Self) -> Self {
                    // SAFETY: the caller guarantees AVX-512.
                    unsafe { $evens(low, high) }
                }
                #[inline(always)]
                unsafe fn zip(first: Self, second: Self) -> (Self, Self) {
                    // SAFETY: the caller guarantees AVX-512.
                    unsafe { $zip(first, second) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut $scalar) {
                    // SAFETY: the caller guarantees AVX-512 and room for `LANES` numbers.
                    unsafe { $store(to, self) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
                    // SAFETY: the caller guarantees AVX-512.
                    unsafe { $fma(self, factor, sum) }
                }
                #[inline(always)]
                unsafe fn compress(self, to: *mut $scalar, mask: LaneMask) {
                    // SAFETY: the caller guarantees AVX-512 and room for the selected lanes; only
                    // those are written.
                    unsafe { $store_where(to, mask.packed as $mask, $compress(mask.selected as $mask, self)) }
                }
                #[inline(always)]
                unsafe fn expand(from: *const $scalar, mask: LaneMask) -> Self {
                    // SAFETY: the caller guarantees AVX-512 and the numbers for the selected lanes;
                    // only those are read.
                    unsafe { $expand(mask.selected as $mask, $load_where(mask.packed as $mask, from)) }
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
        _mm512_maskz_expand_ps,
        evens_512,
        zip_512
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
        _mm512_maskz_expand_pd,
        evens_512d,
        zip_512d
    );

    macro_rules! avx2_vector {
        ($vector:ty, $scalar:ty, $lanes:literal, $splat:ident, $load:ident, $mask_load:ident, $masks:ident, $fma:ident,
         $store:ident, $evens:ident, $zip:ident) => {
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
                unsafe fn load_where(from: *const $scalar, mask: LaneMask) -> Self {
                    // SAFETY: the caller guarantees AVX2 and readable lanes.
                    unsafe { $mask_load(from, $masks(mask.selected)) }
                }
                #[inline(always)]
                unsafe fn load_inside(from: *const $scalar, mask: LaneMask) -> Self {
                    // SAFETY: the caller guarantees AVX2 and the selected lanes; the instruction
                    // reads no others.
                    unsafe { $mask_load(from, $masks(mask.selected)) }
                }
                #[inline(always)]
                unsafe fn evens(low: Self, high: Self) -> Self {
                    // SAFETY: the caller guarantees AVX2.
                    unsafe { $evens(low, high) }
                }
                #[inline(always)]
                unsafe fn zip(first: Self, second: Self) -> (Self, Self) {
                    // SAFETY: the caller guarantees AVX2.
                    unsafe { $zip(first, second) }
                }
                #[inline(always)]
                unsafe fn store(self, to: *mut $scalar) {
                    // SAFETY: the caller guarantees AVX2 and room for `LANES` numbers.
                    unsafe { $store(to, self) }
                }
                #[inline(always)]
                unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
                    // SAFETY: the caller guarantees FMA.
                    unsafe { $fma(self, factor, sum) }
                }
                #[inline(always)]
                unsafe fn compress(self, to: *mut $scalar, mask: LaneMask) {
                    // SAFETY: the caller guarantees AVX2 and room for the selected lanes; the array
                    // has `LANES` numbers.
                    unsafe {
                        if mask == LaneMask::all($lanes) {
                            return $store(to, self);
                        }
                        let mut lanes = [0.0; $lanes];
                        $store(lanes.as_mut_ptr(), self);
                        compress_lanes(&lanes, to, mask);
                    }
                }
                #[inline(always)]
                unsafe fn expand(from: *const $scalar, mask: LaneMask) -> Self {
                    // SAFETY: the caller guarantees AVX2 and the numbers for the selected lanes.
                    unsafe {
                        if mask == LaneMask::all($lanes) {
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
        _mm256_storeu_ps,
        evens_256,
        zip_256
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
        _mm256_storeu_pd,
        evens_256d,
        zip_256d
    );

    #[inline(always)]
    unsafe fn evens_512(low: __m512, high: __m512) -> __m512 {
        // SAFETY: the caller guarantees AVX-512.
        unsafe {
            let lanes = _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
            _mm512_permutex2var_ps(low, lanes, high)
        }
    }

    #[inline(always)]
    unsafe fn evens_512d(low: __m512d, high: __m512d) -> __m512d {
        // SAFETY: the caller guarantees AVX-512.
        unsafe { _mm512_permutex2var_pd(low, _mm512_setr_epi64(0, 2, 4, 6, 8, 10, 12, 14), high) }
    }

    #[inline(always)]
    unsafe fn evens_256(low: __m256, high: __m256) -> __m256 {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let pairs = _mm256_shuffle_ps::<0b10_00_10_00>(low, high);
            _mm256_castpd_ps(_mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_castps_pd(pairs)))
        }
    }

    #[inline(always)]
    unsafe fn evens_256d(low: __m256d, high: __m256d) -> __m256d {
        // SAFETY: the caller guarantees AVX2.
        unsafe { _mm256_permute4x64_pd::<0b11_01_10_00>(_mm256_unpacklo_pd(low, high)) }
    }

    #[inline(always)]
    unsafe fn zip_512(first: __m512, second: __m512) -> (__m512, __m512) {
        // SAFETY: the caller guarantees AVX-512.
        unsafe {
            let low = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
            let high = _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
            (_mm512_permutex2var_ps(first, low, second), _mm512_permutex2var_ps(first, high, second))
        }
    }

    #[inline(always)]
    unsafe fn zip_512d(first: __m512d, second: __m512d) -> (__m512d, __m512d) {
        // SAFETY: the caller guarantees AVX-512.
        unsafe {
            let low = _mm512_permutex2var_pd(first, _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11), second);
            (low, _mm512_permutex2var_pd(first, _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15), second))
        }
    }

    #[inline(always)]
    unsafe fn zip_256(first: __m256, second: __m256) -> (__m256, __m256) {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let (low, high) = (_mm256_unpacklo_ps(first, second), _mm256_unpackhi_ps(first, second));
            (_mm256_permute2f128_ps::<0x20>(low, high), _mm256_permute2f128_ps::<0x31>(low, high))
        }
    }

    #[inline(always)]
    unsafe fn zip_256d(first: __m256d, second: __m256d) -> (__m256d, __m256d) {
        // SAFETY: the caller guarantees AVX2.
        unsafe {
            let (low, high) = (_mm256_unpacklo_pd(first, second), _mm256_unpackhi_pd(first, second));
            (_mm256_permute2f128_pd::<0x20>(low, high), _mm256_permute2f128_pd::<0x31>(low, high))
        }
    }

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
