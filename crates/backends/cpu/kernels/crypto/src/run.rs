//! Runs ops: one file for each kind of op.

use std::sync::{Mutex, MutexGuard};

use panoply_core::op::Describe;
use panoply_core::op::crypto::{CryptoOp, Messages};
use panoply_core::{Bytes, Error, HostBufferMut, Result, Threads, Value};

use crate::failure::Failure;
use crate::lanes;
use crate::pack::Packer;

mod digests;
mod in_place;
mod packing;
mod sealing;
mod signing;

pub use in_place::{is_in_place, run_in_place};
pub use signing::signing_ns;

/// Memory for an output: initialised, with arbitrary contents.
pub type TakeMemory<'a> = &'a mut dyn FnMut(usize) -> Result<HostBufferMut>;

/// State that an engine keeps between ops.
pub struct State {
    /// Whether several messages at a time are hashed and encrypted in vector registers, if the CPU
    /// can.
    wide: bool,
    /// Whether several blocks of one message are sealed at a time.
    wide_seal: bool,
    /// Workspaces, one for each thread.
    packers: Vec<Mutex<Packer>>,
}

/// Runs an op to its end. It is validated again first: when the op was created, its nonces may have
/// been on a device.
pub fn run(op: &CryptoOp, state: &mut State, threads: &dyn Threads, take: TakeMemory<'_>) -> Result<Value> {
    described(op).validate()?;
    match op {
        CryptoOp::Seal(op) => sealing::seal(op, state, threads, take)?.into_value(),
        CryptoOp::Open(op) => sealing::open(op, state, threads, take)?.into_value(),
        CryptoOp::Encrypt(op) => sealing::encrypt(op, state, threads, take)?.into_value(),
        CryptoOp::Decrypt(op) => sealing::decrypt(op, state, threads, take)?.into_value(),
        CryptoOp::Hash(op) => digests::hash_all(op, state, threads, take)?.into_value(),
        CryptoOp::Hmac(op) => digests::hmac(op, threads, take)?.into_value(),
        CryptoOp::Hkdf(op) => digests::hkdf(op, threads)?.into_value(),
        CryptoOp::Sign(op) => signing::sign(op, state, threads, take)?.into_value(),
        CryptoOp::Verify(op) => signing::verify(op, state, threads, take).map(Value::Bytes),
        CryptoOp::Compress(op) => packing::compress(op, state, threads, take)?.into_value(),
        CryptoOp::Decompress(op) => packing::decompress(op, state, threads, take)?.into_value(),
    }
}

/// Estimated time of an op on one thread.
pub fn estimate_ns(op: &CryptoOp) -> f64 {
    let each = match op {
        CryptoOp::Seal(_) | CryptoOp::Open(_) => SEAL_NS_PER_BYTE,
        CryptoOp::Encrypt(_) | CryptoOp::Decrypt(_) => CIPHER_NS_PER_BYTE,
        CryptoOp::Hash(_) | CryptoOp::Hmac(_) | CryptoOp::Hkdf(_) => HASH_NS_PER_BYTE,
        CryptoOp::Sign(_) | CryptoOp::Verify(_) => match signing_ns(op, 1) {
            Some(time) => return time,
            None => HASH_NS_PER_BYTE,
        },
        CryptoOp::Compress(_) => COMPRESS_NS_PER_BYTE,
        CryptoOp::Decompress(_) => DECOMPRESS_NS_PER_BYTE,
    };
    described(op).work() as f64 * each
}

fn described(op: &CryptoOp) -> &dyn Describe {
    match op {
        CryptoOp::Seal(op) => op,
        CryptoOp::Open(op) => op,
        CryptoOp::Encrypt(op) => op,
        CryptoOp::Decrypt(op) => op,
        CryptoOp::Hash(op) => op,
        CryptoOp::Hmac(op) => op,
        CryptoOp::Hkdf(op) => op,
        CryptoOp::Sign(op) => op,
        CryptoOp::Verify(op) => op,
        CryptoOp::Compress(op) => op,
        CryptoOp::Decompress(op) => op,
    }
}

