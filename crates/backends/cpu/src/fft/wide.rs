//! Transforms in f64. Real signals are transformed as complex ones, since accuracy matters here
//! rather than speed.

use num_complex::Complex;
use panoply_core::Result;
use panoply_core::op::signal::half_spectrum_len;

use super::{FftLines, FftPlan, FftWorkspace, Kind, lines};
use crate::parts::DisjointSlice;
use crate::team::Team;

/// A complex number in f64.
pub type Pair = Complex<f64>;

impl FftWorkspace {
    /// Writes the spectra of lines of `len` complex numbers.
    pub fn forward_wide(&mut self, team: &Team, len: usize, input: &[Pair], output: &mut [Pair]) -> Result<()> {
        let load = |at: usize, line: &mut [Pair]| line.copy_from_slice(&input[at * len..(at + 1) * len]);
        self.wide(team, (len, len), Kind::WideForward, &load, output, &|from, to| to.copy_from_slice(from))
    }

    /// Writes the signals of spectra of `len` complex numbers, divided by `len`.
    pub fn inverse_wide(&mut self, team: &Team, len: usize, input: &[Pair], output: &mut [Pair]) -> Result<()> {
        let load = |at: usize, line: &mut [Pair]| line.copy_from_slice(&input[at * len..(at + 1) * len]);
        let scaled = |from: &[Pair], to: &mut [Pair]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from / len as f64);
        };
        self.wide(team, (len, len), Kind::WideInverse, &load, output, &scaled)
    }

    /// Writes half the spectrum of each line of `len` real numbers.
    pub fn forward_real_wide(&mut self, team: &Team, len: usize, input: &[f64], output: &mut [Pair]) -> Result<()> {
        let load = |at: usize, line: &mut [Pair]| {
            line.iter_mut().zip(&input[at * len..(at + 1) * len]).for_each(|(to, from)| *to = Pair::new(*from, 0.0));
        };
        let half = half_spectrum_len(len);
        let store = |from: &[Pair], to: &mut [Pair]| to.copy_from_slice(&from[..half]);
        self.wide(team, (len, half), Kind::WideForward, &load, output, &store)
    }

    /// Writes `len` real numbers, divided by `len`, for each half of a spectrum.
    pub fn inverse_real_wide(&mut self, team: &Team, len: usize, input: &[Pair], output: &mut [f64]) -> Result<()> {
        let half = half_spectrum_len(len);
        let load = |at: usize, line: &mut [Pair]| {
            let own = &input[at * half..(at + 1) * half];
            line[..half].copy_from_slice(own);
            line[0].im = 0.0;
            if len.is_multiple_of(2) {
                line[len / 2].im = 0.0;
            }
            for k in half..len {
                line[k] = own[len - k].conj();
            }
        };
        let store = |from: &[Pair], to: &mut [f64]| {
            to.iter_mut().zip(from).for_each(|(to, from)| *to = from.re / len as f64);
        };
        self.wide(team, (len, len), Kind::WideInverse, &load, output, &store)
    }

    /// Transforms lines of `len` numbers that `load` provides; `store` writes `each` elements of
    /// the output for each line.
    fn wide<T: Send>(
        &mut self,
        team: &Team,
        (len, each): (usize, usize),
        kind: Kind,
        load: &(dyn Fn(usize, &mut [Pair]) + Sync),
        output: &mut [T],
        store: &(dyn Fn(&[Pair], &mut [T]) + Sync),
    ) -> Result<()> {
        let Some(lines) = lines(output.len(), each) else { return Ok(()) };
        let FftPlan::Wide(plan) = self.plan(len, kind)? else { return Ok(()) };
        let output = DisjointSlice::new(output);
        // The workspace's scratch is in f32 and cannot be used.
        self.run(team, FftLines { lines, len, scratch: 0 }, &|run, _| {
            let mut own = vec![Pair::default(); len + plan.get_inplace_scratch_len()];
            let (line, scratch) = own.split_at_mut(len);
            for at in run {
                load(at, line);
                plan.process_with_scratch(line, scratch);
                // SAFETY: each line is claimed once.
                store(line, unsafe { output.range(at * each..(at + 1) * each) });
            }
        })
    }
}
