//! Map: one generated kernel for each form of expression, the dtypes of its inputs and the way they lie; constants are arguments. What
//! was generated is found again without touching the heap. Expressions that are too long to compile are interpreted. Small maps that differ in nothing
//! but their memory can be one launch; those of a graph wait for each other ([`waiting`]).

use std::collections::HashMap;
use std::sync::Arc;

use panoply_core::expr::{INPUTS_MAX, Program};
use panoply_core::op::compute::Map;
use panoply_core::{DType, Result, Tensor, Value};
use panoply_kernels::c::generate::{
    ARGUMENT_CONSTANTS_MAX, Access, GENERATED_NODES_MAX, MAP_BLOCK_THREADS, MapForm, MapKernel, Reach, Together,
    map_kernel,
};
use panoply_kernels::c::interpret::{INSTRUCTION_WORDS, instructions, stored};
use panoply_kernels::c::{INTERPRET, Kernel};

use super::super::together::{Placed, Table};
use crate::arguments::{ARGUMENT_BYTES_MAX, Arguments};
use crate::context::{Context, Output};
use crate::driver::{Address, Launch};
use crate::layout::{LAYOUT_AXES_MAX, Layout, View};
use crate::memory::Block;
use crate::strides::Axes;

pub(crate) mod waiting;

const INPUTS: usize = INPUTS_MAX as usize;
/// Bytes that one thread reads or writes at once.
const VECTOR_BYTES: usize = 16;
/// From here on each thread takes two vectors, so that more loads are under way.
const TWO_VECTORS_ELEMENTS_MIN: usize = 1 << 22;
/// Longer programs have one element for each thread: every element of a vector is another copy of the program's text.
const UNROLLED_NODES_MAX: usize = 64;
/// Maps with more elements keep the device busy by themselves.
const SMALL_ELEMENTS_MAX: usize = 1 << 16;
/// Arguments other than the inputs' addresses and strides.
const OTHER_ARGUMENT_BYTES: usize = 128 + ARGUMENT_CONSTANTS_MAX * 8;
/// Threads of a block.
const THREADS: usize = MAP_BLOCK_THREADS as usize;
/// Expressions whose kernels are found at once, and programs that stay on the device; beyond it the tables are emptied.
const GENERATED_MAX: usize = 4096;
const CODES_MAX: usize = 256;
/// Inputs that are brought together begin at multiples of this.
const JOINED_ALIGN_BYTES: usize = 256;
/// Memory for the values of an interpreted program.
const SLOT_BYTES_MAX: usize = 64 << 20;

