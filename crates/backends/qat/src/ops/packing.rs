//! Compress and Decompress. The device computes DEFLATE and the checksum, the host the headers and
//! trailers of zlib and gzip.

use panoply_core::op::crypto::*;
use panoply_core::{Bytes, Error, Result, Value};

use super::{AnswerError, Continuation, MESSAGE_BYTES_MAX, MessageWork, Output, wrong};
use crate::instance::Setup;
use crate::library::QatError;
use crate::request::{RequestAnswer, RequestParameters};
use crate::sys::{
    DC_ADLER32, DC_CRC32, DC_FATAL_ERROR, DC_HARDWARE_ERROR, DC_INTEGRITY_ERROR, DC_OK, DC_OVERFLOW, DC_PARITY_ERROR,
    DC_SOFT_ERROR, DC_VERIFY_ERROR, DC_WATCHDOG, DcResults, FAIL, FALSE, SUCCESS,
};

/// The highest level of the device.
const LEVEL_MAX: i32 = 9;
/// Maximum output of a message on the device: the memory of one request.
const ROOM_MAX: usize = 64 << 20;
/// The first output size that is tried.
const ROOM_FIRST: usize = 64 << 10;
/// Additional space that the library needs beyond the longest output.
const ROOM_BEYOND: usize = 1 << 10;
/// An empty message, compressed.
const EMPTY: [u8; 2] = [3, 0];
const ZLIB_HEAD: [u8; 2] = [0x78, 0x9c];
const GZIP_HEAD: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];

fn checksum_kind(format: Format) -> u32 {
    if format == Format::Zlib { DC_ADLER32 } else { DC_CRC32 }
}

/// The header and the trailer of a message.
fn around(format: Format, checksum: u32, len: usize) -> (&'static [u8], Vec<u8>) {
    match format {
        Format::Zlib => (&ZLIB_HEAD, checksum.to_be_bytes().to_vec()),
        Format::Gzip => (&GZIP_HEAD, [checksum.to_le_bytes(), (len as u32).to_le_bytes()].concat()),
        _ => (&[], Vec::new()),
    }
}

/// The results of DEFLATE, unless the device failed.
fn results(answer: &RequestAnswer<'_>) -> Result<DcResults, AnswerError> {
    let results = answer.packed.ok_or_else(|| wrong("what came of DEFLATE is missing"))?;
    let device = |status| AnswerError::Device(QatError::Status { call: "DEFLATE", status });
    match results.status {
        DC_SOFT_ERROR | DC_WATCHDOG | DC_HARDWARE_ERROR | DC_VERIFY_ERROR | DC_INTEGRITY_ERROR | DC_PARITY_ERROR => {
            Err(device(results.status))
        }
        DC_FATAL_ERROR => Err(wrong("a fatal error in DEFLATE")),
        DC_OK if answer.status != SUCCESS => Err(device(answer.status)),
        // A request with an invalid message may be reported as failed.
        _ if answer.status != SUCCESS && answer.status != FAIL => Err(device(answer.status)),
        _ if results.produced as usize > answer.bytes.len() => Err(wrong("DEFLATE wrote beyond its room")),
        _ => Ok(results),
    }
}

struct Compression {
    format: Format,
    level: u32,
    form: Messages,
    messages: Vec<Bytes>,
    rooms: Vec<usize>,
    made: Vec<Vec<u8>>,
}

pub(super) fn compress(op: &Compress) -> Result<Box<dyn MessageWork>> {
    let level = op.level.clamp(1, LEVEL_MAX) as u32;
    let messages = op.messages.clone().into_list()?;
    // Static codes take at most nine bits per byte, and stored blocks less. The library needs some
    // more space.
    let rooms = messages.iter().map(|message| message.len() + message.len() / 8 + ROOM_BEYOND).collect();
    let made = vec![Vec::new(); messages.len()];
    Ok(Box::new(Compression { format: op.format, level, form: op.messages.clone(), messages, rooms, made }))
}

impl MessageWork for Compression {
    fn count(&self) -> usize {
        self.messages.len()
    }

