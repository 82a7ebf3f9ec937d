//! RunGraph: the steps of the plan by the ops' own path, with what lies between them in one arena.

use std::sync::Arc;

use panoply_core::op::compute::ComputeOp;
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, DeviceInfo, Error, Op, Result, Support, Tensor, Value};
use panoply_graph::{Destination, Executor, Facts, Plans, Room, Tail};

use crate::context::{Arena, Context};
use crate::health::available_bytes;
use crate::memory::Pages;
use crate::ops::compute::conv2d;
use crate::ops::compute::search::contiguous;

/// An arena of at most so many bytes is kept for the next graph.
const ARENA_BYTES_MAX: usize = 256 << 20;

/// Plans, what is kept for them, and the arena that they share: one graph runs at a time.
#[derive(Default)]
pub(crate) struct Graphs {
    plans: Plans,
    arena: Option<Arena>,
}

/// Whether the node has the memory that the graph needs; it runs every op.
pub(crate) fn supports(op: &RunGraph, device: &DeviceInfo) -> Support {
    panoply_graph::fits(op, &Facts::CPU, device)
}

pub(super) fn run(op: &RunGraph, context: &mut Context) -> Result<Value> {
    let mut graphs = std::mem::take(&mut context.graphs);
    context.weights.begin(op.graph());
    let Graphs { plans, arena } = &mut graphs;
    let ran = plans.get(op, &Facts::CPU, &mut Steps { context, arena }).and_then(|ready| {
        let ran = panoply_graph::run(ready, op, &mut Steps { context, arena });
        *arena = context.arena.take().filter(|arena| arena.bytes() <= ARENA_BYTES_MAX);
        ran
    });
    context.arena = None;
    context.weights.end();
    context.graphs = graphs;
    ran
}

struct Steps<'a> {
    context: &'a mut Context,
    /// The arena while no graph runs.
    arena: &'a mut Option<Arena>,
}

impl Executor for Steps<'_> {
    fn room(&mut self) -> Room {
        let free_bytes = available_bytes().map(|free| free + self.context.memory.stats().cached_bytes);
        Room { place: "the host".to_owned(), free_bytes, shares_host_memory: true }
    }

    /// The arena that is there, or a larger one.
    fn prepare(&mut self, bytes: usize) -> Result<()> {
        self.context.arena = self.arena.take().filter(|arena| arena.bytes() >= bytes);
        if self.context.arena.is_none() {
            let place = "the host".to_owned();
            let none = || Error::OutOfMemory { place, asked: bytes as u64, free: 0, largest: 0 };
            self.context.arena = Some(Arena::new(Arc::new(Pages::zeroed(bytes).ok_or_else(none)?)));
        }
        Ok(())
    }

    fn input(&mut self, tensor: &Tensor) -> Result<Tensor> {
        contiguous(tensor, self.context)
    }

    fn constant(&mut self, tensor: &Tensor) -> Result<Tensor> {
        self.context.weights.note(tensor);
        Ok(tensor.clone())
    }

    fn step(&mut self, op: &Op, outputs: &[Destination]) -> Result<Value> {
        self.placed(outputs, |context| crate::ops::run(op, context))
    }

    /// Convolutions apply it to the sums that they have; what else there may be is followed by a map.
    fn step_with(&mut self, op: &Op, tail: &Tail, outputs: &[Destination]) -> Result<Value> {
        match op {
            Op::Compute(ComputeOp::Conv2d(op)) if op.input.dtype() == DType::F32 => {
                self.placed(outputs, |context| conv2d::run_with(op, tail, context))
            }
            _ => {
                let made = self.step(op, &[])?.into_tensor()?;
                self.step(&tail.op(&made), outputs)
            }
        }
    }
}

impl Steps<'_> {
    /// Runs a step whose outputs go where these say.
    fn placed(&mut self, outputs: &[Destination], step: impl FnOnce(&mut Context) -> Result<Value>) -> Result<Value> {
        if let Some(arena) = &mut self.context.arena {
            arena.expect(outputs.iter().filter_map(|output| Some((output.arena_offset?, output.len_bytes))));
        }
        self.context.order = outputs.first().and_then(|output| output.order);
        let value = step(self.context);
        self.context.order = None;
        let value = value?;
        match &mut self.context.arena {
            Some(arena) => arena.settle(value),
            None => Ok(value),
        }
    }
}
