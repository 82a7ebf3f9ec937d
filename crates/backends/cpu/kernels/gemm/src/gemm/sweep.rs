//! The innermost loops of a packed product: a kernel applied to all pairs of packed panels.

use std::ops::Range;

use super::element::Accumulator;
use super::kernel::{AHEAD_BYTES_PER_CHUNK, Kernel};
use super::pack::chunk_steps;

/// The receiver of finished sums.
pub(super) trait Sink<A>: Sync {
    /// Memory of the whole result in which sums may be kept, with its leading dimension; `None` if
    /// they must be kept in scratch memory.
    fn place(&self) -> Option<(super::view::SharedPtr<A>, usize)>;

    /// True if the place already holds sums to add to.
    fn resumes(&self) -> bool {
        false
    }

    /// Receives a finished tile.
    ///
    /// # Safety
    /// `acc` holds the tile's sums, `ld` elements from row to row, and no other task accesses these
    /// elements.
    unsafe fn tile(&self, rows: Range<usize>, cols: Range<usize>, acc: *const A, ld: usize);

    /// Receives a finished block, after all its tiles.
    ///
    /// # Safety
    /// As for [`Sink::tile`].
    unsafe fn block(&self, _rows: Range<usize>, _cols: Range<usize>, _acc: *const A, _ld: usize) {}
}

/// One depth of one block of the result.
pub(super) struct Sweep<'a, W, A> {
    pub(super) kernel: &'a Kernel<W, A>,
    pub(super) sink: &'a dyn Sink<A>,
    /// The block's valid rows and columns in the result; panels begin with the first of each.
    pub(super) rows: Range<usize>,
    pub(super) cols: Range<usize>,
    pub(super) steps: usize,
    /// The first panel of A, and the words from panel to panel; the same for B.
    pub(super) a: *const W,
    pub(super) a_pitch: usize,
    pub(super) b: *const W,
    pub(super) b_pitch: usize,
    /// The block's upper left corner.
    pub(super) sums: *mut A,
    pub(super) ld: usize,
    /// Whether sums are added to the existing values.
    pub(super) accumulate: bool,
    /// Whether the sums are complete after this depth.
    pub(super) finishes: bool,
}

impl<W, A: Accumulator> Sweep<'_, W, A> {
    /// Multiplies every panel of A with one panel of B before the next panel of B. A's panels stay
    /// in the second-level cache. B's panels come from further away, so the next one is prefetched,
    /// a part with each tile.
    ///
    /// # Safety
    /// All panels are packed for `steps` steps, only the caller accesses the sums, and the tile
    /// state is loaded if the kernel uses it.
    pub(super) unsafe fn run(&self) {
        let kernel = self.kernel;
        let panel_bytes = self.steps * kernel.cols * size_of::<W>();
        let tile_bytes = self.steps.div_ceil(chunk_steps::<W>()) * AHEAD_BYTES_PER_CHUNK;
        for (b_index, col) in self.cols.clone().step_by(kernel.cols).enumerate() {
            let cols = col..self.cols.end.min(col + kernel.cols);
            let b = self.b.wrapping_add(b_index * self.b_pitch);
            let next = if cols.end < self.cols.end { b.wrapping_add(self.b_pitch) } else { b };
            for (a_index, row) in self.rows.clone().step_by(kernel.rows).enumerate() {
                let rows = row..self.rows.end.min(row + kernel.rows);
                let a = self.a.wrapping_add(a_index * self.a_pitch);
                let dst = self.sums.wrapping_add((row - self.rows.start) * self.ld + col - self.cols.start);
                let ahead = next.wrapping_byte_add((a_index * tile_bytes).min(panel_bytes.saturating_sub(tile_bytes)));
                // SAFETY: the caller's contract; `ahead` is only prefetched, never read.
                unsafe {
                    (kernel.tile)(self.steps, a, b, dst, self.ld, rows.len(), cols.len(), self.accumulate, ahead);
                    if self.finishes {
                        self.sink.tile(rows, cols.clone(), dst, self.ld);
                    }
                }
            }
        }
    }
}
