//! Activations of the epilogue, written so that the compiler vectorises them.

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
        // The op's checks reject all other activations.
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
        // The op's checks reject all other activations.
        _ => x,
    }
}

/// `x * gate`, or zero if the gate is zero, even for an infinite `x`.
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

/// GELU through `erfc` of the magnitude (Abramowitz and Stegun 7.1.26), so that the negative tail
/// keeps its accuracy.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let poly = t * (0.254_829_6 + t * (-0.284_496_74 + t * (1.421_413_7 + t * (-1.453_152 + t * 1.061_405_4))));
    let tail = 0.5 * poly * exp(-z * z);
    let gate = if x < 0.0 { tail } else { 1.0 - tail };
    if gate == 0.0 { 0.0 } else { x * gate }
}

/// `e^x` within two ulp. Zero if the result would be close to subnormal numbers, which processors
/// handle slowly; infinity above the largest number; NaN for NaN.
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
    // Two factors, because 2^128 alone would overflow even if the result does not.
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
#[inline]
pub fn erfc_f64(x: f64) -> f64 {
    let z = x.abs();
    let upper = if z < 2.0 { 1.0 - erf_series(z) } else { erfc_fraction(z) };
    if x < 0.0 { 2.0 - upper } else { upper }
}

#[inline]
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

#[inline]
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
