//! Cosine transforms by complex Fourier transforms.

use std::f64::consts::{FRAC_1_SQRT_2, PI, SQRT_2};
use std::sync::Arc;

use num_complex::{Complex32, Complex64};
use panoply_core::op::signal::DctKind;
use panoply_cpu_fourier::Fft;

use crate::spectral::Plans;

/// A transform of lines of one length.
pub struct Cosine {
    kind: DctKind,
    len: usize,
    plan: Arc<dyn Fft<f32>>,
    /// Factors of the samples before the transform, and of the bins after it.
    before: Vec<Complex32>,
    behind: Vec<Complex32>,
    orthonormal: bool,
}

/// Scratch memory of one thread.
#[derive(Default)]
pub struct Scratch {
    line: Vec<Complex32>,
    work: Vec<Complex32>,
}

impl Cosine {
    /// A transform of lines of `len` samples. `len` is at least 2 for the first kind, and at least
    /// 1 for the others.
    pub fn new(plans: &mut Plans, kind: DctKind, orthonormal: bool, len: usize) -> Cosine {
        let turn = |turns: f64| Complex64::from_polar(1.0, -PI * turns);
        let n = len as f64;
        let narrow = |value: Complex64| Complex32::new(value.re as f32, value.im as f32);
        let scale = if orthonormal { (1.0 / (2.0 * n)).sqrt() } else { 1.0 };
        let (transform, before, behind): (_, Vec<Complex64>, Vec<Complex64>) = match kind {
            DctKind::One => (2 * (len - 1), Vec::new(), Vec::new()),
            DctKind::Two => (len, Vec::new(), (0..len).map(|k| 2.0 * turn(k as f64 / (2.0 * n))).collect()),
            DctKind::Three => (len, (0..len).map(|k| turn(-(k as f64) / (2.0 * n))).collect(), Vec::new()),
            DctKind::Four => {
                let before = (0..len).map(|j| turn(j as f64 / (2.0 * n))).collect();
                (2 * len, before, (0..len).map(|k| 2.0 * turn((2 * k + 1) as f64 / (4.0 * n))).collect())
            }
        };
        let behind = behind.into_iter().enumerate().map(|(k, weight)| {
            let first = if kind == DctKind::Two && orthonormal && k == 0 { FRAC_1_SQRT_2 } else { 1.0 };
            narrow(weight * scale * first)
        });
        let (forward, inverse) = plans.of(transform);
        Cosine {
            kind,
            len,
            plan: if kind == DctKind::Three { inverse } else { forward },
            before: before.into_iter().map(narrow).collect(),
            behind: behind.collect(),
            orthonormal,
        }
    }

    /// Transforms one line.
    pub fn transform(&self, input: &[f32], output: &mut [f32], scratch: &mut Scratch) {
        let (n, line) = (self.len, &mut scratch.line);
        line.clear();
        line.resize(self.plan.len(), Complex32::default());
        match self.kind {
            DctKind::One => {
                let ends = if self.orthonormal { SQRT_2 as f32 } else { 1.0 };
                line.iter_mut().zip(input).for_each(|(place, value)| place.re = *value);
                (line[0].re, line[n - 1].re) = (line[0].re * ends, line[n - 1].re * ends);
                (1..n - 1).for_each(|at| line[2 * (n - 1) - at] = line[at]);
            }
            // Even samples in order, then odd samples in reverse order.
            DctKind::Two => (0..n).for_each(|at| line[self.place(at)].re = input[at]),
            DctKind::Three => {
                let first = if self.orthonormal { SQRT_2 as f32 } else { 1.0 };
                line[0].re = input[0] * first;
                (1..n).for_each(|k| line[k] = self.before[k] * Complex32::new(input[k], -input[n - k]));
            }
            DctKind::Four => line.iter_mut().zip(input).zip(&self.before).for_each(|((place, value), turn)| {
                *place = turn * value;
            }),
        }
        scratch.work.resize(self.plan.get_inplace_scratch_len(), Complex32::default());
        self.plan.process_with_scratch(line, &mut scratch.work);
        match self.kind {
            DctKind::One => {
                let scale = if self.orthonormal { (0.5 / (n - 1) as f64).sqrt() as f32 } else { 1.0 };
                output.iter_mut().zip(line.iter()).for_each(|(out, bin)| *out = bin.re * scale);
                if self.orthonormal {
                    output[0] *= FRAC_1_SQRT_2 as f32;
                    output[n - 1] *= FRAC_1_SQRT_2 as f32;
                }
            }
            DctKind::Three => {
                let scale = if self.orthonormal { (0.5 / n as f64).sqrt() as f32 } else { 1.0 };
                output.iter_mut().enumerate().for_each(|(at, out)| *out = line[self.place(at)].re * scale);
            }
            DctKind::Two | DctKind::Four => {
                let weighed = line.iter().zip(&self.behind).map(|(bin, weight)| (bin * weight).re);
                output.iter_mut().zip(weighed).for_each(|(out, value)| *out = value);
            }
        }
    }

    /// The index of this sample in the complex line.
    fn place(&self, at: usize) -> usize {
        if at.is_multiple_of(2) { at / 2 } else { self.len - 1 - at / 2 }
    }
}