    fn setup(&self) -> Setup<'_> {
        Setup::Pack { compresses: true, level: self.level, checksum: checksum_kind(self.format) }
    }

    fn ask(&self, index: usize) -> Result<Option<RequestParameters<'_>>> {
        let message = self.messages[index].as_slice()?;
        let ask = RequestParameters::Pack { message, compresses: true, room: self.rooms[index] };
        Ok(Some(ask).filter(|_| !message.is_empty()))
    }

    fn take(&mut self, index: usize, answer: &RequestAnswer<'_>) -> Result<Continuation, AnswerError> {
        let results = results(answer)?;
        let len = self.messages[index].len();
        match results.status {
            DC_OK if results.consumed as usize != len => Err(wrong("DEFLATE did not read the whole message")),
            DC_OK => {
                let (head, behind) = around(self.format, results.checksum, len);
                self.made[index] = [head, &answer.bytes[..results.produced as usize], &behind].concat();
                Ok(Continuation::Done)
            }
            DC_OVERFLOW if self.rooms[index] < 4 * MESSAGE_BYTES_MAX => {
                self.rooms[index] *= 2;
                Ok(Continuation::Again)
            }
            status => Err(AnswerError::Device(QatError::Status { call: "cpaDcCompressData2", status })),
        }
    }

    fn value(&mut self) -> Result<Value> {
        for made in self.made.iter_mut().filter(|made| made.is_empty()) {
            // The checksum of no bytes is 1 in zlib and 0 in gzip.
            let (head, behind) = around(self.format, u32::from(self.format == Format::Zlib), 0);
            *made = [head, &EMPTY, &behind].concat();
        }
        joined(&self.form, &self.made)?.into_value()
    }
}

/// The progress of a message.
struct Progress {
    /// The offset of the current DEFLATE data, and the space for its output.
    at: usize,
    room: usize,
    made: Vec<u8>,
    is_done: bool,
}

struct Decompression {
    format: Format,
    limit: usize,
    total_limit: usize,
    total: usize,
    form: Messages,
    messages: Vec<Bytes>,
    progress: Vec<Progress>,
}

pub(super) fn decompress(op: &Decompress) -> Result<Box<dyn MessageWork>> {
    let (format, limit) = (op.format, op.limit_bytes);
    let messages = op.messages.clone().into_list()?;
    let begin = |(index, message): (usize, &Bytes)| {
        let at = head_len(format, message.as_slice()?).ok_or_else(|| rejected(index))?;
        Ok(Progress { at, room: first_room(message.len(), limit), made: Vec::new(), is_done: false })
    };
    let progress = messages.iter().enumerate().map(begin).collect::<Result<_>>()?;
    let total_limit = op.total_bytes_max();
    let form = op.messages.clone();
    Ok(Box::new(Decompression { format, limit, total_limit, total: 0, form, messages, progress }))
}

fn rejected(index: usize) -> Error {
    Error::Rejected { op: "decompress", index }
}

/// The first output size to try. One byte more than the limit is enough to detect that a message
/// exceeds it.
fn first_room(len: usize, limit: usize) -> usize {
    ROOM_FIRST.max(len.saturating_mul(4)).min(limit.saturating_add(1)).min(ROOM_MAX)
}

impl Decompression {
    /// The end of a stream was read. The trailer behind it must be valid, and another stream may
    /// follow.
    fn end_of_stream(&mut self, index: usize, results: &DcResults, bytes: &[u8]) -> Result<Continuation, Error> {
        let message = self.messages[index].as_slice()?;
        let progress = &mut self.progress[index];
        let end = progress.at.checked_add(results.consumed as usize).filter(|end| *end <= message.len());
        let behind = &message[end.ok_or_else(|| rejected(index))?..];
        let (_, expected) = around(self.format, results.checksum, bytes.len());
        let rest = behind.strip_prefix(&expected[..]).ok_or_else(|| rejected(index))?;
        progress.made.extend_from_slice(bytes);
        self.total += bytes.len();
        if progress.made.len() > self.limit {
            return Err(Error::OutputLimit { op: "decompress", index, limit: self.limit });
        }
        if self.total > self.total_limit {
            return Err(Error::OutputLimit { op: "decompress", index, limit: self.total_limit });
        }
        if rest.is_empty() {
            progress.is_done = true;
            return Ok(Continuation::Done);
        }
        let head = (self.format == Format::Gzip).then(|| head_len(Format::Gzip, rest)).flatten();
        progress.at = message.len() - rest.len() + head.ok_or_else(|| rejected(index))?;
        // The rest may consist of many short members, so the space starts small and grows when
        // needed.
        progress.room = first_room(0, self.limit - progress.made.len());
        Ok(Continuation::Again)
    }

