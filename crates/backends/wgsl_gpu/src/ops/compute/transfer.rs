//! Transfer: up to the device, or back to the host.

use panoply_core::op::compute::Transfer;
use panoply_core::{Error, Location, Result, Value};

use crate::context::Context;
use crate::driver::Driver;
use crate::engine::Answer;

pub(crate) fn run<D: Driver>(op: &Transfer, context: &mut Context<D>) -> Result<Answer> {
    let here = Location::Device(context.device);
    match op.to {
        Location::Host if op.input.location() == Location::Host => {
            op.input.contiguous().map(|tensor| Answer::Value(Value::Tensor(tensor)))
        }
        Location::Host => {
            let operand = context.input(&op.input)?;
            let download = context.download(&operand)?;
            Ok(Answer::Host { download, dtype: operand.dtype, shape: operand.shape })
        }
        to if to == here => {
            if op.input.elements() == 0 {
                return op.input.contiguous().map(|tensor| Answer::Value(Value::Tensor(tensor)));
            }
            if op.input.location() == here && op.input.is_contiguous() {
                return Ok(Answer::Value(Value::Tensor(op.input.clone())));
            }
            let operand = context.input(&op.input)?;
            context.finish(operand).map(|tensor| Answer::Value(Value::Tensor(tensor)))
        }
        Location::Device(device) => {
            let reason = format!("data for {device} is to be sent there");
            Err(Error::Unsupported { op: "transfer", reason })
        }
    }
}
