//! From a scanned value to a kept neighbour: the metric's order, and for each query the k best so far.
//!
//! Kernels compute a *closeness*: larger is nearer for every metric (the squared distance is negated). They compare it
//! with the query's bound in a vector register and offer only what exceeds it. A bound of NaN lets everything through,
//! which is how a query begins and how it stays while NaN is among its k best.

use crate::scratch;
use crate::topk::keep::Keeper;
use crate::topk::order::{Rank, Ranked, f32_of_rank};

pub(super) use panoply_core::op::compute::Metric;

/// How a metric's scores and closeness are ordered.
trait MetricOrder: Sized {
    /// The score that stands for a closeness.
    fn score(self, closeness: f32) -> f32;
    /// The order of scores, the best first and NaN last.
    fn rank(self, score: f32) -> u32;
    /// The score whose rank this is.
    fn score_of_rank(self, rank: u32) -> f32;
    /// A closeness at or below this cannot give a better score than `worst`.
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
        // Rounding the square up keeps every distance whose root might still round below `worst`.
        if self == Metric::Euclidean { -(worst * worst).next_up() } else { worst }
    }
}

/// The ids of the rows of a block: consecutive, or listed where a filter has left gaps. Always ascending.
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
    /// The ids from the one at `first` on.
    pub(super) fn from(self, first: usize) -> RowIds<'a> {
        match self {
            RowIds::From(id) => RowIds::From(id + first as u32),
            RowIds::List(ids) => RowIds::List(&ids[first..]),
        }
    }
}

/// The k best rows so far of each query of a group, as one worker has seen them.
pub(super) struct Sink {
    metric: Metric,
    keepers: Vec<Keeper<u64>>,
    bounds: Vec<f32>,
}

impl Sink {
    /// For `queries` queries; bounds are padded to `padded` lanes that let no number through.
    pub(super) fn new(metric: Metric, k: usize, queries: usize, padded: usize, rows: usize) -> Sink {
        let mut bounds = scratch::filled(f32::INFINITY, padded.max(queries));
        bounds[..queries].fill(f32::NAN);
        Sink { metric, keepers: (0..queries).map(|_| Keeper::new(k, rows)).collect(), bounds }
    }

    /// Each query's bound: only a closeness that exceeds it, or NaN, needs to be offered.
    #[inline(always)]
    pub(super) fn bounds(&self) -> &[f32] {
        &self.bounds
    }

    /// Takes in a row. Rows must come in ascending order of id, since a bound turns away later rows of equal score.
    pub(super) fn offer(&mut self, query: usize, row: u32, closeness: f32) {
        let score = self.metric.score(closeness);
        if self.keepers[query].offer(self.metric.rank(score).key(row)) {
            let worst = self.metric.score_of_rank(u32::of_key(self.keepers[query].bound()));
            self.bounds[query] = self.metric.bound(worst);
        }
    }

    /// How many queries the group has.
    pub(super) fn queries(&self) -> usize {
        self.keepers.len()
    }

    /// The list of each query, to be merged and written.
    pub(super) fn lists(&mut self) -> impl Iterator<Item = List<'_>> {
        let metric = self.metric;
        self.keepers.iter_mut().map(move |keeper| List { metric, keeper })
    }
}

/// The k best rows of one query.
pub(super) struct List<'a> {
    metric: Metric,
    keeper: &'a mut Keeper<u64>,
}

impl List<'_> {
    /// Takes in what another worker has kept for `query`.
    pub(super) fn absorb(&mut self, other: &Sink, query: usize) {
        self.keeper.absorb(&other.keepers[query]);
    }

    /// Writes the neighbours, the nearest first, and fills the places that are left.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nan_is_the_worst_for_every_metric() {
        for metric in [Metric::Dot, Metric::Cosine, Metric::Euclidean] {
            for score in [f32::NEG_INFINITY, -1.0, 0.0, 1.0, f32::INFINITY] {
                assert!(metric.rank(score) < metric.rank(f32::NAN));
                assert_eq!(metric.score_of_rank(metric.rank(score)), score);
            }
            assert!(metric.score_of_rank(metric.rank(f32::NAN)).is_nan());
        }
        assert!(Metric::Dot.rank(2.0) < Metric::Dot.rank(1.0));
        assert!(Metric::Euclidean.rank(1.0) < Metric::Euclidean.rank(2.0));
    }

    #[test]
    fn the_distance_bound_turns_away_nothing_that_could_win() {
        let mut worst = 1.0e-3_f32;
        while worst < 1.0e6 {
            let bound = Metric::Euclidean.bound(worst);
            let mut square = worst * worst;
            for _ in 0..64 {
                square = square.next_down();
                if square.sqrt() < worst {
                    assert!(-square > bound, "{square} is nearer than {worst}");
                }
            }
            worst *= 1.37;
        }
    }
}
