//! Scan: rows of any length in one pass; lines along another axis with one thread per line, or, if
//! they are few and long, as rows of a transposed copy.

use panoply_core::op::compute::{Scan, ScanKind};
use panoply_core::{DType, Result, Value};
use panoply_kernels::c::{Kernel, SCAN};

use crate::arguments::Arguments;
use crate::context::{Context, DeviceState};
use crate::driver::{Address, Launch};
use crate::layout::View;
use crate::memory::LeasedBlock;
use crate::strides::Axes;

const VECTOR_BYTES: usize = 16;
/// Number of threads with 64 registers each that a multiprocessor runs concurrently.
const THREADS_PER_MULTIPROCESSOR: usize = 1024;
const BLOCKS_MIN: usize = 8;
/// Threads of a block that scans a row too long for a warp.
const ROW_THREADS: usize = 256;
const COLUMN_THREADS: usize = 128;
/// For blocks that take tiles from a shared counter: threads per block, blocks per multiprocessor,
/// and tiles held per block.
const LONG_THREADS: usize = 256;
const LONG_BLOCKS: usize = 2;
const LONG_SLOTS: usize = 2;
/// Maximum vectors per thread in a tile, and maximum elements if there are no vectors.
const LONG_VECTORS_MAX: usize = 11;
const LONG_ELEMENTS_MAX: usize = 31;
/// Block memory needed in addition to the tiles.
const LONG_SPARE_BYTES: usize = 1024;
/// If the limit of block memory is below this, it is the API's or the device's own limit and does
/// not indicate how many blocks a multiprocessor holds. Blocks are then small and many: a block
/// that does not run takes no tile, so too many blocks do no harm.
const LONG_SHARED_BYTES: usize = 96 << 10;
const SMALL_SLOT_BYTES: usize = 12 << 10;
const SMALL_BLOCKS: usize = 8;
/// For rows scanned in chunks: minimum elements per thread, and threads per processor.
const CHUNK_ELEMENTS_MIN: usize = 1024;
const CHUNKS_PER_PROCESSOR: usize = 256;
const CHUNK_THREADS: usize = 64;
/// With fewer lines than this, and lines of at least this length, a transposed copy costs less than
/// idle threads.
const LINES_MIN: usize = 8192;
const TRANSPOSED_LEN_MIN: usize = 512;

