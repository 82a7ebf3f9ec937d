//! The elementary functions against f64 over all magnitudes.

use panoply_core::expr::UnaryOp;
use panoply_cpu_machine::simd::Simd;
use panoply_cpu_map::vmath::*;

type SliceFunction = fn(Simd, &[f32], &mut [f32]);

const FUNCTIONS: [(SliceFunction, UnaryOp, f64); 9] = [
    (exp, UnaryOp::Exp, 1.0),
    (log, UnaryOp::Log, 1.0),
    (tanh, UnaryOp::Tanh, 2.0),
    (sigmoid, UnaryOp::Sigmoid, 3.0),
    (erf, UnaryOp::Erf, 3.0),
    (gelu, UnaryOp::Gelu, 7.0),
    (silu, UnaryOp::Silu, 4.0),
    (sin, UnaryOp::Sin, 2.0),
    (cos, UnaryOp::Cos, 2.0),
];

/// Every 4099th bit pattern (subnormal, infinite and NaN ones included) and a dense range of usual
/// values.
fn samples() -> Vec<f32> {
    let everywhere = (0..=u32::MAX / 4099).map(|step| f32::from_bits(step * 4099));
    let dense = (-130_000..130_000).map(|step| step as f32 * 0.000_931);
    let special = [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN_POSITIVE, f32::MAX, f32::MIN, 1e-45];
    everywhere.chain(dense).chain(special).collect()
}

/// The distance between a computed and a true value in units of the last place of the true one.
fn ulps(got: f32, expected: f64) -> f64 {
    let rounded = expected as f32;
    if got == rounded || (got.is_nan() && rounded.is_nan()) {
        return 0.0;
    }
    // The factor of silu is subnormal before its product is.
    if expected.abs() < 2.0_f64.powi(-120) && (f64::from(got) - expected).abs() < 2.0_f64.powi(-142) {
        return 0.0;
    }
    let exponent = expected.abs().log2().floor().clamp(-126.0, 127.0);
    (f64::from(got) - expected).abs() / (exponent - 23.0).exp2()
}

#[test]
fn functions_are_within_their_stated_errors() {
    let input = samples();
    let mut output = vec![0.0; input.len()];
    for (function, op, ulps_max) in FUNCTIONS {
        for simd in Simd::available() {
            function(simd, &input, &mut output);
            let errors = input.iter().zip(&output).map(|(&x, &y)| (ulps(y, op.eval(f64::from(x))), x, y));
            let worst = errors
                .fold((0.0, 0.0, 0.0), |worst, next| if next.0 > worst.0 || next.0.is_nan() { next } else { worst });
            println!("{} {}: {worst:?}", op.name(), simd.name());
            assert!(worst.0 <= ulps_max, "{} {}: {worst:?}", op.name(), simd.name());
        }
    }
}

#[test]
fn gelu_tanh_is_within_its_stated_error() {
    let input = samples();
    let mut output = vec![0.0; input.len()];
    for simd in Simd::available() {
        gelu_tanh(simd, &input, &mut output);
        for (&x, &y) in input.iter().zip(&output) {
            let expected = UnaryOp::GeluTanh.eval(f64::from(x));
            let close = (f64::from(y) - expected).abs() <= f64::from(x.abs()) * 2.0_f64.powi(-23);
            assert!(close || ulps(y, expected) <= 5.0, "{}: gelu_tanh({x}) = {y}, not {expected}", simd.name());
        }
    }
}

#[test]
fn every_length_is_written_and_nothing_beyond() {
    for simd in Simd::available() {
        for len in 0..70 {
            let input: Vec<f32> = (0..len).map(|index| index as f32 * 0.1).collect();
            let mut output = vec![-7.0; len + 1];
            exp(simd, &input, &mut output);
            assert!(input.iter().zip(&output).all(|(&x, &y)| ulps(y, f64::from(x).exp()) <= 2.0));
            assert_eq!(output[len], -7.0);
            let mut values = input.clone();
            exp_in_place(simd, &mut values);
            assert_eq!(values, output[..len]);
        }
    }
}
