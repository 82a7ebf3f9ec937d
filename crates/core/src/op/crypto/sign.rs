//! Sign and Verify: signatures, and tags of messages.

use super::key::{Key, Purpose};
use super::messages::Messages;
use crate::error::{Error, Result};
use crate::op::{BatchKey, CostClass, Describe};
use crate::part::Value;

/// The fixed cost of checking a tag.
const TAG_COST_BYTES: u64 = 384;
/// Maximal work of one op, as a number of hashed bytes: about 20 seconds of one core, well below
/// the time after which a runtime considers a device stuck.
const WORK_BYTES_MAX: u64 = 25_000_000_000;

/// The signature of each message, which is hashed as the algorithm requires. Signatures of ECDSA
/// and of RSA with PSS are randomised, so no two are equal. Ed25519 signatures follow RFC 8032 on
/// the CPU. GPUs mix fresh randomness into the nonce, so that a fault does not reveal the key;
/// their signatures differ from each other. All of them verify in the same way. More messages than
/// a core signs in about 20 seconds are refused, here and in [`Verify`].
#[derive(Clone, Debug)]
pub struct Sign {
    key: Key,
    messages: Messages,
}

/// Whether each signature is valid for its message, in order. A malformed signature is invalid, not
/// an error.
///
/// With a key made by `Key::hmac` the signatures are tags, which are compared in constant time.
#[derive(Clone, Debug)]
pub struct Verify {
    key: Key,
    messages: Messages,
    signatures: Messages,
}

impl Sign {
    /// Signs each message.
    pub fn new(key: &Key, messages: impl Into<Messages>) -> Sign {
        Sign { key: key.clone(), messages: messages.into() }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The messages to sign.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }
}

impl Verify {
    /// Verifies each message's signature.
    pub fn new(key: &Key, messages: impl Into<Messages>, signatures: impl Into<Messages>) -> Verify {
        Verify { key: key.clone(), messages: messages.into(), signatures: signatures.into() }
    }

    /// The key.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// The signed messages.
    pub fn messages(&self) -> &Messages {
        &self.messages
    }

    /// The signatures.
    pub fn signatures(&self) -> &Messages {
        &self.signatures
    }

    /// The verdicts in an engine's output: one byte for each, 1 or 0.
    pub(in crate::op) fn verdicts(value: Value) -> Result<Vec<bool>> {
        let bytes = value.into_bytes()?;
        let verdicts = bytes.as_slice()?.iter().map(|byte| match byte {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(Error::invalid("the engine's answer", "verdicts of 0 or 1", other)),
        });
        verdicts.collect()
    }
}

/// Refuses more messages than one op may take time for.
fn check_work(what: &'static str, messages: &Messages, each: u64) -> Result<()> {
    let limit = WORK_BYTES_MAX / each.max(1);
    match messages.count() {
        count if count as u64 > limit => {
            let expected = format!("at most {limit} with this algorithm; split the batch into several ops");
            Err(Error::invalid(what, expected, count))
        }
        _ => Ok(()),
    }
}

impl Describe for Sign {
    fn name(&self) -> &'static str {
        "sign"
    }

    fn validate(&self) -> Result<()> {
        match self.key.purpose() {
            Purpose::Sign(algorithm) => {
                self.messages.check()?;
                check_work("sign: number of messages", &self.messages, algorithm.sign_cost_bytes())
            }
            _ => Err(self.key.wrong_purpose("sign: key", "a key made by Key::sign")),
        }
    }

    crate::parts!(messages, key);

    fn work(&self) -> u64 {
        let each = match self.key.purpose() {
            Purpose::Sign(algorithm) => algorithm.sign_cost_bytes(),
            _ => 0,
        };
        (self.messages.count() as u64).saturating_mul(each).saturating_add(self.messages.total_bytes() as u64)
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.key.purpose().algorithm())
    }

    fn batch_key(&self) -> Option<BatchKey> {
        Some(BatchKey::of(("sign", self.key.number())))
    }
}

impl Describe for Verify {
    fn name(&self) -> &'static str {
        "verify"
    }

    fn validate(&self) -> Result<()> {
        if !matches!(self.key.purpose(), Purpose::Verify(_) | Purpose::Hmac(_)) {
            return Err(self.key.wrong_purpose("verify: key", "a key made by Key::verify or Key::hmac"));
        }
        self.messages.check()?;
        self.signatures.check()?;
        if let Purpose::Verify(algorithm) = self.key.purpose() {
            check_work("verify: number of messages", &self.messages, algorithm.verify_cost_bytes())?;
        }
        let (expected, got) = (self.messages.count(), self.signatures.count());
        if expected == got { Ok(()) } else { Err(Error::invalid("verify: signatures", format!("{expected}"), got)) }
    }

    crate::parts!(messages, signatures, key);

    fn work(&self) -> u64 {
        let each = match self.key.purpose() {
            Purpose::Verify(algorithm) => algorithm.verify_cost_bytes(),
            _ => TAG_COST_BYTES,
        };
        (self.messages.count() as u64).saturating_mul(each).saturating_add(self.messages.total_bytes() as u64)
    }

    fn cost_class(&self) -> CostClass {
        CostClass::labelled(self.key.purpose().algorithm())
    }

    fn batch_key(&self) -> Option<BatchKey> {
        Some(BatchKey::of(("verify", self.key.number())))
    }
}
