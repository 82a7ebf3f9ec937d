//! Search with many queries. In order:
//!
//! 1. A sample of the rows is scored, of each group of them the nearest score is kept, and the k-th nearest of those becomes
//!    each query's threshold: no row farther away can be in the result.
//! 2. A pass over all rows lists those up to the threshold. Where a list might not hold them, there are several, over more and
//!    more of the rows; after each but the last, the threshold is tightened and the list cut down to the nearest so far.
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
/// Row numbers of the last tile must not wrap.
const ROWS_MAX: usize = u32::MAX as usize - 1024;
/// Bytes of each vector that are multiplied at a time.
const CHUNK_BYTES: usize = 128;
/// Block memory of a multiprocessor, and what the kernel declares of it itself, for each warp, row and query and besides.
const BLOCKS_BYTES_MAX: usize = 226 << 10;
const WARP_BYTES: usize = 864;
const ROW_BYTES: usize = 16;
const QUERY_BYTES: usize = 20;
const DECLARED_BYTES: usize = 512;
/// The kernel moves to the next boundary of so many bytes.
const ALIGN_BYTES: usize = 1024;
const STAGES_MAX: usize = 8;
/// Sums of a tile that leave registers for two blocks.
const SMALL_TILE: usize = 16 * 128;
/// With so many stages a stage may be twice as large: that means fewer waits.
const LARGE_STAGES_MIN: usize = 3;
/// Keys of a query's list of candidates.
const LIST_KEYS_MIN: usize = 2048;
const LIST_KEYS_MAX: usize = 16384;
/// Bytes of all lists; more queries are taken in turns.
const LISTS_BYTES_MAX: usize = 256 << 20;
/// How much more than the expected candidates a list must hold.
const LIST_RESERVE: usize = 4;
/// Groups of the sample for each neighbour: with fewer, many neighbours would be in one group, and the threshold too wide.
const GROUPS_PER_NEIGHBOUR: usize = 8;
/// Rows times neighbours for which scoring all costs as much as listing one candidate for each neighbour does.
const ROWS_PER_CANDIDATE: usize = 2000;
/// The first compute capability that copies to a block's memory by itself, and that of the emulated device.
const COPIES_CAPABILITY: u32 = 80;
const EMULATED_CAPABILITY: u32 = 0;
/// The one compute capability with instructions for four warps together in this form.
const GROUPED_CAPABILITY: u32 = 90;
const MEASURE_THREADS: usize = 256;
const PACK_THREADS: usize = 256;
const SELECT_THREADS: usize = 256;
/// Keys that the kernel ranks by counting, and room for the result; see `RANKED_MAX` in the kernels.
const SELECT_SPARE_MIN: usize = 256;

/// Whether this path is the better one, and the device has what it needs.
pub(super) fn takes(task: &Task, capability: u32) -> bool {
    let copies = capability >= COPIES_CAPABILITY || capability == EMULATED_CAPABILITY;
    let long = task.k >= LONG_K_MIN && task.row_count >= LONG_ROWS_MIN;
    (task.query_count >= QUERIES_MIN || long)
        && copies
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

/// Which rows a pass takes: `tiles` tiles, every `step`-th of all, but without each `left_out`-th of those, which earlier passes
/// took; 0 leaves none out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pass {
    tiles: usize,
    step: usize,
    left_out: usize,
}

/// What a pass writes to the lists. The numbers are those of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writes {
    /// Candidates.
    List = 0,
    /// Every score.
    All = 1,
    /// The nearest score of each group of rows.
    Nearest = 2,
}

