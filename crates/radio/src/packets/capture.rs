//! A synthetic recording of packets as a receiver would make it, generated from a seed: silence,
//! packets, a carrier offset, and noise.

use num_complex::Complex32;
use panoply_core::Result;

use super::{Runs, SYMBOL_SAMPLES, Sender};
use crate::synthetic::{Channel, Noise};

/// The payloads of the packets in the project's own recording.
pub const TEXTS: [&str; 12] = [
    "Samples never stop.",
    "A filter remembers what it must know of them,",
    "so pieces give what the whole would have given.",
    "This packet was scrambled, encoded and interleaved,",
    "sent as QPSK behind sixty-four known symbols,",
    "and turned by a carrier that was off.",
    "The preamble says when, how strong and how far off.",
    "A loop follows what is left of the carrier.",
    "Viterbi finds the likeliest path,",
    "and CRC-32 says whether it was the right one.",
    "What a code cannot mend is reported, never made up.",
    "End of recording.",
];
/// The factor of the samples in a recording, so that noise seldom reaches full scale.
const GAIN: f32 = 0.2;
/// The silence before each packet, and the number of samples by which it may be longer.
const GAP_SAMPLES: usize = 200;
const GAP_SAMPLES_MORE: u64 = 2000;

/// The channel over which packets arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capture {
    /// The power of symbols relative to that of noise, in decibels.
    pub snr_db: f64,
    /// The carrier offset, in turns per sample.
    pub offset: f64,
    /// The seed of noise and gaps.
    pub seed: u64,
}

impl Capture {
    /// The samples of a recording with these packets.
    pub fn samples<'a>(
        &self,
        runs: &mut impl Runs,
        payloads: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<Vec<Complex32>> {
        let (sender, mut gaps, mut samples) = (Sender::new()?, Noise::new(self.seed), Vec::new());
        for payload in payloads {
            let gap = GAP_SAMPLES + (gaps.word() % GAP_SAMPLES_MORE) as usize;
            samples.extend(std::iter::repeat_n(Complex32::default(), gap));
            samples.extend(sender.packet(runs, payload)?);
        }
        samples.extend([Complex32::default(); GAP_SAMPLES]);
        // A symbol has the power of all its samples together; noise has its power in each sample.
        let power = SYMBOL_SAMPLES as f64 / 10_f64.powf(self.snr_db / 10.0);
        Channel::new(self.seed).carrier(self.offset, 0.3)?.noise(power)?.pass(&mut samples);
        samples.iter_mut().for_each(|sample| *sample *= GAIN);
        Ok(samples)
    }
}
