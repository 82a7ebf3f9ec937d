//! Plans for Fourier transforms of f32 and f64, by rustfft and realfft.
//!
//! Both libraries are generic over the number type, so the crate that names their planners compiles all of their butterflies,
//! for every instruction set. This crate is the only one that does; others see trait objects. In the CPU backend they were
//! a fifth of all code, compiled once for the library and once more for its unit tests.
//!
//! The libraries know AVX2 at the most. Powers of two have transforms of their own where the CPU has AVX-512 (`wide`).
#![allow(unsafe_code)] // Vector instructions.

#[cfg(target_arch = "x86_64")]
mod wide;

use std::sync::Arc;

use realfft::RealFftPlanner;
pub use realfft::{ComplexToReal, FftError, RealToComplex};
pub use rustfft::Fft;
use rustfft::FftPlanner;

/// From signals of `len` complex numbers to their spectra.
#[inline(never)]
pub fn forward(len: usize) -> Arc<dyn Fft<f32>> {
    #[cfg(target_arch = "x86_64")]
    if let Some(plan) = wide::Wide::new(len, false) {
        return Arc::new(plan);
    }
    FftPlanner::new().plan_fft_forward(len)
}

/// From spectra of `len` complex numbers to the signals, multiplied by `len`.
#[inline(never)]
pub fn inverse(len: usize) -> Arc<dyn Fft<f32>> {
    #[cfg(target_arch = "x86_64")]
    if let Some(plan) = wide::Wide::new(len, true) {
        return Arc::new(plan);
    }
    FftPlanner::new().plan_fft_inverse(len)
}

/// From signals of `len` real numbers to half of their spectra.
#[inline(never)]
pub fn forward_real(len: usize) -> Arc<dyn RealToComplex<f32>> {
    RealFftPlanner::new().plan_fft_forward(len)
}

/// From half spectra to signals of `len` real numbers, multiplied by `len`.
#[inline(never)]
pub fn inverse_real(len: usize) -> Arc<dyn ComplexToReal<f32>> {
    RealFftPlanner::new().plan_fft_inverse(len)
}

/// As [`forward`], of numbers in f64.
#[inline(never)]
pub fn forward_wide(len: usize) -> Arc<dyn Fft<f64>> {
    FftPlanner::new().plan_fft_forward(len)
}

/// As [`inverse`], of numbers in f64.
#[inline(never)]
pub fn inverse_wide(len: usize) -> Arc<dyn Fft<f64>> {
    FftPlanner::new().plan_fft_inverse(len)
}
