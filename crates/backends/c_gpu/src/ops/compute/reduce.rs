//! Reduce: as rows if the reduced elements are adjacent, as columns if the outputs are adjacent,
//! and for any layout otherwise. One launch: if an output has several blocks, the last block to
//! finish combines their partial results.

use panoply_core::op::compute::{Reduce, Reduction};
use panoply_core::{DType, Result, Support, Value};
use panoply_kernels::c::{Kernel, REDUCE};

use crate::arguments::Arguments;
use crate::context::{COUNTERS, Context};
use crate::driver::{Address, Launch};
use crate::layout::{Layout, View};
use crate::strides::Axes;

const BLOCK_THREADS: usize = 256;
/// Maximum lanes that share a row: as many as every warp has.
const SHARING_LANES: usize = 32;
const VECTOR_BYTES: usize = 16;
/// Minimum vectors of a row for which the row has its own block.
const BLOCK_VECTORS_MIN: usize = 1024;
/// The same minimum if there are fewer outputs than the device has warps for.
const FEW_OUTPUTS_VECTORS_MIN: usize = 128;
/// Blocks per multiprocessor that keep all of its threads busy.
const BLOCKS_PER_MULTIPROCESSOR: usize = 8;
/// Minimum loads per thread before another block pays.
const LOADS_PER_THREAD_MIN: usize = 8;
/// Size of the largest partial result.
const PARTIAL_BYTES_MAX: usize = 16;

pub(crate) fn run(op: &Reduce, context: &mut Context) -> Result<Value> {
    let output = context.output(op.output_dtype(), op.output_shape()?)?;
    let outputs = op.output_shape()?.elements();
    if outputs == 0 {
        return Ok(Value::Tensor(output.into_tensor()));
    }
    let view = context.view(&op.input)?;
    ReduceTask::new(op, &view, outputs)?.run(output.address, context)?;
    Ok(Value::Tensor(output.into_tensor()))
}

/// The means of f32 numbers at distance `inner`: `count` numbers each, for `outer` groups of
/// `inner`. None of the three is zero.
pub(crate) fn means(
    target: Address,
    source: Address,
    [outer, count, inner]: [usize; 3],
    context: &mut Context,
) -> Result<()> {
    let (mut kept, mut reduced) = (Axes::new(), Axes::new());
    kept.push(inner, [1]);
    kept.push(outer, [(count * inner) as i64]);
    reduced.push(count, [inner as i64]);
    kept.collapse(1);
    reduced.collapse(1);
    let (dtype, reduction) = (DType::F32, Reduction::Mean);
    ReduceTask { source, kept, reduced, dtype, reduction, outputs: outer * inner, count }.run(target, context)
}

/// The position of an extremum is a 32-bit number.
pub(crate) fn supports(op: &Reduce) -> Support {
    let is_arg = matches!(op.reduction, Reduction::ArgMax | Reduction::ArgMin);
    match op.count() {
        Ok(count) if is_arg && count > u32::MAX as usize => {
            Support::No(format!("positions among {count} elements do not fit into 32 bits"))
        }
        _ => Support::Yes,
    }
}

struct ReduceTask {
    source: Address,
    kept: Axes<1>,
    reduced: Axes<1>,
    dtype: DType,
    reduction: Reduction,
    outputs: usize,
    count: usize,
}

impl ReduceTask {
    fn new(op: &Reduce, view: &View, outputs: usize) -> Result<ReduceTask> {
        let flags = op.reduced()?;
        let (mut kept, mut reduced) = (Axes::new(), Axes::new());
        for ((size, stride), is_reduced) in view.layout.axes().zip(flags.iter().rev()) {
            let group = if *is_reduced { &mut reduced } else { &mut kept };
            group.push(size, [stride]);
        }
        kept.collapse(1);
        reduced.collapse(1);
        let (dtype, reduction) = (op.input.dtype(), op.reduction);
        Ok(ReduceTask { source: view.address, kept, reduced, dtype, reduction, outputs, count: op.count()? })
    }

    fn run(&self, target: Address, context: &mut Context) -> Result<()> {
        if self.has_columns() { self.columns(target, context) } else { self.rows(target, context) }
    }

    /// Whether a set's elements are adjacent.
    fn is_flat(&self) -> bool {
        self.reduced.rank == 0 || self.reduced.rank == 1 && self.reduced.strides[0][0] == 1
    }

    /// Whether the outputs are adjacent, and the sets are not.
    fn has_columns(&self) -> bool {
        !self.is_flat() && self.kept.rank > 0 && self.kept.strides[0][0] == 1
    }

    /// Elements per load: as many as fit 16 bytes if every row or column is aligned to 16 bytes,
    /// else one.
    fn vector(&self, strides: impl Iterator<Item = i64>) -> usize {
        let width = VECTOR_BYTES / self.dtype.size_bytes();
        let mut strides = strides;
        let aligned =
            self.source.is_multiple_of(VECTOR_BYTES as u64) && strides.all(|stride| stride % width as i64 == 0);
        if aligned { width } else { 1 }
    }

    /// The same if a set's elements are in several rows, which must then consist of whole vectors.
    fn vector_along_rows(&self, kept: impl Iterator<Item = i64>) -> usize {
        let Axes { sizes, strides: [strides], rank } = &self.reduced;
        let width = self.vector(kept.chain(strides[1..*rank].iter().copied()));
        if strides[0] == 1 && sizes[0].is_multiple_of(width) { width } else { 1 }
    }

