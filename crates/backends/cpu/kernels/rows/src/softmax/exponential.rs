//! `e^x` for `x` at or below zero, as needed for softmax: without branches, so that loops over it
//! vectorise.

use crate::lanes::{Level, mul_add, mul_add_f64};
use crate::reduce::ComputeFloat;

/// A type in which exponentials are computed.
pub trait Exponential: ComputeFloat + std::ops::Sub<Output = Self> + std::ops::Mul<Output = Self> {
    /// `e^self` to within two units in the last place; zero if the result would be subnormal; NaN
    /// for NaN. `self` must not be above zero.
    fn exp<L: Level>(self) -> Self;
}

/// 1/0!, 1/1!, …: as many Taylor coefficients as |r| ≤ ln 2 / 2 requires.
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
        // Adding and subtracting this constant rounds to an integer; after the addition, the
        // integer is in the low bits.
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
