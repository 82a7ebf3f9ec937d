//! Transfer: the same elements, contiguous.

use panoply_core::op::compute::Transfer;
use panoply_core::{Result, Value};

use super::transpose::copy;

pub(super) fn run(op: &Transfer) -> Result<Value> {
    copy(&op.input)
}
