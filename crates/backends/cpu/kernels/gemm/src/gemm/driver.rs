//! The blocked product: packs, multiplies pairs of panels, and passes finished sums to a sink.
//!
//! The result is split into stages (as much of A and of B as fits the pack buffers, all of k), a
//! stage into blocks (one task each), a block into tiles (one kernel call each). The whole product
//! is one job of the team, and threads synchronise only by these rules:
//!
//! 1. Tasks are numbered stage by stage: first the packing of a stage, then its blocks. The team
//!    starts them in order, so a task that waits only for lower numbers waits for tasks that are
//!    already running.
//! 2. Packing stage `s` waits until the packing of `s - 1` and the blocks of `s - 2` are done: pack
//!    buffers come in pairs, and the blocks of `s - 1` may still be reading the other half.
//! 3. A block of stage `s` waits until the packing of `s` and the blocks of `s - 1` are done. So
//!    both counters only ever count completed stages plus a part of the next, and one number
//!    describes the progress of the job.
//! 4. A task that panics (a consumer's closure may) marks the job as broken; waiting tasks then
//!    return at once.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::element::Accumulator;
use super::kernel::Kernel;
use super::pack::{Format, PanelOrder, chunk_steps, pack_panel, panel_words};
use super::packed::{self, PackedRight};
use super::sweep::{Sink, Sweep};
use super::view::{MatRef, SharedPtr};
use super::workspace::{OutOfMemory, ScratchPool, Workspace};
use super::{Isa, by_depth, in_place};
use crate::team::Team;

/// Approximate number of words that one packing task writes.
const PACK_TASK_WORDS: usize = 16 << 10;
/// Steps that one packing task takes if the elements of a line are not contiguous; whole chunks.
const PACK_STEPS_ACROSS: usize = 64;
/// Maximum size of a block: A's part and B's part for one depth fit the second-level cache
/// together.
const BLOCK_ROWS_MAX: usize = 128;
const BLOCK_COLS_MAX: usize = 512;
/// Minimum blocks for each thread; with fewer, blocks are made smaller, so that all threads finish
/// at about the same time. (A network's layer for 64 rows on two threads takes 257 µs with 16, 240
/// µs with 4 and 230 µs with 2; with 2, larger products take up to a fifth longer.)
const BLOCKS_PER_THREAD: usize = 4;

/// A part of the result, and the numbers of its tasks.
#[derive(Clone, Debug)]
pub(super) struct Stage {
    first_task: usize,
    a_panels: Range<usize>,
    b_panels: Range<usize>,
    a_half: usize,
    b_half: usize,
    a_tasks: usize,
    b_tasks: usize,
    blocks_down: usize,
    blocks_across: usize,
    packed_before: usize,
    blocks_before: usize,
}

impl Stage {
    fn packs(&self) -> usize {
        self.a_tasks + self.b_tasks
    }

    fn blocks(&self) -> usize {
        self.blocks_down * self.blocks_across
    }
}

/// The sizes of depths, panels, pack buffers and blocks.
struct BlockPlan {
    steps: usize,
    depth: usize,
    a_panel_words: usize,
    b_panel_words: usize,
    a_panels_max: usize,
    b_panels_max: usize,
    a_piece: PackTask,
    b_piece: PackTask,
    block_a_panels: usize,
    block_b_panels: usize,
}

/// The work of one packing task: some steps of some panels.
#[derive(Clone, Copy)]
pub(super) struct PackTask {
    pub(super) steps: usize,
    pub(super) panels: usize,
}

impl PackTask {
    /// The piece for these lines. If k is contiguous in memory, a task packs all steps of a few
    /// panels. Otherwise it packs a few steps of many panels, which are adjacent in memory: one
    /// panel at a time would touch a page for each step.
    pub(super) fn new<F: Format>(lines: &MatRef<'_, F::Source>, height: usize, steps: usize) -> PackTask {
        let steps = if lines.col_stride() == 1 { steps } else { steps.min(PACK_STEPS_ACROSS) };
        PackTask { steps, panels: (PACK_TASK_WORDS / (height * steps)).max(1) }
    }

