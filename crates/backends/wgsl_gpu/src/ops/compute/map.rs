//! Map: from an expression and its inputs' layouts to one kernel.

use panoply_core::expr::{Expr, Program};
use panoply_core::op::compute::Map;
use panoply_core::shape::Strides;
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{
    InputLayout, Kernel, MAP_CONSTANTS_MAX, MAP_NODES_MAX, MapBody, MapKernel, PARAMS_WORDS_MAX, map_support,
};

use super::{empty, long_map, map_again};
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::{Operand, collapsed};
use crate::pieces::{in_pieces, in_two};

/// Longer expressions are computed one element at a time: with vectors, their texts and the compile
/// time would be four times as long, and no latency would be hidden that the arithmetic does not
/// hide already.
pub(super) const VECTOR_NODES_MAX: usize = 128;
/// Alignment of the inputs in a buffer that holds all of them.
const ARENA_STEP_BYTES: usize = 16;

pub(crate) fn support(op: &Map) -> Result<(), String> {
    let dtypes: Vec<DType> = op.inputs().map(Tensor::dtype).collect();
    let program = op.program().map_err(|error| error.to_string())?;
    let read = MapKernel::inputs_read(program).len();
    let shape = op.output_shape().map_err(|error| error.to_string())?;
    let rank = shape.rank();
    if 1 + MAP_CONSTANTS_MAX + read + rank * (1 + read) > PARAMS_WORDS_MAX {
        return Err(format!("{read} inputs of {rank} dimensions; their strides do not fit a kernel's parameters"));
    }
    if program.nodes().len() > MAP_NODES_MAX {
        long_map::support(program, &dtypes)?;
    } else {
        map_support(program, &dtypes)?;
    }
    Ok(())
}

pub(crate) fn run<D: Driver>(op: &Map, context: &mut Context<D>) -> Result<Tensor> {
    let (shape, dtype) = (op.output_shape()?, op.output_dtype()?);
    if shape.elements() == 0 {
        return empty(dtype, shape);
    }
    let program = op.program()?;
    if program.nodes().len() > MAP_NODES_MAX {
        let output = long_map::run(op, program, dtype, shape, context)?;
        return context.finish(output);
    }
    let inputs: Vec<&Tensor> = op.inputs().collect();
    let read = MapKernel::inputs_read(program);
    let mut operands = Vec::with_capacity(read.len());
    for index in &read {
        operands.push(context.operand(inputs[*index])?);
    }
    let dtypes: Vec<DType> = inputs.iter().map(|input| input.dtype()).collect();
    let output = evaluate(program, &dtypes, &read, operands, dtype, shape, context)?;
    map_again::keep(op, context)?;
    context.finish(output)
}

/// A contiguous operand in another type.
pub(super) fn cast<D: Driver>(operand: &Operand<D>, dtype: DType, context: &mut Context<D>) -> Result<Operand<D>> {
    if operand.dtype == dtype {
        return Ok(operand.clone());
    }
    let program = Expr::input(0).cast(dtype).finish()?;
    evaluate(&program, &[operand.dtype], &[0], vec![operand.clone()], dtype, operand.shape, context)
}

pub(super) fn evaluate<D: Driver>(
    program: &Program,
    dtypes: &[DType],
    read: &[usize],
    operands: Vec<Operand<D>>,
    dtype: DType,
    shape: Shape,
    context: &mut Context<D>,
) -> Result<Operand<D>> {
    let views: Vec<Operand<D>> = operands.iter().map(|operand| broadcast(operand, shape)).collect::<Result<_>>()?;
    let output = context.output(dtype, shape)?;
    let mut record = |views: &[Operand<D>], output: &Operand<D>, context: &mut Context<D>| {
        one_piece(program, dtypes, read, views, output, context)
    };
    in_pieces(&views, &output, context, &mut record)?;
    Ok(output)
}

