//! RunGraph: all steps of the plan in the same commands.
//!
//! What lies between them comes from the pool and goes back to it when its last reader is recorded: the queue works in order, so
//! the next step may have it. So the pool holds no more than what is needed at once.

use panoply_core::op::compute::Transfer;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Error, Location, Op, Operation, Result, Support, Tensor, Value};
use panoply_graph::{Executor, Facts, Plans};

use crate::context::Context;
use crate::driver::Driver;
use crate::engine::Answer;
use crate::profile::Profile;

/// What WGSL kernels take: every adapter binds eight buffers, and longer rows do not fit registers.
const FACTS: Facts = Facts { map_inputs_max: 6, map_nodes_max: 64, row_len_max: 1 << 13, row_inputs_max: 7 };

pub(super) fn support(profile: &Profile, op: &RunGraph) -> Result<(), String> {
    let instance = op.instance().map_err(|error| error.to_string())?;
    let ask = |op: &Op| super::super::support(profile, op).map_or_else(Support::No, |()| Support::Yes);
    match instance.support(op.graph(), profile.id, &ask) {
        Support::Yes => Ok(()),
        Support::No(reason) => Err(reason),
    }
}

pub(super) fn run<D: Driver>(op: &RunGraph, context: &mut Context<D>) -> Result<Answer> {
    let mut plans = std::mem::take(&mut context.plans);
    // In a rehearsal nothing is brought to the device, so nothing is kept either.
    let mut passing = Plans::default();
    let used = if context.is_rehearsal() { &mut passing } else { &mut plans };
    let mut steps = Steps { context, checks: Vec::new() };
    let ran = used.get(op, &FACTS, &mut steps).and_then(|ready| panoply_graph::run(&ready, op, &mut steps));
    let checks = steps.checks;
    context.plans = plans;
    let value = ran?;
    Ok(if checks.is_empty() { Answer::Value(value) } else { Answer::Checked { value, checks } })
}

struct Steps<'a, D: Driver> {
    context: &'a mut Context<D>,
    /// What steps want to have looked at when all is done.
    checks: Vec<(usize, usize)>,
}

impl<D: Driver> Steps<'_, D> {
    fn resident(&mut self, tensor: &Tensor) -> Result<Tensor> {
        if tensor.location() == Location::Device(self.context.device) && tensor.is_contiguous() {
            return Ok(tensor.clone());
        }
        let transfer = Transfer::to_device(tensor, self.context.device).into_op()?;
        self.record(&transfer)?.into_tensor()
    }

    fn record(&mut self, op: &Op) -> Result<Value> {
        match super::super::run(op, self.context)? {
            Answer::Value(value) => Ok(value),
            Answer::Checked { value, checks } => {
                self.checks.extend(checks);
                Ok(value)
            }
            Answer::Host { .. } => Err(Error::invalid("graph: a step", "an output on the device", "one on the host")),
        }
    }
}

impl<D: Driver> Executor for Steps<'_, D> {
    fn prepare(&mut self, _arena_bytes: usize) -> Result<()> {
        Ok(())
    }

    fn input(&mut self, tensor: &Tensor) -> Result<Tensor> {
        self.resident(tensor)
    }

    fn constant(&mut self, tensor: &Tensor) -> Result<Tensor> {
        self.resident(tensor)
    }

    fn step(&mut self, op: &Op, _places: &[Option<usize>]) -> Result<Value> {
        self.record(op)
    }
}
