//! Attention by tiles: some queries against some keys at a time, with a softmax that is corrected
//! when larger scores appear (online softmax).
//!
//! A task has a tile of queries of one head and iterates over the keys that these queries see. For
//! each tile of keys, the scores are one matrix product. The largest score of each row so far is
//! updated, and the sums that were made under a smaller maximum are scaled down. The weights are
//! exponentials of the scores; a second matrix product computes the weighted values, which are
//! added to the sums. Threads share the tasks, and each thread has buffers of the size of its
//! tiles: memory does not grow with the sequence. Sums are in f32 throughout, the totals of the
//! weights in f64.

mod rows;
#[cfg(test)]
mod tests;

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use panoply_core::{bf16, f16};

use crate::gemm::{Epilogue, Gemm, Isa, MatRef, OutOfMemory, Output, Product, Workspace};
use crate::lanes::dispatch;
use crate::parts::DisjointSlice;
use crate::scratch;
use crate::simd::Simd;
use crate::team::Team;
use rows::{AddRows, Finish, Gather, Soften, Widen};

/// Queries of a task: the maximum, used if there are enough queries for all threads, and the
/// minimum.
const ROWS_MAX: usize = 128;
const ROWS_MIN: usize = 16;
/// Keys of a tile.
const KEYS: usize = 256;
/// Minimum number of tasks for each thread, so that all threads finish at about the same time.
const TASKS_PER_THREAD: usize = 3;

/// The matrices of one operand, one for each head of queries. All have the same row stride; columns
/// are contiguous.
pub struct Heads<'a, T> {
    /// The elements of all heads.
    pub elements: &'a [T],
    /// Index of the first element of each head's matrix.
    pub starts: Vec<usize>,
    /// Row stride in elements.
    pub step: usize,
}

impl<'a, T> Heads<'a, T> {
    /// `count` rows of one head from row `first` on; `None` if they are out of bounds.
    fn rows(&self, head: usize, first: usize, count: usize, cols: usize) -> Option<MatRef<'a, T>> {
        if count == 0 || cols == 0 {
            return MatRef::new(&[], count, cols, 0, 1);
        }
        let start = first.checked_mul(self.step)?.checked_add(*self.starts.get(head)?)?;
        MatRef::new(self.elements.get(start..)?, count, cols, self.step, 1)
    }
}

/// An additive mask for the scores, with any strides, in f32 or in the operands' type.
pub struct MaskHeads<'a, M> {
    /// The elements of all masks.
    pub elements: &'a [M],
    /// Index of the first element of each head's mask.
    pub starts: Vec<usize>,
    /// Strides in elements from query to query and from key to key.
    pub steps: [usize; 2],
}

/// The optional mask, in one of the two allowed types.
pub enum Mask<'a, T> {
    /// No mask.
    None,
    /// In f32.
    Wide(MaskHeads<'a, f32>),
    /// In the operands' type.
    Same(MaskHeads<'a, T>),
}

/// The inputs and parameters of one attention.
pub struct Problem<'a, T> {
    /// The queries.
    pub q: Heads<'a, T>,
    /// The keys.
    pub k: Heads<'a, T>,
    /// The values.
    pub v: Heads<'a, T>,
    /// Added to the scaled scores.
    pub mask: Mask<'a, T>,
    /// Queries of a head.
    pub n_q: usize,
    /// Keys of a head.
    pub n_k: usize,
    /// Elements of a query.
    pub d: usize,
    /// Elements of a value.
    pub d_v: usize,
    /// The factor by which the scores are multiplied.
    pub scale: f32,
    /// Whether a query is masked from later keys; the last query is aligned with the last key.
    pub is_causal: bool,
}

/// Buffers of one thread.
#[derive(Default)]
pub struct Scratch {
    gemm: Workspace,
    scores: Vec<f32>,
    values: Vec<f32>,
    weighted: Vec<f32>,
    sums: Vec<f32>,
    /// The largest score of each row so far, and the sum of the weights relative to that maximum.
    largest: Vec<f32>,
    totals: Vec<f64>,
    corrections: Vec<f32>,
}

/// Why the attention failed; the output is then unspecified.
#[derive(Debug, PartialEq, Eq)]
pub enum Failure {
    /// A buffer could not grow.
    OutOfMemory(OutOfMemory),
    /// A view reaches outside of its elements.
    Outside,
}

