//! Kernel: the C form of a caller's own program. Its outputs are zeroed before it runs, unless the
//! program declares that it writes all of them.

use panoply_core::op::compute::{Kernel, Scalar};
use panoply_core::{Error, Result, Support, Value};
use panoply_kernels::c;

use crate::arguments::Arguments;
use crate::context::{Context, Output};
use crate::driver::Launch;

pub(crate) fn supports(op: &Kernel) -> Support {
    match op.program.c() {
        Some(_) => Support::Yes,
        None => Support::No(op.lacks("C form", "c(source, entry)")),
    }
}

pub(crate) fn run(op: &Kernel, context: &mut Context) -> Result<Value> {
    let (limit, got) = (context.driver.properties().shared_bytes_max as usize, op.launch.block_bytes as usize);
    if got > limit {
        return Err(Error::OutOfBounds { what: "kernel: bytes of block memory on this device", limit, got });
    }
    let mut arguments = Arguments::new();
    for tensor in &op.inputs {
        arguments = arguments.memory(context.input(tensor)?, tensor.len_bytes(), false);
    }
    let mut outputs = Vec::with_capacity(op.outputs.len());
    for (dtype, shape) in op.output_types() {
        let output = context.output(dtype, shape)?;
        let bytes = shape.elements() * dtype.size_bytes();
        if !op.program.writes_all() {
            context.fill(output.address, 0, bytes)?;
        }
        arguments = arguments.memory(output.address, bytes, true);
        outputs.push(output);
    }
    for scalar in &op.scalars {
        arguments = match *scalar {
            Scalar::F32(value) => arguments.f32(value),
            Scalar::F64(value) => arguments.f64(value),
            Scalar::I32(value) => arguments.u32(value as u32),
            Scalar::U32(value) => arguments.u32(value),
            Scalar::I64(value) => arguments.i64(value),
            Scalar::U64(value) => arguments.u64(value),
        };
    }
    let blocks = op.launch.grid.map(|count| count as usize);
    let launch = Launch { blocks, block: op.launch.block, shared_bytes: op.launch.block_bytes };
    context.launch(&c::Kernel::of_program(&op.program), launch, &mut arguments)?;
    Ok(Kernel::value(outputs.into_iter().map(Output::into_tensor)))
}
