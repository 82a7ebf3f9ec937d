//! Sign and Verify. The host computes digests and paddings, the device the arithmetic with keys.

use panoply_core::op::crypto::*;
use panoply_core::{Error, Result, Value};
use panoply_cpu_crypto::{fill_random, hash};
use zeroize::Zeroizing;

use super::{AnswerError, Continuation, MessageWork, Output, is_equal, succeeded, wrong};
use crate::der::{DerReader, padded, pair};
use crate::instance::Setup;
use crate::keys::{Curve, Signing, Verifying};
use crate::request::{RequestAnswer, RequestParameters};

/// Maximum number of redraws of a nonce that gives no signature. Even one redraw is extremely
/// unlikely.
const DRAWS_MAX: usize = 64;

/// A message to sign.
enum SigningMessage {
    /// For RSA: a padded digest and its signature, which is verified before it is returned.
    Padded { padded: Vec<u8>, signature: Option<Vec<u8>> },
    /// For ECDSA: a digest, a nonce, and both numbers of the signature, which is verified before it
    /// is returned.
    Digest { digest: Vec<u8>, once: Zeroizing<Vec<u8>>, draws: usize, signature: Option<Vec<u8>> },
}

struct Signatures {
    algorithm: SignatureAlgorithm,
    key: Signing,
    form: Messages,
    signed: Vec<SigningMessage>,
    output: Output,
}

pub(super) fn sign(op: &Sign) -> Result<Box<dyn MessageWork>> {
    let Purpose::Sign(algorithm) = op.key().purpose() else { return Err(op.key().invalid()) };
    let key = Signing::of(op.key())?;
    let signed = op.messages().slices()?.into_iter().map(|message| match (algorithm, Curve::of(algorithm)) {
        (SignatureAlgorithm::Rsa { bits, padding, hash }, _) => {
            let digest = digest_of(hash, message);
            let padded = match padding {
                RsaPadding::Pkcs1 => pkcs1(hash, &digest, bits.bytes()),
                RsaPadding::Pss => pss(hash, &digest, bits.bytes())?,
            };
            Ok(SigningMessage::Padded { padded, signature: None })
        }
        (_, Some(curve)) => {
            let digest = digest_of(ecdsa_hash(curve), message);
            Ok(SigningMessage::Digest { digest, once: once(curve)?, draws: 0, signature: None })
        }
        _ => Err(op.key().invalid()),
    });
    let signed = signed.collect::<Result<_>>()?;
    let output = Output::new(op.messages().lens().map(|_| algorithm.signature_bytes_max()), false)?;
    Ok(Box::new(Signatures { algorithm, key, form: op.messages().clone(), signed, output }))
}

impl Signatures {
    fn take_ecdsa(
        &mut self,
        index: usize,
        curve: &'static Curve,
        answer: &RequestAnswer<'_>,
    ) -> Result<Continuation, AnswerError> {
        let SigningMessage::Digest { once: number, draws, signature: made, .. } = &mut self.signed[index] else {
            return Err(wrong("no such request"));
        };
        // A signature with a fault would leak bits of the key, so the device must verify it first.
        if let Some(made) = made.take() {
            return match answer.verdict {
                true => self.write_ecdsa(index, &made, curve),
                false => Err(wrong("a signature does not verify")),
            };
        }
        let is_zero = |number: &[u8]| number.iter().all(|byte| *byte == 0);
        if !answer.verdict || is_zero(answer.bytes) || is_zero(answer.digest) {
            (*number, *draws) = (once(curve)?, *draws + 1);
            return if *draws < DRAWS_MAX {
                Ok(Continuation::Again)
            } else {
                Err(wrong("the device makes no signature"))
            };
        }
        *made = Some([answer.bytes, answer.digest].concat());
        Ok(Continuation::Again)
    }