/// Writes the output, head after head. `buffers` has one entry for each thread that works at once,
/// and grows if it has fewer.
pub fn attention<T: AttentionElement>(
    team: &Team,
    simd: Simd,
    buffers: &mut Vec<Mutex<Scratch>>,
    problem: &Problem<'_, T>,
    out: &mut [T],
) -> Result<(), Failure> {
    let (heads, threads) = (problem.q.starts.len(), team.threads());
    assert_eq!(out.len(), heads * problem.n_q * problem.d_v, "the output has another size");
    if out.is_empty() {
        return Ok(());
    }
    let rows = tile_rows(heads, problem.n_q, threads);
    let tiles = problem.n_q.div_ceil(rows);
    let members = threads.min(heads * tiles);
    if buffers.len() < members {
        buffers.resize_with(members, Mutex::default);
    }
    let (next, refused_bytes, outside) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(0));
    let (shared, buffers) = (DisjointSlice::new(out), &*buffers);
    team.run(members, &|member| {
        let mut own = buffers[member].lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let single = Team::single();
        loop {
            let task = next.fetch_add(1, Ordering::Relaxed);
            if task >= heads * tiles {
                break;
            }
            // The longest tasks of a causal attention are started first.
            let (head, first) = (task % heads, (tiles - 1 - task / heads) * rows);
            let tile = Tile { problem, head, first, rows: rows.min(problem.n_q - first), simd };
            let begin = (head * problem.n_q + first) * problem.d_v;
            // SAFETY: the rows of different tasks are disjoint.
            let out = unsafe { shared.range(begin..begin + tile.rows * problem.d_v) };
            match tile.run(&single, &mut own, out) {
                Ok(()) => {}
                Err(Failure::Outside) => outside.store(1, Ordering::Relaxed),
                Err(Failure::OutOfMemory(refused)) => {
                    refused_bytes.fetch_max(refused.asked_bytes, Ordering::Relaxed);
                }
            }
        }
    });
    match (refused_bytes.into_inner(), outside.into_inner()) {
        (0, 0) => Ok(()),
        (0, _) => Err(Failure::Outside),
        (asked_bytes, _) => Err(Failure::OutOfMemory(OutOfMemory { asked_bytes })),
    }
}

/// Queries of a task: small enough that every thread gets `TASKS_PER_THREAD` tasks if possible.
fn tile_rows(heads: usize, n_q: usize, threads: usize) -> usize {
    let mut rows = ROWS_MAX;
    while rows > ROWS_MIN && threads > 1 && heads * n_q.div_ceil(rows) < threads * TASKS_PER_THREAD {
        rows /= 2;
    }
    rows.min(n_q.max(1))
}

/// A tile of queries of one head.
struct Tile<'a, T> {
    problem: &'a Problem<'a, T>,
    head: usize,
    first: usize,
    rows: usize,
    simd: Simd,
}