pub(crate) fn run(op: &Scan, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape();
    let output = context.output(op.input.dtype(), shape)?;
    if shape.elements() > 0 {
        let source = context.input(&op.input)?;
        let (len, inner) = (shape[op.axis], shape[op.axis + 1..].iter().product());
        let lines = ScanLines { len, inner, outer: shape.elements() / (len * inner) };
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
struct ScanLines {
    outer: usize,
    len: usize,
    inner: usize,
}

impl ScanLines {
    /// Scans `outer * inner` contiguous lines as rows, for any original layout.
    fn rows(&self, op: &Scan, target: Address, source: Address, context: &mut Context) -> Result<()> {
        let dtype = op.input.dtype();
        let width = VECTOR_BYTES / dtype.size_bytes();
        // Every row must be aligned. A single row may have any length, unless its end is where a
        // reversed scan begins.
        let even = self.len.is_multiple_of(width) || self.outer * self.inner == 1 && !op.reversed;
        let aligned = (target | source).is_multiple_of(VECTOR_BYTES as u64) && even;
        let vector = if aligned { width } else { 1 };
        let vectors = self.len.div_ceil(vector);
        let (threads, items) = tile(vectors, vector, dtype, context.warp_lanes());
        if vectors > threads * items && context.warp_lanes() == 1 {
            return self.chunks(op, target, source, context);
        }
        if vectors > threads * items {
            return self.long_rows(op, vector, target, source, context);
        }
        let kernel = kernel(op, "scan_rows", threads)
            .flag("ROWS", true)
            .integer("BLOCKS_MIN", (THREADS_PER_MULTIPROCESSOR / threads).min(BLOCKS_MIN) as i64)
            .integer("ITEMS", items as i64)
            .integer("VECTOR", vector as i64)
            .integer("VECTOR_BYTES", (vector * dtype.size_bytes()) as i64)
            .word("REVERSED", "is_reversed")
            .word("EXCLUSIVE", "is_exclusive");
        let mut arguments = Arguments::new()
            .address(target)
            .address(source)
            .u64(self.len as u64)
            .u32(u32::from(op.reversed))
            .u32(u32::from(op.excludes_own));
        let blocks = self.outer * self.inner;
        context.launch(&kernel, Launch::new(blocks, threads), &mut arguments)
    }

    /// Scans rows of several tiles. Blocks take the tiles in order from a shared counter.
    fn long_rows(
        &self,
        op: &Scan,
        vector: usize,
        target: Address,
        source: Address,
        context: &mut Context,
    ) -> Result<()> {
        let vector_bytes = vector * op.input.dtype().size_bytes();
        let properties = context.driver.properties();
        let (blocks_each, slot_bytes) = blocks_and_slot(properties.shared_bytes_max as usize);
        // An odd number, so that the threads of a warp read from different banks.
        let most = if vector == 1 { LONG_ELEMENTS_MAX } else { LONG_VECTORS_MAX };
        let items = (slot_bytes / (LONG_THREADS * vector_bytes)).clamp(1, most);
        let items = if items.is_multiple_of(2) { items - 1 } else { items };
        let tiles_of_row = self.len.div_ceil(LONG_THREADS * items * vector);
        let tiles = self.outer * self.inner * tiles_of_row;
        let blocks = (properties.multiprocessors as usize * blocks_each).min(tiles);
        let (board, epoch) = context.with_state(|board: &mut ScanBoard, context| board.for_tiles(tiles, context))?;
        let values = if op.input.dtype() == DType::F64 { context.scratch(tiles * 8)? } else { Address::NULL };
        let kernel = kernel(op, "scan_long", LONG_THREADS)
            .flag("LONG", true)
            .integer("ITEMS", items as i64)
            .integer("VECTOR", vector as i64)
            .integer("VECTOR_BYTES", vector_bytes as i64)
            .flag("REVERSED", op.reversed)
            .flag("EXCLUSIVE", op.excludes_own);
        let mut arguments = Arguments::new()
            .address(target)
            .address(source)
            .u64(self.len as u64)
            .size(tiles_of_row)
            .size(tiles)
            .address(board)
            .address(board + WORD_BYTES)
            .address(values)
            .u32(epoch);
        let launch = Launch::new(blocks, LONG_THREADS);
        let shared_bytes = LONG_SLOTS * LONG_THREADS * items * vector_bytes;
        context.launch(&kernel, launch.shared(shared_bytes), &mut arguments)
    }

    /// Scans long rows if threads cannot see each other's values: each thread has one chunk of a
    /// row.
    fn chunks(&self, op: &Scan, target: Address, source: Address, context: &mut Context) -> Result<()> {
        let (rows, dtype) = (self.outer * self.inner, op.input.dtype());
        let most = (context.multiprocessors() * CHUNKS_PER_PROCESSOR).div_ceil(rows);
        let chunk = self.len.div_ceil(most).max(CHUNK_ELEMENTS_MIN);
        let chunks = self.len.div_ceil(chunk);
        let totals = context.scratch(rows * chunks * dtype.size_bytes().max(4))?;
        let kernel = |entry| {
            kernel(op, entry, CHUNK_THREADS)
                .flag("CHUNKS", true)
                .integer("VECTOR", 1)
                .integer("VECTOR_BYTES", dtype.size_bytes() as i64)
        };
        let launch = |threads: usize| Launch::new(threads.div_ceil(CHUNK_THREADS), CHUNK_THREADS);
        let sizes = |arguments: Arguments| {
            let lengths = arguments.u64(rows as u64).u64(self.len as u64).size(chunks).u64(chunk as u64);
            lengths.u32(u32::from(op.reversed))
        };
        let mut summed = sizes(Arguments::new().address(totals).address(source));
        context.launch(&kernel("chunk_totals"), launch(rows * chunks), &mut summed)?;
        let mut started = Arguments::new().address(totals).u64(rows as u64).size(chunks);
        context.launch(&kernel("chunk_starts"), launch(rows), &mut started)?;
        let scanned = sizes(Arguments::new().address(target).address(source).address(totals));
        context.launch(&kernel("chunk_scan"), launch(rows * chunks), &mut scanned.u32(u32::from(op.excludes_own)))
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
        let launch = Launch::new(lines.div_ceil(COLUMN_THREADS), COLUMN_THREADS);
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

/// Threads of a block that scans a row, and vectors per thread.
fn tile(vectors: usize, vector: usize, dtype: DType, warp: usize) -> (usize, usize) {
    let registers = vector * dtype.size_bytes().div_ceil(4);
    match vectors.div_ceil(warp) {
        0..=1 => (warp, 1),
        2..=4 => (warp, 4),
        // Each vector also has a running value.
        _ => (ROW_THREADS, (32 / registers).clamp(1, 8)),
    }
}

/// Number of tile-taking blocks per multiprocessor, and the memory per tile held.
fn blocks_and_slot(shared_bytes_max: usize) -> (usize, usize) {
    if shared_bytes_max >= LONG_SHARED_BYTES {
        return (LONG_BLOCKS, shared_bytes_max / (LONG_BLOCKS * LONG_SLOTS) - LONG_SPARE_BYTES);
    }
    let most = shared_bytes_max.saturating_sub(LONG_SPARE_BYTES) / LONG_SLOTS;
    (SMALL_BLOCKS, most.min(SMALL_SLOT_BYTES))
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

/// The memory in which the tiles of a scan publish their sums, after the counter of tiles taken.
/// The board is reused by later scans; epochs distinguish their words.
#[derive(Default)]
struct ScanBoard {
    block: Option<LeasedBlock>,
    /// Smaller boards that kernels in flight may still use; together they are smaller than the
    /// present one.
    #[allow(dead_code)] // Held so that the pool does not lend them.
    retired: Vec<LeasedBlock>,
    tiles: usize,
    epoch: u32,
}

/// Minimum capacity of a board, in tiles.
const BOARD_TILES_MIN: usize = 1 << 14;
const WORD_BYTES: usize = 8;

impl DeviceState for ScanBoard {
    fn is_per_lane() -> bool {
        true
    }
}

impl ScanBoard {
    /// A board for `tiles` tiles, and this launch's epoch, which none of the board's words has.
    fn for_tiles(&mut self, tiles: usize, context: &mut Context) -> Result<(Address, u32)> {
        if self.tiles < tiles {
            let capacity = tiles.next_power_of_two().max(BOARD_TILES_MIN);
            let block = context.memory.scratch((1 + capacity) * WORD_BYTES)?;
            let old = self.block.replace(block);
            self.retired.extend(old);
            self.tiles = capacity;
            self.epoch = u32::MAX;
        }
        let address = self.block.as_ref().map_or(Address::NULL, |block| block.block.0);
        if self.epoch == u32::MAX {
            let bytes = (1 + self.tiles) * WORD_BYTES;
            context.lasting(|context| context.fill(address, 0, bytes))?;
            self.epoch = 0;
        }
        self.epoch += 1;
        Ok((address, self.epoch))
    }
}