    /// Writes both numbers of a signature in the algorithm's encoding.
    fn write_ecdsa(
        &mut self,
        index: usize,
        numbers: &[u8],
        curve: &'static Curve,
    ) -> Result<Continuation, AnswerError> {
        let Some((r, s)) = numbers.split_at_checked(curve.bytes) else { return Err(wrong("half a signature")) };
        let signature = match self.algorithm {
            SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der) | SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Der) => {
                pair([r, s])
            }
            _ => numbers.to_vec(),
        };
        match self.output.write(index, &signature) {
            true => Ok(Continuation::Done),
            false => Err(wrong("a signature is longer than it can be")),
        }
    }
}

impl MessageWork for Signatures {
    fn count(&self) -> usize {
        self.signed.len()
    }

    fn setup(&self) -> Setup<'_> {
        Setup::None
    }

    fn ask(&self, index: usize) -> Result<Option<RequestParameters<'_>>> {
        Ok(match (&self.key, &self.signed[index], Curve::of(self.algorithm)) {
            (Signing::Rsa(key), SigningMessage::Padded { padded, signature: None }, _) => {
                Some(RequestParameters::RsaPrivate { key, input: padded })
            }
            (Signing::Rsa(key), SigningMessage::Padded { signature: Some(signature), .. }, _) => {
                Some(RequestParameters::RsaPublic { key: &key.public, input: signature })
            }
            (
                Signing::Ecdsa { private, .. },
                SigningMessage::Digest { digest, once, signature: None, .. },
                Some(curve),
            ) => Some(RequestParameters::EcdsaSign { curve, private, once, digest }),
            (
                Signing::Ecdsa { point, .. },
                SigningMessage::Digest { digest, signature: Some(signature), .. },
                Some(curve),
            ) => Some(RequestParameters::EcdsaVerify { curve, point, digest, signature }),
            _ => None,
        })
    }

    fn take(&mut self, index: usize, answer: &RequestAnswer<'_>) -> Result<Continuation, AnswerError> {
        if let Some(curve) = Curve::of(self.algorithm) {
            succeeded("cpaCyEcdsaSignRS or cpaCyEcdsaVerify", answer)?;
            return self.take_ecdsa(index, curve, answer);
        }
        succeeded("cpaCyRsaDecrypt", answer)?;
        let SigningMessage::Padded { padded, signature } = &mut self.signed[index] else {
            return Err(wrong("no such request"));
        };
        match signature {
            // A signature that is wrong modulo one prime would reveal the key, so the device's
            // public function must confirm it first.
            None => {
                *signature = Some(answer.bytes.to_vec());
                Ok(Continuation::Again)
            }
            Some(signature) if is_equal(answer.bytes, padded) && self.output.write(index, signature) => {
                Ok(Continuation::Done)
            }
            Some(_) => Err(wrong("a signature does not verify")),
        }
    }

    fn value(&mut self) -> Result<Value> {
        self.output.finish(&self.form)?.into_value()
    }
}

/// A signature to verify.
enum Candidate {
    /// The signature is malformed and certainly invalid.
    None,
    /// An RSA signature and the message's digest.
    Rsa { signature: Vec<u8>, digest: Vec<u8> },
    /// Both numbers of an ECDSA signature and the message's digest.
    Ecdsa { pair: Vec<u8>, digest: Vec<u8> },
}

struct Verdicts {
    algorithm: SignatureAlgorithm,
    key: Verifying,
    candidates: Vec<Candidate>,
    output: Output,
}

