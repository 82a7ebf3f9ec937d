//! Hits of equal score, oldest first.
//!
//! An op returns rows of equal score in stored order. Stored order is age order, with two
//! exceptions: between the lists of an index, and if scores that differed became equal when they
//! were multiplied. A piece of such rows returns one candidate more than is wanted: no omitted row
//! is nearer than that one. If the last wanted candidate has its score, omitted rows of that score
//! may be older. The query is then searched again with more candidates.

use std::cmp::Ordering;

use panoply_core::op::compute::Metric;

use super::SearchOptions;
use super::run::{Batch, Candidate};
use crate::error::Result;

/// Growth factor of the number of candidates while rows of equal score are omitted.
const TIES_GROWTH: usize = 8;

impl Batch<'_> {
    /// Records the last score of a piece that was cut. It belongs to a candidate beyond the wanted
    /// ones.
    pub(super) fn note_cut(&mut self, query: usize, score: f32) {
        let metric = self.shared.schema.metric;
        let nearest = |earlier: f32| if by_score(metric, earlier, score).is_le() { earlier } else { score };
        self.cuts[query] = Some(self.cuts[query].map_or(score, nearest));
    }

    /// Searches again for the queries whose last wanted candidate has the score of a cut.
    pub(super) fn settle_ties(&mut self, options: &SearchOptions) -> Result<()> {
        let last = |batch: &Batch<'_>, place: usize, wanted: usize| {
            let last = wanted.checked_sub(1).and_then(|last| batch.found[place].get(last));
            last.zip(batch.cuts[place]).is_some_and(|(last, cut)| last.score == cut)
        };
        let (dimension, mut candidates) = (self.shared.schema.dimension, self.wanted);
        let mut tied: Vec<usize> = (0..self.count).filter(|query| last(self, *query, self.wanted)).collect();
        while !tied.is_empty() {
            candidates = candidates.saturating_mul(TIES_GROWTH);
            let own = |query: &usize| &self.queries[query * dimension..][..dimension];
            let queries: Vec<f32> = tied.iter().flat_map(own).copied().collect();
            let mut again = Batch::new(self.shared, self.snapshot, &queries, tied.len(), candidates);
            again.run_pieces(options)?;
            let still_tied: Vec<bool> = (0..tied.len()).map(|place| last(&again, place, self.wanted)).collect();
            self.report.ops += again.report.ops;
            self.report.scanned_rows += again.report.scanned_rows;
            for (query, mut found) in tied.iter().zip(again.found) {
                found.truncate(self.wanted);
                self.found[*query] = found;
            }
            let mut still_tied = still_tied.into_iter();
            tied.retain(|_| still_tied.next() == Some(true));
        }
        Ok(())
    }
}

/// Sorts candidates, nearest first and by age at equal score, and keeps `k` of them.
pub(crate) fn keep_nearest(metric: Metric, k: usize, found: &mut Vec<Candidate>) {
    let order = |a: &Candidate, b: &Candidate| by_rank(metric, a, b);
    if found.len() > k && k > 0 {
        found.select_nth_unstable_by(k - 1, order);
    }
    found.truncate(k);
    found.sort_unstable_by(order);
}

/// A candidate in a max-heap, whose top is the nearest, and the oldest at equal score.
pub(super) struct RankedCandidate {
    pub(super) candidate: Candidate,
    pub(super) metric: Metric,
}

impl Ord for RankedCandidate {
    fn cmp(&self, other: &RankedCandidate) -> Ordering {
        by_rank(self.metric, &other.candidate, &self.candidate)
    }
}

impl PartialOrd for RankedCandidate {
    fn partial_cmp(&self, other: &RankedCandidate) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for RankedCandidate {
    fn eq(&self, other: &RankedCandidate) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for RankedCandidate {}

fn by_rank(metric: Metric, a: &Candidate, b: &Candidate) -> Ordering {
    by_score(metric, a.score, b.score).then((a.segment, a.age, a.row).cmp(&(b.segment, b.age, b.row)))
}

/// Orders the nearer score first, and NaN last. Zero and minus zero are equal.
fn by_score(metric: Metric, a: f32, b: f32) -> Ordering {
    match (a.is_nan(), b.is_nan()) {
        (false, false) if a == b => Ordering::Equal,
        (false, false) if metric.smaller_is_nearer() => a.total_cmp(&b),
        (false, false) => b.total_cmp(&a),
        (a_is_nan, b_is_nan) => a_is_nan.cmp(&b_is_nan),
    }
}
