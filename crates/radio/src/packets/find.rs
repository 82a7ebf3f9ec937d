//! Finds the beginnings of packets. The two halves of the preamble are correlated separately, so
//! that a carrier offset does little harm.

use num_complex::Complex32;
use panoply_core::op::signal::{Constellation, Convolve, Modulate};
use panoply_core::{Result, Tensor};

use super::{PREAMBLE_SYMBOLS, Runs, SYMBOL_SAMPLES, preamble};

const HALF: usize = PREAMBLE_SYMBOLS / 2;
/// Number of samples from one half of the preamble to the other.
const HALF_SAMPLES: usize = HALF * SYMBOL_SAMPLES;
/// The least share of a position's power that must come from the preamble.
const LIKENESS_MIN: f32 = 0.35;

/// The known symbols, prepared for a search.
pub(super) struct KnownSymbols {
    pub(super) points: Vec<Complex32>,
    halves: [Tensor; 2],
}

/// A position that looks like a preamble.
#[derive(Clone, Copy, Debug)]
pub(super) struct PreambleCandidate {
    /// The index of the first symbol's sample, and the fraction of a sample beyond it.
    pub(super) at: usize,
    pub(super) part: f64,
    /// The rotation from one symbol to the next, in radians.
    pub(super) turn: f64,
}

impl KnownSymbols {
    pub(super) fn new(runs: &mut impl Runs) -> Result<KnownSymbols> {
        let symbols = Tensor::from_slice(&preamble(), [PREAMBLE_SYMBOLS])?;
        let points = runs.run(Modulate::new(Constellation::Qpsk, &symbols))?.to_vec::<Complex32>()?;
        let spread = |half: &[Complex32]| {
            let mut spread = vec![Complex32::default(); HALF_SAMPLES];
            half.iter().zip(spread.iter_mut().step_by(SYMBOL_SAMPLES)).for_each(|(point, place)| *place = *point);
            Tensor::from_slice(&spread, [HALF_SAMPLES])
        };
        Ok(KnownSymbols { halves: [spread(&points[..HALF])?, spread(&points[HALF..])?], points })
    }

    /// The positions in `first..end` that are more like a preamble than their neighbours.
    pub(super) fn places(
        &self,
        runs: &mut impl Runs,
        filtered: &Tensor,
        (first, end): (usize, usize),
    ) -> Result<Vec<PreambleCandidate>> {
        let early = runs.run(Convolve::correlation(filtered, &self.halves[0]))?.to_vec::<Complex32>()?;
        let late = runs.run(Convolve::correlation(filtered, &self.halves[1]))?.to_vec::<Complex32>()?;
        let powers = power_sums(filtered.contiguous()?.as_slice::<Complex32>()?);
        let halves = |at: usize| (early[at + HALF_SAMPLES - 1], late[at + 2 * HALF_SAMPLES - 1]);
        let likeness = |at: usize| {
            let (a, b) = halves(at);
            let power = powers[at + 2 * HALF_SAMPLES] - powers[at];
            let sum = a.norm() + b.norm();
            // The power sum runs over every sample, of which one in four is a symbol.
            let expected = PREAMBLE_SYMBOLS as f64 * power / SYMBOL_SAMPLES as f64;
            if expected > 0.0 { (f64::from(sum).powi(2) / expected) as f32 } else { 0.0 }
        };
        let likely: Vec<f32> = (first..end).map(likeness).collect();
        let mut places = Vec::new();
        for (index, own) in likely.iter().enumerate().filter(|(_, own)| **own >= LIKENESS_MIN) {
            let near = &likely[index.saturating_sub(HALF_SAMPLES)..likely.len().min(index + HALF_SAMPLES)];
            if near.iter().any(|other| other > own) {
                continue;
            }
            let at = first + index;
            let (a, b) = halves(at);
            let size = |at: usize| f64::from(halves(at).0.norm() + halves(at).1.norm());
            let part = if at > 0 { summit(size(at - 1), size(at), size(at + 1)) } else { 0.0 };
            places.push(PreambleCandidate { at, part, turn: f64::from((b * a.conj()).arg()) / HALF as f64 });
        }
        Ok(places)
    }
}

/// The offset from -0.5 to 0.5 at which a parabola through three neighbouring values has its
/// maximum.
fn summit(before: f64, now: f64, behind: f64) -> f64 {
    let bend = before - 2.0 * now + behind;
    if bend < 0.0 { (0.5 * (before - behind) / bend).clamp(-0.5, 0.5) } else { 0.0 }
}

/// The total power of all samples before each sample.
fn power_sums(samples: &[Complex32]) -> Vec<f64> {
    let mut sum = 0.0;
    let mut sums = Vec::with_capacity(samples.len() + 1);
    sums.push(sum);
    for sample in samples {
        sum += f64::from(sample.norm_sqr());
        sums.push(sum);
    }
    sums
}
