//! A byte stream that counts the bytes read and knows its length if it has one.

use std::io::{BufReader, Read};

use super::error::FormatError;

/// A stream that is read in pieces whose sizes are untrusted.
pub struct ByteSource<R> {
    stream: BufReader<R>,
    format: &'static str,
    /// Total length, if known.
    length: Option<u64>,
    position: u64,
}

impl<R: Read> ByteSource<R> {
    /// Wraps a stream of this format. `length` is its length, if known.
    pub fn new(stream: R, length: Option<u64>, format: &'static str) -> ByteSource<R> {
        ByteSource { stream: BufReader::with_capacity(1 << 16, stream), format, length, position: 0 }
    }

    /// Bytes read so far.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Bytes left, if the length is known.
    pub fn left(&self) -> Option<u64> {
        self.length.map(|length| length.saturating_sub(self.position))
    }

    /// Checks that the stream can still deliver `bytes` bytes.
    pub fn expect_left(&self, bytes: u64) -> Result<(), FormatError> {
        match self.left() {
            Some(left) if left < bytes => Err(self.truncated(bytes, left)),
            _ => Ok(()),
        }
    }

    /// Replaces the buffer's content by `bytes` bytes and returns true, or returns false at the end
    /// of the stream. The buffer grows with the bytes that arrive, not with the requested size.
    pub fn fill(&mut self, buffer: &mut Vec<u8>, bytes: usize) -> Result<bool, FormatError> {
        self.expect_left_or_end(bytes as u64)?;
        buffer.clear();
        let got = (&mut self.stream).take(bytes as u64).read_to_end(buffer).map_err(FormatError::io)?;
        if got < bytes && got > 0 {
            return Err(self.truncated(bytes as u64, got as u64));
        }
        self.position += got as u64;
        Ok(got == bytes)
    }

    /// Replaces the buffer's content by exactly `bytes` bytes.
    pub fn fill_exactly(&mut self, buffer: &mut Vec<u8>, bytes: usize) -> Result<(), FormatError> {
        if bytes > 0 && !self.fill(buffer, bytes)? {
            return Err(self.truncated(bytes as u64, 0));
        }
        if bytes == 0 {
            buffer.clear();
        }
        Ok(())
    }

    /// Replaces the buffer's content by at most `bytes` bytes: fewer only at the end of the stream.
    pub fn fill_up_to(&mut self, buffer: &mut Vec<u8>, bytes: usize) -> Result<(), FormatError> {
        buffer.clear();
        let got = (&mut self.stream).take(bytes as u64).read_to_end(buffer).map_err(FormatError::io)?;
        self.position += got as u64;
        Ok(())
    }

    /// The error of a stream that ends too early: `wanted` bytes were needed here, and `got` bytes
    /// came.
    pub fn truncated(&self, wanted: u64, got: u64) -> FormatError {
        FormatError::Truncated {
            format: self.format,
            expected_bytes: self.position.saturating_add(wanted),
            got_bytes: self.position.saturating_add(got),
        }
    }

    fn expect_left_or_end(&self, bytes: u64) -> Result<(), FormatError> {
        if self.left() == Some(0) { Ok(()) } else { self.expect_left(bytes) }
    }
}
