//! Compression in every format, with the workspaces of one thread.

use panoply_core::op::crypto::{Format, OUTPUT_BYTES_DEFAULT_MAX};
use zstd_safe::{CCtx, CParameter, DCtx};

use crate::deflate::{Deflater, Inflater};
use crate::failure::Failure;
use crate::{deflate, lz4};

/// Number of levels of Deflate.
const LEVELS: usize = 13;
/// zstd's error code for an output buffer that is too small.
const ZSTD_TOO_SMALL: usize = 70;
/// At the first level, messages of at least this many bytes get a longer minimal match, as zstd
/// itself does above 256 KiB: fewer matches are written and read, and the result is not longer.
/// Zero is the library's default.
const ZSTD_LONG_BYTES: usize = 128 << 10;
const ZSTD_LONG_MATCH_MIN: u32 = 7;
const ZSTD_MATCH_USUAL: u32 = 0;
/// Ratio and extra bytes of the first attempt's memory, if neither the format nor the limit gives a
/// length. Thousands of short messages get no more than they are likely to need.
const FIRST_TRY_RATIO: usize = 8;
/// A claimed length up to this multiple of the message is trusted.
const CLAIM_RATIO_MAX: usize = 256;
const FIRST_TRY_MORE_BYTES: usize = 256;
/// Minimal memory of a second attempt.
const SECOND_TRY_BYTES_MIN: usize = 4 << 10;

/// One thread's workspaces, created on first use.
#[derive(Default)]
pub struct Packer {
    deflaters: [Option<Deflater>; LEVELS],
    inflater: Option<Inflater>,
    zstd: Option<CCtx<'static>>,
    unzstd: Option<DCtx<'static>>,
}

impl Packer {
    /// Compresses a message into `out`, which must have the length that [`bound`] gives.
    pub fn compress(&mut self, format: Format, level: i32, message: &[u8], out: &mut [u8]) -> Result<usize, Failure> {
        match format {
            Format::Deflate | Format::Zlib | Format::Gzip => self.deflater(level)?.compress(format, message, out),
            Format::Lz4Block => lz4::compress_block(message, out),
            Format::Lz4Frame => lz4::compress_frame(message, out),
            Format::Zstd => {
                let context = made(&mut self.zstd, CCtx::try_create)?;
                let is_long = level == 1 && message.len() >= ZSTD_LONG_BYTES;
                let shortest = if is_long { ZSTD_LONG_MATCH_MIN } else { ZSTD_MATCH_USUAL };
                let set = context.set_parameter(CParameter::CompressionLevel(level));
                let set = set.and_then(|_| context.set_parameter(CParameter::MinMatch(shortest)));
                set.and_then(|_| context.compress2(out, message)).map_err(|_| Failure::Limit)
            }
        }
    }

    /// Decompresses all of a message into `out`. [`Failure::Limit`] if it does not fit.
    pub fn decompress(&mut self, format: Format, message: &[u8], out: &mut [u8]) -> Result<usize, Failure> {
        if message.is_empty() {
            return Err(Failure::Rejected);
        }
        match format {
            Format::Deflate | Format::Zlib | Format::Gzip => {
                made(&mut self.inflater, Inflater::new)?.decompress(format, message, out)
            }
            Format::Lz4Block => lz4::decompress_block(message, out),
            Format::Lz4Frame => lz4::decompress_frames(message, out),
            Format::Zstd => {
                let context = made(&mut self.unzstd, DCtx::try_create)?;
                context.decompress(out, message).map_err(|code| match 0_usize.wrapping_sub(code) {
                    ZSTD_TOO_SMALL => Failure::Limit,
                    _ => Failure::Rejected,
                })
            }
        }
    }

    /// Decompresses a message that did not fit into `tried` bytes; memory is doubled up to `limit`.
    pub fn decompress_further(
        &mut self,
        format: Format,
        message: &[u8],
        tried: usize,
        limit: usize,
    ) -> Result<Vec<u8>, Failure> {
        let (mut out, mut size) = (Vec::new(), tried);
        loop {
            if size >= limit {
                return Err(Failure::Limit);
            }
            size = size.saturating_mul(2).max(SECOND_TRY_BYTES_MIN).min(limit);
            out.clear();
            out.try_reserve_exact(size).map_err(|_| Failure::Memory(size))?;
            out.resize(size, 0);
            match self.decompress(format, message, &mut out) {
                Ok(len) => {
                    out.truncate(len);
                    return Ok(out);
                }
                Err(Failure::Limit) => {}
                Err(other) => return Err(other),
            }
        }
    }

