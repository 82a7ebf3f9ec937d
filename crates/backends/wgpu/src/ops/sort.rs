//! Sort, ArgSort and SortPairs: short lines in workgroup memory, long ones by radix.
//!
//! Positions are sorted with the keys, and elements then picked by them, bit by bit. Only long lines of four-byte elements
//! whose equals may change places are sorted without positions and made of their keys again.

use panoply_core::op::compute::{ArgSort, ScanKind, Sort, SortPairs};
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{Kernel, RadixKernel, RadixStep, SORT_BLOCK, SORT_LINE_MAX, SortKernel};

use super::gather::{Picked, take};
use super::{Extents, empty, no_f64, scan, slab_fits};
use crate::adapter::Profile;
use crate::context::{Context, groups_for};
use crate::operand::Operand;
use crate::pieces::{beyond, slabs_within};

/// Copies begin at multiples of this.
const WORD_BYTES: usize = 4;
/// Workgroup memory that the radix sort takes, in bytes.
const RADIX_WORKGROUP_BYTES: u32 = 17_408;

pub(crate) fn support(profile: &Profile, dtype: DType, len: usize) -> Result<(), String> {
    if len > SORT_LINE_MAX && profile.workgroup_bytes_max < RADIX_WORKGROUP_BYTES {
        let (got, most) = (profile.workgroup_bytes_max, SORT_LINE_MAX);
        return Err(format!("lines of {len}; with {got} bytes of workgroup memory at most {most} are sorted"));
    }
    no_f64(dtype, "sort")
}

/// Whether lines of these types can be sorted together, or some at a time, or why not.
pub(crate) fn cut_support(profile: &Profile, shape: &Shape, axis: usize, dtypes: &[DType]) -> Result<(), String> {
    let extents = Extents::new(shape, axis);
    let widest =
        dtypes.iter().copied().chain([DType::U32]).max_by_key(|dtype| dtype.size_bytes()).unwrap_or(DType::U32);
    slab_fits(profile, extents, widest)?;
    let (slab, limit) = (extents.axis * extents.inner, profile.binding_bytes_max);
    let most = slabs_within(profile, slab, widest.size_bytes());
    let small = dtypes.iter().any(|dtype| !(slab * dtype.size_bytes()).is_multiple_of(WORD_BYTES));
    if small && most < WORD_BYTES && (extents.outer * slab * widest.size_bytes()) as u64 > limit {
        return Err(format!("lines of small elements, of which {limit} bytes hold fewer than {WORD_BYTES}"));
    }
    Ok(())
}

pub(crate) fn run(op: &Sort, context: &mut Context) -> Result<Tensor> {
    let (dtype, shape) = (op.input.dtype(), op.output_shape());
    if shape.elements() == 0 {
        return empty(dtype, shape);
    }
    let input = context.input(&op.input)?;
    let extents = Extents::new(&shape, op.axis);
    let [output] = in_parts([&input], [dtype], extents, context, &mut |[input], extents, context| {
        if extents.axis > SORT_LINE_MAX && dtype.size_bytes() == 4 && !op.is_stable {
            let (keys, _) = radix(input, extents, op.falls, false, context)?;
            let output = context.output(dtype, input.shape)?;
            relay(SortKernel::Values { dtype, falls: op.falls }, &output, &keys, extents, context)?;
            return Ok([output]);
        }
        let positions = positions(input, extents, op.falls, context)?;
        Ok([pick(input, &positions, extents, context)?])
    })?;
    context.finish(output.reshaped(shape))
}

pub(crate) fn run_arg(op: &ArgSort, context: &mut Context) -> Result<Tensor> {
    let shape = op.output_shape();
    if shape.elements() == 0 {
        return empty(DType::U32, shape);
    }
    let input = context.input(&op.input)?;
    let extents = Extents::new(&shape, op.axis);
    let [output] = in_parts([&input], [DType::U32], extents, context, &mut |[input], extents, context| {
        Ok([positions(input, extents, op.falls, context)?])
    })?;
    context.finish(output.reshaped(shape))
}

