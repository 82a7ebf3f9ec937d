//! Normalisation of images: `(x · scale - mean[c]) / std[c]` for each channel `c`, fused with the
//! conversion of element types.
//!
//! A tensor is `[outer, channels, inner]`: NCHW has `inner = h·w`, NHWC has `inner = 1`. The
//! formula is computed as `x · factor[c] + shift[c]` in `f32`, with `factor = scale / std` and
//! `shift = -mean / std` computed in `f64`. NaN and infinities follow IEEE arithmetic; a `std` of
//! zero gives infinities or NaN.

use crate::levels::simd_levels;
use crate::parts::DisjointSlice;
use crate::pixel::Pixel;
use crate::simd::Simd;
use crate::team::Team;

/// Minimum output elements for which another thread is worth waking.
const TASK_ELEMENTS_MIN: usize = 32 * 1024;
/// Elements processed at a time; the intermediate rows stay in the first-level cache.
const CHUNK: usize = 1024;
/// Minimum run length of one channel. Shorter runs are expanded into a table together with their
/// neighbours.
const RUN_MIN: usize = 64;

/// The linear function of each channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Affine {
    factor: Vec<f32>,
    shift: Vec<f32>,
}

impl Affine {
    /// Computes the coefficients. `mean` and `std` have one entry for each channel; the longer one
    /// is truncated.
    pub fn new(scale: f32, mean: &[f32], std: &[f32]) -> Affine {
        let each = || mean.iter().zip(std).map(|(mean, std)| (f64::from(*mean), f64::from(*std)));
        Affine {
            factor: each().map(|(_, std)| (f64::from(scale) / std) as f32).collect(),
            shift: each().map(|(mean, std)| (-mean / std) as f32).collect(),
        }
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.factor.len()
    }
}

/// Normalises `input`, whose channels are `inner` elements long, into `output`.
///
/// # Panics
/// If the slices differ in length, or the length is not a multiple of `channels · inner`.
pub fn normalize<I: Pixel, O: Pixel>(
    simd: Simd,
    team: &Team,
    affine: &Affine,
    inner: usize,
    input: &[I],
    output: &mut [O],
) {
    assert_eq!(input.len(), output.len(), "input and output must have the same length");
    if input.is_empty() {
        return;
    }
    let period = affine.channels() * inner;
    assert!(period > 0 && input.len().is_multiple_of(period), "the length must be a whole number of images");
    let plan = Coefficients::new(affine, inner);
    let parts = DisjointSlice::new(output);
    team.run_ranges(input.len(), TASK_ELEMENTS_MIN, &|range| {
        // SAFETY: the ranges are disjoint.
        let output = unsafe { parts.range(range.clone()) };
        plan.run(simd, range.start, &input[range], output);
    });
}

/// The coefficients in the order in which the elements need them.
enum Coefficients<'a> {
    /// Channels are long: each run has one factor and one shift.
    Runs { affine: &'a Affine, inner: usize },
    /// Channels are short: coefficients for every element of some whole periods.
    Table { factor: Vec<f32>, shift: Vec<f32>, period: usize },
}

