//! Kernel: the closure of a program of the caller's own, on the engine's thread.

use panoply_core::op::compute::Kernel;
use panoply_core::{Result, Tensor, Value};

use crate::context::{Context, OutputBytes};
use crate::ops::compute::transpose::copy_view;

pub(crate) fn run(op: &Kernel, context: &mut Context) -> Result<Value> {
    let contiguous = |tensor: &Tensor| match tensor.is_contiguous() {
        true => Ok(tensor.clone()),
        false => copy_view(tensor, context),
    };
    let inputs = op.inputs.iter().map(contiguous).collect::<Result<Vec<_>>>()?;
    let mut outputs: Vec<OutputBytes> = Vec::with_capacity(op.outputs.len());
    for (dtype, shape) in op.output_types() {
        let mut output = context.output_bytes(dtype, shape)?;
        // Memory of the pool has what earlier ops left there.
        output.bytes_mut().fill(0);
        outputs.push(output);
    }
    op.call(&inputs, outputs.iter_mut().map(OutputBytes::bytes_mut).collect())?;
    let tensors = outputs.into_iter().map(OutputBytes::into_tensor).collect::<Result<Vec<_>>>()?;
    Ok(Kernel::value(tensors))
}
