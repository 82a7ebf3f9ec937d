//! The scan around the kernels: the assignment of rows to workers, and the merging of their
//! results.
//!
//! Each worker claims chunks of rows from one counter, in ascending order, and keeps its own k best
//! of every query, so that workers share nothing but the counter. Their lists are merged when all
//! rows have been scanned.

use super::sink::{Metric, RowIds, Sink};
use super::tile::BLOCK_ROWS;
use crate::team::Team;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Elements of the rows that are scanned together, so that they and a panel of queries stay in the
/// second-level cache.
const PIECE_ELEMENTS: usize = 1 << 16;
/// Maximum rows of a piece.
const PIECE_ROWS_MAX: usize = 4096;
/// Maximum multiplications for which a second thread is not worth waking.
const ALONE_PRODUCTS_MAX: usize = 1 << 17;

/// Scores rows against one group of queries.
pub(super) trait Scorer: Sync {
    /// Required length of the group's bounds: whole panels are read.
    fn lanes_end(&self) -> usize;

    /// Scores `count` rows and offers those that may be among the nearest to `sink`. `count` is at
    /// most that of a piece.
    fn scan(&self, ids: RowIds<'_>, count: usize, sink: &mut Sink, scratch: &mut Scratch);
}

/// Buffers of a worker, reused from piece to piece.
#[derive(Default)]
pub(super) struct Scratch {
    ids: Vec<u32>,
    pub(super) staged: Vec<f32>,
    pub(super) partial: Vec<f32>,
    pub(super) staged_bytes: Vec<u8>,
    pub(super) row_scales: Vec<f32>,
    pub(super) row_squares: Vec<i32>,
}

/// The rows to scan and the parameters of the search.
#[derive(Clone, Copy)]
pub struct Scan<'a> {
    pub(super) metric: Metric,
    /// How many rows are wanted.
    pub k: usize,
    pub(super) rows: usize,
    pub(super) dim: usize,
    /// Bit r % 32 of word r / 32 is set if row r passes.
    pub(super) filter: Option<&'a [u32]>,
    /// Number of rows that pass.
    pub passing: usize,
}

