//! A recording of packets as a receiver would have made it: silence, packets, a carrier that is off, and noise, from a seed.

use num_complex::Complex32;
use panoply_core::Result;

use super::{Runs, SYMBOL_SAMPLES, Sender};
use crate::synthetic::{Channel, Noise};

/// What the packets of the project's own recording say.
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
/// The size of samples in a recording: noise seldom reaches full scale.
const GAIN: f32 = 0.2;
/// Silence before each packet, and by how much it may be longer.
const GAP_SAMPLES: usize = 200;
const GAP_SAMPLES_MORE: u64 = 2000;

/// How packets arrive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Capture {
    /// The power of symbols over that of noise, in decibels.
    pub snr_db: f64,
    /// By how many turns a sample the carrier is off.
    pub offset: f64,
    /// The seed of noise and gaps.
    pub seed: u64,
}

impl Capture {
    /// The samples of these packets.
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
        // A symbol has the power of its samples together; noise has its own in each.
        let power = SYMBOL_SAMPLES as f64 / 10_f64.powf(self.snr_db / 10.0);
        Channel::new(self.seed).carrier(self.offset, 0.3)?.noise(power)?.pass(&mut samples);
        samples.iter_mut().for_each(|sample| *sample *= GAIN);
        Ok(samples)
    }
}