/// Records one kernel from views of the output's shape.
fn one_piece<D: Driver>(
    program: &Program,
    dtypes: &[DType],
    read: &[usize],
    views: &[Operand<D>],
    output: &Operand<D>,
    context: &mut Context<D>,
) -> Result<()> {
    let layouts: Vec<InputLayout> = views.iter().map(layout).collect();
    let (dtype, shape) = (output.dtype, output.shape);
    let count = shape.elements();
    let strided: Vec<&[isize]> = views
        .iter()
        .zip(&layouts)
        .filter(|(_, layout)| **layout == InputLayout::Strided)
        .map(|(view, _)| &view.strides[..])
        .collect();
    let (dims, strides) = if strided.is_empty() { (Vec::new(), Vec::new()) } else { collapsed(&shape, &strided) };
    let arena = views.len() + 1 > context.profile.buffers_max;
    if arena && joined_bytes(views) as u64 > context.profile.binding_bytes_max {
        let mut record = |views: &[Operand<D>], output: &Operand<D>, context: &mut Context<D>| {
            one_piece(program, dtypes, read, views, output, context)
        };
        return in_two(views, output, context, &mut record);
    }
    let vector = !arena
        && program.nodes().len() <= VECTOR_NODES_MAX
        && strided.is_empty()
        && dtype.size_bytes() == 4
        && views.iter().zip(&layouts).all(|(view, layout)| {
            view.dtype.size_bytes() == 4 && (*layout == InputLayout::Scalar || view.offset.is_multiple_of(4))
        });
    let mut inputs: Vec<(DType, InputLayout)> = dtypes.iter().map(|dtype| (*dtype, InputLayout::Dense)).collect();
    for (index, layout) in read.iter().zip(&layouts) {
        inputs[*index].1 = *layout;
    }
    let (body, constants) = MapBody::new(program, dtypes)?;
    let kernel = MapKernel { body, inputs, rank: dims.len() as u8, vector, arena, joined: None };
    let mut params = vec![count as u32];
    params.extend(constants);
    let whole;
    let reads: Vec<&Operand<D>> = if arena {
        let (joined, offsets) = join(views, context)?;
        params.extend(offsets);
        whole = joined;
        vec![&whole]
    } else {
        params.extend(views.iter().map(Operand::start));
        views.iter().collect()
    };
    params.extend(&dims);
    params.extend(strides.iter().flatten());
    let per_invocation = if vector { 4 * kernel.vectors_at_once() } else { (4 / dtype.size_bytes()).max(1) };
    let groups = groups_for(count.div_ceil(per_invocation));
    context.run(&Kernel::Map(kernel), &[output], &reads, &params, groups)
}

/// The operand broadcast to the output's shape.
fn broadcast<D: Driver>(operand: &Operand<D>, shape: Shape) -> Result<Operand<D>> {
    let added = shape.rank().saturating_sub(operand.shape.rank());
    let steps = (0..shape.rank()).map(|axis| match axis.checked_sub(added) {
        Some(own) if operand.shape[own] == shape[axis] => operand.strides[own],
        _ => 0,
    });
    let steps: Vec<isize> = steps.collect();
    Ok(Operand { shape, strides: Strides::new(steps)?, ..operand.clone() })
}

fn layout<D: Driver>(view: &Operand<D>) -> InputLayout {
    let still = view.shape.iter().zip(view.strides.iter()).all(|(dim, stride)| *dim == 1 || *stride == 0);
    match () {
        () if still => InputLayout::Scalar,
        () if view.is_contiguous() => InputLayout::Dense,
        () => InputLayout::Strided,
    }
}

/// Copies all operands into one block, because an adapter binds a limited number of buffers.
/// Returns the block, and the index of the first element of each operand.
fn join<D: Driver>(operands: &[Operand<D>], context: &mut Context<D>) -> Result<(Operand<D>, Vec<u32>)> {
    let spans: Vec<(usize, usize)> = operands.iter().map(span).collect();
    let arena = context.words(joined_bytes(operands).div_ceil(4))?;
    let (mut offsets, mut place) = (Vec::new(), 0);
    for (operand, (start, bytes)) in operands.iter().zip(spans) {
        let piece = Operand {
            dtype: DType::U32,
            shape: Shape::new([bytes / 4])?,
            strides: Strides::new([1])?,
            offset: start / 4,
            block: operand.block.clone(),
            window: operand.window,
        };
        context.copy(&piece, &arena, place as u64);
        let size = operand.dtype.size_bytes();
        offsets.push(((place + operand.offset * size - start) / size) as u32);
        place += bytes.next_multiple_of(ARENA_STEP_BYTES);
    }
    Ok((arena, offsets))
}

/// Size of all operands in one block.
fn joined_bytes<D: Driver>(operands: &[Operand<D>]) -> usize {
    operands.iter().map(|operand| span(operand).1.next_multiple_of(ARENA_STEP_BYTES)).sum()
}

/// The offset of the first byte that an operand may touch, rounded down, and the number of bytes
/// from there; both multiples of sixteen.
fn span<D: Driver>(operand: &Operand<D>) -> (usize, usize) {
    let block_bytes = operand.block().size() as usize - operand.window;
    let (size, (low, behind)) = (operand.dtype.size_bytes(), operand.reach());
    let start = low * size / ARENA_STEP_BYTES * ARENA_STEP_BYTES;
    let end = (behind * size).next_multiple_of(ARENA_STEP_BYTES);
    (start, end.min(block_bytes) - start)
}