/// The passes of a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    sample: Pass,
    /// Whether every score of the sample is written, and not only the nearest of each group.
    all: bool,
    /// Keys that the sample writes of each tile.
    tile_keys: usize,
    /// The listing passes; none where the sample is everything and its scores are exact.
    lists: Vec<Pass>,
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
        let task = self.task;
        let plan = Plan::new(task.row_count, task.k, &self.shape, self.capacity, self.exact);
        let (writes, given) =
            (if plan.all { Writes::All } else { Writes::Nearest }, plan.sample.tiles * plan.tile_keys);
        self.score(plan.sample, writes, plan.shared_by(&self.shape), context)?;
        if plan.lists.is_empty() {
            return self.select(given, After::Last, context);
        }
        self.select(given, After::Sample, context)?;
        for (index, pass) in plan.lists.iter().enumerate() {
            self.score(*pass, Writes::List, 1, context)?;
            self.select(0, if index + 1 == plan.lists.len() { After::Last } else { After::Kept }, context)?;
        }
        few::run_chosen(task, self.chosen, context)
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

    fn score(&self, pass: Pass, writes: Writes, shared_by: usize, context: &mut Context) -> Result<()> {
        let (task, shape) = (self.task, &self.shape);
        let kernel = shape
            .parameters(self.parameters(Kernel::new(SEARCH_MANY, "search_many")))
            .integer("PASS", writes as i64)
            .integer("SHARED_BY", shared_by);
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
            .u32(pass.step as u32)
            .u32(pass.left_out as u32);
        let query_tiles = task.query_count.div_ceil(shape.tile_queries);
        let blocks = context.driver.properties().multiprocessors as usize * shape.blocks;
        let parts = (blocks / query_tiles).clamp(1, pass.tiles);
        let launch = Launch::grid([query_tiles as u32, parts as u32, 1], shape.threads() as u32);
        context.launch(&kernel, launch.shared(shape.shared_bytes as u32), &mut arguments)
    }

    fn select(&self, given: usize, after: After, context: &mut Context) -> Result<()> {
        let task = self.task;
        let kernel = Kernel::new(SEARCH_SELECT, "search_select")
            .integer("METRIC", task.metric_number())
            .integer("THREADS", SELECT_THREADS);
        let (ids, scores) = if after == After::Last { (task.ids, task.scores) } else { (0, 0) };
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
            .u32(spare_keys(task) as u32)
            .u32(u32::from(after == After::Kept));
        let shared_bytes = (self.capacity + spare_keys(task)) * 8;
        let launch = Launch::new(task.query_count as u32, SELECT_THREADS as u32).shared(shared_bytes as u32);
        context.launch(&kernel, launch, &mut arguments)
    }
}

/// What becomes of the lists after a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// They give a threshold, and the next pass finds their rows again.
    Sample,
    /// They give a threshold, and their nearest stay.
    Kept,
    /// They give the result.
    Last,
}

impl Plan {
    /// Every row is in one of the listing passes, or all are in the sample.
    fn new(rows: usize, k: usize, shape: &Shape, capacity: usize, exact: bool) -> Plan {
        let tiles = rows.div_ceil(shape.tile_rows);
        let all_tiles = capacity / shape.tile_rows;
        if exact && tiles <= all_tiles {
            let sample = Pass { tiles, step: 1, left_out: 0 };
            return Plan { sample, all: true, tile_keys: shape.tile_rows, lists: Vec::new() };
        }
        // A warp's rows are one group, or four.
        let parts = shape.tile_rows / shape.warp.1;
        let steps_max = tiles * parts * 4 / (k * GROUPS_PER_NEIGHBOUR);
        let all = steps_max == 0;
        let step = if all {
            tiles.div_ceil(all_tiles)
        } else {
            let balanced = (rows / (k * ROWS_PER_CANDIDATE)).isqrt();
            balanced.clamp(1, steps_max).max(tiles.div_ceil(capacity / parts))
        };
        let growths = growths(step, (capacity / (LIST_RESERVE * k)).max(2));
        let mut step = growths.iter().product();
        let sample = Pass { tiles: tiles.div_ceil(step), step, left_out: 0 };
        let tile_keys = match sample.tiles * parts * 4 <= capacity {
            _ if all => shape.tile_rows,
            true => parts * 4,
            false => parts,
        };
        let mut lists = Vec::new();
        for growth in &growths {
            let before = tiles.div_ceil(step);
            step /= growth;
            // The sample's rows are not in the lists yet.
            let (left_out, taken) = if lists.is_empty() { (0, 0) } else { (*growth, before) };
            lists.push(Pass { tiles: tiles.div_ceil(step) - taken, step, left_out });
        }
        if lists.is_empty() {
            lists.push(sample);
        }
        Plan { sample, all, tile_keys, lists }
    }

    /// How many lanes of a warp share a group of the sample's rows.
    fn shared_by(&self, shape: &Shape) -> usize {
        if self.tile_keys == shape.tile_rows / shape.warp.1 { 4 } else { 1 }
    }
}

/// Few factors of at most `most`, as even as can be, whose product is at least `whole`, but not much more.
fn growths(whole: usize, most: usize) -> Vec<usize> {
    let mut rounds = 0;
    while most.saturating_pow(rounds) < whole {
        rounds += 1;
    }
    let (mut left, mut factors) = (whole, Vec::new());
    while left > 1 {
        let factor = (2..=most).find(|factor| factor.saturating_pow(rounds) >= left).unwrap_or(most);
        factors.push(factor);
        left = left.div_ceil(factor);
        rounds = rounds.saturating_sub(1).max(1);
    }
    factors
}

