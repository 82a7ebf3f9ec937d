//! Map: one generated kernel for each expression form, input dtypes and input layouts; constants
//! are arguments. A generated kernel is looked up again without allocation. Expressions that are
//! too long to compile are interpreted. Small maps that differ only in their memory can share one
//! launch; dependent maps of a graph wait for each other inside it ([`waiting`]).

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

use crate::address_table::{DeviceTable, Table};
use crate::arguments::{ARGUMENT_BYTES_MAX, Arguments};
use crate::context::{Context, DeviceState, Output};
use crate::driver::{Address, Launch};
use crate::layout::{LAYOUT_AXES_MAX, Layout, View};
use crate::memory::LeasedBlock;
use crate::strides::Axes;

pub(crate) mod waiting;

const INPUTS: usize = INPUTS_MAX as usize;
/// Bytes per vector read or write of a thread.
const VECTOR_BYTES: usize = 16;
/// From this many elements on, each thread handles two vectors, to keep more loads in flight.
const TWO_VECTORS_ELEMENTS_MIN: usize = 1 << 22;
/// Longer programs handle one element per thread: every further element of a vector adds a copy of
/// the program's text.
const UNROLLED_NODES_MAX: usize = 64;
/// Maximum elements of a small map. Larger maps occupy the device alone.
const SMALL_ELEMENTS_MAX: usize = 1 << 16;
/// Bytes for arguments other than the inputs' addresses and strides.
const OTHER_ARGUMENT_BYTES: usize = 128 + ARGUMENT_CONSTANTS_MAX * 8;
/// Threads per block.
const THREADS: usize = MAP_BLOCK_THREADS as usize;
/// Maximum cached kernels, and programs kept on the device. A full table is emptied.
const GENERATED_MAX: usize = 4096;
const CODES_MAX: usize = 256;
/// Alignment of inputs that are joined into one block.
const JOINED_ALIGN_BYTES: usize = 256;
/// Maximum memory for the values of an interpreted program.
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
            generate(program, dtype, &mut inputs, MapTarget::One(output.address), context)?;
        }
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// Whether a map can share a launch with others.
pub(crate) fn is_small(op: &Map) -> bool {
    let generated = op.program().is_ok_and(|program| program.nodes().len() <= GENERATED_NODES_MAX);
    generated
        && op.output_shape().is_ok_and(|shape| {
            (1..=SMALL_ELEMENTS_MAX).contains(&shape.elements()) && fits_arguments(op.inputs().len(), shape.rank())
        })
}

/// Whether map `b` can share a launch with the small map `a`.
pub(crate) fn same(a: &Map, b: &Map) -> bool {
    let lies = |tensor: &Tensor| (tensor.dtype(), *tensor.shape(), *tensor.strides(), tensor.location());
    a.program().ok() == b.program().ok()
        && a.inputs().len() == b.inputs().len()
        && a.inputs().zip(b.inputs()).all(|(a, b)| lies(a) == lies(b))
}

/// Runs small maps that differ only in the addresses of their inputs as one launch.
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
    let Some(DeviceTable { base, table, words }) = table.upload(context)? else { return Ok(Vec::new()) };
    let mut inputs = MapInputs::new(&shape);
    for (index, input) in first.inputs().enumerate() {
        let contiguous = input.shape().contiguous_strides();
        let strides = if context.owns(input) { input.strides() } else { &contiguous };
        let layout = Layout::new(input.shape(), strides);
        // The combined address of all maps' inputs: a power of two divides it only if it divides
        // each.
        let rows = words.chunks_exact(first.inputs().len() + 1);
        let address = Address(rows.fold(0, |joined, row| joined | row[index + 1]));
        inputs.push(&View { address, layout }, input.dtype());
    }
    inputs.axes.collapse(inputs.count);
    generate(program, dtype, &mut inputs, MapTarget::Many { base, table, count: ops.len() }, context)?;
    Ok(outputs.into_iter().map(|output| Value::Tensor(output.into_tensor())).collect())
}