    /// The output did not fit.
    fn more_room(&mut self, index: usize) -> Result<Continuation, Error> {
        let progress = &mut self.progress[index];
        if progress.made.len() + progress.room > self.limit {
            return Err(Error::OutputLimit { op: "decompress", index, limit: self.limit });
        }
        if progress.room >= ROOM_MAX {
            let (asked, largest) = (2 * progress.room as u64, ROOM_MAX as u64);
            return Err(Error::OutOfMemory { place: "one QAT request".to_owned(), asked, free: largest, largest });
        }
        progress.room = (4 * progress.room).min((self.limit - progress.made.len()).saturating_add(1)).min(ROOM_MAX);
        Ok(Continuation::Again)
    }
}

impl MessageWork for Decompression {
    fn count(&self) -> usize {
        self.messages.len()
    }

    fn setup(&self) -> Setup<'_> {
        Setup::Pack { compresses: false, level: 1, checksum: checksum_kind(self.format) }
    }

    fn ask(&self, index: usize) -> Result<Option<RequestParameters<'_>>> {
        let Progress { at, room, is_done, .. } = &self.progress[index];
        let message = &self.messages[index].as_slice()?[*at..];
        match message.is_empty() {
            true => Err(rejected(index)),
            false => Ok((!is_done).then_some(RequestParameters::Pack { message, compresses: false, room: *room })),
        }
    }

    fn take(&mut self, index: usize, answer: &RequestAnswer<'_>) -> Result<Continuation, AnswerError> {
        let results = results(answer)?;
        match results.status {
            DC_OK if results.end_of_last_block == FALSE => Err(rejected(index).into()),
            DC_OK => Ok(self.end_of_stream(index, &results, &answer.bytes[..results.produced as usize])?),
            DC_OVERFLOW => Ok(self.more_room(index)?),
            _ => Err(rejected(index).into()),
        }
    }

    fn value(&mut self) -> Result<Value> {
        let made: Vec<Vec<u8>> = self.progress.iter_mut().map(|progress| std::mem::take(&mut progress.made)).collect();
        joined(&self.form, &made)?.into_value()
    }
}

fn joined(form: &Messages, made: &[Vec<u8>]) -> Result<Messages> {
    let mut output = Output::new(made.iter().map(Vec::len), false)?;
    for (index, bytes) in made.iter().enumerate() {
        output.write(index, bytes);
    }
    output.finish(form)
}

/// Size of the header before the DEFLATE data. `None` if the header is invalid.
fn head_len(format: Format, message: &[u8]) -> Option<usize> {
    match format {
        Format::Zlib => {
            let &[method, flags] = message.first_chunk()?;
            let valid = method & 15 == 8
                && method >> 4 <= 7
                && flags & 32 == 0
                && (u32::from(method) * 256 + u32::from(flags)) % 31 == 0;
            valid.then_some(2)
        }
        Format::Gzip => gzip_head_len(message),
        _ => Some(0),
    }
}

/// Size of a gzip member's header (RFC 1952), with the fields that its flags announce.
fn gzip_head_len(message: &[u8]) -> Option<usize> {
    let head = message.first_chunk::<10>()?;
    let flags = head[3];
    if head[..3] != [0x1f, 0x8b, 8] || flags & 0xe0 != 0 {
        return None;
    }
    let mut at = 10;
    if flags & 4 != 0 {
        let extra = message.get(at..at + 2)?;
        at += 2 + usize::from(u16::from_le_bytes([extra[0], extra[1]]));
    }
    for flag in [8, 16] {
        if flags & flag != 0 {
            at += message.get(at..)?.iter().position(|byte| *byte == 0)? + 1;
        }
    }
    if flags & 2 != 0 {
        at += 2;
    }
    (at <= message.len()).then_some(at)
}
