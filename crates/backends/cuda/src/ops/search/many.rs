//! Search with many queries. In order:
//!
//! 1. A sample of the rows is scored in full, and the k-th nearest of it becomes each query's threshold: no row farther away
//!    can be in the result.
//! 2. Passes over more and more rows, the last over all, list the rows up to the threshold; after each but the last, the
//!    threshold is tightened. The steps are such that a list is expected to stay half empty.
//! 3. The k nearest of each list are the result. Queries whose list ran over, as an adversarial order of rows can bring
//!    about, are searched again by the fused pass, which takes any order. Which ones, only the device knows.

use panoply_core::op::compute::Metric;
use panoply_core::{DType, Result};
use panoply_kernels::c::{Kernel, SEARCH_MANY, SEARCH_MEASURE, SEARCH_PACK, SEARCH_SELECT};

use super::{Task, WIDE_BYTES, few};
use crate::context::{Arguments, Context};
use crate::driver::{Address, Launch};

/// Below so many queries, the fused pass is as fast as the rows can be read.
const QUERIES_MIN: usize = 5;
/// With fewer queries too, if as many neighbours are wanted from as many rows: the fused pass would merge long lists.
const LONG_K_MIN: usize = 65;
const LONG_ROWS_MIN: usize = 1 << 16;
/// Up to so many queries, a tile is narrow and has more rows.
const NARROW_QUERIES_MAX: usize = 64;
/// Row numbers of the last tile must not wrap.
const ROWS_MAX: usize = u32::MAX as usize - 1024;
/// Bytes of each vector that are multiplied at a time.
const CHUNK_BYTES: usize = 128;
/// Blocks of a multiprocessor.
const BLOCKS: usize = 2;
/// Block memory for each of them, and what the kernel declares itself.
const BLOCK_BYTES_MAX: usize = 112 << 10;
const DECLARED_BYTES: usize = 13 << 10;
/// The kernel moves to the next boundary of so many bytes.
const ALIGN_BYTES: usize = 1024;
const STAGES_MAX: usize = 4;
/// Keys of a query's list of candidates.
const LIST_KEYS_MIN: usize = 2048;
const LIST_KEYS_MAX: usize = 16384;
/// Bytes of all lists; more queries are taken in turns.
const LISTS_BYTES_MAX: usize = 256 << 20;
/// How much larger a pass is than the one before, at most.
const GROWTH_MAX: usize = 32;
/// The one compute capability with instructions for four warps together in this form.
const GROUPED_CAPABILITY: u32 = 90;
const MEASURE_THREADS: usize = 256;
const PACK_THREADS: usize = 256;
const SELECT_THREADS: usize = 256;
/// Keys that the kernel ranks by counting, and room for the result; see `RANKED_MAX` in the kernels.
const SELECT_SPARE_MIN: usize = 256;

/// Whether this path is the better one.
pub(super) fn takes(task: &Task) -> bool {
    let long = task.k >= LONG_K_MIN && task.row_count >= LONG_ROWS_MIN;
    (task.query_count >= QUERIES_MIN || long)
        && task.query_type == task.row_type
        && (1..=ROWS_MAX).contains(&task.row_count)
        && task.dim > 0
}

pub(super) fn run(task: Task, context: &mut Context) -> Result<()> {
    let task = aligned(task, context)?;
    let capacity = list_keys(&task, context);
    let turn = (LISTS_BYTES_MAX / (capacity * 8)).next_multiple_of(128);
    for begin in (0..task.query_count).step_by(turn) {
        let query_bytes = task.dim * task.query_type.size_bytes();
        let part = Task {
            queries: task.queries + (begin * query_bytes) as u64,
            query_count: turn.min(task.query_count - begin),
            ids: task.ids + (begin * task.places * 4) as u64,
            scores: task.scores + (begin * task.places * 4) as u64,
            ..task
        };
        Turn::new(&part, capacity, context)?.run(context)?;
    }
    Ok(())
}

