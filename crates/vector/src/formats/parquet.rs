//! Parquet files: a list column of floats, an id column, and further columns that become metadata.
//!
//! Columns are read as Parquet's own types, without Arrow in between, which would treble the build
//! time of this crate. Texts, truth values, numbers, lists of them and structures of them become
//! metadata; dates and times become the numbers that they are stored as. A text column `metadata`
//! of JSON objects, as [`ParquetWriter`] writes it, is used as the metadata directly. Columns that
//! cannot become metadata are left out and named. Pages may be uncompressed or compressed with
//! Snappy or LZ4.

mod cells;
mod pages;
mod plan;
mod write;

use std::sync::Arc;

use parquet::column::reader::{ColumnReader, get_column_reader};
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::reader::{ChunkReader, FileReader, SerializedFileReader};
use serde_json::{Map, Value};

use super::batch::{Batch, ColumnNames, VectorReader, dimension_within_bounds, expect_finite, numbered};
use super::error::{FormatError, Result};
use cells::{Leaf, read_leaf};
use pages::{BoundedPages, Budget, guarded};
use plan::{Field, ParquetColumns};

pub use write::ParquetWriter;

const FORMAT: &str = "Parquet";

/// Reads a file.
pub struct ParquetReader<R: ChunkReader + 'static> {
    file: SerializedFileReader<R>,
    plan: ParquetColumns,
    dimension: Option<usize>,
    rows: u64,
    next_row: u64,
    /// Index of the next row group to read.
    next_group: usize,
    group: Group,
    /// A batch that was read ahead to learn the dimension.
    waiting: Option<Batch>,
    bytes_read: u64,
}

/// The row group being read.
#[derive(Default)]
struct Group {
    rows_left: u64,
    /// One reader for each leaf of the plan, in the plan's order.
    columns: Vec<ColumnReader>,
    budget: Budget,
}

impl<R: ChunkReader + 'static> ParquetReader<R> {
    /// Reads the footer and the first row.
    pub fn new(source: R, columns: &ColumnNames) -> Result<ParquetReader<R>> {
        let file_bytes = source.len();
        let file = guarded(|| SerializedFileReader::new(source)).map_err(wrong)?;
        let metadata = file.metadata();
        let plan = ParquetColumns::new(metadata.file_metadata().schema_descr(), columns)?;
        let mut rows = 0_u64;
        for group in metadata.row_groups() {
            let in_group = u64::try_from(group.num_rows()).ok();
            rows = in_group
                .and_then(|in_group| rows.checked_add(in_group))
                .ok_or_else(|| FormatError::header(FORMAT, format!("a row group claims {} rows", group.num_rows())))?;
            if group.columns().len() != metadata.file_metadata().schema_descr().num_columns() {
                return Err(FormatError::header(FORMAT, "a row group has other columns than the schema"));
            }
            if !group.columns().iter().all(|chunk| lies_within(chunk, file_bytes)) {
                return Err(FormatError::header(FORMAT, "a column lies outside of the file"));
            }
        }
        let group = Group::default();
        let mut reader = ParquetReader {
            file,
            plan,
            dimension: None,
            rows,
            next_row: 0,
            next_group: 0,
            group,
            waiting: None,
            bytes_read: 0,
        };
        reader.waiting = reader.read(1)?;
        Ok(reader)
    }

    fn read(&mut self, rows_max: usize) -> Result<Option<Batch>> {
        while self.group.rows_left == 0 {
            if self.next_group == self.file.metadata().num_row_groups() {
                return Ok(None);
            }
            self.open_group()?;
        }
        let rows = self.group.rows_left.min(rows_max as u64) as usize;
        if rows == 0 {
            return Ok(None);
        }
        let mut leaves = Vec::with_capacity(self.group.columns.len());
        for (column, leaf) in self.group.columns.iter_mut().zip(self.plan.leaves()) {
            self.group.budget.begin();
            let read = guarded(|| read_leaf(column, rows)).map_err(wrong)?;
            if read.rows != rows {
                let reason = format!("the column `{}` ends before its row group does", leaf.path);
                return Err(FormatError::Record { place: "row", at: self.next_row + read.rows as u64, reason });
            }
            if !read.adds_up(&leaf.descriptor) {
                let reason = format!("the column `{}` contradicts itself", leaf.path);
                return Err(FormatError::Record { place: "row", at: self.next_row, reason });
            }
            leaves.push(read);
        }
        let batch = self.batch(rows, leaves)?;
        self.group.rows_left -= rows as u64;
        self.next_row += rows as u64;
        Ok(Some(batch))
    }

    fn open_group(&mut self) -> Result<()> {
        let index = self.next_group;
        let metadata = self.file.metadata().row_group(index);
        self.bytes_read = self.bytes_read.saturating_add(u64::try_from(metadata.compressed_size()).unwrap_or(0));
        let budget = Budget::default();
        let columns = guarded(|| {
            let group = self.file.get_row_group(index)?;
            let mut columns = Vec::new();
            for leaf in self.plan.leaves() {
                let pages = Box::new(BoundedPages::new(group.get_column_page_reader(leaf.index)?, budget.clone()));
                columns.push(get_column_reader(Arc::clone(&leaf.descriptor), pages));
            }
            Ok(columns)
        });
        let rows_left = u64::try_from(metadata.num_rows()).unwrap_or(0);
        self.group = Group { rows_left, columns: columns.map_err(wrong)?, budget };
        self.next_group += 1;
        Ok(())
    }

    /// Builds a batch from the leaves that were read, in the order of the plan: the vector, the id,
    /// the fields.
    fn batch(&mut self, rows: usize, leaves: Vec<Leaf>) -> Result<Batch> {
        let mut leaves = leaves.into_iter();
        let first_row = self.next_row;
        let vectors = match leaves.next() {
            Some(leaf) => self.vectors(leaf)?,
            None => Vec::new(),
        };
        let ids = match (&self.plan.id, leaves.next()) {
            (Some(id), Some(leaf)) => ids(leaf.cells(&id.descriptor), first_row)?,
            _ => numbered(first_row, rows),
        };
        if self.plan.fields.is_empty() {
            return Ok(Batch { ids, vectors, metadata: Vec::new() });
        }
        let mut objects = vec![Map::new(); rows];
        for (field, leaf) in self.plan.fields.iter().zip(leaves) {
            for (row, (cell, object)) in leaf.cells(&field.descriptor).into_iter().zip(&mut objects).enumerate() {
                place(object, field, cell).map_err(|reason| FormatError::Record {
                    place: "row",
                    at: first_row + row as u64,
                    reason: reason.to_owned(),
                })?;
            }
        }
        Ok(Batch { ids, vectors, metadata: objects.into_iter().map(Value::Object).collect() })
    }

    fn vectors(&mut self, leaf: Leaf) -> Result<Vec<f32>> {
        let lengths = leaf.lengths(&self.plan.vector.descriptor).map_err(|row| FormatError::Record {
            place: "row",
            at: self.next_row + row as u64,
            reason: "a component of the vector is null".to_owned(),
        })?;
        for (row, length) in lengths.iter().enumerate() {
            let expected = match self.dimension {
                Some(dimension) => dimension,
                None => *self.dimension.insert(dimension_within_bounds(*length as u64)?),
            };
            if *length != expected {
                let (row, got) = (self.next_row + row as u64, *length as u64);
                return Err(FormatError::DimensionChange { row, expected, got });
            }
        }
        let vectors = leaf.into_floats();
        expect_finite(&vectors, self.dimension.unwrap_or(1), self.next_row)?;
        Ok(vectors)
    }
}

