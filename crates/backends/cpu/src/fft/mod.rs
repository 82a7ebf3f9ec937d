//! Fourier transforms of contiguous lines: rustfft's and realfft's plans, kept from call to call, with the lines spread
//! over the team.
//!
//! The libraries look for vector instructions by themselves. Lines are handed out in runs of about `RUN_ELEMENTS`, so that
//! what a transform has just written is still in the cache when it is scaled.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use panoply_core::Complex64;
use panoply_core::op::signal::half_spectrum_len;
use panoply_fourier::{ComplexToReal, Fft, FftError, RealToComplex};

use crate::parts::Parts;
use crate::team::Team;

#[cfg(test)]
mod tests;

/// Plans that are kept; beyond it all are made anew.
const PLANS_MAX: usize = 256;
/// About so many elements are transformed between two looks at the counter of lines.
const RUN_ELEMENTS: usize = 8192;

const ZERO: Complex64 = Complex64 { re: 0.0, im: 0.0 };

/// Plans by length, and scratch memory. An engine owns one; once warm, a transform of a length seen before allocates
/// nothing.
#[derive(Default)]
pub struct FftWorkspace {
    plans: HashMap<(usize, Kind), Plan>,
    scratch: Vec<Complex64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Forward,
    Inverse,
    RealForward,
    RealInverse,
}

#[derive(Clone)]
enum Plan {
    Complex(Arc<dyn Fft<f32>>),
    FromReal(Arc<dyn RealToComplex<f32>>),
    ToReal(Arc<dyn ComplexToReal<f32>>),
}

impl FftWorkspace {
    /// Writes the spectra of lines of `len` complex numbers.
    pub fn forward(&mut self, team: &Team, len: usize, input: &[Complex64], output: &mut [Complex64]) {
        self.complex(team, len, Kind::Forward, input, output);
    }

    /// Writes the signals of spectra of `len` complex numbers, divided by `len`.
    pub fn inverse(&mut self, team: &Team, len: usize, input: &[Complex64], output: &mut [Complex64]) {
        self.complex(team, len, Kind::Inverse, input, output);
    }

    fn complex(&mut self, team: &Team, len: usize, kind: Kind, input: &[Complex64], output: &mut [Complex64]) {
        assert_eq!(input.len(), output.len(), "a complex transform keeps the number of elements");
        let Some(lines) = input.len().checked_div(len) else { return };
        let Plan::Complex(plan) = self.plan(len, kind) else { return };
        let factor = 1.0 / len as f32;
        let output = Parts::new(output);
        self.run(team, Work { lines, len, scratch: plan.get_immutable_scratch_len() }, &|run, scratch| {
            let places = run.start * len..run.end * len;
            // SAFETY: each run of lines is handed out once.
            let target = unsafe { output.range(places.clone()) };
            plan.process_immutable_with_scratch(&input[places], target, scratch);
            if kind == Kind::Inverse && len > 1 {
                target.iter_mut().for_each(|value| *value *= factor);
            }
        });
    }

    /// Writes half the spectrum of each line of `len` real numbers.
    pub fn forward_real(&mut self, team: &Team, len: usize, input: &[f32], output: &mut [Complex64]) {
        let half = half_spectrum_len(len);
        let Some(lines) = input.len().checked_div(len) else { return };
        assert_eq!(output.len(), lines * half, "half a spectrum for each line");
        let Plan::FromReal(plan) = self.plan(len, Kind::RealForward) else { return };
        let output = Parts::new(output);
        self.run(team, Work { lines, len, scratch: len.div_ceil(2) + plan.get_scratch_len() }, &|run, scratch| {
            let (copy, scratch) = scratch.split_at_mut(len.div_ceil(2));
            let copy = &mut bytemuck::cast_slice_mut::<Complex64, f32>(copy)[..len];
            for line in run {
                // The library destroys its input.
                copy.copy_from_slice(&input[line * len..][..len]);
                // SAFETY: each line is handed out once.
                let target = unsafe { output.range(line * half..(line + 1) * half) };
                sizes_agree(plan.process_with_scratch(copy, target, scratch));
            }
        });
    }

    /// Writes `len` real numbers, divided by `len`, for each half of a spectrum.
    pub fn inverse_real(&mut self, team: &Team, len: usize, input: &[Complex64], output: &mut [f32]) {
        let half = half_spectrum_len(len);
        let Some(lines) = output.len().checked_div(len) else { return };
        assert_eq!(input.len(), lines * half, "half a spectrum for each line");
        let Plan::ToReal(plan) = self.plan(len, Kind::RealInverse) else { return };
        let factor = 1.0 / len as f32;
        let output = Parts::new(output);
        self.run(team, Work { lines, len, scratch: half + plan.get_scratch_len() }, &|run, scratch| {
            let (copy, scratch) = scratch.split_at_mut(half);
            for line in run {
                for (copied, value) in copy.iter_mut().zip(&input[line * half..][..half]) {
                    *copied = value * factor;
                }
                copy[0].im = 0.0;
                if len.is_multiple_of(2) {
                    copy[half - 1].im = 0.0;
                }
                // SAFETY: each line is handed out once.
                let target = unsafe { output.range(line * len..(line + 1) * len) };
                sizes_agree(plan.process_with_scratch(copy, target, scratch));
            }
        });
    }

    fn plan(&mut self, len: usize, kind: Kind) -> Plan {
        if self.plans.len() >= PLANS_MAX && !self.plans.contains_key(&(len, kind)) {
            self.plans.clear();
        }
        let plan = self.plans.entry((len, kind)).or_insert_with(|| match kind {
            Kind::Forward => Plan::Complex(panoply_fourier::forward(len)),
            Kind::Inverse => Plan::Complex(panoply_fourier::inverse(len)),
            Kind::RealForward => Plan::FromReal(panoply_fourier::forward_real(len)),
            Kind::RealInverse => Plan::ToReal(panoply_fourier::inverse_real(len)),
        });
        plan.clone()
    }

    /// Hands out runs of lines until none is left, each thread with scratch of its own.
    fn run(&mut self, team: &Team, work: Work, body: &(dyn Fn(Range<usize>, &mut [Complex64]) + Sync)) {
        let run_lines = (RUN_ELEMENTS / work.len.max(1)).clamp(1, work.lines.max(1));
        let tasks = team.threads().min(work.lines.div_ceil(run_lines));
        if self.scratch.len() < tasks * work.scratch {
            self.scratch.resize(tasks * work.scratch, ZERO);
        }
        let scratch = Parts::new(&mut self.scratch);
        let next = AtomicUsize::new(0);
        team.run(tasks, &|task| {
            // SAFETY: each task has a number of its own.
            let scratch = unsafe { scratch.range(task * work.scratch..(task + 1) * work.scratch) };
            loop {
                let start = next.fetch_add(run_lines, Ordering::Relaxed);
                if start >= work.lines {
                    break;
                }
                body(start..work.lines.min(start + run_lines), scratch);
            }
        });
    }
}

/// How many lines there are, how long they are, and how much scratch each thread needs.
#[derive(Clone, Copy)]
struct Work {
    lines: usize,
    len: usize,
    scratch: usize,
}

/// The library answers with an error where a slice is too short, which would be a mistake in this file.
fn sizes_agree(done: Result<(), FftError>) {
    debug_assert!(done.is_ok(), "{done:?}");
}
