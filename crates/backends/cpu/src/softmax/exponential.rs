//! `e^x` for `x` at or below zero, as softmax needs it: without branches, so that loops over it vectorise.

use crate::lanes::{Level, mul_add, mul_add_f64};
use crate::reduce::Wide;

/// A type that exponentials are computed in.
pub trait Exponential: Wide + std::ops::Sub<Output = Self> + std::ops::Mul<Output = Self> {
    /// `e^self` to within two units in the last place; zero where the answer would be subnormal; NaN for NaN.
    /// `self` must not be above zero.
    fn exp<L: Level>(self) -> Self;
}

/// 1/0!, 1/1!, …: the Taylor coefficients, enough of them for |r| ≤ ln 2 / 2.
const fn coefficients<const N: usize>() -> [f64; N] {
    let mut all = [1.0; N];
    let mut index = 1;
    while index < N {
        all[index] = all[index - 1] / index as f64;
        index += 1;
    }
    all
}

impl Exponential for f32 {
    #[inline(always)]
    fn exp<L: Level>(self) -> f32 {
        const TERMS: [f64; 8] = coefficients();
        // Adding and subtracting this rounds to an integer, which is left in the low bits.
        const ROUND: f32 = 12_582_912.0;
        const LN2_HIGH: f32 = 0.693_359_4;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        const NORMAL_FROM: f32 = -87.336_54;
        let shifted = mul_add::<L>(self, std::f32::consts::LOG2_E, ROUND);
        let power = shifted - ROUND;
        let rest = mul_add::<L>(power, -LN2_LOW, mul_add::<L>(power, -LN2_HIGH, self));
        let mut sum = TERMS[7] as f32;
        for index in (0..7).rev() {
            sum = mul_add::<L>(sum, rest, TERMS[index] as f32);
        }
        let scale = f32::from_bits((shifted.to_bits() << 23).wrapping_add(1.0_f32.to_bits()));
        if self < NORMAL_FROM { 0.0 } else { sum * scale }
    }
}

impl Exponential for f64 {
    #[inline(always)]
    fn exp<L: Level>(self) -> f64 {
        const TERMS: [f64; 14] = coefficients();
        const ROUND: f64 = 6_755_399_441_055_744.0;
        const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
        const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
        const NORMAL_FROM: f64 = -708.396_418_532_264_1;
        let shifted = mul_add_f64::<L>(self, std::f64::consts::LOG2_E, ROUND);
        let power = shifted - ROUND;
        let rest = mul_add_f64::<L>(power, -LN2_LOW, mul_add_f64::<L>(power, -LN2_HIGH, self));
        let mut sum = TERMS[13];
        for index in (0..13).rev() {
            sum = mul_add_f64::<L>(sum, rest, TERMS[index]);
        }
        let scale = f64::from_bits((shifted.to_bits() << 52).wrapping_add(1.0_f64.to_bits()));
        if self < NORMAL_FROM { 0.0 } else { sum * scale }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{Kernel, dispatch};
    use crate::simd::Simd;

    #[test]
    fn exponentials_are_within_two_units() {
        struct Sweep;
        impl Kernel for Sweep {
            type Output = ();
            #[inline(always)]
            fn run<L: Level>(self) {
                for step in 0..200_000 {
                    let x = -(step as f32) * 4.36e-4;
                    let (got, expected) = (f64::from(Exponential::exp::<L>(x)), f64::from(x).exp());
                    assert!(
                        (got - expected).abs() <= 2.0 * f64::from(f32::EPSILON) * expected,
                        "{x}: {got} {expected}"
                    );
                    let x = f64::from(x) * 8.1;
                    let (got, expected) = (Exponential::exp::<L>(x), x.exp());
                    assert!((got - expected).abs() <= 2.0 * f64::EPSILON * expected, "{x}: {got:e} {expected:e}");
                }
            }
        }
        for simd in Simd::available() {
            dispatch(simd, Sweep);
        }
    }
}
