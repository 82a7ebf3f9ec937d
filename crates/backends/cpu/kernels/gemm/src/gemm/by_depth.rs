//! The blocked product that keeps its sums in the result itself and iterates over parts of k.
//!
//! The columns of the result are split into strips and k into depths; a stage is one depth of one
//! strip. Its part of B is packed once for all threads and stays in the third-level cache. A task
//! takes some rows, packs its part of A into its own memory, which stays in its second-level cache,
//! and multiplies it with all panels of the stage. Only B, once for each task, is read by other
//! threads soon after one thread wrote it.
//!
//! The whole product is one job of the team, and threads synchronise only by these rules:
//!
//! 1. Tasks are numbered stage by stage: first the packing of a stage, then its blocks. The team
//!    starts them in order, so a task that waits only for lower numbers waits for tasks that are
//!    already running.
//! 2. Packing stage `s` waits until the blocks of `s - 2` are done: there are two pack buffers.
//! 3. A block of stage `s` waits until the packing of `s` is done, and until its rows are done in
//!    stage `s - 1`. Both stages may add to the same sums, always in this order, so the result does
//!    not depend on which thread is faster.
//! 4. Blocks of the last stage become smaller and smaller, so that all threads finish at about the
//!    same time.
//! 5. A task that panics (a sink may) marks the job as broken; waiting tasks then return at once.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::Isa;
use super::driver::{BreakOnPanic, PackTask, depth_of, even_part, wait_for};
use super::element::Accumulator;
use super::kernel::Kernel;
use super::pack::{Format, PanelOrder, pack_panel, panel_words};
use super::sweep::{Sink, Sweep};
use super::view::{MatRef, SharedPtr};
use super::workspace::{OutOfMemory, ScratchPool, Workspace};
use crate::team::Team;

/// Approximate size of a task's part of A: it stays in a second-level cache beside the data that
/// streams through.
const A_BLOCK_BYTES: usize = 576 << 10;
/// Minimum panels of A for each thread: with fewer, rows alone do not keep all threads busy.
const A_PANELS_PER_THREAD_MIN: usize = 8;
/// Minimum panels of A in a task, if there are enough: with fewer, the task would wait for B's
/// panels.
const TASK_A_PANELS_MIN: usize = 2;

/// A depth of a strip of columns.
#[derive(Debug)]
pub(super) struct Stage {
    first_task: usize,
    steps: Range<usize>,
    b_panels: Range<usize>,
    pack_tasks: usize,
    /// Numbers of finished packing tasks and of finished blocks.
    packed: AtomicUsize,
    finished: AtomicUsize,
}

/// The progress counters of a job; kept between jobs to reuse their memory.
#[derive(Debug, Default)]
pub(super) struct Progress {
    stages: Vec<Stage>,
    /// For each block of rows, the number of finished stages.
    rows_done: Vec<AtomicUsize>,
    /// The blocks of the last stage, in panels of A.
    last_blocks: Vec<Range<usize>>,
}

/// One running product.
struct ProductByDepth<'a, F: Format, A> {
    isa: Isa,
    kernel: &'a Kernel<F::Word, A>,
    a: MatRef<'a, F::Source>,
    b: MatRef<'a, F::Source>,
    sink: &'a dyn Sink<A>,
    sums: SharedPtr<A>,
    ld: usize,
    packed_a: SharedPtr<F::Word>,
    packed_b: SharedPtr<F::Word>,
    a_pool: ScratchPool<'a>,
    plan: DepthPlan,
    progress: &'a Progress,
    broken: AtomicBool,
}

/// The sizes of depths, panels, blocks and strips.
struct DepthPlan {
    steps: usize,
    depth: usize,
    a_panels: usize,
    block_a_panels: usize,
    strip_b_panels: usize,
    b_panels: usize,
    b_piece: PackTask,
}

/// Whether a product whose sums have a place in the result uses this algorithm. The choice affects
/// speed only: the depths, and therefore the sums, are the same.
pub(super) fn suits<W, A>(kernel: &Kernel<W, A>, rows: usize, threads: usize) -> bool {
    threads == 1 || rows.div_ceil(kernel.rows) >= threads * A_PANELS_PER_THREAD_MIN
}