/// Whether the matrix unit's sums are the scores themselves.
fn is_exact(task: &Task) -> bool {
    match task.row_type {
        DType::I8 => true,
        DType::F16 | DType::BF16 => task.metric != Metric::Euclidean,
        _ => false,
    }
}

fn list_keys(task: &Task, context: &Context) -> usize {
    let room = context.driver.properties().shared_bytes_max as usize / 8 - spare_keys(task);
    (task.k * 8).next_power_of_two().clamp(LIST_KEYS_MIN, 1 << room.min(LIST_KEYS_MAX).ilog2())
}

/// Room for the result in a block's memory.
fn spare_keys(task: &Task) -> usize {
    task.k.next_power_of_two().max(SELECT_SPARE_MIN)
}

/// The same task with rows and queries on 16-byte boundaries, padded with zeros where they are not.
fn aligned(task: Task, context: &mut Context) -> Result<Task> {
    let wide = WIDE_BYTES / task.row_type.size_bytes();
    let dim = task.dim.next_multiple_of(wide);
    let fits = |address: Address| dim == task.dim && address.is_multiple_of(WIDE_BYTES as u64);
    let rows = if fits(task.rows) { task.rows } else { pack(&task, task.rows, task.row_count, dim, context)? };
    let queries =
        if fits(task.queries) { task.queries } else { pack(&task, task.queries, task.query_count, dim, context)? };
    Ok(Task { rows, queries, dim, ..task })
}

fn pack(task: &Task, source: Address, rows: usize, padded: usize, context: &mut Context) -> Result<Address> {
    let word = match task.row_type.size_bytes() {
        1 => "u8",
        2 => "u16",
        _ => "u32",
    };
    let target = context.scratch(rows * padded * task.row_type.size_bytes())?;
    let kernel = Kernel::new(SEARCH_PACK, "pack_rows").word("T", word).integer("THREADS", PACK_THREADS);
    let mut arguments =
        Arguments::new().address(target).address(source).u64(rows as u64).u32(task.dim as u32).u32(padded as u32);
    let launch = context.blocks(rows * 32, PACK_THREADS as u32, 1);
    context.launch(&kernel, launch, &mut arguments)?;
    Ok(target)
}

/// Which rows a pass takes: every `step`-th tile.
#[derive(Clone, Copy)]
struct Pass {
    tiles: usize,
    step: usize,
}

/// As many queries as there is room for lists.
struct Turn<'a> {
    task: &'a Task,
    exact: bool,
    capacity: usize,
    lists: Address,
    counts: Address,
    thresholds: Address,
    chosen: Address,
    /// The sums of the queries' squares; 0 where they are not needed.
    squares: Address,
    shape: Shape,
}

