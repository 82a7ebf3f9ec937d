//! The receiver of packets, for a stream in pieces of any size.

use num_complex::{Complex32, Complex64};
use panoply_core::op::signal::{
    Checksum, Constellation, Crc, Demodulate, Fir, Interleave, Scramble, Track, Tracker, Viterbi,
};
use panoply_core::{Result, Tensor};

use super::find::{KnownSymbols, PreambleCandidate};
use super::{
    CODED_BITS, FRAME_BITS, FRAME_BYTES, INTERLEAVER, PACKET_SAMPLES, PAYLOAD_BYTES_MAX, PREAMBLE_SYMBOLS,
    PULSE_SYMBOLS, Runs, SCRAMBLER, SYMBOL_SAMPLES, pulse,
};

/// Number of samples that are searched together.
const WINDOW: usize = 1 << 16;
/// Number of samples that are needed before a packet's position and after its end.
const MARGIN: usize = 2 * PULSE_SYMBOLS * SYMBOL_SAMPLES;
/// The bandwidth of the loop that tracks the remaining carrier offset, as a fraction of the symbol
/// rate.
const LOOP_BANDWIDTH: f64 = 0.02;

/// A received packet.
#[derive(Clone, Debug, PartialEq)]
pub struct Packet {
    /// The index in the stream of the sample of its first symbol, as the channel delivered it.
    pub at: u64,
    /// The sent payload if `intact`; otherwise the decoded bytes, which contain errors.
    pub payload: Vec<u8>,
    /// Whether the checksum is correct.
    pub intact: bool,
    /// The carrier offset, in turns per sample.
    pub frequency: f64,
    /// The power of symbols relative to that of noise, in decibels.
    pub snr_db: f64,
}

/// A receiver with the samples that it still needs.
pub struct Receiver {
    pulse: Tensor,
    known: KnownSymbols,
    kept: Vec<Complex32>,
    /// The index in the stream of the first sample that is kept.
    kept_first: u64,
    /// The next packet begins at this index of the stream or later.
    resume: u64,
}

impl Receiver {
    /// A receiver before the first sample.
    pub fn new(runs: &mut impl Runs) -> Result<Receiver> {
        // Silence before the stream, so that a packet may begin with the first sample.
        let kept = vec![Complex32::default(); MARGIN];
        Ok(Receiver { pulse: pulse()?, known: KnownSymbols::new(runs)?, kept, kept_first: 0, resume: 0 })
    }

    /// Takes more samples. Returns the packets that end in the samples so far and were not returned
    /// before.
    pub fn next(&mut self, runs: &mut impl Runs, samples: &[Complex32]) -> Result<Vec<Packet>> {
        let mut packets = Vec::new();
        // A NaN or infinity would spoil the sums of a whole window.
        let sane = |sample: &Complex32| {
            if sample.re.is_finite() && sample.im.is_finite() { *sample } else { Complex32::default() }
        };
        for part in samples.chunks(WINDOW) {
            self.kept.extend(part.iter().map(sane));
            if self.kept.len() >= WINDOW {
                packets.extend(self.look(runs)?);
            }
        }
        Ok(packets)
    }

    /// Returns the packets that were not complete before the stream ended.
    pub fn finish(mut self, runs: &mut impl Runs) -> Result<Vec<Packet>> {
        self.kept.extend([Complex32::default(); 5 * MARGIN]);
        self.look(runs)
    }

    fn look(&mut self, runs: &mut impl Runs) -> Result<Vec<Packet>> {
        let need = PACKET_SAMPLES + 2 * MARGIN;
        let Some(end) = self.kept.len().checked_sub(need).filter(|end| *end > MARGIN) else { return Ok(Vec::new()) };
        let line = Tensor::from_slice(&self.kept, [self.kept.len()])?;
        let filtered = runs.run(Fir::new(&line, &self.pulse))?;
        let mut packets = Vec::new();
        // Successive windows overlap by a preamble, so that a position is compared with its
        // neighbours on both sides.
        for place in self.known.places(runs, &filtered, (MARGIN / 2, end))? {
            let number = self.kept_first + place.at as u64;
            if number < self.resume || place.at + MARGIN > end {
                continue;
            }
            let packet = self.packet(runs, filtered.as_slice()?, place)?;
            self.resume = number + if packet.intact { PACKET_SAMPLES } else { SYMBOL_SAMPLES } as u64;
            packets.push(packet);
        }
        let done = end - 2 * MARGIN.min(end / 2);
        self.resume = self.resume.max(self.kept_first + (end - MARGIN) as u64);
        self.kept.drain(..done);
        self.kept_first += done as u64;
        Ok(packets)
    }