impl<R: ChunkReader + 'static> VectorReader for ParquetReader<R> {
    fn dimension(&self) -> Option<usize> {
        self.dimension
    }

    fn rows(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    fn next_batch(&mut self, rows_max: usize) -> Result<Option<Batch>> {
        match self.waiting.take() {
            Some(batch) => Ok(Some(batch)),
            None => self.read(rows_max),
        }
    }

    fn columns_left_out(&self) -> &[String] {
        &self.plan.left_out
    }
}

/// Whether a column's pages lie within a file of this length. The library panics if they do not.
fn lies_within(chunk: &ColumnChunkMetaData, file_bytes: u64) -> bool {
    let start = u64::try_from(chunk.dictionary_page_offset().unwrap_or(chunk.data_page_offset()));
    let length = u64::try_from(chunk.compressed_size());
    let end = start.ok().zip(length.ok()).and_then(|(start, length)| start.checked_add(length));
    end.is_some_and(|end| end <= file_bytes) && chunk.data_page_offset() >= 0
}

fn ids(cells: Vec<Value>, first_row: u64) -> Result<Vec<String>> {
    let id = |(row, cell)| match cell {
        Value::String(text) => Ok(text),
        Value::Number(number) => Ok(number.to_string()),
        _ => {
            let reason = "the id is null".to_owned();
            Err(FormatError::Record { place: "row", at: first_row + row as u64, reason })
        }
    };
    cells.into_iter().enumerate().map(id).collect()
}

/// Inserts a value at its column's path. Null is the same as missing and is not inserted.
fn place(object: &mut Map<String, Value>, field: &Field, cell: Value) -> Result<(), &'static str> {
    if cell.is_null() {
        return Ok(());
    }
    if field.is_json {
        let text = cell.as_str().unwrap_or_default();
        let Ok(Value::Object(fields)) = serde_json::from_str(text) else {
            return Err("the column `metadata` holds something else than a JSON object");
        };
        for (key, value) in fields {
            if object.insert(key, value).is_some() {
                return Err("a field stands in the column `metadata` and in a column of its own");
            }
        }
        return Ok(());
    }
    let Some((name, way)) = field.parts.split_last() else { return Ok(()) };
    let mut inner = object;
    for part in way {
        let next = inner.entry(part.clone()).or_insert_with(|| Value::Object(Map::new()));
        inner = next.as_object_mut().ok_or("two columns have the same name")?;
    }
    match inner.insert(name.clone(), cell) {
        None => Ok(()),
        Some(_) => Err("two columns have the same name"),
    }
}

/// Converts an error of the Parquet library: a fault of the file, or a codec that is not built in.
fn wrong(error: ParquetError) -> FormatError {
    let reason = error.to_string();
    if let Some(codec) = reason.split("Disabled feature at compile time: ").nth(1) {
        let what = format!("{codec} compression");
        return FormatError::Unsupported {
            format: FORMAT,
            what,
            advice: "write it uncompressed, or with Snappy or LZ4",
        };
    }
    FormatError::header(FORMAT, reason)
}

#[cfg(test)]
mod tests;
