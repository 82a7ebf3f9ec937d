//! Packets over a noisy channel: QPSK after a known preamble, with a convolutional code, sent and
//! received with the ops of the signal domain alone.
//!
//! A frame is `length, payload, zeros, CRC-32`. It is scrambled, encoded at rate ½ with 64 states,
//! interleaved, sent with two bits for each symbol after 64 known symbols, and shaped by a
//! root-raised cosine with four samples for each symbol. A receiver needs to know neither the time,
//! the frequency nor the phase of a packet: it finds them from the preamble. [`Runs`] decides where
//! the ops run.

mod capture;
mod find;
mod receive;
mod send;

use panoply_core::op::signal::{Interleaver, Scrambler};
use panoply_core::{Result, Tensor};

pub use capture::{Capture, TEXTS};
pub use panoply_core::op::Runs;
pub use receive::{Packet, Receiver};
pub use send::Sender;

use crate::pulse::root_raised_cosine;

/// The largest payload of a packet, in bytes.
pub const PAYLOAD_BYTES_MAX: usize = 63;
/// Number of samples for each symbol.
pub const SYMBOL_SAMPLES: usize = 4;
/// Number of samples from the first to the last symbol of a packet.
pub const PACKET_SAMPLES: usize = (PREAMBLE_SYMBOLS + CODED_BITS / 2) * SYMBOL_SAMPLES;

const PREAMBLE_SYMBOLS: usize = 64;
const FRAME_BYTES: usize = 1 + PAYLOAD_BYTES_MAX + 4;
const FRAME_BITS: usize = 8 * FRAME_BYTES;
const CODED_BITS: usize = 2 * (FRAME_BITS + 6);
const INTERLEAVER: Interleaver = Interleaver::Block { rows: 25, columns: CODED_BITS / 25 };
const SCRAMBLER: Scrambler = Scrambler::wifi(0b101_1101);
const ROLL_OFF: f64 = 0.35;
const PULSE_SYMBOLS: usize = 10;
/// The seed of the preamble's symbols.
const PREAMBLE_SEED: u64 = 0x5eed;

/// The pulse of a symbol.
fn pulse() -> Result<Tensor> {
    let taps: Vec<f32> =
        root_raised_cosine(SYMBOL_SAMPLES, ROLL_OFF, PULSE_SYMBOLS)?.iter().map(|tap| *tap as f32).collect();
    Tensor::from_slice(&taps, [taps.len()])
}

/// The symbols of the preamble, each 0 to 3.
fn preamble() -> Vec<u8> {
    crate::synthetic::Noise::new(PREAMBLE_SEED).bytes(PREAMBLE_SYMBOLS).iter().map(|byte| byte & 3).collect()
}
