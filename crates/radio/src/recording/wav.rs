//! The header of WAV files.

use std::io::{self, Read};

use panoply_core::op::signal::SampleFormat;

use super::{RecordingError, Result, SampleLayout};

/// The largest number of chunks before the samples.
const CHUNKS_MAX: usize = 1024;
/// The longest format chunk that is accepted, in bytes.
const FORMAT_BYTES_MAX: u32 = 1 << 12;
/// The length of a chunk whose writer did not know the length.
const UNKNOWN_LEN: u32 = u32::MAX;
const INTEGERS: u16 = 1;
const FLOATS: u16 = 3;
const EXTENDED: u16 = 0xfffe;

/// Reads the header. Returns the layout and the number of bytes of samples. Afterwards the source
/// is at the first sample.
pub(super) fn header(source: &mut impl Read) -> Result<(SampleLayout, Option<u64>)> {
    let riff: [u8; 12] = exact(source, "the header")?;
    if !(riff.starts_with(b"RIFF") || riff.starts_with(b"RF64")) || &riff[8..] != b"WAVE" {
        let got = riff[..4].escape_ascii().to_string();
        return Err(RecordingError::invalid("file's first bytes", "RIFF or RF64, and WAVE", got));
    }
    let mut layout = None;
    for _ in 0..CHUNKS_MAX {
        let [a, b, c, d, len @ ..]: [u8; 8] = exact(source, "the header")?;
        let len = u32::from_le_bytes(len);
        match (&[a, b, c, d], layout) {
            (b"fmt ", _) => layout = Some(format(source, len)?),
            (b"data", Some(layout)) => return Ok((layout, data_len(layout, len)?)),
            (b"data", None) => return Err(RecordingError::invalid("first chunk", "fmt before data", "data")),
            _ => skip(source, u64::from(len) + u64::from(len % 2))?,
        }
    }
    Err(RecordingError::invalid("chunks before the samples", &format!("up to {CHUNKS_MAX}"), "more"))
}

fn data_len(layout: SampleLayout, len: u32) -> Result<Option<u64>> {
    // An interrupted writer leaves a length of zero, or of all ones.
    if len == UNKNOWN_LEN || len == 0 {
        return Ok(None);
    }
    let frame = layout.frame_bytes();
    match (len as usize).is_multiple_of(frame) {
        true => Ok(Some(len.into())),
        false => Err(RecordingError::invalid("bytes of samples", &format!("a multiple of {frame}"), len)),
    }
}

fn format(source: &mut impl Read, len: u32) -> Result<SampleLayout> {
    if !(16..=FORMAT_BYTES_MAX).contains(&len) {
        return Err(RecordingError::invalid("bytes of the format", &format!("16 to {FORMAT_BYTES_MAX}"), len));
    }
    let mut bytes = Vec::new();
    let read = source.by_ref().take(u64::from(len + len % 2)).read_to_end(&mut bytes);
    read.map_err(|source| RecordingError::Io { what: "the format".to_owned(), source })?;
    if bytes.len() < len as usize {
        return Err(RecordingError::CutShort { what: "the format", expected: len.into(), got: bytes.len() as u64 });
    }
    let word = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
    let (mut tag, channels, bits) = (word(0), word(2), word(14));
    let rate = u32::from_le_bytes([bytes[4], bytes[5], bytes[6], bytes[7]]);
    if tag == EXTENDED && bytes.len() >= 40 {
        tag = word(24);
    }
    let format = match (tag, bits) {
        (INTEGERS, 8) => SampleFormat::U8,
        (INTEGERS, 16) => SampleFormat::I16,
        (INTEGERS, 24) => SampleFormat::I24,
        (INTEGERS, 32) => SampleFormat::I32,
        (FLOATS, 32) => SampleFormat::F32,
        _ => {
            let got = format!("format {tag} of {bits} bits");
            return Err(RecordingError::invalid("samples", "integers of 8, 16, 24 or 32 bits, floats of 32", got));
        }
    };
    let layout = SampleLayout { channels: channels.into(), ..SampleLayout::real(format, rate.into()) }.check()?;
    match usize::from(word(12)) == layout.frame_bytes() {
        true => Ok(layout),
        false => {
            let expected = layout.frame_bytes().to_string();
            Err(RecordingError::invalid("bytes of a sample of all channels", &expected, word(12)))
        }
    }
}

fn exact<const N: usize>(source: &mut impl Read, what: &'static str) -> Result<[u8; N]> {
    let mut bytes = Vec::with_capacity(N);
    let read = source.by_ref().take(N as u64).read_to_end(&mut bytes);
    read.map_err(|source| RecordingError::Io { what: what.to_owned(), source })?;
    let got = bytes.len() as u64;
    bytes.try_into().map_err(|_| RecordingError::CutShort { what, expected: N as u64, got })
}

fn skip(source: &mut impl Read, len: u64) -> Result<()> {
    let skipped = io::copy(&mut source.by_ref().take(len), &mut io::sink());
    match skipped.map_err(|source| RecordingError::Io { what: "a chunk".to_owned(), source })? {
        got if got < len => Err(RecordingError::CutShort { what: "chunks", expected: len, got }),
        _ => Ok(()),
    }
}

/// The header of a file with `data_bytes` bytes of samples.
pub(super) fn written(layout: &SampleLayout, data_bytes: u32) -> Vec<u8> {
    let tag = if layout.format == SampleFormat::F32 { FLOATS } else { INTEGERS };
    let channels = (layout.frame_bytes() / layout.format.size_bytes()) as u16;
    let (rate, frame) = (layout.rate_hz.round() as u32, layout.frame_bytes() as u16);
    let mut bytes = b"RIFF".to_vec();
    bytes.extend(data_bytes.saturating_add(36 + data_bytes % 2).to_le_bytes());
    bytes.extend(b"WAVEfmt \x10\0\0\0");
    bytes.extend(tag.to_le_bytes());
    bytes.extend(channels.to_le_bytes());
    bytes.extend(rate.to_le_bytes());
    bytes.extend(rate.saturating_mul(frame.into()).to_le_bytes());
    bytes.extend(frame.to_le_bytes());
    bytes.extend((8 * layout.format.size_bytes() as u16).to_le_bytes());
    bytes.extend(b"data");
    bytes.extend(data_bytes.to_le_bytes());
    bytes
}
