//! How a store is opened and written to.

use std::path::PathBuf;
use std::time::Duration;

use panoply_core::op::crypto::Format;
use panoply_runtime::RunOptions;

use crate::catalog::CHUNK_BYTES;
use crate::error::{Error, Result};
use crate::key::PassphraseCost;

/// The format of compressed chunks. Every version of this crate that opens the store reads all of
/// them, on any device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Compression {
    /// Zstandard.
    #[default]
    Zstd,
    /// Bare DEFLATE streams. QuickAssist compresses and decompresses them.
    Deflate,
    /// LZ4 blocks. GPUs decompress them.
    Lz4,
}

impl Compression {
    /// Every format.
    pub const ALL: [Compression; 3] = [Compression::Zstd, Compression::Deflate, Compression::Lz4];

    /// The name on the command line.
    pub const fn name(self) -> &'static str {
        match self {
            Compression::Zstd => "zstd",
            Compression::Deflate => "deflate",
            Compression::Lz4 => "lz4",
        }
    }

    pub(crate) const fn format(self) -> Format {
        match self {
            Compression::Zstd => Format::Zstd,
            Compression::Deflate => Format::Deflate,
            Compression::Lz4 => Format::Lz4Block,
        }
    }
}

/// How a store is opened and written to.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes of a chunk: the unit of compression, and the least that is read when one byte is
    /// wanted.
    pub chunk_bytes: usize,
    /// Maximal length of a data file; a longer object has several.
    pub extent_bytes_max: u64,
    /// The format of new chunks. Another one than [`Compression::Zstd`] needs a store that was made
    /// with such a format, or whose key was rotated with one: earlier versions cannot open it.
    pub compression: Compression,
    /// The level of compression, in the range of its format; `None` turns compression off. Chunks
    /// that do not become shorter are stored as they are.
    pub level: Option<i32>,
    /// How chunks are compressed and decompressed: on which device, and what happens if it fails.
    /// [`Store::compression_uses`](crate::Store::compression_uses) tells where they were.
    pub compress_with: RunOptions,
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
            compression: Compression::Zstd,
            level: Some(1),
            compress_with: RunOptions::default(),
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
    let levels = options.compression.format().levels();
    match options.level {
        Some(level) if !levels.contains(&level) => {
            let expected = format!("{} to {}", levels.start(), levels.end());
            Err(Error::invalid("level of compression", expected, level))
        }
        _ => Ok(()),
    }
}