/// How the tiles lie in a block's memory, and who works on them.
struct Shape {
    tile_queries: usize,
    tile_rows: usize,
    /// Whether four warps multiply together.
    grouped: bool,
    /// Queries and rows of one warp.
    warp: (usize, usize),
    /// Warps that copy.
    copiers: usize,
    /// Blocks of a multiprocessor.
    blocks: usize,
    stages: usize,
    stage_chunks: usize,
    /// Whether the queries stay in the block's memory, or come with every chunk of rows.
    resident: bool,
    shared_bytes: usize,
}

impl Shape {
    /// A tile that the queries fill. Few queries are bound by the reading of rows alone.
    fn new(task: &Task, context: &Context) -> Shape {
        let hopper = context.driver.properties().capability == GROUPED_CAPABILITY;
        let queries = task.query_count;
        let (tile, warp, grouped) = match (hopper, queries) {
            (_, 0..=16) => ((16, 128), (16, 16), false),
            (true, 17..=64) => ((64, 256), (16, 128), true),
            (true, _) if queries.next_multiple_of(256) == queries.next_multiple_of(128) => {
                ((256, 128), (16, 128), true)
            }
            (true, _) => ((128, 256), (16, 128), true),
            (false, 17..=64) => ((64, 256), (64, 32), false),
            (false, _) => ((128, 128), (64, 32), false),
        };
        Shape::with(task, context, tile, warp, grouped)
    }

    fn with(
        task: &Task,
        context: &Context,
        (tile_queries, tile_rows): (usize, usize),
        warp: (usize, usize),
        grouped: bool,
    ) -> Shape {
        let copiers = if grouped { 4 } else { 2 };
        // More blocks hide more latency, but have no registers for the sums of a large tile.
        let blocks = if tile_queries * tile_rows <= SMALL_TILE { 2 } else { 1 };
        let warps = tile_queries / warp.0 * (tile_rows / warp.1);
        let declared = DECLARED_BYTES + warps * WARP_BYTES + tile_rows * ROW_BYTES + tile_queries * QUERY_BYTES;
        let room = (context.driver.properties().shared_bytes_max as usize).min(BLOCKS_BYTES_MAX / blocks);
        let most = room - declared - ALIGN_BYTES;
        let chunks = (task.dim * task.row_type.size_bytes()).div_ceil(CHUNK_BYTES);
        let (query_chunk, row_chunk) = (tile_queries * CHUNK_BYTES, tile_rows * CHUNK_BYTES);
        let resident = chunks * query_chunk + 2 * row_chunk <= most;
        let (kept, with_rows) = if resident { (chunks * query_chunk, 0) } else { (0, query_chunk) };
        let pairs = chunks.is_multiple_of(2) && kept + LARGE_STAGES_MIN * 2 * (row_chunk + with_rows) <= most;
        let stage_chunks = if pairs { 2 } else { 1 };
        let stage = stage_chunks * (row_chunk + with_rows);
        let stages = (most.saturating_sub(kept) / stage).clamp(2, STAGES_MAX);
        let shared_bytes = kept + stages * stage + ALIGN_BYTES;
        Shape { tile_queries, tile_rows, grouped, warp, copiers, blocks, stages, stage_chunks, resident, shared_bytes }
    }

    fn threads(&self) -> usize {
        (self.tile_queries / self.warp.0 * (self.tile_rows / self.warp.1) + self.copiers) * 32
    }

    fn parameters(&self, kernel: Kernel) -> Kernel {
        kernel
            .integer("BLOCK_QUERIES", self.tile_queries)
            .integer("BLOCK_ROWS", self.tile_rows)
            .integer("WARP_QUERIES", self.warp.0)
            .integer("WARP_ROWS", self.warp.1)
            .integer("STAGES", self.stages)
            .integer("STAGE_CHUNKS", self.stage_chunks)
            .integer("COPIERS", self.copiers)
            .integer("BLOCKS", self.blocks)
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

    /// The tiles of a pass, as the kernel counts them.
    fn taken(pass: &Pass) -> impl Iterator<Item = usize> + '_ {
        let number = |index: usize| if pass.left_out > 0 { index + index / (pass.left_out - 1) + 1 } else { index };
        (0..pass.tiles).map(move |index| number(index) * pass.step)
    }

    fn shape((tile_queries, tile_rows): (usize, usize), warp: (usize, usize), grouped: bool) -> Shape {
        Shape {
            tile_queries,
            tile_rows,
            grouped,
            warp,
            copiers: 4,
            blocks: 1,
            stages: 2,
            stage_chunks: 1,
            resident: true,
            shared_bytes: 0,
        }
    }