    pub(super) fn tasks(self, panels: usize, steps: usize) -> usize {
        panels.div_ceil(self.panels) * steps.div_ceil(self.steps)
    }
}

/// Multiplies `a` (one row per line) with `b` (one *column of the right operand* per line). Both
/// have k columns, at least one. If `team` is `None`, the calling thread works alone. `right` holds
/// the packed B, or receives it.
pub(super) fn multiply<F: Format, A: Accumulator>(
    team: Option<&Team>,
    workspace: &mut Workspace,
    isa: Isa,
    kernel: &Kernel<F::Word, A>,
    a: MatRef<'_, F::Source>,
    b: MatRef<'_, F::Source>,
    sink: &dyn Sink<A>,
    right: Option<&mut PackedRight>,
) -> Result<(), OutOfMemory> {
    if let Some(in_place) = in_place::InPlaceProduct::<F, A>::new(isa, kernel, a, b, sink) {
        return in_place.run(team, workspace);
    }
    let threads = team.map_or(1, Team::threads);
    let mut right = right.filter(|_| a.rows() <= packed::ROWS_MAX);
    if let Some(place) = sink.place().filter(|_| right.is_none() && by_depth::suits(kernel, a.rows(), threads)) {
        return by_depth::multiply::<F, A>(team, workspace, isa, kernel, a, b, sink, place);
    }
    let pack_bytes_max = workspace.pack_bytes_max;
    let b_bytes_max = if right.is_some() { usize::MAX } else { pack_bytes_max };
    let plan = BlockPlan::new::<F, A>(kernel, &a, &b, threads, [pack_bytes_max, b_bytes_max]);
    let Workspace { packed_a, packed_b, scratch, stages, scratch_taken, .. } = workspace;
    let (a_panels, b_panels) = (a.rows().div_ceil(kernel.rows), b.rows().div_ceil(kernel.cols));
    let b_words = plan.b_panel_words;
    let (kept_b, b_is_packed) = match right.as_deref_mut() {
        Some(right) => right.room::<F, F::Word>(b_panels, b_words).map(|(words, packed)| (Some(words), packed))?,
        None => (None, false),
    };
    let packs_b = match (&kept_b, b_is_packed) {
        (None, _) => PacksB::EachStage,
        (Some(_), false) => PacksB::Once,
        (Some(_), true) => PacksB::Never,
    };
    let tasks = plan.list_stages(a_panels, b_panels, packs_b, stages);
    let halves = stages.len().min(2);
    let block_len = plan.block_a_panels * kernel.rows * plan.block_b_panels * kernel.cols;
    let scratch_len = if sink.place().is_some() { 0 } else { threads * block_len };
    // Cleared each time: a consumer that panicked never released its scratch memory.
    scratch_taken.clear();
    scratch_taken.resize_with(threads, AtomicBool::default);
    let job = RunningProduct::<F, A> {
        isa,
        kernel,
        a,
        b,
        sink,
        packed_a: SharedPtr::new(packed_a.get(halves * plan.a_panels_max * plan.a_panel_words)?),
        packed_b: match kept_b {
            Some(words) => SharedPtr::new(words),
            None => SharedPtr::new(packed_b.get(halves * plan.b_panels_max * plan.b_panel_words)?),
        },
        scratch: SharedPtr::new(scratch.get(scratch_len)?),
        scratch_pool: ScratchPool { taken: scratch_taken },
        block_len,
        stages,
        packed: AtomicUsize::new(0),
        finished: AtomicUsize::new(0),
        broken: AtomicBool::new(false),
        plan,
    };
    match team {
        Some(team) => team.run(tasks, &|index| job.run_task(index)),
        None => (0..tasks).for_each(|index| job.run_task(index)),
    }
    if let Some(right) = right {
        right.settle::<F>(b_panels, b_words);
    }
    Ok(())
}

