//! Fft and Ifft: lines along any axis, turned so that they are contiguous where they are not.

use panoply_core::op::signal::{Fft, Ifft};
use panoply_core::{DType, Result, Shape, Tensor, Value};

use crate::context::Context;
use crate::ops::compute::search::contiguous;
use crate::ops::compute::transpose::copy_view;

pub(crate) fn run(op: &Fft, context: &mut Context) -> Result<Value> {
    let len = op.input.shape()[op.axis];
    along_axis(&op.input, op.axis, op.output_shape()?, context, |input, shape, context| {
        let mut output = context.output(shape)?;
        match input.dtype() {
            DType::F32 => context.fft.forward_real(&context.team, len, input.as_slice()?, &mut output)?,
            _ => context.fft.forward(&context.team, len, input.as_slice()?, &mut output)?,
        }
        output.into_tensor()
    })
}

pub(crate) fn run_inverse(op: &Ifft, context: &mut Context) -> Result<Value> {
    let len = op.input.shape()[op.axis];
    along_axis(&op.input, op.axis, op.output_shape()?, context, |input, shape, context| match op.real_len {
        Some(len) => {
            let mut output = context.output(shape)?;
            context.fft.inverse_real(&context.team, len, input.as_slice()?, &mut output)?;
            output.into_tensor()
        }
        None => {
            let mut output = context.output(shape)?;
            context.fft.inverse(&context.team, len, input.as_slice()?, &mut output)?;
            output.into_tensor()
        }
    })
}

/// Calls `transform` with contiguous lines along the last axis, and the shape of its output.
fn along_axis(
    input: &Tensor,
    axis: usize,
    shape: Shape,
    context: &mut Context,
    transform: impl FnOnce(&Tensor, Shape, &mut Context) -> Result<Tensor>,
) -> Result<Value> {
    let last = shape.rank() - 1;
    if axis == last {
        return transform(&contiguous(input, context)?, shape, context).map(Value::Tensor);
    }
    let mut order: Vec<usize> = (0..=last).collect();
    order.swap(axis, last);
    let mut turned_shape = shape.to_vec();
    turned_shape.swap(axis, last);
    let turned = contiguous(&input.permute(&order)?, context)?;
    let output = transform(&turned, Shape::new(turned_shape)?, context)?;
    copy_view(&output.permute(&order)?, context).map(Value::Tensor)
}
