//! Runs a batch as one piece of work. Ops too small for several threads run whole, one per thread,
//! in one parallel region. Searches of the same rows become one pass with all their queries. A
//! large op runs alone, with the whole team. Each op has its own result: one that fails or panics
//! fails alone.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use panoply_core::error::panic_message;
use panoply_core::op::compute::{ComputeOp, Search};
use panoply_core::op::graph::{GraphOp, RunGraph};
use panoply_core::op::signal::SignalOp;
use panoply_core::{Buffer, Describe, DeviceId, Error, Item, MemoryLimits, Op, Operation, Result, Tensor, Value};
use panoply_cpu_crypto::is_in_place;

use super::compute::search;
use super::crypto;
use crate::context::Context;
use crate::memory::HostMemory;
use crate::scratch;
use crate::team::Team;

/// Less work is not worth waking a second thread.
const REGION_NS_MIN: f64 = 15_000.0;
/// Number of multiplications from which a product is worth several threads, and up to which
/// products of a large batch run whole.
const PRODUCT_TINY: u64 = 96 * 96 * 96;
const PRODUCT_MEDIUM: u64 = 256 * 256 * 256;
/// The same for the bytes read by an elementwise op, and for the elements compared by a search.
const MAP_BYTES_TINY: usize = 128 << 10;
const MAP_BYTES_MEDIUM: usize = 1 << 20;
const SEARCH_TINY: u64 = 1 << 17;
const SEARCH_MEDIUM: u64 = 1 << 22;
/// The same for the nanoseconds that a crypto op takes on one thread.
const CRYPTO_NS_TINY: f64 = 50_000.0;
const CRYPTO_NS_MEDIUM: f64 = 2_000_000.0;
/// Any other op is small up to this number of input bytes.
const OTHER_BYTES_TINY: usize = 32 << 10;
/// Medium-sized ops run whole if there are this many for each thread; fewer would leave threads
/// idle at the end.
const MEDIUM_PER_THREAD_MIN: usize = 4;
/// Maximal number of queries of joined searches.
const QUERIES_MAX: usize = 4096;
/// Maximal number of rows of joined runs of one graph.
const GRAPH_ROWS_MAX: usize = 4096;
/// The size of each thread's memory pool for its own ops.
const MEMBER_MEMORY: MemoryLimits =
    MemoryLimits { device_bytes_max: None, pool_bytes_max: Some(64 << 20), pinned_bytes_max: None };

/// Result of one op of a batch.
pub(crate) struct BatchedResult {
    pub(crate) result: Result<Value>,
    /// Number of ops that ran together with it, itself included.
    pub(crate) batch_size: u32,
    /// Its share of the engine's time for them.
    pub(crate) time: Duration,
}

/// A context for each thread of the team, for ops that one thread runs alone.
#[derive(Default)]
pub(crate) struct Members {
    contexts: Vec<Mutex<Context>>,
}

impl Members {
    /// Calls `visit` with each context.
    pub(crate) fn for_each_context(&mut self, mut visit: impl FnMut(&mut Context)) {
        for context in &self.contexts {
            visit(&mut lock(context));
        }
    }

    fn reserve(&mut self, count: usize, like: &Context) {
        while self.contexts.len() < count {
            let memory = HostMemory::new(MEMBER_MEMORY);
            self.contexts.push(Mutex::new(Context::new(Team::single(), like.simd, memory, like.provider)));
        }
    }
}

/// Runs one op; a panic, or a kernel's lack of memory, becomes its error.
pub(crate) fn run_one(op: &Op, context: &mut Context, device: DeviceId) -> Result<Value> {
    caught(context, device, |context| super::run(op, context))
}

/// The same for an op that has no other owner: its output may overwrite its input, if the op
/// permits that.
pub(crate) fn run_own(op: &mut Op, context: &mut Context, device: DeviceId) -> Result<Value> {
    match op {
        Op::Crypto(op) if is_in_place(op) => caught(context, device, |context| crypto::run_in_place(op, context)),
        op => run_one(op, context, device),
    }
}

