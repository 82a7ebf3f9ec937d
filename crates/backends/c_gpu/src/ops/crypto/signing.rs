//! Sign with Ed25519 and with ECDSA over P-256 and P-384: one thread for each message, all under
//! one key.
//!
//! Everything runs on the device, in constant time: the nonces, the multiple of the base (a thread
//! reads every entry of the table and selects one by masks), and the rest. Expanded keys lie in
//! memory that is wiped after the op; nonces lie in registers, or in spill memory that the device
//! assigns to threads.
//!
//! Two signatures of one message with one nonce, or with nonces that differ by a known number,
//! reveal the private key. RFC 8032 and RFC 6979 derive nonces from the key and the message alone,
//! so one flipped bit is enough: in a signature it makes an invalid signature, in a nonce a valid
//! one. Two measures prevent this, and both are needed:
//!
//! 1. Nonces are hedged. For each op the host draws as many random bytes of the system as a nonce
//!    has. The nonce is a hash of these bytes, the message's index in the op, the key and the
//!    message: RFC 6979, 3.6, for ECDSA, and for Ed25519 a first block of SHA-512 that contains
//!    them beside the prefix. So the nonces of two signatures are unrelated, and a fault in a
//!    nonce, or a message that changes between two reads, reveals nothing. With poor randomness the
//!    nonces are still as good as those of the RFCs. Therefore Ed25519 signatures differ from those
//!    of RFC 8032, and two of one message differ; they verify as usual.
//! 2. A second kernel verifies every signature before any is handed out, with tables of its own,
//!    under the public key that the host has (ECDSA), or that a second expansion of the seed gives
//!    (Ed25519): a fault in the key's expansion, in a table or in a signature does not verify.
//!    Signatures that go to the host are read once before and once after verification, from
//!    different addresses: both copies must be equal. If one does not verify, the op ends with a
//!    device fault, and none of its signatures is handed out. Another device can run the op.
//!
//! The check uses the message as the device has it. A message that was altered on its way there
//! gets a valid signature of the altered message, which reveals nothing about the key.
//!
//! Keys in uncommon encodings are left to other devices.

use panoply_core::op::crypto::{EcdsaEncoding, HashAlgorithm, Key, Purpose, Sign, SignatureAlgorithm};
use panoply_core::{Bytes, DType, DeviceId, Error, Result, Tensor, Value};
use panoply_kernels::c::{ECDSA_SIGN, ED25519_SIGN, Kernel};
use zeroize::Zeroizing;

use super::answer::{KernelOutput, OutputPlace};
use super::ecdsa::{Curve, Number};
use super::signatures::{Signatures, base_table, thread_each};
use super::{ed25519, sha};
use crate::arguments::Arguments;
use crate::context::{Context, WipedBuffer};
use crate::driver::{Address, Launch};
use crate::ops::messages::{Batch, DeviceMessages, Terms, place_plain, place_secrets};

/// Bytes of Ed25519's numbers, of which a signature has two.
const NUMBER_BYTES: usize = 32;
/// Offset of the second copy of the signatures: not a multiple of their length.
const SHIFT_BYTES: usize = 48;
/// Bits of a window of the tables. Each entry is read for each message.
const WINDOW: usize = 4;
/// Bytes of an expanded Ed25519 key: the factor, the prefix that is hashed before a message, the
/// public key, both coordinates of its negative, and the public key once more.
const EXPANDED_BYTES: usize = 6 * NUMBER_BYTES;
/// Offsets in the expanded key: the coordinates of the public key's negative, and the second copy
/// of the public key.
const OPPOSITE_OFFSET: usize = 3 * NUMBER_BYTES;
const PUBLIC_OFFSET: usize = 5 * NUMBER_BYTES;
/// The bytes before the seed in PKCS#8.
const ED25519_PREFIX: [u8; 16] =
    [0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20];
/// Words that are hashed before the message for the Ed25519 nonce: a whole block of SHA-512.
const HEDGED_HEAD_WORDS: usize = 32;
/// Whether this is a private key on the host, in a supported form.
pub(super) fn is_for(key: &Key) -> bool {
    private_key(key).is_some()
}

