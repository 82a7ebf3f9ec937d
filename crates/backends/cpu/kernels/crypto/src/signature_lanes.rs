//! Signatures of a batch in lanes: ECDSA over P-256, and verification of Ed25519. The library does
//! the signatures that the lanes leave out, and small batches.

use std::sync::atomic::{AtomicUsize, Ordering};

use aws_lc_rs::encoding::AsBigEndian;
use aws_lc_rs::signature::EcdsaKeyPair;
use panoply_core::once::OnceBox;
use panoply_core::op::crypto::{EcdsaEncoding, HashAlgorithm, SignatureAlgorithm};

use crate::edwards::encoded_point;
use crate::hash::hash;
use crate::lanes::{Ed25519Lanes, P256Lanes, P256SignLanes, detected_for_curves, detected_for_hash, hash_alike};

/// Number of signatures that are worth a thread.
const SIGNATURE_LANES: usize = 64;
/// Number of signatures, in one batch or several, that take as long one by one as making a key's
/// table.
pub(crate) const ED25519_TABLE_MIN: usize = 14;
pub(crate) const P256_TABLE_MIN: usize = 7;
/// Fewer signatures are verified or made faster one by one.
const VERIFIED_MIN: usize = 3;
pub(crate) const SIGNED_MIN: usize = 4;

const HASH_BYTES: usize = 32;
/// The bytes before the point in a SubjectPublicKeyInfo of P-256.
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// The byte before the coordinates of an uncompressed point.
const UNCOMPRESSED: u8 = 4;

/// r and s, big-endian.
type FixedSignature = [u8; 64];

/// Verifies in lanes under a public key.
pub(crate) struct VerifyLanes {
    source: Option<PublicPoint>,
    /// Number of signatures so far.
    seen: AtomicUsize,
    made: OnceBox<Option<KeyTables>>,
}

/// The point of a key.
enum PublicPoint {
    Ed25519([u8; 32]),
    P256([u8; 64], EcdsaEncoding),
}

/// The tables of a key, which are large.
enum KeyTables {
    Ed25519(Ed25519Lanes),
    P256(P256Lanes, EcdsaEncoding),
}

impl VerifyLanes {
    /// For a valid key.
    pub fn new(algorithm: SignatureAlgorithm, public: &[u8]) -> VerifyLanes {
        let source = match algorithm {
            SignatureAlgorithm::Ed25519 => encoded_point(public).map(|key| PublicPoint::Ed25519(*key)),
            SignatureAlgorithm::EcdsaP256(encoding) => {
                let point = public.strip_prefix(&P256_PREFIX).unwrap_or(public);
                let coordinates = point.strip_prefix(&[UNCOMPRESSED]).and_then(|rest| rest.try_into().ok());
                coordinates.map(|coordinates| PublicPoint::P256(coordinates, encoding))
            }
            SignatureAlgorithm::EcdsaP384(_) | SignatureAlgorithm::Rsa { .. } => None,
        };
        let source = source.filter(|_| detected_for_curves());
        VerifyLanes { source, seen: AtomicUsize::new(0), made: OnceBox::new() }
    }

    /// Number of signatures that should be verified together.
    pub fn together(&self) -> usize {
        if self.source.is_some() { SIGNATURE_LANES } else { 1 }
    }

    /// Makes the key's table if `count` more signatures, with the earlier ones, are worth it.
    pub fn prepare(&self, count: usize) {
        let Some(source) = self.source.as_ref().filter(|_| count >= VERIFIED_MIN && self.made.get().is_none()) else {
            return;
        };
        let seen = self.seen.fetch_add(count, Ordering::Relaxed).saturating_add(count);
        match source {
            PublicPoint::Ed25519(key) if seen >= ED25519_TABLE_MIN => {
                self.made.get_or_make(|| Ed25519Lanes::new(key).map(KeyTables::Ed25519));
            }
            PublicPoint::P256(point, encoding) if seen >= P256_TABLE_MIN => {
                self.made.get_or_make(|| P256Lanes::new(point).map(|lanes| KeyTables::P256(lanes, *encoding)));
            }
            PublicPoint::Ed25519(_) | PublicPoint::P256(..) => {}
        }
    }

    /// A verdict for each signature, or `None` if the library must decide.
    pub fn verify(&self, messages: &[&[u8]], signatures: &[&[u8]]) -> Vec<Option<bool>> {
        let mut verdicts = vec![None; messages.len()];
        if messages.len() < VERIFIED_MIN {
            return verdicts;
        }
        match self.made.get() {
            Some(Some(KeyTables::Ed25519(lanes))) => lanes.verify(messages, signatures, &mut verdicts),
            Some(Some(KeyTables::P256(lanes, encoding))) => {
                let fixed: Vec<Option<FixedSignature>> =
                    signatures.iter().map(|signature| decoded(*encoding, signature)).collect();
                lanes.verify(&digests(messages), &fixed, &mut verdicts);
            }
            Some(None) | None => {}
        }
        verdicts
    }
}

/// Signs in lanes under a private key.
pub(crate) struct SignLanes(Option<(P256SignLanes, EcdsaEncoding)>);

impl SignLanes {
    /// For an ECDSA key.
    pub fn new(algorithm: SignatureAlgorithm, key: &EcdsaKeyPair) -> SignLanes {
        let SignatureAlgorithm::EcdsaP256(encoding) = algorithm else { return SignLanes(None) };
        let secret = key.private_key().as_be_bytes().ok();
        let lanes = secret.and_then(|secret| P256SignLanes::new(secret.as_ref().try_into().ok()?));
        SignLanes(lanes.map(|lanes| (lanes, encoding)))
    }

    /// For a key without lanes.
    pub fn none() -> SignLanes {
        SignLanes(None)
    }

