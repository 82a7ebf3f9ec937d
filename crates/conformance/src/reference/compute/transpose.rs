//! Transpose: the elements of the view, one by one.

use panoply_core::op::compute::Transpose;
use panoply_core::{Result, Value};

pub(super) fn run(op: &Transpose) -> Result<Value> {
    op.view()?.contiguous().map(Value::Tensor)
}
