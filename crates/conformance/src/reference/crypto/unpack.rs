//! DEFLATE of RFC 1951, 1950 and 1952, and LZ4's blocks and frames, decompressed bit by bit.
//! Compressing only stores the data. zstd is not implemented here; it is checked with vectors
//! (`crate::vectors`).

use panoply_core::op::crypto::Format;

/// Why data was not decompressed.
pub(super) enum Refusal {
    /// The data is malformed.
    Rejected,
    /// The output would exceed its limit.
    Limit,
}

type Outcome<T> = Result<T, Refusal>;

/// Decompresses all of `data`. `None` for formats that this file does not implement.
pub(super) fn decompress(format: Format, data: &[u8], limit: usize) -> Option<Outcome<Vec<u8>>> {
    let mut out = Output { bytes: Vec::new(), limit };
    let mut rest = Input { bytes: data, at: 0, bits: 0, count: 0 };
    let outcome = match format {
        Format::Deflate => inflate(&mut rest, &mut out),
        Format::Zlib => zlib(&mut rest, &mut out),
        Format::Gzip => gzip(&mut rest, &mut out),
        Format::Lz4Block => lz4_block(data, &mut out, 0).map(|()| rest.at = data.len()),
        Format::Lz4Frame => lz4_frames(&mut rest, &mut out),
        Format::Zstd => return None,
    };
    let ended = if rest.at == data.len() { Ok(out.bytes) } else { Err(Refusal::Rejected) };
    Some(outcome.and(ended))
}

/// Stores the message without compression.
pub(super) fn store(format: Format, message: &[u8]) -> Option<Vec<u8>> {
    let mut blocks = Vec::new();
    let mut chunks = message.chunks(65_535).peekable();
    if message.is_empty() {
        blocks.extend_from_slice(&[1, 0, 0, 0xff, 0xff]);
    }
    while let Some(chunk) = chunks.next() {
        let len = chunk.len() as u16;
        blocks.push(u8::from(chunks.peek().is_none()));
        blocks.extend_from_slice(&[len.to_le_bytes(), (!len).to_le_bytes()].concat());
        blocks.extend_from_slice(chunk);
    }
    Some(match format {
        Format::Deflate => blocks,
        Format::Zlib => [&[0x78, 0x01][..], &blocks, &adler32(message).to_be_bytes()].concat(),
        Format::Gzip => {
            let head = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
            [&head[..], &blocks, &crc32(message).to_le_bytes(), &(message.len() as u32).to_le_bytes()].concat()
        }
        Format::Lz4Block => {
            let mut block = vec![(message.len().min(15) as u8) << 4];
            if let Some(more) = message.len().checked_sub(15) {
                block.resize(1 + more / 255, 255);
                block.push((more % 255) as u8);
            }
            [&block[..], message].concat()
        }
        Format::Lz4Frame => {
            let head = [0x60, 0x40];
            let mut frame = [&0x184d_2204_u32.to_le_bytes()[..], &head, &[(xxh32(&head) >> 8) as u8]].concat();
            for chunk in message.chunks(65_536) {
                frame.extend_from_slice(&(chunk.len() as u32 | 1 << 31).to_le_bytes());
                frame.extend_from_slice(chunk);
            }
            [frame, vec![0; 4]].concat()
        }
        Format::Zstd => return None,
    })
}

struct Output {
    bytes: Vec<u8>,
    limit: usize,
}

impl Output {
    fn push(&mut self, byte: u8) -> Outcome<()> {
        if self.bytes.len() >= self.limit {
            return Err(Refusal::Limit);
        }
        self.bytes.push(byte);
        Ok(())
    }

    /// Repeats the bytes that lie `distance` back, but not before `start`.
    fn repeat(&mut self, distance: usize, len: usize, start: usize) -> Outcome<()> {
        if distance == 0 || distance > self.bytes.len() - start {
            return Err(Refusal::Rejected);
        }
        (0..len).try_for_each(|_| self.push(self.bytes[self.bytes.len() - distance]))
    }
}

/// Input bytes, and the remaining bits of started bytes, lowest first.
struct Input<'a> {
    bytes: &'a [u8],
    at: usize,
    bits: u32,
    count: u32,
}