/// The destination of a launch.
#[derive(Clone, Copy)]
enum MapTarget {
    One(Address),
    /// `count` maps. The table holds the offsets of each map's output and inputs from the base.
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

    /// Whether every input has the output's layout or is a single element.
    fn is_flat(&self) -> bool {
        self.axes.rank == 0
            || self.axes.rank == 1
                && self.axes.strides[..self.count].iter().all(|strides| strides[0] == 0 || strides[0] == 1)
    }

    /// Whether the strides fit the arguments of a launch.
    fn fits_arguments(&self) -> bool {
        fits_arguments(self.count, self.axes.rank)
    }

    /// Copies every input that is neither a single element nor in the output's layout, so that all
    /// inputs become flat.
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

    /// Copies the inputs into one block, for kernels that cannot take addresses from memory. The
    /// addresses become offsets from the block's beginning, which is returned.
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

    /// Decides how each input is read, and the number of elements per vector.
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

    /// Whether this input is constant along the last axis.
    fn is_same(&self, input: usize) -> bool {
        self.axes.strides[input][0] == 0
    }

    /// Whether vectors of this width are contiguous and aligned in the input.
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

/// Whether the addresses and strides of `inputs` inputs fit the arguments of a launch.
fn fits_arguments(inputs: usize, rank: usize) -> bool {
    inputs * (rank + 1) * 8 + OTHER_ARGUMENT_BYTES <= ARGUMENT_BYTES_MAX
}

fn generate(
    program: &Program,
    output: DType,
    inputs: &mut MapInputs,
    target: MapTarget,
    context: &mut Context,
) -> Result<()> {
    let (reach, width) = inputs.classify(output, program.nodes().len());
    let elements = inputs.axes.elements();
    let (mut arguments, maps) = match target {
        MapTarget::One(target) => {
            let addresses = &inputs.addresses[..inputs.count];
            (addresses.iter().fold(Arguments::new().address(target), |all, one| all.address(*one)), None)
        }
        MapTarget::Many { base, table, count } => (Arguments::new().address(base).address(table), Some(count)),
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
    context.with_state(|maps: &mut Maps, context| {
        let generated = maps.find(program, &form)?;
        let arguments = pass_constants(arguments, &generated.constants, context)?;
        context.launch(&generated.kernel, launch, &mut arguments.u64(elements as u64))
    })
}

/// Passes the kernel's constants: as a structure, or, if there are many, in device memory.
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
    let (code, slots, count) = context.with_state(|maps: &mut Maps, context| -> Result<_> {
        let code = maps.code(program, &inputs.dtypes[..inputs.count], context)?;
        Ok((code.block.block.0, code.slots, code.words.elements() / INSTRUCTION_WORDS))
    })?;
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

/// Cache of generated kernels and instructions, keyed by everything that determines them.
#[derive(Default)]
struct Maps {
    generated: HashMap<u64, Vec<GeneratedMap>>,
    generated_count: usize,
    codes: HashMap<u64, Vec<Code>>,
    code_count: usize,
}

/// An expression's kernel, shared by expressions that differ only in their constants.
struct GeneratedMap {
    program: Program,
    dtypes: Box<[DType]>,
    accesses: Box<[Access]>,
    reach: Reach,
    width: u32,
    together: Together,
    kernel: Kernel,
    constants: Box<[u64]>,
}

/// An interpreted program on the device.
struct Code {
    program: Program,
    dtypes: Box<[DType]>,
    words: Tensor,
    slots: u32,
    block: LeasedBlock,
}

impl DeviceState for Maps {}

impl Maps {
    /// The expression's kernel; generated on first use. Later uses cost one table lookup.
    fn find(&mut self, program: &Program, form: &MapForm<'_>) -> Result<&GeneratedMap> {
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
                known.push(GeneratedMap {
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

    /// Uploads a program and returns its index among the programs of the same hash.
    fn assemble(&mut self, program: &Program, dtypes: &[DType], context: &mut Context) -> Result<usize> {
        if self.code_count >= CODES_MAX && !context.is_recording {
            // Kernels in flight on any lane may still read the programs, and recordings name them.
            context.drop_recordings();
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
