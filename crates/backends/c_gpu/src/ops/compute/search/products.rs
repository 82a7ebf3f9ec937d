//! Search with many queries on matrix units that lack the features that `many` needs: all scores
//! are written out, and the best of each query are selected. Only for inner products of 16-bit
//! floats, where the units' sums are the scores.

use panoply_core::op::compute::Metric;
use panoply_core::{DType, Result};

use super::{SearchTask, WIDE_BYTES};
use crate::context::Context;
use crate::driver::{Address, GRID_YZ_MAX};
use crate::ops::compute::matmul::units::{Vectors, products_of};
use crate::ops::compute::topk::Lanes;

/// Below this many queries or rows the fused pass, which writes no scores, is faster.
const QUERIES_MIN: usize = 48;
const ROWS_MIN: usize = 4096;
/// The largest k for which the selection keeps its list in block memory.
const K_MAX: usize = 256;
/// Maximum bytes of scores, and the divisor of free memory that limits them; more queries are
/// searched in turns.
const SCORES_BYTES_MAX: usize = 1 << 30;
const MEMORY_SHARE: u64 = 8;

/// Number of queries per turn; `None` if this path is slower, or the device does not support it.
pub(super) fn turn(task: &SearchTask, context: &Context) -> Option<usize> {
    let properties = context.driver.properties();
    let row_bytes = task.dim * task.row_type.size_bytes();
    let is_wide = |address: Address| address.is_multiple_of(WIDE_BYTES as u64);
    let takes = properties.tiles_of_16
        && task.metric == Metric::Dot
        && task.filter == Address::NULL
        && task.row_type == task.query_type
        && matches!(task.row_type, DType::F16 | DType::BF16)
        && task.query_count >= QUERIES_MIN
        && (ROWS_MIN..=i32::MAX as usize).contains(&task.row_count)
        && task.places == task.k
        && task.k <= K_MAX
        && task.dim > 0
        && row_bytes.is_multiple_of(WIDE_BYTES)
        && is_wide(task.rows)
        && is_wide(task.queries);
    if !takes {
        return None;
    }
    let (free, _) = context.driver.memory_info().ok()?;
    let room = SCORES_BYTES_MAX.min(usize::try_from(free / MEMORY_SHARE).unwrap_or(usize::MAX));
    let turn = (room / (task.row_count * 4)).min(task.query_count).min(GRID_YZ_MAX);
    (turn >= QUERIES_MIN).then_some(turn)
}

pub(super) fn run(task: &SearchTask, turn: usize, context: &mut Context) -> Result<()> {
    let scores = context.scratch(turn * task.row_count * 4)?;
    for begin in (0..task.query_count).step_by(turn) {
        let count = turn.min(task.query_count - begin);
        let queries = task.queries + begin * task.dim * task.query_type.size_bytes();
        let vectors =
            Vectors { dtype: task.row_type, a: queries, b: task.rows, counts: [count, task.row_count], dim: task.dim };
        products_of(&vectors, scores, context)?;
        let lanes = Lanes {
            dtype: DType::F32,
            largest: true,
            input: scores,
            values: task.scores + begin * task.places * 4,
            indices: task.ids + begin * task.places * 4,
            count,
            length: task.row_count,
            inner: 1,
            k: task.k,
            nan_last: true,
        };
        lanes.choose(context)?;
    }
    Ok(())
}
