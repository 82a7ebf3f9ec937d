//! Ciphers, hashes and signatures of many messages at once.
//!
//! Messages on the host are brought to the device, and their outputs go back to the host; messages
//! on the device stay there. Outputs that are secret, or whose lengths depend on their content,
//! always come to the host. Keys come with each op, and are expanded for it: the device's memory
//! contains nothing of a key when its op has finished. No kernel has a table, an address or a
//! branch that depends on a secret. Signatures to be verified are public.

use panoply_core::backend::FirstGuess;
use panoply_core::op::crypto::{CipherMode, CryptoOp, Messages};
use panoply_core::{Describe, DeviceInfo, Error, Location, Op, Result, Support, Value};

use crate::context::Context;

mod aes;
mod answer;
mod chacha;
mod ecdsa;
mod ed25519;
mod edwards;
mod gcm;
mod pack;
mod rsa;
mod seal;
mod sha;
mod signatures;
mod signing;
mod unpack;

/// Why an op of the domain is not supported.
const NO_KERNEL: &str = "of the crypto domain it runs ciphers, hashes, blocks of LZ4, bare DEFLATE to be decompressed, signatures of Ed25519 and of ECDSA over P-256 and P-384 under keys in the usual form, and those of RSA to be verified";

pub(super) fn run(op: &CryptoOp, context: &mut Context) -> Result<Value> {
    match op {
        CryptoOp::Seal(op) => seal::seal(op, context),
        CryptoOp::Open(op) => seal::open(op, context),
        CryptoOp::Encrypt(op) => aes::encrypt(op, context),
        CryptoOp::Decrypt(op) => aes::decrypt(op, context),
        CryptoOp::Hash(op) => sha::hash(op, context),
        CryptoOp::Hmac(op) => sha::hmac(op, context),
        CryptoOp::Verify(op) if ed25519::is_for(op.key()) => ed25519::verify(op, context),
        CryptoOp::Verify(op) if ecdsa::is_for(op.key()) => ecdsa::verify(op, context),
        CryptoOp::Verify(op) if rsa::is_for(op.key()) => rsa::verify(op, context),
        CryptoOp::Sign(op) => signing::sign(op, context),
        CryptoOp::Compress(op) => pack::compress(op, context),
        CryptoOp::Decompress(op) => unpack::decompress(op, context),
        other => Err(Error::Unsupported { op: other.describe().name(), reason: NO_KERNEL.to_owned() }),
    }
}

/// Time of one thread for a byte of a message, if the next byte depends on it.
const SERIAL_BYTE_NS: f32 = 30.0;
/// Maximal length of a message processed by one thread: about two seconds.
const SERIAL_BYTES_MAX: usize = 64 << 20;

/// The estimate before an op has run. Host messages and their outputs cross the link: a few cores
/// with vector instructions are faster than that, so such messages are not sent here before a
/// trial. A single signature takes long, thousands take little. If a thread processes a whole
/// message, an op takes at least as long as its longest message.
pub(super) fn first_guess(op: &Op, device: &DeviceInfo) -> FirstGuess {
    let mut is_resident = false;
    op.for_each_part(&mut |part| is_resident |= part.location() == Location::Device(device.id));
    let mut guess = match (op, is_resident) {
        (Op::Crypto(CryptoOp::Verify(_) | CryptoOp::Sign(_)), _) => {
            FirstGuess { overhead_ns: 2_000_000.0, work_unit_ns: 0.005 }
        }
        (_, true) => FirstGuess { overhead_ns: 60_000.0, work_unit_ns: 0.01 },
        (_, false) => FirstGuess { overhead_ns: 100_000.0, work_unit_ns: 1.0 },
    };
    if let Op::Crypto(op) = op
        && let Some(messages) = serial_messages(op)
    {
        guess.overhead_ns += SERIAL_BYTE_NS * messages.lens().max().unwrap_or(0) as f32;
    }
    guess
}

/// The messages of an op that uses one thread for each message, or for a few.
fn serial_messages(op: &CryptoOp) -> Option<&Messages> {
    match op {
        CryptoOp::Hash(op) => Some(&op.messages),
        CryptoOp::Hmac(op) => Some(op.messages()),
        CryptoOp::Encrypt(op) if op.mode() != CipherMode::Ctr => Some(op.messages()),
        CryptoOp::Verify(op) => Some(op.messages()),
        CryptoOp::Sign(op) => Some(op.messages()),
        CryptoOp::Compress(op) => Some(&op.messages),
        CryptoOp::Decompress(op) => Some(&op.messages),
        _ => None,
    }
}

/// The length of the first message that is too long for one thread.
fn too_long(op: &CryptoOp) -> Option<usize> {
    let messages = serial_messages(op).filter(|messages| messages.total_bytes() > SERIAL_BYTES_MAX)?;
    messages.lens().find(|len| *len > SERIAL_BYTES_MAX)
}

pub(super) fn supports(op: &CryptoOp) -> Support {
    if let Some(len) = too_long(op) {
        return Support::No(format!("one thread has a message of {len} bytes, and at most {SERIAL_BYTES_MAX}"));
    }
    match op {
        CryptoOp::Seal(_) | CryptoOp::Open(_) | CryptoOp::Encrypt(_) | CryptoOp::Decrypt(_) => Support::Yes,
        CryptoOp::Hash(_) | CryptoOp::Hmac(_) => Support::Yes,
        CryptoOp::Verify(op) if ed25519::is_for(op.key()) || ecdsa::is_for(op.key()) => Support::Yes,
        CryptoOp::Verify(op) if rsa::is_for(op.key()) => Support::Yes,
        CryptoOp::Sign(op) if signing::is_for(op.key()) => Support::Yes,
        CryptoOp::Compress(op) => pack::supports(op),
        CryptoOp::Decompress(op) => unpack::supports(op),
        _ => Support::No(NO_KERNEL.to_owned()),
    }
}
