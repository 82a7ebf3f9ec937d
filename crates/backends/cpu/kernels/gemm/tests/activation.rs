//! Activations of the epilogue.

use panoply_core::op::compute::Activation;
use panoply_cpu_gemm::gemm::{Accumulator, activate_f64};
use panoply_cpu_gemm::internals::erfc_f64;

fn check(activation: Activation, exact: impl Fn(f64) -> f64) {
    for step in -4000..=4000 {
        let x = step as f32 * 0.025;
        let (got, want) = (f64::from(x.activated(activation)), exact(f64::from(x)));
        assert!((got - want).abs() <= 1e-6 * want.abs().max(1.0), "{activation:?}({x}) = {got}, not {want}");
        let double = activate_f64(f64::from(x), activation);
        assert!((double - want).abs() <= 1e-13 * want.abs().max(1.0), "{activation:?}({x}) = {double}, not {want}");
    }
    assert!(f32::NAN.activated(activation).is_nan());
    assert!(activate_f64(f64::NAN, activation).is_nan());
    for x in [f32::INFINITY, f32::NEG_INFINITY] {
        assert_eq!(f64::from(x.activated(activation)), activate_f64(f64::from(x), activation), "{activation:?}({x})");
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
    for (x, erf) in [(0.5, 0.520_499_877_8), (1.0, 0.842_700_792_9), (1.9, 0.992_790_429_2), (2.0, 0.995_322_265_0)] {
        assert!((1.0 - erfc_f64(x) - erf).abs() < 1e-10);
    }
}
