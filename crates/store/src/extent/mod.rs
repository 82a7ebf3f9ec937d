//! Extents: the files of data.
//!
//! ```text
//! front    the extent's id, and the object that it belongs to ([`owner`])
//! chunks   each compressed where that pays, then sealed: text and tag
//! index    the extent's length; for each chunk its stored bytes (the highest bits: its form) and its digest; sealed
//! number   of chunks, 4 bytes
//! ```
//!
//! An extent is written once, by one writer, under a key that is derived from its id, and never
//! changed: an append is another extent. The number of a chunk is its nonce; its length and its
//! form are authenticated with it. The catalog has the lengths as well; without a catalog, an
//! extent is identified by its own front and index.

pub(crate) mod buffers;
pub(crate) mod form;
pub(crate) mod index;
pub(crate) mod owner;
pub(crate) mod read;
pub(crate) mod write;

use panoply_core::op::crypto::{Key, Messages, Nonces};
use panoply_runtime::Runtime;

use self::form::Form;
use crate::error::{Error, Result};
use crate::head::Identity;
use crate::sealing::{Label, derive_seal, derive_secret};

pub(crate) const MAGIC: &[u8; 16] = b"panoply extent 2";
/// Bytes of an object that are processed by one op.
const BATCH_BYTES: usize = 4 << 20;

/// The secret of an object, derived from the root key of an epoch. `None` if there is no such
/// epoch.
pub(crate) fn object_secret(
    runtime: &Runtime,
    identity: &Identity,
    epoch: u32,
    object: &[u8; 16],
) -> Result<Option<Key>> {
    let Some(root) = identity.keyring.get(epoch) else { return Ok(None) };
    derive_secret(runtime, root, Label::Object, &[&identity.store, object]).map(Some)
}

pub(crate) fn extent_key(runtime: &Runtime, object_secret: &Key, id: &[u8; 32]) -> Result<Key> {
    derive_seal(runtime, object_secret, Label::Extent, &[id])
}

/// Associated data of each chunk: its form, and its length in the object.
pub(crate) fn associated(chunks: impl Iterator<Item = (Form, usize)>) -> Result<Messages> {
    let mut bytes = Vec::new();
    for (form, len) in chunks {
        bytes.push(form.number());
        bytes.extend((len as u32).to_le_bytes());
    }
    Ok(Messages::split(bytes.into(), 5)?)
}

pub(crate) fn chunk_nonces(first: u64) -> Nonces {
    Nonces::Counted { prefix: *b"chnk", first }
}

/// Number of chunks in a batch.
fn chunks_per_batch(chunk_bytes: usize) -> usize {
    (BATCH_BYTES / chunk_bytes).max(1)
}

/// Maps a rejected message of an op to the error for damaged data.
fn judged<T>(answer: panoply_core::Result<T>, damaged: impl FnOnce() -> Error) -> Result<T> {
    answer.map_err(|error| match error {
        panoply_core::Error::Rejected { .. } | panoply_core::Error::OutputLimit { .. } => damaged(),
        other => other.into(),
    })
}
