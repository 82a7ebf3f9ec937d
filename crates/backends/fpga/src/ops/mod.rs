//! Converts ops to packets and answers to values, one file for each core.
//!
//! A [`CardWork`] is a list of passes. A pass configures a core once and sends packets. Answers are
//! processed one by one as they arrive, so at most as many answers as the ring holds are in memory
//! besides the op's own input and output.

use std::rc::Rc;

use panoply_core::op::signal::SignalOp;
use panoply_core::{DType, Domain, Op, Result, Support, Tensor, Value};

use crate::card::PACKET_BYTES_MAX;
use crate::driver::Identity;
use crate::map::{CoreKind, Register};

pub mod affine;
mod crc;
mod fft;
mod fir;
mod viterbi;

/// One packet of a pass.
#[derive(Clone)]
pub(crate) struct Packet {
    /// The packet's payload.
    pub payload: Rc<[u8]>,
    /// Size of the answer's payload.
    pub answer_bytes: usize,
}

/// Packets for one core with one configuration.
pub(crate) struct CorePass {
    pub core: CoreKind,
    pub registers: Vec<(Register, u32)>,
    pub packets: Vec<Packet>,
}

/// An op on a card.
pub(crate) trait CardWork {
    /// Returns the pass with this index, or `None` after the last pass.
    fn pass(&mut self, number: usize) -> Option<CorePass>;

    /// Takes the answer to a packet, identified by the indices of its pass and within the pass. The
    /// answer has the requested size.
    fn take(&mut self, pass: usize, packet: usize, answer: &[u8]);

    /// The op's output. Call after all answers were taken.
    fn value(self: Box<Self>) -> Result<Value>;
}

/// The domains of the ops that a card with these cores runs.
pub(crate) fn domains(identity: &Identity) -> Vec<Domain> {
    let of = |kind| if kind == CoreKind::Affine { Domain::Extension } else { Domain::Signal };
    let mut domains: Vec<Domain> = CoreKind::ALL.into_iter().filter(|kind| identity.has(*kind)).map(of).collect();
    domains.sort();
    domains.dedup();
    domains
}

/// Whether a card with these cores runs the op.
pub(crate) fn support(identity: &Identity, op: &Op) -> Support {
    match refusal(identity, op) {
        None => Support::Yes,
        Some(reason) => Support::No(reason),
    }
}

/// Why a card with these cores does not run the op. `None` if it does.
fn refusal(identity: &Identity, op: &Op) -> Option<String> {
    match op {
        Op::Signal(SignalOp::Fir(op)) => core(identity, CoreKind::Fir).or_else(|| fir::refusal(identity, op)),
        Op::Signal(SignalOp::Fft(op)) => core(identity, CoreKind::Fft).or_else(|| fft::refusal(identity, op)),
        Op::Signal(SignalOp::Ifft(op)) => core(identity, CoreKind::Fft).or_else(|| fft::inverse_refusal(identity, op)),
        Op::Signal(SignalOp::Viterbi(op)) => {
            core(identity, CoreKind::Viterbi).or_else(|| viterbi::refusal(identity, op))
        }
        Op::Signal(SignalOp::Crc(op)) => core(identity, CoreKind::Crc32).or_else(|| crc::refusal(op)),
        Op::Extension(extension) if extension.downcast_ref::<affine::Affine>().is_some() => {
            core(identity, CoreKind::Affine)
        }
        Op::Signal(_) => Some("no core does it".to_owned()),
        op => match Support::unknown(op) {
            Support::No(reason) => Some(reason),
            Support::Yes => None,
        },
    }
}

/// Creates the work of an op for a card with these cores.
pub(crate) fn work(identity: &Identity, op: &Op) -> Result<Box<dyn CardWork>> {
    if let Some(reason) = refusal(identity, op) {
        return Err(Support::No(reason).refusal(op));
    }
    match op {
        Op::Signal(SignalOp::Fir(op)) => fir::work(identity, op),
        Op::Signal(SignalOp::Fft(op)) => fft::work(identity, op),
        Op::Signal(SignalOp::Ifft(op)) => fft::inverse_work(identity, op),
        Op::Signal(SignalOp::Viterbi(op)) => viterbi::work(op),
        Op::Signal(SignalOp::Crc(op)) => crc::work(op),
        Op::Extension(extension) => match extension.downcast_ref::<affine::Affine>() {
            Some(affine) => affine::work(affine),
            None => Err(Support::unknown(op).refusal(op)),
        },
        op => Err(Support::unknown(op).refusal(op)),
    }
}

/// Why this core cannot be used. `None` if the card has it.
fn core(identity: &Identity, kind: CoreKind) -> Option<String> {
    (!identity.has(kind)).then(|| format!("the card has no {} core", kind.name()))
}

/// Why a line of `bytes` bytes on the stream is too long. `None` if it fits.
fn too_long(what: &str, bytes: usize) -> Option<String> {
    (bytes > PACKET_BYTES_MAX)
        .then(|| format!("{what} takes {bytes} bytes on the stream; a packet has at most {PACKET_BYTES_MAX}"))
}

/// Why samples of `bits` bits are too imprecise for the op. `None` if they suffice.
fn too_narrow(bits: u32) -> Option<String> {
    (bits < 24).then(|| format!("the core's samples have {bits} bits; the op's tolerance needs 24"))
}

/// The elements of an f32 or c64 tensor. Each complex element becomes two numbers.
fn numbers(tensor: &Tensor) -> Result<Vec<f32>> {
    match tensor.dtype() {
        DType::Complex64 => Ok(tensor.to_vec::<panoply_core::Complex64>()?.iter().flat_map(|z| [z.re, z.im]).collect()),
        _ => tensor.to_vec::<f32>(),
    }
}

/// Builds an f32 or c64 tensor from its numbers.
fn tensor(dtype: DType, numbers: Vec<f32>, shape: impl AsRef<[usize]>) -> Result<Tensor> {
    match dtype {
        DType::Complex64 => {
            let pairs = numbers.as_chunks::<2>().0.iter().map(|[re, im]| panoply_core::Complex64::new(*re, *im));
            Tensor::from_vec(pairs.collect(), shape)
        }
        _ => Tensor::from_vec(numbers, shape),
    }
}