    fn kernel(&self, entry: &'static str, vector: usize) -> Kernel {
        let operation = match self.reduction {
            Reduction::Sum => 0,
            Reduction::Mean => 1,
            Reduction::Max => 2,
            Reduction::Min => 3,
            Reduction::ArgMax => 4,
            Reduction::ArgMin => 5,
        };
        let kernel = Kernel::new(REDUCE, entry)
            .dtype("T", self.dtype)
            .dtype("R", self.reduction.output_dtype(self.dtype))
            .integer("OPERATION", operation)
            .integer("VECTOR", vector as i64)
            .integer("VECTOR_BYTES", (vector * self.dtype.size_bytes()) as i64);
        kernel.flag(if entry == "rows" { "ROWS" } else { "COLUMNS" }, true)
    }

    fn rows(&self, target: Address, context: &mut Context) -> Result<()> {
        let flat = self.is_flat();
        let kept = self.kept.strides[0][..self.kept.rank].iter().copied();
        let vector = if flat { self.vector(kept) } else { self.vector_along_rows(kept) };
        let vectors = self.count / vector;
        let busy = context.multiprocessors() * BLOCKS_PER_MULTIPROCESSOR;
        let few = self.outputs < busy * BLOCK_THREADS / SHARING_LANES && vectors >= FEW_OUTPUTS_VECTORS_MIN;
        let kernel = self.kernel("rows", vector).flag("FLAT", flat);
        let arguments = Arguments::new()
            .address(target)
            .address(self.source)
            .layout(&Layout::of_axes(&self.kept, 0))
            // Adjacent elements need no layout, and their number may exceed 32 bits.
            .layout(&if flat { Layout::default() } else { Layout::of_axes(&self.reduced, 0) });
        if vectors >= BLOCK_VECTORS_MIN || few {
            let split = ReduceSplit::new(self.outputs, self.count, BLOCK_THREADS * vector, busy, context)?;
            let launch = Launch::new(self.outputs * split.splits, BLOCK_THREADS);
            let mut arguments = split.arguments(arguments.u64(self.count as u64));
            return context.launch(&kernel.flag("BLOCKS", true), launch, &mut arguments);
        }
        let group = vectors.div_ceil(4).next_power_of_two().clamp(1, SHARING_LANES.min(context.warp_lanes()));
        let launch = Launch::new((self.outputs * group).div_ceil(BLOCK_THREADS), BLOCK_THREADS);
        let mut arguments = arguments.u64(self.outputs as u64).u64(self.count as u64).size(group);
        context.launch(&kernel, launch, &mut arguments)
    }

    fn columns(&self, target: Address, context: &mut Context) -> Result<()> {
        let inner = self.kept.sizes[0];
        let mut outer = Axes::<1>::new();
        for axis in 1..self.kept.rank {
            outer.push(self.kept.sizes[axis], [self.kept.strides[0][axis]]);
        }
        let strides = outer.strides[0][..outer.rank].iter().chain(&self.reduced.strides[0][..self.reduced.rank]);
        let vector = self.vector(strides.copied().chain([inner as i64]));
        let width = inner.div_ceil(vector).next_power_of_two().clamp(1, SHARING_LANES);
        let tiles = inner.div_ceil(vector * width);
        let all_tiles = tiles * (self.outputs / inner);
        let busy = context.multiprocessors() * BLOCKS_PER_MULTIPROCESSOR;
        let split =
            ReduceSplit::with_partials(all_tiles, self.outputs, self.count, BLOCK_THREADS / width, busy, context)?;
        let arguments = Arguments::new()
            .address(target)
            .address(self.source)
            .layout(&Layout::of_axes(&outer, 0))
            .layout(&Layout::of_axes(&self.reduced, 0))
            .u64(inner as u64)
            .u64(self.outputs as u64)
            .u64(self.count as u64)
            .size(width)
            .size(tiles);
        let launch = Launch::new(all_tiles * split.splits, BLOCK_THREADS);
        context.launch(&self.kernel("columns", vector), launch, &mut split.arguments(arguments))
    }
}

/// The division of the elements of one output among blocks.
struct ReduceSplit {
    splits: usize,
    chunk: usize,
    partials: Address,
    counters: Address,
}

impl ReduceSplit {
    /// For outputs with one block each, which reads `per_load` elements per load.
    fn new(outputs: usize, count: usize, per_load: usize, busy: usize, context: &mut Context) -> Result<ReduceSplit> {
        ReduceSplit::with_partials(outputs, outputs, count, per_load, busy, context)
    }

    /// For `tiles` blocks with `outputs` outputs in total.
    fn with_partials(
        tiles: usize,
        outputs: usize,
        count: usize,
        per_load: usize,
        busy: usize,
        context: &mut Context,
    ) -> Result<ReduceSplit> {
        let worthwhile = count / (per_load * LOADS_PER_THREAD_MIN);
        let wanted = if tiles <= COUNTERS { (busy / tiles).min(worthwhile).max(1) } else { 1 };
        let chunk = count.div_ceil(wanted).next_multiple_of(per_load).max(1);
        let splits = count.div_ceil(chunk).max(1);
        if splits == 1 {
            return Ok(ReduceSplit { splits, chunk: count, partials: Address::NULL, counters: Address::NULL });
        }
        let partials = context.workspace(outputs * splits * PARTIAL_BYTES_MAX)?;
        Ok(ReduceSplit { splits, chunk, partials, counters: context.counters()? })
    }

    fn arguments(&self, arguments: Arguments) -> Arguments {
        arguments.size(self.splits).u64(self.chunk as u64).address(self.partials).address(self.counters)
    }
}
