//! RunGraph: queues the steps of the plan one after the other on the compute stream, with
//! intermediate tensors in one block.
//!
//! The block belongs to a lane, and all graphs of the lane share it: their steps are in order on
//! one stream, so a place is written only after all its earlier readers. Graphs that need a large
//! block share the first lane's, and run one after the other. Constants stay on the device with the
//! plan, for all lanes.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use panoply_core::graph::NOWHERE;
use panoply_core::op::compute::ComputeOp;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Buffer, DType, DeviceBuffer, DeviceInfo, Op, Result, Shape, Support, Tensor, Value};
use panoply_graph::cost::Rates;
use panoply_graph::{Destination, DeviceTarget, Executor, Facts, Plans, Ready, Room};

use super::replay::Replays;
use crate::context::{Context, DeviceState, PlannedOutput, PlannedPlace, Replay};
use crate::driver::{Address, LANES_MAX};
use crate::ops::compute::map::waiting::DeferredMaps;

/// The GPUs of the C dialect for the graph compiler: a map with more nodes would process one
/// element per thread, longer rows do not fit registers, and kernels use 32-bit indices. The rates
/// are those of a large GPU.
pub const GRAPH_TARGET: DeviceTarget = DeviceTarget {
    facts: Facts {
        map_inputs_max: 12,
        map_nodes_max: 64,
        row_len_max: 1 << 14,
        row_inputs_max: 12,
        attention_elements_max: u32::MAX as usize,
        channels_last: false,
        channels_last_f32: false,
        adds_scaled: true,
        activates_any_shape: false,
        joins_heads: true,
        joins_sums: true,
        last_elements_max: 1 << 20,
        takes_tails: false,
    },
    rates: Rates { bytes_per_ns: 4_000.0, flops_per_ns: 50_000.0, launch_ns: 2_000.0 },
};

/// Maximum size of a block that each lane has for itself.
const LANE_BLOCK_BYTES_MAX: usize = 256 << 20;

/// Plans, their kept data, and the blocks that they share.
#[derive(Default)]
struct Graphs {
    plans: Plans,
    blocks: [Block; LANES_MAX],
    replays: Replays,
}

/// A block for intermediate tensors.
#[derive(Default)]
pub(super) struct Block {
    pub(super) memory: Option<(DeviceBuffer, Address)>,
    /// The lane of the last graph that used it.
    lane: usize,
}

impl DeviceState for Graphs {
    fn take_replays(&mut self) -> Vec<Replay> {
        self.replays.take_all()
    }
}

impl Graphs {
    /// Removes everything after a failure: the engine takes back all memory that the op took,
    /// including the data to be kept.
    fn clear(&mut self, context: &mut Context) {
        context.hold_replays(self.take_replays());
        self.plans.clear();
        for block in &mut self.blocks {
            if let Some((block, _)) = block.memory.take()
                && let Ok(block) = as_tensor(block)
            {
                context.keep(&block);
            }
        }
        context.release_behind_all();
    }
}

/// Whether every op of the graph is supported. All devices of the dialect support the same ops.
pub(super) fn supports(op: &RunGraph) -> Support {
    match op.instance() {
        Ok(instance) => instance.support(op.graph(), NOWHERE, &super::super::supports),
        Err(error) => Support::No(error.to_string()),
    }
}

/// Whether a device has enough memory for the graph, or how much is missing.
pub(super) fn fits(op: &RunGraph, device: &DeviceInfo) -> Support {
    panoply_graph::fits(op, &GRAPH_TARGET.facts, device)
}

/// The device's fusion facts: images are channels-last if a library prefers that.
fn facts(context: &Context) -> Facts {
    let channels_last = context.driver.convolutions().is_some_and(|library| library.fuses());
    Facts { channels_last, ..GRAPH_TARGET.facts }
}

pub(super) fn run(op: &RunGraph, context: &mut Context) -> Result<Value> {
    context.with_state(|graphs: &mut Graphs, context| {
        let ran = catch_unwind(AssertUnwindSafe(|| run_with(graphs, op, context)));
        context.planned.forget();
        if !matches!(ran, Ok(Ok(_))) {
            graphs.clear(context);
        }
        ran.unwrap_or_else(|panic| resume_unwind(panic))
    })
}

