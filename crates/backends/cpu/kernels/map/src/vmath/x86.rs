//! [`Lanes`] of AVX2 (8 numbers) and AVX-512 (16 numbers).

use std::arch::x86_64::*;

use super::functions::Lanewise;
use super::lanes::Lanes;
use super::run_lanes;

/// Eight f32 in one AVX register.
#[derive(Clone, Copy)]
pub struct Avx2Lanes(pub __m256);

/// Sixteen f32 in one AVX-512 register.
#[derive(Clone, Copy)]
pub struct Avx512Lanes(pub __m512);

/// Applies `F` to `len` elements with AVX2.
///
/// # Safety
/// Both pointers are valid for `len` elements and equal or disjoint; the CPU has AVX2 and FMA.
#[target_feature(enable = "avx2,fma")]
pub(super) unsafe fn run_avx2<F: Lanewise>(input: *const f32, output: *mut f32, len: usize) {
    // SAFETY: the caller's contract, and this function has the features of `Avx2Lanes`.
    unsafe { run_lanes::<F, Avx2Lanes>(input, output, len) }
}

/// Applies `F` to `len` elements with AVX-512.
///
/// # Safety
/// Both pointers are valid for `len` elements and equal or disjoint; the CPU has AVX-512 F, BW, DQ
/// and VL.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
pub(super) unsafe fn run_avx512<F: Lanewise>(input: *const f32, output: *mut f32, len: usize) {
    // SAFETY: the caller's contract, and this function has the features of `Avx512Lanes`.
    unsafe { run_lanes::<F, Avx512Lanes>(input, output, len) }
}

/// Defines methods of a few register instructions. `$this` names `self` in the bodies.
macro_rules! register_methods {
    ($($name:ident($this:ident $(, $arg:ident: $kind:ty)*) -> $result:ty = $body:expr;)*) => {$(
        #[inline(always)]
        fn $name(self $(, $arg: $kind)*) -> $result {
            let $this = self.0;
            // SAFETY: values of this type are created by `load` and `splat` alone, inside functions
            // that are called after the CPU was found to have the instructions.
            unsafe { $body }
        }
    )*};
}

impl Lanes for Avx2Lanes {
    const LEN: usize = 8;
    const FUSED: bool = true;
    type Mask = __m256;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's contract.
        Self(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { _mm256_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: called only inside functions that are called after the CPU was found to have
        // AVX2.
        Self(unsafe { _mm256_set1_ps(value) })
    }

    #[inline(always)]
    fn all(mask: __m256) -> bool {
        // SAFETY: a mask comes from a comparison of values of this type.
        unsafe { _mm256_movemask_ps(mask) == 0xff }
    }

    #[inline(always)]
    fn select(mask: __m256, if_true: Self, if_false: Self) -> Self {
        // SAFETY: a mask comes from a comparison of values of this type.
        Self(unsafe { _mm256_blendv_ps(if_false.0, if_true.0, mask) })
    }

    register_methods! {
        add(x, other: Self) -> Self = Self(_mm256_add_ps(x, other.0));
        sub(x, other: Self) -> Self = Self(_mm256_sub_ps(x, other.0));
        mul(x, other: Self) -> Self = Self(_mm256_mul_ps(x, other.0));
        div(x, other: Self) -> Self = Self(_mm256_div_ps(x, other.0));
        mul_add(x, factor: Self, addend: Self) -> Self = Self(_mm256_fmadd_ps(x, factor.0, addend.0));
        min(x, other: Self) -> Self = Self(_mm256_min_ps(x, other.0));
        max(x, other: Self) -> Self = Self(_mm256_max_ps(x, other.0));
        abs(x) -> Self = Self(_mm256_andnot_ps(_mm256_set1_ps(-0.0), x));
        copysign(x, sign: Self) -> Self = {
            let sign_bit = _mm256_set1_ps(-0.0);
            Self(_mm256_or_ps(_mm256_andnot_ps(sign_bit, x), _mm256_and_ps(sign_bit, sign.0)))
        };
        round(x) -> Self = Self(_mm256_round_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x));
        lt(x, other: Self) -> __m256 = _mm256_cmp_ps::<_CMP_LT_OQ>(x, other.0);
        eq(x, other: Self) -> __m256 = _mm256_cmp_ps::<_CMP_EQ_OQ>(x, other.0);
        scale(x, n: Self) -> Self = {
            let n = _mm256_cvtps_epi32(n.0);
            let half = _mm256_srai_epi32::<1>(n);
            let bias = _mm256_set1_epi32(127);
            let first = _mm256_slli_epi32::<23>(_mm256_add_epi32(half, bias));
            let second = _mm256_slli_epi32::<23>(_mm256_add_epi32(_mm256_sub_epi32(n, half), bias));
            Self(_mm256_mul_ps(_mm256_mul_ps(x, _mm256_castsi256_ps(first)), _mm256_castsi256_ps(second)))
        };
        subnormal(x) -> Self = Self(_mm256_castsi256_ps(_mm256_cvtps_epi32(x)));
        split(x) -> (Self, Self) = {
            let bits = _mm256_castps_si256(x);
            let base = _mm256_set1_epi32(0.75_f32.to_bits() as i32);
            let exponent = _mm256_srai_epi32::<23>(_mm256_sub_epi32(bits, base));
            let mantissa = _mm256_sub_epi32(bits, _mm256_slli_epi32::<23>(exponent));
            (Self(_mm256_castsi256_ps(mantissa)), Self(_mm256_cvtepi32_ps(exponent)))
        };
    }
}

