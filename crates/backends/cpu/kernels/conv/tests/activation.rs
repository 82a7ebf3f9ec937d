//! Activations of infinities and NaN.

use panoply_core::op::compute::Activation;
use panoply_cpu_conv::conv::activate;
use panoply_cpu_machine::simd::Simd;

#[test]
fn infinities_and_nan_are_kept_or_tamed() {
    let all = [Activation::Relu, Activation::Gelu, Activation::Silu, Activation::Sigmoid, Activation::Tanh];
    for (simd, activation) in Simd::available().into_iter().flat_map(|simd| all.map(|kind| (simd, kind))) {
        let mut run = [f32::NEG_INFINITY, f32::NAN, f32::INFINITY];
        activate(simd, &mut run, activation);
        assert_eq!(run[0], if activation == Activation::Tanh { -1.0 } else { 0.0 });
        assert!(run[1].is_nan() && run[2] >= 1.0, "{activation:?} {run:?}");
    }
}
