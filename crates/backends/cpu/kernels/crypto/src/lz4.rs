//! LZ4: blocks by `lz4_flex`, frames as in the frame format's description (version 1.6.4).
//!
//! Frames are read here, because a reader must write into bounded memory, refuse a truncated
//! header, and refuse bytes behind the last frame. Written frames have independent blocks, the
//! content's length and its checksum.

use std::hash::Hasher;

use lz4_flex::block::{
    DecompressError, compress_into, decompress_into, decompress_into_with_dict, get_maximum_output_size,
};
use twox_hash::XxHash32;

use crate::failure::Failure;

const MAGIC: u32 = 0x184d_2204;
/// Sixteen magic numbers of frames that are skipped.
const SKIPPABLE: std::ops::RangeInclusive<u32> = 0x184d_2a50..=0x184d_2a5f;
/// Block sizes, by their number in the header, from 4 on.
const BLOCK_BYTES: [usize; 4] = [64 << 10, 256 << 10, 1 << 20, 4 << 20];
/// Maximal distance of a match in a linked block.
const WINDOW_BYTES: usize = 64 << 10;
/// Maximal ratio of decompressed to compressed bytes.
const RATIO_MAX: u64 = 255;
/// This bit in a block's length marks an uncompressed block.
const STORED: u32 = 1 << 31;

/// Upper bound of the compressed length as one block.
pub fn block_bound(len: usize) -> usize {
    get_maximum_output_size(len)
}

/// Compresses to one block, and returns its length.
pub fn compress_block(message: &[u8], out: &mut [u8]) -> Result<usize, Failure> {
    compress_into(message, out).map_err(|_| Failure::Limit)
}

/// Decompresses one block, and returns the length. [`Failure::Limit`] if it is longer than `out`.
pub fn decompress_block(block: &[u8], out: &mut [u8]) -> Result<usize, Failure> {
    decompress_into(block, out).map_err(|error| match error {
        DecompressError::OutputTooSmall { .. } => Failure::Limit,
        _ => Failure::Rejected,
    })
}

/// The decompressed length of a block, from its tokens alone; nothing else is checked.
pub fn block_len(block: &[u8]) -> Result<usize, Failure> {
    let (mut at, mut len) = (0_usize, 0_usize);
    let more = |at: &mut usize, nibble: u8| {
        let mut count = usize::from(nibble);
        let mut byte = if nibble == 15 { 255 } else { 0 };
        while byte == 255 {
            byte = *block.get(*at)?;
            (*at, count) = (*at + 1, count.checked_add(usize::from(byte))?);
        }
        Some(count)
    };
    loop {
        let token = *block.get(at).ok_or(Failure::Rejected)?;
        at += 1;
        let literals = more(&mut at, token >> 4).ok_or(Failure::Rejected)?;
        at = at.checked_add(literals).filter(|at| *at <= block.len()).ok_or(Failure::Rejected)?;
        len = len.checked_add(literals).ok_or(Failure::Rejected)?;
        if at == block.len() {
            return Ok(len);
        }
        at += 2;
        let matched = more(&mut at, token & 15).ok_or(Failure::Rejected)?;
        len = len.checked_add(matched).and_then(|len| len.checked_add(4)).ok_or(Failure::Rejected)?;
    }
}

/// Upper bound of the compressed length as a frame.
pub fn frame_bound(len: usize) -> usize {
    // Header, end mark and checksum; a block that does not shrink is stored. While the last block
    // is compressed, it may need more than that.
    let last = len.min(BLOCK_BYTES[3]);
    15 + 4 + 4 + len + 4 * len.div_ceil(BLOCK_BYTES[0]) + (block_bound(last) - last)
}

/// Compresses to one frame, and returns its length.
pub fn compress_frame(message: &[u8], out: &mut [u8]) -> Result<usize, Failure> {
    let size = BLOCK_BYTES.iter().position(|bytes| message.len() <= *bytes).unwrap_or(3);
    let mut head = [0; 15];
    head[..4].copy_from_slice(&MAGIC.to_le_bytes());
    // Version 1, independent blocks, content length, content checksum.
    (head[4], head[5]) = (0b0110_1100, (size as u8 + 4) << 4);
    head[6..14].copy_from_slice(&(message.len() as u64).to_le_bytes());
    head[14] = head_checksum(&head[4..14]);
    let mut out = Writer { out, at: 0 };
    out.put(&head)?;
    for block in message.chunks(BLOCK_BYTES[size]) {
        let place = out.out.get_mut(out.at + 4..).ok_or(Failure::Limit)?;
        match compress_into(block, place) {
            Ok(len) if len < block.len() => {
                out.put(&(len as u32).to_le_bytes())?;
                out.at += len;
            }
            _ => {
                out.put(&(block.len() as u32 | STORED).to_le_bytes())?;
                out.put(block)?;
            }
        }
    }
    out.put(&[0; 4])?;
    out.put(&xxh32(message).to_le_bytes())?;
    Ok(out.at)
}

