//! Signatures of a batch in lanes: of ECDSA over P-256, and verified ones of Ed25519. What the lanes leave out, and batches too small for
//! them, are the library's.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use aws_lc_rs::encoding::AsBigEndian;
use aws_lc_rs::signature::EcdsaKeyPair;
use panoply_core::op::crypto::{EcdsaEncoding, HashAlgorithm, SignatureAlgorithm};

use crate::edwards::encoded_point;
use crate::hash::hash;
use crate::lanes::{Ed25519Lanes, P256Lanes, P256SignLanes, detected_for_curves, detected_for_hash, hash_alike};

/// Signatures that are worth a thread's while.
const SIGNATURE_LANES: usize = 64;
/// Signatures, in one batch or several, that take as long one by one as it takes to make a key's table.
pub(crate) const ED25519_TABLE_MIN: usize = 14;
pub(crate) const P256_TABLE_MIN: usize = 7;
/// Fewer signatures are verified, or made, faster one by one.
const VERIFIED_MIN: usize = 3;
pub(crate) const SIGNED_MIN: usize = 4;

const HASH_BYTES: usize = 32;
/// What stands before the point in a SubjectPublicKeyInfo of P-256.
const P256_PREFIX: [u8; 26] = [
    0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86, 0x48, 0xce,
    0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00,
];
/// What stands before the coordinates of a point that has both.
const UNCOMPRESSED: u8 = 4;

/// r and s, each with the highest byte first.
type Fixed = [u8; 64];

/// What verifies in lanes under a public key.
pub(crate) struct VerifyLanes {
    source: Option<Source>,
    /// Signatures that there were so far.
    seen: AtomicUsize,
    made: OnceLock<Option<Made>>,
}

/// A point.
enum Source {
    Ed25519([u8; 32]),
    P256([u8; 64], EcdsaEncoding),
}

/// Its tables, which are large.
enum Made {
    Ed25519(Ed25519Lanes),
    P256(P256Lanes, EcdsaEncoding),
}

impl VerifyLanes {
    /// For a key that was found valid.
    pub fn new(algorithm: SignatureAlgorithm, public: &[u8]) -> VerifyLanes {
        let source = match algorithm {
            SignatureAlgorithm::Ed25519 => encoded_point(public).map(|key| Source::Ed25519(*key)),
            SignatureAlgorithm::EcdsaP256(encoding) => {
                let point = public.strip_prefix(&P256_PREFIX).unwrap_or(public);
                let coordinates = point.strip_prefix(&[UNCOMPRESSED]).and_then(|rest| rest.try_into().ok());
                coordinates.map(|coordinates| Source::P256(coordinates, encoding))
            }
            SignatureAlgorithm::EcdsaP384(_) | SignatureAlgorithm::Rsa { .. } => None,
        };
        let source = source.filter(|_| detected_for_curves());
        VerifyLanes { source, seen: AtomicUsize::new(0), made: OnceLock::new() }
    }

    /// Signatures that should be verified together.
    pub fn together(&self) -> usize {
        if self.source.is_some() { SIGNATURE_LANES } else { 1 }
    }

    /// Makes the key's table where so many signatures more, with those that there were, are worth it.
    pub fn prepare(&self, count: usize) {
        let Some(source) = self.source.as_ref().filter(|_| count >= VERIFIED_MIN && self.made.get().is_none()) else {
            return;
        };
        let seen = self.seen.fetch_add(count, Ordering::Relaxed).saturating_add(count);
        match source {
            Source::Ed25519(key) if seen >= ED25519_TABLE_MIN => {
                self.made.get_or_init(|| Ed25519Lanes::new(key).map(Made::Ed25519));
            }
            Source::P256(point, encoding) if seen >= P256_TABLE_MIN => {
                self.made.get_or_init(|| P256Lanes::new(point).map(|lanes| Made::P256(lanes, *encoding)));
            }
            Source::Ed25519(_) | Source::P256(..) => {}
        }
    }

    /// A verdict for each signature, or none where another has to be asked.
    pub fn verify(&self, messages: &[&[u8]], signatures: &[&[u8]]) -> Vec<Option<bool>> {
        let mut verdicts = vec![None; messages.len()];
        if messages.len() < VERIFIED_MIN {
            return verdicts;
        }
        match self.made.get() {
            Some(Some(Made::Ed25519(lanes))) => lanes.verify(messages, signatures, &mut verdicts),
            Some(Some(Made::P256(lanes, encoding))) => {
                let fixed: Vec<Option<Fixed>> =
                    signatures.iter().map(|signature| decoded(*encoding, signature)).collect();
                lanes.verify(&digests(messages), &fixed, &mut verdicts);
            }
            Some(None) | None => {}
        }
        verdicts
    }
}

/// What signs in lanes under a private key.
pub(crate) struct SignLanes(Option<(P256SignLanes, EcdsaEncoding)>);

impl SignLanes {
    /// For a key of ECDSA.
    pub fn new(algorithm: SignatureAlgorithm, key: &EcdsaKeyPair) -> SignLanes {
        let SignatureAlgorithm::EcdsaP256(encoding) = algorithm else { return SignLanes(None) };
        let secret = key.private_key().as_be_bytes().ok();
        let lanes = secret.and_then(|secret| P256SignLanes::new(secret.as_ref().try_into().ok()?));
        SignLanes(lanes.map(|lanes| (lanes, encoding)))
    }

    /// Signatures that should be made together.
    pub fn together(&self) -> usize {
        if self.0.is_some() { SIGNATURE_LANES } else { 1 }
    }

    /// Makes signatures, all of them or none. One of zeros is none either.
    pub fn sign(&self, messages: &[&[u8]]) -> Vec<Fixed> {
        let Some((lanes, _)) = self.0.as_ref().filter(|_| messages.len() >= SIGNED_MIN) else { return Vec::new() };
        let mut random = vec![[0; HASH_BYTES]; messages.len()];
        if !crate::fill_random(random.as_flattened_mut()) {
            return Vec::new();
        }
        let mut made = vec![[0; 64]; messages.len()];
        lanes.sign(&digests(messages), &random, &mut made);
        made
    }

    /// Writes a signature as the key's algorithm encodes it, and says how long that is. `None` where it is none.
    pub fn encode(&self, signature: &Fixed, out: &mut [u8]) -> Option<usize> {
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
        // SAFETY: the CPU was asked.
        done = unsafe { hash_alike(HashAlgorithm::Sha256, messages, digests.as_flattened_mut()) };
    }
    for (message, digest) in messages.iter().zip(&mut digests).skip(done) {
        hash(HashAlgorithm::Sha256, message, digest);
    }
    digests
}

/// r and s in DER: a sequence of two numbers, each with no more bytes than it needs to be above zero.
fn der(signature: &Fixed) -> Vec<u8> {
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

/// r and s, where they are encoded in the one way.
fn decoded(encoding: EcdsaEncoding, signature: &[u8]) -> Option<Fixed> {
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
    // Whatever else differs from the one way is found by going it.
    (der(&fixed) == signature).then_some(fixed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fixed(r: &[u8], s: &[u8]) -> Fixed {
        let mut fixed = [0; 64];
        fixed[32 - r.len()..32].copy_from_slice(r);
        fixed[64 - s.len()..].copy_from_slice(s);
        fixed
    }

    #[test]
    fn signatures_have_one_encoding() {
        let cases: [(Fixed, &[u8]); 4] = [
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
