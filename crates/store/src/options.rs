//! How a store is opened and written to.

use std::path::PathBuf;
use std::time::Duration;

use panoply_core::op::crypto::Format;

use crate::catalog::CHUNK_BYTES;
use crate::error::{Error, Result};
use crate::key::PassphraseCost;

/// How a store is opened and written to.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a chunk: the unit of compression, and the least that is read when one byte is
    /// wanted.
    pub chunk_bytes: usize,
    /// Maximal length of a data file; a longer object has several.
    pub extent_bytes_max: u64,
    /// The Zstandard level; `None` turns compression off. Chunks that do not become shorter are
    /// stored as they are.
    pub level: Option<i32>,
    /// How long to wait for another process that has the store open.
    pub lock_wait: Duration,
    /// A file outside the store that detects a rollback of the whole store; see [`crate::anchor`].
    pub anchor: Option<PathBuf>,
    /// A folder of anchors, each named after the id of its store, so that the anchor is found by
    /// any path that leads to the store.
    pub anchor_folder: Option<PathBuf>,
    /// The Argon2id cost of a new passphrase. A head is refused if it asks for more than this and
    /// for more than four times the default.
    pub passphrase_cost: PassphraseCost,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            chunk_bytes: 256 << 10,
            extent_bytes_max: 4 << 30,
            level: Some(1),
            lock_wait: Duration::ZERO,
            anchor: None,
            anchor_folder: None,
            passphrase_cost: PassphraseCost::default(),
        }
    }
}

/// Refuses options outside their ranges.
pub(crate) fn check(options: &Options) -> Result<()> {
    if !CHUNK_BYTES.contains(&options.chunk_bytes) {
        let expected = format!("{} to {}", CHUNK_BYTES.start(), CHUNK_BYTES.end());
        return Err(Error::invalid("bytes of a chunk", expected, options.chunk_bytes));
    }
    if options.extent_bytes_max < options.chunk_bytes as u64 {
        let expected = format!("at least a chunk of {}", options.chunk_bytes);
        return Err(Error::invalid("bytes of a file of data", expected, options.extent_bytes_max));
    }
    let levels = Format::Zstd.levels();
    match options.level {
        Some(level) if !levels.contains(&level) => {
            let expected = format!("{} to {}", levels.start(), levels.end());
            Err(Error::invalid("level of compression", expected, level))
        }
        _ => Ok(()),
    }
}
