//! The kernels against plain loops, at every level of vector instructions that this CPU has.

#![allow(unsafe_code)] // A transposition that wants AVX-512.
#![allow(clippy::unwrap_used)] // A test reports failures by panicking.

mod activation;
mod gemm;
mod halves;
mod strips;
#[cfg(target_arch = "x86_64")]
mod transpose;