/// The stages that pack their part of B.
#[derive(Clone, Copy, PartialEq, Eq)]
enum PacksB {
    EachStage,
    /// Only the first stage packs, for all: B is packed as a whole.
    Once,
    Never,
}

impl BlockPlan {
    fn new<F: Format, A>(
        kernel: &Kernel<F::Word, A>,
        a: &MatRef<'_, F::Source>,
        b: &MatRef<'_, F::Source>,
        threads: usize,
        [a_bytes_max, b_bytes_max]: [usize; 2],
    ) -> BlockPlan {
        let (m, n) = (a.rows(), b.rows());
        let (steps, depth) = depth_of::<F, A>(kernel, a.cols());
        let a_panel_words = panel_words::<F::Word>(PanelOrder::Chunked, kernel.rows, steps);
        let b_panel_words = panel_words::<F::Word>(PanelOrder::Stepped, kernel.cols, steps);
        let (a_panels, b_panels) = (m.div_ceil(kernel.rows), n.div_ceil(kernel.cols));
        let a_panels_max = even_part(a_panels, a_bytes_max / (a_panel_words * size_of::<F::Word>()));
        let b_panels_max = even_part(b_panels, b_bytes_max / (b_panel_words * size_of::<F::Word>()));
        let mut block_a_panels = (BLOCK_ROWS_MAX / kernel.rows).clamp(1, a_panels_max);
        let mut block_b_panels = (BLOCK_COLS_MAX / kernel.cols).clamp(1, b_panels_max);
        let blocks = |down: usize, across: usize| a_panels_max.div_ceil(down) * b_panels_max.div_ceil(across);
        while threads > 1
            && blocks(block_a_panels, block_b_panels) < BLOCKS_PER_THREAD * threads
            && block_a_panels * block_b_panels > 1
        {
            if block_a_panels * kernel.rows * 2 >= block_b_panels * kernel.cols && block_a_panels > 1 {
                block_a_panels = block_a_panels.div_ceil(2);
            } else {
                block_b_panels = block_b_panels.div_ceil(2);
            }
        }
        BlockPlan {
            steps,
            depth,
            a_panel_words,
            b_panel_words,
            a_panels_max,
            b_panels_max,
            a_piece: PackTask::new::<F>(a, kernel.rows, steps),
            b_piece: PackTask::new::<F>(b, kernel.cols, steps),
            block_a_panels,
            block_b_panels,
        }
    }

    /// Fills `stages` and returns the number of tasks.
    fn list_stages(&self, a_panels: usize, b_panels: usize, packs_b: PacksB, stages: &mut Vec<Stage>) -> usize {
        stages.clear();
        let (mut tasks, mut packed, mut finished) = (0, 0, 0);
        for (a_index, a_start) in (0..a_panels).step_by(self.a_panels_max).enumerate() {
            let a_end = a_panels.min(a_start + self.a_panels_max);
            for b_start in (0..b_panels).step_by(self.b_panels_max) {
                let b_end = b_panels.min(b_start + self.b_panels_max);
                // A is packed with the first stage that needs it and kept for the following stages.
                let a_packs = if b_start == 0 { self.a_piece.tasks(a_end - a_start, self.steps) } else { 0 };
                let b_packs = match packs_b {
                    PacksB::EachStage => true,
                    PacksB::Once => stages.is_empty(),
                    PacksB::Never => false,
                };
                let stage = Stage {
                    first_task: tasks,
                    a_panels: a_start..a_end,
                    b_panels: b_start..b_end,
                    a_half: a_index % 2,
                    b_half: if packs_b == PacksB::EachStage { stages.len() % 2 } else { 0 },
                    a_tasks: a_packs,
                    b_tasks: if b_packs { self.b_piece.tasks(b_end - b_start, self.steps) } else { 0 },
                    blocks_down: (a_end - a_start).div_ceil(self.block_a_panels),
                    blocks_across: (b_end - b_start).div_ceil(self.block_b_panels),
                    packed_before: packed,
                    blocks_before: finished,
                };
                tasks += stage.packs() + stage.blocks();
                packed += stage.packs();
                finished += stage.blocks();
                stages.push(stage);
            }
        }
        tasks
    }
}

