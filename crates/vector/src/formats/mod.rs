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
//! Files without ids or metadata can be read together with a file of JSON lines that has them: see [`Paired`].
//!
//! Files come from outside and may be hostile:
//!
//! 1. What a header claims is checked against the file's length, and against named bounds, before memory is allocated.
//! 2. Memory is bounded by the batch that is asked for, however large the file is.
//! 3. What cannot be read is a [`FormatError`] that says where; a component that is NaN or infinite is one, too.

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

/// Vectors that are read or written together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// One for each row.
    pub ids: Vec<String>,
    /// The rows, one behind the other.
    pub vectors: Vec<f32>,
    /// One for each row, each an object or null; or empty, if no row has any.
    pub metadata: Vec<Value>,
}

/// A file of vectors that is being read.
pub trait Reader: Send {
    /// Components of each vector; `None` if there is no row to tell it.
    fn dimension(&self) -> Option<usize>;

    /// Rows in the whole file, where the file tells.
    fn rows(&self) -> Option<u64>;

    /// Bytes of the file that have been read so far, for those who show progress.
    fn bytes_read(&self) -> u64;

    /// The next rows, at most so many; `None` at the end. After an error there is nothing more to read.
    fn next_batch(&mut self, rows_max: usize) -> Result<Option<Batch>>;

    /// Columns that hold nothing that metadata could hold, and are left out.
    fn columns_left_out(&self) -> &[String] {
        &[]
    }
}

/// A file of vectors that is being written.
pub trait Writer: Send {
    /// Adds rows.
    fn write(&mut self, batch: &Batch) -> Result<()>;

    /// Completes the file. One that is dropped before cannot be read.
    fn finish(&mut self) -> Result<()>;
}

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileKind {
    /// A NumPy array.
    Npy,
    /// Rows behind their dimensions.
    Vecs(VecsKind),
    /// JSON lines.
    JsonLines,
    /// Parquet.
    Parquet,
    /// Arrow IPC.
    Arrow,
}

/// Where vectors and ids stand in files that have named columns. `None` is the usual name: `vector` or `embedding` (or the
/// only column of lists of floats), and `id`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnNames {
    /// The column of the vectors.
    pub vector: Option<String>,
    /// The column of the ids.
    pub id: Option<String>,
}

impl FileKind {
    /// The kind of a file with this name.
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

/// Opens a file of vectors; its name says of which kind it is.
pub fn open(path: &Path, columns: &ColumnNames) -> Result<Box<dyn Reader>> {
    open_as(FileKind::of(path)?, path, columns)
}

/// Opens a file of vectors of this kind, whatever its name.
pub fn open_as(kind: FileKind, path: &Path, columns: &ColumnNames) -> Result<Box<dyn Reader>> {
    let file = File::open(path).map_err(FormatError::io)?;
    let metadata = file.metadata().map_err(FormatError::io)?;
    // A pipe has no length; what it brings is checked as it comes.
    let length = metadata.is_file().then_some(metadata.len());
    Ok(match kind {
        FileKind::Npy => Box::new(NpyReader::new(file, length)?),
        FileKind::Vecs(kind) => Box::new(VecsReader::new(file, length, kind)?),
        FileKind::JsonLines => Box::new(JsonLinesReader::new(file)?),
        FileKind::Parquet => Box::new(ParquetReader::new(file, columns)?),
        FileKind::Arrow => Box::new(ArrowReader::new(file, length, columns)?),
    })
}

/// Reads vectors of this kind from a stream, such as the standard input. Parquet has its directory at its end, and is refused.
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

/// Rows of this dimension that make a batch of a size that suits: large enough to be quick, small enough for any machine.
pub fn rows_per_batch(dimension: usize) -> usize {
    const BATCH_BYTES_AIM: usize = 8 << 20;
    const BATCH_ROWS_MAX: usize = 1 << 15;
    (BATCH_BYTES_AIM / size_of::<f32>() / dimension.max(1)).clamp(1, BATCH_ROWS_MAX)
}

/// The ids of rows that have none: their numbers.
fn numbered(first: u64, rows: usize) -> Vec<String> {
    (first..first + rows as u64).map(|row| row.to_string()).collect()
}

/// The number that a person would write for it: 0.1 and not 0.10000000149. JSON has no NaN and no infinities.
fn float_json(value: f32) -> Value {
    value.to_string().parse().map_or(Value::Null, double_json)
}

fn double_json(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// A dimension, if a collection can have it.
fn dimension_within_bounds(got: u64) -> Result<usize> {
    let max = crate::schema::DIMENSION_MAX;
    match usize::try_from(got) {
        Ok(dimension) if (1..=max).contains(&dimension) => Ok(dimension),
        _ => Err(FormatError::DimensionRange { got, dimension_max: max }),
    }
}

/// Checks that every component is a number.
fn expect_finite(vectors: &[f32], dimension: usize, first_row: u64) -> Result<()> {
    // One sum over all is quicker than a look at each: a component that is not finite leaves a sum that is not.
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
