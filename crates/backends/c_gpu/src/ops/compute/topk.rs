//! TopK: each lane is streamed past a list of its best elements, by one block, or by several that
//! merge their lists. For a large k the lanes are sorted in device memory instead.

use panoply_core::op::compute::TopK;
use panoply_core::{DType, Result, Value};
use panoply_kernels::c::{Kernel, TOPK, TOPK_HEAPS};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};

const THREADS: usize = 256;
/// Loads in flight per thread.
const STEPS: usize = 8;
/// The largest k whose list fits block memory with room for additions.
const LISTED_MAX: usize = 1024;
/// Block memory that the kernel declares itself.
const OWN_SHARED_BYTES: usize = 1024;
/// Number of the kernel's counters for lanes that several blocks share.
const TICKETS_MAX: usize = 4096;
/// For threads with one heap each: threads per block, heaps per processor, and minimum elements per
/// heap.
const HEAP_THREADS: usize = 16;
const HEAPS_PER_PROCESSOR: usize = 64;
const HEAP_ELEMENTS_MIN: usize = 1024;
/// Maximum number of keys that the last block of a lane merges.
const MERGED_KEYS_MAX: usize = 1 << 16;
/// Blocks per multiprocessor.
const BLOCKS: usize = 4;

pub(crate) fn run(op: &TopK, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let dims = op.input.shape();
    let values = context.output(op.input.dtype(), shape)?;
    let indices = context.output(DType::U32, shape)?;
    if shape.elements() > 0 {
        let inner = dims[op.axis + 1..].iter().product();
        let lanes = Lanes {
            dtype: op.input.dtype(),
            largest: op.largest,
            input: context.input(&op.input)?,
            values: values.address,
            indices: indices.address,
            count: dims[..op.axis].iter().product::<usize>() * inner,
            length: dims[op.axis],
            inner,
            k: op.k,
            nan_last: false,
        };
        lanes.choose(context)?;
    }
    Ok(Value::Pair(values.into_tensor(), indices.into_tensor()))
}

/// The lanes to select from, on the device, and the destinations of the selection.
pub(crate) struct Lanes {
    pub(crate) dtype: DType,
    pub(crate) largest: bool,
    pub(crate) input: Address,
    pub(crate) values: Address,
    pub(crate) indices: Address,
    pub(crate) count: usize,
    pub(crate) length: usize,
    /// Distance between a lane's elements.
    pub(crate) inner: usize,
    pub(crate) k: usize,
    /// Whether NaN is ordered after every number, for either selection; only for f32.
    pub(crate) nan_last: bool,
}

impl Lanes {
    /// Selects from the lanes. Neither the lanes nor their elements may be empty.
    pub(crate) fn choose(&self, context: &mut Context) -> Result<()> {
        let room = context.driver.properties().shared_bytes_max as usize;
        let fits = self.capacity() * self.key_bytes() + OWN_SHARED_BYTES <= room;
        match context.warp_lanes() {
            1 => self.heaps(context),
            _ if self.k <= LISTED_MAX && fits => self.list(context),
            _ => self.sort(context),
        }
    }

    fn kernel(&self, entry: &'static str) -> Kernel {
        let kernel = Kernel::new(TOPK, entry)
            .dtype("T", self.dtype)
            .flag("LARGEST", self.largest)
            .integer("QUERIES", 1)
            .integer("THREADS", THREADS)
            .integer("STEPS", STEPS);
        let kernel = if self.nan_last { kernel.flag("NAN_LAST", true) } else { kernel };
        if self.is_wide() { kernel.flag("WIDE_KEYS", true) } else { kernel }
    }

    fn is_wide(&self) -> bool {
        self.dtype == DType::F64
    }

    fn key_bytes(&self) -> usize {
        if self.is_wide() { 16 } else { 8 }
    }

    /// Keys per list in block memory.
    fn capacity(&self) -> usize {
        (2 * self.k + 2 * THREADS).next_power_of_two()
    }

