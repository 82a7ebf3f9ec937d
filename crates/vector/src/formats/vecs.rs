//! `.fvecs`, `.bvecs` and `.ivecs`: each row is its dimension as a 32-bit integer, then its
//! components as f32, u8 or i32; all of it little-endian. Every row of a file has the same
//! dimension.

use std::io::{Read, Write};

use super::batch::{Batch, VectorReader, Writer, dimension_within_bounds, expect_finite, numbered};
use super::bytes::ByteSource;
use super::error::{FormatError, Result};

/// Bytes of the dimension in front of each row.
const DIMENSION_BYTES: usize = 4;

/// The element types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VecsKind {
    /// `.fvecs`.
    F32,
    /// `.bvecs`.
    U8,
    /// `.ivecs`.
    I32,
}

impl VecsKind {
    /// The file extension.
    pub const fn name(self) -> &'static str {
        match self {
            VecsKind::F32 => "fvecs",
            VecsKind::U8 => "bvecs",
            VecsKind::I32 => "ivecs",
        }
    }

    const fn element_bytes(self) -> usize {
        match self {
            VecsKind::F32 | VecsKind::I32 => 4,
            VecsKind::U8 => 1,
        }
    }
}

/// Reads rows from a stream.
pub struct VecsReader<R> {
    source: ByteSource<R>,
    kind: VecsKind,
    /// `None` if the file has no row.
    dimension: Option<usize>,
    rows: Option<u64>,
    next_row: u64,
    /// Whether the dimension in front of the next row was already read.
    dimension_taken: bool,
    buffer: Vec<u8>,
}

impl<R: Read> VecsReader<R> {
    /// Reads the first row's dimension. `length` is the length of the stream, if known; it must be
    /// a whole number of rows.
    pub fn new(stream: R, length: Option<u64>, kind: VecsKind) -> Result<VecsReader<R>> {
        let mut source = ByteSource::new(stream, length, kind.name());
        let mut buffer = Vec::new();
        if !source.fill(&mut buffer, DIMENSION_BYTES)? {
            let rows = Some(0);
            return Ok(VecsReader { source, kind, dimension: None, rows, next_row: 0, dimension_taken: false, buffer });
        }
        let dimension = dimension_within_bounds(dimension_at_front(&buffer))?;
        let row_bytes = (DIMENSION_BYTES + dimension * kind.element_bytes()) as u64;
        if let Some(length) = length
            && length % row_bytes != 0
        {
            let expected_bytes = length.next_multiple_of(row_bytes);
            return Err(FormatError::Truncated { format: kind.name(), expected_bytes, got_bytes: length });
        }
        let rows = length.map(|length| length / row_bytes);
        let dimension = Some(dimension);
        Ok(VecsReader { source, kind, dimension, rows, next_row: 0, dimension_taken: true, buffer })
    }
}

impl<R: Read + Send> VectorReader for VecsReader<R> {
    fn dimension(&self) -> Option<usize> {
        self.dimension
    }

    fn rows(&self) -> Option<u64> {
        self.rows
    }

    fn bytes_read(&self) -> u64 {
        self.source.position()
    }

    fn next_batch(&mut self, rows_max: usize) -> Result<Option<Batch>> {
        let Some(dimension) = self.dimension else { return Ok(None) };
        let components_bytes = dimension * self.kind.element_bytes();
        let row_bytes = DIMENSION_BYTES + components_bytes;
        let taken_bytes = if self.dimension_taken { DIMENSION_BYTES } else { 0 };
        let wanted = rows_max.saturating_mul(row_bytes).saturating_sub(taken_bytes);
        self.source.fill_up_to(&mut self.buffer, wanted)?;
        if self.buffer.is_empty() && !self.dimension_taken {
            return Ok(None);
        }
        let rows = (self.buffer.len() + taken_bytes).div_ceil(row_bytes);
        if self.buffer.len() + taken_bytes != rows * row_bytes {
            let missing = rows * row_bytes - self.buffer.len() - taken_bytes;
            return Err(self.source.truncated(missing as u64, 0));
        }
        let mut vectors = Vec::with_capacity(rows * dimension);
        let mut rest = self.buffer.as_slice();
        for row in 0..rows {
            if !std::mem::take(&mut self.dimension_taken) {
                let got = dimension_at_front(rest);
                if got != dimension as u64 {
                    let row = self.next_row + row as u64;
                    return Err(FormatError::DimensionChange { row, expected: dimension, got });
                }
                rest = &rest[DIMENSION_BYTES..];
            }
            let (components, behind) = rest.split_at(components_bytes);
            append(&mut vectors, components, self.kind);
            rest = behind;
        }
        expect_finite(&vectors, dimension, self.next_row)?;
        let ids = numbered(self.next_row, rows);
        self.next_row += rows as u64;
        Ok(Some(Batch { ids, vectors, metadata: Vec::new() }))
    }
}

/// The dimension at the front of the bytes. A negative dimension reads as a number above the limit.
fn dimension_at_front(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |bytes| u64::from(u32::from_le_bytes(*bytes)))
}

fn append(vectors: &mut Vec<f32>, bytes: &[u8], kind: VecsKind) {
    match kind {
        VecsKind::F32 => vectors.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes))),
        VecsKind::U8 => vectors.extend(bytes.iter().map(|byte| f32::from(*byte))),
        VecsKind::I32 => vectors.extend(bytes.as_chunks().0.iter().map(|bytes| i32::from_le_bytes(*bytes) as f32)),
    }
}

/// Writes rows, without ids and metadata.
pub struct VecsWriter<W> {
    out: W,
    dimension: usize,
    kind: VecsKind,
    rows: u64,
}

impl<W: Write> VecsWriter<W> {
    /// Begins a file.
    pub fn new(out: W, dimension: usize, kind: VecsKind) -> VecsWriter<W> {
        VecsWriter { out, dimension, kind, rows: 0 }
    }

    fn component(&self, value: f32, component: usize) -> Result<[u8; 4]> {
        let whole = match self.kind {
            VecsKind::F32 => return Ok(value.to_le_bytes()),
            VecsKind::U8 => f32::from(value as u8) == value,
            VecsKind::I32 => (value as i32) as f32 == value,
        };
        if !whole {
            let (format, row) = (self.kind.name(), self.rows);
            return Err(FormatError::NotRepresentable { format, row, component, value });
        }
        Ok((value as i32).to_le_bytes())
    }
}

impl<W: Write + Send> Writer for VecsWriter<W> {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        for row in batch.vectors.chunks(self.dimension.max(1)) {
            let mut bytes = Vec::with_capacity(DIMENSION_BYTES + size_of_val(row));
            bytes.extend((self.dimension as u32).to_le_bytes());
            for (component, value) in row.iter().enumerate() {
                bytes.extend(&self.component(*value, component)?[..self.kind.element_bytes()]);
            }
            self.out.write_all(&bytes).map_err(FormatError::io)?;
            self.rows += 1;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        self.out.flush().map_err(FormatError::io)
    }
}

#[cfg(test)]
mod tests;
