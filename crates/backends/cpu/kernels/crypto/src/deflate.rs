//! DEFLATE, raw and in zlib and gzip containers.
//!
//! libdeflate's Rust crate does not report how many input bytes were read, so its C functions are
//! called directly. Bytes behind the compressed data are refused; gzip may have several members.
//! The first level is an own implementation: see [`fast`].

use std::ptr::NonNull;

use libdeflate_sys as sys;
use libdeflater::{CompressionLvl, Compressor};
use panoply_core::op::crypto::Format;

use self::fast::Fast;
use crate::failure::Failure;

mod bits;
mod code;
mod emit;
mod fast;
mod header;
mod parse;
mod tally;
#[cfg(test)]
mod tests;

/// The level with the own implementation.
const FAST_LEVEL: i32 = 1;
/// The headers of the first level: zlib, and gzip with an unknown operating system.
const ZLIB_HEAD: [u8; 2] = [0x78, 0x01];
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 4, 255];

/// A compressor with a fixed level.
pub struct Deflater(Compressor, Option<Fast>);

/// Upper bound of the compressed length of `len` bytes at any level, without header and checksum: a
/// block that does not shrink is stored, with at least 5000 bytes in it.
pub fn bound(len: usize) -> usize {
    5 * len.div_ceil(5000).max(1) + len + 8
}

impl Deflater {
    /// `None` if there is no such level.
    pub fn new(level: i32) -> Option<Deflater> {
        let library = Compressor::new(CompressionLvl::new(level).ok()?);
        Some(Deflater(library, (level == FAST_LEVEL).then(Fast::default)))
    }

    /// Upper bound of the compressed length of a message.
    pub fn bound(&mut self, format: Format, len: usize) -> usize {
        match format {
            Format::Zlib => self.0.zlib_compress_bound(len),
            Format::Gzip => self.0.gzip_compress_bound(len),
            _ => self.0.deflate_compress_bound(len),
        }
    }

    /// Compresses, and returns the compressed length.
    pub fn compress(&mut self, format: Format, message: &[u8], out: &mut [u8]) -> Result<usize, Failure> {
        if let Some(len) = self.1.as_mut().and_then(|fast| compress_fast(fast, format, message, out)) {
            return Ok(len);
        }
        let made = match format {
            Format::Zlib => self.0.zlib_compress(message, out),
            Format::Gzip => self.0.gzip_compress(message, out),
            _ => self.0.deflate_compress(message, out),
        };
        made.map_err(|_| Failure::Limit)
    }
}

/// `None` if `out` is shorter than the bound: the library then decides whether it suffices.
fn compress_fast(fast: &mut Fast, format: Format, message: &[u8], out: &mut [u8]) -> Option<usize> {
    let sum = |format| checksum(format, message);
    let (head, tail): (&[u8], _) = match format {
        Format::Zlib => (&ZLIB_HEAD, sum(format).to_be_bytes().to_vec()),
        Format::Gzip => (&GZIP_HEAD, [sum(format).to_le_bytes(), (message.len() as u32).to_le_bytes()].concat()),
        _ => (&[], Vec::new()),
    };
    let (before, out) = out.split_at_mut_checked(head.len())?;
    let room = out.len().checked_sub(tail.len())?;
    let len = fast.compress(message, &mut out[..room])?;
    before.copy_from_slice(head);
    out[len..len + tail.len()].copy_from_slice(&tail);
    Some(head.len() + len + tail.len())
}

/// The checksum behind a message: Adler-32 in zlib, CRC-32 in gzip.
pub fn checksum(format: Format, message: &[u8]) -> u32 {
    let (place, len) = (message.as_ptr().cast(), message.len());
    match format {
        // SAFETY: `place` and `len` describe `message`. One is the checksum of nothing.
        Format::Zlib => unsafe { sys::libdeflate_adler32(1, place, len) },
        // SAFETY: as above.
        _ => unsafe { sys::libdeflate_crc32(0, place, len) },
    }
}

/// A decompressor.
pub struct Inflater(NonNull<sys::libdeflate_decompressor>);

// SAFETY: the decompressor is memory without ties to a thread, and is reached only through `&mut
// self`.
unsafe impl Send for Inflater {}

impl Inflater {
    /// `None` if there is no memory.
    pub fn new() -> Option<Inflater> {
        // SAFETY: the call has no requirements; null means that there is no memory.
        NonNull::new(unsafe { sys::libdeflate_alloc_decompressor() }).map(Inflater)
    }

    /// Decompresses all of `message`, and returns the length. [`Failure::Limit`] if it is longer
    /// than `out`.
    pub fn decompress(&mut self, format: Format, message: &[u8], out: &mut [u8]) -> Result<usize, Failure> {
        let (mut read, mut made) = self.member(format, message, out)?;
        while format == Format::Gzip && read < message.len() {
            let (more_read, more_made) = self.member(format, &message[read..], &mut out[made..])?;
            (read, made) = (read + more_read, made + more_made);
        }
        if read == message.len() { Ok(made) } else { Err(Failure::Rejected) }
    }

    /// Decompresses one raw stream, and ignores the bytes behind it. Returns the numbers of bytes
    /// read and written.
    pub fn stream(&mut self, message: &[u8], out: &mut [u8]) -> Result<(usize, usize), Failure> {
        self.member(Format::Deflate, message, out)
    }

    /// Decompresses one stream or member. Returns the numbers of bytes read and written.
    fn member(&mut self, format: Format, message: &[u8], out: &mut [u8]) -> Result<(usize, usize), Failure> {
        let decompress = match format {
            Format::Zlib => sys::libdeflate_zlib_decompress_ex,
            Format::Gzip => sys::libdeflate_gzip_decompress_ex,
            _ => sys::libdeflate_deflate_decompress_ex,
        };
        let (input, output) = (message.as_ptr().cast(), out.as_mut_ptr().cast());
        let (mut read, mut made) = (0, 0);
        // SAFETY: the decompressor is alive and exclusively borrowed; both slices have the given
        // lengths; both results point to local variables.
        let code =
            unsafe { decompress(self.0.as_ptr(), input, message.len(), output, out.len(), &mut read, &mut made) };
        match code {
            sys::libdeflate_result_LIBDEFLATE_SUCCESS if read > 0 && read <= message.len() && made <= out.len() => {
                Ok((read, made))
            }
            sys::libdeflate_result_LIBDEFLATE_INSUFFICIENT_SPACE => Err(Failure::Limit),
            _ => Err(Failure::Rejected),
        }
    }
}

impl Drop for Inflater {
    fn drop(&mut self) {
        // SAFETY: allocated in `new`, and freed once.
        unsafe { sys::libdeflate_free_decompressor(self.0.as_ptr()) };
    }
}