/// The steps of an inner dimension of `k`, and the number of steps that are summed at a time. All
/// algorithms of the packed product use the same numbers, so all have the same sums.
pub(super) fn depth_of<F: Format, A>(kernel: &Kernel<F::Word, A>, k: usize) -> (usize, usize) {
    let steps = k.div_ceil(F::GROUP).next_multiple_of(kernel.step_unit);
    let depths = steps.div_ceil(kernel.depth_steps);
    (steps, steps.div_ceil(depths).next_multiple_of(chunk_steps::<F::Word>()))
}

/// The size of equal parts of `total`, each at most `most` and at least one.
pub(super) fn even_part(total: usize, most: usize) -> usize {
    total.div_ceil(total.div_ceil(most.max(1)).max(1)).max(1)
}

/// One running product.
struct RunningProduct<'a, F: Format, A> {
    isa: Isa,
    kernel: &'a Kernel<F::Word, A>,
    a: MatRef<'a, F::Source>,
    b: MatRef<'a, F::Source>,
    sink: &'a dyn Sink<A>,
    packed_a: SharedPtr<F::Word>,
    packed_b: SharedPtr<F::Word>,
    scratch: SharedPtr<A>,
    scratch_pool: ScratchPool<'a>,
    block_len: usize,
    plan: BlockPlan,
    stages: &'a [Stage],
    packed: AtomicUsize,
    finished: AtomicUsize,
    broken: AtomicBool,
}

