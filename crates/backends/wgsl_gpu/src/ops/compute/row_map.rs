//! RowMap: one kernel if lines of f32 fit an invocation's registers, otherwise the three ops that
//! it consists of.

use panoply_core::graph::placeholder;
use panoply_core::op::compute::{RowFunction, RowMap};
use panoply_core::{DType, Error, Op, Result, Shape, Support, Tensor};
use panoply_kernels::wgsl::{
    Kernel, MAP_CONSTANTS_MAX, MapBody, ROW_MAP_CHUNKS_MAX, RowForm, RowInput, RowMapFunction, RowMapKernel,
};

use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::engine::Answer;
use crate::operand::{ELEMENTS_MAX, Operand};
use crate::profile::Profile;

/// The most inputs: every adapter binds eight buffers, and one is the output.
const INPUTS_MAX: usize = 7;
/// The most nodes of each of the two expressions.
const NODES_MAX: usize = 64;
/// Elements of a line that a workgroup keeps for each vector of an invocation.
const CHUNK: usize = 1024;

/// Checks that each of the three ops runs.
pub(crate) fn support(profile: &Profile, op: &RowMap) -> Result<(), String> {
    let mut refused = None;
    let asked = op.apart(&mut |op| {
        if let Err(reason) = super::super::support(profile, &op) {
            refused = refused.take().or(Some(reason));
        }
        let (dtype, shape) = op.outputs()?.remove(0);
        placeholder(dtype, shape, 0)
    });
    match (refused, asked) {
        (Some(reason), _) => Err(reason),
        (None, Err(error)) => Err(error.to_string()),
        (None, Ok(_)) => Ok(()),
    }
}

pub(crate) fn run<D: Driver>(op: &RowMap, context: &mut Context<D>) -> Result<Tensor> {
    if let Some(tensor) = fused(op, context)? {
        return Ok(tensor);
    }
    op.apart(&mut |op: Op| match &op {
        Op::Compute(op) => match super::run(op, context)? {
            Answer::Value(value) => value.into_tensor(),
            _ => Err(Error::invalid("row_map: a step", "one tensor on the device", "another answer")),
        },
        op => Err(Support::unknown(op).refusal(op)),
    })
}

/// Records the one kernel; `None` if there is none for these shapes and types.
fn fused<D: Driver>(op: &RowMap, context: &mut Context<D>) -> Result<Option<Tensor>> {
    let Some(function) = function(op) else { return Ok(None) };
    let (rows, shape, len) = (op.rows_shape()?, op.output_shape()?, op.row_len()?);
    let lines: usize = rows[..rows.rank() - 1].iter().product();
    if lines == 0 || !len.is_multiple_of(4) || len > CHUNK * ROW_MAP_CHUNKS_MAX || rows.elements() > ELEMENTS_MAX {
        return Ok(None);
    }
    let seen = |elements: usize| 4 * elements as u64 <= context.profile.binding_bytes_max;
    if !seen(rows.elements()) || op.inputs().len() + op.more().len() > INPUTS_MAX {
        return Ok(None);
    }
    let lacks = usize::from(op.function.is_reduction());
    let (mut inputs, mut operands, mut steps) = (Vec::new(), Vec::new(), Vec::new());
    for (tensor, lacks) in
        op.inputs().iter().map(|tensor| (tensor, 0)).chain(op.more().iter().map(|more| (more, lacks)))
    {
        let operand = context.operand(tensor)?;
        let Some((input, step)) = lies(&operand, &rows, lacks) else { return Ok(None) };
        if !operand.is_within(context.profile.binding_bytes_max) {
            return Ok(None);
        }
        inputs.push(input);
        steps.push((operand.start(), step));
        operands.push(operand);
    }
    let dtypes = vec![DType::F32; inputs.len() + 1];
    let (before, first_constants) = MapBody::new(op.before_program()?, &dtypes)?;
    let (after, last_constants) = MapBody::new(op.after_program()?, &dtypes)?;
    if first_constants.len() + last_constants.len() > MAP_CONSTANTS_MAX / 2 {
        return Ok(None);
    }
    let form = form(len, lines, context);
    let epsilon = if let RowFunction::Norm { epsilon, .. } = op.function { epsilon as f32 } else { 0.0 };
    let mut params = vec![lines as u32, len as u32, epsilon.to_bits()];
    params.extend(first_constants.into_iter().chain(last_constants));
    params.extend(steps.iter().flat_map(|(start, step)| [*start, *step]));
    let kernel = RowMapKernel { before, function, after, inputs, first: op.inputs().len(), form };
    let output = context.output(DType::F32, shape)?;
    let groups = match form {
        RowForm::Subgroup { lanes, .. } => groups_for(lines * usize::from(lanes)),
        _ => lines as u64,
    };
    let reads: Vec<&Operand<D>> = operands.iter().collect();
    context.run(&Kernel::RowMap(kernel), &[&output], &reads, &params, groups)?;
    context.finish(output).map(Some)
}

