//! The scan around the kernels: which worker looks at which rows, and how their findings become one answer.
//!
//! Each worker claims chunks of rows from one counter, in ascending order, and keeps its own k best of every query, so
//! that workers share nothing but the counter. Their lists are merged when all rows have been seen.

use super::sink::{Metric, RowIds, Sink};
use super::tile::BLOCK_ROWS;
use crate::team::Team;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Elements of the rows that are scanned together, so that they and a panel of queries stay in the second-level cache.
const PIECE_ELEMENTS: usize = 1 << 16;
/// The longest piece, in rows.
const PIECE_ROWS_MAX: usize = 4096;
/// Multiplications for which a second thread is not worth waking.
const ALONE_PRODUCTS_MAX: usize = 1 << 17;

/// Scores rows against one group of queries.
pub(super) trait Scorer: Sync {
    /// How long the bounds of the group must be: whole panels are read.
    fn lanes_end(&self) -> usize;

    /// Scores `count` rows and offers to `sink` those that may be among the nearest. `count` is at most that of a piece.
    fn scan(&self, ids: RowIds<'_>, count: usize, sink: &mut Sink, scratch: &mut Scratch);
}

/// What a worker needs while it scans, kept from piece to piece.
#[derive(Default)]
pub(super) struct Scratch {
    ids: Vec<u32>,
    pub(super) staged: Vec<f32>,
    pub(super) partial: Vec<f32>,
    pub(super) staged_bytes: Vec<u8>,
    pub(super) row_scales: Vec<f32>,
    pub(super) row_squares: Vec<i32>,
}

/// The rows to scan and what is wanted of them.
#[derive(Clone, Copy)]
pub(super) struct Scan<'a> {
    pub(super) metric: Metric,
    pub(super) k: usize,
    pub(super) rows: usize,
    pub(super) dim: usize,
    /// Bit r % 32 of word r / 32 says whether row r counts.
    pub(super) filter: Option<&'a [u32]>,
    /// How many rows count.
    pub(super) passing: usize,
}

impl<'a> Scan<'a> {
    /// Counts the rows that pass the filter.
    pub(super) fn new(metric: Metric, k: usize, rows: usize, dim: usize, filter: Option<&'a [u32]>) -> Scan<'a> {
        let passing = filter.map_or(rows, |words| {
            let whole: usize = words[..rows / 32].iter().map(|word| word.count_ones() as usize).sum();
            let rest = rows % 32;
            whole + if rest == 0 { 0 } else { (words[rows / 32] & ((1 << rest) - 1)).count_ones() as usize }
        });
        Scan { metric, k: k.min(passing), rows, dim, filter, passing }
    }

    /// Finds the neighbours of one group of queries. Without a team the calling thread does everything.
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
            // Each worker has its own place, so it is always empty.
            let _ = sinks[worker].set(sink);
        };
        match team {
            Some(team) => team.run(workers, &work),
            None => work(0),
        }
        let sinks: Vec<Sink> = sinks.into_iter().filter_map(OnceLock::into_inner).collect();
        self.merge(team, sinks, ids, scores);
    }

    /// Rows of a piece that the kernels see at once.
    fn piece_rows(&self) -> usize {
        (PIECE_ELEMENTS / self.dim.max(1)).clamp(BLOCK_ROWS, PIECE_ROWS_MAX) / BLOCK_ROWS * BLOCK_ROWS
    }

    /// Rows that a worker claims at once: an eighth of its share, in whole pieces where there are enough.
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

    /// Merges what the workers have kept and writes it out, query by query.
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

/// The rows of a range whose bit is set, ascending.
struct PassingRows<'a> {
    filter: &'a [u32],
    word: u32,
    /// The row of the current word's bit 0.
    base: usize,
    end: usize,
}

impl<'a> PassingRows<'a> {
    fn new(filter: &'a [u32], rows: std::ops::Range<usize>) -> PassingRows<'a> {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passing_rows_are_those_whose_bit_is_set() {
        let filter = [0x8000_0001, 0, 0xffff_ffff, 0x0000_0f00];
        let set = |row: usize| filter[row / 32] >> (row % 32) & 1 == 1;
        for start in 0..128 {
            for end in start..=128 {
                let wanted: Vec<u32> = (start..end).filter(|row| set(*row)).map(|row| row as u32).collect();
                assert_eq!(PassingRows::new(&filter, start..end).collect::<Vec<_>>(), wanted, "{start}..{end}");
            }
        }
    }

    #[test]
    fn bits_behind_the_last_row_do_not_count() {
        let scan = Scan::new(Metric::Dot, 10, 33, 4, Some(&[0b101, 0b111]));
        assert_eq!(scan.passing, 3);
        assert_eq!(scan.k, 3);
    }
}