pub(super) fn verify(op: &Verify) -> Result<Box<dyn MessageWork>> {
    let Purpose::Verify(algorithm) = op.key().purpose() else { return Err(op.key().invalid()) };
    let key = Verifying::of(op.key())?;
    let (messages, signatures) = (op.messages().slices()?, op.signatures().slices()?);
    let candidate = |(message, signature): (&[u8], &[u8])| match (&key, algorithm, Curve::of(algorithm)) {
        (Verifying::Rsa(public), SignatureAlgorithm::Rsa { hash, .. }, _) => {
            // A number not below the modulus is no signature, and the device would refuse it.
            let fits = signature.len() == public.bytes() && signature < &public.modulus[..];
            match fits {
                true => Candidate::Rsa { signature: signature.to_vec(), digest: digest_of(hash, message) },
                false => Candidate::None,
            }
        }
        (_, _, Some(curve)) => match numbers(algorithm, curve, signature) {
            Some(pair) => Candidate::Ecdsa { pair, digest: digest_of(ecdsa_hash(curve), message) },
            None => Candidate::None,
        },
        _ => Candidate::None,
    };
    let candidates = messages.into_iter().zip(signatures).map(candidate).collect();
    let output = Output::new(op.messages().lens().map(|_| 1), false)?;
    Ok(Box::new(Verdicts { algorithm, key, candidates, output }))
}

impl MessageWork for Verdicts {
    fn count(&self) -> usize {
        self.candidates.len()
    }

    fn setup(&self) -> Setup<'_> {
        Setup::None
    }

    fn ask(&self, index: usize) -> Result<Option<RequestParameters<'_>>> {
        Ok(match (&self.key, &self.candidates[index], Curve::of(self.algorithm)) {
            (Verifying::Rsa(key), Candidate::Rsa { signature, .. }, _) => {
                Some(RequestParameters::RsaPublic { key, input: signature })
            }
            (Verifying::Ecdsa(point), Candidate::Ecdsa { pair, digest }, Some(curve)) => {
                Some(RequestParameters::EcdsaVerify { curve, point, digest, signature: pair })
            }
            _ => None,
        })
    }

    fn take(&mut self, index: usize, answer: &RequestAnswer<'_>) -> Result<Continuation, AnswerError> {
        let verdict = match (&self.candidates[index], self.algorithm) {
            (Candidate::Rsa { digest, .. }, SignatureAlgorithm::Rsa { padding, hash, .. }) => {
                succeeded("cpaCyRsaEncrypt", answer)?;
                match padding {
                    RsaPadding::Pkcs1 => answer.bytes == pkcs1(hash, digest, answer.bytes.len()),
                    RsaPadding::Pss => is_pss(hash, digest, answer.bytes),
                }
            }
            _ => {
                succeeded("cpaCyEcdsaVerify", answer)?;
                answer.verdict
            }
        };
        self.output.write(index, &[u8::from(verdict)]);
        Ok(Continuation::Done)
    }

    fn value(&mut self) -> Result<Value> {
        self.output.verdicts().map(Value::Bytes)
    }
}

fn ecdsa_hash(curve: &Curve) -> HashAlgorithm {
    if curve.bytes == 32 { HashAlgorithm::Sha256 } else { HashAlgorithm::Sha384 }
}

fn digest_of(algorithm: HashAlgorithm, message: &[u8]) -> Vec<u8> {
    let mut digest = vec![0; algorithm.digest_bytes()];
    hash::hash(algorithm, message, &mut digest);
    digest
}

/// A random number from 1 to the order minus 1. Numbers out of range are redrawn, so that the
/// distribution is uniform.
fn once(curve: &Curve) -> Result<Zeroizing<Vec<u8>>> {
    let mut number = Zeroizing::new(vec![0; curve.bytes]);
    for _ in 0..DRAWS_MAX {
        if fill_random(&mut number) && is_below_order(curve, &number) {
            return Ok(number);
        }
    }
    Err(Error::invalid("the system's randomness", "numbers below the curve's order", "none"))
}

/// Whether the number is from 1 to the order minus 1.
fn is_below_order(curve: &Curve, number: &[u8]) -> bool {
    number.iter().any(|byte| *byte != 0) && number < curve.order()
}