    fn packet(&self, runs: &mut impl Runs, filtered: &[Complex32], place: PreambleCandidate) -> Result<Packet> {
        let symbols: Vec<Complex64> = (0..PREAMBLE_SYMBOLS + CODED_BITS / 2)
            .map(|number| {
                let turned = Complex64::from_polar(1.0, -place.turn * number as f64);
                between(filtered, place.at + number * SYMBOL_SAMPLES, place.part) * turned
            })
            .collect();
        let known = self.known.points.iter().map(|point| Complex64::new(point.re.into(), point.im.into()));
        let strength = symbols.iter().zip(known.clone()).map(|(got, sent)| got * sent.conj()).sum::<Complex64>()
            / PREAMBLE_SYMBOLS as f64;
        let level: Vec<Complex32> = symbols.iter().map(|symbol| narrow(symbol / strength)).collect();
        let wrong =
            |(got, sent): (&Complex32, Complex64)| (Complex64::new(got.re.into(), got.im.into()) - sent).norm_sqr();
        let noise = level.iter().zip(known).map(wrong).sum::<f64>() / PREAMBLE_SYMBOLS as f64;
        let noise = if noise.is_finite() { noise.max(1e-6) } else { 1.0 };
        let tracker = Tracker::Carrier { phases: 4, bandwidth: LOOP_BANDWIDTH };
        let steady = runs.run(Track::new(tracker, &Tensor::from_slice(&level, [level.len()])?))?;
        let own = steady.slice(0, PREAMBLE_SYMBOLS, level.len())?.contiguous()?;
        let frame = decoded(runs, &own, noise as f32)?;
        let (payload, intact) = opened(runs, &frame)?;
        let delay = (PULSE_SYMBOLS * SYMBOL_SAMPLES + MARGIN) as u64;
        Ok(Packet {
            at: (self.kept_first + place.at as u64).saturating_sub(delay),
            payload,
            intact,
            frequency: place.turn / std::f64::consts::TAU / SYMBOL_SAMPLES as f64,
            snr_db: -10.0 * noise.log10(),
        })
    }
}

/// Decodes the bytes of a frame from its symbols.
fn decoded(runs: &mut impl Runs, symbols: &Tensor, noise: f32) -> Result<Vec<u8>> {
    let likelihoods = runs.run(Demodulate::soft(Constellation::Qpsk, symbols, noise))?.to_vec::<f32>()?;
    // A positive likelihood means that 0 is likelier; the soft byte of a certain 0 is 0. NaN is
    // unknown.
    let soft = |value: &f32| if value.is_nan() { 128 } else { (128.0 - 12.0 * value).clamp(0.0, 255.0) as u8 };
    let softs: Vec<u8> = likelihoods.iter().map(soft).collect();
    let sorted = runs.run(Interleave::inverse(INTERLEAVER, &Tensor::from_vec(softs, [CODED_BITS])?))?;
    let bits = runs.run(Viterbi::new(&sorted, FRAME_BITS))?;
    runs.run(Scramble::inverse(SCRAMBLER, &bits))?.to_vec()
}

/// The payload of a frame, and whether its checksum is correct.
fn opened(runs: &mut impl Runs, frame: &[u8]) -> Result<(Vec<u8>, bool)> {
    let (body, check) = frame.split_at(FRAME_BYTES - 4);
    let expected = runs.run(Crc::new(Checksum::Crc32, body.to_vec()))?.first().copied().unwrap_or(0) as u32;
    let len = usize::from(body[0]);
    let intact = check == expected.to_le_bytes() && len <= PAYLOAD_BYTES_MAX;
    Ok((body[1..=len.min(PAYLOAD_BYTES_MAX)].to_vec(), intact))
}

/// The signal between two samples, by cubic Lagrange interpolation through four samples; zero
/// beyond the ends.
fn between(samples: &[Complex32], at: usize, part: f64) -> Complex64 {
    let sample = |offset: isize| {
        let value = at.checked_add_signed(offset).and_then(|place| samples.get(place)).copied().unwrap_or_default();
        Complex64::new(value.re.into(), value.im.into())
    };
    let (a, b, c) = (part + 1.0, part - 1.0, part - 2.0);
    sample(-1) * (-part * b * c / 6.0)
        + sample(0) * (a * b * c / 2.0)
        + sample(1) * (-a * part * c / 2.0)
        + sample(2) * (a * part * b / 6.0)
}

fn narrow(value: Complex64) -> Complex32 {
    Complex32::new(value.re as f32, value.im as f32)
}
