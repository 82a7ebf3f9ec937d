//! Measures the recall of searches with a given number of lists.

use std::collections::HashSet;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::search::SearchOptions;
use crate::search::run::{Batch, check};
use crate::state::CollectionState;

/// The figures of one `nprobe`.
#[derive(Clone, Debug, PartialEq)]
pub struct RecallRow {
    /// Number of lists searched.
    pub nprobe: usize,
    /// The share of the true `k` nearest that was found, 0 to 1.
    pub recall: f64,
    /// The share of the rows that was read, 0 to 1.
    pub scanned_share: f64,
    /// Queries per second, with all queries in one call.
    pub queries_per_s: f64,
    /// Queries per second of the exact search.
    pub exact_queries_per_s: f64,
}

/// One search of all queries.
struct Run {
    /// For each query, the rows found, by segment and row.
    found: Vec<HashSet<(u32, u32)>>,
    scanned: u64,
    queries_per_s: f64,
}

/// Compares searches of some lists with exact searches of the same snapshot.
pub(crate) fn measure(
    shared: &CollectionState,
    queries: &[f32],
    options: &SearchOptions,
    nprobes: &[usize],
) -> Result<Vec<RecallRow>> {
    let exact_options = SearchOptions { nprobe: None, rerank: None, ..options.clone() };
    let count = check(shared, queries, options)?;
    if count == 0 || options.k == 0 {
        return Err(Error::invalid("queries and k", "at least 1 each", format!("{count} and {}", options.k)));
    }
    let (snapshot, queries) = (shared.snapshot(), shared.schema.in_range(queries));
    let queries = &queries[..];
    let run = |options: &SearchOptions| -> Result<Run> {
        let start = Instant::now();
        let mut batch = Batch::new(shared, &snapshot, queries, count, options.k.min(snapshot.len()));
        batch.run(options)?;
        let seconds = start.elapsed().as_secs_f64().max(1.0e-9);
        let found = batch.found.iter().map(|found| found.iter().map(|hit| (hit.segment, hit.row)).collect());
        let (found, scanned) = (found.collect(), batch.report.scanned_rows);
        Ok(Run { found, scanned, queries_per_s: count as f64 / seconds })
    };
    let Run { found: truth, scanned: all_rows, queries_per_s: exact_queries_per_s } = run(&exact_options)?;
    let wanted: usize = truth.iter().map(HashSet::len).sum();
    let row = |nprobe: &usize| {
        let Run { found, scanned, queries_per_s } = run(&SearchOptions { nprobe: Some(*nprobe), ..options.clone() })?;
        let hits: usize = found.iter().zip(&truth).map(|(found, truth)| found.intersection(truth).count()).sum();
        let recall = if wanted == 0 { 1.0 } else { hits as f64 / wanted as f64 };
        let scanned_share = scanned as f64 / all_rows.max(1) as f64;
        Ok(RecallRow { nprobe: *nprobe, recall, scanned_share, queries_per_s, exact_queries_per_s })
    };
    nprobes.iter().map(row).collect()
}
