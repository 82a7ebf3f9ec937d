//! Crc: one warp per message. The tables and powers with which lanes work in parallel are computed
//! here.

use std::sync::{Arc, Mutex, PoisonError};

use panoply_core::op::signal::{Checksum, Crc};
use panoply_core::{Bytes, DType, Result, Shape, Value};
use panoply_kernels::c::{CRC, Kernel};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::Launch;
use crate::ops::messages::{Batch, DeviceMessages, Terms};

/// Threads per block; each of its warps processes one message at a time.
const BLOCK_THREADS: usize = 256;
/// Threads of a block that has a multiprocessor to itself.
const BLOCK_THREADS_ALONE: usize = 1024;
/// Blocks in the grid, as a multiple of those that a multiprocessor runs concurrently.
const BLOCKS_EACH: usize = 8;
/// Numbers of copies of the table: one per lane if that pays, or fewer.
const COPIES: [usize; 4] = [32, 8, 2, 1];
/// Minimum bytes of table copies for which a block is alone on its multiprocessor.
const ALONE_BYTES_MIN: usize = 64 << 10;
/// Below this many bytes of messages, filling such a large table takes longer than it saves.
const MESSAGES_BYTES_MIN: usize = 32 << 20;
/// Bytes of a row per lane.
const VECTOR_BYTES: usize = 16;
const CHECK_BYTES: usize = 8;

/// The parameters of a check as catalogues list them, except that the polynomial has its lowest bit
/// first.
struct Parameters {
    width: u32,
    polynomial: u64,
    first: u64,
    is_turned: bool,
    last: u64,
}

impl Parameters {
    fn of(kind: Checksum) -> Parameters {
        let (width, polynomial, first, is_turned, last) = match kind {
            Checksum::Crc8 => (8, 0x07, 0, true, 0),
            Checksum::Crc16 => (16, 0x8005, 0, false, 0),
            Checksum::Crc16Ccitt => (16, 0x1021, 0xffff, true, 0),
            Checksum::Crc32 => (32, 0x04c1_1db7, 0xffff_ffff, false, 0xffff_ffff),
            Checksum::Crc32c => (32, 0x1edc_6f41, 0xffff_ffff, false, 0xffff_ffff),
            Checksum::Crc64 => (64, 0xad93_d235_94c9_3659_u64, u64::MAX, false, u64::MAX),
        };
        Parameters { width, polynomial: polynomial.reverse_bits() >> (64 - width), first, is_turned, last }
    }

    /// Bits per word: 64 for checks wider than 32 bits, else 32.
    fn word_bits(&self) -> u32 {
        if self.width > 32 { 64 } else { 32 }
    }

    /// Advances a remainder by `bits` zero bits. The lowest bit of a remainder is its highest
    /// power.
    fn moved(&self, mut rest: u64, bits: usize) -> u64 {
        for _ in 0..bits {
            rest = rest >> 1 ^ if rest & 1 == 1 { self.polynomial } else { 0 };
        }
        rest
    }

    /// The tables for `lanes` lanes: the effect of advancing each byte by a row, the factor of each
    /// lane, and the effect of a byte on a remainder.
    fn tables(&self, lanes: usize) -> Vec<u64> {
        let (bits, vector) = (self.word_bits() as usize, 8 * VECTOR_BYTES);
        let moved: Vec<u64> = (0..bits).map(|bit| self.moved(1 << bit, vector * lanes)).collect();
        let linear = |byte: usize, images: &[u64]| {
            images.iter().enumerate().filter(|(bit, _)| byte >> bit & 1 == 1).fold(0, |sum, (_, image)| sum ^ image)
        };
        let mut tables = Vec::new();
        for place in 0..bits / 8 {
            tables.extend((0..256).map(|byte| linear(byte, &moved[8 * place..8 * place + 8])));
        }
        // A one is the highest bit of a word: its image is the power by which advancing multiplies.
        tables.extend((0..lanes).map(|lane| self.moved(1 << (bits - 1), vector * (lanes - 1 - lane) + bits)));
        tables.extend((0..256).map(|byte| self.moved(byte, 8)));
        tables
    }
}

