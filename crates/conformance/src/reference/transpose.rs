//! Transpose: the view's elements one by one.

use panoply_core::op::compute::Transpose;
use panoply_core::{HostBufferMut, Result, Tensor, Value};

pub(super) fn run(op: &Transpose) -> Result<Value> {
    copy(&op.view()?)
}

/// The elements of a view, one after the other.
pub(super) fn copy(view: &Tensor) -> Result<Value> {
    let size = view.dtype().size_bytes();
    let source = view.host_bytes()?;
    let mut target = HostBufferMut::zeroed(view.len_bytes())?;
    for (index, element) in view.indices().zip(target.bytes_mut().chunks_exact_mut(size)) {
        element.copy_from_slice(&source[index * size..][..size]);
    }
    Tensor::from_host(view.dtype(), *view.shape(), target.freeze()).map(Value::Tensor)
}
