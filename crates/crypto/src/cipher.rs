//! AES without authentication.

use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext,
    UnboundCipherKey,
};
use panoply_core::op::crypto::CipherAlgorithm;

use crate::Failure;

/// How long a block is.
pub const BLOCK_BYTES: usize = 16;

/// A block: an initial vector, or a counter.
pub type Block = [u8; BLOCK_BYTES];

/// An expanded key.
pub struct CipherKey {
    chain: EncryptingKey,
    unchain: DecryptingKey,
    count: EncryptingKey,
}

impl CipherKey {
    /// `None` where the material is of another length.
    pub fn new(algorithm: CipherAlgorithm, material: &[u8]) -> Option<CipherKey> {
        let key = || UnboundCipherKey::new(library(algorithm), material).ok();
        let (chain, unchain) = (EncryptingKey::cbc(key()?).ok()?, DecryptingKey::cbc(key()?).ok()?);
        Some(CipherKey { chain, unchain, count: EncryptingKey::ctr(key()?).ok()? })
    }

    /// Encrypts whole blocks in place, each chained to the one before.
    pub fn encrypt_chained(&self, vector: &Block, blocks: &mut [u8]) -> Result<(), Failure> {
        let context = EncryptionContext::Iv128(vector.into());
        self.chain.less_safe_encrypt(blocks, context).map(drop).map_err(|_| Failure::Rejected)
    }

    /// Decrypts whole blocks in place, each chained to the one before.
    pub fn decrypt_chained(&self, vector: &Block, blocks: &mut [u8]) -> Result<(), Failure> {
        let context = DecryptionContext::Iv128(vector.into());
        self.unchain.decrypt(blocks, context).map(drop).map_err(|_| Failure::Rejected)
    }

    /// Encrypts or decrypts in place, with a counter of 128 bits that starts `skipped` blocks after the vector.
    pub fn apply_counted(&self, vector: &Block, skipped: u64, bytes: &mut [u8]) -> Result<(), Failure> {
        let start = u128::from_be_bytes(*vector).wrapping_add(u128::from(skipped)).to_be_bytes();
        let context = EncryptionContext::Iv128((&start).into());
        self.count.less_safe_encrypt(bytes, context).map(drop).map_err(|_| Failure::Rejected)
    }
}

/// Writes the padding of PKCS#7 behind a message of `len` bytes, up to the end of `blocks`.
pub fn pad(blocks: &mut [u8], len: usize) {
    let padding = (blocks.len() - len) as u8;
    blocks[len..].fill(padding);
}

/// How long the message in padded blocks is. What the padding is like decides nothing before all of it was looked at.
pub fn unpadded_len(blocks: &[u8]) -> Result<usize, Failure> {
    let Some(last) = blocks.last_chunk::<BLOCK_BYTES>() else { return Err(Failure::Rejected) };
    let padding = last[BLOCK_BYTES - 1];
    let mut wrong = u8::from(padding == 0) | u8::from(padding > BLOCK_BYTES as u8);
    for (index, byte) in last.iter().enumerate() {
        // All ones where the byte belongs to the padding.
        let inside = ((BLOCK_BYTES as i16 - 1 - index as i16 - i16::from(padding)) >> 15) as u8;
        wrong |= inside & (byte ^ padding);
    }
    match std::hint::black_box(wrong) {
        0 => Ok(blocks.len() - usize::from(padding)),
        _ => Err(Failure::Rejected),
    }
}

fn library(algorithm: CipherAlgorithm) -> &'static Algorithm {
    match algorithm {
        CipherAlgorithm::Aes128 => &AES_128,
        CipherAlgorithm::Aes192 => &AES_192,
        CipherAlgorithm::Aes256 => &AES_256,
    }
}
