//! Maps that ran before, like most small ops: their tensors lie on this device, contiguous and all
//! of one shape, with elements of four bytes. The kernel of the first such map is kept, so that the
//! next ones are recorded without another analysis. Small maps whose inputs lie in the arena are
//! joined instead of recorded one by one (see [`crate::joined`]).

use std::cell::OnceCell;
use std::rc::Rc;

use arrayvec::ArrayVec;
use hashbrown::HashMap;
use panoply_core::expr::Program;
use panoply_core::op::compute::Map;
use panoply_core::{Buffer, DType, Result, Tensor};
use panoply_kernels::wgsl::{InputLayout, Kernel, MapBody, MapKernel};

use super::map::VECTOR_NODES_MAX;
use crate::arena::SLOT_BYTES;
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::joined::{ArenaPosition, BatchedMapKernels, DeferredMap};
use crate::memory::LentMemory;
use crate::operand::Operand;
use crate::pipelines::Pipeline;

/// The most inputs of a map that is kept.
const INPUTS_MAX: usize = 6;
/// The most constants of a map that is kept.
const CONSTANTS_MAX: usize = 24;
/// The most maps that are kept.
const KNOWN_MAX: usize = 1024;

/// Known maps by the hashes of their expressions.
struct KnownMaps<D: Driver> {
    known: HashMap<u64, Rc<KnownMap<D>>>,
}

impl<D: Driver> Default for KnownMaps<D> {
    fn default() -> KnownMaps<D> {
        KnownMaps { known: HashMap::new() }
    }
}

/// A known map.
struct KnownMap<D: Driver> {
    program: Program,
    inputs: Vec<DType>,
    output: DType,
    /// The kernel, and the words of its expression's constants.
    kernel: MapKernel,
    constants: Vec<u32>,
    pipeline: Rc<Pipeline<D>>,
    per_invocation: usize,
    /// The kernels for joined maps of this kind, compiled when first wanted; `None` if that failed.
    joined: OnceCell<Option<Rc<BatchedMapKernels<D>>>>,
}

impl<D: Driver> KnownMap<D> {
    fn joined(&self, context: &mut Context<D>) -> Option<&Rc<BatchedMapKernels<D>>> {
        let will_be_many = context.is_rehearsal();
        let pipelines = &mut context.pipelines;
        let make = || BatchedMapKernels::new(&self.kernel, &self.constants, pipelines).ok().map(Rc::new);
        // A driver that refuses these texts may still take the text for single maps.
        let joined = self.joined.get_or_init(make).as_ref()?;
        joined.prepare(will_be_many, &self.kernel, &mut context.pipelines);
        Some(joined)
    }
}

fn kernel(program: &Program, inputs: &[DType]) -> Result<(MapKernel, Vec<u32>)> {
    let (body, constants) = MapBody::new(program, inputs)?;
    let inputs = inputs.iter().map(|dtype| (*dtype, InputLayout::Dense)).collect();
    Ok((MapKernel { body, inputs, rank: 0, vector: true, arena: false, joined: None }, constants))
}

/// Records a map like one that ran before; `None` if there was none.
pub(crate) fn run<D: Driver>(op: &Map, context: &mut Context<D>) -> Result<Option<Tensor>> {
    let program = op.program()?;
    let Some(known) = context.states.get::<KnownMaps<D>>().known.get(&program.hash()) else { return Ok(None) };
    let known = Rc::clone(known);
    if known.program != *program || !is_plain(op, &known.inputs, context) {
        return Ok(None);
    }
    if let Some(tensor) = join(op, &known, context)? {
        return Ok(Some(tensor));
    }
    let mut operands = ArrayVec::<Operand<D>, INPUTS_MAX>::new();
    for input in op.inputs() {
        operands.push(context.operand(input)?);
    }
    let Some(shape) = operands.first().map(|operand| operand.shape) else { return Ok(None) };
    let output = context.output(known.output, shape)?;
    let count = shape.elements();
    let mut params = ArrayVec::<u32, { 1 + CONSTANTS_MAX + INPUTS_MAX }>::new();
    params.push(count as u32);
    params.extend(known.constants.iter().copied());
    params.extend(operands.iter().map(Operand::start));
    let reads: ArrayVec<&Operand<D>, INPUTS_MAX> = operands.iter().collect();
    let groups = groups_for(count.div_ceil(known.per_invocation));
    context.dispatch(&known.pipeline, &[&output], &reads, &params, groups)?;
    context.finish(output).map(Some)
}

