//! Sort, ArgSort and SortPairs: many short lines per block, one longer line per block, and lines
//! that fit no block digit by digit (radix sort), with the counts of all digits made in one pass.
//! All three ops are stable and share their kernels.

use panoply_core::op::compute::{ArgSort, Sort, SortPairs};
use panoply_core::{DType, Result, Shape, Value, bf16, f16};
use panoply_kernels::c::{Kernel, SORT};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};
use crate::layout::{Layout, View};

/// Maximum length of lines that share a block; `SLOTS_MAX` of the kernel.
const SHORT_ELEMENTS_MAX: usize = 2048;
/// Minimum number of slots of such a block.
const SHORT_SLOTS_MIN: usize = 512;
/// Threads of a block with one tile; `THREADS` of the kernel.
const TILE_THREADS: usize = 384;
/// Threads of a counting block, and the keys per round of such a block.
const COUNT_THREADS: usize = 512;
const COUNT_KEYS: usize = 512 * 8;
/// Block memory that tiles need.
const TILE_SHARED_BYTES: usize = 46 << 10;
/// For lines sorted in chunks: minimum elements per thread, and threads per processor.
const CHUNK_ELEMENTS_MIN: usize = 1024;
const CHUNKS_PER_PROCESSOR: usize = 256;
const CHUNK_THREADS: usize = 256;
/// Counting blocks per multiprocessor.
const COUNT_BLOCKS: usize = 3;
const DIGITS: usize = 256;
/// From this length on, a tile's sum with its mark takes more than 32 bits.
const NARROW_STATUS_ELEMENTS: usize = 1 << 30;

pub(crate) fn run(op: &Sort, context: &mut Context) -> Result<Value> {
    let task = SortTask { dtype: op.input.dtype(), descending: op.descending, value_bytes: 0, is_stable: op.is_stable };
    let keys = context.input(&op.input)?;
    let output = context.output(op.input.dtype(), op.output_shape())?;
    let places = Places { keys, values: Address::NULL, keys_out: output.address, values_out: Address::NULL };
    sort(&task, &SortLines::new(op.input.shape(), op.axis)?, places, context)?;
    Ok(Value::Tensor(output.into_tensor()))
}

pub(crate) fn run_arg(op: &ArgSort, context: &mut Context) -> Result<Value> {
    let task = SortTask { dtype: op.input.dtype(), descending: op.descending, value_bytes: 4, is_stable: true };
    let keys = context.input(&op.input)?;
    let output = context.output(DType::U32, op.output_shape())?;
    let places = Places { keys, values: Address::NULL, keys_out: Address::NULL, values_out: output.address };
    sort(&task, &SortLines::new(op.input.shape(), op.axis)?, places, context)?;
    Ok(Value::Tensor(output.into_tensor()))
}

pub(crate) fn run_pairs(op: &SortPairs, context: &mut Context) -> Result<Value> {
    let value_bytes = op.values.dtype().size_bytes();
    let task = SortTask { dtype: op.keys.dtype(), descending: op.descending, value_bytes, is_stable: true };
    let (keys, values) = (context.input(&op.keys)?, context.input(&op.values)?);
    let sorted = context.output(op.keys.dtype(), *op.keys.shape())?;
    let moved = context.output(op.values.dtype(), *op.values.shape())?;
    let places = Places { keys, values, keys_out: sorted.address, values_out: moved.address };
    sort(&task, &SortLines::new(op.keys.shape(), op.axis)?, places, context)?;
    Ok(Value::Pair(sorted.into_tensor(), moved.into_tensor()))
}

/// The sort to perform.
struct SortTask {
    dtype: DType,
    descending: bool,
    /// Bytes of the value that belongs to a key; 0 without values.
    value_bytes: usize,
    /// Whether zeros of either sign and NaNs keep their order and their bits.
    is_stable: bool,
}

/// Sources and destinations of elements, contiguous in the tensor's order. With null `values` the
/// values are the keys' positions; with null `keys_out` the sorted keys are not written.
#[derive(Clone, Copy)]
struct Places {
    keys: Address,
    values: Address,
    keys_out: Address,
    values_out: Address,
}

/// A contiguous tensor as lines along one axis.
struct SortLines {
    shape: Shape,
    axis: usize,
    lines: usize,
    length: usize,
    /// Distance between the elements of a line.
    inner: usize,
}

impl SortLines {
    fn new(shape: &Shape, axis: usize) -> Result<SortLines> {
        let length = shape.dims()[axis];
        let inner = shape.dims()[axis + 1..].iter().product();
        let lines = shape.with_dim(axis, 1)?.elements();
        Ok(SortLines { shape: *shape, axis, lines, length, inner })
    }

