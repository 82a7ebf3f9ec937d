//! NumPy arrays: `.npy`, versions 1 to 3.
//!
//! An array of rank two has one row per vector; an array of rank one is a single vector. The
//! elements are f16, f32, f64, i8 or u8, in either byte order and in C order.

mod header;

use std::io::{Read, Seek, SeekFrom, Write};

use half::f16;

use super::batch::{Batch, VectorReader, Writer, dimension_within_bounds, expect_finite, numbered};
use super::bytes::ByteSource;
use super::error::{FormatError, Result};
use header::{ElementType, Header};

const FORMAT: &str = "npy";
const MAGIC: &[u8; 6] = b"\x93NUMPY";
/// Maximum size of a header. NumPy's own headers have about a hundred bytes.
const HEADER_BYTES_MAX: usize = 1 << 16;
/// Size of a written header, including the magic bytes: room for any shape, and a multiple of 64.
const HEADER_BYTES_WRITTEN: usize = 128;

/// Reads an array from a stream.
pub struct NpyReader<R> {
    source: ByteSource<R>,
    header: Header,
    dimension: usize,
    rows: u64,
    next_row: u64,
    buffer: Vec<u8>,
}

impl<R: Read> NpyReader<R> {
    /// Reads the header. `length` is the length of the stream, if known; a header that claims more
    /// is refused.
    pub fn new(stream: R, length: Option<u64>) -> Result<NpyReader<R>> {
        let mut source = ByteSource::new(stream, length, FORMAT);
        let header = Header::parse(&header_text(&mut source)?)?;
        let (rows, components) = match header.shape.as_slice() {
            [components] => (1, *components),
            [rows, components] => (*rows, *components),
            shape => {
                let what = format!("an array of rank {}", shape.len());
                return Err(FormatError::Unsupported {
                    format: FORMAT,
                    what,
                    advice: "reshape it to [rows, dimension]",
                });
            }
        };
        let dimension = dimension_within_bounds(components)?;
        let row_bytes = (dimension * header.element.size_bytes()) as u64;
        let claimed = rows.checked_mul(row_bytes).ok_or_else(|| {
            FormatError::header(FORMAT, format!("it claims {rows} rows of {row_bytes} bytes, more than any file holds"))
        })?;
        source.expect_left(claimed)?;
        Ok(NpyReader { source, header, dimension, rows, next_row: 0, buffer: Vec::new() })
    }
}

impl<R: Read + Send> VectorReader for NpyReader<R> {
    fn dimension(&self) -> Option<usize> {
        Some(self.dimension)
    }

    fn rows(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn bytes_read(&self) -> u64 {
        self.source.position()
    }

    fn next_batch(&mut self, rows_max: usize) -> Result<Option<Batch>> {
        let rows = (self.rows - self.next_row).min(rows_max as u64) as usize;
        if rows == 0 {
            return Ok(None);
        }
        let element = self.header.element;
        self.source.fill_exactly(&mut self.buffer, rows * self.dimension * element.size_bytes())?;
        let vectors = numbers(&mut self.buffer, element, self.header.big_endian);
        expect_finite(&vectors, self.dimension, self.next_row)?;
        let ids = numbered(self.next_row, rows);
        self.next_row += rows as u64;
        Ok(Some(Batch { ids, vectors, metadata: Vec::new() }))
    }
}

/// Reads everything before the data and returns the dictionary as text.
fn header_text<R: Read>(source: &mut ByteSource<R>) -> Result<String> {
    let mut bytes = Vec::new();
    let cut_short = |_| FormatError::header(FORMAT, "it is shorter than a header");
    source.fill_exactly(&mut bytes, 8).map_err(cut_short)?;
    if bytes[..6] != *MAGIC {
        return Err(FormatError::header(FORMAT, "it does not begin as one"));
    }
    let version = bytes[6];
    let length = match version {
        1 => {
            source.fill_exactly(&mut bytes, 2).map_err(cut_short)?;
            u32::from(u16::from_le_bytes([bytes[0], bytes[1]]))
        }
        2 | 3 => {
            source.fill_exactly(&mut bytes, 4).map_err(cut_short)?;
            u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
        }
        _ => return Err(FormatError::header(FORMAT, format!("version {version} is not known; expected 1, 2 or 3"))),
    };
    if length as usize > HEADER_BYTES_MAX {
        let (bytes, bytes_max) = (u64::from(length), HEADER_BYTES_MAX as u64);
        return Err(FormatError::TooLarge { what: "a header", bytes, bytes_max });
    }
    source.fill_exactly(&mut bytes, length as usize)?;
    String::from_utf8(bytes).map_err(|_| FormatError::header(FORMAT, "the header is not text"))
}

/// Converts the elements to single precision. Bytes in the opposite order are swapped in place
/// first.
fn numbers(bytes: &mut [u8], element: ElementType, big_endian: bool) -> Vec<f32> {
    if big_endian {
        bytes.chunks_exact_mut(element.size_bytes()).for_each(<[u8]>::reverse);
    }
    match element {
        ElementType::F16 => bytes.as_chunks().0.iter().map(|bytes| f16::from_le_bytes(*bytes).to_f32()).collect(),
        ElementType::F32 => bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
        ElementType::F64 => bytes.as_chunks().0.iter().map(|bytes| f64::from_le_bytes(*bytes) as f32).collect(),
        ElementType::I8 => bytes.iter().map(|byte| f32::from(*byte as i8)).collect(),
        ElementType::U8 => bytes.iter().map(|byte| f32::from(*byte)).collect(),
    }
}

/// Writes an array of f32, without ids and metadata.
pub struct NpyWriter<W> {
    out: W,
    dimension: usize,
    rows: u64,
}

impl<W: Write + Seek> NpyWriter<W> {
    /// Begins an array. The number of rows is filled in by `finish`.
    pub fn new(mut out: W, dimension: usize) -> Result<NpyWriter<W>> {
        out.write_all(&written_header(0, dimension)).map_err(FormatError::io)?;
        Ok(NpyWriter { out, dimension, rows: 0 })
    }
}

impl<W: Write + Seek + Send> Writer for NpyWriter<W> {
    fn write(&mut self, batch: &Batch) -> Result<()> {
        let bytes: Vec<u8> = batch.vectors.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.out.write_all(&bytes).map_err(FormatError::io)?;
        self.rows += (batch.vectors.len() / self.dimension.max(1)) as u64;
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let header = written_header(self.rows, self.dimension);
        let written = self.out.seek(SeekFrom::Start(0)).and_then(|_| self.out.write_all(&header));
        written.and_then(|()| self.out.flush()).map_err(FormatError::io)
    }
}

/// The header of version 1, padded with spaces to its fixed length and ended by a line break.
fn written_header(rows: u64, dimension: usize) -> Vec<u8> {
    let text = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, {dimension}), }}");
    let text_bytes = HEADER_BYTES_WRITTEN - MAGIC.len() - 4;
    let mut header = MAGIC.to_vec();
    header.extend([1, 0]);
    header.extend((text_bytes as u16).to_le_bytes());
    header.extend(format!("{text:<width$}\n", width = text_bytes - 1).bytes());
    header
}

#[cfg(test)]
mod tests;
