//! Conversion of scanned values to kept neighbours: the metric's order, and the k best so far for
//! each query.
//!
//! Kernels compute a *closeness*: larger is nearer for every metric (the squared distance is
//! negated). They compare it with the query's bound in a vector register and offer only values that
//! exceed the bound. A bound of NaN accepts everything: this is the initial bound, and the bound
//! while NaN is among the query's k best.

use crate::scratch;
use crate::topk::keep::SmallestKeys;
use crate::topk::order::{Rank, RankedElement, f32_of_rank};

pub(super) use panoply_core::op::compute::Metric;

/// The order of a metric's scores and closeness.
pub trait MetricOrder: Sized {
    /// The score that stands for a closeness.
    fn score(self, closeness: f32) -> f32;
    /// The rank of a score: the best score has the lowest rank, and NaN the highest.
    fn rank(self, score: f32) -> u32;
    /// The score of a rank.
    fn score_of_rank(self, rank: u32) -> f32;
    /// A bound: a closeness at or below it cannot give a better score than `worst`.
    fn bound(self, worst: f32) -> f32;
}

impl MetricOrder for Metric {
    fn score(self, closeness: f32) -> f32 {
        if self == Metric::Euclidean { (-closeness).sqrt() } else { closeness }
    }

    fn rank(self, score: f32) -> u32 {
        match self {
            Metric::Euclidean => score.rank(),
            Metric::Dot | Metric::Cosine if score.is_nan() => u32::MAX,
            Metric::Dot | Metric::Cosine => score.rank().reversed(),
        }
    }

    fn score_of_rank(self, rank: u32) -> f32 {
        match self {
            Metric::Dot | Metric::Cosine if rank != u32::MAX => f32_of_rank(rank.reversed()),
            _ => f32_of_rank(rank),
        }
    }

    fn bound(self, worst: f32) -> f32 {
        // Rounding the square up keeps every distance whose root may still round below `worst`.
        if self == Metric::Euclidean { -(worst * worst).next_up() } else { worst }
    }
}

/// The ids of the rows of a block: consecutive, or listed if a filter leaves gaps. Always
/// ascending.
#[derive(Clone, Copy)]
pub(super) enum RowIds<'a> {
    From(u32),
    List(&'a [u32]),
}

impl RowIds<'_> {
    #[inline(always)]
    pub(super) fn get(self, index: usize) -> u32 {
        match self {
            RowIds::From(first) => first + index as u32,
            RowIds::List(ids) => ids[index],
        }
    }
}

impl<'a> RowIds<'a> {
    /// The ids from index `first` on.
    pub(super) fn from(self, first: usize) -> RowIds<'a> {
        match self {
            RowIds::From(id) => RowIds::From(id + first as u32),
            RowIds::List(ids) => RowIds::List(&ids[first..]),
        }
    }
}

/// The k best rows so far of each query of a group, as one worker has found them.
pub(super) struct Sink {
    metric: Metric,
    keepers: Vec<SmallestKeys<u64>>,
    bounds: Vec<f32>,
}

impl Sink {
    /// Creates a sink for `queries` queries. Bounds are padded to `padded` lanes; the padding
    /// accepts no number.
    pub(super) fn new(metric: Metric, k: usize, queries: usize, padded: usize, rows: usize) -> Sink {
        let mut bounds = scratch::filled(f32::INFINITY, padded.max(queries));
        bounds[..queries].fill(f32::NAN);
        Sink { metric, keepers: (0..queries).map(|_| SmallestKeys::new(k, rows)).collect(), bounds }
    }

    /// The bound of each query. A closeness needs to be offered only if it exceeds the bound or
    /// either is NaN.
    #[inline(always)]
    pub(super) fn bounds(&self) -> &[f32] {
        &self.bounds
    }

    /// Offers a row. Rows must be offered in ascending order of id, because a bound rejects later
    /// rows of equal score.
    pub(super) fn offer(&mut self, query: usize, row: u32, closeness: f32) {
        let score = self.metric.score(closeness);
        if self.keepers[query].offer(self.metric.rank(score).key(row)) {
            let worst = self.metric.score_of_rank(u32::of_key(self.keepers[query].bound()));
            self.bounds[query] = self.metric.bound(worst);
        }
    }

    /// Number of queries of the group.
    pub(super) fn queries(&self) -> usize {
        self.keepers.len()
    }

    /// The list of each query, for merging and writing.
    pub(super) fn lists(&mut self) -> impl Iterator<Item = List<'_>> {
        let metric = self.metric;
        self.keepers.iter_mut().map(move |keeper| List { metric, keeper })
    }
}

/// The k best rows of one query.
pub(super) struct List<'a> {
    metric: Metric,
    keeper: &'a mut SmallestKeys<u64>,
}

impl List<'_> {
    /// Adds the rows that another worker has kept for `query`.
    pub(super) fn absorb(&mut self, other: &Sink, query: usize) {
        self.keeper.absorb(&other.keepers[query]);
    }

    /// Writes the neighbours, nearest first, and fills the remaining entries.
    pub(super) fn write(&mut self, ids: &mut [u32], scores: &mut [f32]) {
        let keys = self.keeper.finish();
        for ((id, score), key) in ids.iter_mut().zip(scores.iter_mut()).zip(keys) {
            *id = u32::index_of_key(*key);
            *score = self.metric.score_of_rank(u32::of_key(*key));
        }
        let found = keys.len().min(ids.len());
        ids[found..].fill(u32::MAX);
        scores[found..].fill(self.metric.missing_score());
    }
}