pub(crate) fn run_pairs(op: &SortPairs, context: &mut Context) -> Result<(Tensor, Tensor)> {
    let shape = *op.keys.shape();
    if shape.elements() == 0 {
        return Ok((empty(op.keys.dtype(), shape)?, empty(op.values.dtype(), shape)?));
    }
    let (keys, values) = (context.input(&op.keys)?, context.input(&op.values)?);
    let extents = Extents::new(&shape, op.axis);
    let (dtypes, both) = ([keys.dtype, values.dtype], [&keys, &values]);
    let [keys, values] = in_parts(both, dtypes, extents, context, &mut |[keys, values], extents, context| {
        let positions = positions(keys, extents, op.falls, context)?;
        Ok([pick(keys, &positions, extents, context)?, pick(values, &positions, extents, context)?])
    })?;
    Ok((context.finish(keys.reshaped(shape))?, context.finish(values.reshaped(shape))?))
}

/// Sorts some lines.
type SortSome<'a, const I: usize, const O: usize> =
    &'a mut dyn FnMut([&Operand; I], Extents, &mut Context) -> Result<[Operand; O]>;

/// Sorts all lines at once where they are within reach, with their keys and positions of four bytes; else some at a time.
fn in_parts<const I: usize, const O: usize>(
    inputs: [&Operand; I],
    outputs: [DType; O],
    extents: Extents,
    context: &mut Context,
    sort: SortSome<'_, I, O>,
) -> Result<[Operand; O]> {
    let slab = extents.axis * extents.inner;
    let widest = inputs.iter().map(|input| input.dtype.size_bytes()).chain([4]).max().unwrap_or(4);
    let most = slabs_within(&context.profile, slab, widest);
    let limit = context.profile.binding_bytes_max;
    if (extents.outer * slab * widest) as u64 <= limit && inputs.iter().all(|input| input.is_within(limit)) {
        return sort(inputs, extents, context);
    }
    // Parts of small elements are copied to where words begin.
    let count = if most < WORD_BYTES { most } else { most / WORD_BYTES * WORD_BYTES };
    let between_words = |dtype: &DType| !(count * slab * dtype.size_bytes()).is_multiple_of(WORD_BYTES);
    if most == 0 || (count < extents.outer && outputs.iter().any(between_words)) {
        return Err(beyond("lines to sort", limit));
    }
    let whole = Shape::new([extents.outer * slab])?;
    let made = outputs.map(|dtype| context.output(dtype, whole));
    let made: Vec<Operand> = made.into_iter().collect::<Result<_>>()?;
    for first in (0..extents.outer).step_by(count) {
        let outer = count.min(extents.outer - first);
        let seen = inputs.map(|input| input.span(first * slab, outer * slab).map(|seen| seen.windowed()));
        let seen: Vec<Operand> = seen.into_iter().collect::<Result<_>>()?;
        let sorted = sort(std::array::from_fn(|number| &seen[number]), Extents { outer, ..extents }, context)?;
        for (sorted, made) in sorted.iter().zip(&made) {
            context.copy(sorted, made, (first * slab * made.dtype.size_bytes()) as u64);
        }
    }
    Ok(std::array::from_fn(|number| made[number].clone()))
}

/// For every place the position, on its line, of the element that belongs there, in the tensor's layout.
pub(super) fn positions(input: &Operand, extents: Extents, falls: bool, context: &mut Context) -> Result<Operand> {
    let output = context.output(DType::U32, input.shape)?;
    if extents.axis <= SORT_LINE_MAX {
        let size = extents.axis.next_power_of_two().max(64) as u16;
        let kernel = SortKernel::Line { dtype: input.dtype, falls, size };
        let [_, axis, inner] = extents.params();
        let lines = extents.lines();
        let params = [lines as u32, axis, inner, input.start()];
        context.run(&Kernel::Sort(kernel), &[&output], &[input], &params, lines as u64)?;
        return Ok(output);
    }
    let (_, sorted) = radix(input, extents, falls, true, context)?;
    if extents.inner == 1 {
        return Ok(sorted.reshaped(input.shape));
    }
    relay(SortKernel::Positions, &output, &sorted, extents, context)?;
    Ok(output)
}