impl<'a> Scan<'a> {
    /// Counts the rows that pass the filter.
    pub fn new(metric: Metric, k: usize, rows: usize, dim: usize, filter: Option<&'a [u32]>) -> Scan<'a> {
        let passing = filter.map_or(rows, |words| {
            let whole: usize = words[..rows / 32].iter().map(|word| word.count_ones() as usize).sum();
            let rest = rows % 32;
            whole + if rest == 0 { 0 } else { (words[rows / 32] & ((1 << rest) - 1)).count_ones() as usize }
        });
        Scan { metric, k: k.min(passing), rows, dim, filter, passing }
    }

    /// Finds the neighbours of one group of queries. Without a team, the calling thread does all
    /// the work.
    pub(super) fn run<S: Scorer>(
        &self,
        team: Option<&Team>,
        scorer: &S,
        queries: usize,
        ids: &mut [u32],
        scores: &mut [f32],
    ) {
        let work = self.passing * self.dim.max(1);
        let team = team.filter(|_| work.saturating_mul(queries) > ALONE_PRODUCTS_MAX);
        let workers = team.map_or(1, Team::threads);
        let chunk = self.chunk_rows(workers);
        let next = AtomicUsize::new(0);
        let sinks: Vec<OnceLock<Sink>> = (0..workers).map(|_| OnceLock::new()).collect();
        let work = |worker: usize| {
            let mut sink = Sink::new(self.metric, self.k, queries, scorer.lanes_end(), self.passing);
            let mut scratch = Scratch::default();
            loop {
                let first = next.fetch_add(1, Ordering::Relaxed).saturating_mul(chunk);
                if first >= self.rows {
                    break;
                }
                self.scan_chunk(scorer, first..self.rows.min(first + chunk), &mut sink, &mut scratch);
            }
            // Each worker has its own cell, so the cell is always empty.
            let _ = sinks[worker].set(sink);
        };
        match team {
            Some(team) => team.run(workers, &work),
            None => work(0),
        }
        let sinks: Vec<Sink> = sinks.into_iter().filter_map(OnceLock::into_inner).collect();
        self.merge(team, sinks, ids, scores);
    }

    /// Rows of a piece, which a kernel scans at once.
    fn piece_rows(&self) -> usize {
        (PIECE_ELEMENTS / self.dim.max(1)).clamp(BLOCK_ROWS, PIECE_ROWS_MAX) / BLOCK_ROWS * BLOCK_ROWS
    }

    /// Rows that a worker claims at once: an eighth of its share, in whole pieces if there are
    /// enough.
    fn chunk_rows(&self, workers: usize) -> usize {
        if workers == 1 {
            return self.rows.max(1);
        }
        let share = self.rows.div_ceil(workers * 8);
        let piece = self.piece_rows();
        share.next_multiple_of(if share > piece { piece } else { BLOCK_ROWS })
    }

    fn scan_chunk<S: Scorer>(&self, scorer: &S, rows: std::ops::Range<usize>, sink: &mut Sink, scratch: &mut Scratch) {
        let piece = self.piece_rows();
        let Some(filter) = self.filter else {
            for first in rows.clone().step_by(piece) {
                scorer.scan(RowIds::From(first as u32), piece.min(rows.end - first), sink, scratch);
            }
            return;
        };
        let mut ids = std::mem::take(&mut scratch.ids);
        ids.clear();
        ids.extend(PassingRows::new(filter, rows));
        for ids in ids.chunks(piece) {
            scorer.scan(RowIds::List(ids), ids.len(), sink, scratch);
        }
        scratch.ids = ids;
    }

    /// Merges the workers' lists and writes the result, query by query.
    fn merge(&self, team: Option<&Team>, mut sinks: Vec<Sink>, ids: &mut [u32], scores: &mut [f32]) {
        let Some((first, rest)) = sinks.split_first_mut() else { return };
        let width = ids.len() / first.queries().max(1);
        if width == 0 {
            return;
        }
        let places = ids.chunks_exact_mut(width).zip(scores.chunks_exact_mut(width));
        let jobs: Vec<_> = first.lists().zip(places).map(Mutex::new).collect();
        let merge_one = |query: usize| {
            let mut job = jobs[query].lock().unwrap_or_else(PoisonError::into_inner);
            let (list, (ids, scores)) = &mut *job;
            rest.iter().for_each(|other| list.absorb(other, query));
            list.write(ids, scores);
        };
        match team {
            Some(team) if jobs.len() * width > ALONE_PRODUCTS_MAX / 64 => team.run(jobs.len(), &merge_one),
            _ => (0..jobs.len()).for_each(merge_one),
        }
    }
}

/// The rows of a range whose bit is set, in ascending order.
pub struct PassingRows<'a> {
    filter: &'a [u32],
    word: u32,
    /// The row of bit 0 of the current word.
    base: usize,
    end: usize,
}

impl<'a> PassingRows<'a> {
    /// The rows of a range whose bit is set.
    pub fn new(filter: &'a [u32], rows: std::ops::Range<usize>) -> PassingRows<'a> {
        let base = rows.start / 32 * 32;
        let word = filter.get(rows.start / 32).map_or(0, |word| word & (u32::MAX << (rows.start % 32)));
        PassingRows { filter, word, base, end: rows.end }
    }
}

impl Iterator for PassingRows<'_> {
    type Item = u32;

    fn next(&mut self) -> Option<u32> {
        while self.word == 0 {
            self.base += 32;
            if self.base >= self.end {
                return None;
            }
            self.word = self.filter[self.base / 32];
        }
        let row = self.base + self.word.trailing_zeros() as usize;
        self.word &= self.word - 1;
        (row < self.end).then_some(row as u32)
    }
}