    fn list(&self, context: &mut Context) -> Result<()> {
        let capacity = self.capacity();
        let blocks = context.multiprocessors() * BLOCKS;
        let rounds = self.length.div_ceil(THREADS * STEPS);
        let parts = match self.count {
            count if count > TICKETS_MAX => 1,
            count => (blocks / count).min(rounds / 2).min(MERGED_KEYS_MAX / self.k).max(1),
        };
        let scratch = if parts > 1 { self.count * parts * self.k * self.key_bytes() } else { 0 };
        let lists = if scratch > 0 { context.scratch(scratch)? } else { Address::NULL };
        let tickets = if parts > 1 { context.counters()? } else { Address::NULL };
        let mut arguments = Arguments::new()
            .address(self.input)
            .address(self.values)
            .address(self.indices)
            .address(lists)
            .address(tickets)
            .u64(self.count as u64)
            .size(self.length)
            .u64(self.inner as u64)
            .size(self.k)
            .size(capacity)
            .size(parts);
        let items = (self.count * parts).min(u32::MAX as usize / 2);
        let launch = Launch::new(items, THREADS).shared(capacity * self.key_bytes());
        context.launch(&self.kernel("topk"), launch, &mut arguments)
    }

    /// The path if threads cannot see each other's values: each thread keeps a heap for a part of a
    /// lane.
    fn heaps(&self, context: &mut Context) -> Result<()> {
        let wanted = (context.multiprocessors() * HEAPS_PER_PROCESSOR).div_ceil(self.count);
        let chunk = self.length.div_ceil(wanted).max(HEAP_ELEMENTS_MIN).max(2 * self.k);
        let parts = self.length.div_ceil(chunk).max(1);
        let heaps = context.scratch(self.count * parts * self.k * self.key_bytes())?;
        let counts = context.scratch(self.count * parts * 4)?;
        let kernel = |entry| {
            let kernel = Kernel::new(TOPK_HEAPS, entry)
                .dtype("T", self.dtype)
                .flag("LARGEST", self.largest)
                .integer("THREADS", HEAP_THREADS)
                .flag("HEAPS", true);
            if self.is_wide() { kernel.flag("WIDE_KEYS", true) } else { kernel }
        };
        let launch = |threads: usize| Launch::new(threads.div_ceil(HEAP_THREADS), HEAP_THREADS);
        let sizes = |arguments: Arguments| {
            let lanes = arguments.u64(self.count as u64).size(self.length).u64(self.inner as u64);
            lanes.size(self.k).size(parts)
        };
        let chosen = sizes(Arguments::new().address(self.input).address(heaps).address(counts));
        context.launch(&kernel("topk_parts"), launch(self.count * parts), &mut chosen.size(chunk))?;
        let joined = Arguments::new().address(self.input).address(self.values).address(self.indices);
        let mut joined = sizes(joined.address(heaps).address(counts));
        context.launch(&kernel("topk_join"), launch(self.count), &mut joined)
    }

    fn sort(&self, context: &mut Context) -> Result<()> {
        let size = self.length.next_power_of_two();
        let keys = context.scratch(self.count * size * self.key_bytes())?;
        let mut arguments = Arguments::new()
            .address(self.input)
            .address(keys)
            .u64(self.count as u64)
            .size(self.length)
            .u64(self.inner as u64)
            .u64(size as u64);
        let launch = context.blocks(self.count * size, THREADS, 4);
        context.launch(&self.kernel("fill_keys"), launch, &mut arguments)?;
        let pairs = self.count * size / 2;
        let kernel = self.kernel("sort_step");
        let launch = context.blocks(pairs, THREADS, 2);
        for width in (1..=size.ilog2()).map(|bits| 1_u64 << bits) {
            for gap in (0..width.ilog2()).rev().map(|bits| 1_u64 << bits) {
                let arguments = Arguments::new().address(keys).u64(pairs as u64).u64(size as u64);
                context.launch(&kernel, launch, &mut arguments.u64(width).u64(gap))?;
            }
        }
        let mut arguments = Arguments::new()
            .address(self.input)
            .address(self.values)
            .address(self.indices)
            .address(keys)
            .u64(self.count as u64)
            .size(self.length)
            .u64(self.inner as u64)
            .size(self.k)
            .u64(size as u64);
        let launch = context.blocks(self.count * self.k, THREADS, 1);
        context.launch(&self.kernel("write_sorted"), launch, &mut arguments)
    }
}
