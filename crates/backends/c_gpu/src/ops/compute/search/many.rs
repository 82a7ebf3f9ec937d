//! Search with many queries, in three steps:
//!
//! 1. A sample of the rows is scored. The nearest score of each group of sampled rows is kept, and
//!    the k-th nearest of those becomes each query's threshold: no row farther away can be in the
//!    result.
//! 2. A pass over all rows lists the rows up to the threshold. If a list might overflow, there are
//!    several passes over growing parts of the rows; after each pass but the last, the threshold is
//!    tightened and the list is reduced to the nearest so far.
//! 3. The k nearest of each list are the result. Queries whose list overflowed, as an adversarial
//!    order of rows can cause, are searched again by the fused pass, which works for any order.
//!    Only the device knows which queries these are.

use panoply_core::op::compute::Metric;
use panoply_core::{DType, Result};
use panoply_kernels::c::{Kernel, SEARCH_MANY, SEARCH_MEASURE, SEARCH_PACK, SEARCH_SELECT};

use super::schedule::{Schedule, ScorePass};
use super::shape::Shape;
use super::{SearchTask, WIDE_BYTES, few};
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};

/// Below this many queries the fused pass is as fast as the rows can be read.
const QUERIES_MIN: usize = 5;
/// Also used for fewer queries, if at least this many neighbours are wanted from at least this many
/// rows: the fused pass would merge long lists.
const LONG_K_MIN: usize = 65;
const LONG_ROWS_MIN: usize = 1 << 16;
/// Row numbers of the last tile must not wrap.
const ROWS_MAX: usize = u32::MAX as usize - 1024;
/// Limits of the keys in a query's list of candidates.
pub(super) const LIST_KEYS_MIN: usize = 2048;
pub(super) const LIST_KEYS_MAX: usize = 16384;
/// Maximum bytes of all lists; more queries are searched in turns.
const LISTS_BYTES_MAX: usize = 256 << 20;
const MEASURE_THREADS: usize = 256;
const PACK_THREADS: usize = 256;
const SELECT_THREADS: usize = 256;
/// Minimum spare keys: those that the kernel ranks by counting, and room for the result; see
/// `RANKED_MAX` in the kernels.
const SELECT_SPARE_MIN: usize = 256;

/// Whether this path is faster, and the device supports it.
pub(super) fn takes(task: &SearchTask, matrix_tiles: bool) -> bool {
    let long = task.k >= LONG_K_MIN && task.row_count >= LONG_ROWS_MIN;
    (task.query_count >= QUERIES_MIN || long)
        && matrix_tiles
        && task.query_type == task.row_type
        && (1..=ROWS_MAX).contains(&task.row_count)
        && task.dim > 0
}

pub(super) fn run(task: SearchTask, context: &mut Context) -> Result<()> {
    let task = aligned(task, context)?;
    let capacity = list_keys(&task, context);
    let turn = (LISTS_BYTES_MAX / (capacity * 8)).next_multiple_of(128);
    for begin in (0..task.query_count).step_by(turn) {
        let query_bytes = task.dim * task.query_type.size_bytes();
        let part = SearchTask {
            queries: task.queries + begin * query_bytes,
            query_count: turn.min(task.query_count - begin),
            ids: task.ids + begin * task.places * 4,
            scores: task.scores + begin * task.places * 4,
            ..task
        };
        QueryBatch::new(&part, capacity, context)?.run(context)?;
    }
    Ok(())
}

/// Whether the matrix unit's sums are the scores themselves.
fn is_exact(task: &SearchTask) -> bool {
    match task.row_type {
        DType::I8 => true,
        DType::F16 | DType::BF16 => task.metric != Metric::Euclidean,
        _ => false,
    }
}

fn list_keys(task: &SearchTask, context: &Context) -> usize {
    let room = context.driver.properties().shared_bytes_max as usize / 8 - spare_keys(task);
    (task.k * 8).next_power_of_two().clamp(LIST_KEYS_MIN, 1 << room.min(LIST_KEYS_MAX).ilog2())
}

/// Keys of block memory reserved for the result.
fn spare_keys(task: &SearchTask) -> usize {
    task.k.next_power_of_two().max(SELECT_SPARE_MIN)
}

/// The same task with rows and queries aligned to 16 bytes, copied with zero padding if they are
/// not.
fn aligned(task: SearchTask, context: &mut Context) -> Result<SearchTask> {
    let wide = WIDE_BYTES / task.row_type.size_bytes();
    let dim = task.dim.next_multiple_of(wide);
    let fits = |address: Address| dim == task.dim && address.is_multiple_of(WIDE_BYTES as u64);
    let rows = if fits(task.rows) { task.rows } else { pack(&task, task.rows, task.row_count, dim, context)? };
    let queries =
        if fits(task.queries) { task.queries } else { pack(&task, task.queries, task.query_count, dim, context)? };
    Ok(SearchTask { rows, queries, dim, ..task })
}

fn pack(task: &SearchTask, source: Address, rows: usize, padded: usize, context: &mut Context) -> Result<Address> {
    let word = match task.row_type.size_bytes() {
        1 => "u8",
        2 => "u16",
        _ => "u32",
    };
    let target = context.scratch(rows * padded * task.row_type.size_bytes())?;
    let kernel = Kernel::new(SEARCH_PACK, "pack_rows").word("T", word).integer("THREADS", PACK_THREADS);
    let mut arguments = Arguments::new().address(target).address(source).u64(rows as u64).size(task.dim).size(padded);
    let launch = context.blocks(rows * context.warp_lanes(), PACK_THREADS, 1);
    context.launch(&kernel, launch, &mut arguments)?;
    Ok(target)
}