/// Cached tables: the check, the number of lanes, and the bytes.
type CachedTables = (Checksum, usize, Arc<[u8]>);

/// The tables of a check for `lanes` lanes, in the kernel's format. Making them takes longer than
/// many a message does, so each is made once.
fn table_bytes(kind: Checksum, lanes: usize) -> Arc<[u8]> {
    static MADE: Mutex<Vec<CachedTables>> = Mutex::new(Vec::new());
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, _, bytes)) = made.iter().find(|(of, for_lanes, _)| (*of, *for_lanes) == (kind, lanes)) {
        return Arc::clone(bytes);
    }
    let check = Parameters::of(kind);
    let tables = check.tables(lanes);
    let bytes: Arc<[u8]> = match check.word_bits() == 64 {
        true => tables.iter().flat_map(|word| word.to_le_bytes()).collect(),
        false => tables.iter().flat_map(|word| (*word as u32).to_le_bytes()).collect(),
    };
    made.push((kind, lanes, Arc::clone(&bytes)));
    bytes
}

pub(super) fn run(op: &Crc, context: &mut Context) -> Result<Value> {
    let messages = DeviceMessages::new(&op.messages, context)?;
    let terms = Terms { behind: 0, unit_bytes: CHECK_BYTES, answer_len: &|_| CHECK_BYTES, data: None };
    let batch = Batch::new(&messages, &terms, context)?;
    let target = context.scratch(batch.answer_bytes())?;
    if batch.count() > 0 {
        let check = Parameters::of(op.kind);
        let (lanes, is_wide) = (context.warp_lanes(), check.word_bits() == 64);
        let address = context.table(&table_bytes(op.kind, lanes))?;
        let arguments =
            Arguments::new().address(target).address(messages.address).address(batch.rows()).address(address);
        let mut arguments = batch
            .add_to(arguments)
            .u64(check.first)
            .u64(check.last)
            .u64(check.polynomial)
            .u32(check.width)
            .u32(u32::from(check.is_turned));
        let layout = BlockLayout::of(messages.bytes(), check.word_bits(), context);
        let warps = layout.threads / lanes;
        let blocks = batch.count().div_ceil(warps).min(context.multiprocessors() * layout.blocks_each);
        let launch = Launch::new(blocks, layout.threads).shared(layout.shared_bytes);
        let kernel = Kernel::new(CRC, "crc_messages")
            .flag("WIDE", is_wide)
            .integer("BLOCK", layout.threads)
            .integer("COPIES", layout.copies)
            .integer("SHIFT", (layout.copies * check.word_bits() as usize / 8).ilog2());
        context.launch(&kernel, launch, &mut arguments)?;
    }
    // Checks are returned on the host.
    let checks = context.download(target, DType::U8, Shape::new([batch.answer_bytes()])?)?;
    Ok(Value::Bytes(Bytes::from_tensor(&checks)?))
}

/// The arrangement of blocks on the device.
struct BlockLayout {
    copies: usize,
    shared_bytes: usize,
    threads: usize,
    blocks_each: usize,
}

impl BlockLayout {
    /// The arrangement for this many bytes of messages.
    fn of(bytes: usize, word_bits: u32, context: &Context) -> BlockLayout {
        let properties = context.driver.properties();
        let (room, threads_max) = (properties.shared_bytes_max as usize, properties.block_threads_max as usize);
        let word = word_bits as usize / 8;
        let table = 256 * word * word;
        // The table of single bytes is stored in addition to the copies.
        let fits = |copies: usize| {
            let (wanted, alone) = (copies * table + 256 * word, copies * table >= ALONE_BYTES_MIN);
            wanted <= room && (!alone || (bytes >= MESSAGES_BYTES_MIN && threads_max >= BLOCK_THREADS_ALONE))
        };
        let copies = COPIES.into_iter().find(|copies| fits(*copies)).unwrap_or(1);
        let alone = copies * table >= ALONE_BYTES_MIN;
        let threads = if alone { BLOCK_THREADS_ALONE } else { BLOCK_THREADS };
        BlockLayout { copies, shared_bytes: copies * table, threads, blocks_each: if alone { 1 } else { BLOCKS_EACH } }
    }
}
