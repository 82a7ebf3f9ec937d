//! TopK: each lane is streamed past a list of its best, by one block or several that merge their lists. For a large k the lanes
//! are sorted in device memory instead.

use panoply_core::op::compute::TopK;
use panoply_core::{DType, Result, Value};
use panoply_kernels::c::{Kernel, TOPK};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};

const THREADS: usize = 256;
/// Loads under way in a thread.
const STEPS: usize = 8;
/// The largest k whose list fits into a block's memory with room to add.
const LISTED_MAX: usize = 1024;
/// Counters of the kernel for lanes that several blocks share.
const TICKETS_MAX: usize = 4096;
/// The most keys that the last block of a lane merges.
const MERGED_KEYS_MAX: usize = 1 << 16;
/// Blocks of a multiprocessor.
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
        };
        if op.k <= LISTED_MAX { lanes.list(context)? } else { lanes.sort(context)? }
    }
    Ok(Value::Pair(values.into_tensor(), indices.into_tensor()))
}

/// The lanes to choose from, on the device.
struct Lanes {
    dtype: DType,
    largest: bool,
    input: Address,
    values: Address,
    indices: Address,
    count: usize,
    length: usize,
    /// The distance of a lane's elements.
    inner: usize,
    k: usize,
}

impl Lanes {
    fn kernel(&self, entry: &'static str) -> Kernel {
        let kernel = Kernel::new(TOPK, entry)
            .dtype("T", self.dtype)
            .flag("LARGEST", self.largest)
            .integer("QUERIES", 1)
            .integer("THREADS", THREADS)
            .integer("STEPS", STEPS);
        if self.is_wide() { kernel.flag("WIDE_KEYS", true) } else { kernel }
    }

    fn is_wide(&self) -> bool {
        self.dtype == DType::F64
    }

    fn key_bytes(&self) -> usize {
        if self.is_wide() { 16 } else { 8 }
    }

    fn list(&self, context: &mut Context) -> Result<()> {
        let capacity = (2 * self.k + 2 * THREADS).next_power_of_two();
        let blocks = context.multiprocessors() * BLOCKS;
        let rounds = self.length.div_ceil(THREADS * STEPS);
        let parts = match self.count {
            count if count > TICKETS_MAX => 1,
            count => (blocks / count).min(rounds / 2).min(MERGED_KEYS_MAX / self.k).max(1),
        };
        let scratch = if parts > 1 { self.count * parts * self.k * self.key_bytes() } else { 0 };
        let lists = if scratch > 0 { context.scratch(scratch)? } else { Address::NULL };
        let mut arguments = Arguments::new()
            .address(self.input)
            .address(self.values)
            .address(self.indices)
            .address(lists)
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
