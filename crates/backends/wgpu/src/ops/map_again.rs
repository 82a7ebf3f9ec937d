//! Maps that ran before, as most small ops have: tensors that lie here, dense and all of one shape, with elements of four
//! bytes. What was found out for the first is kept, so that the next ones are recorded without being looked at again.

use std::rc::Rc;

use arrayvec::ArrayVec;
use hashbrown::HashMap;
use panoply_core::expr::Program;
use panoply_core::op::compute::Map;
use panoply_core::{Buffer, DType, Result, Tensor};
use panoply_kernels::wgsl::{InputLayout, Kernel, MapKernel};

use super::map::VECTOR_NODES_MAX;
use crate::context::{Context, groups_for};
use crate::operand::Operand;
use crate::pipelines::Pipeline;

/// The most inputs of a map that is kept.
const INPUTS_MAX: usize = 6;
/// The most maps that are kept.
const KNOWN_MAX: usize = 1024;

/// Maps by the hashes of their expressions.
#[derive(Default)]
pub(crate) struct KnownMaps {
    known: HashMap<u64, Known>,
}

/// One of them.
#[derive(Clone)]
struct Known {
    program: Program,
    inputs: Rc<[DType]>,
    output: DType,
    pipeline: Rc<Pipeline>,
    per_invocation: usize,
}

/// Records a map like one that ran before; nothing where there was none.
pub(super) fn run(op: &Map, context: &mut Context) -> Result<Option<Tensor>> {
    let program = op.program()?;
    let Some(known) = context.known_maps.known.get(&program.hash()) else { return Ok(None) };
    if known.program != *program || !is_plain(op, &known.inputs, context) {
        return Ok(None);
    }
    let known = known.clone();
    let mut operands = ArrayVec::<Operand, INPUTS_MAX>::new();
    for input in op.inputs() {
        operands.push(context.operand(input)?);
    }
    let Some(shape) = operands.first().map(|operand| operand.shape) else { return Ok(None) };
    let output = context.output(known.output, shape)?;
    let count = shape.elements();
    let mut params = ArrayVec::<u32, { 1 + INPUTS_MAX }>::new();
    params.push(count as u32);
    params.extend(operands.iter().map(Operand::start));
    let reads: ArrayVec<&Operand, INPUTS_MAX> = operands.iter().collect();
    let groups = groups_for(count.div_ceil(known.per_invocation));
    context.dispatch(&known.pipeline, &[&output], &reads, &params, groups)?;
    context.finish(output).map(Some)
}

/// Keeps what later maps of this kind need, where this is one.
pub(super) fn keep(op: &Map, context: &mut Context) -> Result<()> {
    let (program, output) = (op.program()?, op.output_dtype()?);
    let inputs: Rc<[DType]> = op.inputs().map(Tensor::dtype).collect();
    let all_read = MapKernel::inputs_read(program).len() == inputs.len();
    let bound = inputs.len() <= INPUTS_MAX && inputs.len() < context.profile.buffers_max;
    let small = program.nodes().len() <= VECTOR_NODES_MAX && bound;
    if !all_read || !small || output.size_bytes() != 4 || !is_plain(op, &inputs, context) {
        return Ok(());
    }
    let layouts = inputs.iter().map(|dtype| (*dtype, InputLayout::Dense)).collect();
    let kernel = MapKernel { program: program.clone(), inputs: layouts, rank: 0, vector: true, arena: false };
    let per_invocation = 4 * kernel.vectors_at_once();
    let pipeline = context.pipelines.get(&Kernel::Map(kernel), (1, inputs.len()))?;
    if context.known_maps.known.len() >= KNOWN_MAX {
        context.known_maps.known.clear();
    }
    let known = Known { program: program.clone(), inputs, output, pipeline, per_invocation };
    context.known_maps.known.insert(program.hash(), known);
    Ok(())
}

/// Whether the inputs are of these types, in this device's memory, dense, all of one shape and within reach.
fn is_plain(op: &Map, dtypes: &[DType], context: &Context) -> bool {
    let Some(first) = op.inputs().next() else { return false };
    let shape = first.shape();
    let here = |tensor: &Tensor| match tensor.buffer() {
        Buffer::Device(handle) => handle.device() == context.device,
        Buffer::Host(_) => false,
    };
    let within = |tensor: &Tensor| tensor.buffer().len_bytes() as u64 <= context.profile.binding_bytes_max / 2;
    op.inputs().len() == dtypes.len()
        && shape.elements() > 1
        && op.inputs().zip(dtypes).all(|(tensor, dtype)| {
            tensor.dtype() == *dtype
                && dtype.size_bytes() == 4
                && tensor.shape() == shape
                && tensor.is_contiguous()
                && tensor.offset().is_multiple_of(4)
                && here(tensor)
                && within(tensor)
        })
}
