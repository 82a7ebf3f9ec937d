//! Fourier transforms of contiguous lines, with rustfft's and realfft's plans cached between calls,
//! and the lines split among the team.
//!
//! The libraries select vector instructions by themselves. Lines are assigned in runs of about
//! `RUN_ELEMENTS`, so that a transform's output is still in the cache when it is scaled.
//!
//! Plans and scratch are bounded in number and in bytes; [`FftWorkspace::bytes`] returns their
//! size. If there is nothing to transform, no plan is made, regardless of the length.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use panoply_core::op::signal::half_spectrum_len;
use panoply_core::{Complex64, Error, Result};
use panoply_cpu_fourier::{ComplexToReal, Fft, FftError, RealToComplex};

use crate::parts::DisjointSlice;
use crate::team::Team;

#[cfg(test)]
mod tests;
mod wide;

pub use wide::Pair;

/// Maximum number of cached plans, and their maximum bytes. If either is exceeded, the cache is
/// cleared.
const PLANS_MAX: usize = 256;
const PLAN_BYTES_MAX: usize = 64 << 20;
/// Maximum bytes of scratch that are kept from one op to the next.
const SCRATCH_BYTES_MAX: usize = 64 << 20;
/// Minimum bytes of a plan from which memory is reserved as a test before the library allocates it.
const CHECKED_BYTES_MIN: usize = 1 << 20;
/// Approximate number of elements that a thread transforms before it claims more lines.
const RUN_ELEMENTS: usize = 8192;

const ZERO: Complex64 = Complex64 { re: 0.0, im: 0.0 };

/// Plans by length, and scratch memory. Each engine owns one workspace. A transform whose plan is
/// cached allocates nothing.
#[derive(Default)]
pub struct FftWorkspace {
    plans: HashMap<(usize, Kind), FftPlan>,
    /// Estimated bytes of all cached plans.
    plan_bytes: usize,
    scratch: Vec<Complex64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Forward,
    Inverse,
    RealForward,
    RealInverse,
    WideForward,
    WideInverse,
}

#[derive(Clone)]
enum FftPlan {
    Wide(Arc<dyn Fft<f64>>),
    Complex(Arc<dyn Fft<f32>>),
    FromReal(Arc<dyn RealToComplex<f32>>),
    ToReal(Arc<dyn ComplexToReal<f32>>),
}

impl FftWorkspace {
    /// Writes the spectra of lines of `len` complex numbers.
    pub fn forward(&mut self, team: &Team, len: usize, input: &[Complex64], output: &mut [Complex64]) -> Result<()> {
        self.complex(team, len, Kind::Forward, input, output)
    }

    /// Writes the signals of spectra of `len` complex numbers, divided by `len`.
    pub fn inverse(&mut self, team: &Team, len: usize, input: &[Complex64], output: &mut [Complex64]) -> Result<()> {
        self.complex(team, len, Kind::Inverse, input, output)
    }

    /// Estimated bytes of plans and scratch.
    pub fn bytes(&self) -> usize {
        self.plan_bytes + self.scratch.capacity() * size_of::<Complex64>()
    }

    fn complex(
        &mut self,
        team: &Team,
        len: usize,
        kind: Kind,
        input: &[Complex64],
        output: &mut [Complex64],
    ) -> Result<()> {
        assert_eq!(input.len(), output.len(), "a complex transform keeps the number of elements");
        let Some(lines) = lines(input.len(), len) else { return Ok(()) };
        let FftPlan::Complex(plan) = self.plan(len, kind)? else { return Ok(()) };
        let factor = 1.0 / len as f32;
        let output = DisjointSlice::new(output);
        self.run(team, FftLines { lines, len, scratch: plan.get_immutable_scratch_len() }, &|run, scratch| {
            let places = run.start * len..run.end * len;
            // SAFETY: each run of lines is claimed once.
            let target = unsafe { output.range(places.clone()) };
            plan.process_immutable_with_scratch(&input[places], target, scratch);
            if kind == Kind::Inverse && len > 1 {
                target.iter_mut().for_each(|value| *value *= factor);
            }
        })
    }

    /// Writes half the spectrum of each line of `len` real numbers.
    pub fn forward_real(&mut self, team: &Team, len: usize, input: &[f32], output: &mut [Complex64]) -> Result<()> {
        let half = half_spectrum_len(len);
        let Some(lines) = lines(input.len(), len) else { return Ok(()) };
        assert_eq!(output.len(), lines * half, "half a spectrum for each line");
        let FftPlan::FromReal(plan) = self.plan(len, Kind::RealForward)? else { return Ok(()) };
        let output = DisjointSlice::new(output);
        self.run(team, FftLines { lines, len, scratch: len.div_ceil(2) + plan.get_scratch_len() }, &|run, scratch| {
            let (copy, scratch) = scratch.split_at_mut(len.div_ceil(2));
            let copy = &mut bytemuck::cast_slice_mut::<Complex64, f32>(copy)[..len];
            for line in run {
                // The library destroys its input.
                copy.copy_from_slice(&input[line * len..][..len]);
                // SAFETY: each line is claimed once.
                let target = unsafe { output.range(line * half..(line + 1) * half) };
                sizes_agree(plan.process_with_scratch(copy, target, scratch));
            }
        })
    }

