//! The vector of f32 in which the elementary functions are written.

/// Maximum number of lanes of any implementation.
pub const LANES_MAX: usize = 16;

/// A vector of f32. Values of a type with special instructions exist only inside functions that are
/// called after the CPU was found to have these instructions.
pub trait Lanes: Copy {
    /// Number of lanes; at most [`LANES_MAX`].
    const LEN: usize;
    /// Whether [`Lanes::mul_add`] rounds once.
    const FUSED: bool;
    /// One truth value for each lane.
    type Mask: Copy;

    /// Reads `LEN` numbers; no alignment is needed.
    ///
    /// # Safety
    /// `from` is valid for `LEN` numbers, and the CPU has this type's instructions.
    unsafe fn load(from: *const f32) -> Self;

    /// Writes `LEN` numbers; no alignment is needed.
    ///
    /// # Safety
    /// `to` is valid for `LEN` numbers, and the CPU has this type's instructions.
    unsafe fn store(self, to: *mut f32);

    /// The same number in every lane.
    fn splat(value: f32) -> Self;
    /// `self + other`.
    fn add(self, other: Self) -> Self;
    /// `self - other`.
    fn sub(self, other: Self) -> Self;
    /// `self · other`.
    fn mul(self, other: Self) -> Self;
    /// `self / other`.
    fn div(self, other: Self) -> Self;
    /// `self · factor + addend`, with one rounding where the instruction exists.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// The smaller of the two; `other` if either is NaN.
    fn min(self, other: Self) -> Self;
    /// The larger of the two; `other` if either is NaN.
    fn max(self, other: Self) -> Self;
    /// The absolute value.
    fn abs(self) -> Self;
    /// The magnitude of `self` with the sign of `sign`.
    fn copysign(self, sign: Self) -> Self;
    /// The nearest integer, ties to even.
    fn round(self) -> Self;
    /// `self < other`.
    fn lt(self, other: Self) -> Self::Mask;
    /// `self == other`.
    fn eq(self, other: Self) -> Self::Mask;
    /// Whether the mask is true in every lane.
    fn all(mask: Self::Mask) -> bool;
    /// `if_true` in lanes where the mask is true, else `if_false`.
    fn select(mask: Self::Mask, if_true: Self, if_false: Self) -> Self;
    /// `self · 2ⁿ` for integers `n` from -252 to 252, with one rounding: overflow and subnormal
    /// results are correct.
    fn scale(self, n: Self) -> Self;
    /// `self · 2⁻¹⁴⁹` for `self` from 0 to 2²³, rounded as a product is. Produces subnormal numbers
    /// without arithmetic on them, which processors handle slowly.
    fn subnormal(self) -> Self;
    /// The mantissa in [0.75, 1.5) and the exponent of a positive normal number.
    fn split(self) -> (Self, Self);
}

impl Lanes for f32 {
    const LEN: usize = 1;
    const FUSED: bool = cfg!(any(target_arch = "aarch64", target_feature = "fma"));
    type Mask = bool;

    #[inline(always)]
    unsafe fn load(from: *const f32) -> f32 {
        // SAFETY: the caller's contract.
        unsafe { from.read() }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32) {
        // SAFETY: the caller's contract.
        unsafe { to.write(self) }
    }

    #[inline(always)]
    fn splat(value: f32) -> f32 {
        value
    }

    #[inline(always)]
    fn add(self, other: f32) -> f32 {
        self + other
    }

    #[inline(always)]
    fn sub(self, other: f32) -> f32 {
        self - other
    }

    #[inline(always)]
    fn mul(self, other: f32) -> f32 {
        self * other
    }

    #[inline(always)]
    fn div(self, other: f32) -> f32 {
        self / other
    }

    #[inline(always)]
    fn mul_add(self, factor: f32, addend: f32) -> f32 {
        // Without the instruction, a fused product is a slow call into the math library.
        if Self::FUSED { f32::mul_add(self, factor, addend) } else { self * factor + addend }
    }

    #[inline(always)]
    fn min(self, other: f32) -> f32 {
        if self < other { self } else { other }
    }

    #[inline(always)]
    fn max(self, other: f32) -> f32 {
        if self > other { self } else { other }
    }

    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }

    #[inline(always)]
    fn copysign(self, sign: f32) -> f32 {
        f32::copysign(self, sign)
    }

    #[inline(always)]
    fn round(self) -> f32 {
        f32::round_ties_even(self)
    }

    #[inline(always)]
    fn lt(self, other: f32) -> bool {
        self < other
    }

    #[inline(always)]
    fn eq(self, other: f32) -> bool {
        self == other
    }

    #[inline(always)]
    fn all(mask: bool) -> bool {
        mask
    }

    #[inline(always)]
    fn select(mask: bool, if_true: f32, if_false: f32) -> f32 {
        if mask { if_true } else { if_false }
    }

    #[inline(always)]
    fn scale(self, n: f32) -> f32 {
        let n = n as i32;
        let half = n >> 1;
        let power = |exponent: i32| f32::from_bits(((exponent + 127) << 23) as u32);
        self * power(half) * power(n - half)
    }

    #[inline(always)]
    fn subnormal(self) -> f32 {
        f32::from_bits(f32::round_ties_even(self) as u32)
    }

    #[inline(always)]
    fn split(self) -> (f32, f32) {
        let bits = self.to_bits() as i32;
        let exponent = bits.wrapping_sub(0.75_f32.to_bits() as i32) >> 23;
        (f32::from_bits(bits.wrapping_sub(exponent << 23) as u32), exponent as f32)
    }
}
