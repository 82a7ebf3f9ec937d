//! Fft and Ifft: lines along any axis; lines that are not contiguous are transposed first.

use panoply_core::op::signal::{Fft, Ifft};
use panoply_core::{DType, Result, Shape, Tensor, Value};

use crate::context::Context;
use crate::fft::{FftWorkspace, Pair};
use crate::ops::compute::search::contiguous;
use crate::ops::compute::transpose::copy_view;
use crate::states::OpState;

impl OpState for FftWorkspace {
    fn bytes(&self) -> usize {
        FftWorkspace::bytes(self)
    }
}

pub(crate) fn run(op: &Fft, context: &mut Context) -> Result<Value> {
    let len = op.input.shape()[op.axis];
    if op.input.dtype() == DType::F64 {
        return along_axis(&op.input, op.axis, op.output_shape()?, context, |input, shape, context| {
            let mut output = context.output::<f64>(shape)?;
            let (input, spectra) = (input.as_slice::<f64>()?, bytemuck::cast_slice_mut::<f64, Pair>(&mut output));
            match op.pairs {
                true => context.states.get::<FftWorkspace>().forward_wide(
                    &context.team,
                    len,
                    bytemuck::cast_slice(input),
                    spectra,
                )?,
                false => context.states.get::<FftWorkspace>().forward_real_wide(&context.team, len, input, spectra)?,
            }
            output.into_tensor()
        });
    }
    along_axis(&op.input, op.axis, op.output_shape()?, context, |input, shape, context| {
        let mut output = context.output(shape)?;
        match input.dtype() {
            DType::F32 => {
                context.states.get::<FftWorkspace>().forward_real(&context.team, len, input.as_slice()?, &mut output)?
            }
            _ => context.states.get::<FftWorkspace>().forward(&context.team, len, input.as_slice()?, &mut output)?,
        }
        output.into_tensor()
    })
}

pub(crate) fn run_inverse(op: &Ifft, context: &mut Context) -> Result<Value> {
    let len = op.input.shape()[op.axis];
    if op.input.dtype() == DType::F64 {
        return along_axis(&op.input, op.axis, op.output_shape()?, context, |input, shape, context| {
            let mut output = context.output::<f64>(shape)?;
            let spectra = bytemuck::cast_slice::<f64, Pair>(input.as_slice()?);
            match op.real_len {
                Some(len) => {
                    context.states.get::<FftWorkspace>().inverse_real_wide(&context.team, len, spectra, &mut output)?
                }
                None => {
                    let signals = bytemuck::cast_slice_mut(&mut output);
                    context.states.get::<FftWorkspace>().inverse_wide(&context.team, len, spectra, signals)?;
                }
            }
            output.into_tensor()
        });
    }
    along_axis(&op.input, op.axis, op.output_shape()?, context, |input, shape, context| match op.real_len {
        Some(len) => {
            let mut output = context.output(shape)?;
            context.states.get::<FftWorkspace>().inverse_real(&context.team, len, input.as_slice()?, &mut output)?;
            output.into_tensor()
        }
        None => {
            let mut output = context.output(shape)?;
            context.states.get::<FftWorkspace>().inverse(&context.team, len, input.as_slice()?, &mut output)?;
            output.into_tensor()
        }
    })
}

/// Calls `transform` with contiguous lines along the last axis (not counting an axis of pairs) and
/// the shape of its output.
fn along_axis(
    input: &Tensor,
    axis: usize,
    shape: Shape,
    context: &mut Context,
    transform: impl FnOnce(&Tensor, Shape, &mut Context) -> Result<Tensor>,
) -> Result<Value> {
    // Either side may have pairs while the other has real numbers.
    let last = input.shape().rank().min(shape.rank()) - 1;
    let both = input.dtype() == DType::F64 && input.shape().rank() == shape.rank();
    let last = if both { last - 1 } else { last };
    if axis == last {
        return transform(&contiguous(input, context)?, shape, context).map(Value::Tensor);
    }
    let turned = |rank: usize| {
        let mut order: Vec<usize> = (0..rank).collect();
        order.swap(axis, last);
        order
    };
    let mut turned_shape = shape.to_vec();
    turned_shape.swap(axis, last);
    let lines = contiguous(&input.permute(&turned(input.shape().rank()))?, context)?;
    let output = transform(&lines, Shape::new(turned_shape)?, context)?;
    copy_view(&output.permute(&turned(shape.rank()))?, context).map(Value::Tensor)
}
