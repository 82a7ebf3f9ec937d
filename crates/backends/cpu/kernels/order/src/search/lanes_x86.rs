//! The x86-64 vectors: AVX-512 and AVX2.
//!
//! Every `unsafe` block here is an intrinsic. The caller guarantees its instructions (the contract
//! of [`Lanes`]) and its memory.

use super::{Kernel, Lanes};
use panoply_core::dtype::{bf16, f16};
use std::arch::x86_64::*;

/// # Safety
/// The CPU has AVX-512 F, BW, DQ and VL, and with them AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
pub(super) unsafe fn run_avx512<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the instructions are enabled here.
    unsafe { kernel.run::<Avx512>() }
}

/// # Safety
/// The CPU has AVX2, FMA and F16C.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run_avx2<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the instructions are enabled here.
    unsafe { kernel.run::<Avx2>() }
}

/// A mask of the first `len` < 16 lanes.
#[inline(always)]
fn first_lanes(len: usize) -> u16 {
    (1 << len) - 1
}

#[derive(Clone, Copy)]
pub(in crate::search) struct Avx512;

#[derive(Clone, Copy)]
pub(super) struct Avx2;

impl Lanes for Avx512 {
    type V = __m512;
    const WIDTH: usize = 16;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m512 {
        // SAFETY: the contract of `Lanes`, here and in every method below.
        unsafe { _mm512_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_part_f32(from: *const f32, len: usize) -> __m512 {
        // SAFETY: as above; the mask selects only existing elements.
        unsafe { _mm512_maskz_loadu_ps(first_lanes(len), from) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_part_f16(from: *const f16, len: usize) -> __m512 {
        // SAFETY: as above, masked.
        unsafe { _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(len), from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(from.cast())))) }
    }

    #[inline(always)]
    unsafe fn load_part_bf16(from: *const bf16, len: usize) -> __m512 {
        // SAFETY: as above, masked.
        unsafe {
            let part = _mm256_maskz_loadu_epi16(first_lanes(len), from.cast());
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(part)))
        }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn load_part_i8(from: *const i8, len: usize) -> __m512 {
        // SAFETY: as above, masked.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_maskz_loadu_epi8(first_lanes(len), from))) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m512) {
        // SAFETY: as above.
        unsafe { _mm512_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn nfma(a: __m512, b: __m512, c: __m512) -> __m512 {
        // SAFETY: as above.
        unsafe { _mm512_fnmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn sum8(values: [__m512; 8]) -> [f32; 8] {
        // SAFETY: as above.
        unsafe {
            let mut halves = [_mm256_setzero_ps(); 8];
            for (half, value) in halves.iter_mut().zip(values) {
                *half = _mm256_add_ps(_mm512_castps512_ps256(value), _mm512_extractf32x8_ps::<1>(value));
            }
            Avx2::sum8(halves)
        }
    }

    #[inline(always)]
    unsafe fn exceeds(value: __m512, bound: __m512) -> u32 {
        // SAFETY: as above.
        unsafe { u32::from(_mm512_cmp_ps_mask::<_CMP_NLE_UQ>(value, bound)) }
    }

    #[inline(always)]
    unsafe fn prefetch<T>(from: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_far<T>(from: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }
}

impl Lanes for Avx2 {
    type V = __m256;
    const WIDTH: usize = 8;

    #[inline(always)]
    unsafe fn splat(value: f32) -> __m256 {
        // SAFETY: the contract of `Lanes`, here and in every method below.
        unsafe { _mm256_set1_ps(value) }
    }

    #[inline(always)]
    unsafe fn load_f32(from: *const f32) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_loadu_ps(from) }
    }

    #[inline(always)]
    unsafe fn load_f16(from: *const f16) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn load_bf16(from: *const bf16) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(from.cast())))) }
    }

    #[inline(always)]
    unsafe fn load_i8(from: *const i8) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(from.cast()))) }
    }

    #[inline(always)]
    unsafe fn store(to: *mut f32, value: __m256) {
        // SAFETY: as above.
        unsafe { _mm256_storeu_ps(to, value) }
    }

    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_sub_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_mul_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn nfma(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: as above.
        unsafe { _mm256_fnmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn sum8(v: [__m256; 8]) -> [f32; 8] {
        // SAFETY: as above. Three horizontal additions leave in lane i of each half that half's sum
        // of vector i.
        unsafe {
            let low = _mm256_hadd_ps(_mm256_hadd_ps(v[0], v[1]), _mm256_hadd_ps(v[2], v[3]));
            let high = _mm256_hadd_ps(_mm256_hadd_ps(v[4], v[5]), _mm256_hadd_ps(v[6], v[7]));
            let lower_halves = _mm256_permute2f128_ps::<0x20>(low, high);
            let upper_halves = _mm256_permute2f128_ps::<0x31>(low, high);
            let mut sums = [0.0; 8];
            _mm256_storeu_ps(sums.as_mut_ptr(), _mm256_add_ps(lower_halves, upper_halves));
            sums
        }
    }

    #[inline(always)]
    unsafe fn exceeds(value: __m256, bound: __m256) -> u32 {
        // SAFETY: as above.
        unsafe { _mm256_movemask_ps(_mm256_cmp_ps::<_CMP_NLE_UQ>(value, bound)) as u32 }
    }

    #[inline(always)]
    unsafe fn prefetch<T>(from: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(from.cast()) }
    }

    #[inline(always)]
    unsafe fn prefetch_far<T>(from: *const T) {
        // SAFETY: a prefetch never faults.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(from.cast()) }
    }
}