/// A key's secret, with the data that comes with it.
enum PrivateKey<'a> {
    Ed25519 { seed: &'a [u8; NUMBER_BYTES] },
    Ecdsa { curve: &'static Curve, secret: &'a [u8], public: &'a [u8], encoding: EcdsaEncoding },
}

impl PrivateKey<'_> {
    /// Bytes of each of both numbers of a signature, as kernels write them.
    fn number_bytes(&self) -> usize {
        match self {
            PrivateKey::Ed25519 { .. } => NUMBER_BYTES,
            PrivateKey::Ecdsa { curve, .. } => curve.number_bytes(),
        }
    }
}

fn private_key(key: &Key) -> Option<PrivateKey<'_>> {
    let pkcs8 = key.material().as_slice().ok()?;
    match key.purpose() {
        Purpose::Sign(SignatureAlgorithm::Ed25519) => {
            Some(PrivateKey::Ed25519 { seed: pkcs8.strip_prefix(&ED25519_PREFIX)?.try_into().ok()? })
        }
        Purpose::Sign(algorithm) => {
            let (curve, encoding) = Curve::of(algorithm)?;
            let rest = pkcs8.strip_prefix(curve.secret_prefix)?;
            let (secret, rest) = rest.split_at_checked(curve.number_bytes())?;
            let public = rest.strip_prefix(curve.public_prefix)?;
            (public.len() == 2 * curve.number_bytes()).then_some(PrivateKey::Ecdsa { curve, secret, public, encoding })
        }
        _ => None,
    }
}

pub(super) fn sign(op: &Sign, context: &mut Context) -> Result<Value> {
    let key = private_key(op.key()).ok_or_else(|| op.key().invalid())?;
    if let PrivateKey::Ecdsa { curve, secret, .. } = &key
        && !is_below_order(curve, secret)
    {
        return Err(op.key().invalid());
    }
    let (texts, number_bytes) = (DeviceMessages::new(op.messages(), context)?, key.number_bytes());
    let signature_bytes = 2 * number_bytes;
    let terms = Terms { behind: 0, unit_bytes: 1, answer_len: &|_| signature_bytes, data: None };
    let batch = Batch::new(&texts, &terms, context)?;
    let is_der = matches!(key, PrivateKey::Ecdsa { encoding: EcdsaEncoding::Der, .. });
    // Only the host knows the length of the DER form.
    let place = if is_der { OutputPlace::Host } else { OutputPlace::of(texts.is_resident) };
    let made = KernelOutput::new(batch.answer_bytes(), place, context)?;
    let count = batch.count();
    if count == 0 {
        return made.into_value(op.messages(), batch.into_offsets(), context);
    }
    let arguments = Arguments::new().address(made.address).address(texts.address).address(batch.rows());
    match &key {
        PrivateKey::Ed25519 { seed } => sign_ed25519(*seed, &batch, arguments, context)?,
        PrivateKey::Ecdsa { curve, secret, public, .. } => {
            sign_ecdsa(curve, &[secret, public], &batch, arguments, context)?;
        }
    }
    let before = match place {
        OutputPlace::Device => None,
        OutputPlace::Host | OutputPlace::Secret => Some(context.download_wiped(made.address, count * signature_bytes)?),
    };
    let (verdicts, batch) = verified(op.key(), &key, made.address, texts, batch, context)?;
    let Some(before) = before else {
        let (device, value) = (context.device, made.into_value(op.messages(), batch.into_offsets(), context)?);
        context.finish_with(Box::new(move |value| check_verdicts(&verdicts, device).map(|()| value)));
        return Ok(value);
    };
    let again = shifted(made.address, count * signature_bytes, context)?;
    let (like, offsets, device) = (op.messages().clone(), batch.into_offsets(), context.device);
    context.finish_with(Box::new(move |_| {
        check_verdicts(&verdicts, device)?;
        let signatures = before.0.bytes();
        if again.0.bytes().get(SHIFT_BYTES..) != Some(signatures) {
            let reason = "signatures have changed while they were verified".to_owned();
            return Err(Error::DeviceFault { device, reason });
        }
        if !is_der {
            return like.like(Bytes::from_vec(signatures.to_vec()), offsets)?.into_value();
        }
        let (mut bytes, mut offsets) = (Vec::new(), vec![0]);
        for signature in signatures.chunks_exact(signature_bytes) {
            write_der(signature.split_at(number_bytes).into(), &mut bytes);
            offsets.push(bytes.len());
        }
        like.like(Bytes::from_vec(bytes), offsets)?.into_value()
    }));
    Ok(Value::Tensor(Tensor::zeros(DType::U8, [0])?))
}

