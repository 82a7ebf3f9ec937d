//! LayerNorm: short rows in registers, long rows in passes.

use panoply_core::op::compute::LayerNorm;
use panoply_core::{Result, Tensor, Value};
use panoply_kernels::c::LAYERNORM;

use super::rows::RowSplit;
use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, Launch};

pub(crate) fn run(op: &LayerNorm, context: &mut Context) -> Result<Value> {
    let dtype = op.input.dtype();
    let output = context.output(dtype, op.output_shape())?;
    let len: usize = op.row_dims()?.iter().product();
    if op.input.elements() == 0 {
        return Ok(Value::Tensor(output.into_tensor()));
    }
    let (target, source) = (output.address, context.input(&op.input)?);
    let (weight, bias) = (optional(&op.weight, context)?, optional(&op.bias, context)?);
    let count = op.input.elements() / len;
    let arguments = Arguments::new().address(target).address(source).address(weight).address(bias);
    let is_rms = u32::from(op.is_rms);
    match RowSplit::new(dtype, len, context.driver.properties(), &[target, source, weight, bias]) {
        Some(rows) => {
            let mut arguments = arguments.u64(count as u64).size(len).f64(op.epsilon).u32(is_rms);
            let kernel = rows.kernel(LAYERNORM, "layernorm_rows", "ROWS", dtype);
            context.launch(&kernel, rows.launch(count), &mut arguments)?;
        }
        None => {
            let rows = RowSplit::streamed(dtype, len, context.warp_lanes(), &[]);
            let kernel = rows.kernel(LAYERNORM, "layernorm_long", "LONG_ROWS", dtype);
            let mut arguments = arguments.u64(len as u64).f64(op.epsilon).u32(is_rms);
            context.launch(&kernel, Launch::new(count, rows.group), &mut arguments)?;
        }
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// The address of the tensor; null if there is none.
fn optional(tensor: &Option<Tensor>, context: &mut Context) -> Result<Address> {
    tensor.as_ref().map_or(Ok(Address::NULL), |tensor| context.input(tensor))
}
