//! The memory of a record batch.

use std::io::Read;
use std::ops::Range;

use lz4_flex::frame::FrameDecoder;
use polars_arrow_format::ipc::CompressionType;

use super::super::error::{FormatError, Result};
use super::FORMAT;

/// Maximum size of a decompressed buffer.
const BUFFER_BYTES_MAX: u64 = 1 << 30;

/// The body of a message.
pub struct Body {
    bytes: Vec<u8>,
    compression: Option<Compression>,
}

/// The compression of each buffer: LZ4.
#[derive(Clone, Copy)]
pub struct Compression;

impl Compression {
    pub fn new(codec: CompressionType) -> Result<Compression> {
        match codec {
            CompressionType::Lz4Frame => Ok(Compression),
            CompressionType::Zstd => Err(FormatError::Unsupported {
                format: FORMAT,
                what: "Zstandard compression".to_owned(),
                advice: "write it uncompressed, or with LZ4",
            }),
        }
    }
}

/// One buffer of a body: a range of the body's bytes, or the decompressed bytes.
pub enum Buffer {
    Part(Range<usize>),
    Own(Vec<u8>),
}

impl Body {
    pub fn new(bytes: Vec<u8>, compression: Option<Compression>) -> Body {
        Body { bytes, compression }
    }

    /// The buffer in the byte range `place` of the body.
    pub fn buffer(&self, place: Range<usize>) -> Result<Buffer> {
        let bytes = self
            .bytes
            .get(place.clone())
            .ok_or_else(|| FormatError::header(FORMAT, "a buffer lies outside of its message's body"))?;
        if self.compression.is_none() || bytes.is_empty() {
            return Ok(Buffer::Part(place));
        }
        let Some((length, compressed)) = bytes.split_first_chunk() else {
            return Err(FormatError::header(FORMAT, "a compressed buffer is shorter than its length"));
        };
        // A length of -1 marks a buffer that is stored uncompressed, because compression would not
        // have made it smaller.
        let length = i64::from_le_bytes(*length);
        if length == -1 {
            return Ok(Buffer::Part(place.start + size_of::<i64>()..place.end));
        }
        let length = u64::try_from(length).unwrap_or(u64::MAX);
        if length > BUFFER_BYTES_MAX {
            return Err(FormatError::TooLarge { what: "a buffer", bytes: length, bytes_max: BUFFER_BYTES_MAX });
        }
        let mut own = Vec::new();
        // Memory grows with the bytes that arrive. Reading one byte beyond the claimed length
        // detects excess data.
        let read = FrameDecoder::new(compressed).take(length + 1).read_to_end(&mut own);
        read.map_err(|error| FormatError::header(FORMAT, format!("a buffer cannot be decompressed: {error}")))?;
        if own.len() as u64 != length {
            return Err(FormatError::header(FORMAT, "a compressed buffer does not have the length that it claims"));
        }
        Ok(Buffer::Own(own))
    }

    /// The bytes of a buffer of this body.
    pub fn bytes<'a>(&'a self, buffer: &'a Buffer) -> &'a [u8] {
        match buffer {
            Buffer::Part(place) => self.bytes.get(place.clone()).unwrap_or_default(),
            Buffer::Own(bytes) => bytes,
        }
    }
}