/// Multiplies `a` (one row per line) with `b` (one column per line) into `place`, the memory of the
/// sums in the result.
pub(super) fn multiply<F: Format, A: Accumulator>(
    team: Option<&Team>,
    workspace: &mut Workspace,
    isa: Isa,
    kernel: &Kernel<F::Word, A>,
    a: MatRef<'_, F::Source>,
    b: MatRef<'_, F::Source>,
    sink: &dyn Sink<A>,
    place: (SharedPtr<A>, usize),
) -> Result<(), OutOfMemory> {
    let threads = team.map_or(1, Team::threads);
    let plan = DepthPlan::new::<F, A>(kernel, &a, &b, workspace.pack_bytes_max);
    let Workspace { packed_a, packed_b, scratch_taken, progress, .. } = workspace;
    let tasks = plan.list_tasks(threads, progress);
    let halves = progress.stages.len().min(2);
    // Cleared each time: a sink that panicked never released its memory.
    scratch_taken.clear();
    scratch_taken.resize_with(threads, AtomicBool::default);
    let job = ProductByDepth::<F, A> {
        isa,
        kernel,
        a,
        b,
        sink,
        sums: place.0,
        ld: place.1,
        packed_a: SharedPtr::new(packed_a.get(threads * plan.block_a_panels * plan.a_panel_words(kernel))?),
        packed_b: SharedPtr::new(packed_b.get(halves * plan.half_words(kernel))?),
        a_pool: ScratchPool { taken: scratch_taken },
        plan,
        progress,
        broken: AtomicBool::new(false),
    };
    match team {
        Some(team) => team.run(tasks, &|index| job.run_task(index)),
        None => (0..tasks).for_each(|index| job.run_task(index)),
    }
    Ok(())
}

impl DepthPlan {
    fn new<F: Format, A>(
        kernel: &Kernel<F::Word, A>,
        a: &MatRef<'_, F::Source>,
        b: &MatRef<'_, F::Source>,
        pack_bytes_max: usize,
    ) -> DepthPlan {
        let (steps, depth) = depth_of::<F, A>(kernel, a.cols());
        let (a_panels, b_panels) = (a.rows().div_ceil(kernel.rows), b.rows().div_ceil(kernel.cols));
        let line_bytes = depth * size_of::<F::Word>();
        DepthPlan {
            steps,
            depth,
            a_panels,
            block_a_panels: (A_BLOCK_BYTES / (line_bytes * kernel.rows)).clamp(1, a_panels),
            strip_b_panels: even_part(b_panels, pack_bytes_max / (line_bytes * kernel.cols)),
            b_panels,
            b_piece: PackTask::new::<F>(b, kernel.cols, depth),
        }
    }

    /// Words of a panel of A for one depth.
    fn a_panel_words<W, A>(&self, kernel: &Kernel<W, A>) -> usize {
        panel_words::<W>(PanelOrder::Chunked, kernel.rows, self.depth)
    }

    /// Maximum words of B that a stage packs.
    fn half_words<W, A>(&self, kernel: &Kernel<W, A>) -> usize {
        self.strip_b_panels * panel_words::<W>(PanelOrder::Stepped, kernel.cols, self.depth)
    }

    /// Fills `progress` and returns the number of tasks.
    fn list_tasks(&self, threads: usize, progress: &mut Progress) -> usize {
        let Progress { stages, rows_done, last_blocks } = progress;
        stages.clear();
        rows_done.clear();
        last_blocks.clear();
        rows_done.resize_with(self.a_panels.div_ceil(self.block_a_panels), AtomicUsize::default);
        let mut start = 0;
        while start < self.a_panels {
            let left = self.a_panels - start;
            let share = if threads == 1 { left } else { left.div_ceil(2 * threads).max(TASK_A_PANELS_MIN) };
            let end = start + share.min(self.block_a_panels).min(left);
            last_blocks.push(start..end);
            start = end;
        }
        let mut tasks = 0;
        for b_start in (0..self.b_panels).step_by(self.strip_b_panels) {
            let b_panels = b_start..self.b_panels.min(b_start + self.strip_b_panels);
            for step in (0..self.steps).step_by(self.depth) {
                let steps = step..self.steps.min(step + self.depth);
                let is_last = b_panels.end == self.b_panels && steps.end == self.steps;
                let pack_tasks = self.b_piece.tasks(b_panels.len(), steps.len());
                let stage = Stage {
                    first_task: tasks,
                    steps,
                    b_panels: b_panels.clone(),
                    pack_tasks,
                    packed: AtomicUsize::new(0),
                    finished: AtomicUsize::new(0),
                };
                tasks += pack_tasks + if is_last { last_blocks.len() } else { rows_done.len() };
                stages.push(stage);
            }
        }
        tasks
    }
}

