//! Messages as waves: frequency-shift keying and frequency modulation.

use std::f64::consts::TAU;

use num_complex::{Complex32, Complex64};

use panoply_core::op::signal::oscillator::phasor;

/// Tones of equal spacing, one for each symbol.
pub struct Tones {
    /// The samples of each tone.
    samples: Vec<Vec<Complex64>>,
    /// The phase advance of each tone over a symbol, in turns.
    turns: Vec<f64>,
    len: usize,
}

impl Tones {
    /// `2^bits` tones of `len` samples, `spacing` turns per sample apart.
    pub fn new(bits: usize, len: usize, spacing: f64) -> Tones {
        let count = 1_usize << bits;
        let step = |tone: usize| spacing * (tone as f64 - (count - 1) as f64 / 2.0);
        let of_tone = |tone: usize| (0..len).map(|at| phasor(step(tone) * at as f64)).collect();
        let turns = (0..count).map(|tone| step(tone) * len as f64).collect();
        Tones { samples: (0..count).map(of_tone).collect(), turns, len }
    }

    /// Number of tones.
    pub fn count(&self) -> usize {
        self.samples.len()
    }

    /// The wave of symbols, each below [`Tones::count`]. Its phase is continuous between symbols.
    /// `turns` is the phase at the start, and is updated to the phase at the end.
    pub fn modulate(&self, turns: &mut f64, symbols: &[u8], wave: &mut [Complex32]) {
        for (symbol, part) in symbols.iter().zip(wave.chunks_exact_mut(self.len)) {
            let (tone, base) = (usize::from(*symbol), phasor(*turns));
            for (sample, step) in part.iter_mut().zip(&self.samples[tone]) {
                let value = base * step;
                *sample = Complex32::new(value.re as f32, value.im as f32);
            }
            *turns += self.turns[tone];
            *turns -= turns.floor();
        }
    }

    /// The tone with the most energy in each symbol's samples; among equal ones the lowest.
    pub fn demodulate(&self, wave: &[Complex32], symbols: &mut [u8]) {
        for (part, symbol) in wave.chunks_exact(self.len).zip(symbols) {
            let energy = |tone: &[Complex64]| {
                let product = |(value, step): (&Complex32, &Complex64)| {
                    Complex64::new(f64::from(value.re), f64::from(value.im)) * step.conj()
                };
                part.iter().zip(tone).map(product).sum::<Complex64>().norm_sqr()
            };
            let mut best = (0, energy(&self.samples[0]));
            for (tone, samples) in self.samples.iter().enumerate().skip(1) {
                let own = energy(samples);
                if own > best.1 {
                    best = (tone, own);
                }
            }
            *symbol = best.0 as u8;
        }
    }
}

/// Frequency modulation of a message. `turns` is the phase at the start, and is updated to the
/// phase at the end.
pub fn frequency_modulate(deviation: f64, turns: &mut f64, message: &[f32], wave: &mut [Complex32]) {
    for (message, sample) in message.iter().zip(wave) {
        *turns += deviation * f64::from(*message);
        *turns -= turns.floor();
        let (sin, cos) = (TAU * *turns).sin_cos();
        *sample = Complex32::new(cos as f32, sin as f32);
    }
}

/// Demodulates the frequency of a wave. `before` is the sample before the wave.
pub fn frequency_demodulate(deviation: f64, before: Complex32, wave: &[Complex32], message: &mut [f32]) {
    let (mut before, scale) = (before, 1.0 / (TAU * deviation));
    for (sample, message) in wave.iter().zip(message) {
        let turn = sample * before.conj();
        *message = (f64::from(turn.im).atan2(f64::from(turn.re)) * scale) as f32;
        before = *sample;
    }
}