    /// Number of signatures that should be made together.
    pub fn together(&self) -> usize {
        if self.0.is_some() { SIGNATURE_LANES } else { 1 }
    }

    /// Makes all signatures or none. A signature of zeros is invalid too.
    pub fn sign(&self, messages: &[&[u8]]) -> Vec<FixedSignature> {
        let Some((lanes, _)) = self.0.as_ref().filter(|_| messages.len() >= SIGNED_MIN) else { return Vec::new() };
        let mut random = vec![[0; HASH_BYTES]; messages.len()];
        if !crate::random::fill_random(random.as_flattened_mut()) {
            return Vec::new();
        }
        let mut made = vec![[0; 64]; messages.len()];
        lanes.sign(&digests(messages), &random, &mut made);
        made
    }

    /// Encodes a signature as the key's algorithm requires, and returns its length. `None` if it is
    /// invalid.
    pub fn encode(&self, signature: &FixedSignature, out: &mut [u8]) -> Option<usize> {
        let (_, encoding) = self.0.as_ref().filter(|_| *signature != [0; 64])?;
        let encoded = match encoding {
            EcdsaEncoding::Fixed => signature.to_vec(),
            EcdsaEncoding::Der => der(signature),
        };
        out.get_mut(..encoded.len())?.copy_from_slice(&encoded);
        Some(encoded.len())
    }
}

/// SHA-256 of each message.
fn digests(messages: &[&[u8]]) -> Vec<[u8; HASH_BYTES]> {
    let mut digests = vec![[0; HASH_BYTES]; messages.len()];
    let mut done = 0;
    if detected_for_hash() {
        // SAFETY: the CPU's features were checked.
        done = unsafe { hash_alike(HashAlgorithm::Sha256, messages, digests.as_flattened_mut()) };
    }
    for (message, digest) in messages.iter().zip(&mut digests).skip(done) {
        hash(HashAlgorithm::Sha256, message, digest);
    }
    digests
}

/// r and s in DER: a sequence of two non-negative integers of minimal length.
fn der(signature: &FixedSignature) -> Vec<u8> {
    let mut numbers = Vec::with_capacity(2 * (HASH_BYTES + 3));
    for number in signature.chunks_exact(HASH_BYTES) {
        let zeros = number.iter().take(HASH_BYTES - 1).take_while(|byte| **byte == 0).count();
        let number = &number[zeros..];
        let zero: &[u8] = if number[0] >= 0x80 { &[0] } else { &[] };
        numbers.extend([0x02, (zero.len() + number.len()) as u8]);
        numbers.extend(zero.iter().chain(number));
    }
    let mut encoded = vec![0x30, numbers.len() as u8];
    encoded.append(&mut numbers);
    encoded
}

/// r and s, if they are canonically encoded.
fn decoded(encoding: EcdsaEncoding, signature: &[u8]) -> Option<FixedSignature> {
    if encoding == EcdsaEncoding::Fixed {
        return signature.try_into().ok();
    }
    let mut fixed = [0; 64];
    let mut rest = signature.get(2..)?;
    for place in fixed.chunks_exact_mut(HASH_BYTES) {
        let [_, len, behind @ ..] = rest else { return None };
        let (number, behind) = behind.split_at_checked(usize::from(*len))?;
        let number = number.strip_prefix(&[0]).unwrap_or(number);
        let skipped = HASH_BYTES.checked_sub(number.len())?;
        place[skipped..].copy_from_slice(number);
        rest = behind;
    }
    // Re-encoding finds every other deviation from the canonical encoding.
    (der(&fixed) == signature).then_some(fixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(r: &[u8], s: &[u8]) -> FixedSignature {
        let mut fixed = [0; 64];
        fixed[32 - r.len()..32].copy_from_slice(r);
        fixed[64 - s.len()..].copy_from_slice(s);
        fixed
    }

    #[test]
    fn signatures_have_one_encoding() {
        let cases: [(FixedSignature, &[u8]); 4] = [
            (fixed(&[1], &[0x7f]), &[0x30, 6, 2, 1, 1, 2, 1, 0x7f]),
            (fixed(&[0x80], &[0]), &[0x30, 7, 2, 2, 0, 0x80, 2, 1, 0]),
            (fixed(&[1, 0], &[0xff, 2]), &[0x30, 9, 2, 2, 1, 0, 2, 3, 0, 0xff, 2]),
            (fixed(&[], &[0, 1]), &[0x30, 6, 2, 1, 0, 2, 1, 1]),
        ];
        for (numbers, encoded) in cases {
            assert_eq!(der(&numbers), encoded);
            assert_eq!(decoded(EcdsaEncoding::Der, encoded), Some(numbers));
        }
        let longest = der(&[0xff; 64]);
        assert_eq!((longest.len(), decoded(EcdsaEncoding::Der, &longest)), (72, Some([0xff; 64])));
        let others: [&[u8]; 11] = [
            &[],
            &[0x30],
            &[0x30, 0],
            &[0x30, 6, 2, 1, 1, 2, 1],
            &[0x30, 6, 2, 1, 1, 2, 1, 1, 0],
            &[0x30, 7, 2, 2, 0, 1, 2, 1, 1],
            &[0x30, 6, 2, 1, 1, 2, 1, 0x80],
            &[0x30, 5, 2, 0, 2, 1, 1],
            &[0x31, 6, 2, 1, 1, 2, 1, 1],
            &[0x30, 6, 3, 1, 1, 2, 1, 1],
            &[0x30, 0x81, 6, 2, 1, 1, 2, 1, 1],
        ];
        for encoded in others {
            assert_eq!(decoded(EcdsaEncoding::Der, encoded), None, "{encoded:?}");
        }
        assert_eq!(decoded(EcdsaEncoding::Fixed, &[1; 63]), None);
    }
}
