//! The fused pass: each block scores a part of the rows and keeps the nearest in block memory; the
//! last block of each group of queries merges.

use panoply_core::Result;
use panoply_kernels::c::{Kernel, SEARCH_FEW};

use super::SearchTask;
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};

/// Bytes of block memory that a launch may use on any device without a loss of occupancy.
const SHARED_BYTES_MAX: usize = 72 << 10;
/// Block memory that the kernel declares itself.
const OWN_SHARED_BYTES: usize = 1024;
/// Number of the kernel's counters for groups of queries that several blocks share.
const TICKETS_MAX: usize = 4096;
/// Maximum number of keys that the last block of a group merges for one query.
const MERGED_KEYS_MAX: usize = 1 << 17;
/// Maximum scratch memory for the lists of all parts.
const PARTS_BYTES_MAX: usize = 256 << 20;
/// Minimum rounds of rows per block: below it, merging costs more than the division gains.
const PART_ROUNDS_MIN: usize = 2;

/// Queries that are searched again are few: each is split as if only one in this many queries were
/// searched again.
const CHOSEN_SHARE: usize = 16;

/// The build and launch parameters of the kernel.
struct FewQueriesKernel {
    queries: usize,
    rows: usize,
    steps: usize,
    threads: usize,
    blocks: usize,
    /// Keys per list in block memory, a power of two.
    capacity: usize,
    shared_bytes: usize,
    lanes: usize,
}

/// Whether the lists of one query fit block memory.
pub(super) fn fits(task: &SearchTask) -> bool {
    FewQueriesKernel::new(task, 1).shared_bytes + OWN_SHARED_BYTES <= task.shared_bytes_max
}

impl FewQueriesKernel {
    fn new(task: &SearchTask, queries: usize) -> FewQueriesKernel {
        let lanes = task.lanes();
        // A round of at most 128 rows keeps the first selection of the nearest cheap.
        let (rows, steps, threads, blocks) = match queries {
            1 => (2, 4, 256, 4),
            4 => (2, 4, 256, 2),
            _ => (4, 1, 256, 2),
        };
        let round = threads / lanes * rows;
        let capacity = (2 * task.k + 2 * round.max(64)).next_power_of_two();
        let shared_bytes = queries * (capacity * 8 + task.dim * 4);
        FewQueriesKernel { queries, rows, steps, threads, blocks, capacity, shared_bytes, lanes }
    }

    /// The form with the most queries at a time that fits.
    fn widest(task: &SearchTask) -> FewQueriesKernel {
        let wanted = match task.query_count {
            1 => 1,
            2..=4 => 4,
            _ => 16,
        };
        let form = FewQueriesKernel::new(task, wanted);
        let room = SHARED_BYTES_MAX.min(task.shared_bytes_max.saturating_sub(OWN_SHARED_BYTES));
        match (form.shared_bytes <= room, wanted) {
            (true, _) | (_, 1) => form,
            (false, 16) if FewQueriesKernel::new(task, 4).shared_bytes <= room => FewQueriesKernel::new(task, 4),
            _ => FewQueriesKernel::new(task, 1),
        }
    }

    fn kernel(&self, task: &SearchTask) -> Kernel {
        task.with_parameters(Kernel::new(SEARCH_FEW, "search_few"))
            .integer("QUERIES", self.queries)
            .integer("ROWS", self.rows)
            .integer("STEPS", self.steps)
            .integer("THREADS", self.threads)
            .integer("BLOCKS", self.blocks)
    }

    /// The number of parts into which the rows are split.
    fn parts(&self, task: &SearchTask, groups: usize, blocks: usize) -> usize {
        if groups > TICKETS_MAX {
            return 1;
        }
        let rounds = task.row_count.div_ceil(self.threads / self.lanes * self.rows);
        let by_memory = PARTS_BYTES_MAX / (groups * self.queries * task.k * 8).max(1);
        blocks.div_ceil(groups).min(rounds / PART_ROUNDS_MIN).min(MERGED_KEYS_MAX / task.k).min(by_memory).max(1)
    }
}

/// Runs the whole task in one launch.
pub(super) fn run(task: &SearchTask, context: &mut Context) -> Result<()> {
    let form = FewQueriesKernel::widest(task);
    let groups = task.query_count.div_ceil(form.queries);
    let blocks = context.multiprocessors() * form.blocks;
    let parts = form.parts(task, groups, blocks);
    launch(task, &form, Address::NULL, groups, parts, blocks.min(groups * parts), context)
}

/// Searches the queries whose numbers are in device memory, after their count. If the count is
/// zero, every block returns immediately.
pub(super) fn run_chosen(task: &SearchTask, chosen: Address, context: &mut Context) -> Result<()> {
    let form = FewQueriesKernel::new(task, 1);
    let blocks = context.multiprocessors() * form.blocks;
    let parts = form.parts(task, task.query_count, blocks * CHOSEN_SHARE);
    launch(task, &form, chosen, task.query_count, parts, blocks, context)
}

fn launch(
    task: &SearchTask,
    form: &FewQueriesKernel,
    chosen: Address,
    groups: usize,
    parts: usize,
    blocks: usize,
    context: &mut Context,
) -> Result<()> {
    let lists_bytes = if parts > 1 { groups * form.queries * task.k * parts * 8 } else { 0 };
    let lists = if lists_bytes > 0 { context.scratch(lists_bytes)? } else { Address::NULL };
    let tickets = if parts > 1 { context.counters()? } else { Address::NULL };
    let mut arguments = Arguments::new()
        .address(task.rows)
        .address(task.queries)
        .address(task.filter)
        .address(task.lengths)
        .address(chosen)
        .address(lists)
        .address(tickets)
        .address(task.ids)
        .address(task.scores)
        .size(task.row_count)
        .size(task.dim)
        .size(task.query_count)
        .size(task.k)
        .size(task.places)
        .size(form.capacity)
        .size(parts);
    let launch = Launch::new(blocks, form.threads).shared(form.shared_bytes);
    context.launch(&form.kernel(task), launch, &mut arguments)
}
