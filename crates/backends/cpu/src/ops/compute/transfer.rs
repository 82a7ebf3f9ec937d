//! Transfer on the CPU: the device's memory is the host's memory, so only views are copied.

use panoply_core::op::compute::Transfer;
use panoply_core::{Result, Value};

use crate::context::Context;
use crate::ops::compute::transpose::copy_view;

pub(crate) fn run(op: &Transfer, context: &mut Context) -> Result<Value> {
    op.input.host_bytes()?;
    if op.input.is_contiguous() {
        return Ok(Value::Tensor(op.input.clone()));
    }
    copy_view(&op.input, context).map(Value::Tensor)
}