/// Reports a device fault if one of its signatures does not verify.
fn check_verdicts(verdicts: &WipedBuffer, device: DeviceId) -> Result<()> {
    match verdicts.0.bytes().iter().position(|verdict| *verdict != 1) {
        Some(index) => {
            let reason = format!("its signature of message {index} does not verify");
            Err(Error::DeviceFault { device, reason })
        }
        None => Ok(()),
    }
}

/// A second copy of signatures for the host, moved by [`SHIFT_BYTES`]: a link or a memory with a
/// fault at a fixed position does not alter both copies alike.
fn shifted(signatures: Address, bytes: usize, context: &mut Context) -> Result<WipedBuffer> {
    let copy = context.scratch(bytes + SHIFT_BYTES)?;
    context.fill(copy, 0, SHIFT_BYTES)?;
    context.copy(copy + SHIFT_BYTES, signatures, bytes)?;
    context.download_wiped(copy, bytes + SHIFT_BYTES)
}

/// Makes the device verify its signatures; the verdicts may be read when the op has finished.
fn verified(
    key: &Key,
    private: &PrivateKey<'_>,
    signatures: Address,
    texts: DeviceMessages,
    batch: Batch,
    context: &mut Context,
) -> Result<(WipedBuffer, Batch)> {
    let count = batch.count();
    let given = DeviceMessages::written(signatures, count, 2 * private.number_bytes());
    let terms = Terms { behind: 0, unit_bytes: 1, answer_len: &|_| 1, data: None };
    let given_batch = Batch::new(&given, &terms, context)?;
    let verdicts = context.scratch(count)?;
    // A verdict that no kernel writes counts as invalid.
    context.fill(verdicts, 0, count)?;
    let all = Signatures { texts, batch, given, given_batch, verdicts };
    match private {
        PrivateKey::Ed25519 { seed } => {
            // Uses neither the expansion that signed nor the copy of the public key that it hashed,
            // so a fault in those is detected.
            let (expanded, _, _) = expanded_ed25519(*seed, context)?;
            ed25519::launch_verify(&all, expanded + OPPOSITE_OFFSET, expanded + PUBLIC_OFFSET, context)?;
        }
        PrivateKey::Ecdsa { curve, public, .. } => {
            let point = curve.decoded(public).ok_or_else(|| key.invalid())?;
            curve.launch_verify(&all, &point, false, context)?;
        }
    }
    Ok((context.download_wiped(verdicts, count)?, all.batch))
}

/// The expanded seed on the device, with the table of the base and the initial state of SHA-512.
fn expanded_ed25519(seed: &[u8], context: &mut Context) -> Result<(Address, Address, Address)> {
    let bytes = ed25519::multiples_bytes(WINDOW, 1);
    let table = base_table(
        |tables| &mut tables.ed25519,
        bytes,
        context,
        |table, context| ed25519::make_multiples(table, Address::NULL, WINDOW, 1, context),
    )?;
    let (seed, expanded) = (place_secrets(&[seed], context)?, context.secret_scratch(EXPANDED_BYTES)?);
    let first = place_plain(sha::first_state(HashAlgorithm::Sha512), context)?;
    let mut expand = Arguments::new().address(expanded).address(seed).address(table).address(first);
    context.launch(&ed25519_kernel("ed25519_expand", true), Launch::new(1, 32), &mut expand)?;
    Ok((expanded, table, first))
}

fn ed25519_kernel(entry: &'static str, is_key: bool) -> Kernel {
    Kernel::new(ED25519_SIGN, entry).flag("WIDE", true).flag("EXPAND", is_key)
}