/// The kernel's function; `None` unless all is f32 and the expressions are short.
fn function(op: &RowMap) -> Option<RowMapFunction> {
    let tensors = op.inputs().iter().chain(op.more());
    let (before, after) = (op.before_program().ok()?, op.after_program().ok()?);
    let typed = |program: &panoply_core::expr::Program| {
        let types = program.types(&vec![DType::F32; panoply_core::expr::INPUTS_MAX as usize]);
        types.is_ok_and(|types| {
            types
                .values()
                .iter()
                .all(|value| !matches!(value, panoply_core::expr::Value::Typed(dtype) if *dtype != DType::F32))
        })
    };
    let short = before.nodes().len() <= NODES_MAX && after.nodes().len() <= NODES_MAX;
    if !short || !typed(before) || !typed(after) || !tensors.into_iter().all(|tensor| tensor.dtype() == DType::F32) {
        return None;
    }
    match op.function {
        RowFunction::Sum => Some(RowMapFunction::Sum),
        RowFunction::Mean => Some(RowMapFunction::Mean),
        RowFunction::Softmax => Some(RowMapFunction::Softmax),
        RowFunction::LogSoftmax => Some(RowMapFunction::LogSoftmax),
        RowFunction::Norm { is_rms: false, .. } => Some(RowMapFunction::Norm),
        RowFunction::Norm { is_rms: true, .. } => Some(RowMapFunction::RmsNorm),
        _ => None,
    }
}

/// The layout of an input whose last axis is `lacks` before the line's, and its step from line to
/// line. `None` if the steps differ, or vectors of four would not be aligned.
fn lies<D: Driver>(operand: &Operand<D>, rows: &Shape, lacks: usize) -> Option<(RowInput, u32)> {
    let rank = rows.rank();
    let mut strides = [0_isize; panoply_core::RANK_MAX];
    let own = operand.shape.rank();
    for axis in 0..own {
        let place = (axis + rank).checked_sub(own + lacks)?;
        strides[place] = if operand.shape[axis] == 1 { 0 } else { operand.strides[axis] };
    }
    // One index counts the lines through all axes before theirs, so the steps along those axes must
    // join into one.
    let (mut step, mut next) = (0_isize, None);
    for axis in (0..rank - 1).rev().filter(|axis| rows[*axis] != 1) {
        match next {
            None => step = strides[axis],
            Some(expected) if strides[axis] == expected => {}
            Some(_) => return None,
        }
        next = Some(strides[axis] * rows[axis] as isize);
    }
    let step = u32::try_from(step).ok()?;
    match strides[rank - 1] {
        _ if rows[rank - 1] == 1 => None,
        0 => Some((RowInput::One, step)),
        1 if lacks == 0 && operand.offset.is_multiple_of(4) && step.is_multiple_of(4) => Some((RowInput::Line, step)),
        _ => None,
    }
}

fn form<D: Driver>(len: usize, lines: usize, context: &Context<D>) -> RowForm {
    let lanes = context.profile.subgroup_lanes.unwrap_or(0);
    let by_subgroup = 4 * usize::from(lanes);
    if by_subgroup > 0 && len >= by_subgroup && len <= by_subgroup * ROW_MAP_CHUNKS_MAX && lines >= 64 {
        return RowForm::Subgroup { chunks: len.div_ceil(by_subgroup) as u8, lanes };
    }
    RowForm::Cached { chunks: len.div_ceil(CHUNK) as u8 }
}