    /// The same lines, each contiguous.
    fn apart(&self) -> Result<SortLines> {
        SortLines::new(&Shape::new([self.lines, self.length])?, 1)
    }

    fn elements(&self) -> usize {
        self.lines * self.length
    }
}

impl SortTask {
    fn kernel(&self, entry: &'static str, coded: bool) -> Kernel {
        Kernel::new(SORT, entry)
            .integer("T_BYTES", self.dtype.size_bytes() as u64)
            .integer("V_BYTES", self.value_bytes as u64)
            .flag("CODED", coded)
    }

    /// Whether keys move in coded form, ordered as integers: only without values, and if coding
    /// loses nothing.
    fn is_coded(&self) -> bool {
        self.value_bytes == 0 && (!self.is_stable || self.dtype.is_integer())
    }

    /// The kernel's `rule`, for keys that move unchanged or coded.
    fn rule(&self, coded: bool) -> [u64; 4] {
        let bits = self.dtype.size_bytes() * 8;
        let infinity = match self.dtype {
            DType::F32 => u64::from(f32::INFINITY.to_bits()),
            DType::F16 => u64::from(f16::INFINITY.to_bits()),
            DType::BF16 => u64::from(bf16::INFINITY.to_bits()),
            DType::F64 => f64::INFINITY.to_bits(),
            _ => 0,
        };
        let is_signed = matches!(self.dtype, DType::I32 | DType::I8);
        let sign = if is_signed { 1 << (bits - 1) } else { 0 };
        [infinity, sign, if self.descending { u64::MAX >> (64 - bits) } else { 0 }, u64::from(!coded)]
    }

    /// Maximum keys per thread if a block sorts a whole line in its memory.
    fn block_items_max(&self) -> usize {
        match (self.dtype.size_bytes() > 4, self.value_bytes > 0) {
            (false, false) => 16,
            (false, true) => 12,
            (true, false) => 10,
            (true, true) => 8,
        }
    }

    /// Keys per thread in a tile of a longer line.
    fn tile_items(&self) -> usize {
        // More keys would not fit the registers of two blocks per multiprocessor.
        if self.dtype.size_bytes().max(self.value_bytes) > 4 { 10 } else { 16 }
    }
}

fn sort(task: &SortTask, lines: &SortLines, places: Places, context: &mut Context) -> Result<()> {
    if lines.elements() == 0 {
        return Ok(());
    }
    let properties = context.driver.properties();
    let by_chunks = properties.warp_lanes == 1
        || (properties.block_threads_max as usize) < COUNT_THREADS
        || (properties.shared_bytes_max as usize) < TILE_SHARED_BYTES;
    if lines.length <= SHORT_ELEMENTS_MAX.min(2 * properties.block_threads_max as usize) {
        sort_short(task, lines, places, context)
    } else if by_chunks && lines.inner == 1 {
        sort_by_chunks(task, lines, places, context)
    } else if !by_chunks && lines.length <= TILE_THREADS * task.block_items_max() {
        sort_in_blocks(task, lines, places, context)
    } else if lines.inner == 1 {
        sort_by_digits(task, lines, places, context)
    } else {
        sort_apart(task, lines, places, context)
    }
}

fn sort_short(task: &SortTask, lines: &SortLines, places: Places, context: &mut Context) -> Result<()> {
    let padded = lines.length.next_power_of_two();
    let slots = padded.max(SHORT_SLOTS_MIN);
    let blocks = lines.lines.div_ceil(slots / padded);
    let mut arguments = Arguments::new()
        .address(places.keys)
        .address(places.values)
        .address(places.keys_out)
        .address(places.values_out)
        .structure(&task.rule(false))
        .u64(lines.lines as u64)
        .u64(lines.inner as u64)
        .size(lines.length)
        .size(padded);
    let launch = Launch::new(blocks, slots / 2);
    context.launch(&task.kernel("sort_lines", false).flag("SHORT", true), launch, &mut arguments)
}

fn sort_in_blocks(task: &SortTask, lines: &SortLines, places: Places, context: &mut Context) -> Result<()> {
    // Few different sizes, so that few kernels are compiled.
    let most = task.block_items_max();
    let items = lines.length.div_ceil(TILE_THREADS).next_multiple_of(4).min(most);
    let kernel = task.kernel("sort_block", false).flag("BLOCK", true).integer("ITEMS", items as u64);
    let mut arguments = Arguments::new()
        .address(places.keys)
        .address(places.values)
        .address(places.keys_out)
        .address(places.values_out)
        .structure(&task.rule(false))
        .u64(lines.inner as u64)
        .size(lines.length);
    context.launch(&kernel, Launch::new(lines.lines, TILE_THREADS), &mut arguments)
}

