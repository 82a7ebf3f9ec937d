//! Scan: rows in one pass, whatever their length; lines along another axis thread by thread, or as rows of a transposed copy
//! where they are few and long.

use panoply_core::op::compute::{Scan, ScanKind};
use panoply_core::{DType, Result, Value};
use panoply_kernels::c::{Kernel, SCAN};

use crate::context::{Arguments, Context, View};
use crate::driver::{Address, Launch};
use crate::memory::Block;
use crate::strides::Axes;

const WARP_LANES: usize = 32;
const VECTOR_BYTES: usize = 16;
/// Threads that a multiprocessor runs at once, with 64 registers each.
const THREADS_PER_MULTIPROCESSOR: usize = 1024;
const BLOCKS_MIN: usize = 8;
const COLUMN_THREADS: usize = 128;
/// With fewer lines than this, and longer ones, a transposed copy costs less than idle threads.
const LINES_MIN: usize = 8192;
const TRANSPOSED_LEN_MIN: usize = 512;

pub(crate) fn run(op: &Scan, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape();
    let output = context.output(op.input.dtype(), shape)?;
    if shape.elements() > 0 {
        let source = context.input(&op.input)?;
        let (len, inner) = (shape[op.axis], shape[op.axis + 1..].iter().product());
        let lines = Lines { len, inner, outer: shape.elements() / (len * inner) };
        if inner == 1 {
            lines.rows(op, output.address, source, context)?;
        } else if lines.outer * inner < LINES_MIN && len >= TRANSPOSED_LEN_MIN {
            lines.transposed(op, output.address, source, context)?;
        } else {
            lines.columns(op, output.address, source, context)?;
        }
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// The lines of a contiguous tensor along one axis: `[outer, len, inner]`.
struct Lines {
    outer: usize,
    len: usize,
    inner: usize,
}

impl Lines {
    /// As rows, whether or not they are: `outer * inner` lines, one after the other.
    fn rows(&self, op: &Scan, target: Address, source: Address, context: &mut Context) -> Result<()> {
        let dtype = op.input.dtype();
        let width = VECTOR_BYTES / dtype.size_bytes();
        // Every row must begin on a boundary; a single one may end anywhere, unless that is where it begins.
        let even = self.len.is_multiple_of(width) || self.outer * self.inner == 1 && !op.reversed;
        let aligned = (target | source).is_multiple_of(VECTOR_BYTES as u64) && even;
        let vector = if aligned { width } else { 1 };
        let vectors = self.len.div_ceil(vector);
        let (threads, items) = tile(vectors, vector, dtype);
        let tiles = vectors.div_ceil(threads * items);
        let blocks = self.outer * self.inner * tiles;
        let (mut status, mut values, mut epoch) = (0, 0, 0);
        if tiles > 1 {
            (status, epoch) = context.scan_board(blocks)?;
            if dtype == DType::F64 {
                values = context.scratch(blocks * 16)?;
            }
        }
        let kernel = kernel(op, "scan_rows", threads)
            .flag("ROWS", true)
            .integer("BLOCKS_MIN", (THREADS_PER_MULTIPROCESSOR / threads).min(BLOCKS_MIN) as i64)
            .integer("ITEMS", items as i64)
            .integer("VECTOR", vector as i64)
            .integer("VECTOR_BYTES", (vector * dtype.size_bytes()) as i64);
        let kernel = if tiles > 1 {
            kernel.flag("REVERSED", op.reversed).flag("EXCLUSIVE", op.excludes_own)
        } else {
            kernel.word("REVERSED", "is_reversed").word("EXCLUSIVE", "is_exclusive")
        };
        let mut arguments = Arguments::new()
            .address(target)
            .address(source)
            .u64(self.len as u64)
            .u32(tiles as u32)
            .u32(u32::from(op.reversed))
            .u32(u32::from(op.excludes_own))
            .address(status)
            .address(values)
            .u32(epoch);
        context.launch(&kernel, Launch::new(blocks as u32, threads as u32), &mut arguments)
    }

    fn columns(&self, op: &Scan, target: Address, source: Address, context: &mut Context) -> Result<()> {
        let lines = self.outer * self.inner;
        let size = op.input.dtype().size_bytes() as i64;
        let kernel = kernel(op, "scan_columns", COLUMN_THREADS)
            .flag("COLUMNS", true)
            .integer("VECTOR", 1)
            .integer("VECTOR_BYTES", size);
        let mut arguments = Arguments::new()
            .address(target)
            .address(source)
            .u64(lines as u64)
            .u64(self.len as u64)
            .u64(self.inner as u64)
            .u32(u32::from(op.reversed))
            .u32(u32::from(op.excludes_own));
        let launch = Launch::new(lines.div_ceil(COLUMN_THREADS) as u32, COLUMN_THREADS as u32);
        context.launch(&kernel, launch, &mut arguments)
    }

    fn transposed(&self, op: &Scan, target: Address, source: Address, context: &mut Context) -> Result<()> {
        let (dtype, elements) = (op.input.dtype(), op.input.elements());
        let turned = context.scratch(op.input.len_bytes())?;
        let scanned = context.scratch(op.input.len_bytes())?;
        let turn = |from: Address, first: usize, second: usize| {
            let mut axes = Axes::<1>::new();
            axes.push(second, [first as i64]);
            axes.push(first, [1]);
            axes.push(self.outer, [(first * second) as i64]);
            axes.collapse(1);
            View::of_axes(from, &axes, 0)
        };
        context.copy_view(turned, &turn(source, self.inner, self.len), dtype, elements)?;
        self.rows(op, scanned, turned, context)?;
        context.copy_view(target, &turn(scanned, self.len, self.inner), dtype, elements)
    }
}

/// Threads of a tile, and vectors of each. Rows of many tiles have small ones, so that a multiprocessor has some that load,
/// some that look back and some that store.
fn tile(vectors: usize, vector: usize, dtype: DType) -> (usize, usize) {
    let registers = vector * dtype.size_bytes().div_ceil(4);
    match vectors {
        0..=32 => (WARP_LANES, 1),
        33..=128 => (WARP_LANES, 4),
        // Each vector also has a running value of its own.
        129..=2048 => (8 * WARP_LANES, (32 / registers).clamp(1, 8)),
        _ => (4 * WARP_LANES, (24 / registers).clamp(1, 8)),
    }
}

fn kernel(op: &Scan, entry: &'static str, threads: usize) -> Kernel {
    let kind = match op.kind {
        ScanKind::Sum => 0,
        ScanKind::Product => 1,
        ScanKind::Max => 2,
        ScanKind::Min => 3,
    };
    let dtype = op.input.dtype();
    let kernel = Kernel::new(SCAN, entry).dtype("T", dtype).integer("KIND", kind).integer("THREADS", threads as i64);
    if dtype.is_integer() { kernel.flag("INTEGER", true) } else { kernel }
}

/// Where the tiles of a scan publish their sums. It is kept from scan to scan, and told apart by epochs.
#[derive(Default)]
pub(crate) struct ScanBoard {
    block: Option<Block>,
    /// Smaller boards, which kernels under way may still use; together they are smaller than the present one.
    #[allow(dead_code)] // Held so that the pool does not lend them.
    retired: Vec<Block>,
    tiles: usize,
    epoch: u32,
}

/// Epochs share a word with two bits of state.
const EPOCH_MAX: u32 = (1 << 30) - 1;
/// A board begins with room for this many tiles.
const BOARD_TILES_MIN: usize = 1 << 16;

impl Context {
    /// Statuses for so many tiles, and this launch's epoch, which none of them has.
    fn scan_board(&mut self, tiles: usize) -> Result<(Address, u32)> {
        if self.scans.tiles < tiles {
            let capacity = tiles.next_power_of_two().max(BOARD_TILES_MIN);
            let block = self.memory.scratch(capacity * 8)?;
            let old = self.scans.block.replace(block);
            self.scans.retired.extend(old);
            self.scans.tiles = capacity;
            self.scans.epoch = EPOCH_MAX;
        }
        let address = self.scans.block.as_ref().map_or(0, |block| block.block.0);
        if self.scans.epoch == EPOCH_MAX {
            let bytes = self.scans.tiles * 8;
            self.lasting(|context| context.fill(address, 0, bytes))?;
            self.scans.epoch = 0;
        }
        self.scans.epoch += 1;
        Ok((address, self.scans.epoch))
    }
}
