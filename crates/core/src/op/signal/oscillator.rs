//! An oscillator: signals shifted from one frequency to another. The op `Mix` on the CPU and
//! synthetic signals share it.

use std::f64::consts::TAU;

use num_complex::{Complex32, Complex64};

/// Number of samples whose angles are computed from one angle with a table.
const BLOCK: usize = 64;

/// A phasor that rotates by the same angle each sample. Time is counted from 0.
pub struct Oscillator {
    frequency: f64,
    phase: f64,
    table: Vec<Complex64>,
}

/// A phasor of length 1 after this number of turns.
pub fn phasor(turns: f64) -> Complex64 {
    Complex64::from_polar(1.0, TAU * (turns - turns.floor()))
}

impl Oscillator {
    /// An oscillator with this frequency, in turns per sample, and this phase at time 0, in turns.
    pub fn new(frequency: f64, phase: f64) -> Oscillator {
        let frequency = frequency - frequency.floor();
        Oscillator { frequency, phase, table: (0..BLOCK).map(|at| phasor(frequency * at as f64)).collect() }
    }

    /// Multiplies the samples from time `time` on. The result for a sample does not depend on how
    /// the signal was split into pieces.
    #[inline]
    pub fn mix(&self, time: u64, samples: &mut [Complex32]) {
        let mut at = 0;
        while at < samples.len() {
            let now = time + at as u64;
            let within = (now % BLOCK as u64) as usize;
            let base = phasor(self.frequency * (now - within as u64) as f64 + self.phase);
            let end = samples.len().min(at + BLOCK - within);
            for (sample, step) in samples[at..end].iter_mut().zip(&self.table[within..]) {
                let turn = base * step;
                *sample *= Complex32::new(turn.re as f32, turn.im as f32);
            }
            at = end;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn angles_do_not_drift() {
        for frequency in [0.123_456_789, -0.3, 17.25, 1e-9] {
            let mut samples = vec![Complex32::new(1.0, 0.0); 1000];
            let time = 1_000_000_007;
            Oscillator::new(frequency, 0.25).mix(time, &mut samples);
            for (at, sample) in samples.iter().enumerate() {
                let exact = (frequency - f64::floor(frequency)) * (time + at as u64) as f64 + 0.25;
                let expected = phasor(exact);
                let error = (f64::from(sample.re) - expected.re).abs() + (f64::from(sample.im) - expected.im).abs();
                assert!(error < 1e-6, "{frequency} {at}: {error}");
            }
        }
    }
}
