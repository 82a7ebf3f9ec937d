//! Outputs of ops, and the numbers of their inputs.

use num_complex::Complex32;
use panoply_core::{DType, HostBufferMut, Result, Shape, Tensor, Value};

/// Allocates memory for an output: initialised, with arbitrary contents.
pub type TakeMemory<'a> = &'a mut dyn FnMut(usize) -> Result<HostBufferMut>;

/// An output of this type and shape, before it is written.
pub(super) struct Output {
    buffer: HostBufferMut,
    dtype: DType,
    pub(super) shape: Shape,
}

impl Output {
    pub(super) fn take(dtype: DType, shape: Shape, take: TakeMemory<'_>) -> Result<Output> {
        Ok(Output { buffer: take(shape.elements() * dtype.size_bytes())?, dtype, shape })
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        self.buffer.bytes_mut()
    }

    /// The elements as f32 numbers, two for each complex element.
    pub(super) fn numbers(&mut self) -> &mut [f32] {
        bytemuck::cast_slice_mut(self.buffer.bytes_mut())
    }

    pub(super) fn complex(&mut self) -> &mut [Complex32] {
        bytemuck::cast_slice_mut(self.buffer.bytes_mut())
    }

    pub(super) fn integers(&mut self) -> &mut [i32] {
        bytemuck::cast_slice_mut(self.buffer.bytes_mut())
    }

    pub(super) fn tensor(self) -> Result<Tensor> {
        Tensor::from_host(self.dtype, self.shape, self.buffer.freeze())
    }

    pub(super) fn value(self) -> Result<Value> {
        self.tensor().map(Value::Tensor)
    }
}

/// The elements of a contiguous tensor of f32 or c64 as numbers, two for each complex element.
pub(super) fn numbers(tensor: &Tensor) -> Result<&[f32]> {
    match tensor.dtype() {
        DType::Complex64 => Ok(bytemuck::cast_slice(tensor.as_slice::<Complex32>()?)),
        _ => tensor.as_slice::<f32>(),
    }
}
