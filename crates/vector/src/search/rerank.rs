//! Candidates from eight-bit copies of the rows, ranked by the stored rows.
//!
//! A memory-bound search reads a copy of a quarter of the size in a quarter of the time. Each row
//! of the copy has its own scale; with euclidean the scale is a power of two, and rows are searched
//! by scale.

use std::collections::BinaryHeap;
use std::sync::{Arc, Mutex, PoisonError};

use panoply_core::Tensor;
use panoply_core::op::compute::Metric;

use super::SearchOptions;
use super::run::{Batch, Candidate};
use super::scales::Scales;
use super::ties::Ranked;
use crate::encode::{quantise, round_scale_of, scale_of};
use crate::error::Result;
use crate::region::out_of_memory;
use crate::schema::{Schema, Storage};
use crate::segment::SegmentView;

/// Rows beyond a segment's copy, as a share of the copy (1/8), before the copy is made again.
const REST_SHARE_MAX: u32 = 8;

/// The eight-bit copy of a segment's rows, made on first use.
#[derive(Default)]
pub(crate) struct CodesCache {
    codes: Mutex<Option<Arc<Codes>>>,
}

/// Eight-bit copies of the first rows of a segment.
pub(crate) struct Codes {
    pub(crate) count: u32,
    pub(crate) rows: Tensor,
    pub(crate) norms: Option<Tensor>,
    /// The scales by which rows are searched, for euclidean.
    pub(crate) scales: Option<Scales>,
}

impl CodesCache {
    /// The copy for a snapshot's rows; `None` if the stored rows have eight bits already.
    pub(crate) fn of(&self, segment: &SegmentView, schema: &Schema) -> Option<Arc<Codes>> {
        if schema.storage == Storage::I8 || segment.count == 0 {
            return None;
        }
        let mut codes = self.codes.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = |codes: &&Arc<Codes>| segment.count.saturating_sub(codes.count) <= codes.count / REST_SHARE_MAX;
        if let Some(codes) = codes.as_ref().filter(enough) {
            return Some(Arc::clone(codes));
        }
        // Without memory for a copy, the stored rows are searched.
        *codes = Codes::new(segment, schema).ok().map(Arc::new);
        codes.clone()
    }
}

impl Codes {
    fn new(segment: &SegmentView, schema: &Schema) -> Result<Codes> {
        let count = segment.count as usize;
        let by_scale = schema.metric == Metric::Euclidean;
        let (mut rows, mut norms, mut scales) = (Vec::new(), Vec::new(), Vec::new());
        let bytes = count.saturating_mul(schema.dimension);
        rows.try_reserve_exact(bytes).map_err(|_| out_of_memory(bytes))?;
        for row in 0..segment.count {
            let vector = segment.vector(row);
            let scale = if by_scale { round_scale_of(&vector) } else { scale_of(&vector) };
            let square = quantise(&vector, scale, &mut rows);
            match schema.metric {
                Metric::Cosine => norms.push(square.sqrt() as f32),
                Metric::Dot => norms.push(1.0 / scale),
                Metric::Euclidean => scales.push(scale),
            }
        }
        let rows = Tensor::from_slice::<i8>(bytemuck::cast_slice(&rows), [count, schema.dimension])?;
        let norms = if by_scale { None } else { Some(Tensor::from_vec(norms, [count])?) };
        let scales = by_scale.then(|| Scales::continued(None, segment.count, |row| scales[row as usize]));
        Ok(Codes { count: segment.count, rows, norms, scales })
    }
}

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
    let mut candidates = candidates.into_iter().map(|candidate| Ranked { candidate, metric });
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