fn caught(context: &mut Context, device: DeviceId, run: impl FnOnce(&mut Context) -> Result<Value>) -> Result<Value> {
    catch_unwind(AssertUnwindSafe(|| run(context))).unwrap_or_else(|panic| {
        context.leave_graph();
        let panicked = || Error::EnginePanicked { device, message: panic_message(panic.as_ref()) };
        Err(scratch::error_of(panic.as_ref()).unwrap_or_else(panicked))
    })
}

/// Runs a whole batch; the results are in its order.
pub(crate) fn run_batch(
    items: &[Item],
    context: &mut Context,
    members: &mut Members,
    device: DeviceId,
) -> Vec<BatchedResult> {
    let mut ran: Vec<Option<BatchedResult>> = items.iter().map(|_| None).collect();
    for group in joinable_searches(items) {
        join_searches(items, &group, context, &mut ran);
    }
    for group in joinable_graphs(items) {
        join_graphs(items, &group, context, device, &mut ran);
    }
    let left: Vec<usize> = (0..items.len()).filter(|index| ran[*index].is_none()).collect();
    let region = spread_whole(items, &left, context.team.threads());
    if !region.is_empty() {
        side_by_side(items, &region, context, members, device, &mut ran);
    }
    let alone = |(item, ran): (&Item, Option<BatchedResult>)| {
        ran.unwrap_or_else(|| {
            let start = Instant::now();
            let result = run_one(&item.op, context, device);
            BatchedResult { result, batch_size: 1, time: start.elapsed() }
        })
    };
    items.iter().zip(ran).map(alone).collect()
}

/// The best way to run an op in a batch.
#[derive(Clone, Copy, PartialEq)]
enum Size {
    /// By one thread.
    Tiny,
    /// By one thread if there are many such ops, else by all threads.
    Medium,
    /// By all threads.
    Large,
}

/// The op's size class, and its estimated time on one thread.
fn size(op: &Op) -> (Size, f64) {
    let graded = |amount: f64, tiny: f64, medium: f64, ns: f64| {
        let size = if amount < tiny {
            Size::Tiny
        } else if amount <= medium {
            Size::Medium
        } else {
            Size::Large
        };
        (size, 300.0 + amount * ns)
    };
    match op {
        Op::Compute(ComputeOp::MatMul(op)) => {
            graded(op.work() as f64, PRODUCT_TINY as f64, PRODUCT_MEDIUM as f64, 0.03)
        }
        Op::Compute(ComputeOp::Attention(op)) => {
            graded(op.work() as f64, PRODUCT_TINY as f64, PRODUCT_MEDIUM as f64, 0.05)
        }
        Op::Compute(ComputeOp::Map(_)) => {
            graded(op.input_bytes() as f64, MAP_BYTES_TINY as f64, MAP_BYTES_MEDIUM as f64, 0.1)
        }
        Op::Compute(ComputeOp::Search(op)) => graded(op.work() as f64, SEARCH_TINY as f64, SEARCH_MEDIUM as f64, 0.1),
        Op::Crypto(op) => graded(panoply_cpu_crypto::estimate_ns(op), CRYPTO_NS_TINY, CRYPTO_NS_MEDIUM, 1.0),
        Op::Compute(ComputeOp::Transfer(_)) | Op::Graph(_) => (Size::Large, 0.0),
        // Ops from outside the list keep their states in the engine's own context.
        Op::Extension(_) => (Size::Large, 0.0),
        // Streams live in the engine's own context, and their pieces come in order.
        Op::Signal(SignalOp::StartFilter(_) | SignalOp::StreamFilter(_)) => (Size::Large, 0.0),
        // Nanoseconds for each coded bit.
        Op::Signal(SignalOp::Viterbi(_)) => graded(op.input_bytes() as f64, 8192.0, 1e6, 2.0),
        _ => graded(op.input_bytes() as f64, OTHER_BYTES_TINY as f64, OTHER_BYTES_TINY as f64, 1.0),
    }
}

