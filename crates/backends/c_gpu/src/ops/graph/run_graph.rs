//! RunGraph: the steps of the plan, queued one after the other on the compute stream, with what lies between them in one block.
//!
//! The block is the engine's, and all graphs share it: their steps are in order on one stream, so whoever writes a place does so
//! after all who read it before. Constants stay on the device with the plan.

use std::collections::VecDeque;

use panoply_core::graph::NOWHERE;
use panoply_core::op::compute::ComputeOp;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Buffer, DType, DeviceBuffer, DeviceInfo, Op, Result, Shape, Support, Tensor, Value};
use panoply_graph::{Destination, Executor, Facts, Plans, Ready, Room};

use super::recording::Replay;
use super::replay::Replays;
use crate::context::{Context, PlannedPlace};
use crate::driver::Address;
use crate::ops::compute::map::waiting::Waiting;

/// Plans, what is kept for them, and the block that they share.
#[derive(Default)]
pub(crate) struct Graphs {
    plans: Plans,
    block: Option<(DeviceBuffer, Address)>,
    replays: Replays,
}

impl Graphs {
    /// Takes all recordings away.
    pub(crate) fn take_replays(&mut self) -> Vec<Replay> {
        self.replays.take_all()
    }
}

/// Whether every op of the graph runs. All devices of the dialect run the same.
pub(super) fn supports(op: &RunGraph) -> Support {
    match op.instance() {
        Ok(instance) => instance.support(op.graph(), NOWHERE, &super::super::supports),
        Err(error) => Support::No(error.to_string()),
    }
}

/// Whether a device has the memory that the graph needs, or how much is missing.
pub(super) fn fits(op: &RunGraph, device: &DeviceInfo) -> Support {
    panoply_graph::fits(op, &Facts::C_GPU, device)
}

/// What matters of the device: with a library that wants images with their channels last, they lie so.
fn facts(context: &Context) -> Facts {
    let channels_last = context.driver.convolutions().is_some_and(|library| library.fuses());
    Facts { channels_last, ..Facts::C_GPU }
}

pub(super) fn run(op: &RunGraph, context: &mut Context) -> Result<Value> {
    let mut graphs = std::mem::take(&mut context.graphs);
    let is_rehearsal = context.is_rehearsal();
    let facts = facts(context);
    let Graphs { plans, block, replays } = &mut graphs;
    let mut steps = Steps { context, block, outputs: VecDeque::new(), waiting: Waiting::default() };
    // In a rehearsal nothing is brought to the device, so nothing is kept either.
    let mut passing = Plans::default();
    let plans = if is_rehearsal { &mut passing } else { plans };
    let ran = plans.get(op, &facts, &mut steps).and_then(|ready| {
        steps.context.hold_plan(&ready.held);
        match is_rehearsal {
            false => replays.run(ready, op, &mut steps),
            true => run_steps(ready, op, &mut steps),
        }
    });
    context.planned.forget();
    if ran.is_err() {
        // The engine takes back all memory that an op took which failed, also what was to be kept.
        context.hold_replays(graphs.take_replays());
        graphs.plans.clear();
        if let Some((block, _)) = graphs.block.take()
            && let Ok(block) = as_tensor(block)
        {
            context.keep(&block);
        }
    }
    context.graphs = graphs;
    ran
}

/// Queues a plan step by step. What a step used besides its tensors is the next one's.
pub(super) fn run_steps(ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>) -> Result<Value> {
    steps.context.share_workspaces();
    let ran = panoply_graph::run(ready, op, steps).and_then(|value| steps.waiting.flush(steps.context).map(|()| value));
    steps.waiting.forget();
    steps.context.part_workspaces();
    ran
}

/// A block as a tensor of bytes, by which it is held.
fn as_tensor(block: DeviceBuffer) -> Result<Tensor> {
    Tensor::from_device(DType::U8, Shape::new([block.len_bytes()])?, block)
}

pub(super) struct Steps<'a> {
    pub(super) context: &'a mut Context,
    /// What lies between the steps.
    pub(super) block: &'a mut Option<(DeviceBuffer, Address)>,
    /// Where the graph's outputs go, in the order of the steps; where there is none, into memory that is taken then.
    pub(super) outputs: VecDeque<(DeviceBuffer, Address)>,
    /// Maps that are not queued yet.
    waiting: Waiting,
}

impl Steps<'_> {
    /// The op with its inputs of more than `small` bytes on the device, one element after the other; `None` where they are.
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

    /// Queues one op, or lets it wait for others like it where it may.
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

    /// A tensor's elements on the device, one after the other.
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
    /// What the driver has, and what the pool keeps for reuse. A rehearsal takes none of it.
    fn room(&mut self) -> Room {
        let is_rehearsal = self.context.is_rehearsal();
        let free = self.context.driver.memory_info().ok().filter(|_| !is_rehearsal).map(|(free, _)| free);
        let free_bytes = free.map(|free| free + self.context.memory.stats().cached_bytes);
        Room { place: self.context.device.to_string(), free_bytes, shares_host_memory: false }
    }

    fn prepare(&mut self, arena_bytes: usize) -> Result<()> {
        if self.block.as_ref().is_some_and(|(block, _)| block.len_bytes() >= arena_bytes) || arena_bytes == 0 {
            return Ok(());
        }
        if let Some((before, _)) = self.block.take() {
            // Graphs under way still use it.
            self.context.keep(&as_tensor(before)?);
        }
        *self.block = Some(self.context.memory.tensor(arena_bytes)?);
        Ok(())
    }

    fn input(&mut self, tensor: &Tensor) -> Result<Tensor> {
        let resident = self.resident(tensor)?;
        self.context.keep(&resident);
        Ok(resident)
    }

    fn constant(&mut self, tensor: &Tensor) -> Result<Tensor> {
        self.resident(tensor)
    }

    fn step(&mut self, op: &Op, outputs: &[Destination]) -> Result<Value> {
        let Steps { context, block, outputs: handed_out, .. } = self;
        context.planned.expect(outputs.iter().filter_map(|output| {
            let ((buffer, start), offset) = match output.arena_offset {
                Some(offset) => (block.clone()?, offset),
                None if output.is_output => (handed_out.pop_front()?, 0),
                None => return None,
            };
            Some(PlannedPlace { buffer, start, offset, len_bytes: output.len_bytes, order: output.order })
        }));
        let value = self.queue(op, !outputs.is_empty());
        self.context.planned.forget();
        self.context.next_part();
        let value = value?;
        let block = self.block.as_ref().map(|(block, _)| block.token());
        // What is not in the block goes back to the pool when nobody reads it any more: not before the kernels have.
        for tensor in value.tensors() {
            if let Buffer::Device(buffer) = tensor.buffer()
                && Some(buffer.token()) != block
            {
                self.context.keep(tensor);
            }
        }
        Ok(value)
    }
}