impl<T: AttentionElement> Tile<'_, T> {
    fn run(&self, team: &Team, own: &mut Scratch, out: &mut [T]) -> Result<(), Failure> {
        let Problem { n_q, n_k, d, d_v, .. } = *self.problem;
        let queries = self.problem.q.rows(self.head, self.first, self.rows, d).ok_or(Failure::Outside)?;
        own.prepare(self.rows, d_v);
        // With a causal mask: only the keys that the last query sees.
        let end =
            if self.problem.is_causal { (self.first + self.rows + n_k).saturating_sub(n_q).min(n_k) } else { n_k };
        for begin in (0..end).step_by(KEYS) {
            let keys = KEYS.min(end - begin);
            let tile = self.problem.k.rows(self.head, begin, keys, d).ok_or(Failure::Outside)?;
            let mut gemm = Gemm::new(team, &mut own.gemm).with_isa(Isa::at_level(self.simd));
            let scaled = Epilogue::<f32> { alpha: self.problem.scale, ..Epilogue::default() };
            let scores = &mut own.scores[..self.rows * keys];
            gemm.multiply(queries, tile.transposed(), &scaled, scores, keys).map_err(Failure::OutOfMemory)?;
            self.add_mask(begin, keys, scores)?;
            dispatch(
                self.simd,
                Soften {
                    scores,
                    keys,
                    largest: &mut own.largest,
                    totals: &mut own.totals,
                    corrections: &mut own.corrections,
                },
            );
            if d_v == 0 {
                continue;
            }
            let (heads, head, simd) = (&self.problem.v, self.head, self.simd);
            let values = ValueTile { heads, head, first: begin, count: keys, cols: d_v, simd };
            let values = T::values(values, &mut own.values).ok_or(Failure::Outside)?;
            let weights = MatRef::row_major(scores, self.rows, keys).ok_or(Failure::Outside)?;
            let weighted = &mut own.weighted[..self.rows * d_v];
            gemm.multiply(weights, values, &Epilogue::<f32>::default(), weighted, d_v).map_err(Failure::OutOfMemory)?;
            let sums = &mut own.sums[..self.rows * d_v];
            dispatch(self.simd, Gather { sums, weighted, corrections: &own.corrections, len: d_v });
        }
        dispatch(self.simd, Finish { sums: &own.sums, totals: &own.totals, len: d_v, out });
        Ok(())
    }

    /// Adds the mask to the scores of the keys from `begin` on, and masks the keys that come after
    /// their query.
    fn add_mask(&self, begin: usize, keys: usize, scores: &mut [f32]) -> Result<(), Failure> {
        match &self.problem.mask {
            Mask::None => {}
            Mask::Wide(mask) => self.add(mask, begin, keys, scores)?,
            Mask::Same(mask) => self.add(mask, begin, keys, scores)?,
        }
        if self.problem.is_causal {
            for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
                let seen = (self.first + row + 1 + self.problem.n_k).saturating_sub(self.problem.n_q);
                let behind = seen.saturating_sub(begin).min(keys);
                scores[behind..].fill(f32::NEG_INFINITY);
            }
        }
        Ok(())
    }

    fn add<M: Output<Acc = f32>>(
        &self,
        mask: &MaskHeads<'_, M>,
        begin: usize,
        keys: usize,
        scores: &mut [f32],
    ) -> Result<(), Failure> {
        let [down, across] = mask.steps;
        let start = mask.starts[self.head] + self.first * down + begin * across;
        let elements = mask.elements.get(start..).ok_or(Failure::Outside)?;
        let matrix = MatRef::new(elements, self.rows, keys, down, across).ok_or(Failure::Outside)?;
        if across == 1 {
            dispatch(self.simd, AddRows { scores, keys, elements, step: down });
            return Ok(());
        }
        for (row, scores) in scores.chunks_exact_mut(keys).enumerate() {
            for (key, score) in scores.iter_mut().enumerate() {
                *score += matrix.get(row, key).widen();
            }
        }
        Ok(())
    }
}

/// An element type that attention supports.
pub trait AttentionElement: Product<f32, Acc = f32> + Output<Acc = f32> {
    /// A tile of values in f32: the tile itself if it is f32 already, else a copy in `room`. `None`
    /// if the tile is out of bounds.
    fn values<'a>(tile: ValueTile<'a, Self>, room: &'a mut Vec<f32>) -> Option<MatRef<'a, f32>>;
}

/// A tile of values of one head.
pub struct ValueTile<'a, T> {
    heads: &'a Heads<'a, T>,
    head: usize,
    first: usize,
    count: usize,
    cols: usize,
    simd: Simd,
}

impl AttentionElement for f32 {
    fn values<'a>(tile: ValueTile<'a, f32>, _room: &'a mut Vec<f32>) -> Option<MatRef<'a, f32>> {
        tile.heads.rows(tile.head, tile.first, tile.count, tile.cols)
    }
}

macro_rules! widened {
    ($($half:ty),*) => {$(
        impl AttentionElement for $half {
            fn values<'a>(tile: ValueTile<'a, $half>, room: &'a mut Vec<f32>) -> Option<MatRef<'a, f32>> {
                // The view checks that every row is inside.
                tile.heads.rows(tile.head, tile.first, tile.count, tile.cols)?;
                let rows = tile.heads.elements.get(tile.heads.starts[tile.head] + tile.first * tile.heads.step..)?;
                scratch::resize(room, tile.count * tile.cols, 0.0);
                dispatch(tile.simd, Widen { rows, step: tile.heads.step, cols: tile.cols, out: room });
                MatRef::row_major(room, tile.count, tile.cols)
            }
        }
    )*};
}

widened!(f16, bf16);

impl Scratch {
    fn prepare(&mut self, rows: usize, d_v: usize) {
        scratch::resize(&mut self.scores, ROWS_MAX * KEYS, 0.0);
        scratch::resize(&mut self.weighted, rows * d_v, 0.0);
        for (buffer, len) in [(&mut self.sums, rows * d_v), (&mut self.corrections, rows)] {
            buffer.clear();
            scratch::resize(buffer, len, 0.0);
        }
        self.largest.clear();
        scratch::resize(&mut self.largest, rows, f32::NEG_INFINITY);
        self.totals.clear();
        scratch::resize(&mut self.totals, rows, 0.0);
    }
}
