//! RunGraph: the steps of the plan by the ops' own path, with what lies between them in one arena.

use std::sync::Arc;

use panoply_core::op::graph::RunGraph;
use panoply_core::{Error, Op, Result, Tensor, Value};
use panoply_graph::{Executor, Facts, Plans, Ready};

use crate::context::{Arena, Context};
use crate::memory::Pages;
use crate::ops::compute::search::contiguous;

/// An arena of at most so many bytes is kept for the next graph.
const ARENA_BYTES_MAX: usize = 256 << 20;

/// Plans, what is kept for them, and the arena that they share: one graph runs at a time.
#[derive(Default)]
pub(crate) struct Graphs {
    plans: Plans,
    arena: Option<Arc<Pages>>,
}

pub(super) fn run(op: &RunGraph, context: &mut Context) -> Result<Value> {
    let mut graphs = std::mem::take(&mut context.graphs);
    context.weights.begin(op.graph());
    let ready = graphs.plans.get(op, &Facts::CPU, &mut Steps { context });
    let ran = ready.and_then(|ready: Arc<Ready>| {
        context.arena = Some(arena(&mut graphs.arena, ready.plan.arena_bytes)?);
        panoply_graph::run(&ready, op, &mut Steps { context })
    });
    context.arena = None;
    context.weights.end();
    if graphs.arena.as_ref().is_some_and(|arena| arena.bytes() > ARENA_BYTES_MAX) {
        graphs.arena = None;
    }
    context.graphs = graphs;
    ran
}

/// An arena of at least so many bytes: the one that is there, or a larger one.
fn arena(kept: &mut Option<Arc<Pages>>, bytes: usize) -> Result<Arena> {
    if let Some(arena) = kept.as_ref().filter(|arena| arena.bytes() >= bytes) {
        return Ok(Arena::new(Arc::clone(arena)));
    }
    let place = || "the host".to_owned();
    let none = || Error::OutOfMemory { place: place(), asked: bytes as u64, free: 0, largest: 0 };
    let arena = Arc::new(Pages::zeroed(bytes).ok_or_else(none)?);
    *kept = Some(Arc::clone(&arena));
    Ok(Arena::new(arena))
}

struct Steps<'a> {
    context: &'a mut Context,
}

impl Executor for Steps<'_> {
    fn prepare(&mut self, _arena_bytes: usize) -> Result<()> {
        Ok(())
    }

    fn input(&mut self, tensor: &Tensor) -> Result<Tensor> {
        contiguous(tensor, self.context)
    }

    fn constant(&mut self, tensor: &Tensor) -> Result<Tensor> {
        self.context.weights.note(tensor);
        Ok(tensor.clone())
    }

    fn step(&mut self, op: &Op, places: &[Option<usize>]) -> Result<Value> {
        if let Some(arena) = &mut self.context.arena {
            arena.expect(op.outputs()?.iter().zip(places).filter_map(|((dtype, shape), place)| {
                place.map(|offset| (offset, shape.elements() * dtype.size_bytes()))
            }));
        }
        let value = crate::ops::run(op, self.context)?;
        match &mut self.context.arena {
            Some(arena) => arena.settle(value),
            None => Ok(value),
        }
    }
}