fn run_with(graphs: &mut Graphs, op: &RunGraph, context: &mut Context) -> Result<Value> {
    let is_rehearsal = context.is_rehearsal();
    let facts = facts(context);
    let Graphs { plans, blocks, replays } = graphs;
    let mut steps = Steps { context, blocks, home: 0, outputs: VecDeque::new(), waiting: DeferredMaps::default() };
    // In a rehearsal nothing is brought to the device, so nothing is kept either.
    let mut passing = Plans::default();
    let plans = if is_rehearsal { &mut passing } else { plans };
    plans.get(op, &facts, &mut steps).and_then(|ready| {
        steps.context.hold_plan(&ready.held);
        steps.choose_block(ready.held.plan.arena_bytes)?;
        match is_rehearsal {
            false => replays.run(ready, op, &mut steps),
            true => run_steps(ready, op, &mut steps),
        }
    })
}

/// Queues a plan step by step. The temporary memory of a step is reused by the next.
pub(super) fn run_steps(ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>) -> Result<Value> {
    steps.context.share_workspaces();
    let ran = panoply_graph::run(ready, op, steps).and_then(|value| steps.waiting.flush(steps.context).map(|()| value));
    steps.waiting.forget();
    steps.context.part_workspaces();
    ran
}

/// A block as a tensor of bytes, which holds it.
fn as_tensor(block: DeviceBuffer) -> Result<Tensor> {
    Tensor::from_device(DType::U8, Shape::new([block.len_bytes()])?, block)
}

pub(super) struct Steps<'a> {
    pub(super) context: &'a mut Context,
    /// The blocks for intermediate tensors, and which of them the graph uses.
    blocks: &'a mut [Block; LANES_MAX],
    home: usize,
    /// Memory for the graph's outputs, in the order of the steps; if empty, memory is allocated on
    /// demand.
    pub(super) outputs: VecDeque<(DeviceBuffer, Address)>,
    /// Maps that are not queued yet.
    waiting: DeferredMaps,
}