/// Both numbers of a signature, each as long as the curve's. `None` if the signature is malformed.
fn numbers(algorithm: SignatureAlgorithm, curve: &Curve, signature: &[u8]) -> Option<Vec<u8>> {
    let is_der = matches!(
        algorithm,
        SignatureAlgorithm::EcdsaP256(EcdsaEncoding::Der) | SignatureAlgorithm::EcdsaP384(EcdsaEncoding::Der)
    );
    let both = match is_der {
        false => signature.to_vec(),
        true => {
            let mut outer = DerReader(signature);
            let mut inner = outer.sequence().filter(|_| outer.is_at_end())?;
            let (r, s) = (inner.number()?, inner.number()?);
            if !inner.is_at_end() {
                return None;
            }
            [padded(r, curve.bytes)?, padded(s, curve.bytes)?].concat()
        }
    };
    let valid = both.len() == 2 * curve.bytes && both.chunks(curve.bytes).all(|number| is_below_order(curve, number));
    valid.then_some(both)
}

/// The DER prefix of a digest in PKCS#1, which names the hash algorithm.
fn digest_info(hash: HashAlgorithm) -> [u8; 19] {
    let (number, len) = match hash {
        HashAlgorithm::Sha256 => (1, 32),
        HashAlgorithm::Sha384 => (2, 48),
        HashAlgorithm::Sha512 => (3, 64),
    };
    [0x30, 17 + len, 0x30, 13, 6, 9, 0x60, 0x86, 0x48, 1, 0x65, 3, 4, 2, number, 5, 0, 4, len]
}

/// Pads a digest with PKCS#1 v1.5 (RFC 8017, 9.2).
fn pkcs1(hash: HashAlgorithm, digest: &[u8], bytes: usize) -> Vec<u8> {
    let info = digest_info(hash);
    let ones = vec![0xff; bytes.saturating_sub(3 + info.len() + digest.len())];
    [&[0, 1], &ones[..], &[0], &info, digest].concat()
}

/// Pads a digest with PSS (RFC 8017, 9.1.1), for a modulus of whole bytes and a salt as long as the
/// digest.
fn pss(hash: HashAlgorithm, digest: &[u8], bytes: usize) -> Result<Vec<u8>> {
    let mut salt = vec![0; digest.len()];
    if !fill_random(&mut salt) {
        return Err(Error::invalid("the system's randomness", "some", "none"));
    }
    let salted = digest_of(hash, &[&[0; 8], digest, &salt].concat());
    let zeros = vec![0; bytes - 2 * digest.len() - 2];
    let mut block = [&zeros[..], &[1], &salt].concat();
    mask(hash, &salted, &mut block);
    block[0] &= 0x7f;
    Ok([&block[..], &salted, &[0xbc]].concat())
}

/// Verifies a digest with the padding of PSS (RFC 8017, 9.1.2). Signatures are public, so the time
/// need not be constant.
fn is_pss(hash: HashAlgorithm, digest: &[u8], padded: &[u8]) -> bool {
    let len = digest.len();
    let Some(block_len) = padded.len().checked_sub(len + 1).filter(|block_len| *block_len > len) else { return false };
    let (block, behind) = padded.split_at(block_len);
    let (salted, end) = behind.split_at(len);
    if end != [0xbc] || block[0] & 0x80 != 0 {
        return false;
    }
    let mut block = block.to_vec();
    mask(hash, salted, &mut block);
    block[0] &= 0x7f;
    let (zeros, salt) = block.split_at(block_len - len);
    let is_padding = zeros.split_last().is_some_and(|(one, zeros)| *one == 1 && zeros.iter().all(|byte| *byte == 0));
    is_padding && digest_of(hash, &[&[0; 8], digest, salt].concat()) == salted
}

/// MGF1: XORs a block with the digests of the seed and a counter.
fn mask(hash: HashAlgorithm, seed: &[u8], block: &mut [u8]) {
    for (number, piece) in block.chunks_mut(hash.digest_bytes()).enumerate() {
        let digest = digest_of(hash, &[seed, &(number as u32).to_be_bytes()].concat());
        piece.iter_mut().zip(digest).for_each(|(byte, with)| *byte ^= with);
    }
}
