//! Exact nearest neighbours: scoring and selection in one pass, so that the scores of all rows are
//! never stored.
//!
//! * `sink`: the metrics, and the k best of each query.
//! * `scan`: the split of rows among threads, and the merging of results.
//! * `float` and `int8`: preparation of queries and rows for the kernels.
//! * `tile` (many queries) and `row_scan` (few): the kernels, written in the vector operations of
//!   `lanes`.
//!
//! Scores are computed in `f32` (rows and queries of smaller types are widened without loss),
//! except for `i8` rows with `i8` queries, whose sums are exact integers. Distances are sums of
//! squared differences, never `|r|² - 2r·q + |q|²`, so close vectors far from the origin keep their
//! precision.

mod float;
mod int8;
mod lanes;
mod row_scan;
mod scan;
mod sink;
mod tile;

use crate::simd::Simd;
use crate::team::Team;
use float::FloatScorer;
use int8::Int8Scorer;
use lanes::RowElement;
use panoply_core::op::compute::Metric;
use panoply_core::{bf16, f16};
use scan::Scorer;
#[doc(hidden)]
pub use scan::{PassingRows, Scan};
#[doc(hidden)]
pub use sink::MetricOrder;
use std::sync::{Mutex, PoisonError};

/// Maximum number of queries that are scanned together. More gain nothing.
const GROUP_QUERIES_MAX: usize = 256;
/// Memory for the candidates of one group, in keys.
const GROUP_KEYS_MAX: usize = 1 << 24;
/// Maximum elements of rows that stay in a core's own cache. If there are then more queries than
/// one group, threads take groups instead of rows.
const RESIDENT_ELEMENTS_MAX: usize = 1 << 18;

/// Contiguous vectors of one element type.
#[derive(Clone, Copy, Debug)]
pub enum Vectors<'a> {
    /// Single precision.
    F32(&'a [f32]),
    /// Half precision.
    F16(&'a [f16]),
    /// The upper halves of single precision numbers (bfloat16).
    BF16(&'a [bf16]),
    /// 8-bit integers.
    I8(&'a [i8]),
}

impl Vectors<'_> {
    fn len(self) -> usize {
        match self {
            Vectors::F32(values) => values.len(),
            Vectors::F16(values) => values.len(),
            Vectors::BF16(values) => values.len(),
            Vectors::I8(values) => values.len(),
        }
    }
}

/// A search for the `k` nearest rows of each query.
#[derive(Clone, Copy, Debug)]
pub struct SearchInput<'a> {
    /// `row_count` rows of `dim` elements. At most `u32::MAX` rows.
    pub rows: Vectors<'a>,
    /// `query_count` queries of `dim` elements.
    pub queries: Vectors<'a>,
    /// Elements of a vector.
    pub dim: usize,
    /// Number of rows.
    pub row_count: usize,
    /// Number of queries.
    pub query_count: usize,
    /// The metric of nearness.
    pub metric: Metric,
    /// Number of neighbours for each query.
    pub k: usize,
    /// Bit `r % 32` of word `r / 32` is set if row `r` may be returned. Without a filter every row
    /// may be returned.
    pub filter: Option<&'a [u32]>,
    /// The length of each row; if given, the cosine uses it instead of computing it.
    pub row_norms: Option<&'a [f32]>,
}

/// Writes the ids and scores of each query's neighbours, nearest first, to `ids` and `scores`, `k`
/// for each query.
///
/// Ties go to the smaller id; a NaN score comes after every number. If fewer than `k` rows qualify,
/// the remaining entries hold `u32::MAX` and [`Metric::missing_score`].
///
/// # Panics
/// If a slice does not have the length that the counts require.
pub fn search(team: &Team, simd: Simd, input: &SearchInput<'_>, ids: &mut [u32], scores: &mut [f32]) {
    assert_eq!(input.rows.len(), input.row_count * input.dim, "rows");
    assert_eq!(input.queries.len(), input.query_count * input.dim, "queries");
    assert_eq!(ids.len(), input.query_count * input.k, "ids");
    assert_eq!(scores.len(), ids.len(), "scores");
    assert!(u32::try_from(input.row_count).is_ok(), "more rows than ids");
    assert!(input.filter.is_none_or(|words| words.len() >= input.row_count.div_ceil(32)), "filter");
    assert!(input.row_norms.is_none_or(|norms| norms.len() >= input.row_count), "row norms");
    let simd = simd.min(Simd::detect());
    match (input.rows, input.queries) {
        (Vectors::I8(rows), Vectors::I8(queries)) if input.dim <= int8::DIM_MAX => {
            search_groups(team, input, ids, scores, |first, count| {
                let queries = &queries[first * input.dim..][..count * input.dim];
                Int8Scorer::new(simd, input.metric, rows, queries, input.dim, count, input.row_norms)
            });
        }
        (Vectors::F32(rows), _) => search_float(team, simd, input, rows, ids, scores),
        (Vectors::F16(rows), _) => search_float(team, simd, input, rows, ids, scores),
        (Vectors::BF16(rows), _) => search_float(team, simd, input, rows, ids, scores),
        (Vectors::I8(rows), _) => search_float(team, simd, input, rows, ids, scores),
    }
}

fn search_float<T: RowElement>(
    team: &Team,
    simd: Simd,
    input: &SearchInput<'_>,
    rows: &[T],
    ids: &mut [u32],
    scores: &mut [f32],
) {
    let SearchInput { metric, dim, row_norms, .. } = *input;
    search_groups(team, input, ids, scores, |first, count| {
        let range = first * dim..(first + count) * dim;
        match input.queries {
            Vectors::F32(queries) => FloatScorer::new(simd, metric, rows, &queries[range], dim, count, row_norms),
            Vectors::F16(queries) => FloatScorer::new(simd, metric, rows, &queries[range], dim, count, row_norms),
            Vectors::BF16(queries) => FloatScorer::new(simd, metric, rows, &queries[range], dim, count, row_norms),
            Vectors::I8(queries) => FloatScorer::new(simd, metric, rows, &queries[range], dim, count, row_norms),
        }
    });
}

/// Splits the queries into groups. Threads share the work by rows, or by groups if there are few
/// rows.
fn search_groups<S: Scorer>(
    team: &Team,
    input: &SearchInput<'_>,
    ids: &mut [u32],
    scores: &mut [f32],
    scorer: impl Fn(usize, usize) -> S + Sync,
) {
    let SearchInput { metric, k, row_count, query_count, dim, filter, .. } = *input;
    if ids.is_empty() {
        return;
    }
    let scan = Scan::new(metric, k, row_count, dim, filter);
    let keys = scan.k.max(1) * 2 * team.threads();
    let group = (GROUP_KEYS_MAX / keys).clamp(1, GROUP_QUERIES_MAX).min(query_count);
    let places = ids.chunks_mut(group * k).zip(scores.chunks_mut(group * k)).enumerate();
    let by_groups = row_count * dim <= RESIDENT_ELEMENTS_MAX && query_count.div_ceil(group) >= team.threads();
    if !by_groups {
        for (index, (ids, scores)) in places {
            let count = ids.len() / k;
            scan.run(Some(team), &scorer(index * group, count), count, ids, scores);
        }
        return;
    }
    let jobs: Vec<_> = places.map(Mutex::new).collect();
    team.run(jobs.len(), &|job| {
        let mut job = jobs[job].lock().unwrap_or_else(PoisonError::into_inner);
        let (index, (ids, scores)) = &mut *job;
        let count = ids.len() / k;
        scan.run(None, &scorer(*index * group, count), count, ids, scores);
    });
}
