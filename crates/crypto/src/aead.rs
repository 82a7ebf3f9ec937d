//! Encryption with authentication.

use aws_lc_rs::aead::{
    AES_128_GCM, AES_192_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use aws_lc_rs::constant_time::verify_slices_are_equal;
use panoply_core::op::crypto::{AeadAlgorithm, NonceBytes, TAG_BYTES};
use zeroize::Zeroize;

use crate::Failure;
use crate::lanes::ChaChaLanes;

/// Shorter messages are faster with the library's functions.
const LANES_BYTES_MIN: usize = 512;

/// An expanded key.
pub struct AeadKey {
    library: LessSafeKey,
    lanes: Option<ChaChaLanes>,
}

impl AeadKey {
    /// `None` where the material is of another length.
    pub fn new(algorithm: AeadAlgorithm, material: &[u8]) -> Option<AeadKey> {
        let is_chacha = algorithm == AeadAlgorithm::ChaCha20Poly1305;
        let lanes = is_chacha.then(|| ChaChaLanes::new(material)).flatten();
        Some(AeadKey { library: LessSafeKey::new(UnboundKey::new(library(algorithm), material).ok()?), lanes })
    }

    /// Several blocks at a time, where that is wanted, the CPU can, and the message is long enough.
    fn lanes(&self, wide: bool, len: usize) -> Option<&ChaChaLanes> {
        self.lanes.as_ref().filter(|_| wide && len >= LANES_BYTES_MIN)
    }

    /// Seals `message` into `text`, which is as long, and `tag`, which has 16 bytes. `wide`, here and below: in vector registers of 512 bits,
    /// where the CPU has them.
    pub fn seal(
        &self,
        nonce: &NonceBytes,
        associated: &[u8],
        message: &[u8],
        text: &mut [u8],
        tag: &mut [u8],
        wide: bool,
    ) -> Result<(), Failure> {
        if let Some(lanes) = self.lanes(wide, message.len()) {
            let places = text.len() == message.len() && tag.len() == TAG_BYTES;
            places
                .then(|| tag.copy_from_slice(&lanes.seal(nonce, associated, message, text)))
                .ok_or(Failure::Rejected)?;
            return Ok(());
        }
        let (nonce, associated) = (Nonce::assume_unique_for_key(*nonce), Aad::from(associated));
        self.library
            .seal_out_of_place_scatter(nonce, associated, message, text, &[], tag)
            .map_err(|_| Failure::Rejected)
    }

    /// Opens `text` into `message`, which is as long. Where the tag is not right nothing of the message is left there.
    pub fn open(
        &self,
        nonce: &NonceBytes,
        associated: &[u8],
        text: &[u8],
        tag: &[u8],
        message: &mut [u8],
        wide: bool,
    ) -> Result<(), Failure> {
        let is_authentic = match self.lanes(wide, text.len()) {
            Some(lanes) => {
                message.len() == text.len()
                    && verify_slices_are_equal(&lanes.open(nonce, associated, text, message), tag).is_ok()
            }
            None => {
                let (nonce, associated) = (Nonce::assume_unique_for_key(*nonce), Aad::from(associated));
                self.library.open_separate_gather(nonce, associated, text, tag, message).is_ok()
            }
        };
        if is_authentic {
            return Ok(());
        }
        message.zeroize();
        Err(Failure::Rejected)
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