/// Sorts long lines of non-adjacent elements: gathers the lines, sorts, and scatters them back.
fn sort_apart(task: &SortTask, lines: &SortLines, places: Places, context: &mut Context) -> Result<()> {
    let values_dtype = word(task.value_bytes);
    let mut together = places;
    together.keys = bring_together(lines, places.keys, task.dtype, context)?;
    if !places.values.is_null() {
        together.values = bring_together(lines, places.values, values_dtype, context)?;
    }
    if !places.keys_out.is_null() {
        together.keys_out = context.scratch(lines.elements() * task.dtype.size_bytes())?;
    }
    if task.value_bytes > 0 {
        together.values_out = context.scratch(lines.elements() * task.value_bytes)?;
    }
    sort(task, &lines.apart()?, together, context)?;
    if !places.keys_out.is_null() {
        put_back(lines, places.keys_out, together.keys_out, task.dtype, context)?;
    }
    if task.value_bytes > 0 {
        put_back(lines, places.values_out, together.values_out, values_dtype, context)?;
    }
    Ok(())
}

/// An element type of this size.
fn word(bytes: usize) -> DType {
    match bytes {
        1 => DType::U8,
        2 => DType::F16,
        8 => DType::F64,
        _ => DType::U32,
    }
}

/// The axes with the sorted one last.
fn axes(lines: &SortLines) -> Vec<usize> {
    (0..lines.shape.rank()).filter(|axis| *axis != lines.axis).chain([lines.axis]).collect()
}

fn bring_together(lines: &SortLines, source: Address, dtype: DType, context: &mut Context) -> Result<Address> {
    let strides = lines.shape.contiguous_strides();
    let order = axes(lines);
    let dims: Vec<usize> = order.iter().map(|axis| lines.shape.dims()[*axis]).collect();
    let steps: Vec<isize> = order.iter().map(|axis| strides.steps()[*axis]).collect();
    let target = context.scratch(lines.elements() * dtype.size_bytes())?;
    let view = View { address: source, layout: Layout::new(&dims, &steps) };
    context.copy_view(target, &view, dtype, lines.elements())?;
    Ok(target)
}

fn put_back(lines: &SortLines, target: Address, source: Address, dtype: DType, context: &mut Context) -> Result<()> {
    let order = axes(lines);
    let mut steps = vec![0; order.len()];
    let mut step = 1;
    for axis in order.iter().rev() {
        steps[*axis] = step;
        step *= lines.shape.dims()[*axis] as isize;
    }
    let view = View { address: source, layout: Layout::new(lines.shape.dims(), &steps) };
    context.copy_view(target, &view, dtype, lines.elements())
}

/// Zeroed memory of a radix sort: tickets, counts, and the sums that tiles publish.
struct RadixScratch {
    tickets: Address,
    counts: Address,
    status: Address,
    status_bytes_per_pass: usize,
}

impl RadixScratch {
    fn new(lines: &SortLines, tiles: usize, passes: usize, context: &mut Context) -> Result<RadixScratch> {
        const TICKET_BYTES: usize = 256;
        let count_bytes = lines.lines * passes * DIGITS * 4;
        let status_bytes_per_pass = lines.lines * tiles * DIGITS * status_bytes(lines);
        let bytes = TICKET_BYTES + count_bytes + passes * status_bytes_per_pass;
        let tickets = context.scratch(bytes)?;
        context.fill(tickets, 0, bytes)?;
        let counts = tickets + TICKET_BYTES;
        Ok(RadixScratch { tickets, counts, status: counts + count_bytes, status_bytes_per_pass })
    }
}

fn status_bytes(lines: &SortLines) -> usize {
    if lines.length < NARROW_STATUS_ELEMENTS { 4 } else { 8 }
}

fn sort_by_digits(task: &SortTask, lines: &SortLines, places: Places, context: &mut Context) -> Result<()> {
    let (passes, items) = (task.dtype.size_bytes(), task.tile_items());
    let tiles = lines.length.div_ceil(TILE_THREADS * items);
    let published = RadixScratch::new(lines, tiles, passes, context)?;
    let status = if status_bytes(lines) == 4 { "u32" } else { "u64" };
    count_digits(task, lines, places.keys, published.counts, context)?;

    let mut keys = Relay::new(places.keys, places.keys_out, lines.elements() * passes, passes, context)?;
    let mut values =
        Relay::new(places.values, places.values_out, lines.elements() * task.value_bytes, passes, context)?;
    let kernel = task.kernel("sort_digit", task.is_coded()).integer("ITEMS", items as u64).word("STATUS", status);
    for pass in 0..passes {
        let (from, to) = keys.next();
        let (values_from, values_to) = values.next();
        let mut arguments = Arguments::new()
            .address(from)
            .address(values_from)
            .address(to)
            .address(values_to)
            .address(published.counts)
            .address(published.status + pass * published.status_bytes_per_pass)
            .address(published.tickets + pass * 4)
            .structure(&task.rule(task.is_coded()))
            .u64(lines.length as u64)
            .size(tiles)
            .size(pass);
        context.launch(&kernel, Launch::new(lines.lines * tiles, TILE_THREADS), &mut arguments)?;
    }
    Ok(())
}

