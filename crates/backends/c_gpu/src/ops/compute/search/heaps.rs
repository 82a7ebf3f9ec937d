//! Search if threads cannot see each other's values: each thread keeps the nearest of a part of the
//! rows for one query, and one thread per query merges the parts.

use panoply_core::Result;
use panoply_kernels::c::{Kernel, SEARCH_HEAPS};

use super::SearchTask;
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::Launch;

/// Threads per block.
const THREADS: usize = 16;
/// Threads per processor, and minimum rows per thread.
const THREADS_PER_PROCESSOR: usize = 64;
const PART_ROWS_MIN: usize = 256;

/// Runs the whole task in two launches.
pub(super) fn run(task: &SearchTask, context: &mut Context) -> Result<()> {
    let wanted = (context.multiprocessors() * THREADS_PER_PROCESSOR).div_ceil(task.query_count);
    let chunk = task.row_count.div_ceil(wanted).max(PART_ROWS_MIN).max(task.k);
    let parts = task.row_count.div_ceil(chunk).max(1);
    let heaps = context.scratch(task.query_count * parts * task.k * 8)?;
    let counts = context.scratch(task.query_count * parts * 4)?;
    let kernel = |entry| task.with_parameters(Kernel::new(SEARCH_HEAPS, entry)).integer("THREADS", THREADS);
    let launch = |threads: usize| Launch::new(threads.div_ceil(THREADS), THREADS);
    let mut scored = Arguments::new()
        .address(task.rows)
        .address(task.queries)
        .address(task.filter)
        .address(task.lengths)
        .address(heaps)
        .address(counts)
        .size(task.row_count)
        .size(task.dim)
        .size(task.query_count)
        .size(task.k)
        .size(parts)
        .size(chunk);
    context.launch(&kernel("search_parts"), launch(task.query_count * parts), &mut scored)?;
    let mut joined = Arguments::new()
        .address(heaps)
        .address(counts)
        .address(task.ids)
        .address(task.scores)
        .size(task.query_count)
        .size(task.k)
        .size(task.places)
        .size(parts);
    context.launch(&kernel("search_join"), launch(task.query_count), &mut joined)
}
