//! AES without authentication: CBC and CTR.

use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext,
    UnboundCipherKey,
};
use panoply_core::op::crypto::CipherAlgorithm;
use zeroize::Zeroize;

use crate::failure::Failure;
use crate::lanes::{AesLanes, CHAINED_LANES, CHAINED_LANES_WIDE};

/// Length of a block in bytes.
pub const BLOCK_BYTES: usize = 16;

/// A block: an initialisation vector, or a counter.
pub type AesBlock = [u8; BLOCK_BYTES];

/// An expanded key.
pub struct CipherKey {
    chain: EncryptingKey,
    unchain: DecryptingKey,
    count: EncryptingKey,
    lanes: Option<AesLanes>,
}

impl CipherKey {
    /// Uses lanes if the CPU has them. `None` if the material has the wrong length.
    pub fn new(algorithm: CipherAlgorithm, material: &[u8]) -> Option<CipherKey> {
        CipherKey::with_lanes(algorithm, material, true)
    }

    /// With or without lanes; without, only AWS-LC gets the key.
    pub fn with_lanes(algorithm: CipherAlgorithm, material: &[u8], wide: bool) -> Option<CipherKey> {
        let key = || UnboundCipherKey::new(library(algorithm), material).ok();
        let (chain, unchain) = (EncryptingKey::cbc(key()?).ok()?, DecryptingKey::cbc(key()?).ok()?);
        let lanes = if wide { AesLanes::new(material) } else { None };
        Some(CipherKey { chain, unchain, count: EncryptingKey::ctr(key()?).ok()?, lanes })
    }

    /// The lanes, if `wide` asks for them and the CPU has them.
    fn lanes(&self, wide: bool) -> Option<&AesLanes> {
        self.lanes.as_ref().filter(|_| wide)
    }

    /// Encrypts whole blocks in place in CBC mode.
    pub fn encrypt_chained(&self, vector: &AesBlock, blocks: &mut [u8]) -> Result<(), Failure> {
        let context = EncryptionContext::Iv128(vector.into());
        self.chain.less_safe_encrypt(blocks, context).map(drop).map_err(|_| Failure::Rejected)
    }

    /// Encrypts several messages in CBC mode, each with its vector, into texts of the same length,
    /// or longer by their padding. `wide`, here and below, processes several blocks at a time if
    /// the CPU can.
    pub fn encrypt_all_chained(
        &self,
        vectors: &[AesBlock],
        messages: &[&[u8]],
        texts: &mut [&mut [u8]],
        wide: bool,
    ) -> Result<(), Failure> {
        let has_wide = self.lanes(wide).is_some_and(AesLanes::has_wide_chains);
        let chunk = if has_wide { CHAINED_LANES_WIDE } else { CHAINED_LANES };
        let groups = vectors.chunks(chunk).zip(messages.chunks(chunk));
        for ((vectors, messages), texts) in groups.zip(texts.chunks_mut(chunk)) {
            if vectors.len() == CHAINED_LANES_WIDE {
                self.encrypt_group::<CHAINED_LANES_WIDE>(vectors, messages, texts, wide)?;
                continue;
            }
            let groups = vectors.chunks(CHAINED_LANES).zip(messages.chunks(CHAINED_LANES));
            for ((vectors, messages), texts) in groups.zip(texts.chunks_mut(CHAINED_LANES)) {
                self.encrypt_group::<CHAINED_LANES>(vectors, messages, texts, wide)?;
            }
        }
        Ok(())
    }

    /// Encrypts up to `N` messages: in parallel if there are `N`, else one by one.
    fn encrypt_group<const N: usize>(
        &self,
        vectors: &[AesBlock],
        messages: &[&[u8]],
        texts: &mut [&mut [u8]],
        wide: bool,
    ) -> Result<(), Failure> {
        let group = (vectors.first_chunk(), messages.first_chunk(), texts.first_chunk_mut());
        let done = match (self.lanes(wide), group) {
            (Some(lanes), (Some(vectors), Some(messages), Some(texts))) => {
                let mut vectors: [AesBlock; N] = *vectors;
                Some((lanes.encrypt_chained(&mut vectors, messages, texts), vectors))
            }
            _ => None,
        };
        let done = done.map(|(blocks, vectors)| self.chain_last(blocks, vectors, messages, texts));
        for (lane, (message, text)) in messages.iter().zip(texts).enumerate() {
            // The vectors are now the last encrypted blocks, from which the longer messages
            // continue.
            let (blocks, vector) = done.map_or((0, vectors[lane]), |(blocks, vectors)| (blocks, vectors[lane]));
            let begin = blocks * BLOCK_BYTES;
            if begin < text.len() {
                text[begin..message.len()].copy_from_slice(&message[begin..]);
                pad(text, message.len());
                self.encrypt_chained(&vector, &mut text[begin..])?;
            }
        }
        Ok(())
    }