/// Decompresses all frames of a message, and returns the length. [`Failure::Limit`] if it is longer
/// than `out`.
pub fn decompress_frames(message: &[u8], out: &mut [u8]) -> Result<usize, Failure> {
    let (mut input, mut made) = (Lz4Reader { rest: message }, 0);
    loop {
        match input.word()? {
            MAGIC => made += frame(&mut input, &mut out[made..])?,
            magic if SKIPPABLE.contains(&magic) => {
                let len = input.word()?;
                input.take(len as usize)?;
            }
            _ => return Err(Failure::Rejected),
        }
        if input.rest.is_empty() {
            return Ok(made);
        }
    }
}

/// The decompressed length in the frames' headers; `None` if a header has none.
pub fn frame_len(message: &[u8]) -> Option<usize> {
    let mut input = Lz4Reader { rest: message };
    (input.word() == Ok(MAGIC)).then_some(())?;
    Head::read(&mut input).ok()?.content_len.and_then(|len| usize::try_from(len).ok())
}

struct Head {
    linked: bool,
    block_checksums: bool,
    content_checksum: bool,
    content_len: Option<u64>,
    block_bytes_max: usize,
}

impl Head {
    /// Reads the header behind the magic number. A header that claims more than the following bytes
    /// can decompress to is refused before memory is allocated.
    fn read(input: &mut Lz4Reader<'_>) -> Result<Head, Failure> {
        let begin = input.rest;
        let (flags, sizes) = (input.take(1)?[0], input.take(1)?[0]);
        // Version 1; reserved bits are zero; dictionaries are not supported.
        if flags >> 6 != 1 || flags & 0b11 != 0 || sizes & 0b1000_1111 != 0 {
            return Err(Failure::Rejected);
        }
        let content_len = match flags & 0b1000 {
            0 => None,
            _ => Some(u64::from_le_bytes(input.array()?)),
        };
        let len = begin.len() - input.rest.len();
        let size = usize::from(sizes >> 4).checked_sub(4).ok_or(Failure::Rejected)?;
        if input.take(1)?[0] != head_checksum(&begin[..len]) {
            return Err(Failure::Rejected);
        }
        if content_len.is_some_and(|len| len > RATIO_MAX * input.rest.len() as u64) {
            return Err(Failure::Rejected);
        }
        Ok(Head {
            linked: flags & 0b10_0000 == 0,
            block_checksums: flags & 0b1_0000 != 0,
            content_checksum: flags & 0b100 != 0,
            content_len,
            block_bytes_max: *BLOCK_BYTES.get(size).ok_or(Failure::Rejected)?,
        })
    }
}

/// Reads one frame behind its magic number; returns the decompressed length.
fn frame(input: &mut Lz4Reader<'_>, out: &mut [u8]) -> Result<usize, Failure> {
    let head = Head::read(input)?;
    if head.content_len.is_some_and(|len| len > out.len() as u64) {
        return Err(Failure::Limit);
    }
    let mut made = 0;
    loop {
        let word = input.word()?;
        if word == 0 {
            break;
        }
        let block = input.take((word & !STORED) as usize)?;
        if block.len() > head.block_bytes_max {
            return Err(Failure::Rejected);
        }
        if head.block_checksums && input.word()? != xxh32(block) {
            return Err(Failure::Rejected);
        }
        let (before, rest) = out.split_at_mut(made);
        let bounded = rest.len().min(head.block_bytes_max);
        let place = &mut rest[..bounded];
        made += match (word & STORED != 0, head.linked) {
            (true, _) => {
                place.get_mut(..block.len()).ok_or(Failure::Limit)?.copy_from_slice(block);
                Ok(block.len())
            }
            (false, false) => decompress_block(block, place),
            (false, true) => {
                let window = &before[made.saturating_sub(WINDOW_BYTES)..];
                decompress_into_with_dict(block, place, window).map_err(|error| match error {
                    DecompressError::OutputTooSmall { .. } => Failure::Limit,
                    _ => Failure::Rejected,
                })
            }
        }
        // A block that is longer than the header permits is invalid, however large `out` is.
        .map_err(|failure| match failure {
            Failure::Limit if bounded == head.block_bytes_max => Failure::Rejected,
            other => other,
        })?;
    }
    let checked = !head.content_checksum || input.word()? == xxh32(&out[..made]);
    let whole = head.content_len.is_none_or(|len| len == made as u64);
    if checked && whole { Ok(made) } else { Err(Failure::Rejected) }
}

fn xxh32(bytes: &[u8]) -> u32 {
    XxHash32::oneshot(0, bytes)
}

/// The second byte of the hash of the frame descriptor.
fn head_checksum(descriptor: &[u8]) -> u8 {
    let mut hasher = XxHash32::with_seed(0);
    hasher.write(descriptor);
    (hasher.finish() >> 8) as u8
}

struct Lz4Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Lz4Reader<'a> {
    fn take(&mut self, len: usize) -> Result<&'a [u8], Failure> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(Failure::Rejected)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Failure> {
        self.take(N)?.try_into().map_err(|_| Failure::Rejected)
    }

    fn word(&mut self) -> Result<u32, Failure> {
        self.array().map(u32::from_le_bytes)
    }
}

struct Writer<'a> {
    out: &'a mut [u8],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let place = self.out.get_mut(self.at..self.at + bytes.len()).ok_or(Failure::Limit)?;
        place.copy_from_slice(bytes);
        self.at += bytes.len();
        Ok(())
    }
}
