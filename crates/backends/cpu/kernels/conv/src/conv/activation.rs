//! Activations of finished sums: those of matrix products, compiled for each vector level.

use panoply_core::op::compute::Activation;

use crate::gemm::Accumulator;
use crate::simd::Simd;

/// Applies the activation to every number of a run.
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

/// Has one loop for each activation: a branch inside the loop would prevent vectorisation.
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
