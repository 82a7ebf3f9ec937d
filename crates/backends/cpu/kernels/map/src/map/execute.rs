//! Execution of a plan over an output, block by block.

use std::mem::MaybeUninit;
use std::ops::Range;

use panoply_core::{Error, Result, Shape, Tensor};

use super::kernel::fill_fn;
use super::layout::{Access, MapLayout, View};
use super::plan::{KernelCall, MapPlan, OperandPlace};
use super::stream;
use crate::team::Team;

/// Size of one block of scratch memory. A few blocks fit the first-level cache together with the
/// inputs' blocks.
const REGISTER_BYTES: usize = 4096;

/// Maximum scratch blocks on a thread's stack; plans that need more use the heap.
const STACK_REGISTERS_MAX: usize = 12;

/// Maximum inputs whose views are kept on the stack.
const STACK_VIEWS_MAX: usize = 4;

/// Minimum cost of the work for which a second thread pays off, in elements of a plain vector
/// operation.
const THREAD_WORK_MIN: usize = 32 << 10;

/// Threads take multiples of this number of elements, so that they do not share cache lines.
const GRAIN_ELEMENTS: usize = 1024;

/// Minimum size of outputs that are written past the caches.
const STREAM_BYTES_MIN: usize = 16 << 20;

/// Computes the plan's program for every element of `shape` into `output`.
///
/// Fails if an input cannot be broadcast to the shape, is not on the host, or has a different dtype
/// than in the plan, or if the output has the wrong size.
pub fn execute<'a>(
    plan: &MapPlan,
    inputs: impl ExactSizeIterator<Item = &'a Tensor>,
    shape: &Shape,
    output: &mut [u8],
    team: &Team,
) -> Result<()> {
    let count = inputs.len();
    if count != plan.input_dtypes.len() {
        return Err(Error::invalid("map inputs", plan.input_dtypes.len().to_string(), count));
    }
    let bytes = shape.elements() * plan.output_dtype.size_bytes();
    if output.len() != bytes {
        return Err(Error::invalid("map output", format!("{bytes} bytes"), output.len()));
    }
    if count <= STACK_VIEWS_MAX {
        run(plan, inputs, shape, output, team, &mut [View::EMPTY; STACK_VIEWS_MAX][..count])
    } else {
        run(plan, inputs, shape, output, team, &mut vec![View::EMPTY; count])
    }
}

fn run<'a>(
    plan: &MapPlan,
    inputs: impl Iterator<Item = &'a Tensor>,
    shape: &Shape,
    output: &mut [u8],
    team: &Team,
    views: &mut [View],
) -> Result<()> {
    for ((view, tensor), expected) in views.iter_mut().zip(inputs).zip(&plan.input_dtypes) {
        if tensor.dtype() != *expected {
            return Err(Error::DTypeMismatch { what: "map input", expected: *expected, got: tensor.dtype() });
        }
        *view = View::new(tensor, shape)?;
    }
    let elements = shape.elements();
    if elements == 0 {
        return Ok(());
    }
    let layout = MapLayout::new(shape, views);
    let streams = output.len() >= STREAM_BYTES_MIN && stream::available(plan.simd);
    let sink = if streams { Sink::Streamed } else { Sink::Direct };
    let pass = MapPass::new(plan, layout, output.as_mut_ptr(), sink);
    let grain = (THREAD_WORK_MIN / plan.cost.max(1)).next_multiple_of(GRAIN_ELEMENTS);
    // SAFETY: the ranges are below `elements` and do not overlap, and the views and the output live
    // until this returns.
    team.run_ranges(elements, grain, &|range| unsafe { pass.range(range) });
    Ok(())
}

/// How a block's results get into the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sink {
    /// The last kernel writes them there.
    Direct,
    /// They are copied there past the caches.
    Streamed,
    /// They are copied there when the block is done, because an input may be in the same memory.
    Buffered,
}

/// One run of a plan: the data that all threads share.
pub(super) struct MapPass<'a> {
    plan: &'a MapPlan,
    layout: MapLayout<'a>,
    output: *mut u8,
    sink: Sink,
    /// Scratch blocks: the plan's registers, one for each input that cannot be read in place, and
    /// one for results that are copied.
    scratch_blocks: usize,
    block_elements: usize,
}