impl<'a> Input<'a> {
    fn bits(&mut self, wanted: u32) -> Outcome<u32> {
        while self.count < wanted {
            self.bits |= u32::from(*self.bytes.get(self.at).ok_or(Refusal::Rejected)?) << self.count;
            (self.at, self.count) = (self.at + 1, self.count + 8);
        }
        let value = self.bits & ((1_u64 << wanted) - 1) as u32;
        (self.bits, self.count) = (self.bits >> wanted, self.count - wanted);
        Ok(value)
    }

    /// Takes whole bytes, and skips the rest of a started byte.
    fn take(&mut self, len: usize) -> Outcome<&'a [u8]> {
        (self.bits, self.count) = (0, 0);
        let end = self.at.checked_add(len).ok_or(Refusal::Rejected)?;
        let taken = self.bytes.get(self.at..end).ok_or(Refusal::Rejected)?;
        self.at = end;
        Ok(taken)
    }

    fn number(&mut self, len: usize) -> Outcome<u64> {
        Ok(self.take(len)?.iter().rev().fold(0, |sum, byte| sum << 8 | u64::from(*byte)))
    }
}

/// A prefix code: the code length of each symbol, which determines the codes.
struct Code(Vec<u8>);

impl Code {
    /// Reads the next symbol: adds bits until they are a code of that length.
    fn symbol(&self, input: &mut Input<'_>) -> Outcome<usize> {
        let (mut code, mut first) = (0_u32, 0_u32);
        for len in 1..=15_u8 {
            code = code << 1 | input.bits(1)?;
            let count = self.0.iter().filter(|own| **own == len).count() as u32;
            if code < first + count {
                let mut of_len = (0..self.0.len()).filter(|symbol| self.0[*symbol] == len);
                return of_len.nth((code - first) as usize).ok_or(Refusal::Rejected);
            }
            first = (first + count) << 1;
        }
        Err(Refusal::Rejected)
    }

    /// Refuses an oversubscribed or incomplete code. If `may_be_sparse`, a code of at most one
    /// symbol may be incomplete.
    fn checked(self, may_be_sparse: bool) -> Outcome<Code> {
        let used: Vec<u32> = self.0.iter().filter(|len| **len > 0).map(|len| 1 << (15 - u32::from(*len))).collect();
        let room: u32 = used.iter().sum();
        let sparse = may_be_sparse && used.len() <= 1;
        if room == 1 << 15 || sparse && room <= 1 << 15 { Ok(self) } else { Err(Refusal::Rejected) }
    }
}

fn inflate(input: &mut Input<'_>, out: &mut Output) -> Outcome<()> {
    let start = out.bytes.len();
    loop {
        let last = input.bits(1)? == 1;
        match input.bits(2)? {
            0 => {
                let (len, complement) = (input.number(2)?, input.number(2)?);
                if len ^ complement != 0xffff {
                    return Err(Refusal::Rejected);
                }
                input.take(len as usize)?.iter().try_for_each(|byte| out.push(*byte))?;
            }
            1 => {
                let of = |symbol| match symbol {
                    0..144 | 280.. => 8,
                    144..256 => 9,
                    _ => 7,
                };
                block(input, out, start, &Code((0..288).map(of).collect()), &Code(vec![5; 30]))?;
            }
            2 => {
                let (symbols, distances) = codes(input)?;
                block(input, out, start, &symbols, &distances)?;
            }
            _ => return Err(Refusal::Rejected),
        }
        if last {
            return Ok(());
        }
    }
}