/// The elements at these positions of their lines.
pub(super) fn pick(input: &Operand, positions: &Operand, extents: Extents, context: &mut Context) -> Result<Operand> {
    let count = positions.elements() / extents.lines();
    let picked = Picked { len: extents.axis, count, inner: extents.inner, elementwise: true, signed: false };
    Ok(take(input, positions, positions.shape, picked, context)?.0)
}

/// Keys in order, line by line, and their positions where they are wanted (else the keys again).
fn radix(
    input: &Operand,
    extents: Extents,
    falls: bool,
    with_positions: bool,
    context: &mut Context,
) -> Result<(Operand, Operand)> {
    let (lines, axis) = (extents.lines(), extents.axis);
    let [_, axis_word, inner] = extents.params();
    let mut keys = context.words(lines * axis)?;
    let mut other_keys = context.words(lines * axis)?;
    let kernel = Kernel::Sort(SortKernel::Keys { dtype: input.dtype, falls, exact: !with_positions });
    let params = [lines as u32, axis_word, inner, input.start()];
    context.run(&kernel, &[&keys], &[input], &params, groups_for(lines * axis))?;
    let size = if with_positions { lines * axis } else { 1 };
    let (mut positions, mut other_positions) = (context.words(size)?, context.words(size)?);
    let passes = Passes::of(context);
    let blocks = axis.div_ceil(passes.block);
    let counts = context.words(lines * passes.digits() * blocks)?;
    let starts = context.words(lines * passes.digits() * blocks)?;
    let counted = Extents { outer: lines, axis: passes.digits() * blocks, inner: 1 };
    let groups = (lines * blocks) as u64;
    for shift in (0..SortKernel::key_bits(input.dtype)).step_by(passes.bits) {
        let params = [lines as u32, axis_word, blocks as u32, shift];
        context.run(&passes.count(), &[&counts], &[&keys], &params, groups)?;
        scan::lines(&counts, counted, ScanKind::Sum, false, true, &starts, context)?;
        let first = shift == 0;
        let kernel = passes.scatter(with_positions, first);
        if with_positions {
            let mut reads = vec![&keys, &starts];
            if !first {
                reads.push(&positions);
            }
            context.run(&kernel, &[&other_keys, &other_positions], &reads, &params, groups)?;
        } else {
            context.run(&kernel, &[&other_keys], &[&keys, &starts], &params, groups)?;
        }
        std::mem::swap(&mut keys, &mut other_keys);
        std::mem::swap(&mut positions, &mut other_positions);
    }
    Ok((keys, positions))
}

/// How a radix sort goes: by eight bits at a time where there are subgroups, else by four.
struct Passes {
    bits: usize,
    block: usize,
    lanes: Option<u8>,
}

impl Passes {
    fn of(context: &Context) -> Passes {
        let profile = &context.profile;
        let suits = |lanes: &u8| {
            RadixKernel::takes(*lanes) && RadixKernel::workgroup_bytes(*lanes) <= profile.workgroup_bytes_max
        };
        match profile.subgroup_lanes.filter(suits) {
            Some(lanes) => Passes { bits: 8, block: RadixKernel::block(lanes), lanes: Some(lanes) },
            None => Passes { bits: 4, block: SORT_BLOCK, lanes: None },
        }
    }

    fn digits(&self) -> usize {
        1 << self.bits
    }

    fn count(&self) -> Kernel {
        match self.lanes {
            Some(lanes) => Kernel::Radix(RadixKernel { lanes, step: RadixStep::Count }),
            None => Kernel::Sort(SortKernel::Count),
        }
    }

    fn scatter(&self, positions: bool, first: bool) -> Kernel {
        match self.lanes {
            Some(lanes) => Kernel::Radix(RadixKernel { lanes, step: RadixStep::Scatter { positions, first } }),
            None => Kernel::Sort(SortKernel::Scatter { positions, first }),
        }
    }
}

/// From line by line to the tensor's layout.
fn relay(
    kernel: SortKernel,
    output: &Operand,
    source: &Operand,
    extents: Extents,
    context: &mut Context,
) -> Result<()> {
    let [_, axis, inner] = extents.params();
    let params = [extents.lines() as u32, axis, inner];
    let groups = groups_for(extents.lines() * extents.axis);
    context.run(&Kernel::Sort(kernel), &[output], &[source], &params, groups)
}