/// The output of a pass. The numbers are those of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Writes {
    /// Candidates.
    List = 0,
    /// Every score.
    All = 1,
    /// The nearest score of each group of rows.
    Nearest = 2,
}

/// One turn: as many queries as there is memory for lists.
struct QueryBatch<'a> {
    task: &'a SearchTask,
    exact: bool,
    capacity: usize,
    lists: Address,
    counts: Address,
    thresholds: Address,
    chosen: Address,
    /// The sums of the queries' squares, if they are needed.
    squares: Address,
    shape: Shape,
}

impl<'a> QueryBatch<'a> {
    fn new(task: &'a SearchTask, capacity: usize, context: &mut Context) -> Result<QueryBatch<'a>> {
        let (queries, exact) = (task.query_count, is_exact(task));
        let plain = exact && task.metric == Metric::Dot;
        Ok(QueryBatch {
            task,
            exact,
            capacity,
            lists: context.scratch(queries * capacity * 8)?,
            counts: context.scratch(queries * 4)?,
            thresholds: context.scratch(queries * 8)?,
            chosen: context.scratch((queries + 1) * 4)?,
            squares: if plain { Address::NULL } else { context.scratch(queries * 4)? },
            shape: Shape::new(task, context),
        })
    }

    fn run(&self, context: &mut Context) -> Result<()> {
        if !self.squares.is_null() {
            self.measure(context)?;
        }
        let task = self.task;
        let schedule = Schedule::new(task.row_count, task.k, &self.shape, self.capacity, self.exact);
        let (writes, given) =
            (if schedule.all { Writes::All } else { Writes::Nearest }, schedule.sample.tiles * schedule.tile_keys);
        self.score(schedule.sample, writes, schedule.shared_by(&self.shape), context)?;
        if schedule.lists.is_empty() {
            return self.select(given, After::Last, context);
        }
        self.select(given, After::Sample, context)?;
        for (index, pass) in schedule.lists.iter().enumerate() {
            self.score(*pass, Writes::List, 1, context)?;
            self.select(0, if index + 1 == schedule.lists.len() { After::Last } else { After::Kept }, context)?;
        }
        few::run_chosen(task, self.chosen, context)
    }

    fn parameters(&self, kernel: Kernel) -> Kernel {
        self.task.with_parameters(kernel).flag("EXACT", self.exact)
    }

    fn measure(&self, context: &mut Context) -> Result<()> {
        let task = self.task;
        let kernel = task.with_parameters(Kernel::new(SEARCH_MEASURE, "measure")).integer("THREADS", MEASURE_THREADS);
        let mut arguments =
            Arguments::new().address(task.queries).address(self.squares).size(task.query_count).size(task.dim);
        let blocks = task.query_count.div_ceil(MEASURE_THREADS / context.warp_lanes()).min(1024);
        context.launch(&kernel, Launch::new(blocks, MEASURE_THREADS), &mut arguments)
    }

    fn score(&self, pass: ScorePass, writes: Writes, shared_by: usize, context: &mut Context) -> Result<()> {
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
            .size(task.row_count)
            .size(task.query_count)
            .size(task.dim)
            .size(self.capacity)
            .size(pass.tiles)
            .size(pass.step)
            .size(pass.left_out);
        let query_tiles = task.query_count.div_ceil(shape.tile_queries);
        let blocks = context.multiprocessors() * shape.blocks;
        let parts = (blocks / query_tiles).clamp(1, pass.tiles);
        let launch = Launch::grid([query_tiles, parts, 1], shape.threads());
        context.launch(&kernel, launch.shared(shape.shared_bytes), &mut arguments)
    }

    fn select(&self, given: usize, after: After, context: &mut Context) -> Result<()> {
        let task = self.task;
        let kernel = Kernel::new(SEARCH_SELECT, "search_select")
            .integer("METRIC", task.metric_number())
            .integer("THREADS", SELECT_THREADS);
        let (ids, scores) = if after == After::Last { (task.ids, task.scores) } else { (Address::NULL, Address::NULL) };
        let mut arguments = Arguments::new()
            .address(self.lists)
            .address(self.counts)
            .address(self.thresholds)
            .address(self.chosen)
            .address(ids)
            .address(scores)
            .size(given)
            .size(self.capacity)
            .size(task.k)
            .size(task.places)
            .size(spare_keys(task))
            .u32(u32::from(after == After::Kept));
        let shared_bytes = (self.capacity + spare_keys(task)) * 8;
        let launch = Launch::new(task.query_count, SELECT_THREADS).shared(shared_bytes);
        context.launch(&kernel, launch, &mut arguments)
    }
}

/// The use of the lists after a pass.
#[derive(Clone, Copy, PartialEq, Eq)]
enum After {
    /// They give a threshold; the next pass finds their rows again.
    Sample,
    /// They give a threshold, and their nearest rows are kept.
    Kept,
    /// They give the result.
    Last,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_devices_and_mixed_types_take_the_fused_pass() {
        let task = SearchTask {
            row_type: DType::F16,
            query_type: DType::F16,
            metric: Metric::Dot,
            rows: Address::NULL,
            queries: Address::NULL,
            filter: Address::NULL,
            lengths: Address::NULL,
            ids: Address::NULL,
            scores: Address::NULL,
            row_count: 1000,
            dim: 16,
            query_count: 100,
            k: 10,
            places: 10,
            warp_lanes: 32,
            shared_bytes_max: 64 << 10,
        };
        assert!(takes(&task, true) && !takes(&task, false));
        assert!(!takes(&SearchTask { query_type: DType::F32, ..task }, true));
        assert!(!takes(&SearchTask { query_count: 2, ..task }, true));
    }
}