/// Lets a plain map wait for others like it; `None` if it is too large or not all of it lies in the
/// arena.
fn join<D: Driver>(op: &Map, known: &KnownMap<D>, context: &mut Context<D>) -> Result<Option<Tensor>> {
    let Some(shape) = op.inputs().next().map(|first| *first.shape()) else { return Ok(None) };
    let (count, size) = (shape.elements(), known.output.size_bytes());
    if count * size > SLOT_BYTES {
        return Ok(None);
    }
    let mut inputs = ArrayVec::<ArenaPosition, INPUTS_MAX>::new();
    for input in op.inputs() {
        let Buffer::Device(handle) = input.buffer() else { return Ok(None) };
        let Some(place) = context.memory.place(handle, input.offset() * size) else { return Ok(None) };
        inputs.push(place);
    }
    let Some(kernel) = known.joined(context).filter(|_| !context.is_rehearsal()) else { return Ok(None) };
    let Some(slot) = context.memory.take_slot(count * size) else { return Ok(None) };
    let (output, arena) = (slot.place(0), Rc::clone(slot.arena()));
    let tensor = context.finish(Operand::whole(Rc::new(LentMemory::Slot(slot)), known.output, shape))?;
    let (elements, header) = (count as u32, kernel.header());
    context.join(&arena, &DeferredMap { kernel, elements, output, inputs: &inputs, header });
    Ok(Some(tensor))
}

/// Keeps the kernel for later maps of this kind, if this map qualifies.
pub(super) fn keep<D: Driver>(op: &Map, context: &mut Context<D>) -> Result<()> {
    let (program, output) = (op.program()?, op.output_dtype()?);
    let inputs: Vec<DType> = op.inputs().map(Tensor::dtype).collect();
    let all_read = MapKernel::inputs_read(program).len() == inputs.len();
    let bound = inputs.len() <= INPUTS_MAX && inputs.len() < context.profile.buffers_max;
    let small = program.nodes().len() <= VECTOR_NODES_MAX && bound;
    if !all_read || !small || output.size_bytes() != 4 || !is_plain(op, &inputs, context) {
        return Ok(());
    }
    let (kernel, constants) = kernel(program, &inputs)?;
    if constants.len() > CONSTANTS_MAX {
        return Ok(());
    }
    let per_invocation = 4 * kernel.vectors_at_once();
    let pipeline = context.pipelines.get(&Kernel::Map(kernel.clone()), (1, inputs.len()))?;
    let joined = OnceCell::new();
    let program = program.clone();
    let hash = program.hash();
    let known = KnownMap { program, inputs, output, kernel, constants, pipeline, per_invocation, joined };
    let known = Rc::new(known);
    if context.is_rehearsal() {
        // A small map of this kind will be joined next time, so compile the kernel for that too.
        join(op, &known, context)?;
    }
    let KnownMaps { known: all } = context.states.get::<KnownMaps<D>>();
    if all.len() >= KNOWN_MAX {
        all.clear();
    }
    all.insert(hash, known);
    Ok(())
}

/// Whether the inputs have these types, lie in this device's memory, are contiguous, all of one
/// shape and within reach.
fn is_plain<D: Driver>(op: &Map, dtypes: &[DType], context: &Context<D>) -> bool {
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
