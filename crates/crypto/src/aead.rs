//! Encryption with authentication.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use panoply_core::op::crypto::{AeadAlgorithm, NonceBytes};
use zeroize::Zeroize;

use crate::Failure;

/// An expanded key.
pub struct AeadKey(LessSafeKey);

impl AeadKey {
    /// `None` where the material is of another length.
    pub fn new(algorithm: AeadAlgorithm, material: &[u8]) -> Option<AeadKey> {
        Some(AeadKey(LessSafeKey::new(UnboundKey::new(library(algorithm), material).ok()?)))
    }

    /// Seals `message` into `text`, which is as long, and `tag`, which has 16 bytes.
    pub fn seal(
        &self,
        nonce: &NonceBytes,
        associated: &[u8],
        message: &[u8],
        text: &mut [u8],
        tag: &mut [u8],
    ) -> Result<(), Failure> {
        let (nonce, associated) = (Nonce::assume_unique_for_key(*nonce), Aad::from(associated));
        self.0.seal_out_of_place_scatter(nonce, associated, message, text, &[], tag).map_err(|_| Failure::Rejected)
    }

    /// Opens `text` into `message`, which is as long. Where the tag is not right nothing of the message is left there.
    pub fn open(
        &self,
        nonce: &NonceBytes,
        associated: &[u8],
        text: &[u8],
        tag: &[u8],
        message: &mut [u8],
    ) -> Result<(), Failure> {
        let (key_nonce, data) = (Nonce::assume_unique_for_key(*nonce), Aad::from(associated));
        self.0.open_separate_gather(key_nonce, data, text, tag, message).map_err(|_| {
            message.zeroize();
            Failure::Rejected
        })
    }
}

fn library(algorithm: AeadAlgorithm) -> &'static Algorithm {
    match algorithm {
        AeadAlgorithm::Aes128Gcm => &AES_128_GCM,
        AeadAlgorithm::Aes192Gcm => &AES_192_GCM,
        AeadAlgorithm::Aes256Gcm => &AES_256_GCM,
        AeadAlgorithm::ChaCha20Poly1305 => &CHACHA20_POLY1305,
    }
}
