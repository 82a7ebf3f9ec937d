//! Activations of finished sums: the functions of matrix products, compiled for each vector level.

use panoply_core::op::compute::Activation;

use crate::gemm::Accumulator;
use crate::simd::Simd;

/// Replaces every number of a run by its activation.
pub fn activate<T: Accumulator>(simd: Simd, run: &mut [T], activation: Activation) {
    match simd.min(Simd::detect()) {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was limited to what the CPU has.
        Simd::Avx512 => unsafe { activate_avx512(run, activation) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the level was limited to what the CPU has.
        Simd::Avx2 => unsafe { activate_avx2(run, activation) },
        _ => activate_each(run, activation),
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl")]
unsafe fn activate_avx512<T: Accumulator>(run: &mut [T], activation: Activation) {
    activate_each(run, activation);
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn activate_avx2<T: Accumulator>(run: &mut [T], activation: Activation) {
    activate_each(run, activation);
}

/// One loop for each activation: a branch inside the loop would keep it from becoming vector code.
#[inline(always)]
fn activate_each<T: Accumulator>(run: &mut [T], activation: Activation) {
    macro_rules! each {
        ($($kind:ident),*) => {
            match activation {
                $(Activation::$kind => run.iter_mut().for_each(|x| *x = x.activated(Activation::$kind)),)*
                _ => run.iter_mut().for_each(|x| *x = x.activated(activation)),
            }
        };
    }
    each!(Relu, Gelu, Silu, Sigmoid, Tanh);
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
