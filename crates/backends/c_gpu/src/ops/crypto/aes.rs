//! AES: round keys, counter mode, and CBC.

use panoply_core::op::crypto::{CipherMode, Decrypt, Encrypt, Key, Messages};
use panoply_core::{Bytes, Error, HostBufferMut, Result, Value};
use panoply_kernels::c::{AES_CHAIN, AES_COUNTER, AES_EXPAND, Kernel};

use super::answer::{KernelOutput, OutputPlace, secret_copy};
use super::seal::Verdict;
use crate::arguments::Arguments;
use crate::context::{Context, WipedBuffer};
use crate::driver::{Address, Launch};
use crate::ops::messages::{Batch, DeviceMessages, Terms, place, place_key};

const BLOCK_BYTES: usize = 16;
/// Number of blocks that a thread processes at a time.
const UNIT_BLOCKS: usize = 8;
pub(super) const UNIT_BYTES: usize = UNIT_BLOCKS * BLOCK_BYTES;
/// Words of one round key.
const STATE_WORDS: usize = 32;
const BLOCK_THREADS: usize = 128;
/// CBC encryption is serial per message, so it needs many multiprocessors rather than full ones.
const CHAIN_BLOCK_THREADS: usize = 32;

/// Round keys on the device.
pub(super) struct RoundKeys {
    address: Address,
    rounds: u32,
}

impl RoundKeys {
    pub(super) fn new(key: &Key, context: &mut Context) -> Result<RoundKeys> {
        let key_words = key.material().len() / 4;
        let rounds = key_words + 6;
        let (material, address) =
            (place_key(key.material(), context)?, context.secret_scratch((rounds + 1) * STATE_WORDS * 4)?);
        let mut arguments = Arguments::new().address(address).address(material).size(key_words).size(rounds);
        context.launch(&Kernel::new(AES_EXPAND, "aes_expand"), Launch::new(1, 32), &mut arguments)?;
        Ok(RoundKeys { address, rounds: rounds as u32 })
    }
}

/// Counter mode over a batch.
pub(super) struct Counter<'a> {
    pub(super) keys: RoundKeys,
    pub(super) batch: &'a Batch,
    pub(super) nonces: Address,
    pub(super) nonce_bytes: usize,
}

impl Counter<'_> {
    /// Xors the key stream into every text. If a verdict rejects a message, nothing is written and
    /// the op reports the error.
    pub(super) fn run(
        &self,
        target: Address,
        source: Address,
        verdict: Option<Verdict>,
        context: &mut Context,
    ) -> Result<()> {
        self.launch(target, source, self.batch.units, false, verdict, context)
    }

    /// The block that masks each message's tag, followed by the encrypted block of zeros.
    pub(super) fn masks(&self, target: Address, context: &mut Context) -> Result<()> {
        let units = (self.batch.count() + 1).div_ceil(UNIT_BLOCKS);
        self.launch(target, Address::NULL, units, true, None, context)
    }

    fn launch(
        &self,
        target: Address,
        source: Address,
        units: usize,
        is_masks: bool,
        verdict: Option<Verdict>,
        context: &mut Context,
    ) -> Result<()> {
        let (word, complaint) = verdict.map_or((Address::NULL, Address::NULL), |told| (told.word, told.complaint));
        let arguments = Arguments::new()
            .address(target)
            .address(source)
            .address(self.batch.rows())
            .address(self.keys.address)
            .address(self.nonces)
            .size(self.nonce_bytes)
            .u32(self.keys.rounds);
        let mut arguments = self
            .batch
            .add_to(arguments)
            .u64(units as u64)
            .u32(u32::from(is_masks))
            .address(word)
            .u32(u32::from(verdict.is_some()))
            .address(complaint);
        let launch = context.blocks(units, BLOCK_THREADS, 1);
        context.launch(&Kernel::new(AES_COUNTER, "aes_counter"), launch, &mut arguments)
    }
}

pub(super) fn encrypt(op: &Encrypt, context: &mut Context) -> Result<Value> {
    let cipher = Cipher { key: op.key(), mode: op.mode(), vectors: op.vectors(), messages: op.messages() };
    let answer_len = |len: usize| op.text_len(len);
    cipher.run(&answer_len, false, OutputPlace::of, context)
}

pub(super) fn decrypt(op: &Decrypt, context: &mut Context) -> Result<Value> {
    let cipher = Cipher { key: op.key(), mode: op.mode(), vectors: op.vectors(), messages: op.messages() };
    let is_secret = op.is_secret();
    let place = |is_resident: bool| if is_secret { OutputPlace::Secret } else { OutputPlace::of(is_resident) };
    if op.mode() != CipherMode::Cbc {
        return cipher.run(&|len| len, true, place, context);
    }
    // Only the host sees the lengths without padding, and rejected plaintext must not be visible.
    let (made, offsets) = cipher.made(&|len| len, true, |_| OutputPlace::Secret, context)?;
    let like = op.messages().clone();
    made.finished(context, move |pinned| unpadded(pinned, &offsets, &like, is_secret))
}