impl Coefficients<'_> {
    fn new(affine: &Affine, inner: usize) -> Coefficients<'_> {
        if inner >= RUN_MIN || affine.channels() == 1 {
            return Coefficients::Runs { affine, inner };
        }
        let period = affine.channels() * inner;
        let periods = CHUNK.div_ceil(period) + 1;
        let lay_out = |figures: &[f32]| {
            let one: Vec<f32> = figures.iter().flat_map(|figure| std::iter::repeat_n(*figure, inner)).collect();
            one.repeat(periods)
        };
        Coefficients::Table { factor: lay_out(&affine.factor), shift: lay_out(&affine.shift), period }
    }

    /// Processes the elements from `start` on, in chunks.
    fn run<I: Pixel, O: Pixel>(&self, simd: Simd, start: usize, input: &[I], output: &mut [O]) {
        let (mut wide, mut result) = ([0.0; CHUNK], [0.0; CHUNK]);
        let mut done = 0;
        while done < input.len() {
            let at = start + done;
            let len = CHUNK.min(input.len() - done).min(self.run_left(at));
            let from = &input[done..done + len];
            let wide = match I::as_f32(from) {
                Some(from) => from,
                None => {
                    I::widen(simd, from, &mut wide[..len]);
                    &wide[..len]
                }
            };
            let to = &mut output[done..done + len];
            match O::as_f32_mut(to) {
                Some(to) => self.apply(simd, at, wide, to),
                None => {
                    self.apply(simd, at, wide, &mut result[..len]);
                    O::narrow(simd, &result[..len], to);
                }
            }
            done += len;
        }
    }

    /// The number of elements from `at` on that can be processed at once.
    fn run_left(&self, at: usize) -> usize {
        match self {
            Coefficients::Runs { affine, inner } if affine.channels() > 1 => inner - at % inner,
            _ => CHUNK,
        }
    }

    fn apply(&self, simd: Simd, at: usize, from: &[f32], to: &mut [f32]) {
        match self {
            Coefficients::Runs { affine, inner } => {
                let channel = at / inner % affine.channels();
                apply_run(simd, from, affine.factor[channel], affine.shift[channel], to);
            }
            Coefficients::Table { factor, shift, period } => {
                let first = at % period;
                apply_table(simd, from, &factor[first..first + from.len()], &shift[first..first + from.len()], to);
            }
        }
    }
}

simd_levels! {
    fn apply_run(from: &[f32], factor: f32, shift: f32, to: &mut [f32]) {
        from.iter().zip(to).for_each(|(from, to)| *to = from * factor + shift);
    }
}

simd_levels! {
    fn apply_table(from: &[f32], factor: &[f32], shift: &[f32], to: &mut [f32]) {
        for (((from, factor), shift), to) in from.iter().zip(factor).zip(shift).zip(to) {
            *to = from * factor + shift;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::{bf16, f16};

    fn check<I: Pixel, O: Pixel>(relative: f32) {
        let team = Team::new(2);
        for (outer, channels, inner) in
            [(1, 1, 1), (2, 3, 1), (3, 3, 64), (2, 5, 63), (1, 1, 5000), (700, 3, 1), (1, 2000, 3)]
                .into_iter()
                .chain([(2, 3, 20_011), (40_000, 3, 1)])
        {
            let mean: Vec<f32> = (0..channels).map(|c| 0.3 + 0.01 * c as f32).collect();
            let std: Vec<f32> = (0..channels).map(|c| 0.2 + 0.02 * c as f32).collect();
            let len = outer * channels * inner;
            let wide: Vec<f32> = (0..len).map(|index| ((index * 7919) % 256) as f32).collect();
            let mut input = vec![I::default(); len];
            I::narrow(Simd::Scalar, &wide, &mut input);
            for simd in Simd::available() {
                let mut output = vec![O::default(); len];
                normalize(simd, &team, &Affine::new(1.0 / 255.0, &mean, &std), inner, &input, &mut output);
                let mut got = vec![0.0; len];
                O::widen(Simd::Scalar, &output, &mut got);
                for (index, got) in got.iter().enumerate() {
                    let channel = index / inner % channels;
                    let expected = (wide[index] / 255.0 - mean[channel]) / std[channel];
                    assert!((got - expected).abs() <= relative * expected.abs().max(1.0), "{index} {got} {expected}");
                }
            }
        }
    }

    #[test]
    fn every_pair_of_types_agrees_with_the_formula() {
        check::<u8, f32>(2e-6);
        check::<u8, f16>(1e-3);
        check::<u8, bf16>(8e-3);
        check::<f32, f32>(2e-6);
        check::<f16, f32>(2e-6);
        check::<bf16, bf16>(8e-3);
    }

    #[test]
    fn not_a_number_stays_in_its_place_and_empty_is_fine() {
        let affine = Affine::new(1.0, &[1.0, 2.0], &[2.0, 0.0]);
        let mut output = [0.0_f32; 4];
        normalize(Simd::detect(), &Team::single(), &affine, 1, &[3.0, 3.0, f32::NAN, 2.0], &mut output);
        assert_eq!(output[0], 1.0);
        assert!(output[2].is_nan() && output[1..].iter().all(|value| !value.is_finite()));
        normalize::<u8, f32>(Simd::detect(), &Team::single(), &affine, 0, &[], &mut []);
    }
}
