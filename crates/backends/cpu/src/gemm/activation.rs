//! Activations of the epilogue, written so that the compiler makes vector code of them.

use panoply_core::op::compute::Activation;

/// The activation of one `f32`, within 1e-6 absolute or relative, whichever is larger.
#[inline(always)]
pub(super) fn activate_f32(x: f32, activation: Activation) -> f32 {
    match activation {
        Activation::None => x,
        Activation::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Activation::Gelu => gelu(x),
        Activation::Silu => times_or_zero(x, sigmoid(x)),
        Activation::Sigmoid => sigmoid(x),
        Activation::Tanh => tanh(x),
        // The op's checks let no other activation through.
        _ => x,
    }
}

/// The activation of one `f64`.
#[inline(always)]
pub fn activate_f64(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::None => x,
        Activation::Relu => {
            if x < 0.0 {
                0.0
            } else {
                x
            }
        }
        Activation::Gelu => {
            if x == f64::NEG_INFINITY {
                0.0
            } else {
                0.5 * x * erfc_f64(-x * std::f64::consts::FRAC_1_SQRT_2)
            }
        }
        Activation::Silu => {
            if x == f64::NEG_INFINITY {
                0.0
            } else {
                x / (1.0 + (-x).exp())
            }
        }
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        // The op's checks let no other activation through.
        _ => x,
    }
}

/// `x * gate`; zero where the gate is zero, also for an infinite `x`.
#[inline(always)]
fn times_or_zero(x: f32, gate: f32) -> f32 {
    if gate == 0.0 { 0.0 } else { x * gate }
}

#[inline(always)]
fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

#[inline(always)]
fn tanh(x: f32) -> f32 {
    let square = x * x;
    // Near zero the quotient below would cancel; this odd polynomial is exact to an ulp there.
    let near_zero = x
        * (1.0
            + square * (-0.333_333_34 + square * (0.133_333_34 + square * (-0.053_968_254 + square * 0.021_869_488))));
    let growth = exp(2.0 * x.abs());
    let far = 1.0 - 2.0 / (growth + 1.0);
    if square < 0.09 { near_zero } else { far.copysign(x) }
}

/// Through `erfc` of the magnitude (Abramowitz and Stegun 7.1.26), so that the negative tail keeps its accuracy.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let poly = t * (0.254_829_6 + t * (-0.284_496_74 + t * (1.421_413_7 + t * (-1.453_152 + t * 1.061_405_4))));
    let tail = 0.5 * poly * exp(-z * z);
    let gate = if x < 0.0 { tail } else { 1.0 - tail };
    if gate == 0.0 { 0.0 } else { x * gate }
}

/// `e^x` within two ulp; zero where the result would be close to subnormal numbers, which processors are slow with, infinity above
/// the largest, NaN for NaN.
#[inline(always)]
fn exp(x: f32) -> f32 {
    const LOG2_E: f32 = std::f32::consts::LOG2_E;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const ROUNDER: f32 = 12_582_912.0; // 1.5 * 2^23: adding it leaves the nearest integer in the low bits.
    let bounded = x.clamp(-87.3, 88.8);
    let shifted = bounded * LOG2_E + ROUNDER;
    let whole = shifted - ROUNDER;
    let rest = bounded - whole * LN2_HIGH - whole * LN2_LOW;
    let poly = 1.0
        + rest
            * (1.0
                + rest
                    * (0.5
                        + rest * (0.166_666_66 + rest * (0.041_666_67 + rest * (0.008_333_33 + rest * 0.001_388_9)))));
    // Two factors, as 2^128 alone would overflow where the result does not.
    let exponent = shifted.to_bits().wrapping_sub(ROUNDER.to_bits()) as i32;
    let half = exponent >> 1;
    let scale = |power: i32| f32::from_bits(((power + 127) << 23) as u32);
    let result = poly * scale(half) * scale(exponent - half);
    if x > 88.8 {
        f32::INFINITY
    } else if x < -87.3 {
        0.0
    } else {
        result
    }
}

/// The complementary error function by its continued fraction far out and its series near zero.
fn erfc_f64(x: f64) -> f64 {
    let z = x.abs();
    let upper = if z < 2.0 { 1.0 - erf_series(z) } else { erfc_fraction(z) };
    if x < 0.0 { 2.0 - upper } else { upper }
}

fn erf_series(z: f64) -> f64 {
    let mut term = z;
    let mut sum = z;
    let mut n = 0.0;
    while term.abs() > 1e-17 * sum.abs() {
        n += 1.0;
        term *= -z * z / n;
        sum += term / (2.0 * n + 1.0);
    }
    sum * std::f64::consts::FRAC_2_SQRT_PI
}

fn erfc_fraction(z: f64) -> f64 {
    if z > 27.0 {
        return 0.0;
    }
    let mut fraction = z;
    for n in (1..=120).rev() {
        fraction = z + 0.5 * f64::from(n) / fraction;
    }
    (-z * z).exp() / (fraction * std::f64::consts::PI.sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(activation: Activation, exact: impl Fn(f64) -> f64) {
        for step in -4000..=4000 {
            let x = step as f32 * 0.025;
            let (got, want) = (f64::from(activate_f32(x, activation)), exact(f64::from(x)));
            assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{activation:?}({x}) = {got}, not {want}");
            let double = activate_f64(f64::from(x), activation);
            assert!((double - want).abs() <= 1e-13 * want.abs().max(1.0), "{activation:?}({x}) = {double}, not {want}");
        }
        assert!(activate_f32(f32::NAN, activation).is_nan());
        assert!(activate_f64(f64::NAN, activation).is_nan());
        for x in [f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(
                f64::from(activate_f32(x, activation)),
                activate_f64(f64::from(x), activation),
                "{activation:?}({x})"
            );
        }
    }

    #[test]
    fn activations_are_accurate_and_keep_nan() {
        check(Activation::Relu, |x| x.max(0.0));
        check(Activation::Sigmoid, |x| 1.0 / (1.0 + (-x).exp()));
        check(Activation::Silu, |x| x / (1.0 + (-x).exp()));
        check(Activation::Tanh, f64::tanh);
        check(Activation::Gelu, |x| 0.5 * x * erfc_f64(-x * std::f64::consts::FRAC_1_SQRT_2));
    }

    #[test]
    fn erfc_meets_published_values() {
        // Abramowitz and Stegun, table 7.1.
        for (x, erf) in [(0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (1.9, 0.992_790_429_2), (2.0, 0.995_322_265_0)]
        {
            assert!((1.0 - erfc_f64(x) - erf).abs() < 1e-10);
        }
    }
}