impl<F: Format, A: Accumulator> ProductByDepth<'_, F, A> {
    fn run_task(&self, index: usize) {
        let stages = &self.progress.stages;
        let number = stages.partition_point(|stage| stage.first_task <= index) - 1;
        let stage = &stages[number];
        let task = index - stage.first_task;
        let _guard = BreakOnPanic(&self.broken);
        if task < stage.pack_tasks {
            // Rule 2.
            let free =
                number < 2 || wait_for(&stages[number - 2].finished, self.progress.rows_done.len(), &self.broken);
            if free {
                self.pack_b(stage, number, task);
                stage.packed.fetch_add(1, Ordering::Release);
            }
        } else {
            self.run_block(stage, number, task - stage.pack_tasks);
        }
    }

    fn run_block(&self, stage: &Stage, number: usize, block: usize) {
        let (plan, progress) = (&self.plan, self.progress);
        let is_last = number + 1 == progress.stages.len();
        let a_panels = if is_last {
            progress.last_blocks[block].clone()
        } else {
            let first = block * plan.block_a_panels;
            first..plan.a_panels.min(first + plan.block_a_panels)
        };
        let slot = self.a_pool.claim();
        let a = self.packed_a.at(slot * plan.block_a_panels * plan.a_panel_words(self.kernel));
        self.pack_a(stage, a_panels.clone(), a);
        // Rule 3.
        let before = a_panels.start / plan.block_a_panels..a_panels.end.div_ceil(plan.block_a_panels);
        let ready = wait_for(&stage.packed, stage.pack_tasks, &self.broken)
            && progress.rows_done[before].iter().all(|rows| wait_for(rows, number, &self.broken));
        if ready {
            self.multiply_block(stage, number, a_panels, a);
            if !is_last {
                progress.rows_done[block].store(number + 1, Ordering::Release);
            }
            stage.finished.fetch_add(1, Ordering::Release);
        }
        self.a_pool.give_back(slot);
    }

    fn pack_b(&self, stage: &Stage, number: usize, task: usize) {
        let (piece, height, panels) = (self.plan.b_piece, self.kernel.cols, &stage.b_panels);
        let groups = panels.len().div_ceil(piece.panels);
        let first = panels.start + task % groups * piece.panels;
        let start = task / groups * piece.steps;
        let steps = piece.steps.min(stage.steps.len() - start);
        let from = stage.steps.start + start;
        let part = self.inner(&self.b, from..from + steps);
        for panel in first..panels.end.min(first + piece.panels) {
            let at = self.b_panel(stage, number, panel).wrapping_add(start * height);
            let words = panel_words::<F::Word>(PanelOrder::Stepped, height, steps);
            // SAFETY: these steps of the panel lie inside its half of the pack buffer. Only this
            // task writes them, and by rule 2 no task reads that half now.
            let to = unsafe { std::slice::from_raw_parts_mut(at, words) };
            pack_panel::<F>(self.isa.simd, PanelOrder::Stepped, &part, panel * height, height, steps, to);
        }
    }

    fn pack_a(&self, stage: &Stage, panels: Range<usize>, to: *mut F::Word) {
        let (height, pitch) = (self.kernel.rows, self.plan.a_panel_words(self.kernel));
        let part = self.inner(&self.a, stage.steps.clone());
        let words = panel_words::<F::Word>(PanelOrder::Chunked, height, stage.steps.len());
        for (index, panel) in panels.enumerate() {
            // SAFETY: the memory has room for a block's panels, and belongs to the task that has
            // claimed it.
            let to = unsafe { std::slice::from_raw_parts_mut(to.wrapping_add(index * pitch), words) };
            pack_panel::<F>(self.isa.simd, PanelOrder::Chunked, &part, panel * height, height, stage.steps.len(), to);
        }
    }

    /// The columns of `lines` (along k) that belong to these steps.
    fn inner<'m>(&self, lines: &MatRef<'m, F::Source>, steps: Range<usize>) -> MatRef<'m, F::Source> {
        let column = |step: usize| (step * F::GROUP).min(lines.cols());
        lines.columns(column(steps.start), column(steps.end))
    }

    fn b_panel(&self, stage: &Stage, number: usize, panel: usize) -> *mut F::Word {
        let pitch = panel_words::<F::Word>(PanelOrder::Stepped, self.kernel.cols, stage.steps.len());
        let half = number % 2 * self.plan.half_words(self.kernel);
        self.packed_b.at(half + (panel - stage.b_panels.start) * pitch)
    }

    fn multiply_block(&self, stage: &Stage, number: usize, a_panels: Range<usize>, a: *const F::Word) {
        let (plan, kernel, steps) = (&self.plan, self.kernel, stage.steps.len());
        let rows = a_panels.start * kernel.rows..self.a.rows().min(a_panels.end * kernel.rows);
        let cols = stage.b_panels.start * kernel.cols..self.b.rows().min(stage.b_panels.end * kernel.cols);
        // SAFETY: only kernels that were chosen after the tile unit was permitted use tiles.
        #[cfg(target_arch = "x86_64")]
        let _tiles = kernel.uses_tiles.then(|| unsafe { super::kernel::amx::TileState::load() });
        let sweep = Sweep {
            kernel,
            sink: self.sink,
            steps,
            a,
            a_pitch: plan.a_panel_words(kernel),
            b: self.b_panel(stage, number, stage.b_panels.start),
            b_pitch: panel_words::<F::Word>(PanelOrder::Stepped, kernel.cols, steps),
            sums: self.sums.at(rows.start * self.ld + cols.start),
            ld: self.ld,
            accumulate: stage.steps.start > 0 || self.sink.resumes(),
            finishes: stage.steps.end == plan.steps,
            rows,
            cols,
        };
        // SAFETY: by rule 3 the panels are packed, and only this task accesses these sums now.
        unsafe { sweep.run() };
    }
}
