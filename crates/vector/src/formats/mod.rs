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
//! [`Paired`].
//!
//! Files are untrusted input:
//!
//! 1. Sizes in a header are checked against the file's length and against named bounds before
//!    memory is allocated.
//! 2. Memory is bounded by the size of the requested batch, however large the file is.
//! 3. Unreadable content gives a [`FormatError`] with its position. NaN and infinite components are
//!    errors, too.

mod arrow;
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

use serde_json::{Number, Value};

pub use arrow::{ArrowReader, ArrowWriter};
pub use error::FormatError;
pub use jsonl::{JsonLinesReader, JsonLinesWriter, RecordsReader};
pub use npy::{NpyReader, NpyWriter};
pub use paired::Paired;
pub use parquet::{ParquetReader, ParquetWriter};
pub use vecs::{VecsKind, VecsReader, VecsWriter};

/// The result of reading and writing files.
pub type Result<T, E = FormatError> = std::result::Result<T, E>;

/// A batch of vectors to be read or written.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// One id per row.
    pub ids: Vec<String>,
    /// The rows, concatenated.
    pub vectors: Vec<f32>,
    /// One object or null per row; empty if no row has metadata.
    pub metadata: Vec<Value>,
}

/// Reads a file of vectors.
pub trait Reader: Send {
    /// Components per vector; `None` if the file has no rows.
    fn dimension(&self) -> Option<usize>;

    /// Number of rows in the whole file, if known.
    fn rows(&self) -> Option<u64>;

    /// Bytes of the file read so far, for progress displays.
    fn bytes_read(&self) -> u64;

    /// The next rows, at most `rows_max`; `None` at the end. After an error nothing more can be
    /// read.
    fn next_batch(&mut self, rows_max: usize) -> Result<Option<Batch>>;

    /// Names of columns that are left out because their type does not fit metadata.
    fn columns_left_out(&self) -> &[String] {
        &[]
    }
}

/// Writes a file of vectors.
pub trait Writer: Send {
    /// Adds rows.
    fn write(&mut self, batch: &Batch) -> Result<()>;

    /// Completes the file. A file whose writer is dropped before this call cannot be read.
    fn finish(&mut self) -> Result<()>;
}

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

/// The names of the vector and id columns in files that have named columns. `None` selects the
/// usual name: `vector` or `embedding` (or the only column of lists of floats), and `id`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnNames {
    /// The column of the vectors.
    pub vector: Option<String>,
    /// The column of the ids.
    pub id: Option<String>,
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
pub fn open(path: &Path, columns: &ColumnNames) -> Result<Box<dyn Reader>> {
    open_as(FileKind::of(path)?, path, columns)
}

/// Opens a file of vectors of this kind under any name.
pub fn open_as(kind: FileKind, path: &Path, columns: &ColumnNames) -> Result<Box<dyn Reader>> {
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
pub fn read(kind: FileKind, stream: impl Read + Send + 'static, columns: &ColumnNames) -> Result<Box<dyn Reader>> {
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

/// The number of rows in a batch of good size: large enough to be fast, small enough for any
/// machine.
pub fn rows_per_batch(dimension: usize) -> usize {
    const BATCH_BYTES_AIM: usize = 8 << 20;
    const BATCH_ROWS_MAX: usize = 1 << 15;
    (BATCH_BYTES_AIM / size_of::<f32>() / dimension.max(1)).clamp(1, BATCH_ROWS_MAX)
}

/// Ids for rows without ids: the row numbers.
fn numbered(first: u64, rows: usize) -> Vec<String> {
    (first..first + rows as u64).map(|row| row.to_string()).collect()
}

/// The shortest decimal form of a value: 0.1 and not 0.10000000149. NaN and infinities, which JSON
/// lacks, become null.
fn float_json(value: f32) -> Value {
    value.to_string().parse().map_or(Value::Null, double_json)
}

fn double_json(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// The dimension, if it is within the bounds of a collection.
fn dimension_within_bounds(got: u64) -> Result<usize> {
    let max = crate::schema::DIMENSION_MAX;
    match usize::try_from(got) {
        Ok(dimension) if (1..=max).contains(&dimension) => Ok(dimension),
        _ => Err(FormatError::DimensionRange { got, dimension_max: max }),
    }
}

/// Checks that every component is finite.
fn expect_finite(vectors: &[f32], dimension: usize, first_row: u64) -> Result<()> {
    // One sum is faster than a test per component: the sum is NaN if any component is NaN or
    // infinite.
    if vectors.iter().map(|value| value * 0.0).sum::<f32>() == 0.0 {
        return Ok(());
    }
    match vectors.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(at) => Err(FormatError::NotFinite {
            row: first_row + (at / dimension.max(1)) as u64,
            component: at % dimension.max(1),
            value: vectors[at],
        }),
    }
}
