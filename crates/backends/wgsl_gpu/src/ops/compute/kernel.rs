//! Kernel: the WGSL form of a caller's own program. Each of its buffers is exactly as long as its
//! tensor, so that `arrayLength` is right and no other memory can be reached. Outputs are zeros
//! when it begins, unless the program says that it writes all of them.

use panoply_core::op::compute::{Kernel, Scalar};
use panoply_core::{DType, Result, Shape, Value};
use panoply_kernels::wgsl;

use super::fits_whole;
use crate::context::Context;
use crate::driver::Driver;
use crate::operand::{Operand, WINDOW_STEP_BYTES, is_seen};
use crate::profile::Profile;

/// The most workgroups along one axis, on every device.
const GROUPS_MAX: u32 = 65_535;
/// Words that are bound for a tensor without elements: a binding cannot be empty.
const EMPTY_WORDS: usize = 4;

pub(crate) fn support(profile: &Profile, op: &Kernel) -> Result<(), String> {
    let program = &op.program;
    if program.wgsl().is_none() {
        return Err(op.lacks("WGSL form", "wgsl(source, entry)"));
    }
    if let Some(((name, _), _)) = program.scalars().iter().zip(&op.scalars).find(|(_, value)| word(value).is_none()) {
        return Err(format!("the scalar {name} of 64 bits; WGSL has 32"));
    }
    let buffers = op.inputs.len() + op.outputs.len();
    if buffers > profile.buffers_max {
        return Err(format!("{buffers} tensors; a kernel of the adapter has {}", profile.buffers_max));
    }
    if op.launch.grid.iter().any(|groups| *groups > GROUPS_MAX) {
        return Err(format!("a grid of {:?} blocks; an adapter has {GROUPS_MAX} along an axis", op.launch.grid));
    }
    if op.launch.block_bytes > 0 {
        return Err("block memory whose size the launch gives; WGSL declares its own".to_owned());
    }
    op.inputs.iter().try_for_each(|input| fits_whole(profile, "an input", input))?;
    match op
        .output_types()
        .find(|(dtype, shape)| !is_seen(shape.elements(), dtype.size_bytes(), profile.binding_bytes_max))
    {
        None => Ok(()),
        Some((_, shape)) => Err(format!("an output of {shape:?}; the adapter binds {}", profile.binding_bytes_max)),
    }
}

pub(crate) fn run<D: Driver>(op: &Kernel, context: &mut Context<D>) -> Result<Value> {
    let mut reads = Vec::with_capacity(op.inputs.len());
    for tensor in &op.inputs {
        let operand = if tensor.elements() == 0 { nothing(context)? } else { context.input(tensor)? };
        reads.push(exact(operand, context)?);
    }
    let mut writes = Vec::with_capacity(op.outputs.len());
    for (dtype, shape) in op.output_types() {
        let output = if shape.elements() == 0 { nothing(context)? } else { context.output(dtype, shape)? };
        if !op.program.writes_all() {
            context.clear(&output);
        }
        writes.push(output);
    }
    let mut params: Vec<u32> = op.scalars.iter().filter_map(word).collect();
    // A dispatch has at least one parameter, even if its kernel reads none.
    params.resize(params.len().max(1), 0);
    let kernel = wgsl::ProgramKernel { program: op.program.clone(), block: op.launch.block };
    context.run_exact(&wgsl::Kernel::Program(kernel), &writes, &reads, &params, op.launch.grid)?;
    let mut tensors = Vec::with_capacity(writes.len());
    for (output, (dtype, shape)) in writes.into_iter().zip(op.output_types()) {
        let is_empty = shape.elements() == 0;
        tensors.push(if is_empty { super::empty(dtype, shape)? } else { context.finish(output)? });
    }
    Ok(Kernel::value(tensors))
}

/// The operand itself if a binding can begin and end with it, otherwise a copy followed by zeros.
fn exact<D: Driver>(operand: Operand<D>, context: &mut Context<D>) -> Result<Operand<D>> {
    let bytes = operand.elements() * operand.dtype.size_bytes();
    if operand.start_byte().is_multiple_of(WINDOW_STEP_BYTES) && bytes.is_multiple_of(4) {
        return Ok(operand);
    }
    let copy = context.output(operand.dtype, operand.shape)?;
    context.clear(&copy);
    context.copy_elements(&operand, &copy)?;
    Ok(copy)
}

/// Zeros to bind for a tensor without elements.
fn nothing<D: Driver>(context: &mut Context<D>) -> Result<Operand<D>> {
    let zeros = context.output(DType::U32, Shape::new([EMPTY_WORDS])?)?;
    context.clear(&zeros);
    Ok(zeros)
}

/// A scalar as one WGSL word; `None` for 64 bits.
fn word(scalar: &Scalar) -> Option<u32> {
    match *scalar {
        Scalar::F32(value) => Some(value.to_bits()),
        Scalar::I32(value) => Some(value as u32),
        Scalar::U32(value) => Some(value),
        Scalar::F64(_) | Scalar::I64(_) | Scalar::U64(_) => None,
    }
}
