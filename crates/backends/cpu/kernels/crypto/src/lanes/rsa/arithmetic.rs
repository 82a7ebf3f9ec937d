//! Products of limbs in vectors: of doubles, which every CPU with AVX-512 has, and of integers,
//! with IFMA.
//!
//! All functions are inlined into functions that are compiled for the CPU's instructions, so that
//! vectors stay in registers: see [`super::kernel`].

use std::arch::x86_64::*;

use super::limbs::LIMB_MASK;

/// The instructions for products of eight numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Fused multiply-add of doubles.
    Doubles,
    /// IFMA.
    Integers,
}

impl Kind {
    /// The fastest kind that this CPU has; `None` if it has neither.
    pub(super) fn detected() -> Option<Kind> {
        Kind::Integers.is_there().then_some(Kind::Integers).or(Kind::Doubles.is_there().then_some(Kind::Doubles))
    }

    /// Whether this CPU has it.
    pub(super) fn is_there(self) -> bool {
        match self {
            Kind::Doubles => is_x86_feature_detected!("avx512f"),
            Kind::Integers => is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512ifma"),
        }
    }

    /// Converts a limb to an operand of the kernel.
    pub(super) fn operand(self, limb: u64) -> u64 {
        match self {
            Kind::Doubles => (f64::from_bits(limb | ABOVE.to_bits()) - ABOVE).to_bits(),
            Kind::Integers => limb,
        }
    }

    /// Converts an operand back to a limb.
    pub(super) fn limb(self, operand: u64) -> u64 {
        match self {
            Kind::Doubles => (f64::from_bits(operand) + ABOVE).to_bits() ^ ABOVE.to_bits(),
            Kind::Integers => operand,
        }
    }
}

/// 2^52: in the sum with a limb, its bits stand above the limb's.
const ABOVE: f64 = 4_503_599_627_370_496.0;

/// The operations of the kernel on limbs. They must be called from code that is compiled for the
/// instructions.
pub(super) trait Arithmetic {
    /// The constant above the lower half of a product when it is added to a column.
    const LOW: u64;
    /// The constant above the upper half.
    const HIGH: u64;

    /// Adds both halves of a product, including the constants above them.
    ///
    /// # Safety
    /// The CPU must have the instructions.
    unsafe fn product(low: __m512i, high: __m512i, a: __m512i, b: __m512i) -> (__m512i, __m512i);

    /// The lowest 52 bits, as an operand.
    ///
    /// # Safety
    /// The CPU must have the instructions.
    unsafe fn operand(sum: __m512i) -> __m512i;

    /// Converts an operand to an integer.
    ///
    /// # Safety
    /// The CPU must have the instructions.
    unsafe fn limb(operand: __m512i) -> __m512i;
}

/// Limbs as doubles. 2^104 + a b, rounded towards zero, has the upper 52 bits of a b in its
/// mantissa; 2^52 + a b - 2^52 upper has the lower 52 bits. The bits of both doubles are summed as
/// integers. All doubles are integers or zero, so none is a slow subnormal.
pub(super) struct Doubles;

const TO_ZERO: i32 = _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC;

impl Arithmetic for Doubles {
    /// 2^52 as a double.
    const LOW: u64 = 0x4330_0000_0000_0000;
    /// 2^104 as a double.
    const HIGH: u64 = 0x4670_0000_0000_0000;

    #[inline(always)]
    unsafe fn product(low: __m512i, high: __m512i, a: __m512i, b: __m512i) -> (__m512i, __m512i) {
        // SAFETY: the caller guarantees that the CPU has the instructions.
        unsafe {
            let (a, b) = (_mm512_castsi512_pd(a), _mm512_castsi512_pd(b));
            let above = _mm512_castsi512_pd(_mm512_set1_epi64(Self::HIGH as i64));
            let upper = _mm512_fmadd_round_pd::<TO_ZERO>(a, b, above);
            // 2^104 + 2^52 minus the upper half with its constant: exact, since the difference has
            // at most 52 bits.
            let both = _mm512_castsi512_pd(_mm512_set1_epi64(Self::HIGH as i64 + 1));
            let lower = _mm512_fmadd_round_pd::<TO_ZERO>(a, b, _mm512_sub_pd(both, upper));
            (_mm512_add_epi64(low, _mm512_castpd_si512(lower)), _mm512_add_epi64(high, _mm512_castpd_si512(upper)))
        }
    }

    #[inline(always)]
    unsafe fn operand(sum: __m512i) -> __m512i {
        // SAFETY: the caller guarantees that the CPU has the instructions.
        unsafe {
            let above = _mm512_set1_epi64(Self::LOW as i64);
            let bits = _mm512_or_si512(_mm512_and_si512(sum, _mm512_set1_epi64(LIMB_MASK as i64)), above);
            _mm512_castpd_si512(_mm512_sub_pd(_mm512_castsi512_pd(bits), _mm512_castsi512_pd(above)))
        }
    }

    #[inline(always)]
    unsafe fn limb(operand: __m512i) -> __m512i {
        // SAFETY: the caller guarantees that the CPU has the instructions.
        unsafe {
            let above = _mm512_set1_epi64(Self::LOW as i64);
            let bits = _mm512_add_pd(_mm512_castsi512_pd(operand), _mm512_castsi512_pd(above));
            _mm512_xor_si512(_mm512_castpd_si512(bits), above)
        }
    }
}

/// Limbs as integers below 2^52. IFMA adds either half of a product to a sum, with no constant
/// above it.
pub(super) struct Integers;

impl Arithmetic for Integers {
    const LOW: u64 = 0;
    const HIGH: u64 = 0;

    #[inline(always)]
    unsafe fn product(low: __m512i, high: __m512i, a: __m512i, b: __m512i) -> (__m512i, __m512i) {
        // SAFETY: the caller guarantees that the CPU has the instructions.
        unsafe { (_mm512_madd52lo_epu64(low, a, b), _mm512_madd52hi_epu64(high, a, b)) }
    }

    #[inline(always)]
    unsafe fn operand(sum: __m512i) -> __m512i {
        // SAFETY: the caller guarantees that the CPU has the instructions.
        unsafe { _mm512_and_si512(sum, _mm512_set1_epi64(LIMB_MASK as i64)) }
    }

    #[inline(always)]
    unsafe fn limb(operand: __m512i) -> __m512i {
        operand
    }
}
