//! Files of vectors: reading and writing them, a batch at a time.
//!
//! | extension | what is in it | ids | metadata |
//! | --- | --- | --- | --- |
//! | `npy` | a NumPy array `[rows, dimension]` of f16, f32, f64, i8 or u8 | row numbers | – |
//! | `fvecs`, `bvecs`, `ivecs` | each row behind its dimension, as f32, u8 or i32 | row numbers | – |
//! | `jsonl`, `ndjson` | a JSON object per line: `id`, `vector`, and `metadata` or further fields | yes | yes |
//! | `parquet`, `pq` | a list column of floats, an id column, and further columns | yes | yes |
//! | `arrow`, `feather`, `ipc`, `arrows` | the same as an Arrow IPC file or stream | yes | yes |
//!
//! Files without ids or metadata can be read together with a file of JSON lines that has them: see
//! [`PairedReader`].
//!
//! Files are untrusted input:
//!
//! 1. Sizes in a header are checked against the file's length and against named bounds before
//!    memory is allocated.
//! 2. Memory is bounded by the size of the requested batch, however large the file is.
//! 3. Unreadable content gives a [`FormatError`] with its position. NaN and infinite components are
//!    errors, too.

mod arrow;
mod batch;
mod bytes;
mod error;
mod jsonl;
mod npy;
mod paired;
mod parquet;
mod vecs;

use std::fs::File;
use std::io::{BufWriter, Read};
use std::path::Path;

pub use arrow::{ArrowReader, ArrowWriter};
pub use batch::{Batch, ColumnNames, VectorReader, Writer, rows_per_batch};
pub use error::{FormatError, Result};
pub use jsonl::{JsonLinesReader, JsonLinesWriter, RecordsReader};
pub use npy::{NpyReader, NpyWriter};
pub use paired::PairedReader;
pub use parquet::{ParquetReader, ParquetWriter};
pub use vecs::{VecsKind, VecsReader, VecsWriter};

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A NumPy array.
    Npy,
    /// Rows, each preceded by its dimension.
    Vecs(VecsKind),
    /// JSON lines.
    JsonLines,
    /// Parquet.
    Parquet,
    /// Arrow IPC.
    Arrow,
}

impl FileKind {
    /// The kind of a file, from the extension of its name.
    pub fn of(path: &Path) -> Result<FileKind> {
        let extension = path.extension().map(|extension| extension.to_string_lossy().to_lowercase());
        match extension.as_deref() {
            Some("npy") => Ok(FileKind::Npy),
            Some("fvecs") => Ok(FileKind::Vecs(VecsKind::F32)),
            Some("bvecs") => Ok(FileKind::Vecs(VecsKind::U8)),
            Some("ivecs") => Ok(FileKind::Vecs(VecsKind::I32)),
            Some("jsonl" | "ndjson") => Ok(FileKind::JsonLines),
            Some("parquet" | "pq") => Ok(FileKind::Parquet),
            Some("arrow" | "feather" | "ipc" | "arrows") => Ok(FileKind::Arrow),
            _ => Err(FormatError::UnknownKind { name: path.display().to_string() }),
        }
    }

    /// Whether the kind holds ids and metadata.
    pub fn holds_metadata(self) -> bool {
        matches!(self, FileKind::JsonLines | FileKind::Parquet | FileKind::Arrow)
    }
}

/// Opens a file of vectors; the extension of its name gives the kind.
pub fn open(path: &Path, columns: &ColumnNames) -> Result<Box<dyn VectorReader>> {
    open_as(FileKind::of(path)?, path, columns)
}

/// Opens a file of vectors of this kind under any name.
pub fn open_as(kind: FileKind, path: &Path, columns: &ColumnNames) -> Result<Box<dyn VectorReader>> {
    let file = File::open(path).map_err(FormatError::io)?;
    let metadata = file.metadata().map_err(FormatError::io)?;
    // A pipe has no length; its data is checked as it arrives.
    let length = metadata.is_file().then_some(metadata.len());
    Ok(match kind {
        FileKind::Npy => Box::new(NpyReader::new(file, length)?),
        FileKind::Vecs(kind) => Box::new(VecsReader::new(file, length, kind)?),
        FileKind::JsonLines => Box::new(JsonLinesReader::new(file)?),
        FileKind::Parquet => Box::new(ParquetReader::new(file, columns)?),
        FileKind::Arrow => Box::new(ArrowReader::new(file, length, columns)?),
    })
}

/// Reads vectors of this kind from a stream, such as the standard input. Parquet is refused,
/// because its directory is at the end of the file.
pub fn read(
    kind: FileKind,
    stream: impl Read + Send + 'static,
    columns: &ColumnNames,
) -> Result<Box<dyn VectorReader>> {
    Ok(match kind {
        FileKind::Npy => Box::new(NpyReader::new(stream, None)?),
        FileKind::Vecs(kind) => Box::new(VecsReader::new(stream, None, kind)?),
        FileKind::JsonLines => Box::new(JsonLinesReader::new(stream)?),
        FileKind::Parquet => return Err(FormatError::NoStream { kind: "Parquet" }),
        FileKind::Arrow => Box::new(ArrowReader::new(stream, None, columns)?),
    })
}

/// Begins a file of vectors of this dimension.
pub fn create(kind: FileKind, file: File, dimension: usize) -> Result<Box<dyn Writer>> {
    let file = BufWriter::new(file);
    Ok(match kind {
        FileKind::Npy => Box::new(NpyWriter::new(file, dimension)?),
        FileKind::Vecs(kind) => Box::new(VecsWriter::new(file, dimension, kind)),
        FileKind::JsonLines => Box::new(JsonLinesWriter::new(file, dimension)),
        FileKind::Parquet => Box::new(ParquetWriter::new(file, dimension)?),
        FileKind::Arrow => Box::new(ArrowWriter::new(file, dimension)?),
    })
}
