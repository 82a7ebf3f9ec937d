//! Arrow IPC: files (Feather version 2 is the same format) and streams.
//!
//! Reads a column of lists of floats, an id column, and further columns as metadata, by the rules
//! of the Parquet reader. A library reads the messages' headers. The arrays are plain memory and
//! are read here, since Arrow's own library would treble the build time of this crate. A file is
//! read from front to back like a stream; its footer adds no information. Bodies may be
//! uncompressed or LZ4-compressed. Dictionary-encoded columns are left out.

mod array;
mod body;
mod columns;
mod message;
mod write;

use std::io::Read;

use serde_json::{Map, Value};

use super::batch::{Batch, ColumnNames, VectorReader, dimension_within_bounds, expect_finite, numbered};
use super::bytes::ByteSource;
use super::error::{FormatError, Result};
use array::Array;
use body::Body;
use columns::{ArrowColumns, Column};
use message::{Message, Messages};

pub use write::ArrowWriter;

const FORMAT: &str = "Arrow";

/// Reads a file or a stream.
pub struct ArrowReader<R> {
    messages: Messages<R>,
    columns: Vec<Column>,
    plan: ArrowColumns,
    dimension: Option<usize>,
    /// The record batch being read.
    current: Option<RecordBatch>,
    next_row: u64,
}

/// A record batch in memory.
struct RecordBatch {
    body: Body,
    /// One array for each column of the schema; `None` for columns that are not read.
    arrays: Vec<Option<Array>>,
    rows: usize,
    next: usize,
}

impl<R: Read> ArrowReader<R> {
    /// Reads the schema and the first record batch. `length` is the length of the stream, if known.
    pub fn new(stream: R, length: Option<u64>, names: &ColumnNames) -> Result<ArrowReader<R>> {
        let mut messages = Messages::new(ByteSource::new(stream, length, FORMAT))?;
        let Some(Message::Schema(columns)) = messages.next()? else {
            return Err(FormatError::header(FORMAT, "it does not begin with a schema"));
        };
        let plan = ArrowColumns::new(&columns, names)?;
        let mut reader = ArrowReader { messages, columns, plan, dimension: None, current: None, next_row: 0 };
        reader.advance()?;
        if let Some(current) = &reader.current {
            let (body, vectors) = (&current.body, reader.plan.vector_of(&current.arrays)?);
            reader.dimension = Some(dimension_within_bounds(vectors.list(body, 0, reader.next_row)?.len() as u64)?);
        }
        Ok(reader)
    }

    /// Advances to the next record batch that has rows.
    fn advance(&mut self) -> Result<()> {
        self.current = None;
        while let Some(message) = self.messages.next()? {
            let Message::Batch { header, body } = message else { continue };
            let batch = header.read(&body, &self.columns, &self.plan)?;
            if batch.1 > 0 {
                self.current = Some(RecordBatch { body, arrays: batch.0, rows: batch.1, next: 0 });
                return Ok(());
            }
        }
        Ok(())
    }

    fn rows(&self, current: &RecordBatch, rows: usize) -> Result<Batch> {
        let range = current.next..current.next + rows;
        let mut batch = Batch { vectors: self.vectors(current, range.clone())?, ..Batch::default() };
        let array = |index: usize| current.arrays.get(index).and_then(Option::as_ref);
        let in_row = |row: usize, reason: &str| FormatError::Record {
            place: "row",
            at: self.next_row + (row - current.next) as u64,
            reason: reason.to_owned(),
        };
        batch.ids = match self.plan.id.and_then(array) {
            None => numbered(self.next_row, rows),
            Some(ids) => {
                let id = |row| match ids.value(&current.body, row)? {
                    Value::String(text) => Ok(text),
                    Value::Number(number) => Ok(number.to_string()),
                    _ => Err(in_row(row, "the id is null")),
                };
                range.clone().map(id).collect::<Result<_>>()?
            }
        };
        if self.plan.fields.is_empty() {
            return Ok(batch);
        }
        for row in range {
            let mut object = Map::new();
            for index in &self.plan.fields {
                let Some(column) = array(*index) else { continue };
                let value = column.value(&current.body, row)?;
                let name = &self.columns[*index].name;
                place(&mut object, name, value).map_err(|reason| in_row(row, reason))?;
            }
            batch.metadata.push(Value::Object(object));
        }
        Ok(batch)
    }

    fn vectors(&self, current: &RecordBatch, rows: std::ops::Range<usize>) -> Result<Vec<f32>> {
        let lists = self.plan.vector_of(&current.arrays)?;
        let expected = self.dimension.unwrap_or(1);
        let mut vectors = Vec::new();
        for row in rows {
            let number = self.next_row + (row - current.next) as u64;
            let list = lists.list(&current.body, row, number)?;
            if list.len() != expected {
                let got = list.len() as u64;
                return Err(FormatError::DimensionChange { row: number, expected, got });
            }
            lists.append_floats(&current.body, list, number, &mut vectors)?;
        }
        expect_finite(&vectors, expected, self.next_row)?;
        Ok(vectors)
    }
}

impl<R: Read + Send> VectorReader for ArrowReader<R> {
    fn dimension(&self) -> Option<usize> {
        self.dimension
    }

    fn rows(&self) -> Option<u64> {
        None
    }

    fn bytes_read(&self) -> u64 {
        self.messages.position()
    }

    fn next_batch(&mut self, rows_max: usize) -> Result<Option<Batch>> {
        if self.current.as_ref().is_some_and(|current| current.next == current.rows) {
            self.advance()?;
        }
        let Some(current) = &self.current else { return Ok(None) };
        let rows = (current.rows - current.next).min(rows_max);
        if rows == 0 {
            return Ok(None);
        }
        let batch = ArrowReader::rows(self, current, rows)?;
        self.next_row += rows as u64;
        if let Some(current) = &mut self.current {
            current.next += rows;
        }
        Ok(Some(batch))
    }

    fn columns_left_out(&self) -> &[String] {
        &self.plan.left_out
    }
}

/// Inserts a column's value into the metadata. Null is the same as missing. The column `metadata`
/// holds JSON objects.
fn place(object: &mut Map<String, Value>, name: &str, value: Value) -> Result<(), &'static str> {
    match value {
        Value::Null => Ok(()),
        Value::String(text) if name == columns::METADATA_NAME => {
            let Ok(Value::Object(fields)) = serde_json::from_str(&text) else {
                return Err("the column `metadata` holds something else than a JSON object");
            };
            for (key, value) in fields {
                if object.insert(key, value).is_some() {
                    return Err("a field stands in the column `metadata` and in a column of its own");
                }
            }
            Ok(())
        }
        value => match object.insert(name.to_owned(), value) {
            None => Ok(()),
            Some(_) => Err("two columns have the same name"),
        },
    }
}

#[cfg(test)]
mod tests;