/// Fresh randomness of the system for the nonces of one op, on the device. `None` only in tests of
/// published signatures.
fn noise(bytes: usize, context: &mut Context) -> Result<Option<Address>> {
    #[cfg(test)]
    if tests::ARE_AS_PUBLISHED.get() {
        return Ok(None);
    }
    let mut noise = Zeroizing::new(vec![0; bytes]);
    getrandom::fill(&mut noise[..])
        .map_err(|error| Error::invalid("sign: nonces", "the system's randomness", error))?;
    place_secrets(&[&noise[..]], context).map(Some)
}

fn sign_ed25519(seed: &[u8], batch: &Batch, arguments: Arguments, context: &mut Context) -> Result<()> {
    let (expanded, table, first) = expanded_ed25519(seed, context)?;
    let noise = noise(NUMBER_BYTES, context)?;
    let arguments = arguments.address(table).address(expanded).address(first).address(noise.unwrap_or(Address::NULL));
    let kernel = ed25519_kernel("ed25519_sign", false).flag("HEDGED", noise.is_some());
    let kernel = kernel.integer("HEAD_WORDS", HEDGED_HEAD_WORDS);
    context.launch(&kernel, thread_each(batch.count()), &mut batch.add_to(arguments))
}

/// Signs with the private key and both coordinates of the public key.
fn sign_ecdsa(
    curve: &'static Curve,
    key: &[&[u8]],
    batch: &Batch,
    arguments: Arguments,
    context: &mut Context,
) -> Result<()> {
    let table = base_table(
        |tables| tables.of(curve),
        curve.multiples_bytes(WINDOW, 1),
        context,
        |table, context| curve.make_multiples(table, Address::NULL, WINDOW, 1, context),
    )?;
    let key = place_secrets(key, context)?;
    let first = place_plain(sha::first_state(curve.hash), context)?;
    let noise = noise(curve.number_bytes(), context)?;
    let complaint = context.approval(foreign_public, curve.number_bytes() as u64)?;
    let arguments = arguments.address(table).address(key).address(first).address(noise.unwrap_or(Address::NULL));
    let arguments = arguments.address(complaint);
    let kernel = curve.kernel(ECDSA_SIGN, "ecdsa_sign").flag("HEDGED", noise.is_some());
    // One more thread checks the key.
    context.launch(&kernel, thread_each(batch.count() + 1), &mut batch.add_to(arguments))
}

/// The error for a private key, with numbers of `bytes` bytes, whose public key belongs to another
/// key.
fn foreign_public(_: u64, bytes: u64) -> Error {
    let algorithm = match bytes {
        32 => SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der),
        _ => SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Der),
    };
    Error::InvalidKey { algorithm: algorithm.name() }
}

/// Whether a private key is valid: not zero, and below the order. Runs in constant time.
fn is_below_order(curve: &Curve, secret: &[u8]) -> bool {
    let words: Zeroizing<Number> = Zeroizing::new(curve.number(secret));
    let (mut borrow, mut any) = (0, 0);
    for (word, most) in words.iter().zip(curve.order) {
        borrow = (u128::from(*word).wrapping_sub(u128::from(most)).wrapping_sub(borrow) >> 64) & 1;
        any |= word;
    }
    borrow == 1 && any != 0
}

/// Writes both numbers of a signature as a DER SEQUENCE.
fn write_der(numbers: [&[u8]; 2], to: &mut Vec<u8>) {
    let start = to.len();
    to.extend([0x30, 0]);
    for number in numbers {
        let zeros = number.iter().take(number.len() - 1).take_while(|byte| **byte == 0).count();
        let number = &number[zeros..];
        // A zero byte precedes a number with its highest bit set, since numbers are not negative.
        let sign: &[u8] = if number[0] >= 0x80 { &[0] } else { &[] };
        to.extend([0x02, (sign.len() + number.len()) as u8]);
        to.extend(sign.iter().chain(number));
    }
    to[start + 1] = (to.len() - start - 2) as u8;
}

#[cfg(test)]
#[path = "signing_tests.rs"]
mod tests;
