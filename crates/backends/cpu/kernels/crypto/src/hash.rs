//! SHA-2, HMAC and HKDF.

use aws_lc_rs::{digest, hkdf, hmac};
use panoply_core::op::crypto::HashAlgorithm;

use crate::failure::Failure;

/// Writes the digest of a message; `out` has the length of the algorithm's digest.
pub fn hash(algorithm: HashAlgorithm, message: &[u8], out: &mut [u8]) {
    out.copy_from_slice(digest::digest(digest_algorithm(algorithm), message).as_ref());
}

/// The digest of a message that lies in parts.
pub fn hash_parts(algorithm: HashAlgorithm, parts: &[&[u8]], out: &mut [u8]) {
    let mut context = digest::Context::new(digest_algorithm(algorithm));
    parts.iter().for_each(|part| context.update(part));
    out.copy_from_slice(context.finish().as_ref());
}

/// An expanded HMAC key.
pub struct HmacKey(hmac::Key);

impl HmacKey {
    /// A key from material of any length.
    pub fn new(algorithm: HashAlgorithm, material: &[u8]) -> HmacKey {
        HmacKey(hmac::Key::new(hmac_algorithm(algorithm), material))
    }

    /// Writes the HMAC tag of a message; `out` has the length of the algorithm's digest.
    pub fn tag(&self, message: &[u8], out: &mut [u8]) -> Result<(), Failure> {
        hmac::sign_to_buffer(&self.0, message, out).map(drop).map_err(|_| Failure::Rejected)
    }

    /// Whether this is the whole tag of a message; compared in constant time.
    pub fn verify(&self, message: &[u8], tag: &[u8]) -> bool {
        tag.len() == self.0.algorithm().tag_len() && hmac::verify(&self.0, message, tag).is_ok()
    }
}

/// The extracted key of HKDF, from which keys are derived.
pub struct Derivation {
    algorithm: HashAlgorithm,
    extracted: hkdf::Prk,
}

/// The length of a derived key.
struct Len(usize);

impl hkdf::KeyType for Len {
    fn len(&self) -> usize {
        self.0
    }
}

impl Derivation {
    /// Extracts from a secret and a salt, which may be empty.
    pub fn new(algorithm: HashAlgorithm, salt: &[u8], secret: &[u8]) -> Derivation {
        let library = match algorithm {
            HashAlgorithm::Sha256 => hkdf::HKDF_SHA256,
            HashAlgorithm::Sha384 => hkdf::HKDF_SHA384,
            HashAlgorithm::Sha512 => hkdf::HKDF_SHA512,
        };
        Derivation { algorithm, extracted: hkdf::Salt::new(library, salt).extract(secret) }
    }

    /// Writes the derived key for `info`, of at most 255 digests.
    pub fn derive(&self, info: &[u8], out: &mut [u8]) -> Result<(), Failure> {
        debug_assert!(out.len() <= 255 * self.algorithm.digest_bytes());
        let infos = [info];
        let key = self.extracted.expand(&infos, Len(out.len())).map_err(|_| Failure::Rejected)?;
        key.fill(out).map_err(|_| Failure::Rejected)
    }
}

fn digest_algorithm(algorithm: HashAlgorithm) -> &'static digest::Algorithm {
    match algorithm {
        HashAlgorithm::Sha256 => &digest::SHA256,
        HashAlgorithm::Sha384 => &digest::SHA384,
        HashAlgorithm::Sha512 => &digest::SHA512,
    }
}

fn hmac_algorithm(algorithm: HashAlgorithm) -> hmac::Algorithm {
    match algorithm {
        HashAlgorithm::Sha256 => hmac::HMAC_SHA256,
        HashAlgorithm::Sha384 => hmac::HMAC_SHA384,
        HashAlgorithm::Sha512 => hmac::HMAC_SHA512,
    }
}
