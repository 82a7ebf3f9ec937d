//! Candidates from eight-bit copies of the rows, ranked by the stored rows.
//!
//! A memory-bound search reads a copy ([`super::codes`]) of a quarter of the size in a quarter of
//! the time.

use std::collections::BinaryHeap;

use panoply_core::op::compute::Metric;

use super::SearchOptions;
use super::run::{Batch, Candidate};
use super::ties::RankedCandidate;
use crate::error::Result;

impl Batch<'_> {
    /// Finds `times` as many candidates as wanted, and keeps the best by their stored rows.
    pub(super) fn run_reranked(&mut self, options: &SearchOptions, times: usize) -> Result<()> {
        self.coarse = true;
        self.wanted = self.k.saturating_mul(times.max(1)).min(self.snapshot.len());
        self.run_once(options)?;
        let schema = &self.shared.schema;
        let lines = self.found.iter_mut().zip(self.queries.chunks_exact(schema.dimension));
        for (found, query) in lines {
            for candidate in found.iter_mut() {
                let segment = &self.snapshot.segments[candidate.segment as usize];
                candidate.score = exact_score(schema.metric, query, &segment.vector(candidate.row));
                candidate.age = segment.age_of(candidate.row);
            }
            *found = by_pages(schema.metric, std::mem::take(found), self.k, options, times.max(1));
        }
        Ok(())
    }
}

/// The first `k` candidates, page by page. The candidates come in the order of the eight-bit
/// copies. A page that ends at hit `e` takes the best of the first `times * e` candidates, without
/// the hits of earlier pages. Therefore the content of a page does not depend on whether later
/// pages are requested, and each hit is on exactly one page.
fn by_pages(
    metric: Metric,
    candidates: Vec<Candidate>,
    k: usize,
    options: &SearchOptions,
    times: usize,
) -> Vec<Candidate> {
    let mut candidates = candidates.into_iter().map(|candidate| RankedCandidate { candidate, metric });
    let (mut waiting, mut hits) = (BinaryHeap::new(), Vec::new());
    // If the offset is not a multiple of `options.k`, the first page is shorter.
    let mut end = match options.offset % options.k.max(1) {
        0 => options.k,
        first => first,
    };
    while hits.len() < k {
        let (from, end_here) = (hits.len(), end.min(k));
        waiting.extend(candidates.by_ref().take((end_here - from).saturating_mul(times)));
        hits.extend(std::iter::from_fn(|| waiting.pop()).take(end_here - from).map(|best| best.candidate));
        if hits.len() < end_here {
            break;
        }
        end = end.saturating_add(options.k.max(1));
    }
    hits
}

/// The score of one row, from sums in `f64`. The score is always finite.
pub(crate) fn exact_score(metric: Metric, query: &[f32], row: &[f32]) -> f32 {
    let sum = |term: fn(f64, f64) -> f64| -> f64 {
        query.iter().zip(row).map(|(query, row)| term(f64::from(*query), f64::from(*row))).sum()
    };
    let dot = |query: f64, row: f64| query * row;
    let score = match metric {
        Metric::Dot => sum(dot),
        Metric::Cosine => {
            let lengths = sum(|query, _| query * query).sqrt() * sum(|_, row| row * row).sqrt();
            if lengths == 0.0 { 0.0 } else { sum(dot) / lengths }
        }
        Metric::Euclidean => sum(|query, row| (query - row) * (query - row)).sqrt(),
    };
    score.clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}