    #[test]
    fn every_tile_is_listed_once() {
        let shapes = [((16, 128), (16, 16)), ((64, 256), (16, 128)), ((256, 128), (16, 128)), ((128, 128), (64, 32))];
        for (tile, warp) in shapes {
            let shape = shape(tile, warp, false);
            for rows in [1, 130, 2047, 2049, 20_000, 128_000, 1_000_000, 10_000_000, 100_000_000] {
                for (k, exact) in [(1, true), (10, true), (10, false), (100, true), (2048, true), (2048, false)] {
                    let capacity = (k * 8_usize).next_power_of_two().clamp(LIST_KEYS_MIN, LIST_KEYS_MAX);
                    let plan = Plan::new(rows, k, &shape, capacity, exact);
                    let case = format!("{rows} rows, k = {k}, tiles of {tile:?}: {plan:?}");
                    assert!(plan.sample.tiles * plan.tile_keys <= capacity, "{case}");
                    let tiles = rows.div_ceil(tile.1);
                    let mut seen: Vec<usize> = match plan.lists.is_empty() {
                        true => taken(&plan.sample).collect(),
                        false => plan.lists.iter().flat_map(taken).collect(),
                    };
                    seen.sort_unstable();
                    assert!(seen.into_iter().eq(0..tiles), "{case}");
                    // Enough scores for a threshold, unless the lists hold every row.
                    let keys = plan.sample.tiles * plan.tile_keys;
                    assert!(keys >= 2 * k || rows <= capacity, "{case}");
                }
            }
        }
    }

    #[test]
    fn one_listing_pass_is_enough_for_millions_of_rows() {
        let shape = shape((256, 128), (16, 128), true);
        for (rows, step) in [(1_000_000, 7), (10_000_000, 39)] {
            let plan = Plan::new(rows, 10, &shape, LIST_KEYS_MIN, true);
            assert_eq!((plan.sample.step, plan.lists.len()), (step, 1), "{plan:?}");
        }
    }

    #[test]
    fn old_devices_and_mixed_types_take_the_fused_pass() {
        let task = Task {
            row_type: DType::F16,
            query_type: DType::F16,
            metric: Metric::Dot,
            rows: 0,
            queries: 0,
            filter: 0,
            lengths: 0,
            ids: 0,
            scores: 0,
            row_count: 1000,
            dim: 16,
            query_count: 100,
            k: 10,
            places: 10,
        };
        assert!([0, 80, 90, 120].into_iter().all(|capability| takes(&task, capability)));
        assert!(!takes(&task, 75) && !takes(&Task { query_type: DType::F32, ..task }, 90));
        assert!(!takes(&Task { query_count: 2, ..task }, 90));
    }

    #[test]
    fn growths_are_even_and_enough() {
        assert_eq!(growths(1, 8), []);
        assert_eq!(growths(489, 8), [8, 8, 8]);
        assert_eq!(growths(65, 8), [5, 4, 4]);
        assert_eq!(growths(9, 2), [2, 2, 2, 2]);
        for whole in 2..2000 {
            let product: usize = growths(whole, 8).iter().product();
            assert!(product >= whole && product < 2 * whole, "{whole}: {product}");
        }
    }

    /// The emulated device does not run them, so this is what a machine without a GPU can say of them.
    #[test]
    fn kernels_of_grouped_warps_compile() {
        if !Compiler::is_present() {
            return println!("skipped: NVRTC is not installed");
        }
        let compiler = Compiler::new(String::new(), GROUPED_CAPABILITY);
        let device = DeviceId { api: Api::Simulated, index: 0 };
        for (dtype, piece, exact, tile) in [
            (DType::F32, 4, false, (64, 256)),
            (DType::F16, 8, true, (256, 128)),
            (DType::BF16, 8, true, (64, 256)),
            (DType::I8, 16, true, (128, 256)),
        ] {
            let shape = shape(tile, (16, 128), true);
            let kernel = shape
                .parameters(Kernel::new(SEARCH_MANY, "search_many"))
                .dtype("T", dtype)
                .dtype("Q", dtype)
                .integer("METRIC", 0)
                .integer("PIECE", piece)
                .integer("LANES", 4)
                .flag("EXACT", exact)
                .integer("SHARED_BY", 4);
            for writes in [Writes::List, Writes::All, Writes::Nearest] {
                let kernel = kernel.clone().integer("PASS", writes as i64);
                let compiled = compiler.compile(device, &kernel.name(), &kernel.source(Dialect::Cuda));
                assert!(compiled.is_ok(), "{dtype}, {writes:?}: {compiled:?}");
            }
        }
    }
}