impl<F: Format, A: Accumulator> RunningProduct<'_, F, A> {
    fn run_task(&self, index: usize) {
        let number = self.stages.partition_point(|stage| stage.first_task <= index) - 1;
        let stage = &self.stages[number];
        let task = index - stage.first_task;
        let _guard = BreakOnPanic(&self.broken);
        if task < stage.packs() {
            let two_back = if number >= 2 { self.stages[number - 1].blocks_before } else { 0 };
            if wait_for(&self.packed, stage.packed_before, &self.broken)
                && wait_for(&self.finished, two_back, &self.broken)
            {
                self.pack(stage, task);
                self.packed.fetch_add(1, Ordering::Release);
            }
        } else if wait_for(&self.packed, stage.packed_before + stage.packs(), &self.broken)
            && wait_for(&self.finished, stage.blocks_before, &self.broken)
        {
            self.multiply_block(stage, task - stage.packs());
            self.finished.fetch_add(1, Ordering::Release);
        }
    }

    fn pack(&self, stage: &Stage, task: usize) {
        let plan = &self.plan;
        let a_side = task < stage.a_tasks;
        let (layout, lines, height, piece, panels) = if a_side {
            (PanelOrder::Chunked, &self.a, self.kernel.rows, plan.a_piece, &stage.a_panels)
        } else {
            (PanelOrder::Stepped, &self.b, self.kernel.cols, plan.b_piece, &stage.b_panels)
        };
        let task = if a_side { task } else { task - stage.a_tasks };
        let groups = panels.len().div_ceil(piece.panels);
        let first = panels.start + task % groups * piece.panels;
        let start = task / groups * piece.steps;
        let steps = piece.steps.min(plan.steps - start);
        let inner = |step: usize| (step * F::GROUP).min(lines.cols());
        let part = lines.columns(inner(start), inner(start + steps));
        for panel in first..panels.end.min(first + piece.panels) {
            let at = if a_side { self.a_panel(stage, panel) } else { self.b_panel(stage, panel) };
            let words = panel_words::<F::Word>(layout, height, steps);
            // SAFETY: these steps of the panel lie inside its half of the pack buffer. Only this
            // task writes them, and by rule 2 no task reads that half now.
            let to = unsafe { std::slice::from_raw_parts_mut(at.wrapping_add(start * height), words) };
            pack_panel::<F>(self.isa.simd, layout, &part, panel * height, height, steps, to);
        }
    }

    fn a_panel(&self, stage: &Stage, panel: usize) -> *mut F::Word {
        let slot = stage.a_half * self.plan.a_panels_max + panel - stage.a_panels.start;
        self.packed_a.at(slot * self.plan.a_panel_words)
    }

    fn b_panel(&self, stage: &Stage, panel: usize) -> *mut F::Word {
        let slot = stage.b_half * self.plan.b_panels_max + panel - stage.b_panels.start;
        self.packed_b.at(slot * self.plan.b_panel_words)
    }

    fn multiply_block(&self, stage: &Stage, block: usize) {
        let plan = &self.plan;
        let a_first = stage.a_panels.start + block % stage.blocks_down * plan.block_a_panels;
        let b_first = stage.b_panels.start + block / stage.blocks_down * plan.block_b_panels;
        let a_panels = a_first..stage.a_panels.end.min(a_first + plan.block_a_panels);
        let b_panels = b_first..stage.b_panels.end.min(b_first + plan.block_b_panels);
        let rows = a_panels.start * self.kernel.rows..self.a.rows().min(a_panels.end * self.kernel.rows);
        let cols = b_panels.start * self.kernel.cols..self.b.rows().min(b_panels.end * self.kernel.cols);
        let claimed = self.sink.place().is_none().then(|| self.scratch_pool.claim());
        let (sums, ld) = match (self.sink.place(), claimed) {
            (Some((result, ld)), _) => (result.at(rows.start * ld + cols.start), ld),
            (None, slot) => {
                (self.scratch.at(slot.unwrap_or(0) * self.block_len), plan.block_b_panels * self.kernel.cols)
            }
        };
        // SAFETY: only kernels that were chosen after the tile unit was permitted use tiles.
        #[cfg(target_arch = "x86_64")]
        let _tiles = self.kernel.uses_tiles.then(|| unsafe { super::kernel::amx::TileState::load() });
        let (first_a, first_b) = (self.a_panel(stage, a_panels.start), self.b_panel(stage, b_panels.start));
        for step in (0..plan.steps).step_by(plan.depth) {
            let steps = plan.depth.min(plan.steps - step);
            let sweep = Sweep {
                kernel: self.kernel,
                sink: self.sink,
                rows: rows.clone(),
                cols: cols.clone(),
                steps,
                a: first_a.wrapping_add(step * self.kernel.rows),
                a_pitch: plan.a_panel_words,
                b: first_b.wrapping_add(step * self.kernel.cols),
                b_pitch: plan.b_panel_words,
                sums,
                ld,
                accumulate: step > 0 || self.sink.resumes(),
                finishes: step + steps == plan.steps,
            };
            // SAFETY: by rule 3 the panels are packed for `steps` steps from `step` (a multiple of
            // a chunk) on, and only this task accesses these sums.
            unsafe { sweep.run() };
        }
        // SAFETY: the block's sums are complete, and only this task has this block and this scratch
        // memory.
        unsafe { self.sink.block(rows, cols, sums, ld) };
        if let Some(slot) = claimed {
            self.scratch_pool.give_back(slot);
        }
    }
}

/// Waits until `counter` has reached `target`. False if the job is broken.
pub(super) fn wait_for(counter: &AtomicUsize, target: usize, broken: &AtomicBool) -> bool {
    let mut spins = 0_u32;
    while counter.load(Ordering::Acquire) < target {
        if broken.load(Ordering::Relaxed) {
            return false;
        }
        spins += 1;
        if spins < 20_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
    true
}

/// Marks the job as broken if a task panics.
pub(super) struct BreakOnPanic<'a>(pub(super) &'a AtomicBool);

impl Drop for BreakOnPanic<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}
