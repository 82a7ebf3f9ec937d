//! The index of an extent: its length, the positions of its chunks, and whether its object ends
//! with it.

use std::fs::File;
use std::path::Path;

use panoply_core::op::crypto::{Key, Nonces, Open, Seal, TAG_BYTES};
use panoply_runtime::Runtime;

use super::form::Form;
use super::judged;
use crate::catalog::{Digest, chunk_len};
use crate::encode::Fields;
use crate::error::{Error, Result};
use crate::files::read_at;

const ENTRY_BYTES: u64 = 4 + 32;

/// The index entry of a chunk.
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

/// The index of an extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Index {
    /// Bytes of the object in the extent.
    pub(crate) len: u64,
    /// Whether the object, or the data appended to it at once, ended with this extent.
    pub(crate) is_last: bool,
    pub(crate) chunks: Vec<ChunkEntry>,
}

/// Bytes of the chunk count behind the index.
pub(super) const COUNT_BYTES: u64 = 4;

/// Stored bytes of an index of `chunks` chunks, without the count behind it.
pub(super) fn index_bytes(chunks: u64) -> u64 {
    8 + 1 + chunks * ENTRY_BYTES + TAG_BYTES as u64
}

/// Seals the index and appends the chunk count. `front` is the front of the extent.
pub(crate) fn seal(runtime: &Runtime, key: &Key, front: &[u8], chunk_bytes: u32, index: &Index) -> Result<Vec<u8>> {
    let mut bytes = Vec::with_capacity(index_bytes(index.chunks.len() as u64) as usize);
    bytes.extend(index.len.to_le_bytes());
    bytes.push(u8::from(index.is_last));
    for chunk in &index.chunks {
        bytes.extend(chunk.stored_word().to_le_bytes());
        bytes.extend(chunk.digest);
    }
    let seal = Seal::new(key, nonce(), bytes).associated(associated(front, chunk_bytes));
    let sealed = runtime.run(seal).wait()?.text.into_one()?;
    Ok([sealed.as_slice()?, &(index.chunks.len() as u32).to_le_bytes()].concat())
}

/// Reads the chunk count at the end of the file.
pub(super) fn read_count(file: &mut File, path: &Path, file_bytes: u64) -> Result<u64> {
    let cut = || Error::damaged(path, "it is cut short");
    let start = file_bytes.checked_sub(COUNT_BYTES).ok_or_else(cut)?;
    let bytes = read_at(file, path, start, COUNT_BYTES as usize)?;
    Fields::new(&bytes).u32().map(u64::from).ok_or_else(cut)
}

/// Reads and opens the stored index of `chunks` chunks.
pub(super) fn open(
    runtime: &Runtime,
    key: &Key,
    front: &[u8],
    chunk_bytes: u32,
    chunks: u64,
    sealed: Vec<u8>,
    damaged: impl Fn(&'static str) -> Error,
) -> Result<Index> {
    let open = Open::new(key, nonce(), sealed).associated(associated(front, chunk_bytes));
    let opened = judged(runtime.run(open).wait(), || damaged("its index is not authentic"))?.into_one()?;
    decode(opened.as_slice()?, chunk_bytes, chunks).ok_or_else(|| damaged("its index makes no sense"))
}

fn decode(bytes: &[u8], chunk_bytes: u32, chunks: u64) -> Option<Index> {
    let mut fields = Fields::new(bytes);
    let len = fields.u64().filter(|len| len.div_ceil(u64::from(chunk_bytes)) == chunks)?;
    let is_last = fields.u8().filter(|flag| *flag <= 1)? == 1;
    let mut entry = |number: u64| {
        let (word, digest) = (fields.u32()?, fields.array()?);
        let (form, stored) = Form::of_word(word)?;
        let (text, len) = ((stored as usize).checked_sub(TAG_BYTES)?, chunk_len(len, chunk_bytes, number));
        let fits = if form == Form::Plain { text == len } else { text < len };
        fits.then_some(ChunkEntry { stored, form, digest })
    };
    let chunks = (0..chunks).map(&mut entry).collect::<Option<Vec<_>>>()?;
    // An extent is written with one format of compression.
    let mut formats = chunks.iter().filter_map(|chunk| chunk.form.compression());
    let first = formats.next();
    if formats.any(|format| Some(format) != first) {
        return None;
    }
    fields.end().map(|()| Index { len, is_last, chunks })
}

fn nonce() -> Nonces {
    Nonces::Counted { prefix: *b"indx", first: 0 }
}

/// Associated data of an index: the front of its extent and the chunk size of the catalog. It binds
/// the index to this extent.
fn associated(front: &[u8], chunk_bytes: u32) -> Vec<u8> {
    [front, &chunk_bytes.to_le_bytes()].concat()
}
