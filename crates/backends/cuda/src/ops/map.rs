//! Map: one generated kernel for each expression, the dtypes of its inputs and the way they lie. What was generated is found
//! again without touching the heap. Expressions that are too long to compile are interpreted. Small maps that differ in nothing
//! but their memory can be one launch.

use std::collections::HashMap;
use std::sync::Arc;

use panoply_core::expr::{INPUTS_MAX, Program};
use panoply_core::op::compute::Map;
use panoply_core::{DType, Result, Tensor, Value};
use panoply_kernels::c::generate::{Access, GENERATED_NODES_MAX, MAP_BLOCK_THREADS, MapForm, Reach, map_kernel};
use panoply_kernels::c::interpret::{INSTRUCTION_WORDS, instructions, stored};
use panoply_kernels::c::{INTERPRET, Kernel};

use super::together::Table;
use crate::context::{ARGUMENT_BYTES_MAX, Arguments, Context, LAYOUT_AXES_MAX, Layout, Output, View};
use crate::driver::{Address, Launch};
use crate::memory::Block;
use crate::strides::Axes;

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
const OTHER_ARGUMENT_BYTES: usize = 128;
/// Memory for the values of an interpreted program.
const SLOT_BYTES_MAX: usize = 64 << 20;

pub(crate) fn run(op: &Map, context: &mut Context) -> Result<Value> {
    let (program, dtype) = (op.program()?, op.output_dtype()?);
    let shape = op.output_shape()?;
    let output = context.output(dtype, shape)?;
    if shape.elements() > 0 {
        let mut plan = Plan::new(&shape);
        for input in op.inputs() {
            let view = context.view(input)?;
            plan.push(&view, input.dtype());
        }
        plan.axes.collapse(plan.inputs);
        if program.nodes().len() > GENERATED_NODES_MAX {
            interpret(program, dtype, &mut plan, output.address, context)?;
        } else {
            if !plan.is_flat() && !plan.fits_arguments() {
                plan.flatten(context)?;
            }
            generate(program, dtype, &mut plan, Target::One(output.address), context)?;
        }
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// Whether a map can be one of several in a launch.
pub(super) fn is_small(op: &Map) -> bool {
    let generated = op.program().is_ok_and(|program| program.nodes().len() <= GENERATED_NODES_MAX);
    generated
        && op.output_shape().is_ok_and(|shape| {
            (1..=SMALL_ELEMENTS_MAX).contains(&shape.elements()) && fits_arguments(op.inputs().len(), shape.rank())
        })
}

/// Whether a map can be launched with one that is small.
pub(super) fn same(a: &Map, b: &Map) -> bool {
    let lies = |tensor: &Tensor| (tensor.dtype(), *tensor.shape(), *tensor.strides(), tensor.location());
    a.program().ok() == b.program().ok()
        && a.inputs().len() == b.inputs().len()
        && a.inputs().zip(b.inputs()).all(|(a, b)| lies(a) == lies(b))
}

/// Small maps that are the same but for where their inputs are, as one launch.
pub(super) fn run_many(ops: &[&Map], context: &mut Context) -> Result<Vec<Value>> {
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
    let (table, addresses) = table.upload(context)?;
    let mut plan = Plan::new(&shape);
    for (index, input) in first.inputs().enumerate() {
        let contiguous = input.shape().contiguous_strides();
        let strides = if context.owns(input) { input.strides() } else { &contiguous };
        let layout = Layout::new(input.shape(), strides);
        // All of them at once: what divides this divides each.
        let rows = addresses.chunks_exact(first.inputs().len() + 1);
        let address = rows.fold(0, |joined, row| joined | row[index + 1]);
        plan.push(&View { address, layout }, input.dtype());
    }
    plan.axes.collapse(plan.inputs);
    generate(program, dtype, &mut plan, Target::Many { table, count: ops.len() as u32 }, context)?;
    Ok(outputs.into_iter().map(|output| Value::Tensor(output.into_tensor())).collect())
}

/// Where a launch writes.
#[derive(Clone, Copy)]
enum Target {
    One(Address),
    /// So many maps: the addresses of each one's output and inputs are in the table.
    Many {
        table: Address,
        count: u32,
    },
}

/// The inputs of one map, broadcast to the output's shape.
struct Plan {
    axes: Axes<INPUTS>,
    inputs: usize,
    addresses: [Address; INPUTS],
    dtypes: [DType; INPUTS],
    accesses: [Access; INPUTS],
}

impl Plan {
    fn new(shape: &[usize]) -> Plan {
        Plan {
            axes: Axes::of_sizes(shape.iter().copied()),
            inputs: 0,
            addresses: [0; INPUTS],
            dtypes: [DType::F32; INPUTS],
            accesses: [Access::Same; INPUTS],
        }
    }

    fn push(&mut self, view: &View, dtype: DType) {
        for (axis, (size, stride)) in view.layout.axes().enumerate() {
            self.axes.strides[self.inputs][axis] = if size == 1 { 0 } else { stride };
        }
        self.addresses[self.inputs] = view.address;
        self.dtypes[self.inputs] = dtype;
        self.inputs += 1;
    }

    /// Whether every input lies as the output does, or is a single element.
    fn is_flat(&self) -> bool {
        self.axes.rank == 0
            || self.axes.rank == 1
                && self.axes.strides[..self.inputs].iter().all(|strides| strides[0] == 0 || strides[0] == 1)
    }

    /// Whether the strides fit into the arguments of a launch.
    fn fits_arguments(&self) -> bool {
        fits_arguments(self.inputs, self.axes.rank)
    }

    /// Copies every input that is neither a single element nor as the output, so that the plan becomes flat.
    fn flatten(&mut self, context: &mut Context) -> Result<()> {
        let elements = self.axes.elements();
        let mut contiguous = [0_i64; LAYOUT_AXES_MAX];
        let mut step = 1;
        for (stride, size) in contiguous.iter_mut().zip(&self.axes.sizes[..self.axes.rank]) {
            *stride = step;
            step *= *size as i64;
        }
        for input in 0..self.inputs {
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
        self.axes.collapse(self.inputs);
        Ok(())
    }

    /// Decides how each input is read, and how many elements a vector has.
    fn classify(&mut self, output: DType, nodes: usize) -> (Reach, u32) {
        let flat = self.is_flat();
        let widest = self.dtypes[..self.inputs].iter().chain([&output]).map(|dtype| dtype.size_bytes()).max();
        let is_long = nodes > UNROLLED_NODES_MAX;
        let mut width = if is_long { 1 } else { VECTOR_BYTES / widest.unwrap_or(1) };
        if flat {
            while width > 1 && !(0..self.inputs).all(|input| self.is_same(input) || self.is_vector(input, width)) {
                width /= 2;
            }
        } else {
            while !self.axes.sizes[0].is_multiple_of(width) {
                width /= 2;
            }
        }
        for input in 0..self.inputs {
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
            let two = elements >= TWO_VECTORS_ELEMENTS_MIN && self.inputs <= 4 && !is_long;
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

    fn form(&self, reach: Reach, width: u32, many: bool) -> MapForm<'_> {
        MapForm { dtypes: &self.dtypes[..self.inputs], accesses: &self.accesses[..self.inputs], reach, width, many }
    }
}

/// Whether the addresses and strides of so many inputs fit into the arguments of a launch.
fn fits_arguments(inputs: usize, rank: usize) -> bool {
    inputs * (rank + 1) * 8 + OTHER_ARGUMENT_BYTES <= ARGUMENT_BYTES_MAX
}

fn generate(program: &Program, output: DType, plan: &mut Plan, target: Target, context: &mut Context) -> Result<()> {
    let (reach, width) = plan.classify(output, program.nodes().len());
    let elements = plan.axes.elements();
    let (mut arguments, maps) = match target {
        // A structure without members is one word.
        Target::One(target) => {
            (Arguments::new().address(target).structure(&plan.addresses[..plan.inputs.max(1)]), None)
        }
        Target::Many { table, count } => (Arguments::new().address(table), Some(count)),
    };
    let per_thread = match reach {
        Reach::Flat { vectors } => (vectors * width) as usize,
        Reach::Strided { rank, .. } => {
            arguments = strides(arguments, plan, rank as usize);
            width as usize
        }
    };
    let blocks = elements.div_ceil(MAP_BLOCK_THREADS as usize * per_thread);
    let grid = [u32::try_from(blocks).unwrap_or(u32::MAX), maps.unwrap_or(1), 1];
    let launch = Launch::grid(grid, MAP_BLOCK_THREADS);
    let form = plan.form(reach, width, maps.is_some());
    let mut maps = std::mem::take(&mut context.maps);
    let launched = maps
        .kernel(program, &form)
        .and_then(|kernel| context.launch(kernel, launch, &mut arguments.u64(elements as u64)));
    context.maps = maps;
    launched
}

/// The sizes and strides of a strided kernel.
fn strides(arguments: Arguments, plan: &Plan, rank: usize) -> Arguments {
    let mut sizes = [0_u64; LAYOUT_AXES_MAX / 2];
    for (axis, size) in plan.axes.sizes[..rank].iter().enumerate() {
        sizes[axis / 2] |= (*size as u64 & 0xffff_ffff) << (32 * (axis % 2));
    }
    let mut words = [0_u64; ARGUMENT_BYTES_MAX / 8];
    for (place, strides) in words.chunks_exact_mut(rank).zip(&plan.axes.strides[..plan.inputs]) {
        for (word, stride) in place.iter_mut().zip(strides) {
            *word = *stride as u64;
        }
    }
    arguments.structure(&sizes[..rank.div_ceil(2)]).structure(&words[..(plan.inputs * rank).max(1)])
}

fn interpret(program: &Program, output: DType, plan: &mut Plan, target: Address, context: &mut Context) -> Result<()> {
    plan.flatten(context)?;
    let elements = plan.axes.elements();
    let mut maps = std::mem::take(&mut context.maps);
    let code = maps
        .code(program, &plan.dtypes[..plan.inputs], context)
        .map(|code| (code.block.block.0, code.slots, code.words.elements() / INSTRUCTION_WORDS));
    context.maps = maps;
    let (code, slots, count) = code?;
    let blocks_max = (SLOT_BYTES_MAX / (slots as usize * 8 * MAP_BLOCK_THREADS as usize)).max(1);
    let mut launch = context.blocks(elements, MAP_BLOCK_THREADS, 1);
    launch.grid[0] = launch.grid[0].min(blocks_max as u32);
    let threads = launch.grid[0] as usize * MAP_BLOCK_THREADS as usize;
    let values = context.scratch(slots as usize * 8 * threads)?;
    let mut single = 0_u64;
    for input in 0..plan.inputs {
        single |= u64::from(plan.axes.rank == 0 || plan.is_same(input)) << input;
    }
    let mut arguments = Arguments::new()
        .address(target)
        .address(code)
        .address(values)
        .structure(&plan.addresses)
        .u64(single)
        .u32(count as u32)
        .u32(stored(output))
        .u64(elements as u64);
    context.launch(&Kernel::new(INTERPRET, "interpret"), launch, &mut arguments)
}

/// Kernels and instructions that were generated before, found by what decides them.
#[derive(Default)]
pub(crate) struct Maps {
    kernels: HashMap<u64, Vec<Generated>>,
    codes: HashMap<u64, Vec<Code>>,
}

struct Generated {
    program: Program,
    dtypes: Box<[DType]>,
    accesses: Box<[Access]>,
    reach: Reach,
    width: u32,
    many: bool,
    kernel: Kernel,
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
    fn kernel(&mut self, program: &Program, form: &MapForm<'_>) -> Result<&Kernel> {
        let known = self.kernels.entry(program.hash()).or_default();
        let found = known.iter().position(|one| {
            one.reach == form.reach
                && (one.width, one.many) == (form.width, form.many)
                && *one.accesses == *form.accesses
                && *one.dtypes == *form.dtypes
                && one.program == *program
        });
        let place = match found {
            Some(place) => place,
            None => {
                let types = program.types(form.dtypes)?;
                let text = map_kernel(program, &types, form);
                known.push(Generated {
                    program: program.clone(),
                    dtypes: form.dtypes.into(),
                    accesses: form.accesses.into(),
                    reach: form.reach,
                    width: form.width,
                    many: form.many,
                    kernel: Kernel::generated("map", Arc::from(text), "map"),
                });
                known.len() - 1
            }
        };
        Ok(&known[place].kernel)
    }

    fn code(&mut self, program: &Program, dtypes: &[DType], context: &mut Context) -> Result<&Code> {
        let known = self.codes.entry(program.hash()).or_default();
        let place = match known.iter().position(|one| *one.dtypes == *dtypes && one.program == *program) {
            Some(place) => place,
            None => {
                let code = instructions(program, &program.types(dtypes)?);
                let count = code.words.len();
                let words = Tensor::from_vec(code.words, [count])?;
                let block = context.memory.scratch(words.len_bytes())?;
                context.lasting(|context| context.place(block.block.0, &words))?;
                known.push(Code { program: program.clone(), dtypes: dtypes.into(), words, slots: code.slots, block });
                known.len() - 1
            }
        };
        Ok(&known[place])
    }
}