impl<'a> Turn<'a> {
    fn new(task: &'a Task, capacity: usize, context: &mut Context) -> Result<Turn<'a>> {
        let (queries, exact) = (task.query_count, is_exact(task));
        let plain = exact && task.metric == Metric::Dot;
        Ok(Turn {
            task,
            exact,
            capacity,
            lists: context.scratch(queries * capacity * 8)?,
            counts: context.scratch(queries * 4)?,
            thresholds: context.scratch(queries * 8)?,
            chosen: context.scratch((queries + 1) * 4)?,
            squares: if plain { 0 } else { context.scratch(queries * 4)? },
            shape: Shape::new(task, context),
        })
    }

    fn run(&self, context: &mut Context) -> Result<()> {
        if self.squares != 0 {
            self.measure(context)?;
        }
        let passes = self.passes();
        let Some((first, rest)) = passes.split_first() else { return Ok(()) };
        let given = first.tiles * self.shape.tile_rows;
        self.score(*first, true, context)?;
        if rest.is_empty() {
            return self.select(given, true, context);
        }
        self.select(given, false, context)?;
        for (index, pass) in rest.iter().enumerate() {
            self.score(*pass, false, context)?;
            self.select(0, index + 1 == rest.len(), context)?;
        }
        few::run_chosen(self.task, self.chosen, context)
    }

    /// The first pass writes its scores in full. The others list candidates; the last of them takes all rows.
    fn passes(&self) -> Vec<Pass> {
        let rows = self.shape.tile_rows;
        let tiles = self.task.row_count.div_ceil(rows);
        let all = Pass { tiles, step: 1 };
        let most = self.capacity / rows;
        if tiles <= most && self.exact {
            return vec![all];
        }
        let growth = (self.capacity / (2 * self.task.k)).clamp(2, GROWTH_MAX);
        let mut size = (self.task.k * 2).next_multiple_of(rows).max(LIST_KEYS_MIN) / rows;
        size = size.min(most).min(tiles);
        let mut passes = vec![Pass { tiles: size, step: tiles / size }];
        while size < tiles {
            size = if size * growth * 2 >= tiles { tiles } else { size * growth };
            passes.push(Pass { tiles: size, step: tiles / size });
        }
        if passes.len() == 1 {
            passes.push(all);
        }
        passes
    }

    fn parameters(&self, kernel: Kernel) -> Kernel {
        self.task.with_parameters(kernel).flag("EXACT", self.exact)
    }

    fn measure(&self, context: &mut Context) -> Result<()> {
        let task = self.task;
        let kernel = task.with_parameters(Kernel::new(SEARCH_MEASURE, "measure")).integer("THREADS", MEASURE_THREADS);
        let mut arguments = Arguments::new()
            .address(task.queries)
            .address(self.squares)
            .u32(task.query_count as u32)
            .u32(task.dim as u32);
        let blocks = task.query_count.div_ceil(MEASURE_THREADS / 32).min(1024);
        context.launch(&kernel, Launch::new(blocks as u32, MEASURE_THREADS as u32), &mut arguments)
    }

    fn score(&self, pass: Pass, first: bool, context: &mut Context) -> Result<()> {
        let task = self.task;
        let shape = &self.shape;
        let kernel = shape.parameters(self.parameters(Kernel::new(SEARCH_MANY, "search_many"))).flag("FIRST", first);
        let mut arguments = Arguments::new()
            .address(task.rows)
            .address(task.queries)
            .address(task.filter)
            .address(task.lengths)
            .address(self.squares)
            .address(self.thresholds)
            .address(self.lists)
            .address(self.counts)
            .u32(task.row_count as u32)
            .u32(task.query_count as u32)
            .u32(task.dim as u32)
            .u32(self.capacity as u32)
            .u32(pass.tiles as u32)
            .u32(pass.step as u32);
        let query_tiles = task.query_count.div_ceil(shape.tile_queries);
        let blocks = context.driver.properties().multiprocessors as usize * BLOCKS;
        let parts = (blocks / query_tiles).clamp(1, pass.tiles);
        let launch = Launch::grid([query_tiles as u32, parts as u32, 1], shape.threads() as u32);
        context.launch(&kernel, launch.shared(shape.shared_bytes as u32), &mut arguments)
    }

    fn select(&self, given: usize, last: bool, context: &mut Context) -> Result<()> {
        let task = self.task;
        let kernel = Kernel::new(SEARCH_SELECT, "search_select")
            .integer("METRIC", task.metric_number())
            .integer("THREADS", SELECT_THREADS);
        let (ids, scores) = if last { (task.ids, task.scores) } else { (0, 0) };
        let mut arguments = Arguments::new()
            .address(self.lists)
            .address(self.counts)
            .address(self.thresholds)
            .address(self.chosen)
            .address(ids)
            .address(scores)
            .u32(given as u32)
            .u32(self.capacity as u32)
            .u32(task.k as u32)
            .u32(task.places as u32)
            .u32(spare_keys(task) as u32);
        let shared_bytes = (self.capacity + spare_keys(task)) * 8;
        let launch = Launch::new(task.query_count as u32, SELECT_THREADS as u32).shared(shared_bytes as u32);
        context.launch(&kernel, launch, &mut arguments)
    }
}

/// How the tiles lie in a block's memory.
struct Shape {
    tile_queries: usize,
    tile_rows: usize,
    /// Whether four warps multiply together.
    grouped: bool,
    stages: usize,
    stage_chunks: usize,
    /// Whether the queries stay in the block's memory, or come with every chunk of rows.
    resident: bool,
    shared_bytes: usize,
}

impl Shape {
    fn new(task: &Task, context: &Context) -> Shape {
        let properties = context.driver.properties();
        let most = (properties.shared_bytes_max as usize).min(BLOCK_BYTES_MAX) - DECLARED_BYTES - ALIGN_BYTES;
        let narrow = task.query_count <= NARROW_QUERIES_MAX;
        let (tile_queries, tile_rows) = if narrow { (64, 256) } else { (128, 128) };
        let chunks = (task.dim * task.row_type.size_bytes()).div_ceil(CHUNK_BYTES);
        let (query_chunk, row_chunk) = (tile_queries * CHUNK_BYTES, tile_rows * CHUNK_BYTES);
        let resident = chunks * query_chunk + 2 * row_chunk <= most;
        let (kept, with_rows) = if resident { (chunks * query_chunk, 0) } else { (0, query_chunk) };
        // Larger stages mean fewer barriers.
        let pairs = chunks.is_multiple_of(2) && kept + 2 * 2 * (row_chunk + with_rows) <= most;
        let stage_chunks = if pairs { 2 } else { 1 };
        let stage = stage_chunks * (row_chunk + with_rows);
        let stages = ((most - kept) / stage).clamp(2, STAGES_MAX);
        let grouped = properties.capability == GROUPED_CAPABILITY;
        let shared_bytes = kept + stages * stage + ALIGN_BYTES;
        Shape { tile_queries, tile_rows, grouped, stages, stage_chunks, resident, shared_bytes }
    }