// SAFETY: the inputs are only read, the output is written at disjoint ranges, and everything else
// is shared data.
unsafe impl Sync for MapPass<'_> {}

impl<'a> MapPass<'a> {
    /// `output` is the address of the element at position zero, which need not be valid.
    pub(super) fn new(plan: &'a MapPlan, layout: MapLayout<'a>, output: *mut u8, sink: Sink) -> MapPass<'a> {
        let copies = sink != Sink::Direct;
        let indirect = |view: &&View| view.access() != Access::Linear;
        let gathered = layout.views().iter().filter(indirect).count();
        let widest = layout.views().iter().filter(indirect).map(View::size_bytes).max().unwrap_or(1);
        let widest = widest.max(plan.register_element_bytes);
        let widest = if copies { widest.max(plan.output_dtype.size_bytes()) } else { widest };
        let scratch_blocks = plan.registers as usize + gathered + usize::from(copies);
        let block_elements = if scratch_blocks == 0 { usize::MAX } else { REGISTER_BYTES / widest };
        MapPass { plan, layout, output, sink, scratch_blocks, block_elements }
    }

    /// # Safety
    /// The range is within the output, nothing else accesses it, and the inputs' memory is alive.
    pub(super) unsafe fn range(&self, range: Range<usize>) {
        if self.scratch_blocks == 0 {
            // SAFETY: the caller's contract; without scratch blocks the pointer is never used.
            unsafe { self.blocks(range, std::ptr::null_mut()) }
        } else {
            // SAFETY: the caller's contract.
            unsafe { self.range_with_scratch(range) }
        }
    }

    /// A separate function, so that only calls with scratch blocks pay for the large stack frame.
    ///
    /// # Safety
    /// As for [`MapPass::range`].
    #[inline(never)]
    unsafe fn range_with_scratch(&self, range: Range<usize>) {
        let mut stack = MaybeUninit::<Scratch<STACK_REGISTERS_MAX>>::uninit();
        let mut heap: Vec<MaybeUninit<Scratch<1>>> = Vec::new();
        let scratch: *mut u8 = if self.scratch_blocks <= STACK_REGISTERS_MAX {
            stack.as_mut_ptr().cast()
        } else {
            heap.reserve_exact(self.scratch_blocks);
            heap.as_mut_ptr().cast()
        };
        // SAFETY: the caller's contract; `scratch` holds `scratch_blocks` blocks, aligned to a
        // cache line.
        unsafe { self.blocks(range, scratch) }
    }

    /// # Safety
    /// As for [`MapPass::range`], with `scratch` valid for the pass's scratch blocks.
    unsafe fn blocks(&self, range: Range<usize>, scratch: *mut u8) {
        let mut sources = [std::ptr::null::<u8>(); panoply_core::expr::INPUTS_MAX as usize];
        let sources = &mut sources[..self.layout.views().len()];
        let first = self.block_elements.min(range.len());
        let run_elements = self.layout.run_elements();
        // SAFETY: the caller's contract.
        unsafe {
            for step in &self.plan.prologue {
                self.step(step, sources, scratch, scratch, first);
            }
            self.fill_scalars(sources, scratch, first);
        }
        let mut position = range.start;
        while position < range.end {
            let mut len = self.block_elements.min(range.end - position);
            if let Some(run) = run_elements {
                len = len.min(run - position % run);
            }
            // SAFETY: the caller's contract; `position + len` is at most the range's end.
            unsafe { self.block(position, len, sources, scratch, run_elements.is_some()) };
            position += len;
        }
        stream::finish(self.sink == Sink::Streamed);
    }

    /// # Safety
    /// As for [`MapPass::blocks`], and the block is within the range.
    unsafe fn block(&self, position: usize, len: usize, sources: &mut [*const u8], scratch: *mut u8, one_run: bool) {
        // SAFETY: the caller's contract.
        unsafe { self.locate(position, len, sources, scratch, one_run) };
        let size_bytes = self.plan.output_dtype.size_bytes();
        let output = self.output.wrapping_add(position * size_bytes);
        let target = match self.sink {
            Sink::Direct => output,
            // SAFETY: the last scratch block is the one for results.
            Sink::Streamed | Sink::Buffered => unsafe { scratch.add((self.scratch_blocks - 1) * REGISTER_BYTES) },
        };
        for step in &self.plan.steps {
            // SAFETY: all places are valid for `len` elements, and no target is a source.
            unsafe { self.step(step, sources, scratch, target, len) };
        }
        match self.sink {
            Sink::Direct => {}
            // SAFETY: both blocks hold `len` elements, and the CPU has the instructions that
            // `stream::available` checks.
            Sink::Streamed => unsafe { stream::copy(output, target, len * size_bytes) },
            // SAFETY: both blocks hold `len` elements, and one is scratch memory.
            Sink::Buffered => unsafe { std::ptr::copy_nonoverlapping(target, output, len * size_bytes) },
        }
    }

    /// # Safety
    /// As for [`MapPass::block`].
    #[inline(always)]
    unsafe fn step(&self, step: &KernelCall, sources: &[*const u8], scratch: *mut u8, output: *mut u8, len: usize) {
        let resolve = |place: OperandPlace| match place {
            OperandPlace::Input(index) => sources[index as usize].cast_mut(),
            // SAFETY: registers are the first scratch blocks.
            OperandPlace::Register(index) => unsafe { scratch.add(index as usize * REGISTER_BYTES) },
            OperandPlace::Constant(index) => (&raw const self.plan.constants[index as usize]).cast::<u8>().cast_mut(),
            OperandPlace::Output => output,
        };
        let [a, b, c] = step.sources.map(resolve);
        // SAFETY: the plan's kernels are of its level; the caller guarantees the rest.
        unsafe { (step.run)(resolve(step.target), a, b, c, len) }
    }

    /// Fills the scratch blocks of inputs of one element with that element.
    ///
    /// # Safety
    /// As for [`MapPass::blocks`].
    unsafe fn fill_scalars(&self, sources: &mut [*const u8], scratch: *mut u8, len: usize) {
        let mut next = self.plan.registers as usize;
        for (source, view) in sources.iter_mut().zip(self.layout.views()) {
            if view.access() == Access::Linear {
                continue;
            }
            // SAFETY: each non-linear view has a scratch block after the registers.
            let block = unsafe { scratch.add(next * REGISTER_BYTES) };
            next += 1;
            *source = block;
            if view.access() == Access::Scalar {
                let fill = fill_fn(view.size_bytes(), self.plan.simd);
                // SAFETY: the view has one element, and the block holds `len` of them.
                unsafe { fill(block, view.base(), view.base(), view.base(), len) };
            }
        }
    }

    /// Sets the source of each input of one block, gathering inputs if necessary.
    ///
    /// # Safety
    /// As for [`MapPass::block`].
    unsafe fn locate(&self, position: usize, len: usize, sources: &mut [*const u8], scratch: *mut u8, one_run: bool) {
        let mut next = self.plan.registers as usize;
        for (source, view) in sources.iter_mut().zip(self.layout.views()) {
            if view.access() == Access::Linear {
                *source = view.base().wrapping_add(position * view.size_bytes());
                continue;
            }
            // SAFETY: each non-linear view has a scratch block after the registers.
            let block = unsafe { scratch.add(next * REGISTER_BYTES) };
            next += 1;
            if view.access() == Access::Scalar {
                continue;
            }
            if one_run {
                let (start, step) = self.layout.locate(view, position);
                match step {
                    1 => *source = start,
                    0 => {
                        let fill = fill_fn(view.size_bytes(), self.plan.simd);
                        // SAFETY: the view's element is alive, and the block holds `len` elements.
                        unsafe { fill(block, start, start, start, len) };
                    }
                    // SAFETY: the caller's contract, and the block holds `len` elements.
                    _ => unsafe { self.layout.gather(view, position, len, block) },
                }
            } else {
                // SAFETY: as above.
                unsafe { self.layout.gather(view, position, len, block) };
            }
        }
    }
}

/// Scratch blocks, aligned to a cache line.
#[repr(align(64))]
struct Scratch<const BLOCKS: usize>(#[allow(dead_code)] [[u8; REGISTER_BYTES]; BLOCKS]);
