//! The index of an extent: where its chunks are.

use panoply_core::op::crypto::{Key, Nonces, Open, Seal, TAG_BYTES};
use panoply_runtime::Runtime;

use super::form::Form;
use super::judged;
use crate::catalog::Extent;
use crate::encode::Fields;
use crate::error::{Error, Result};
use crate::merkle::Digest;

const ENTRY_BYTES: u64 = 4 + 32;

/// What is known of a chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ChunkEntry {
    /// Its bytes in the file, with the tag.
    pub(crate) stored: u32,
    pub(crate) form: Form,
    /// The digest of those bytes.
    pub(crate) digest: Digest,
}

impl ChunkEntry {
    pub(crate) fn stored_word(&self) -> u32 {
        self.form.word(self.stored)
    }
}

/// Bytes of the index of so many chunks, as it is stored.
pub(super) fn index_bytes(chunks: u64) -> u64 {
    chunks * ENTRY_BYTES + TAG_BYTES as u64
}

/// The index as it is stored.
pub(crate) fn seal(runtime: &Runtime, key: &Key, extent: &Extent, chunks: &[ChunkEntry]) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(index_bytes(chunks.len() as u64) as usize);
    for chunk in chunks {
        bytes.extend(chunk.stored_word().to_le_bytes());
        bytes.extend(chunk.digest);
    }
    let seal = Seal::new(key, nonce(), bytes).associated(associated(extent));
    Ok(runtime.run(seal).wait()?.text.into_one()?.as_slice()?.to_vec())
}

/// Reads the index as it is stored.
pub(super) fn open(
    runtime: &Runtime,
    key: &Key,
    extent: &Extent,
    sealed: Vec<u8>,
    damaged: impl Fn(&'static str) -> Error,
) -> Result<Vec<ChunkEntry>> {
    let open = Open::new(key, nonce(), sealed).associated(associated(extent));
    let opened = judged(runtime.run(open).wait(), || damaged("its index is not authentic"))?.into_one()?;
    let mut fields = Fields::new(opened.as_slice()?);
    let entry = |number: u64, fields: &mut Fields<'_>| {
        let (word, digest) = (fields.u32()?, fields.array()?);
        let (form, stored) = Form::of_word(word)?;
        let (text, len) = ((stored as usize).checked_sub(TAG_BYTES)?, extent.chunk_len(number));
        let fits = if form == Form::Plain { text == len } else { text < len };
        fits.then_some(ChunkEntry { stored, form, digest })
    };
    let entries = (0..extent.chunks()).map(|number| entry(number, &mut fields)).collect::<Option<Vec<_>>>();
    let entries = entries.filter(|_| fields.end().is_some());
    entries.ok_or_else(|| damaged("its index makes no sense"))
}

fn nonce() -> Nonces {
    Nonces::Counted { prefix: *b"indx", first: 0 }
}

/// What the catalog says of the extent, so that an index belongs to no other length.
fn associated(extent: &Extent) -> Vec<u8> {
    [&extent.chunk_bytes.to_le_bytes()[..], &extent.len.to_le_bytes()].concat()
}