fn codes(input: &mut Input<'_>) -> Outcome<(Code, Code)> {
    let (symbols, distances) = (input.bits(5)? as usize + 257, input.bits(5)? as usize + 1);
    let mut of_lens = vec![0; 19];
    let given = input.bits(4)? as usize + 4;
    for place in [16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15].into_iter().take(given) {
        of_lens[place] = input.bits(3)? as u8;
    }
    let of_lens = Code(of_lens).checked(false)?;
    let mut lens: Vec<u8> = Vec::new();
    while lens.len() < symbols + distances {
        let (len, times) = match of_lens.symbol(input)? {
            16 => (*lens.last().ok_or(Refusal::Rejected)?, 3 + input.bits(2)?),
            17 => (0, 3 + input.bits(3)?),
            18 => (0, 11 + input.bits(7)?),
            len => (len as u8, 1),
        };
        lens.extend((0..times).map(|_| len));
    }
    if lens.len() > symbols + distances || symbols > 286 || distances > 30 {
        return Err(Refusal::Rejected);
    }
    let distances = Code(lens.split_off(symbols)).checked(true)?;
    Ok((Code(lens).checked(true)?, distances))
}

fn block(input: &mut Input<'_>, out: &mut Output, start: usize, symbols: &Code, distances: &Code) -> Outcome<()> {
    loop {
        match symbols.symbol(input)? {
            byte @ 0..256 => out.push(byte as u8)?,
            256 => return Ok(()),
            symbol @ 257..286 => {
                let step = symbol - 257;
                let len = match step {
                    0..8 => 3 + step,
                    28 => 258,
                    _ => {
                        let extra = step / 4 - 1;
                        ((4 + step % 4) << extra) + 3 + input.bits(extra as u32)? as usize
                    }
                };
                let step = distances.symbol(input)?;
                let distance = match step {
                    0..4 => 1 + step,
                    4..30 => {
                        let extra = step / 2 - 1;
                        ((2 + step % 2) << extra) + 1 + input.bits(extra as u32)? as usize
                    }
                    _ => return Err(Refusal::Rejected),
                };
                out.repeat(distance, len, start)?;
            }
            _ => return Err(Refusal::Rejected),
        }
    }
}

fn zlib(input: &mut Input<'_>, out: &mut Output) -> Outcome<()> {
    let [kind, flags] = [input.number(1)?, input.number(1)?];
    if kind & 15 != 8 || kind >> 4 > 7 || (kind * 256 + flags) % 31 != 0 || flags & 0x20 != 0 {
        return Err(Refusal::Rejected);
    }
    inflate(input, out)?;
    let given = input.number(4)? as u32;
    if given.swap_bytes() == adler32(&out.bytes) { Ok(()) } else { Err(Refusal::Rejected) }
}

fn gzip(input: &mut Input<'_>, out: &mut Output) -> Outcome<()> {
    loop {
        let start = out.bytes.len();
        if input.number(3)? != 0x08_8b1f {
            return Err(Refusal::Rejected);
        }
        let flags = input.number(1)?;
        input.take(6)?;
        if flags & 0xe0 != 0 {
            return Err(Refusal::Rejected);
        }
        if flags & 4 != 0 {
            let len = input.number(2)?;
            input.take(len as usize)?;
        }
        for _ in 0..(flags >> 3 & 1) + (flags >> 4 & 1) {
            while input.number(1)? != 0 {}
        }
        if flags & 2 != 0 {
            input.take(2)?;
        }
        inflate(input, out)?;
        let (crc, len) = (input.number(4)? as u32, input.number(4)? as u32);
        let member = &out.bytes[start..];
        if crc != crc32(member) || len != member.len() as u32 {
            return Err(Refusal::Rejected);
        }
        if input.at == input.bytes.len() {
            return Ok(());
        }
    }
}

fn lz4_block(data: &[u8], out: &mut Output, start: usize) -> Outcome<()> {
    let mut input = Input { bytes: data, at: 0, bits: 0, count: 0 };
    loop {
        let token = input.number(1)? as usize;
        let more = |input: &mut Input<'_>, mut len: usize| -> Outcome<usize> {
            let mut byte = if len == 15 { 255 } else { 0 };
            while byte == 255 {
                byte = input.number(1)? as usize;
                len += byte;
            }
            Ok(len)
        };
        let literals = more(&mut input, token >> 4)?;
        input.take(literals)?.iter().try_for_each(|byte| out.push(*byte))?;
        if input.at == data.len() {
            return Ok(());
        }
        let distance = input.number(2)? as usize;
        let len = more(&mut input, token & 15)? + 4;
        out.repeat(distance, len, start)?;
    }
}