/// The common fields of encryption and decryption.
struct Cipher<'a> {
    key: &'a Key,
    mode: CipherMode,
    vectors: &'a Bytes,
    messages: &'a Messages,
}

impl Cipher<'_> {
    fn run(
        &self,
        answer_len: &dyn Fn(usize) -> usize,
        is_decryption: bool,
        place: impl Fn(bool) -> OutputPlace,
        context: &mut Context,
    ) -> Result<Value> {
        let (made, offsets) = self.made(answer_len, is_decryption, place, context)?;
        made.into_value(self.messages, offsets, context)
    }

    fn made(
        &self,
        answer_len: &dyn Fn(usize) -> usize,
        is_decryption: bool,
        place_of: impl Fn(bool) -> OutputPlace,
        context: &mut Context,
    ) -> Result<(KernelOutput, Vec<usize>)> {
        let messages = DeviceMessages::new(self.messages, context)?;
        let terms = Terms { behind: 0, unit_bytes: UNIT_BYTES, answer_len, data: None };
        let batch = Batch::new(&messages, &terms, context)?;
        let made = KernelOutput::new(batch.answer_bytes(), place_of(messages.is_resident), context)?;
        let (nonces, _) = place(self.vectors, context)?;
        if batch.count() > 0 {
            let keys = RoundKeys::new(self.key, context)?;
            match self.mode {
                CipherMode::Ctr => Counter { keys, batch: &batch, nonces, nonce_bytes: BLOCK_BYTES }.run(
                    made.address,
                    messages.address,
                    None,
                    context,
                )?,
                CipherMode::Cbc | CipherMode::CbcUnpadded => {
                    let chain = Chain { keys, batch: &batch, vectors: nonces, is_decryption };
                    chain.run(made.address, messages.address, self.mode == CipherMode::Cbc, context)?;
                }
            }
        }
        Ok((made, batch.into_offsets()))
    }
}

/// CBC.
struct Chain<'a> {
    keys: RoundKeys,
    batch: &'a Batch,
    vectors: Address,
    is_decryption: bool,
}

impl Chain<'_> {
    fn run(&self, target: Address, source: Address, is_padded: bool, context: &mut Context) -> Result<()> {
        let (units, launch) = if self.is_decryption {
            (self.batch.units, context.blocks(self.batch.units, BLOCK_THREADS, 1))
        } else {
            let units = self.batch.count().div_ceil(UNIT_BLOCKS);
            (units, Launch::new(units.div_ceil(CHAIN_BLOCK_THREADS), CHAIN_BLOCK_THREADS))
        };
        let arguments = Arguments::new()
            .address(target)
            .address(source)
            .address(self.batch.rows())
            .address(self.keys.address)
            .address(self.vectors)
            .u32(self.keys.rounds);
        let mut arguments = self.batch.add_to(arguments).u64(units as u64).u32(u32::from(is_padded));
        let kernel = Kernel::new(AES_CHAIN, "aes_chain").flag("DECRYPT", self.is_decryption);
        context.launch(&kernel, launch, &mut arguments)
    }
}

/// The messages without their padding, packed. The time does not depend on the position of a wrong
/// padding byte, but on whether there is one.
fn unpadded(mut pinned: WipedBuffer, offsets: &[usize], like: &Messages, is_secret: bool) -> Result<Value> {
    let bytes = pinned.0.bytes_mut();
    let (mut end, mut ends) = (0, Vec::with_capacity(offsets.len()));
    ends.push(0);
    for (index, pair) in offsets.windows(2).enumerate() {
        let len = unpadded_len(&bytes[pair[0]..pair[1]]).ok_or(Error::Rejected { op: "decrypt", index })?;
        bytes.copy_within(pair[0]..pair[0] + len, end);
        end += len;
        ends.push(end);
    }
    let plain = if is_secret { secret_copy(&bytes[..end])? } else { plain_copy(&bytes[..end])? };
    like.like(plain, ends)?.into_value()
}

fn plain_copy(bytes: &[u8]) -> Result<Bytes> {
    let mut copy = HostBufferMut::zeroed(bytes.len())?;
    copy.bytes_mut().copy_from_slice(bytes);
    Ok(Bytes::from_host(copy.freeze()))
}

fn unpadded_len(blocks: &[u8]) -> Option<usize> {
    let last = blocks.last_chunk::<BLOCK_BYTES>()?;
    let padding = last[BLOCK_BYTES - 1];
    let mut wrong = u8::from(padding == 0) | u8::from(padding > BLOCK_BYTES as u8);
    for (index, byte) in last.iter().enumerate() {
        // All ones if the byte belongs to the padding.
        let inside = ((BLOCK_BYTES as i16 - 1 - index as i16 - i16::from(padding)) >> 15) as u8;
        wrong |= inside & (byte ^ padding);
    }
    (std::hint::black_box(wrong) == 0).then(|| blocks.len() - usize::from(padding))
}
