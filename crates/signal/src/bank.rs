//! A bank of filters of equal bands: one filter's taps, shared out over the channels, and a transform across them.

use std::sync::Arc;

use num_complex::Complex32;
use panoply_core::Threads;
use panoply_fourier::Fft;

use crate::spectral::Plans;
use crate::threads::{for_each_piece, share};

/// Numbers of the output of one turn of a thread, at the least.
const TURN_MIN: usize = 4096;

/// A bank of channels.
pub struct Bank {
    taps: Vec<f32>,
    channels: usize,
    /// From sums to channels: the inverse transform, which is not divided.
    transform: Arc<dyn Fft<f32>>,
}

impl Bank {
    /// So many channels, each with these taps.
    pub fn new(plans: &mut Plans, taps: &[f32], channels: usize) -> Bank {
        Bank { taps: taps.to_vec(), channels, transform: plans.of(channels).1 }
    }

    /// Samples before the present one that count.
    pub fn history_len(&self) -> usize {
        self.taps.len() - 1
    }

    /// How many channels there are.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// How many frames begin in `len` samples, the first `phase` behind the first of them.
    pub fn frames(&self, len: usize, phase: usize) -> usize {
        len.saturating_sub(phase).div_ceil(self.channels)
    }

    /// The phase of the piece that follows.
    pub fn next_phase(&self, len: usize, phase: usize) -> usize {
        phase + self.frames(len, phase) * self.channels - len
    }

    /// Frames of channels from samples before which `history` stood, with zeros before that.
    pub fn filter(
        &self,
        threads: &dyn Threads,
        history: &[Complex32],
        input: &[Complex32],
        phase: usize,
        output: &mut [Complex32],
    ) {
        assert_eq!(output.len(), self.frames(input.len(), phase) * self.channels);
        let before = self.history_len();
        let mut samples = vec![Complex32::default(); before + input.len()];
        let older = history.len().min(before);
        samples[before - older..before].copy_from_slice(&history[history.len() - older..]);
        samples[before..].copy_from_slice(input);
        let frames = output.len() / self.channels;
        let each = share(frames, threads.count(), TURN_MIN.div_ceil(self.channels));
        for_each_piece(threads, output, each * self.channels, &|turn, part| {
            let mut scratch = vec![Complex32::default(); self.transform.get_inplace_scratch_len()];
            for (at, frame) in part.chunks_exact_mut(self.channels).enumerate() {
                let newest = before + phase + (turn * each + at) * self.channels;
                self.sums(&samples[..=newest], frame);
                self.transform.process_with_scratch(frame, &mut scratch);
            }
        });
    }

    /// Of each channel's taps, the sum of their products with the newest samples.
    fn sums(&self, samples: &[Complex32], sums: &mut [Complex32]) {
        sums.fill(Complex32::default());
        let mut end = samples.len();
        for taps in self.taps.chunks(self.channels) {
            let near = &samples[end - taps.len()..end];
            let products = taps.iter().zip(near.iter().rev()).map(|(tap, sample)| sample * tap);
            sums.iter_mut().zip(products).for_each(|(sum, product)| *sum += product);
            end = end.saturating_sub(self.channels);
        }
    }
}
