//! Transfer: to this device from the host or from a reachable device, or from this device to the
//! host.

use panoply_core::op::compute::Transfer;
use panoply_core::{Buffer, Error, Location, Result, Value};

use crate::context::Context;

/// Whether a transfer to the host is a single copy. Tensors are handed out when the op that made
/// them has finished, so such a copy waits for nothing: neither for kernels queued since, nor for
/// the uploads that those wait for.
pub(super) fn is_download_alone(op: &Transfer, context: &Context) -> bool {
    op.to == Location::Host && context.owns(&op.input) && op.input.is_contiguous()
}

pub(crate) fn run(op: &Transfer, context: &mut Context) -> Result<Value> {
    match (op.to, op.input.buffer()) {
        (Location::Host, Buffer::Host(_)) => op.input.contiguous().map(Value::Tensor),
        (Location::Host, Buffer::Device(_)) => {
            let (dtype, shape) = (op.input.dtype(), *op.input.shape());
            if is_download_alone(op, context) {
                let source = context.view(&op.input)?.address;
                return context.download_finished(source, dtype, shape).map(Value::Tensor);
            }
            let source = context.input(&op.input)?;
            context.download(source, dtype, shape).map(Value::Tensor)
        }
        (Location::Device(device), _) if device == context.device => {
            if context.owns(&op.input) && op.input.is_contiguous() {
                return Ok(Value::Tensor(op.input.clone()));
            }
            let output = context.output(op.input.dtype(), *op.input.shape())?;
            context.place(output.address, &op.input)?;
            Ok(Value::Tensor(output.into_tensor()))
        }
        (Location::Device(device), _) => {
            Err(Error::invalid("transfer: target", format!("{} or the host", context.device), device))
        }
    }
}
