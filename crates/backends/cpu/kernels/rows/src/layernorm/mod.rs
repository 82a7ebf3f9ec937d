//! Layer normalisation over contiguous rows:
//! `(x - mean) / sqrt(variance + epsilon) * weight + bias`, and its variant without the mean, RMS
//! normalisation: `x / sqrt(mean of x² + epsilon) * weight + bias`.
//!
//! The mean is computed first, then the variance of the differences (the biased one, divided by the
//! row's length). Both are summed as in [`crate::reduce`]. f16 and bf16 are computed in f32 and
//! rounded once. A NaN or an infinity makes its whole row NaN (with the mean) or NaN and zero
//! (without). f32 rows with elements beyond 1e18 overflow.

use half::{bf16, f16};
use panoply_cpu_machine::compile_once;

use crate::extents::Extents;
use crate::lanes::{Kernel, Level, dispatch};
use crate::parts::DisjointSlice;
use crate::reduce::{ComputeFloat, Real, row_total, wide_total};
use crate::simd::Simd;
use crate::team::Team;

/// Elements whose squares are stored at a time.
const BLOCK: usize = 512;
/// Minimum elements of one task.
const GRAIN_ELEMENTS: usize = 1 << 14;

/// The parameters of a normalisation.
#[derive(Clone, Copy, Debug)]
pub struct Norm<'a, T> {
    /// Added to the variance, so that constant rows do not divide by zero.
    pub epsilon: f64,
    /// Whether the mean is subtracted; if not, this is RMS normalisation.
    pub centred: bool,
    /// One factor for each element of a row.
    pub weight: Option<&'a [T]>,
    /// One summand for each element of a row.
    pub bias: Option<&'a [T]>,
}

/// An element type that can be normalised: every float.
pub trait Normal: Real<Wide: Arithmetic> + LayerNormKernels {}
impl<T: Real<Wide: Arithmetic> + LayerNormKernels> Normal for T {}

/// The arithmetic that normalisation needs.
pub trait Arithmetic: ComputeFloat + std::ops::Sub<Output = Self> + std::ops::Mul<Output = Self> {}
impl<W: ComputeFloat + std::ops::Sub<Output = W> + std::ops::Mul<Output = W>> Arithmetic for W {}

/// Normalises every row of `len` elements. Weight and bias must have `len` elements if they are
/// given.
pub fn layer_norm<T: Normal>(simd: Simd, team: &Team, input: &[T], len: usize, norm: Norm<'_, T>, out: &mut [T]) {
    T::normalise(simd, team, input, len, norm, out);
}

compile_once! {
    /// The normalisation of an element type.
    pub trait LayerNormKernels: Normal {
        fn normalise(simd: Simd, team: &Team, input: &[Self], len: usize, norm: Norm<'_, Self>, out: &mut [Self]) = normalise;
    } for f32, f16, bf16, f64
}

fn normalise<T: Normal>(simd: Simd, team: &Team, input: &[T], len: usize, norm: Norm<'_, T>, out: &mut [T]) {
    assert_eq!(input.len(), out.len());
    assert!(norm.weight.into_iter().chain(norm.bias).all(|parameters| parameters.len() == len));
    if input.is_empty() {
        return;
    }
    let extents = Extents::rows(input.len() / len, len);
    assert_eq!(extents.elements(), input.len());
    let shared = DisjointSlice::new(out);
    team.run_ranges(extents.outer, GRAIN_ELEMENTS.div_ceil(len), &|rows| {
        let range = rows.start * len..rows.end * len;
        // SAFETY: the ranges of one job do not overlap.
        let out = unsafe { shared.range(range.clone()) };
        dispatch(simd, LayerNormRows { input: &input[range], len, norm, out });
    });
}

struct LayerNormRows<'a, T> {
    input: &'a [T],
    len: usize,
    norm: Norm<'a, T>,
    out: &'a mut [T],
}

impl<T: Normal> Kernel for LayerNormRows<'_, T> {
    type Output = ();
    #[inline(always)]
    fn run<L: Level>(self) {
        let count = self.len as f64;
        for (row, out) in self.input.chunks_exact(self.len).zip(self.out.chunks_exact_mut(self.len)) {
            let mean = if self.norm.centred { row_total(row) / count } else { 0.0 };
            let mean = T::Wide::from_f64(mean);
            let variance = square_total(row, mean) / count;
            let factor = T::Wide::from_f64(1.0 / (variance + self.norm.epsilon).sqrt());
            write(row, mean, factor, self.norm, out);
        }
    }
}

/// The sum of the squared differences from the mean.
#[inline(always)]
fn square_total<T: Normal>(row: &[T], mean: T::Wide) -> f64 {
    let mut total = 0.0;
    let mut squares = [T::Wide::ZERO; BLOCK];
    for part in row.chunks(BLOCK) {
        for (square, element) in squares.iter_mut().zip(part) {
            let difference = element.widen() - mean;
            *square = difference * difference;
        }
        total += wide_total(&squares[..part.len()]);
    }
    total
}

#[inline(always)]
fn write<T: Normal>(row: &[T], mean: T::Wide, factor: T::Wide, norm: Norm<'_, T>, out: &mut [T]) {
    let normal = |element: &T| (element.widen() - mean) * factor;
    let line = out.iter_mut().zip(row);
    match (norm.weight, norm.bias) {
        (None, None) => line.for_each(|(out, element)| *out = T::narrow(normal(element))),
        (Some(weight), None) => {
            for ((out, element), weight) in line.zip(weight) {
                *out = T::narrow(normal(element) * weight.widen());
            }
        }
        (None, Some(bias)) => {
            for ((out, element), bias) in line.zip(bias) {
                *out = T::narrow(normal(element) + bias.widen());
            }
        }
        (Some(weight), Some(bias)) => {
            for ((out, element), (weight, bias)) in line.zip(weight.iter().zip(bias)) {
                *out = T::narrow(normal(element) * weight.widen() + bias.widen());
            }
        }
    }
}