/// Sorts long lines if threads cannot see each other's values or a block has no room for a tile:
/// each thread counts and moves a chunk of a line, digit by digit.
fn sort_by_chunks(task: &SortTask, lines: &SortLines, places: Places, context: &mut Context) -> Result<()> {
    let passes = task.dtype.size_bytes();
    let most = (context.multiprocessors() * CHUNKS_PER_PROCESSOR).div_ceil(lines.lines);
    let chunk = lines.length.div_ceil(most).max(CHUNK_ELEMENTS_MIN);
    let chunks = lines.length.div_ceil(chunk);
    let starts = context.scratch(lines.lines * chunks * DIGITS * 4)?;
    let mut keys = Relay::new(places.keys, places.keys_out, lines.elements() * passes, passes, context)?;
    let mut values =
        Relay::new(places.values, places.values_out, lines.elements() * task.value_bytes, passes, context)?;
    let kernel = |entry| task.kernel(entry, false).flag("CHUNKS", true);
    let launch = Launch::new((lines.lines * chunks).div_ceil(CHUNK_THREADS), CHUNK_THREADS);
    let sizes = |arguments: Arguments, pass: usize| {
        let lengths = arguments.structure(&task.rule(false)).u64(lines.lines as u64).u64(lines.length as u64);
        lengths.size(chunks).size(chunk).size(pass)
    };
    for pass in 0..passes {
        let (from, to) = keys.next();
        let (values_from, values_to) = values.next();
        let counted = Arguments::new().address(from).address(starts);
        context.launch(&kernel("count_chunks"), launch, &mut sizes(counted, pass))?;
        let mut summed = Arguments::new().address(starts).size(chunks);
        context.launch(&kernel("start_chunks"), Launch::new(lines.lines, DIGITS), &mut summed)?;
        let moved = Arguments::new().address(from).address(values_from).address(to).address(values_to).address(starts);
        context.launch(&kernel("move_chunks"), launch, &mut sizes(moved, pass))?;
    }
    Ok(())
}

fn count_digits(
    task: &SortTask,
    lines: &SortLines,
    keys: Address,
    counts: Address,
    context: &mut Context,
) -> Result<()> {
    let most = context.multiprocessors() * COUNT_BLOCKS;
    let parts = lines.length.div_ceil(COUNT_KEYS).min(most.div_ceil(lines.lines));
    // The kernel does not depend on values or tiles, so it is the same for all.
    let keys_only = SortTask { value_bytes: 0, ..*task };
    let kernel = keys_only.kernel("histogram", false).integer("ITEMS", 1).flag("COUNTS", true);
    let mut arguments = Arguments::new()
        .address(keys)
        .address(counts)
        .structure(&task.rule(task.is_coded()))
        .u64(lines.length as u64)
        .size(parts);
    context.launch(&kernel, Launch::new(lines.lines * parts, COUNT_THREADS), &mut arguments)
}

/// The buffers of the passes: from the input, alternating between two buffers, and in the last pass
/// to the output.
struct Relay {
    source: Address,
    /// The targets of this pass and of the next.
    targets: [Address; 2],
    passes_left: usize,
    /// Whether the last pass writes.
    ends: bool,
}

impl Relay {
    /// A null output is not written; zero bytes mean no elements.
    fn new(source: Address, output: Address, bytes: usize, passes: usize, context: &mut Context) -> Result<Relay> {
        let mut targets = [output; 2];
        if bytes > 0 && passes > 1 {
            // With an even number of passes the last one writes to the second target.
            targets[0] = context.scratch(bytes)?;
            if output.is_null() {
                targets[1] = context.scratch(bytes)?;
            }
        }
        Ok(Relay { source, targets, passes_left: passes, ends: !output.is_null() })
    }

    /// Source and target of the next pass.
    fn next(&mut self) -> (Address, Address) {
        self.passes_left = self.passes_left.saturating_sub(1);
        let writes = self.passes_left > 0 || self.ends;
        let step = (self.source, if writes { self.targets[0] } else { Address::NULL });
        self.source = self.targets[0];
        self.targets.swap(0, 1);
        step
    }
}
