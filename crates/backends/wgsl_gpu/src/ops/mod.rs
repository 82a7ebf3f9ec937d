//! From an op to dispatches, in one folder for each domain. [`support`] reports which ops run;
//! [`run`] records an op.

use panoply_core::graph::NOWHERE;
use panoply_core::op::compute::ComputeOp;
use panoply_core::{DType, Describe, DeviceInfo, Error, Location, Op, Result, Shape, Support, Tensor, Value};

use crate::context::Context;
use crate::driver::Driver;
use crate::engine::Answer;
use crate::profile::Profile;
use crate::quirks;

pub(crate) mod compute;
pub(crate) mod graph;
mod signal;

panoply_core::domain_modules! {
    Compute in compute;
    Signal in signal;
    Graph in graph;
}

/// Checks that a device runs an op.
pub fn support(profile: &Profile, op: &Op) -> Result<(), String> {
    check(profile, op)?;
    by_domain!(op => support(profile, op), Err(no_kernels(op)))
}

/// Whether this device runs an op: the op itself, and the memory that a graph needs.
pub fn support_on(profile: &Profile, device: &DeviceInfo, op: &Op) -> Support {
    match (support(profile, op), op) {
        (Err(reason), _) => Support::No(reason),
        (Ok(()), Op::Graph(graph)) => graph::fits(profile, graph, device),
        (Ok(()), _) => Support::Yes,
    }
}

/// Records an op.
pub fn run<D: Driver>(op: &Op, context: &mut Context<D>) -> Result<Answer> {
    if let Op::Compute(ComputeOp::Map(map)) = op
        && let Some(tensor) = compute::run_again(map, context)?
    {
        return Ok(Answer::Value(Value::Tensor(tensor)));
    }
    let unsupported = |reason| Error::Unsupported { op: op.name(), reason };
    check(&context.profile, op).map_err(unsupported)?;
    by_domain!(op => run(op, context), Err(unsupported(no_kernels(op))))
}

/// Checks for reasons that affect every op: a quirk, an input on another device, or an input larger
/// than any buffer.
fn check(profile: &Profile, op: &Op) -> Result<(), String> {
    if let Some(quirk) = quirks::find(profile.quirks, &profile.name, &profile.driver, op.name()) {
        return Err(format!("{} with {}: {}", profile.name, profile.driver, quirk.reason));
    }
    let mut wrong = None;
    op.for_each_tensor(&mut |tensor| wrong = wrong.take().or_else(|| input_trouble(profile, tensor)));
    wrong.map_or(Ok(()), Err)
}

fn input_trouble(profile: &Profile, tensor: &Tensor) -> Option<String> {
    match tensor.location() {
        // Placeholders of a graph will be on this device.
        Location::Device(device) if device != profile.id && device != NOWHERE => {
            Some(format!("an input lives on {device}; transfer it to the host first"))
        }
        Location::Device(_) => None,
        Location::Host => fits_memory(profile, "an input", tensor.dtype(), tensor.shape()).err(),
    }
}

/// Checks that a buffer can hold this tensor. Ops work in pieces if kernels do not see all of it.
fn fits_memory(profile: &Profile, what: &str, dtype: DType, shape: &Shape) -> Result<(), String> {
    let bytes = shape.elements().saturating_mul(dtype.size_bytes()) as u64;
    let most = profile.buffer_bytes_max;
    if bytes > most { Err(format!("{what} of {bytes} bytes; a buffer has {most}")) } else { Ok(()) }
}

fn no_kernels(op: &Op) -> String {
    format!("the {} domain has no kernels in WGSL", op.domain())
}
