//! The front of an extent: which extent it is, and to which object it belongs.
//!
//! ```text
//! magic   16 bytes
//! id      32
//! epoch    4   of the root key
//! owner    4 + n   the object's id and name, the extent's place in it, when it was written; sealed
//! ```
//!
//! The owner is not needed while there is a catalog. If the catalog is lost, the extents and the
//! root keys suffice to find every object again ([`identify`]). The owner is sealed with a key of
//! its own, derived from the root key and the extent's id, and padded, so that neither the name nor
//! its length is visible. The index authenticates the whole front.

use std::fs::File;
use std::path::Path;

use panoply_core::op::crypto::{Key, Nonces, Open, Seal, TAG_BYTES};
use panoply_runtime::Runtime;

use super::index::{self, COUNT_BYTES, index_bytes};
use super::{MAGIC, extent_key, judged, object_secret};
use crate::catalog::{CHUNK_BYTES, CHUNKS_MAX, Extent, NAME_BYTES_MAX, check_name};
use crate::encode::{Fields, put_counted};
use crate::error::{Error, Result};
use crate::files::{Access, open_file, read_at};
use crate::folder::Folder;
use crate::head::{GENERATION_MAX, Identity};
use crate::merkle;
use crate::sealing::{Label, derive_seal};

/// Bytes in front of the sealed owner.
const FIXED_BYTES: usize = 16 + 32 + 4 + 4;
/// The padded length of an owner is a multiple of this.
const PADDED_BYTES: usize = 128;
const OWNER_BYTES_MAX: usize = 2048;

/// The record of the object that an extent belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    pub(crate) object: [u8; 16],
    /// The generation of the commit that it was written for.
    pub(crate) generation: u64,
    /// Sequence number within the writes of one commit.
    pub(crate) turn: u32,
    /// Index of the extent in the object.
    pub(crate) number: u32,
    pub(crate) modified_s: u64,
    /// Bytes of each chunk but the last.
    pub(crate) chunk_bytes: u32,
    pub(crate) name: String,
}

/// An extent that was identified without the catalog.
#[derive(Debug)]
pub(crate) struct IdentifiedExtent {
    pub(crate) extent: Extent,
    pub(crate) owner: Owner,
    /// Whether the object, or the data appended to it at once, ended with this extent.
    pub(crate) is_last: bool,
}

impl Owner {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = self.object.to_vec();
        bytes.extend(self.generation.to_le_bytes());
        bytes.extend(self.turn.to_le_bytes());
        bytes.extend(self.number.to_le_bytes());
        bytes.extend(self.modified_s.to_le_bytes());
        bytes.extend(self.chunk_bytes.to_le_bytes());
        put_counted(&mut bytes, self.name.as_bytes());
        bytes.resize(bytes.len().next_multiple_of(PADDED_BYTES), 0);
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Owner> {
        let mut fields = Fields::new(bytes);
        let owner = Owner {
            object: fields.array()?,
            generation: fields.u64().filter(|generation| *generation < GENERATION_MAX)?,
            turn: fields.u32()?,
            number: fields.u32()?,
            modified_s: fields.u64()?,
            chunk_bytes: fields.u32().filter(|bytes| CHUNK_BYTES.contains(&(*bytes as usize)))?,
            name: String::from_utf8(fields.counted(NAME_BYTES_MAX)?.to_vec()).ok()?,
        };
        check_name(&owner.name).ok().map(|()| owner)
    }

    /// Seals the front of an extent of this object.
    pub(crate) fn seal(
        &self,
        runtime: &Runtime,
        id: &[u8; 32],
        store: &[u8; 16],
        epoch: u32,
        root: &Key,
    ) -> Result<Vec<u8>> {
        let key = owner_key(runtime, root, store, id)?;
        let fixed = [&MAGIC[..], id, &epoch.to_le_bytes()].concat();
        let seal = Seal::new(&key, nonce(), self.encode()).associated(fixed.clone());
        let sealed = runtime.run(seal).wait()?.text.into_one()?;
        let mut front = fixed;
        put_counted(&mut front, sealed.as_slice()?);
        Ok(front)
    }
}

