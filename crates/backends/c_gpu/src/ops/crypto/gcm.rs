//! AES in Galois counter mode.

use panoply_core::Result;
use panoply_core::op::crypto::{Key, NONCE_BYTES, TAG_BYTES};
use panoply_kernels::c::{GCM, Kernel};

use super::aes::{Counter, RoundKeys};
use super::seal::{Levels, Tags, Texts, Verdict};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::ops::messages::Batch;

const BLOCK_THREADS: usize = 128;

/// The data shared by all messages of an op.
pub(super) struct Gcm<'a> {
    counter: Counter<'a>,
    levels: Levels,
    /// The block that masks each tag.
    masks: Address,
    powers: Address,
}

impl<'a> Gcm<'a> {
    pub(super) fn new(
        key: &Key,
        batch: &'a Batch,
        nonces: Address,
        levels: Levels,
        context: &mut Context,
    ) -> Result<Gcm<'a>> {
        let keys = RoundKeys::new(key, context)?;
        let masks = context.secret_scratch((batch.count() + 1) * TAG_BYTES)?;
        let powers = context.secret_scratch(levels.count as usize * TAG_BYTES)?;
        let counter = Counter { keys, batch, nonces, nonce_bytes: NONCE_BYTES };
        counter.masks(masks, context)?;
        let zeros = masks + batch.count() * TAG_BYTES;
        let mut arguments = Arguments::new().address(powers).address(zeros).u32(levels.count).u32(levels.log_chunk);
        context.launch(&Kernel::new(GCM, "gcm_powers"), Launch::new(1, 32), &mut arguments)?;
        Ok(Gcm { counter, levels, masks, powers })
    }

    pub(super) fn apply(
        &self,
        to: Address,
        from: Address,
        verdict: Option<Verdict>,
        context: &mut Context,
    ) -> Result<()> {
        self.counter.run(to, from, verdict, context)
    }

    pub(super) fn hash(&self, texts: &Texts, context: &mut Context) -> Result<Address> {
        let batch = self.counter.batch;
        let mut parts = Address::NULL;
        for level in 1..=self.levels.count {
            let elements = self.levels.elements(level, batch);
            let sums = context.secret_scratch(elements * TAG_BYTES)?;
            let arguments = Arguments::new()
                .address(sums)
                .address(parts)
                .address(texts.address)
                .address(texts.data)
                .address(batch.rows())
                .address(self.powers);
            let arguments = batch.add_to(arguments).u64(elements as u64).u32(u32::from(texts.is_target));
            let mut arguments = arguments.u32(level).u32(self.levels.log_chunk);
            let launch = Launch::new(elements.div_ceil(BLOCK_THREADS), BLOCK_THREADS);
            context.launch(&Kernel::new(GCM, "gcm_hash"), launch, &mut arguments)?;
            parts = sums;
        }
        Ok(parts)
    }

    /// Writes the tags, or compares them.
    pub(super) fn tags(&self, sums: Address, tags: &Tags, context: &mut Context) -> Result<()> {
        let batch = self.counter.batch;
        let arguments = Arguments::new().address(tags.address).address(sums).address(self.masks).address(batch.rows());
        let mut arguments = batch
            .add_to(arguments)
            .u32(self.levels.log_chunk * self.levels.count)
            .u32(u32::from(tags.is_apart))
            .address(tags.verdict.unwrap_or(Address::NULL))
            .u32(u32::from(tags.verdict.is_some()));
        let launch = Launch::new(batch.count().div_ceil(BLOCK_THREADS), BLOCK_THREADS);
        context.launch(&Kernel::new(GCM, "gcm_tags"), launch, &mut arguments)
    }
}
