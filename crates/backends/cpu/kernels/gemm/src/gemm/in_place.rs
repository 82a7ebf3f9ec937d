//! Products whose right operand is small enough to stay in each core's second-level cache: B is
//! read in place.
//!
//! Packing such a B costs a noticeable part of the product, and threads that share packed panels
//! fetch each other's freshly written cache lines. Here a task takes one panel of A, packs it into
//! its own memory that stays in the first-level cache, and multiplies it with all of B, or with a
//! part of B's columns if there are few panels.

use std::sync::atomic::AtomicBool;

use super::Isa;
use super::element::Accumulator;
use super::kernel::{InPlace, Kernel};
use super::pack::{Format, PanelOrder, pack_panel, panel_words};
use super::sweep::Sink;
use super::view::{MatRef, SharedPtr};
use super::workspace::{OutOfMemory, ScratchPool, Workspace};
use crate::team::Team;

/// Maximum size of B: more would not stay in the second-level cache, or its pages not in the TLB.
const B_BYTES_MAX: usize = 384 << 10;
/// Maximum size of a panel of A: half of a first-level cache.
const A_PANEL_BYTES_MAX: usize = 24 << 10;
/// Minimum tasks for each thread; with fewer, panels of A are multiplied in parts, so that all
/// threads finish at about the same time.
const TASKS_PER_THREAD: usize = 8;

/// One running product.
pub(super) struct InPlaceProduct<'a, F: Format, A> {
    isa: Isa,
    rows: usize,
    cols: usize,
    kernel: InPlace<F::Word, A>,
    a: MatRef<'a, F::Source>,
    b: MatRef<'a, F::Source>,
    sink: &'a dyn Sink<A>,
    sums: SharedPtr<A>,
    ld: usize,
}

impl<'a, F: Format, A: Accumulator> InPlaceProduct<'a, F, A> {
    /// The product of `a` (one row per line) and `b` (one column per line), if this algorithm
    /// supports it.
    pub(super) fn new(
        isa: Isa,
        kernel: &Kernel<F::Word, A>,
        a: MatRef<'a, F::Source>,
        b: MatRef<'a, F::Source>,
        sink: &'a dyn Sink<A>,
    ) -> Option<InPlaceProduct<'a, F, A>> {
        let in_place = kernel.in_place?;
        let (sums, ld) = sink.place()?;
        let whole_vectors = b.row_stride() == 1 && b.rows().is_multiple_of(in_place.lanes);
        let a_panel_bytes = panel_words::<F::Word>(PanelOrder::Chunked, kernel.rows, a.cols()) * size_of::<F::Word>();
        let b_bytes = b.rows() * b.cols() * size_of::<F::Word>();
        let small = a_panel_bytes <= A_PANEL_BYTES_MAX && b_bytes <= B_BYTES_MAX;
        let (rows, cols) = (kernel.rows, kernel.cols);
        (F::AS_THEY_ARE && whole_vectors && small && !sink.resumes()).then_some(InPlaceProduct {
            isa,
            rows,
            cols,
            kernel: in_place,
            a,
            b,
            sink,
            sums,
            ld,
        })
    }

    /// Computes the product.
    pub(super) fn run(&self, team: Option<&Team>, workspace: &mut Workspace) -> Result<(), OutOfMemory> {
        let threads = team.map_or(1, Team::threads);
        let a_panels = self.a.rows().div_ceil(self.rows);
        let b_panels = self.b.rows().div_ceil(self.cols);
        let parts = if threads == 1 { 1 } else { (threads * TASKS_PER_THREAD).div_ceil(a_panels).min(b_panels) };
        let part = b_panels.div_ceil(parts);
        let panel_words = panel_words::<F::Word>(PanelOrder::Chunked, self.rows, self.a.cols());
        let Workspace { packed_a, scratch_taken, .. } = workspace;
        let panels = SharedPtr::<F::Word>::new(packed_a.get(threads * panel_words)?);
        // Cleared each time: a task that panicked never released its memory.
        scratch_taken.clear();
        scratch_taken.resize_with(threads, AtomicBool::default);
        let pool = ScratchPool { taken: scratch_taken };
        let run_task = |index: usize| {
            let (first_row, first_panel) = (index / parts * self.rows, index % parts * part);
            let slot = pool.claim();
            // SAFETY: each slot of the buffer belongs to the one task that has claimed it.
            let panel = unsafe { std::slice::from_raw_parts_mut(panels.at(slot * panel_words), panel_words) };
            self.multiply_panel(first_row, first_panel..b_panels.min(first_panel + part), panel);
            pool.give_back(slot);
        };
        match team {
            Some(team) => team.run(a_panels * parts, &run_task),
            None => (0..a_panels * parts).for_each(run_task),
        }
        Ok(())
    }

    fn multiply_panel(&self, first_row: usize, b_panels: std::ops::Range<usize>, panel: &mut [F::Word]) {
        let steps = self.a.cols();
        let rows = first_row..self.a.rows().min(first_row + self.rows);
        pack_panel::<F>(self.isa.simd, PanelOrder::Chunked, &self.a, first_row, self.rows, steps, panel);
        for b_panel in b_panels {
            let cols = b_panel * self.cols..self.b.rows().min((b_panel + 1) * self.cols);
            let b = self.b.start().wrapping_add(cols.start).cast::<F::Word>();
            let dst = self.sums.at(rows.start * self.ld + cols.start);
            // SAFETY: the panel is packed. B's columns are contiguous, in whole vectors, and its
            // words are its elements. Only this task accesses these sums.
            unsafe {
                let (b_step, count) = (self.b.col_stride(), cols.len());
                (self.kernel.tile)(steps, panel.as_ptr(), b, b_step, dst, self.ld, rows.len(), count);
                self.sink.tile(rows.clone(), cols, dst, self.ld);
            }
        }
    }
}