impl Lanes for Avx512Lanes {
    const LEN: usize = 16;
    const FUSED: bool = true;
    type Mask = __mmask16;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> Self {
        // SAFETY: the caller's contract.
        Self(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { _mm512_storeu_ps(to, self.0) }
    }

    #[inline(always)]
    fn splat(value: f32) -> Self {
        // SAFETY: called only inside functions that are called after the CPU was found to have
        // AVX-512.
        Self(unsafe { _mm512_set1_ps(value) })
    }

    #[inline(always)]
    fn all(mask: __mmask16) -> bool {
        mask == __mmask16::MAX
    }

    #[inline(always)]
    fn select(mask: __mmask16, if_true: Self, if_false: Self) -> Self {
        // SAFETY: a mask comes from a comparison of values of this type.
        Self(unsafe { _mm512_mask_blend_ps(mask, if_false.0, if_true.0) })
    }

    register_methods! {
        add(x, other: Self) -> Self = Self(_mm512_add_ps(x, other.0));
        sub(x, other: Self) -> Self = Self(_mm512_sub_ps(x, other.0));
        mul(x, other: Self) -> Self = Self(_mm512_mul_ps(x, other.0));
        div(x, other: Self) -> Self = Self(_mm512_div_ps(x, other.0));
        mul_add(x, factor: Self, addend: Self) -> Self = Self(_mm512_fmadd_ps(x, factor.0, addend.0));
        min(x, other: Self) -> Self = Self(_mm512_min_ps(x, other.0));
        max(x, other: Self) -> Self = Self(_mm512_max_ps(x, other.0));
        abs(x) -> Self = Self(_mm512_abs_ps(x));
        copysign(x, sign: Self) -> Self = {
            let sign_bit = _mm512_set1_ps(-0.0);
            Self(_mm512_or_ps(_mm512_andnot_ps(sign_bit, x), _mm512_and_ps(sign_bit, sign.0)))
        };
        round(x) -> Self = Self(_mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(x));
        lt(x, other: Self) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_LT_OQ>(x, other.0);
        eq(x, other: Self) -> __mmask16 = _mm512_cmp_ps_mask::<_CMP_EQ_OQ>(x, other.0);
        scale(x, n: Self) -> Self = Self(_mm512_scalef_ps(x, n.0));
        subnormal(x) -> Self = Self(_mm512_castsi512_ps(_mm512_cvtps_epi32(x)));
        split(x) -> (Self, Self) = {
            let bits = _mm512_castps_si512(x);
            let base = _mm512_set1_epi32(0.75_f32.to_bits() as i32);
            let exponent = _mm512_srai_epi32::<23>(_mm512_sub_epi32(bits, base));
            let mantissa = _mm512_sub_epi32(bits, _mm512_slli_epi32::<23>(exponent));
            (Self(_mm512_castsi512_ps(mantissa)), Self(_mm512_cvtepi32_ps(exponent)))
        };
    }
}