    fn deflater(&mut self, level: i32) -> Result<&mut Deflater, Failure> {
        let place = usize::try_from(level).ok().and_then(|level| self.deflaters.get_mut(level));
        made(place.ok_or(Failure::Rejected)?, || Deflater::new(level))
    }
}

/// Upper bound of the compressed length of `len` bytes.
pub fn bound(format: Format, len: usize) -> usize {
    match format {
        Format::Deflate => deflate::bound(len),
        Format::Zlib => deflate::bound(len) + 6,
        Format::Gzip => deflate::bound(len) + 18,
        Format::Lz4Block => lz4::block_bound(len),
        Format::Lz4Frame => lz4::frame_bound(len),
        Format::Zstd => zstd_safe::compress_bound(len),
    }
}

/// Memory of the first attempt for each message of a batch, together at most `total`. Claimed
/// lengths are trusted up to the default output limit of one message; beyond it, each message gets
/// a likely amount.
pub fn first_tries(format: Format, messages: &[&[u8]], limit: usize, total: usize) -> Vec<Result<usize, Failure>> {
    let mut rooms: Vec<_> = messages.iter().map(|message| first_try(format, message, limit)).collect();
    let sum = |rooms: &[Result<usize, Failure>]| {
        rooms.iter().fold(0, |sum: usize, room| sum.saturating_add(room.unwrap_or(0)))
    };
    if sum(&rooms) > total.min(OUTPUT_BYTES_DEFAULT_MAX) {
        for (room, message) in rooms.iter_mut().zip(messages) {
            *room = room.map(|room| room.min(times(message.len(), FIRST_TRY_RATIO)));
        }
    }
    if sum(&rooms) > total {
        rooms.iter_mut().for_each(|room| *room = room.map(|room| room.min(total / messages.len())));
    }
    rooms
}

/// Memory of the first attempt for one message: the format's length if it is credible, else a
/// guess; never more than `limit`. `Err` if the format's length exceeds the limit.
pub fn first_try(format: Format, message: &[u8], limit: usize) -> Result<usize, Failure> {
    let claimed = match format {
        Format::Lz4Block => Some(lz4::block_len(message)?),
        Format::Lz4Frame => lz4::frame_len(message),
        Format::Zstd => zstd_safe::get_frame_content_size(message)
            .ok()
            .flatten()
            .map(|len| usize::try_from(len).unwrap_or(usize::MAX)),
        // gzip ends with the length of its last member, modulo 4 GiB.
        Format::Gzip => message.last_chunk().map(|len| u32::from_le_bytes(*len) as usize),
        Format::Deflate | Format::Zlib => None,
    };
    match claimed {
        Some(len) if len > limit && format != Format::Gzip => Err(Failure::Limit),
        Some(len) => Ok(len.min(times(message.len(), CLAIM_RATIO_MAX)).min(limit)),
        None => Ok(times(message.len(), FIRST_TRY_RATIO).min(limit)),
    }
}

fn times(len: usize, ratio: usize) -> usize {
    len.saturating_mul(ratio).saturating_add(FIRST_TRY_MORE_BYTES)
}

fn made<T>(place: &mut Option<T>, make: impl FnOnce() -> Option<T>) -> Result<&mut T, Failure> {
    if place.is_none() {
        *place = make();
    }
    place.as_mut().ok_or(Failure::Memory(0))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use super::*;

    fn text(len: usize) -> Vec<u8> {
        let mut state = 1_u64;
        let mut word = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            format!("{} ", ["seal", "open", "hash", "sign", "verify", "compress"][(state >> 40) as usize % 6])
        };
        let mut text = Vec::new();
        while text.len() < len {
            text.extend(word().into_bytes());
        }
        text.truncate(len);
        text
    }

    #[test]
    fn long_messages_have_long_matches_and_others_what_the_library_picks() {
        let mut packer = Packer::default();
        // Alternating, so that a setting of one message would show in the next.
        for (len, is_long) in [(1000, false), (256 << 10, true), (ZSTD_LONG_BYTES - 1, false), (ZSTD_LONG_BYTES, true)]
        {
            let message = text(len);
            for level in [1, 3, 1] {
                let mut out = vec![0; bound(Format::Zstd, len)];
                let packed = packer.compress(Format::Zstd, level, &message, &mut out).unwrap();
                let mut usual = vec![0; out.len()];
                let usual_len = zstd_safe::compress(&mut usual[..], &message, level).unwrap();
                assert_eq!(out[..packed] == usual[..usual_len], !is_long || level != 1, "{len} at {level}");
                let mut again = vec![0; len];
                assert_eq!(packer.decompress(Format::Zstd, &out[..packed], &mut again), Ok(len));
                assert!(again == message, "{len} at {level}");
            }
        }
    }
}
