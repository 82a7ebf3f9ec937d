//! ChaCha20-Poly1305.

use panoply_core::Result;
use panoply_core::op::crypto::Key;
use panoply_kernels::c::{CHACHA, Kernel, POLY1305};

use super::seal::{Levels, Tags, Texts, Verdict};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::ops::messages::{Batch, place_key};

/// A thread processes one block of the key stream.
pub(super) const UNIT_BYTES: usize = 64;
const STREAM_THREADS: usize = 256;
const HASH_THREADS: usize = 128;
/// Words of a hash value, and of the summand at its end.
const LIMBS: usize = 5;
const ADDED_WORDS: usize = 4;

/// The data shared by all messages of an op.
pub(super) struct ChaCha<'a> {
    batch: &'a Batch,
    key: Address,
    nonces: Address,
    levels: Levels,
    /// The hash key of each message.
    hash_keys: Address,
}

impl<'a> ChaCha<'a> {
    pub(super) fn new(
        key: &Key,
        batch: &'a Batch,
        nonces: Address,
        levels: Levels,
        context: &mut Context,
    ) -> Result<ChaCha<'a>> {
        let key = place_key(key.material(), context)?;
        let words = LIMBS * levels.count as usize + ADDED_WORDS;
        let hash_keys = context.secret_scratch(batch.count() * words * 4)?;
        let mut arguments = Arguments::new()
            .address(hash_keys)
            .address(key)
            .address(nonces)
            .u64(batch.count() as u64)
            .u32(levels.count)
            .u32(levels.log_chunk);
        let launch = Launch::new(batch.count().div_ceil(HASH_THREADS), HASH_THREADS);
        context.launch(&Kernel::new(POLY1305, "poly_keys"), launch, &mut arguments)?;
        Ok(ChaCha { batch, key, nonces, levels, hash_keys })
    }

    pub(super) fn apply(
        &self,
        to: Address,
        from: Address,
        verdict: Option<Verdict>,
        context: &mut Context,
    ) -> Result<()> {
        let (word, complaint) = verdict.map_or((Address::NULL, Address::NULL), |told| (told.word, told.complaint));
        let arguments = Arguments::new()
            .address(to)
            .address(from)
            .address(self.batch.rows())
            .address(self.key)
            .address(self.nonces);
        let mut arguments = self
            .batch
            .add_to(arguments)
            .u64(self.batch.units as u64)
            .address(word)
            .u32(u32::from(verdict.is_some()))
            .address(complaint);
        let launch = context.blocks(self.batch.units, STREAM_THREADS, 1);
        context.launch(&Kernel::new(CHACHA, "chacha"), launch, &mut arguments)
    }

    pub(super) fn hash(&self, texts: &Texts, context: &mut Context) -> Result<Address> {
        let mut parts = Address::NULL;
        for level in 1..=self.levels.count {
            let elements = self.levels.elements(level, self.batch);
            let sums = context.secret_scratch(elements * LIMBS * 4)?;
            let arguments = Arguments::new()
                .address(sums)
                .address(parts)
                .address(texts.address)
                .address(texts.data)
                .address(self.batch.rows())
                .address(self.hash_keys);
            let arguments = self.batch.add_to(arguments).u64(elements as u64).u32(u32::from(texts.is_target));
            let mut arguments = arguments.u32(level).u32(self.levels.count).u32(self.levels.log_chunk);
            let launch = Launch::new(elements.div_ceil(HASH_THREADS), HASH_THREADS);
            context.launch(&Kernel::new(POLY1305, "poly_hash"), launch, &mut arguments)?;
            parts = sums;
        }
        Ok(parts)
    }

    /// Writes the tags, or compares them.
    pub(super) fn tags(&self, sums: Address, tags: &Tags, context: &mut Context) -> Result<()> {
        let arguments =
            Arguments::new().address(tags.address).address(sums).address(self.hash_keys).address(self.batch.rows());
        let mut arguments = self
            .batch
            .add_to(arguments)
            .u32(self.levels.count)
            .u32(self.levels.log_chunk * self.levels.count)
            .u32(u32::from(tags.is_apart))
            .address(tags.verdict.unwrap_or(Address::NULL))
            .u32(u32::from(tags.verdict.is_some()));
        let launch = Launch::new(self.batch.count().div_ceil(HASH_THREADS), HASH_THREADS);
        context.launch(&Kernel::new(POLY1305, "poly_tags"), launch, &mut arguments)
    }
}