    /// Encrypts the last, padded block of each message, if every message ends there. Returns the
    /// number of blocks done, and the vectors.
    fn chain_last<const N: usize>(
        &self,
        blocks: usize,
        vectors: [AesBlock; N],
        messages: &[&[u8]],
        texts: &mut [&mut [u8]],
    ) -> (usize, [AesBlock; N]) {
        let begin = blocks * BLOCK_BYTES;
        // Checked for all messages before anything is copied.
        let is_last = |message: &[u8], text: &[u8]| text.len() == begin + BLOCK_BYTES && message.len() < text.len();
        if !messages.iter().zip(texts.iter()).all(|(message, text)| is_last(message, text)) {
            return (blocks, vectors);
        }
        let mut last = [[0; BLOCK_BYTES]; N];
        for (last, message) in last.iter_mut().zip(messages) {
            let rest = &message[begin..];
            last[..rest.len()].copy_from_slice(rest);
            pad(last, rest.len());
        }
        let mut ends = texts.iter_mut().map(|text| &mut text[begin..]);
        let mut ends: [&mut [u8]; N] = std::array::from_fn(|_| ends.next().unwrap_or_default());
        let (mut after, messages) = (vectors, last.each_ref().map(|last| last.as_slice()));
        let more = self.lanes.as_ref().map_or(0, |lanes| lanes.encrypt_chained(&mut after, &messages, &mut ends));
        last.zeroize();
        (blocks + more, after)
    }

    /// Decrypts whole blocks in CBC mode into `out`, which has the same length.
    pub fn decrypt_chained(&self, vector: &AesBlock, text: &[u8], out: &mut [u8], wide: bool) -> Result<(), Failure> {
        if self.lanes(wide).is_some_and(|lanes| lanes.decrypt_chained(vector, text, out)) {
            return Ok(());
        }
        out.copy_from_slice(text);
        let context = DecryptionContext::Iv128(vector.into());
        self.unchain.decrypt(out, context).map(drop).map_err(|_| Failure::Rejected)
    }

    /// Encrypts or decrypts `input` into `out`, which has the same length, in CTR mode. The 128-bit
    /// counter starts `skipped` blocks after the vector.
    pub fn apply_counted(
        &self,
        vector: &AesBlock,
        skipped: u64,
        input: &[u8],
        out: &mut [u8],
        wide: bool,
    ) -> Result<(), Failure> {
        let start = u128::from_be_bytes(*vector).wrapping_add(u128::from(skipped));
        if input.is_empty() || self.lanes(wide).is_some_and(|lanes| lanes.apply_counted(start, input, out)) {
            return Ok(());
        }
        out.copy_from_slice(input);
        let context = EncryptionContext::Iv128((&start.to_be_bytes()).into());
        self.count.less_safe_encrypt(out, context).map(drop).map_err(|_| Failure::Rejected)
    }
}

/// Writes the PKCS#7 padding behind a message of `len` bytes, up to the end of `blocks`.
pub fn pad(blocks: &mut [u8], len: usize) {
    let padding = (blocks.len() - len) as u8;
    blocks[len..].fill(padding);
}

/// Length of the message in padded blocks. The whole padding is checked in constant time before the
/// result depends on it.
pub fn unpadded_len(blocks: &[u8]) -> Result<usize, Failure> {
    let Some(last) = blocks.last_chunk::<BLOCK_BYTES>() else { return Err(Failure::Rejected) };
    let padding = last[BLOCK_BYTES - 1];
    let mut wrong = u8::from(padding == 0) | u8::from(padding > BLOCK_BYTES as u8);
    for (index, byte) in last.iter().enumerate() {
        // All ones if the byte belongs to the padding.
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