impl Steps<'_> {
    /// Chooses the block, behind the last graph that used it.
    fn choose_block(&mut self, bytes: usize) -> Result<()> {
        let lane = self.context.lane();
        self.home = if bytes <= LANE_BLOCK_BYTES_MAX { lane } else { 0 };
        let block = &mut self.blocks[self.home];
        let last = std::mem::replace(&mut block.lane, lane);
        if block.memory.is_some() { self.context.follow(last) } else { Ok(()) }
    }

    /// The block that the graph uses.
    pub(super) fn block(&mut self) -> &mut Option<(DeviceBuffer, Address)> {
        &mut self.blocks[self.home].memory
    }

    /// The op with its inputs of more than `small` bytes on the device and contiguous; `None` if
    /// they already are.
    pub(super) fn with_resident(&mut self, op: &RunGraph, small: usize) -> Result<Option<RunGraph>> {
        let is_there = |context: &Context, tensor: &Tensor| {
            tensor.len_bytes() <= small || context.owns(tensor) && tensor.is_contiguous()
        };
        if op.inputs().iter().all(|tensor| is_there(self.context, tensor)) {
            return Ok(None);
        }
        let mut inputs = Vec::with_capacity(op.inputs().len());
        for tensor in op.inputs() {
            inputs.push(if is_there(self.context, tensor) { tensor.clone() } else { self.input(tensor)? });
        }
        Ok(Some(RunGraph::new(op.graph(), &inputs.iter().collect::<Vec<_>>())))
    }

    /// Queues one op, or defers it to join it with similar ones, if it may wait.
    fn queue(&mut self, op: &Op, may_wait: bool) -> Result<Value> {
        if let Op::Compute(ComputeOp::Map(map)) = op
            && may_wait
            && let Some(value) = self.waiting.take(map, self.context)?
        {
            return Ok(value);
        }
        self.waiting.flush(self.context)?;
        super::super::run(op, self.context)
    }

    /// The destination of a step's output: in the block, in memory allocated for an output of the
    /// graph, or unspecified.
    fn place_of(&mut self, output: &Destination) -> Option<PlannedPlace> {
        let ((buffer, start), offset) = match output.arena_offset {
            Some(offset) => (self.block().clone()?, offset),
            None if output.is_output => (self.outputs.pop_front()?, 0),
            None => return None,
        };
        Some(PlannedPlace { buffer, start, offset })
    }

    /// Ends a step whose outputs belong at these places.
    ///
    /// An output that is in the block, but not at its own place, is copied out of it: later steps
    /// write there. This happens if an op asks for its outputs in another order, or for scratch of
    /// the same size first, or returns an input.
    fn settle(&mut self, value: Value, places: &[Option<PlannedPlace>]) -> Result<Value> {
        let block = self.block().as_ref().map(|(block, _)| block.token());
        let mut places = places.iter();
        value.try_map(|tensor| {
            let place = places.next().and_then(Option::as_ref);
            let Buffer::Device(buffer) = tensor.buffer() else { return Ok(tensor) };
            if Some(buffer.token()) != block {
                // The pool must not lend it again before the kernels in flight have read it.
                self.context.keep(&tensor);
                return Ok(tensor);
            }
            if tensor.elements() == 0 || place.is_some_and(|place| place.holds(&tensor)) {
                return Ok(tensor);
            }
            self.waiting.flush(self.context)?;
            let output = self.context.output(tensor.dtype(), *tensor.shape())?;
            self.context.place(output.address, &tensor)?;
            let copy = output.into_tensor();
            self.context.keep(&copy);
            Ok(copy)
        })
    }

    /// A tensor's elements on the device, contiguous.
    fn resident(&mut self, tensor: &Tensor) -> Result<Tensor> {
        if self.context.owns(tensor) && tensor.is_contiguous() {
            return Ok(tensor.clone());
        }
        self.context.planned.forget();
        let output = self.context.output(tensor.dtype(), *tensor.shape())?;
        self.context.place(output.address, tensor)?;
        Ok(output.into_tensor())
    }
}

impl Executor for Steps<'_> {
    /// The free memory of the driver and the pool. A rehearsal takes none of it.
    fn room(&mut self) -> Room {
        let is_rehearsal = self.context.is_rehearsal();
        let free = self.context.driver.memory_info().ok().filter(|_| !is_rehearsal).map(|(free, _)| free);
        let free_bytes = free.map(|free| free + self.context.memory.stats().cached_bytes);
        Room { place: self.context.device.to_string(), free_bytes, shares_host_memory: false }
    }

    fn prepare(&mut self, arena_bytes: usize) -> Result<()> {
        if self.block().as_ref().is_some_and(|(block, _)| block.len_bytes() >= arena_bytes) || arena_bytes == 0 {
            return Ok(());
        }
        if let Some((before, _)) = self.block().take() {
            // Graphs in flight still use it.
            self.context.keep(&as_tensor(before)?);
        }
        *self.block() = Some(self.context.memory.tensor(arena_bytes)?);
        Ok(())
    }

    fn input(&mut self, tensor: &Tensor) -> Result<Tensor> {
        let resident = self.resident(tensor)?;
        self.context.keep(&resident);
        Ok(resident)
    }

    fn constant(&mut self, tensor: &Tensor) -> Result<Tensor> {
        let kept = self.resident(tensor);
        self.context.publish();
        kept
    }

    fn step(&mut self, op: &Op, outputs: &[Destination]) -> Result<Value> {
        let places: Vec<Option<PlannedPlace>> = outputs.iter().map(|output| self.place_of(output)).collect();
        self.context.planned.expect(outputs.iter().zip(&places).map(|(output, place)| {
            let (place, len_bytes, order) = (place.clone(), output.len_bytes, output.order);
            PlannedOutput { place, len_bytes, order }
        }));
        let value = self.queue(op, !outputs.is_empty());
        self.context.planned.forget();
        let value = value.and_then(|value| self.settle(value, &places));
        self.context.next_part();
        if outputs.is_empty() {
            // Results that are computed once, for all later runs.
            self.context.publish();
        }
        value
    }
}