    /// Writes `len` real numbers, divided by `len`, for each half of a spectrum.
    pub fn inverse_real(&mut self, team: &Team, len: usize, input: &[Complex64], output: &mut [f32]) -> Result<()> {
        let half = half_spectrum_len(len);
        let Some(lines) = lines(output.len(), len) else { return Ok(()) };
        assert_eq!(input.len(), lines * half, "half a spectrum for each line");
        let FftPlan::ToReal(plan) = self.plan(len, Kind::RealInverse)? else { return Ok(()) };
        let factor = 1.0 / len as f32;
        let output = DisjointSlice::new(output);
        self.run(team, FftLines { lines, len, scratch: half + plan.get_scratch_len() }, &|run, scratch| {
            let (copy, scratch) = scratch.split_at_mut(half);
            for line in run {
                for (copied, value) in copy.iter_mut().zip(&input[line * half..][..half]) {
                    *copied = value * factor;
                }
                copy[0].im = 0.0;
                if len.is_multiple_of(2) {
                    copy[half - 1].im = 0.0;
                }
                // SAFETY: each line is claimed once.
                let target = unsafe { output.range(line * len..(line + 1) * len) };
                sizes_agree(plan.process_with_scratch(copy, target, scratch));
            }
        })
    }

    fn plan(&mut self, len: usize, kind: Kind) -> Result<FftPlan> {
        if let Some(plan) = self.plans.get(&(len, kind)) {
            return Ok(plan.clone());
        }
        let bytes = plan_bytes(len, kind);
        if bytes >= CHECKED_BYTES_MIN {
            let room = Vec::<u8>::new().try_reserve_exact(bytes);
            room.map_err(|_| out_of_memory(bytes))?;
        }
        let plan = match kind {
            Kind::Forward => FftPlan::Complex(panoply_cpu_fourier::forward(len)),
            Kind::Inverse => FftPlan::Complex(panoply_cpu_fourier::inverse(len)),
            Kind::RealForward => FftPlan::FromReal(panoply_cpu_fourier::forward_real(len)),
            Kind::RealInverse => FftPlan::ToReal(panoply_cpu_fourier::inverse_real(len)),
            Kind::WideForward => FftPlan::Wide(panoply_cpu_fourier::forward_wide(len)),
            Kind::WideInverse => FftPlan::Wide(panoply_cpu_fourier::inverse_wide(len)),
        };
        if self.plans.len() >= PLANS_MAX || self.plan_bytes.saturating_add(bytes) > PLAN_BYTES_MAX {
            self.plans.clear();
            self.plan_bytes = 0;
        }
        // A plan that exceeds the limit by itself is made for each op, which takes far longer than
        // making the plan.
        if bytes <= PLAN_BYTES_MAX {
            self.plan_bytes += bytes;
            self.plans.insert((len, kind), plan.clone());
        }
        Ok(plan)
    }

    /// Assigns runs of lines until none is left. Each thread has its own scratch.
    fn run(
        &mut self,
        team: &Team,
        work: FftLines,
        body: &(dyn Fn(Range<usize>, &mut [Complex64]) + Sync),
    ) -> Result<()> {
        let run_lines = (RUN_ELEMENTS / work.len.max(1)).clamp(1, work.lines.max(1));
        let tasks = team.threads().min(work.lines.div_ceil(run_lines));
        let wanted = tasks.saturating_mul(work.scratch);
        if let Some(more) = wanted.checked_sub(self.scratch.len()) {
            let bytes = wanted.saturating_mul(size_of::<Complex64>());
            self.scratch.try_reserve_exact(more).map_err(|_| out_of_memory(bytes))?;
            self.scratch.resize(wanted, ZERO);
        }
        let scratch = DisjointSlice::new(&mut self.scratch);
        let next = AtomicUsize::new(0);
        team.run(tasks, &|task| {
            // SAFETY: each task has its own index.
            let scratch = unsafe { scratch.range(task * work.scratch..(task + 1) * work.scratch) };
            loop {
                let start = next.fetch_add(run_lines, Ordering::Relaxed);
                if start >= work.lines {
                    break;
                }
                body(start..work.lines.min(start + run_lines), scratch);
            }
        });
        if self.scratch.capacity() * size_of::<Complex64>() > SCRATCH_BYTES_MAX {
            self.scratch = Vec::new();
        }
        Ok(())
    }
}

/// Number of lines of length `len`; `None` if there is nothing to transform.
fn lines(elements: usize, len: usize) -> Option<usize> {
    elements.checked_div(len).filter(|lines| *lines > 0)
}

/// Estimated bytes of a plan, which the libraries do not report. A length of small factors has its
/// twiddles once over all stages, and again in each stage's own order. Any other length is a
/// convolution of more than twice the length, with its own transform.
fn plan_bytes(len: usize, kind: Kind) -> usize {
    let complex_len = match kind {
        Kind::Forward | Kind::Inverse => len,
        Kind::RealForward | Kind::RealInverse if len.is_multiple_of(2) => len,
        Kind::RealForward | Kind::RealInverse | Kind::WideForward | Kind::WideInverse => len.saturating_mul(2),
    };
    let mut rest = len.max(1);
    for factor in [2, 3, 5, 7, 11] {
        while rest.is_multiple_of(factor) {
            rest /= factor;
        }
    }
    let copies = if rest == 1 { 2 } else { 6 };
    complex_len.saturating_mul(copies * size_of::<Complex64>()).saturating_add(1024)
}

fn out_of_memory(bytes: usize) -> Error {
    Error::OutOfMemory { place: "the host".to_owned(), asked: bytes as u64, free: 0, largest: 0 }
}

/// Number of lines, their length, and the scratch of each thread.
#[derive(Clone, Copy)]
struct FftLines {
    lines: usize,
    len: usize,
    scratch: usize,
}

/// The library returns an error if a slice is too short, which would be a bug in this file.
fn sizes_agree(done: std::result::Result<(), FftError>) {
    debug_assert!(done.is_ok(), "{done:?}");
}
