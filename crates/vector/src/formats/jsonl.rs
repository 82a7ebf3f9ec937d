//! JSON lines: one object per line with `id`, `vector` (or `embedding`), and metadata in an object
//! `metadata`, in further fields of the line, or in both.
//!
//! An id is a text or an integer; a line without an id gets its row number. [`RecordsReader`] reads
//! lines without vectors.

mod line;

use std::io::{BufRead, BufReader, Read, Write};

use serde_json::{Map, Value, json};

use super::batch::{Batch, VectorReader, Writer, dimension_within_bounds, expect_finite};
use super::error::{FormatError, Result};
use line::JsonRecord;

/// Maximum length of a line, in bytes.
const LINE_BYTES_MAX: usize = 16 << 20;

/// Reads vectors from a stream of lines.
pub struct JsonLinesReader<R> {
    lines: LineReader<R>,
    /// The first line, which was read ahead for its dimension.
    first: Option<JsonRecord>,
    dimension: Option<usize>,
    next_row: u64,
}

impl<R: Read> JsonLinesReader<R> {
    /// Reads the first line, which gives the dimension.
    pub fn new(stream: R) -> Result<JsonLinesReader<R>> {
        let mut lines = LineReader::new(stream);
        let first = lines.next_line()?;
        let dimension = match &first {
            Some(line) => Some(dimension_within_bounds(lines.vector(line)?.len() as u64)?),
            None => None,
        };
        Ok(JsonLinesReader { lines, first, dimension, next_row: 0 })
    }
}

impl<R: Read + Send> VectorReader for JsonLinesReader<R> {
    fn dimension(&self) -> Option<usize> {
        self.dimension
    }

    fn rows(&self) -> Option<u64> {
        None
    }

    fn bytes_read(&self) -> u64 {
        self.lines.bytes_read
    }

    fn next_batch(&mut self, rows_max: usize) -> Result<Option<Batch>> {
        let Some(dimension) = self.dimension else { return Ok(None) };
        let mut batch = Batch::default();
        let first_row = self.next_row;
        while batch.ids.len() < rows_max {
            let line = match self.first.take() {
                Some(first) => first,
                None => match self.lines.next_line()? {
                    Some(line) => line,
                    None => break,
                },
            };
            let vector = self.lines.vector(&line)?;
            if vector.len() != dimension {
                let got = vector.len() as u64;
                return Err(FormatError::DimensionChange { row: self.next_row, expected: dimension, got });
            }
            expect_finite(vector, dimension, self.next_row)?;
            batch.vectors.extend_from_slice(vector);
            let (id, metadata) = line.into_record(self.next_row);
            batch.ids.push(id);
            batch.metadata.push(metadata);
            self.next_row += 1;
        }
        Ok((self.next_row > first_row).then_some(batch))
    }
}

/// Reads ids and metadata from a stream of lines and ignores vectors.
pub struct RecordsReader<R> {
    lines: LineReader<R>,
    next_row: u64,
}

impl<R: Read> RecordsReader<R> {
    /// Reads from a stream.
    pub fn new(stream: R) -> RecordsReader<R> {
        RecordsReader { lines: LineReader::new(stream), next_row: 0 }
    }

    /// The next record's id and metadata; `None` at the end.
    pub fn next_record(&mut self) -> Result<Option<(String, Value)>> {
        let Some(line) = self.lines.next_line()? else { return Ok(None) };
        self.next_row += 1;
        Ok(Some(line.into_record(self.next_row - 1)))
    }
}

/// The non-blank lines of a stream.
struct LineReader<R> {
    stream: BufReader<R>,
    buffer: Vec<u8>,
    /// Number of the last line read, counted from one.
    number: u64,
    bytes_read: u64,
}

impl<R: Read> LineReader<R> {
    fn new(stream: R) -> LineReader<R> {
        LineReader { stream: BufReader::with_capacity(1 << 16, stream), buffer: Vec::new(), number: 0, bytes_read: 0 }
    }

    fn next_line(&mut self) -> Result<Option<JsonRecord>> {
        loop {
            self.buffer.clear();
            let mut limited = (&mut self.stream).take(LINE_BYTES_MAX as u64 + 1);
            let bytes = limited.read_until(b'\n', &mut self.buffer).map_err(FormatError::io)?;
            if bytes == 0 {
                return Ok(None);
            }
            if bytes > LINE_BYTES_MAX {
                let (bytes, bytes_max) = (bytes as u64, LINE_BYTES_MAX as u64);
                return Err(FormatError::TooLarge { what: "a line", bytes, bytes_max });
            }
            self.number += 1;
            self.bytes_read += bytes as u64;
            if self.buffer.iter().any(|byte| !byte.is_ascii_whitespace()) {
                return JsonRecord::parse(&self.buffer).map(Some).map_err(|reason| self.wrong(reason));
            }
        }
    }

    /// The vector of a line; an error if the line has none.
    fn vector<'a>(&self, line: &'a JsonRecord) -> Result<&'a [f32]> {
        line.vector.as_deref().ok_or_else(|| self.wrong("it has no `vector`".to_owned()))
    }

    fn wrong(&self, reason: String) -> FormatError {
        FormatError::Record { place: "line", at: self.number, reason }
    }
}

/// Writes a line per row: `{"id": …, "vector": […], "metadata": {…}}`.
pub struct JsonLinesWriter<W> {
    out: W,
    dimension: usize,
}

impl<W: Write> JsonLinesWriter<W> {
    /// Begins a file.
    pub fn new(out: W, dimension: usize) -> JsonLinesWriter<W> {
        JsonLinesWriter { out, dimension }
    }
}

impl<W: Write + Send> Writer for JsonLinesWriter<W> {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        let rows = batch.ids.iter().zip(batch.vectors.chunks(self.dimension.max(1)));
        for (row, (id, vector)) in rows.enumerate() {
            let mut line = Map::from_iter([("id".to_owned(), json!(id)), ("vector".to_owned(), json!(vector))]);
            if let Some(metadata) = batch.metadata.get(row).filter(|metadata| !metadata.is_null()) {
                line.insert("metadata".to_owned(), metadata.clone());
            }
            let written = serde_json::to_writer(&mut self.out, &line).map_err(std::io::Error::from);
            written.and_then(|()| self.out.write_all(b"\n")).map_err(FormatError::io)?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.out.flush().map_err(FormatError::io)
    }
}

#[cfg(test)]
mod tests;
