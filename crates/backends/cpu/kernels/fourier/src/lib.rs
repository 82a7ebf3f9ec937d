//! Plans for Fourier transforms of f32 and f64, by rustfft and realfft.
//!
//! Both libraries are generic over the number type, so the crate that names their planners compiles
//! all of their butterflies, for every instruction set. This is the only crate that names them;
//! other crates see trait objects. Before, the butterflies were a fifth of all code of the CPU
//! backend, and were compiled once for the library and once more for its unit tests.
//!
//! The libraries use AVX2 at most. On a CPU with AVX-512, powers of two have their own transforms
//! (`wide`).
#![allow(unsafe_code)] // Vector instructions.

#[cfg(target_arch = "x86_64")]
mod wide;

use std::sync::Arc;

use realfft::RealFftPlanner;
pub use realfft::{ComplexToReal, FftError, RealToComplex};
pub use rustfft::Fft;
use rustfft::FftPlanner;

/// The transform from signals of `len` complex numbers to their spectra.
#[inline(never)]
pub fn forward(len: usize) -> Arc<dyn Fft<f32>> {
    #[cfg(target_arch = "x86_64")]
    if let Some(plan) = wide::WideTransform::new(len, false) {
        return Arc::new(plan);
    }
    FftPlanner::new().plan_fft_forward(len)
}

/// The transform from spectra of `len` complex numbers to the signals, multiplied by `len`.
#[inline(never)]
pub fn inverse(len: usize) -> Arc<dyn Fft<f32>> {
    #[cfg(target_arch = "x86_64")]
    if let Some(plan) = wide::WideTransform::new(len, true) {
        return Arc::new(plan);
    }
    FftPlanner::new().plan_fft_inverse(len)
}

/// The transform from signals of `len` real numbers to the first half of their spectra.
#[inline(never)]
pub fn forward_real(len: usize) -> Arc<dyn RealToComplex<f32>> {
    RealFftPlanner::new().plan_fft_forward(len)
}

/// The transform from half spectra to signals of `len` real numbers, multiplied by `len`.
#[inline(never)]
pub fn inverse_real(len: usize) -> Arc<dyn ComplexToReal<f32>> {
    RealFftPlanner::new().plan_fft_inverse(len)
}

/// As [`forward`], in f64.
#[inline(never)]
pub fn forward_wide(len: usize) -> Arc<dyn Fft<f64>> {
    FftPlanner::new().plan_fft_forward(len)
}

/// As [`inverse`], in f64.
#[inline(never)]
pub fn inverse_wide(len: usize) -> Arc<dyn Fft<f64>> {
    FftPlanner::new().plan_fft_inverse(len)
}
