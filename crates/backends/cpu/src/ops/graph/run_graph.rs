//! RunGraph: runs the steps of the plan through the ops' own code, with intermediate tensors in one
//! arena.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;
use std::sync::Arc;

use panoply_core::op::compute::ComputeOp;
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, DeviceInfo, Error, Op, Result, Support, Tensor, Value};
use panoply_graph::cost::Rates;
use panoply_graph::{Destination, DeviceTarget, Executor, Facts, Plans, Room, Tail};

use crate::available::available_bytes;
use crate::context::{AnnouncedOutput, Arena, Context};
use crate::memory::Pages;
use crate::ops::compute::conv2d;
use crate::ops::compute::search::contiguous;
use crate::states::OpState;
use crate::weights::Weights;

/// An arena of at most this size is kept for the next graph.
const ARENA_BYTES_MAX: usize = 256 << 20;

/// The CPU for the graph compiler: a map's blocks of scratch memory stay in the first-level cache,
/// and rows in the second. A scaled tensor is added in a separate pass. The rates are those of two
/// server cores and their memory.
pub const GRAPH_TARGET: DeviceTarget = DeviceTarget {
    facts: Facts {
        map_inputs_max: 12,
        map_nodes_max: 128,
        row_len_max: 1 << 16,
        row_inputs_max: 12,
        attention_elements_max: usize::MAX,
        channels_last: false,
        channels_last_f32: true,
        adds_scaled: false,
        activates_any_shape: true,
        joins_heads: false,
        joins_sums: false,
        last_elements_max: 0,
        takes_tails: true,
    },
    rates: Rates { bytes_per_ns: 20.0, flops_per_ns: 120.0, launch_ns: 1_000.0 },
};

/// Plans, their kept data, and the arena that they share: one graph runs at a time.
#[derive(Default)]
struct Graphs {
    plans: Plans,
    arena: Option<Arena>,
}

impl OpState for Graphs {}

impl OpState for Weights {}

/// Whether the node has enough memory for the graph; it runs every op.
pub(crate) fn supports(op: &RunGraph, device: &DeviceInfo) -> Support {
    panoply_graph::fits(op, &GRAPH_TARGET.facts, device)
}

pub(super) fn run(op: &RunGraph, context: &mut Context) -> Result<Value> {
    context.with_state(|graphs: &mut Graphs, context| {
        let ran = catch_unwind(AssertUnwindSafe(|| run_with(graphs, op, context)));
        context.leave_graph();
        context.states.get::<Weights>().end();
        ran.unwrap_or_else(|panic| {
            // A plan may be half changed.
            *graphs = Graphs::default();
            resume_unwind(panic)
        })
    })
}

fn run_with(graphs: &mut Graphs, op: &RunGraph, context: &mut Context) -> Result<Value> {
    context.states.get::<Weights>().begin(op.graph());
    let Graphs { plans, arena } = graphs;
    let ready = plans.get(op, &GRAPH_TARGET.facts, &mut Steps { context, arena })?;
    let ran = panoply_graph::run(ready, op, &mut Steps { context, arena });
    *arena = context.arena.take().filter(|arena| arena.bytes() <= ARENA_BYTES_MAX);
    ran
}

struct Steps<'a> {
    context: &'a mut Context,
    /// The arena while no graph runs.
    arena: &'a mut Option<Arena>,
}

impl Executor for Steps<'_> {
    fn room(&mut self) -> Room {
        let free_bytes =
            available_bytes(Path::new("/"), None).map(|free| free + self.context.memory.stats().cached_bytes);
        Room { place: "the host".to_owned(), free_bytes, shares_host_memory: true }
    }

    /// Takes the existing arena if it is large enough, else a new one. No step is using it.
    fn prepare(&mut self, bytes: usize) -> Result<()> {
        self.context.arena = self.arena.take().filter(|arena| arena.bytes() >= bytes);
        if let Some(arena) = &mut self.context.arena {
            arena.forget();
        } else {
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
        self.context.states.get::<Weights>().note(tensor);
        Ok(tensor.clone())
    }

    fn step(&mut self, op: &Op, outputs: &[Destination]) -> Result<Value> {
        self.placed(outputs, |context| crate::ops::run(op, context))
    }

    /// Convolutions apply the epilogue to their sums; for other ops it runs as a separate map.
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
    /// Runs a step whose outputs belong at these destinations.
    fn placed(&mut self, outputs: &[Destination], step: impl FnOnce(&mut Context) -> Result<Value>) -> Result<Value> {
        if let Some(arena) = &mut self.context.arena {
            arena.announce(
                outputs
                    .iter()
                    .map(|output| AnnouncedOutput { offset: output.arena_offset, len_bytes: output.len_bytes }),
            );
        }
        self.context.order = outputs.first().and_then(|output| output.order);
        let made = step(self.context);
        self.context.order = None;
        match &mut self.context.arena {
            Some(arena) => arena.settle(made),
            None => made,
        }
    }
}
