//! Elementary functions of f32 slices, with SIMD.
//!
//! Every function reads `input`, writes `output` (of the same length; a longer one is truncated)
//! and treats subnormal numbers, infinities and NaN as specified by IEEE 754 and
//! [`panoply_core::expr`]. Measured over all magnitudes against f64, the largest errors in units in
//! the last place are: `exp` 1, `log` 1, `tanh` 2, `sigmoid` 3, `erf` 3, `gelu` 7, `silu` 4, `sin`
//! 2, `cos` 2, and for `gelu_tanh` 5 or 2⁻²³ of `x`. (`silu` is within 2⁻¹⁴² if its value is below
//! 2⁻¹²⁰.) The functions are generic over [`Lanes`], so kernels that hold values in registers
//! (softmax, matmul epilogues) can call [`functions`] directly. A level above the CPU's own is
//! lowered to it.

pub mod functions;
pub mod lanes;
#[cfg(target_arch = "x86_64")]
pub mod x86;

use crate::simd::Simd;
use functions::Lanewise;
use lanes::Lanes;

macro_rules! slice_functions {
    ($($(#[$doc:meta])* $name:ident, $in_place:ident => $function:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(simd: Simd, input: &[f32], output: &mut [f32]) {
            apply::<functions::$function>(simd, input, output);
        }

        #[doc = concat!("[`", stringify!($name), "`] of every element, in its place.")]
        pub fn $in_place(simd: Simd, values: &mut [f32]) {
            apply_in_place::<functions::$function>(simd, values);
        }
    )*};
}

slice_functions! {
    /// `e` to the power of each element.
    exp, exp_in_place => Exp;
    /// The natural logarithm of each element.
    log, log_in_place => Log;
    /// The hyperbolic tangent of each element.
    tanh, tanh_in_place => Tanh;
    /// `1 / (1 + exp(-x))` of each element.
    sigmoid, sigmoid_in_place => Sigmoid;
    /// The error function of each element.
    erf, erf_in_place => Erf;
    /// `x · Φ(x)` of each element, by the error function.
    gelu, gelu_in_place => Gelu;
    /// The approximation of `gelu` by the hyperbolic tangent, of each element.
    gelu_tanh, gelu_tanh_in_place => GeluTanh;
    /// `x · sigmoid(x)` of each element.
    silu, silu_in_place => Silu;
    /// The sine of each element.
    sin, sin_in_place => Sin;
    /// The cosine of each element.
    cos, cos_in_place => Cos;
}

fn apply<F: Lanewise>(simd: Simd, input: &[f32], output: &mut [f32]) {
    let len = input.len().min(output.len());
    // SAFETY: both slices have `len` elements, and the level is at most what this CPU has.
    unsafe { run::<F>(simd.min(Simd::detect()), input.as_ptr(), output.as_mut_ptr(), len) }
}

fn apply_in_place<F: Lanewise>(simd: Simd, values: &mut [f32]) {
    let (len, values) = (values.len(), values.as_mut_ptr());
    // SAFETY: as in `apply`; `run` allows its two pointers to be equal.
    unsafe { run::<F>(simd.min(Simd::detect()), values, values, len) }
}

/// Applies `F` to `len` elements.
///
/// # Safety
/// `input` and `output` are valid for `len` elements and either equal or disjoint; the CPU has the
/// level `simd`.
unsafe fn run<F: Lanewise>(simd: Simd, input: *const f32, output: *mut f32, len: usize) {
    match simd {
        // SAFETY: the caller's contract.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx512 => unsafe { x86::run_avx512::<F>(input, output, len) },
        // SAFETY: the caller's contract.
        #[cfg(target_arch = "x86_64")]
        Simd::Avx2 => unsafe { x86::run_avx2::<F>(input, output, len) },
        // SAFETY: the caller's contract.
        _ => unsafe { run_lanes::<F, f32>(input, output, len) },
    }
}

/// The loop over whole vectors; the rest is processed in one padded vector.
///
/// # Safety
/// As for [`run`], inside a function that has the target features of `L`.
#[inline(always)]
pub unsafe fn run_lanes<F: Lanewise, L: Lanes>(input: *const f32, output: *mut f32, len: usize) {
    let whole = len - len % L::LEN;
    let mut index = 0;
    while index < whole {
        // SAFETY: `index + L::LEN <= len`.
        unsafe { F::call(L::load(input.add(index))).store(output.add(index)) };
        index += L::LEN;
    }
    if index < len {
        let mut padded = [1.0_f32; lanes::LANES_MAX];
        // SAFETY: fewer than `L::LEN <= LANES_MAX` elements are left at `index`.
        unsafe {
            std::ptr::copy_nonoverlapping(input.add(index), padded.as_mut_ptr(), len - index);
            F::call(L::load(padded.as_ptr())).store(padded.as_mut_ptr());
            std::ptr::copy_nonoverlapping(padded.as_ptr(), output.add(index), len - index);
        }
    }
}