fn lz4_frames(input: &mut Input<'_>, out: &mut Output) -> Outcome<()> {
    loop {
        match input.number(4)? {
            0x184d_2204 => lz4_frame(input, out)?,
            magic if magic & !15 == 0x184d_2a50 => {
                let len = input.number(4)?;
                input.take(len as usize)?;
            }
            _ => return Err(Refusal::Rejected),
        }
        if input.at == input.bytes.len() {
            return Ok(());
        }
    }
}

fn lz4_frame(input: &mut Input<'_>, out: &mut Output) -> Outcome<()> {
    let (begin, start) = (input.at, out.bytes.len());
    let (flags, sizes) = (input.number(1)?, input.number(1)?);
    let content = if flags & 8 != 0 { Some(input.number(8)?) } else { None };
    let head = &input.bytes[begin..input.at];
    let checked = input.number(1)? == u64::from(xxh32(head) >> 8 & 0xff);
    if flags >> 6 != 1 || flags & 3 != 0 || sizes & 0x8f != 0 || sizes >> 4 < 4 || !checked {
        return Err(Refusal::Rejected);
    }
    let block_max = 1_usize << (8 + 2 * (sizes >> 4));
    loop {
        let word = input.number(4)?;
        if word == 0 {
            break;
        }
        let data = input.take(word as usize & 0x7fff_ffff)?;
        if data.len() > block_max || flags & 16 != 0 && input.number(4)? != u64::from(xxh32(data)) {
            return Err(Refusal::Rejected);
        }
        let before = out.bytes.len();
        match word >> 31 {
            0 => lz4_block(data, out, if flags & 32 != 0 { before } else { start })?,
            _ => data.iter().try_for_each(|byte| out.push(*byte))?,
        }
        if out.bytes.len() - before > block_max {
            return Err(Refusal::Rejected);
        }
    }
    let made = &out.bytes[start..];
    let whole = content.is_none_or(|len| len == made.len() as u64);
    if whole && (flags & 4 == 0 || input.number(4)? == u64::from(xxh32(made))) {
        Ok(())
    } else {
        Err(Refusal::Rejected)
    }
}

fn adler32(bytes: &[u8]) -> u32 {
    let (a, b) = bytes.iter().fold((1_u32, 0_u32), |(a, b), byte| {
        let a = (a + u32::from(*byte)) % 65_521;
        (a, (b + a) % 65_521)
    });
    b << 16 | a
}

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}

fn xxh32(bytes: &[u8]) -> u32 {
    const P: [u32; 5] = [0x9e37_79b1, 0x85eb_ca77, 0xc2b2_ae3d, 0x27d4_eb2f, 0x1656_67b1];
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
    let (stripes, rest) = bytes.split_at(bytes.len() / 16 * 16);
    let mut lanes = [P[0].wrapping_add(P[1]), P[1], 0, 0_u32.wrapping_sub(P[0])];
    for stripe in stripes.chunks(16) {
        for (lane, four) in lanes.iter_mut().zip(stripe.chunks(4)) {
            *lane = lane.wrapping_add(word(four).wrapping_mul(P[1])).rotate_left(13).wrapping_mul(P[0]);
        }
    }
    let joined =
        [1, 7, 12, 18].iter().zip(lanes).fold(0_u32, |sum, (by, lane)| sum.wrapping_add(lane.rotate_left(*by)));
    let mut hash = if stripes.is_empty() { P[4] } else { joined }.wrapping_add(bytes.len() as u32);
    let (fours, ones) = rest.split_at(rest.len() / 4 * 4);
    for four in fours.chunks(4) {
        hash = hash.wrapping_add(word(four).wrapping_mul(P[2])).rotate_left(17).wrapping_mul(P[3]);
    }
    for one in ones {
        hash = hash.wrapping_add(u32::from(*one).wrapping_mul(P[4])).rotate_left(11).wrapping_mul(P[0]);
    }
    hash = (hash ^ hash >> 15).wrapping_mul(P[1]);
    hash = (hash ^ hash >> 13).wrapping_mul(P[2]);
    hash ^ hash >> 16
}
