//! Transfer: the same elements, contiguous.

use panoply_core::op::compute::Transfer;
use panoply_core::{Result, Value};

pub(super) fn run(op: &Transfer) -> Result<Value> {
    op.input.contiguous().map(Value::Tensor)
}
