//! Packets over a noisy channel: QPSK behind a known preamble, with a convolutional code, made and received by the domain's ops alone.
//!
//! A frame is `length, payload, zeros, CRC-32`: scrambled, encoded at rate ½ with 64 states, interleaved, two bits a symbol behind 64 known symbols, and
//! shaped by a root-raised cosine at four samples a symbol. A receiver needs neither the time, the frequency nor the phase of a packet: it finds
//! them from the preamble. Ops run wherever [`Runs`] sends them.

mod capture;
mod find;
mod receive;
mod send;

use panoply_core::op::signal::{Interleaver, Scrambler};
use panoply_core::{Api, Describe, DeviceId, Error, HostBufferMut, OneThread, Operation, Result, Tensor};

pub use capture::{Capture, TEXTS};
pub use receive::{Packet, Receiver};
pub use send::Sender;

use crate::level::Level;
use crate::pulse::root_raised_cosine;
use crate::run::Workspace;

/// The most bytes of a packet.
pub const PAYLOAD_BYTES_MAX: usize = 63;
/// Samples of a symbol.
pub const SYMBOL_SAMPLES: usize = 4;
/// Samples from a packet's first to its last symbol.
pub const PACKET_SAMPLES: usize = (PREAMBLE_SYMBOLS + CODED_BITS / 2) * SYMBOL_SAMPLES;

const PREAMBLE_SYMBOLS: usize = 64;
const FRAME_BYTES: usize = 1 + PAYLOAD_BYTES_MAX + 4;
const FRAME_BITS: usize = 8 * FRAME_BYTES;
const CODED_BITS: usize = 2 * (FRAME_BITS + 6);
const INTERLEAVER: Interleaver = Interleaver::Block { rows: 25, columns: CODED_BITS / 25 };
const SCRAMBLER: Scrambler = Scrambler::wifi(0b101_1101);
const ROLL_OFF: f64 = 0.35;
const PULSE_SYMBOLS: usize = 10;
/// What the preamble's symbols come from.
const PREAMBLE_SEED: u64 = 0x5eed;

/// Wherever ops run: a runtime, or [`Here`].
pub trait Runs {
    /// Runs an op to its end.
    fn run<O: Operation>(&mut self, op: O) -> Result<O::Output>;
}

/// The calling thread.
pub struct Here(Workspace);

impl Here {
    /// With this CPU's best instructions.
    pub fn new() -> Here {
        Here(Workspace::new(Level::best()))
    }

    /// The same, with streams that live here.
    pub fn with_streams() -> Here {
        let mut here = Here::new();
        here.0.keep_streams(DeviceId { api: Api::CPU, index: 0 });
        here
    }
}

impl Default for Here {
    fn default() -> Here {
        Here::new()
    }
}

impl Runs for Here {
    fn run<O: Operation>(&mut self, op: O) -> Result<O::Output> {
        let op = op.into_op()?;
        let ran = crate::run(&op, &mut self.0, &OneThread, &mut HostBufferMut::zeroed);
        O::output(ran.ok_or_else(|| Error::invalid("packets: op", "one of the signal domain", op.name()))??)
    }
}

/// The pulse of a symbol.
fn pulse() -> Result<Tensor> {
    let taps: Vec<f32> =
        root_raised_cosine(SYMBOL_SAMPLES, ROLL_OFF, PULSE_SYMBOLS)?.iter().map(|tap| *tap as f32).collect();
    Tensor::from_slice(&taps, [taps.len()])
}

/// The preamble's symbols: 0 to 3.
fn preamble() -> Vec<u8> {
    crate::synthetic::Noise::new(PREAMBLE_SEED).bytes(PREAMBLE_SYMBOLS).iter().map(|byte| byte & 3).collect()
}
