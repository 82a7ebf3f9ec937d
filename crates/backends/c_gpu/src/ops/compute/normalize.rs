//! Normalize: one pass, with a factor and an offset for each channel.

use panoply_core::op::compute::Normalize;
use panoply_core::{Result, Tensor, Value};
use panoply_kernels::c::{Kernel, NORMALIZE};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::Launch;

const BLOCK_THREADS: usize = 256;
/// Elements per thread: 16 bytes of an f32 output.
const VECTOR: usize = 4;

pub(crate) fn run(op: &Normalize, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape();
    let output = context.output(op.output, shape)?;
    let elements = shape.elements();
    if elements == 0 {
        return Ok(Value::Tensor(output.into_tensor()));
    }
    let source = context.input(&op.input)?;
    let axis = op.channel_axis()?;
    let inner: usize = shape[axis + 1..].iter().product();
    let figures = context.input(&figures(op)?)?;
    let (input_bytes, output_bytes) = (op.input.dtype().size_bytes(), op.output.size_bytes());
    let aligned = source.is_multiple_of((VECTOR * input_bytes) as u64);
    let vector = if aligned && elements.is_multiple_of(VECTOR) { VECTOR } else { 1 };
    let kernel = Kernel::new(NORMALIZE, "normalize")
        .dtype("T", op.input.dtype())
        .dtype("R", op.output)
        .integer("VECTOR", vector as i64)
        .integer("T_VECTOR_BYTES", (vector * input_bytes) as i64)
        .integer("R_VECTOR_BYTES", (vector * output_bytes) as i64);
    let vectors = elements / vector;
    let mut arguments = Arguments::new()
        .address(output.address)
        .address(source)
        .address(figures)
        .u64(vectors as u64)
        .size(inner)
        .size(op.mean.len());
    let launch = Launch::new(vectors.div_ceil(BLOCK_THREADS), BLOCK_THREADS);
    context.launch(&kernel, launch, &mut arguments)?;
    Ok(Value::Tensor(output.into_tensor()))
}

/// The factor `scale / std` and the offset `-mean / std` of each channel.
fn figures(op: &Normalize) -> Result<Tensor> {
    let channels = op.mean.iter().zip(op.std.iter());
    let figures: Vec<f32> = channels
        .flat_map(|(mean, std)| {
            let std = f64::from(*std);
            [(f64::from(op.scale) / std) as f32, (-f64::from(*mean) / std) as f32]
        })
        .collect();
    let count = figures.len();
    Tensor::from_vec(figures, [count])
}
