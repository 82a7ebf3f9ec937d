//! From an op to launches: one file per op. Each brings its inputs to the device, takes memory for its output, and queues
//! what computes it. Nothing here waits for the device.

use panoply_core::op::compute::ComputeOp;
use panoply_core::{Error, Op, Result, Support, Value};

use crate::context::Context;

mod search;
mod topk;
mod transfer;
mod transpose;

/// Queues one op.
pub(crate) fn run(op: &Op, context: &mut Context) -> Result<Value> {
    match op {
        Op::Compute(op) => run_compute(op, context),
        Op::Crypto(op) => match *op {},
        Op::Network(op) => match *op {},
        Op::Ml(op) => match *op {},
        Op::Signal(op) => match *op {},
        Op::Video(op) => match *op {},
    }
}

fn run_compute(op: &ComputeOp, context: &mut Context) -> Result<Value> {
    match op {
        ComputeOp::Search(op) => search::run(op, context),
        ComputeOp::TopK(op) => topk::run(op, context),
        ComputeOp::Transfer(op) => transfer::run(op, context),
        ComputeOp::Transpose(op) => transpose::run(op, context),
        _ => Err(Error::Unsupported { op: "this op", reason: "the CUDA backend does not have it".to_owned() }),
    }
}

/// Whether a device runs this op.
pub(crate) fn supports(op: &Op) -> Support {
    match op {
        Op::Compute(op) => supports_compute(op),
        Op::Crypto(op) => match *op {},
        Op::Network(op) => match *op {},
        Op::Ml(op) => match *op {},
        Op::Signal(op) => match *op {},
        Op::Video(op) => match *op {},
    }
}

fn supports_compute(op: &ComputeOp) -> Support {
    match op {
        ComputeOp::Search(op) => search::supports(op),
        ComputeOp::TopK(op) => topk::supports(op),
        ComputeOp::Transfer(_) => Support::Yes,
        ComputeOp::Transpose(_) => Support::Yes,
        _ => Support::No("the CUDA backend does not have it yet".to_owned()),
    }
}
