//! The sender of packets.

use num_complex::Complex32;
use panoply_core::op::signal::{
    Checksum, Constellation, ConvolutionalEncode, Crc, Fir, Interleave, Modulate, Scramble,
};
use panoply_core::{Error, Result, Tensor};

use super::{
    CODED_BITS, FRAME_BITS, FRAME_BYTES, INTERLEAVER, PAYLOAD_BYTES_MAX, PULSE_SYMBOLS, Runs, SCRAMBLER,
    SYMBOL_SAMPLES, preamble, pulse,
};

/// Makes packets.
pub struct Sender {
    pulse: Tensor,
}

impl Sender {
    /// A sender.
    pub fn new() -> Result<Sender> {
        Ok(Sender { pulse: pulse()? })
    }

    /// The samples of one packet, with a mean power of about 1: its pulses, including the tails of
    /// the last ones.
    pub fn packet(&self, runs: &mut impl Runs, payload: &[u8]) -> Result<Vec<Complex32>> {
        let (mut symbols, frame) = (preamble(), frame(runs, payload)?);
        symbols.extend(symbols_of(runs, &frame)?);
        let points = runs.run(Modulate::new(Constellation::Qpsk, &Tensor::from_slice(&symbols, [symbols.len()])?))?;
        let mut points = points.to_vec::<Complex32>()?;
        // The energy of a pulse is 1, but the power of a sample should be 1.
        let size = (SYMBOL_SAMPLES as f32).sqrt();
        points.iter_mut().for_each(|point| *point *= size);
        points.extend([Complex32::default(); PULSE_SYMBOLS]);
        let line = Tensor::from_slice(&points, [points.len()])?;
        runs.run(Fir::new(&line, &self.pulse).interpolate(SYMBOL_SAMPLES))?.to_vec()
    }
}

/// A frame: `length, payload, zeros, CRC-32`.
fn frame(runs: &mut impl Runs, payload: &[u8]) -> Result<Vec<u8>> {
    if payload.len() > PAYLOAD_BYTES_MAX {
        return Err(Error::invalid("packet: bytes", format!("0 to {PAYLOAD_BYTES_MAX}"), payload.len()));
    }
    let mut frame = vec![payload.len() as u8];
    frame.extend_from_slice(payload);
    frame.resize(FRAME_BYTES - 4, 0);
    let check = runs.run(Crc::new(Checksum::Crc32, frame.clone()))?;
    frame.extend((check.first().copied().unwrap_or(0) as u32).to_le_bytes());
    Ok(frame)
}

fn symbols_of(runs: &mut impl Runs, frame: &[u8]) -> Result<Vec<u8>> {
    let scrambled = runs.run(Scramble::new(SCRAMBLER, &Tensor::from_slice(frame, [FRAME_BYTES])?))?;
    let coded = runs.run(ConvolutionalEncode::new(&scrambled, FRAME_BITS))?;
    let coded = coded.to_vec::<u8>()?;
    let bits: Vec<u8> = (0..CODED_BITS).map(|at| coded[at / 8] >> (7 - at % 8) & 1).collect();
    let mixed = runs.run(Interleave::new(INTERLEAVER, &Tensor::from_slice(&bits, [CODED_BITS])?))?;
    Ok(mixed.to_vec::<u8>()?.as_chunks::<2>().0.iter().map(|[high, low]| high << 1 | low).collect())
}
