//! Search: the nearest rows of each query, in passes over the rows.
//!
//! * `many`: tiles of queries and rows on the matrix unit. A threshold from a sample of the rows
//!   keeps all but a few scores in registers.
//! * `products`: for devices whose matrix units only multiply whole tiles. All scores are written
//!   out, and the nearest are selected from them.
//! * `few`: one pass that scores rows with up to sixteen queries at a time and keeps the nearest in
//!   block memory. It supports every element type and any order of rows, and is the fallback of
//!   `many`.
//! * `heaps`: if threads cannot see each other's values, each thread keeps the nearest of a part of
//!   the rows.

use panoply_core::op::compute::{Metric, Search};
use panoply_core::{DType, Result, Support, Value};
use panoply_kernels::c::Kernel;

use crate::context::Context;
use crate::driver::Address;

mod few;
mod heaps;
mod many;
mod products;
mod schedule;
mod shape;

/// Maximum number of neighbours of one query.
const K_MAX: usize = 2048;
/// Maximum number of dimensions: a query's values must fit block memory.
const DIMENSIONS_MAX: usize = 16384;
/// Bytes per wide load.
const WIDE_BYTES: usize = 16;

pub(crate) fn supports(op: &Search) -> Support {
    let (rows, dim) = (op.rows.shape()[0], op.rows.shape()[1]);
    if op.k.min(rows) > K_MAX {
        return Support::No(format!("k is at most {K_MAX}"));
    }
    if dim > DIMENSIONS_MAX {
        return Support::No(format!("vectors have at most {DIMENSIONS_MAX} dimensions"));
    }
    Support::Yes
}

pub(crate) fn run(op: &Search, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let ids = context.output(DType::U32, shape)?;
    let scores = context.output(DType::F32, shape)?;
    if shape.elements() > 0 {
        let task = SearchTask::new(op, context, ids.address, scores.address)?;
        if many::takes(&task, context.driver.properties().matrix_tiles) {
            many::run(task, context)?;
        } else if let Some(turn) = products::turn(&task, context) {
            products::run(&task, turn, context)?;
        } else if task.warp_lanes == 1 || !few::fits(&task) {
            heaps::run(&task, context)?;
        } else {
            few::run(&task, context)?;
        }
    }
    Ok(Value::Pair(ids.into_tensor(), scores.into_tensor()))
}

/// A search whose operands are all on the device.
#[derive(Clone, Copy)]
struct SearchTask {
    row_type: DType,
    query_type: DType,
    metric: Metric,
    rows: Address,
    queries: Address,
    /// The filter's words, if there is one.
    filter: Address,
    /// The rows' lengths, if they are given.
    lengths: Address,
    ids: Address,
    scores: Address,
    row_count: usize,
    dim: usize,
    query_count: usize,
    /// Maximum number of neighbours that exist.
    k: usize,
    /// Number of results per query in the outputs.
    places: usize,
    /// Lanes per warp, and the maximum block memory of a launch.
    warp_lanes: usize,
    shared_bytes_max: usize,
}

impl SearchTask {
    fn new(op: &Search, context: &mut Context, ids: Address, scores: Address) -> Result<SearchTask> {
        let (row_count, dim) = (op.rows.shape()[0], op.rows.shape()[1]);
        let norms = op.row_norms.as_ref().filter(|_| op.metric == Metric::Cosine);
        Ok(SearchTask {
            row_type: op.rows.dtype(),
            query_type: op.queries.dtype(),
            metric: op.metric,
            rows: context.input(&op.rows)?,
            queries: context.input(&op.queries)?,
            filter: op.filter.as_ref().map(|words| context.input(words)).transpose()?.unwrap_or_default(),
            lengths: norms.map(|norms| context.input(norms)).transpose()?.unwrap_or_default(),
            ids,
            scores,
            row_count,
            dim,
            query_count: op.queries.shape()[0],
            k: op.k.min(row_count).max(1),
            places: op.k,
            warp_lanes: context.warp_lanes(),
            shared_bytes_max: context.driver.properties().shared_bytes_max as usize,
        })
    }

    /// Elements per load: 16 bytes of them if all rows are aligned to 16 bytes, else one.
    fn piece(&self) -> usize {
        let row_bytes = self.dim * self.row_type.size_bytes();
        let wide = row_bytes.is_multiple_of(WIDE_BYTES) && self.rows.is_multiple_of(WIDE_BYTES as u64);
        if wide { WIDE_BYTES / self.row_type.size_bytes() } else { 1 }
    }

    /// Lanes that share a row. This determines the order of the sums, so every path calls this
    /// function.
    fn lanes(&self) -> usize {
        let lanes = match self.dim / self.piece() {
            0..=31 => 4,
            32..=127 => 8,
            _ => 16,
        };
        lanes.min(self.warp_lanes)
    }

    /// Adds the parameters that all search kernels have.
    fn with_parameters(&self, kernel: Kernel) -> Kernel {
        kernel
            .dtype("T", self.row_type)
            .dtype("Q", self.query_type)
            .integer("METRIC", self.metric_number())
            .integer("PIECE", self.piece())
            .integer("LANES", self.lanes())
    }

    /// The metric's number in the kernels.
    fn metric_number(&self) -> usize {
        match self.metric {
            Metric::Dot => 0,
            Metric::Cosine => 1,
            Metric::Euclidean => 2,
        }
    }
}
