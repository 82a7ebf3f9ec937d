//! Placeholders: tensors without memory that stand for a slot of a graph. Their shapes, strides and
//! views are those of ordinary tensors, so every op's checks and every backend's `supports` work on
//! them. Before an op runs, each placeholder is replaced by a view of the tensor in its slot.

use crate::api::Api;
use crate::buffer::{Buffer, DeviceAllocation, DeviceBuffer};
use crate::device::DeviceId;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::lease::Home;
use crate::once::OnceBox;
use crate::op::Op;
use crate::shape::Shape;
use crate::tensor::{Location, Tensor};

/// The device of placeholders, which is no real device. A backend that is asked about an op on
/// placeholders treats them as tensors of its own device.
pub const NOWHERE: DeviceId = DeviceId { api: Api::new("placeholder"), index: 0 };

/// Makes a contiguous tensor of this shape that stands for a slot.
pub fn placeholder(dtype: DType, shape: Shape, slot: usize) -> Result<Tensor> {
    let len_bytes = shape.elements() * dtype.size_bytes();
    let allocation = DeviceAllocation { device: NOWHERE, token: slot as u64, len_bytes };
    // The owner takes nothing back. The last handle drops the allocation, which is only an id.
    static OWNER: OnceBox<Home<DeviceAllocation>> = OnceBox::new();
    let lease = OWNER.get_or_make(Home::closed).lend(allocation);
    Tensor::from_device(dtype, shape, DeviceBuffer::new(lease))
}

/// The slot of a placeholder. `None` for other tensors.
pub fn slot_of(tensor: &Tensor) -> Option<usize> {
    match tensor.buffer() {
        Buffer::Device(buffer) if buffer.device() == NOWHERE => usize::try_from(buffer.token()).ok(),
        _ => None,
    }
}

/// Applies the placeholder's view to the tensor in its slot.
pub fn view_of(placeholder: &Tensor, actual: &Tensor) -> Result<Tensor> {
    let offset = actual.offset() + placeholder.offset();
    let (shape, strides) = (*placeholder.shape(), *placeholder.strides());
    Tensor::from_parts(placeholder.dtype(), shape, strides, offset, actual.buffer().clone())
}

/// Replaces every placeholder of an op by a view of the tensor that `in_slot` returns for its slot.
pub fn fill_in(op: &mut Op, in_slot: &dyn Fn(usize) -> Option<Tensor>) -> Result<()> {
    let mut filled = Ok(());
    op.for_each_tensor_mut(&mut |tensor| {
        let Some(slot) = slot_of(tensor) else { return };
        let actual = in_slot(slot).ok_or_else(|| Error::invalid("graph: a slot", "a value", format!("none in {slot}")));
        match actual.and_then(|actual| view_of(tensor, &actual)) {
            Ok(view) => *tensor = view,
            Err(error) => filled = Err(error),
        }
    });
    filled
}

/// Whether a tensor is a placeholder.
pub fn is_placeholder(tensor: &Tensor) -> bool {
    tensor.location() == Location::Device(NOWHERE)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::op::Operation;
    use crate::op::compute::Map;

    #[test]
    fn a_view_of_a_placeholder_becomes_that_view_of_the_tensor() {
        let shape = Shape::new([2, 3]).unwrap();
        let stand_in = placeholder(DType::F32, shape, 7).unwrap();
        assert_eq!((slot_of(&stand_in), is_placeholder(&stand_in)), (Some(7), true));
        let mut op = Map::neg(&stand_in.transpose().unwrap()).into_op().unwrap();
        let actual = Tensor::from_vec((0..6).map(|value| value as f32).collect(), [2, 3]).unwrap();
        fill_in(&mut op, &|slot| (slot == 7).then(|| actual.clone())).unwrap();
        let mut seen = Vec::new();
        op.for_each_tensor(&mut |tensor| seen = tensor.to_vec::<f32>().unwrap());
        assert_eq!(seen, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0]);
        let mut unknown = Map::neg(&stand_in).into_op().unwrap();
        assert!(fill_in(&mut unknown, &|_| None).is_err());
    }
}