pub(crate) fn run(op: &Map, context: &mut Context) -> Result<Value> {
    let (program, dtype) = (op.program()?, op.output_dtype()?);
    let shape = op.output_shape()?;
    let output = context.output(dtype, shape)?;
    if shape.elements() > 0 {
        let mut inputs = MapInputs::new(&shape);
        for input in op.inputs() {
            let view = context.view(input)?;
            inputs.push(&view, input.dtype());
        }
        inputs.axes.collapse(inputs.count);
        if program.nodes().len() > GENERATED_NODES_MAX {
            interpret(program, dtype, &mut inputs, output.address, context)?;
        } else {
            if !inputs.is_flat() && !inputs.fits_arguments() {
                inputs.flatten(context)?;
            }
            generate(program, dtype, &mut inputs, Target::One(output.address), context)?;
        }
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// Whether a map can be one of several in a launch.
pub(crate) fn is_small(op: &Map) -> bool {
    let generated = op.program().is_ok_and(|program| program.nodes().len() <= GENERATED_NODES_MAX);
    generated
        && op.output_shape().is_ok_and(|shape| {
            (1..=SMALL_ELEMENTS_MAX).contains(&shape.elements()) && fits_arguments(op.inputs().len(), shape.rank())
        })
}

/// Whether a map can be launched with one that is small.
pub(crate) fn same(a: &Map, b: &Map) -> bool {
    let lies = |tensor: &Tensor| (tensor.dtype(), *tensor.shape(), *tensor.strides(), tensor.location());
    a.program().ok() == b.program().ok()
        && a.inputs().len() == b.inputs().len()
        && a.inputs().zip(b.inputs()).all(|(a, b)| lies(a) == lies(b))
}

/// Small maps that are the same but for where their inputs are, as one launch.
pub(crate) fn run_many(ops: &[&Map], context: &mut Context) -> Result<Vec<Value>> {
    let Some(first) = ops.first() else { return Ok(Vec::new()) };
    let (program, dtype, shape) = (first.program()?, first.output_dtype()?, first.output_shape()?);
    let mut table = Table::default();
    let mut outputs: Vec<Output> = Vec::with_capacity(ops.len());
    for op in ops {
        let output = context.output(dtype, shape)?;
        table.push(output.address);
        op.inputs().try_for_each(|input| table.push_input(input, context))?;
        outputs.push(output);
    }
    let Some(Placed { base, table, words }) = table.upload(context)? else { return Ok(Vec::new()) };
    let mut inputs = MapInputs::new(&shape);
    for (index, input) in first.inputs().enumerate() {
        let contiguous = input.shape().contiguous_strides();
        let strides = if context.owns(input) { input.strides() } else { &contiguous };
        let layout = Layout::new(input.shape(), strides);
        // All of them at once: what divides this divides each.
        let rows = words.chunks_exact(first.inputs().len() + 1);
        let address = Address(rows.fold(0, |joined, row| joined | row[index + 1]));
        inputs.push(&View { address, layout }, input.dtype());
    }
    inputs.axes.collapse(inputs.count);
    generate(program, dtype, &mut inputs, Target::Many { base, table, count: ops.len() }, context)?;
    Ok(outputs.into_iter().map(|output| Value::Tensor(output.into_tensor())).collect())
}

/// Where a launch writes.
#[derive(Clone, Copy)]
enum Target {
    One(Address),
    /// So many maps: the places of each one's output and inputs, from the base on, are in the table.
    Many {
        base: Address,
        table: Address,
        count: usize,
    },
}

/// The inputs of one map, broadcast to the output's shape.
struct MapInputs {
    axes: Axes<INPUTS>,
    count: usize,
    addresses: [Address; INPUTS],
    dtypes: [DType; INPUTS],
    accesses: [Access; INPUTS],
}

impl MapInputs {
    fn new(shape: &[usize]) -> MapInputs {
        MapInputs {
            axes: Axes::of_sizes(shape.iter().copied()),
            count: 0,
            addresses: [Address::NULL; INPUTS],
            dtypes: [DType::F32; INPUTS],
            accesses: [Access::Same; INPUTS],
        }
    }

    fn push(&mut self, view: &View, dtype: DType) {
        for (axis, (size, stride)) in view.layout.axes().enumerate() {
            self.axes.strides[self.count][axis] = if size == 1 { 0 } else { stride };
        }
        self.addresses[self.count] = view.address;
        self.dtypes[self.count] = dtype;
        self.count += 1;
    }

    /// Whether every input lies as the output does, or is a single element.
    fn is_flat(&self) -> bool {
        self.axes.rank == 0
            || self.axes.rank == 1
                && self.axes.strides[..self.count].iter().all(|strides| strides[0] == 0 || strides[0] == 1)
    }

    /// Whether the strides fit into the arguments of a launch.
    fn fits_arguments(&self) -> bool {
        fits_arguments(self.count, self.axes.rank)
    }

    /// Copies every input that is neither a single element nor as the output, so that the inputs becomes flat.
    fn flatten(&mut self, context: &mut Context) -> Result<()> {
        let elements = self.axes.elements();
        let mut contiguous = [0_i64; LAYOUT_AXES_MAX];
        let mut step = 1;
        for (stride, size) in contiguous.iter_mut().zip(&self.axes.sizes[..self.axes.rank]) {
            *stride = step;
            step *= *size as i64;
        }
        for input in 0..self.count {
            let strides = self.axes.strides[input];
            if strides[..self.axes.rank].iter().all(|stride| *stride == 0) || strides == contiguous {
                continue;
            }
            let target = context.scratch(elements * self.dtypes[input].size_bytes())?;
            let view = View::of_axes(self.addresses[input], &self.axes, input);
            context.copy_view(target, &view, self.dtypes[input], elements)?;
            self.addresses[input] = target;
            self.axes.strides[input] = contiguous;
        }
        self.axes.collapse(self.count);
        Ok(())
    }

    /// Brings the inputs together into one block, for kernels that cannot be told addresses: the addresses become distances from
    /// its beginning, which is returned.
    fn join(&mut self, context: &mut Context) -> Result<Address> {
        let elements = self.axes.elements();
        let bytes_of = |inputs: &MapInputs, input: usize| {
            let count = if inputs.axes.rank == 0 || inputs.is_same(input) { 1 } else { elements };
            count * inputs.dtypes[input].size_bytes()
        };
        let total = (0..self.count).map(|input| bytes_of(self, input).next_multiple_of(JOINED_ALIGN_BYTES)).sum();
        let (base, mut place) = (context.scratch(total)?, 0);
        for input in 0..self.count {
            let bytes = bytes_of(self, input);
            context.copy(base + place, self.addresses[input], bytes)?;
            self.addresses[input] = Address(place as u64);
            place += bytes.next_multiple_of(JOINED_ALIGN_BYTES);
        }
        Ok(base)
    }

    /// Decides how each input is read, and how many elements a vector has.
    fn classify(&mut self, output: DType, nodes: usize) -> (Reach, u32) {
        let flat = self.is_flat();
        let widest = self.dtypes[..self.count].iter().chain([&output]).map(|dtype| dtype.size_bytes()).max();
        let is_long = nodes > UNROLLED_NODES_MAX;
        let mut width = if is_long { 1 } else { VECTOR_BYTES / widest.unwrap_or(1) };
        if flat {
            while width > 1 && !(0..self.count).all(|input| self.is_same(input) || self.is_vector(input, width)) {
                width /= 2;
            }
        } else {
            while !self.axes.sizes[0].is_multiple_of(width) {
                width /= 2;
            }
        }
        for input in 0..self.count {
            self.accesses[input] = if self.axes.rank == 0 || self.is_same(input) {
                Access::Same
            } else if self.is_vector(input, width) {
                Access::Vector
            } else {
                Access::Single
            };
        }
        let elements = self.axes.elements();
        if flat {
            let two = elements >= TWO_VECTORS_ELEMENTS_MIN && self.count <= 4 && !is_long;
            let vectors = if two { 2 } else { 1 };
            return (Reach::Flat { vectors }, width as u32);
        }
        (Reach::Strided { rank: self.axes.rank as u32, is_wide: elements > u32::MAX as usize }, width as u32)
    }

    /// Whether neighbours along the last axis share this input's element.
    fn is_same(&self, input: usize) -> bool {
        self.axes.strides[input][0] == 0
    }

    /// Whether vectors of this width lie whole and aligned in the input.
    fn is_vector(&self, input: usize, width: usize) -> bool {
        let strides = &self.axes.strides[input][..self.axes.rank];
        let bytes = (width * self.dtypes[input].size_bytes()).min(VECTOR_BYTES) as u64;
        strides[0] == 1
            && strides[1..].iter().all(|stride| stride % width as i64 == 0)
            && self.addresses[input].is_multiple_of(bytes)
    }

    fn form(&self, reach: Reach, width: u32, together: Together) -> MapForm<'_> {
        MapForm { dtypes: &self.dtypes[..self.count], accesses: &self.accesses[..self.count], reach, width, together }
    }
}

/// Whether the addresses and strides of so many inputs fit into the arguments of a launch.
fn fits_arguments(inputs: usize, rank: usize) -> bool {
    inputs * (rank + 1) * 8 + OTHER_ARGUMENT_BYTES <= ARGUMENT_BYTES_MAX
}

fn generate(
    program: &Program,
    output: DType,
    inputs: &mut MapInputs,
    target: Target,
    context: &mut Context,
) -> Result<()> {
    let (reach, width) = inputs.classify(output, program.nodes().len());
    let elements = inputs.axes.elements();
    let (mut arguments, maps) = match target {
        Target::One(target) => {
            let addresses = &inputs.addresses[..inputs.count];
            (addresses.iter().fold(Arguments::new().address(target), |all, one| all.address(*one)), None)
        }
        Target::Many { base, table, count } => (Arguments::new().address(base).address(table), Some(count)),
    };
    let per_thread = match reach {
        Reach::Flat { vectors } => (vectors * width) as usize,
        Reach::Strided { rank, .. } => {
            arguments = strides(arguments, inputs, rank as usize);
            width as usize
        }
    };
    let blocks = elements.div_ceil(THREADS * per_thread);
    let launch = Launch::grid([blocks, maps.unwrap_or(1), 1], THREADS);
    let together = if maps.is_some() { Together::Table } else { Together::One };
    let form = inputs.form(reach, width, together);
    let mut maps = std::mem::take(&mut context.maps);
    let launched = maps.find(program, &form).and_then(|generated| {
        let arguments = pass_constants(arguments, &generated.constants, context)?;
        context.launch(&generated.kernel, launch, &mut arguments.u64(elements as u64))
    });
    context.maps = maps;
    launched
}

/// The kernel's constants: a structure, or where they are many, memory of their own.
pub(super) fn pass_constants(arguments: Arguments, constants: &[u64], context: &mut Context) -> Result<Arguments> {
    match constants.len() {
        0 => Ok(arguments),
        1..=ARGUMENT_CONSTANTS_MAX => Ok(arguments.structure(constants)),
        _ => {
            let bytes = size_of_val(constants);
            let address = context.scratch(bytes)?;
            context.place_filled(address, bytes, |pinned| pinned.copy_from_slice(bytemuck::cast_slice(constants)))?;
            Ok(arguments.address(address))
        }
    }
}

/// The sizes and strides of a strided kernel.
fn strides(arguments: Arguments, inputs: &MapInputs, rank: usize) -> Arguments {
    let mut sizes = [[0; 2]; LAYOUT_AXES_MAX / 2];
    for (axis, size) in inputs.axes.sizes[..rank].iter().enumerate() {
        sizes[axis / 2][axis % 2] = *size;
    }
    let mut words = [0_u64; ARGUMENT_BYTES_MAX / 8];
    for (place, strides) in words.chunks_exact_mut(rank).zip(&inputs.axes.strides[..inputs.count]) {
        for (word, stride) in place.iter_mut().zip(strides) {
            *word = *stride as u64;
        }
    }
    arguments.sizes(&sizes[..rank.div_ceil(2)]).structure(&words[..(inputs.count * rank).max(1)])
}

fn interpret(
    program: &Program,
    output: DType,
    inputs: &mut MapInputs,
    target: Address,
    context: &mut Context,
) -> Result<()> {
    inputs.flatten(context)?;
    let base = if context.driver.properties().pointers { Address::NULL } else { inputs.join(context)? };
    let elements = inputs.axes.elements();
    let mut maps = std::mem::take(&mut context.maps);
    let code = maps
        .code(program, &inputs.dtypes[..inputs.count], context)
        .map(|code| (code.block.block.0, code.slots, code.words.elements() / INSTRUCTION_WORDS));
    context.maps = maps;
    let (code, slots, count) = code?;
    let blocks_max = (SLOT_BYTES_MAX / (slots as usize * 8 * THREADS)).max(1);
    let mut launch = context.blocks(elements, THREADS, 1);
    launch.blocks[0] = launch.blocks[0].min(blocks_max);
    let threads = launch.blocks[0] * THREADS;
    let values = context.scratch(slots as usize * 8 * threads)?;
    let mut single = 0_u64;
    for input in 0..inputs.count {
        single |= u64::from(inputs.axes.rank == 0 || inputs.is_same(input)) << input;
    }
    let mut arguments = Arguments::new()
        .address(target)
        .address(code)
        .address(values)
        .address(base)
        .structure(&inputs.addresses.map(|address| address.0))
        .u64(single)
        .size(count)
        .u32(stored(output))
        .u64(elements as u64);
    context.launch(&Kernel::new(INTERPRET, "interpret"), launch, &mut arguments)
}

/// Kernels and instructions that were generated before, found by what decides them.
#[derive(Default)]
pub(crate) struct Maps {
    generated: HashMap<u64, Vec<Generated>>,
    generated_count: usize,
    codes: HashMap<u64, Vec<Code>>,
    code_count: usize,
}

/// An expression's kernel, which others share that differ in their constants alone.
struct Generated {
    program: Program,
    dtypes: Box<[DType]>,
    accesses: Box<[Access]>,
    reach: Reach,
    width: u32,
    together: Together,
    kernel: Kernel,
    constants: Box<[u64]>,
}

/// An interpreted program, on the device.
struct Code {
    program: Program,
    dtypes: Box<[DType]>,
    words: Tensor,
    slots: u32,
    block: Block,
}

impl Maps {
    /// The expression's kernel; written, where it is not known. Being found costs one look into the table.
    fn find(&mut self, program: &Program, form: &MapForm<'_>) -> Result<&Generated> {
        if self.generated_count >= GENERATED_MAX {
            self.generated.clear();
            self.generated_count = 0;
        }
        let known = self.generated.entry(program.hash()).or_default();
        let found = known.iter().position(|one| {
            one.reach == form.reach
                && (one.width, one.together) == (form.width, form.together)
                && *one.accesses == *form.accesses
                && *one.dtypes == *form.dtypes
                && one.program == *program
        });
        let place = match found {
            Some(place) => place,
            None => {
                let types = program.types(form.dtypes)?;
                let MapKernel { text, constants } = map_kernel(program, &types, form);
                known.push(Generated {
                    program: program.clone(),
                    dtypes: form.dtypes.into(),
                    accesses: form.accesses.into(),
                    reach: form.reach,
                    width: form.width,
                    together: form.together,
                    kernel: Kernel::generated("map", Arc::from(text), "map"),
                    constants: constants.into(),
                });
                self.generated_count += 1;
                known.len() - 1
            }
        };
        Ok(&known[place])
    }

    fn code(&mut self, program: &Program, dtypes: &[DType], context: &mut Context) -> Result<&Code> {
        let is_same = |one: &Code| *one.dtypes == *dtypes && one.program == *program;
        let known = self.codes.get(&program.hash());
        let place = match known.and_then(|known| known.iter().position(is_same)) {
            Some(place) => place,
            None => self.assemble(program, dtypes, context)?,
        };
        Ok(&self.codes[&program.hash()][place])
    }

    /// Brings a program to the device; its place among those of its hash.
    fn assemble(&mut self, program: &Program, dtypes: &[DType], context: &mut Context) -> Result<usize> {
        if self.code_count >= CODES_MAX {
            // Kernels under way may still read them: they go when the op under way has finished.
            self.codes.drain().flat_map(|(_, codes)| codes).for_each(|code| context.hold(code.block));
            self.code_count = 0;
        }
        let code = instructions(program, &program.types(dtypes)?);
        let count = code.words.len();
        let words = Tensor::from_vec(code.words, [count])?;
        let block = context.memory.scratch(words.len_bytes())?;
        context.lasting(|context| context.place(block.block.0, &words))?;
        let known = self.codes.entry(program.hash()).or_default();
        known.push(Code { program: program.clone(), dtypes: dtypes.into(), words, slots: code.slots, block });
        self.code_count += 1;
        Ok(known.len() - 1)
    }
}
