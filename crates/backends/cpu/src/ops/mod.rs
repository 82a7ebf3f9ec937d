//! From an op to a kernel: one file per op. Each checks what only the data can tell, dispatches on the element type,
//! and writes into an output of the context.

use panoply_core::op::compute::ComputeOp;
use panoply_core::{Op, Result, Value};

use crate::context::Context;

mod transfer;
mod transpose;

/// Runs one op to its end on the calling thread and the context's team.
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
        ComputeOp::Transfer(op) => transfer::run(op, context),
        ComputeOp::Transpose(op) => transpose::run(op, context),
    }
}