/// The items that one parallel region shall run, each on one thread; empty if that does not pay.
fn spread_whole(items: &[Item], left: &[usize], threads: usize) -> Vec<usize> {
    if threads < 2 || left.len() < 2 {
        return Vec::new();
    }
    let sizes: Vec<(usize, (Size, f64))> = left.iter().map(|index| (*index, size(&items[*index].op))).collect();
    let not_large = sizes.iter().filter(|(_, (size, _))| *size != Size::Large).count();
    let many = not_large >= MEDIUM_PER_THREAD_MIN * threads;
    let fits = |(_, (size, _)): &&(usize, (Size, f64))| *size == Size::Tiny || (many && *size == Size::Medium);
    let time_ns: f64 = sizes.iter().filter(fits).map(|(_, (_, ns))| ns).sum();
    let region: Vec<usize> = sizes.iter().filter(fits).map(|(index, _)| *index).collect();
    if region.len() < 2 || time_ns < REGION_NS_MIN { Vec::new() } else { region }
}

/// Runs one parallel region: each idle thread takes the next op.
fn side_by_side(
    items: &[Item],
    region: &[usize],
    context: &mut Context,
    members: &mut Members,
    device: DeviceId,
    ran: &mut [Option<BatchedResult>],
) {
    let threads = context.team.threads().min(region.len());
    members.reserve(threads, context);
    let results: Vec<OnceLock<(Result<Value>, Duration)>> = region.iter().map(|_| OnceLock::new()).collect();
    let (contexts, next, start) = (&members.contexts, AtomicUsize::new(0), Instant::now());
    context.team.run(threads, &|member| {
        let mut own = lock(&contexts[member]);
        loop {
            let claimed = next.fetch_add(1, Ordering::Relaxed);
            let (Some(index), Some(place)) = (region.get(claimed), results.get(claimed)) else { break };
            let begun = Instant::now();
            let result = run_one(&items[*index].op, &mut own, device);
            // Each op is claimed once, so its place is empty.
            let _ = place.set((result, begun.elapsed()));
        }
    });
    let wall = start.elapsed();
    let results: Vec<(Result<Value>, Duration)> = results.into_iter().filter_map(OnceLock::into_inner).collect();
    let together: Duration = results.iter().map(|(_, time)| *time).sum();
    let share = wall.as_secs_f64() / together.as_secs_f64().max(1e-9);
    for (index, (result, time)) in region.iter().zip(results) {
        ran[*index] =
            Some(BatchedResult { result, batch_size: region.len() as u32, time: time.mul_f64(share.min(1.0)) });
    }
}

/// Groups of at least two runs of one graph whose rows can be joined.
fn joinable_graphs(items: &[Item]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(u64, usize, Vec<usize>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let Some(op) = as_graph(item).filter(|op| op.graph().has_rows()) else { continue };
        let (id, rows) = (op.graph().id(), op.inputs()[0].shape()[0]);
        match groups.iter_mut().find(|(known, count, _)| *known == id && *count + rows <= GRAPH_ROWS_MAX) {
            Some((_, count, group)) => {
                *count += rows;
                group.push(index);
            }
            None => groups.push((id, rows, vec![index])),
        }
    }
    groups.into_iter().map(|(_, _, group)| group).filter(|group| group.len() > 1).collect()
}

/// Runs a group as one graph with all rows. If that fails, its runs are executed one by one, so
/// that none fails because of another.
fn join_graphs(
    items: &[Item],
    group: &[usize],
    context: &mut Context,
    device: DeviceId,
    ran: &mut [Option<BatchedResult>],
) {
    let start = Instant::now();
    let ops: Vec<&RunGraph> = group.iter().filter_map(|index| as_graph(&items[*index])).collect();
    let Some((joined, rows)) = panoply_graph::join_rows(&ops) else { return };
    let Ok(joined) = joined.into_op() else { return };
    let values = run_one(&joined, context, device).and_then(|value| panoply_graph::split_rows(&value, &rows));
    let Ok(values) = values else { return };
    let time = start.elapsed() / group.len() as u32;
    for (index, value) in group.iter().zip(values) {
        ran[*index] = Some(BatchedResult { result: Ok(value), batch_size: group.len() as u32, time });
    }
}

