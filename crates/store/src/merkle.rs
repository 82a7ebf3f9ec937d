//! The Merkle tree over an object: chunks, extents, object.
//!
//! ```text
//! leaf of a chunk    H(0, number of the chunk, stored bytes and form, H(sealed chunk))
//! node               H(1, left, right); a node without a neighbour goes up as it is
//! root of an extent  H(2, extent's id, bytes of a chunk, bytes of the extent, node of all its chunks)
//! root of an object  the node of all its extents' roots
//! without chunks, or without extents, the node is H(3)
//! ```
//!
//! H is SHA-256. All hashes of one level are one op.

use panoply_core::Bytes;
use panoply_core::op::crypto::{Hash, HashAlgorithm, Messages};
use panoply_runtime::Runtime;

use crate::catalog::{Digest, Extent};
use crate::error::Result;
use crate::extent::index::ChunkEntry;

/// The root of an extent, from the digests of its sealed chunks.
pub(crate) fn extent_root(runtime: &Runtime, extent: &Extent, chunks: &[ChunkEntry]) -> Result<Digest> {
    let mut leaves = Vec::with_capacity(chunks.len() * LEAF_BYTES);
    for (number, chunk) in (0_u64..).zip(chunks) {
        leaves.push(0);
        leaves.extend(number.to_le_bytes());
        leaves.extend(chunk.stored_word().to_le_bytes());
        leaves.extend(chunk.digest);
    }
    let top = top(runtime, hash_all(runtime, leaves, LEAF_BYTES)?)?;
    let mut root = vec![2];
    root.extend(extent.id);
    root.extend(extent.chunk_bytes.to_le_bytes());
    root.extend(extent.len.to_le_bytes());
    root.extend(top);
    one(hash_all(runtime, root, usize::MAX)?)
}

/// The root of an object, from those of its extents.
pub(crate) fn object_root(runtime: &Runtime, extents: &[Extent]) -> Result<Digest> {
    top(runtime, extents.iter().map(|extent| extent.root).collect())
}

const LEAF_BYTES: usize = 1 + 8 + 4 + 32;
const NODE_BYTES: usize = 1 + 2 * 32;

/// The node above all of them; H(3) if there are none.
fn top(runtime: &Runtime, mut level: Vec<Digest>) -> Result<Digest> {
    if level.is_empty() {
        return one(hash_all(runtime, vec![3], usize::MAX)?);
    }
    while level.len() > 1 {
        let (pairs, alone) = level.as_chunks::<2>();
        let mut nodes = Vec::with_capacity(pairs.len() * NODE_BYTES);
        for [left, right] in pairs {
            nodes.push(1);
            nodes.extend(left);
            nodes.extend(right);
        }
        let alone = alone.first().copied();
        level = hash_all(runtime, nodes, NODE_BYTES)?;
        level.extend(alone);
    }
    one(level)
}

fn one(level: Vec<Digest>) -> Result<Digest> {
    let none = || panoply_core::Error::invalid("digests", "one", 0);
    Ok(level.first().copied().ok_or_else(none)?)
}

/// The digest of each piece of `len_each` bytes.
fn hash_all(runtime: &Runtime, bytes: Vec<u8>, len_each: usize) -> Result<Vec<Digest>> {
    if bytes.is_empty() {
        return Ok(Vec::new());
    }
    let messages = Messages::split(Bytes::from_vec(bytes), len_each)?;
    digests(&runtime.run(Hash::new(HashAlgorithm::Sha256, messages)).wait()?)
}

/// The digests in the output of an op.
pub(crate) fn digests(messages: &Messages) -> Result<Vec<Digest>> {
    let digest = |slice: &[u8]| {
        Digest::try_from(slice).map_err(|_| panoply_core::Error::invalid("digest", "32 bytes", slice.len()).into())
    };
    messages.slices()?.into_iter().map(digest).collect()
}
