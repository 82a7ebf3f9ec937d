//! AES without authentication.

use aws_lc_rs::cipher::{
    AES_128, AES_192, AES_256, Algorithm, DecryptingKey, DecryptionContext, EncryptingKey, EncryptionContext,
    UnboundCipherKey,
};
use panoply_core::op::crypto::CipherAlgorithm;
use zeroize::Zeroize;

use crate::Failure;
use crate::lanes::{AesLanes, CHAINED_LANES, CHAINED_LANES_WIDE};

/// How long a block is.
pub const BLOCK_BYTES: usize = 16;

/// A block: an initial vector, or a counter.
pub type Block = [u8; BLOCK_BYTES];

/// An expanded key.
pub struct CipherKey {
    chain: EncryptingKey,
    unchain: DecryptingKey,
    count: EncryptingKey,
    lanes: Option<AesLanes>,
}

impl CipherKey {
    /// `None` where the material is of another length.
    pub fn new(algorithm: CipherAlgorithm, material: &[u8]) -> Option<CipherKey> {
        let key = || UnboundCipherKey::new(library(algorithm), material).ok();
        let (chain, unchain) = (EncryptingKey::cbc(key()?).ok()?, DecryptingKey::cbc(key()?).ok()?);
        Some(CipherKey { chain, unchain, count: EncryptingKey::ctr(key()?).ok()?, lanes: AesLanes::new(material) })
    }

    /// Several blocks at a time, where that is wanted and the CPU can.
    fn lanes(&self, wide: bool) -> Option<&AesLanes> {
        self.lanes.as_ref().filter(|_| wide)
    }

    /// Encrypts whole blocks in place, each chained to the one before.
    pub fn encrypt_chained(&self, vector: &Block, blocks: &mut [u8]) -> Result<(), Failure> {
        let context = EncryptionContext::Iv128(vector.into());
        self.chain.less_safe_encrypt(blocks, context).map(drop).map_err(|_| Failure::Rejected)
    }

    /// Encrypts several messages, each with its vector, into texts that are as long, or longer by their padding. `wide`, here and below:
    /// several blocks at a time, where the CPU can.
    pub fn encrypt_all_chained(
        &self,
        vectors: &[Block],
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

    /// Encrypts up to `N` messages: side by side where there are as many, and else one by one.
    fn encrypt_group<const N: usize>(
        &self,
        vectors: &[Block],
        messages: &[&[u8]],
        texts: &mut [&mut [u8]],
        wide: bool,
    ) -> Result<(), Failure> {
        let group = (vectors.first_chunk(), messages.first_chunk(), texts.first_chunk_mut());
        let done = match (self.lanes(wide), group) {
            (Some(lanes), (Some(vectors), Some(messages), Some(texts))) => {
                let mut vectors: [Block; N] = *vectors;
                Some((lanes.encrypt_chained(&mut vectors, messages, texts), vectors))
            }
            _ => None,
        };
        let done = done.map(|(blocks, vectors)| self.chain_last(blocks, vectors, messages, texts));
        for (lane, (message, text)) in messages.iter().zip(texts).enumerate() {
            // The vectors are now the last blocks that were made, from which the longer messages go on.
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

    /// The last blocks with the padding, where each message has one more: as many as are done then, and the vectors.
    fn chain_last<const N: usize>(
        &self,
        blocks: usize,
        vectors: [Block; N],
        messages: &[&[u8]],
        texts: &mut [&mut [u8]],
    ) -> (usize, [Block; N]) {
        let begin = blocks * BLOCK_BYTES;
        // Asked of all of them before anything is copied.
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

    /// Decrypts whole blocks, each chained to the one before, into `out`, which is as long.
    pub fn decrypt_chained(&self, vector: &Block, text: &[u8], out: &mut [u8], wide: bool) -> Result<(), Failure> {
        if self.lanes(wide).is_some_and(|lanes| lanes.decrypt_chained(vector, text, out)) {
            return Ok(());
        }
        out.copy_from_slice(text);
        let context = DecryptionContext::Iv128(vector.into());
        self.unchain.decrypt(out, context).map(drop).map_err(|_| Failure::Rejected)
    }

    /// Encrypts or decrypts `input` into `out`, which is as long, with a counter of 128 bits that starts `skipped` blocks after the
    /// vector.
    pub fn apply_counted(
        &self,
        vector: &Block,
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