fn as_graph(item: &Item) -> Option<&RunGraph> {
    match &item.op {
        Op::Graph(GraphOp::RunGraph(op)) => Some(op),
        _ => None,
    }
}

/// Groups of at least two searches that differ only in their queries.
fn joinable_searches(items: &[Item]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(usize, Vec<usize>)> = Vec::new();
    for (index, item) in items.iter().enumerate() {
        let Some(op) = as_search(item).filter(|op| op.filter.is_none()) else { continue };
        let queries = op.queries.shape()[0];
        let joins = |(count, group): &&mut (usize, Vec<usize>)| {
            *count + queries <= QUERIES_MAX && as_search(&items[group[0]]).is_some_and(|first| alike(first, op))
        };
        match groups.iter_mut().find(joins) {
            Some((count, group)) => {
                *count += queries;
                group.push(index);
            }
            None => groups.push((queries, vec![index])),
        }
    }
    groups.into_iter().map(|(_, group)| group).filter(|group| group.len() > 1).collect()
}

fn as_search(item: &Item) -> Option<&Search> {
    match &item.op {
        Op::Compute(ComputeOp::Search(op)) => Some(op),
        _ => None,
    }
}

fn alike(a: &Search, b: &Search) -> bool {
    let norms = match (&a.row_norms, &b.row_norms) {
        (None, None) => true,
        (Some(a), Some(b)) => same_elements(a, b),
        _ => false,
    };
    let wanted = |op: &Search| (op.metric, op.k, op.queries.dtype(), op.queries.shape()[1]);
    norms && same_elements(&a.rows, &b.rows) && wanted(a) == wanted(b)
}

/// Whether two tensors are the same view of the same memory.
fn same_elements(a: &Tensor, b: &Tensor) -> bool {
    let (Buffer::Host(first), Buffer::Host(second)) = (a.buffer(), b.buffer()) else { return false };
    let view = |tensor: &Tensor| (tensor.offset(), *tensor.shape(), tensor.dtype());
    std::ptr::eq(first.bytes(), second.bytes()) && view(a) == view(b) && a.strides() == b.strides()
}

/// Runs all searches of a group as one. If that fails, they are left to run separately.
fn join_searches(items: &[Item], group: &[usize], context: &mut Context, ran: &mut [Option<BatchedResult>]) {
    let start = Instant::now();
    let ops: Vec<&Search> = group.iter().filter_map(|index| as_search(&items[*index])).collect();
    // If it fails or panics, each search is run separately, and only the faulty one fails again.
    let joined = catch_unwind(AssertUnwindSafe(|| search_joined(&ops, context)));
    let Ok(Ok(values)) = joined else { return };
    let time = start.elapsed() / group.len() as u32;
    for (index, value) in group.iter().zip(values) {
        ran[*index] = Some(BatchedResult { result: Ok(value), batch_size: group.len() as u32, time });
    }
}

fn search_joined(ops: &[&Search], context: &mut Context) -> Result<Vec<Value>> {
    let Some(first) = ops.first() else { return Ok(Vec::new()) };
    let joined = first.with_queries_of(ops)?;
    let (ids, scores) = search::run(&joined, context)?.into_pair()?;
    let (ids, scores) = (ids.as_slice::<u32>()?, scores.as_slice::<f32>()?);
    let mut begin = 0;
    let mut values = Vec::with_capacity(ops.len());
    for op in ops {
        let shape = op.output_shape()?;
        let end = begin + shape.elements();
        // Copied, so that a caller that keeps its hits does not keep those of the whole batch in
        // memory.
        let mut own_ids = context.output::<u32>(shape)?;
        own_ids.copy_from_slice(&ids[begin..end]);
        let mut own_scores = context.output::<f32>(shape)?;
        own_scores.copy_from_slice(&scores[begin..end]);
        values.push(Value::Pair(own_ids.into_tensor()?, own_scores.into_tensor()?));
        begin = end;
    }
    Ok(values)
}

fn lock(context: &Mutex<Context>) -> MutexGuard<'_, Context> {
    context.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}