    /// The part of one warp.
    fn warp(&self) -> (usize, usize) {
        if self.grouped { (16, 128) } else { (64, 32) }
    }

    fn threads(&self) -> usize {
        let (queries, rows) = self.warp();
        self.tile_queries / queries * (self.tile_rows / rows) * 32
    }

    fn parameters(&self, kernel: Kernel) -> Kernel {
        let (queries, rows) = self.warp();
        kernel
            .integer("BLOCK_QUERIES", self.tile_queries)
            .integer("BLOCK_ROWS", self.tile_rows)
            .integer("WARP_QUERIES", queries)
            .integer("WARP_ROWS", rows)
            .integer("STAGES", self.stages)
            .integer("STAGE_CHUNKS", self.stage_chunks)
            .flag("RESIDENT", self.resident)
            .flag("GROUPED", self.grouped)
    }
}

#[cfg(test)]
mod tests {
    use panoply_core::{Api, DeviceId};
    use panoply_kernels::c::Dialect;

    use super::*;
    use crate::driver::compiler::Compiler;

    /// The emulated device does not run them, so this is what a machine without a GPU can say of them.
    #[test]
    fn kernels_of_grouped_warps_compile() {
        if !Compiler::is_present() {
            return println!("skipped: NVRTC is not installed");
        }
        let compiler = Compiler::new(String::new(), GROUPED_CAPABILITY);
        let device = DeviceId { api: Api::Simulated, index: 0 };
        for (dtype, piece, exact, (tile_queries, tile_rows)) in [
            (DType::F32, 4, false, (64, 256)),
            (DType::F16, 8, true, (128, 128)),
            (DType::BF16, 8, true, (64, 256)),
            (DType::I8, 16, true, (128, 128)),
        ] {
            let shape = Shape {
                tile_queries,
                tile_rows,
                grouped: true,
                stages: 2,
                stage_chunks: 1,
                resident: true,
                shared_bytes: 0,
            };
            let kernel = shape
                .parameters(Kernel::new(SEARCH_MANY, "search_many"))
                .dtype("T", dtype)
                .dtype("Q", dtype)
                .integer("METRIC", 0)
                .integer("PIECE", piece)
                .integer("LANES", 4)
                .flag("EXACT", exact)
                .flag("FIRST", false);
            let compiled = compiler.compile(device, &kernel.name(), &kernel.source(Dialect::Cuda));
            assert!(compiled.is_ok(), "{dtype}: {compiled:?}");
        }
    }
}
