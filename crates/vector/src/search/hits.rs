//! The candidates of a batch, and their conversion into hits.

use std::sync::Arc;

use super::run::Candidate;
use super::{Hit, SearchReport, SearchResults};
use crate::state::Snapshot;

/// Maximum number of candidates that one thread converts into hits; more are split between threads.
const HITS_ALONE_MAX: usize = 2048;

/// The candidates of a batch. Each caller's thread converts its own candidates into hits.
pub(crate) struct BatchCandidates {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) found: Vec<Vec<Candidate>>,
    pub(crate) report: SearchReport,
}

impl BatchCandidates {
    /// Converts the candidates into hits.
    pub(crate) fn into_hits(self) -> SearchResults {
        let hit = |candidate: &Candidate| {
            let segment = &self.snapshot.segments[candidate.segment as usize];
            let id = segment.id_of(candidate.row).to_owned();
            Hit { id, score: candidate.score, metadata: segment.metadata(candidate.row) }
        };
        let lines = &|found: &[Vec<Candidate>]| -> Vec<Vec<Hit>> {
            found.iter().map(|found| found.iter().map(hit).collect()).collect()
        };
        let total: usize = self.found.iter().map(Vec::len).sum();
        // Querying the number of processors takes longer than converting a few candidates.
        let threads = match total / HITS_ALONE_MAX {
            0 | 1 => 1,
            parts => std::thread::available_parallelism().map_or(1, usize::from).min(parts),
        };
        if threads < 2 {
            return SearchResults { hits: lines(&self.found), report: self.report };
        }
        // Reading ids and metadata mostly misses the caches; several threads overlap the misses.
        let hits = std::thread::scope(|scope| {
            let share = self.found.len().div_ceil(threads);
            let part = |found| (found, std::thread::Builder::new().spawn_scoped(scope, move || lines(found)));
            let parts: Vec<_> = self.found.chunks(share).map(part).collect();
            // If a thread cannot be started, this thread converts its part.
            let hits_of = |(found, part): (_, std::io::Result<std::thread::ScopedJoinHandle<'_, _>>)| match part {
                Ok(part) => part.join().unwrap_or_else(|_| lines(found)),
                Err(_) => lines(found),
            };
            parts.into_iter().flat_map(hits_of).collect()
        });
        SearchResults { hits, report: self.report }
    }
}
