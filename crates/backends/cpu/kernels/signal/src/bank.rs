//! A bank of filters of equal bands (a polyphase channeliser): the taps of one filter, distributed
//! over the channels, and a transform across the channels.

use std::sync::Arc;

use num_complex::Complex32;
use panoply_core::Threads;
use panoply_cpu_fourier::Fft;

use crate::spectral::Plans;
use crate::threads::{for_each_piece, share};

/// The least number of output numbers in one turn of a thread.
const TURN_MIN: usize = 4096;

/// A bank of channels.
pub struct Bank {
    taps: Vec<f32>,
    channels: usize,
    /// From sums to channels: the unscaled inverse transform.
    transform: Arc<dyn Fft<f32>>,
}

impl Bank {
    /// A bank of `channels` channels with these taps.
    pub fn new(plans: &mut Plans, taps: &[f32], channels: usize) -> Bank {
        Bank { taps: taps.to_vec(), channels, transform: plans.of(channels).1 }
    }

    /// Number of samples before the current one that the filter needs.
    pub fn history_len(&self) -> usize {
        self.taps.len() - 1
    }

    /// Number of channels.
    pub fn channels(&self) -> usize {
        self.channels
    }

    /// Number of frames that begin in `len` samples, if the first begins at sample `phase`.
    pub fn frames(&self, len: usize, phase: usize) -> usize {
        len.saturating_sub(phase).div_ceil(self.channels)
    }

    /// The phase of the next piece, after a piece of `len` samples with this phase.
    pub fn next_phase(&self, len: usize, phase: usize) -> usize {
        phase + self.frames(len, phase) * self.channels - len
    }

    /// Filters a piece into frames of channels. `history` has the samples before the piece; before
    /// these the signal is zero.
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

    /// The sum of products of each channel's taps with the newest samples.
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
