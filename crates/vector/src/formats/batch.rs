//! Batches of rows, and the traits of the readers and writers of all formats.

use serde_json::{Number, Value};

use super::error::{FormatError, Result};
use crate::schema::DIMENSION_MAX;

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
pub trait VectorReader: Send {
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

/// The names of the vector and id columns in files that have named columns. `None` selects the
/// usual name: `vector` or `embedding` (or the only column of lists of floats), and `id`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnNames {
    /// The column of the vectors.
    pub vector: Option<String>,
    /// The column of the ids.
    pub id: Option<String>,
}

/// The number of rows in a batch of good size: large enough to be fast, small enough for any
/// machine.
pub fn rows_per_batch(dimension: usize) -> usize {
    const BATCH_BYTES_AIM: usize = 8 << 20;
    const BATCH_ROWS_MAX: usize = 1 << 15;
    (BATCH_BYTES_AIM / size_of::<f32>() / dimension.max(1)).clamp(1, BATCH_ROWS_MAX)
}

/// Ids for rows without ids: the row numbers.
pub(super) fn numbered(first: u64, rows: usize) -> Vec<String> {
    (first..first + rows as u64).map(|row| row.to_string()).collect()
}

/// The shortest decimal form of a value: 0.1 and not 0.10000000149. NaN and infinities, which JSON
/// lacks, become null.
pub(super) fn float_json(value: f32) -> Value {
    value.to_string().parse().map_or(Value::Null, double_json)
}

pub(super) fn double_json(value: f64) -> Value {
    Number::from_f64(value).map_or(Value::Null, Value::Number)
}

/// The dimension, if it is within the bounds of a collection.
pub(super) fn dimension_within_bounds(got: u64) -> Result<usize> {
    let max = DIMENSION_MAX;
    match usize::try_from(got) {
        Ok(dimension) if (1..=max).contains(&dimension) => Ok(dimension),
        _ => Err(FormatError::DimensionRange { got, dimension_max: max }),
    }
}

/// Checks that every component is finite.
pub(super) fn expect_finite(vectors: &[f32], dimension: usize, first_row: u64) -> Result<()> {
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