/// Reads the front of an extent from its file. Nothing in it is authenticated yet.
pub(crate) fn read_front(file: &mut File, path: &Path, id: &[u8; 32]) -> Result<Vec<u8>> {
    let mut front = read_at(file, path, 0, FIXED_BYTES)?;
    let mut fields = Fields::new(&front);
    let is_ours = fields.array() == Some(*MAGIC) && fields.array() == Some(*id);
    let len = fields.u32().and_then(|_| fields.u32()).map(|len| len as usize).filter(|_| is_ours);
    let len = len.filter(|len| (TAG_BYTES..=OWNER_BYTES_MAX).contains(len));
    let len = len.ok_or_else(|| Error::damaged(path, "it is no extent, or another one"))?;
    front.extend(read_at(file, path, FIXED_BYTES as u64, len)?);
    Ok(front)
}

/// The epoch in a front.
pub(crate) fn epoch_of(front: &[u8]) -> Option<u32> {
    let mut fields = Fields::new(front.get(16 + 32..)?);
    fields.u32()
}

/// Identifies an extent with the root keys alone. Its front and index are authenticated; its chunks
/// are not read.
pub(crate) fn identify(
    runtime: &Runtime,
    identity: &Identity,
    folder: &Folder,
    id: &[u8; 32],
) -> Result<IdentifiedExtent> {
    let path = folder.extent_path(id);
    let damaged = |reason| Error::damaged(&path, reason);
    let mut file = open_file(&path, Access::Read)?;
    let file_bytes = file.metadata().map_err(|error| Error::io("open", &path, error))?.len();
    let front = read_front(&mut file, &path, id)?;
    let epoch = epoch_of(&front).ok_or_else(|| damaged("it is cut short"))?;
    let no_key = || damaged("there is no root key for it");
    let key = owner_key(runtime, identity.keyring.get(epoch).ok_or_else(no_key)?, &identity.store, id)?;
    let open = Open::new(&key, nonce(), front[FIXED_BYTES..].to_vec()).associated(front[..FIXED_BYTES - 4].to_vec());
    let opened =
        judged(runtime.run(open).wait(), || damaged("what it says of its object is not authentic"))?.into_one()?;
    let owner =
        Owner::decode(opened.as_slice()?).ok_or_else(|| damaged("what it says of its object makes no sense"))?;

    let count_start = file_bytes.checked_sub(COUNT_BYTES).ok_or_else(|| damaged("it is cut short"))?;
    let chunks = index::read_count(&mut file, &path, file_bytes)?;
    let index_len = index_bytes(chunks);
    let index_start =
        count_start.checked_sub(index_len).filter(|start| chunks <= CHUNKS_MAX && *start >= front.len() as u64);
    let index_start = index_start.ok_or_else(|| damaged("it is cut short"))?;
    let sealed = read_at(&mut file, &path, index_start, index_len as usize)?;
    let secret = object_secret(runtime, identity, epoch, &owner.object)?.ok_or_else(no_key)?;
    let key = extent_key(runtime, &secret, id)?;
    let index = index::open(runtime, &key, &front, owner.chunk_bytes, chunks, sealed, damaged)?;
    let stored: u64 = index.chunks.iter().map(|chunk| u64::from(chunk.stored)).sum();
    if front.len() as u64 + stored != index_start {
        return Err(damaged("its index makes no sense"));
    }
    let (chunk_bytes, len) = (owner.chunk_bytes, index.len);
    let mut extent = Extent { id: *id, epoch, chunk_bytes, len, file_bytes, root: [0; 32] };
    extent.root = merkle::extent_root(runtime, &extent, &index.chunks)?;
    Ok(IdentifiedExtent { extent, owner, is_last: index.is_last })
}

fn owner_key(runtime: &Runtime, root: &Key, store: &[u8; 16], id: &[u8; 32]) -> Result<Key> {
    derive_seal(runtime, root, Label::Owner, &[store, id])
}

fn nonce() -> Nonces {
    Nonces::Counted { prefix: *b"ownr", first: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a repair continued from any generation that an extent claimed, and the sum
    /// overflowed.
    #[test]
    fn generations_that_nobody_could_have_counted_to_make_no_sense() {
        let owner = |generation| Owner {
            object: [1; 16],
            generation,
            turn: 2,
            number: 3,
            modified_s: 4,
            chunk_bytes: 100,
            name: "a".to_owned(),
        };
        assert_eq!(Owner::decode(&owner(5).encode()), Some(owner(5)));
        for generation in [GENERATION_MAX, u64::MAX] {
            assert_eq!(Owner::decode(&owner(generation).encode()), None);
        }
    }
}
