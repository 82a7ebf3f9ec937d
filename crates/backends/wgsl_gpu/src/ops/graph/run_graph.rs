//! RunGraph: all steps of the plan in the same commands.
//!
//! Intermediate tensors come from the pool and return to it when their last reader is recorded: the
//! queue works in order, so the next step may reuse the memory. So the pool holds only the memory
//! that is needed at the same time.

use panoply_core::op::compute::Transfer;
use panoply_core::op::graph::RunGraph;
use panoply_core::{DeviceInfo, Error, Location, Op, Operation, Result, Support, Tensor, Value};
use panoply_graph::{Destination, Executor, Facts, Plans, Room};

use crate::context::Context;
use crate::driver::Driver;
use crate::engine::Answer;
use crate::profile::Profile;

/// Size of a carrier of an element between kernels.
const WORD_BYTES: usize = 4;

/// The limits of WGSL kernels: every adapter binds eight buffers, longer rows do not fit registers,
/// and attention must see its operands as a whole.
fn facts(profile: &Profile) -> Facts {
    Facts {
        map_inputs_max: 6,
        map_nodes_max: 64,
        row_len_max: 1 << 13,
        row_inputs_max: 7,
        attention_elements_max: profile.binding_bytes_max as usize / WORD_BYTES / 2,
        channels_last: false,
        channels_last_f32: false,
        adds_scaled: true,
        activates_any_shape: false,
        joins_heads: false,
        joins_sums: false,
        last_elements_max: 0,
        takes_tails: false,
    }
}

pub(super) fn support(profile: &Profile, op: &RunGraph) -> Result<(), String> {
    let instance = op.instance().map_err(|error| error.to_string())?;
    let ask = |op: &Op| super::super::support(profile, op).map_or_else(Support::No, |()| Support::Yes);
    match instance.support(op.graph(), profile.id, &ask) {
        Support::Yes => Ok(()),
        Support::No(reason) => Err(reason),
    }
}

/// Whether a device has the memory that a graph needs, and otherwise how much is missing.
pub(super) fn fits(profile: &Profile, op: &RunGraph, device: &DeviceInfo) -> Support {
    panoply_graph::fits(op, &facts(profile), device)
}

pub(super) fn run<D: Driver>(op: &RunGraph, context: &mut Context<D>) -> Result<Answer> {
    let mut plans = std::mem::take(context.states.get::<Plans>());
    // A rehearsal brings nothing to the device, so its plans are not kept.
    let mut passing = Plans::default();
    let used = if context.is_rehearsal() { &mut passing } else { &mut plans };
    let facts = facts(&context.profile);
    let mut steps = Steps { context, checks: Vec::new() };
    let ran = used.get(op, &facts, &mut steps).and_then(|ready| panoply_graph::run(ready, op, &mut steps));
    let checks = steps.checks;
    *context.states.get() = plans;
    let value = ran?;
    Ok(if checks.is_empty() { Answer::Value(value) } else { Answer::Checked { value, checks } })
}

struct Steps<'a, D: Driver> {
    context: &'a mut Context<D>,
    /// Downloads that steps need checked when all is done.
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
    /// The API does not report free memory.
    fn room(&mut self) -> Room {
        Room { place: self.context.device.to_string(), free_bytes: None, shares_host_memory: false }
    }

    fn prepare(&mut self, _arena_bytes: usize) -> Result<()> {
        Ok(())
    }

    fn input(&mut self, tensor: &Tensor) -> Result<Tensor> {
        self.resident(tensor)
    }

    fn constant(&mut self, tensor: &Tensor) -> Result<Tensor> {
        self.resident(tensor)
    }

    fn step(&mut self, op: &Op, _outputs: &[Destination]) -> Result<Value> {
        self.record(op)
    }
}