const SEAL_NS_PER_BYTE: f64 = 0.15;
const CIPHER_NS_PER_BYTE: f64 = 0.4;
const HASH_NS_PER_BYTE: f64 = 0.8;
const COMPRESS_NS_PER_BYTE: f64 = 6.0;
const DECOMPRESS_NS_PER_BYTE: f64 = 2.0;
/// Fixed cost of a message.
const MESSAGE_NS: f64 = 80.0;

impl Default for State {
    fn default() -> State {
        State::new(true)
    }
}

impl State {
    /// Empty state. `wide` processes several messages or blocks at a time in vector registers, if
    /// the CPU can. Without it, AWS-LC does all keys, hashes and signatures
    /// ([`CryptoProvider::AwsLc`](panoply_core::CryptoProvider::AwsLc)).
    pub fn new(wide: bool) -> State {
        let wide_seal = wide && (lanes::detected_for_chacha() || lanes::detected_for_gcm());
        State { wide, wide_seal, packers: Vec::new() }
    }

    /// Whether lanes are used if the CPU has them.
    pub fn is_wide(&self) -> bool {
        self.wide
    }

    /// A workspace for each thread.
    fn packers(&mut self, threads: usize) -> &[Mutex<Packer>] {
        while self.packers.len() < threads {
            self.packers.push(Mutex::default());
        }
        &self.packers
    }
}

/// A workspace that no other thread uses. There are as many as threads, so one is free.
fn free_packer(packers: &[Mutex<Packer>], first: usize) -> MutexGuard<'_, Packer> {
    let from = first % packers.len();
    let free = packers[from..].iter().chain(&packers[..from]).find_map(|packer| packer.try_lock().ok());
    free.unwrap_or_else(|| packers[from].lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

/// The offsets of results whose lengths are known beforehand.
fn offsets_of(lens: impl Iterator<Item = usize>) -> Result<Vec<usize>> {
    let mut end = 0_usize;
    let mut offsets = Vec::with_capacity(lens.size_hint().0 + 1);
    offsets.push(0);
    for len in lens {
        end = end.checked_add(len).ok_or_else(|| out_of_memory(usize::MAX))?;
        offsets.push(end);
    }
    Ok(offsets)
}

/// The messages of an output; message i uses `lens[i]` bytes from `offsets[i]` on. They are packed
/// if some use less than their space, and copied to smaller memory if most of it is unused.
fn finished(
    like: &Messages,
    mut out: HostBufferMut,
    offsets: Vec<usize>,
    lens: &[usize],
    take: Option<TakeMemory<'_>>,
) -> Result<Messages> {
    let dense = offsets.windows(2).zip(lens).all(|(pair, len)| pair[1] - pair[0] == *len);
    if dense {
        return like.like(Bytes::from_host(out.freeze()), offsets);
    }
    let bytes = out.bytes_mut();
    let (mut end, mut ends) = (0, Vec::with_capacity(offsets.len()));
    ends.push(0);
    for (start, len) in offsets.iter().zip(lens) {
        bytes.copy_within(*start..start + len, end);
        end += len;
        ends.push(end);
    }
    if let Some(take) = take.filter(|_| end < out.bytes().len() / 2) {
        let mut exact = take(end)?;
        exact.bytes_mut().copy_from_slice(&out.bytes()[..end]);
        return like.like(Bytes::from_host(exact.freeze()), ends);
    }
    like.like(Bytes::from_host(out.freeze()).slice(0, end)?, ends)
}

fn failure(op: &'static str, limit: usize) -> impl Fn((usize, Failure)) -> Error {
    move |(index, failure)| match failure {
        Failure::Rejected => Error::Rejected { op, index },
        Failure::Limit | Failure::TotalLimit => Error::OutputLimit { op, index, limit },
        Failure::Memory(asked) => out_of_memory(asked),
    }
}

fn out_of_memory(asked: usize) -> Error {
    Error::OutOfMemory { place: "the host".to_owned(), asked: asked as u64, free: 0, largest: 0 }
}
