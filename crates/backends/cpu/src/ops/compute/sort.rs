//! Sort, ArgSort and SortPairs: map the tensor's axis to kernels over contiguous slices.

use panoply_core::op::compute::{ArgSort, Sort, SortPairs};
use panoply_core::{Complex64, DType, Element, Error, Result, Tensor, Value, bf16, f16};

use crate::context::{Context, Output};
use crate::extents::Extents;
use crate::ops::compute::search::contiguous;
use crate::sort::{self, SortKey, take_along};

/// Calls a function with the element type, which must be ordered.
macro_rules! with_key {
    ($dtype:expr, $function:ident, $($argument:expr),*) => {
        match $dtype {
            DType::F32 => $function::<f32>($($argument),*),
            DType::F16 => $function::<f16>($($argument),*),
            DType::BF16 => $function::<bf16>($($argument),*),
            DType::F64 => $function::<f64>($($argument),*),
            DType::I32 => $function::<i32>($($argument),*),
            DType::U32 => $function::<u32>($($argument),*),
            DType::I8 => $function::<i8>($($argument),*),
            DType::U8 => $function::<u8>($($argument),*),
            got @ DType::Complex64 => {
                let expected = "f32, f16, bf16, f64, i32, u32, i8 or u8";
                Err(Error::DTypeUnsupported { what: "sort", expected, got })
            }
        }
    };
}

pub(crate) fn run(op: &Sort, context: &mut Context) -> Result<Value> {
    with_key!(op.input.dtype(), sorted, op, context).map(Value::Tensor)
}

pub(crate) fn run_arg(op: &ArgSort, context: &mut Context) -> Result<Value> {
    let input = contiguous(&op.input, context)?;
    let extents = Extents::around(op.input.shape(), op.axis);
    let positions = with_key!(op.input.dtype(), positions, &input, extents, op.descending, context)?;
    positions.into_tensor().map(Value::Tensor)
}

pub(crate) fn run_pairs(op: &SortPairs, context: &mut Context) -> Result<Value> {
    let keys = contiguous(&op.keys, context)?;
    let extents = Extents::around(op.keys.shape(), op.axis);
    let positions = with_key!(op.keys.dtype(), positions, &keys, extents, op.descending, context)?;
    let values = contiguous(&op.values, context)?;
    let keys = with_key!(op.keys.dtype(), taken, &keys, extents, &positions, context)?;
    let values = match values.dtype() {
        DType::Complex64 => taken::<Complex64>(&values, extents, &positions, context)?,
        dtype => with_key!(dtype, taken, &values, extents, &positions, context)?,
    };
    Ok(Value::Pair(keys, values))
}

fn sorted<T: SortKey>(op: &Sort, context: &mut Context) -> Result<Tensor> {
    let input = contiguous(&op.input, context)?;
    let extents = Extents::around(op.input.shape(), op.axis);
    if op.is_stable && op.input.dtype().is_float() {
        let positions = positions::<T>(&input, extents, op.descending, context)?;
        return taken::<T>(&input, extents, &positions, context);
    }
    let mut output = context.output::<T>(op.output_shape())?;
    sort::sort(context.simd, &context.team, input.as_slice::<T>()?, extents, op.descending, &mut output);
    output.into_tensor()
}

fn positions<T: SortKey>(
    keys: &Tensor,
    extents: Extents,
    descending: bool,
    context: &mut Context,
) -> Result<Output<u32>> {
    let mut output = context.output::<u32>(*keys.shape())?;
    sort::arg_sort(context.simd, &context.team, keys.as_slice::<T>()?, extents, descending, &mut output);
    Ok(output)
}

fn taken<T: Element>(input: &Tensor, extents: Extents, positions: &[u32], context: &mut Context) -> Result<Tensor> {
    let mut output = context.output::<T>(*input.shape())?;
    take_along(&context.team, input.as_slice::<T>()?, extents, positions, &mut output);
    output.into_tensor()
}
