//! Sort, ArgSort and SortPairs: short lines in workgroup memory, long ones by radix sort.
//!
//! Positions are sorted with the keys, and the elements are then picked by position, so that their
//! bits are unchanged. Only long lines of four-byte elements in an unstable sort are sorted without
//! positions; their elements are computed back from the keys.

use panoply_core::op::compute::{ArgSort, ScanKind, Sort, SortPairs};
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{Kernel, RadixKernel, RadixStep, SORT_BLOCK, SORT_LINE_MAX, SortKernel};

use super::gather::{GatherSizes, take};
use super::{Extents, empty, is_within, long_sort, no_f64, scan};
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::{Operand, is_seen};
use crate::pieces::{beyond, slabs_within};
use crate::profile::Profile;
use crate::windows::put;

/// Size of a key, and of a position.
pub(super) const KEY_BYTES: usize = 4;
/// Workgroup memory that the radix sort needs, in bytes.
const RADIX_WORKGROUP_BYTES: u32 = 17_408;

pub(crate) fn support(profile: &Profile, dtype: DType, len: usize) -> Result<(), String> {
    if len > SORT_LINE_MAX && profile.workgroup_bytes_max < RADIX_WORKGROUP_BYTES {
        let (got, most) = (profile.workgroup_bytes_max, SORT_LINE_MAX);
        return Err(format!("lines of {len}; with {got} bytes of workgroup memory at most {most} are sorted"));
    }
    no_f64(dtype, "sort")
}

/// Contiguous slabs of lines, which are computed together if they are within reach, otherwise some
/// at a time.
#[derive(Clone, Copy)]
pub(super) struct SlabParts {
    pub(super) outer: usize,
    /// The read part of a slab: number of elements, and the bytes that each of them takes on the
    /// way.
    pub(super) read: (usize, usize),
    /// The written part of a slab, in the same form.
    pub(super) made: (usize, usize),
    /// Whether a slab is a single line, which may be longer than a kernel sees.
    pub(super) is_line: bool,
}

impl SlabParts {
    /// Slabs of lines to sort: keys and positions have four bytes.
    fn sorted(extents: Extents, dtypes: &[DType]) -> SlabParts {
        let widest = dtypes.iter().map(|dtype| dtype.size_bytes()).fold(KEY_BYTES, usize::max);
        let slab = (extents.axis * extents.inner, widest);
        SlabParts { outer: extents.outer, read: slab, made: slab, is_line: extents.inner == 1 }
    }

    /// Number of slabs that are within a kernel's reach at once, at any offset.
    fn most(&self, profile: &Profile) -> usize {
        let within = |(slab, element_bytes)| slabs_within(profile, slab, element_bytes);
        within(self.read).min(within(self.made))
    }

    /// Whether all slabs are within reach, if input and output have blocks of their own.
    fn are_seen(&self, profile: &Profile) -> bool {
        let seen = |(slab, bytes): (usize, usize)| is_seen(self.outer * slab, bytes, profile.binding_bytes_max);
        seen(self.read) && seen(self.made)
    }

    /// Checks that the lines of these tensors are within reach, all at once or some at a time.
    pub(super) fn support(&self, profile: &Profile, tensors: &[&Tensor]) -> Result<(), String> {
        let whole = self.are_seen(profile) && tensors.iter().all(|tensor| is_within(profile, tensor));
        let counted = self.is_line && u32::try_from(self.read.0).is_ok();
        if whole || self.most(profile) > 0 || counted {
            return Ok(());
        }
        let (bytes, limit) = ((self.read.0 * self.read.1).max(self.made.0 * self.made.1), profile.binding_bytes_max);
        Err(format!("lines of {bytes} bytes that belong together; the adapter binds {limit}"))
    }
}

/// Checks that lines along an axis of these tensors can be sorted by the first of them.
pub(crate) fn lines_support(profile: &Profile, tensors: &[&Tensor], axis: usize) -> Result<(), String> {
    let keys = tensors[0];
    support(profile, keys.dtype(), keys.shape()[axis])?;
    let dtypes: Vec<DType> = tensors.iter().map(|tensor| tensor.dtype()).collect();
    SlabParts::sorted(Extents::new(keys.shape(), axis), &dtypes).support(profile, tensors)
}

pub(crate) fn run<D: Driver>(op: &Sort, context: &mut Context<D>) -> Result<Tensor> {
    let (dtype, shape) = (op.input.dtype(), op.output_shape());
    if shape.elements() == 0 {
        return empty(dtype, shape);
    }
    let input = context.input(&op.input)?;
    let extents = Extents::new(&shape, op.axis);
    let parts = SlabParts::sorted(extents, &[dtype]);
    let [output] = in_parts([&input], [dtype], parts, context, &mut |[input], outer, context| {
        let extents = Extents { outer, ..extents };
        let by_keys = extents.axis > SORT_LINE_MAX && dtype.size_bytes() == 4 && !op.is_stable;
        if by_keys && !is_long(input, extents, context) {
            let (keys, _) = radix(input, extents, op.descending, false, context)?;
            let output = context.output(dtype, input.shape)?;
            relay(SortKernel::Values { dtype, descending: op.descending }, &output, &keys, extents, context)?;
            return Ok([output]);
        }
        let positions = positions(input, extents, op.descending, context)?;
        Ok([pick(input, &positions, extents, context)?])
    })?;
    context.finish(output.reshaped(shape))
}

pub(crate) fn run_arg<D: Driver>(op: &ArgSort, context: &mut Context<D>) -> Result<Tensor> {
    let shape = op.output_shape();
    if shape.elements() == 0 {
        return empty(DType::U32, shape);
    }
    let input = context.input(&op.input)?;
    let extents = Extents::new(&shape, op.axis);
    let parts = SlabParts::sorted(extents, &[op.input.dtype()]);
    let [output] = in_parts([&input], [DType::U32], parts, context, &mut |[input], outer, context| {
        let extents = Extents { outer, ..extents };
        Ok([positions(input, extents, op.descending, context)?])
    })?;
    context.finish(output.reshaped(shape))
}

pub(crate) fn run_pairs<D: Driver>(op: &SortPairs, context: &mut Context<D>) -> Result<(Tensor, Tensor)> {
    let shape = *op.keys.shape();
    if shape.elements() == 0 {
        return Ok((empty(op.keys.dtype(), shape)?, empty(op.values.dtype(), shape)?));
    }
    let (keys, values) = (context.input(&op.keys)?, context.input(&op.values)?);
    let extents = Extents::new(&shape, op.axis);
    let (dtypes, both) = ([keys.dtype, values.dtype], [&keys, &values]);
    let parts = SlabParts::sorted(extents, &dtypes);
    let [keys, values] = in_parts(both, dtypes, parts, context, &mut |[keys, values], outer, context| {
        let extents = Extents { outer, ..extents };
        let positions = positions(keys, extents, op.descending, context)?;
        Ok([pick(keys, &positions, extents, context)?, pick(values, &positions, extents, context)?])
    })?;
    Ok((context.finish(keys.reshaped(shape))?, context.finish(values.reshaped(shape))?))
}

/// Computes a number of slabs of lines.
pub(super) type WorkOnSome<'a, D, const I: usize, const O: usize> =
    &'a mut dyn FnMut([&Operand<D>; I], usize, &mut Context<D>) -> Result<[Operand<D>; O]>;

/// Computes all lines at once if they are within reach, otherwise some at a time; a line beyond
/// reach is computed by itself. The outputs have no shape yet.
pub(super) fn in_parts<D: Driver, const I: usize, const O: usize>(
    inputs: [&Operand<D>; I],
    outputs: [DType; O],
    parts: SlabParts,
    context: &mut Context<D>,
    work: WorkOnSome<'_, D, I, O>,
) -> Result<[Operand<D>; O]> {
    let limit = context.profile.binding_bytes_max;
    if parts.are_seen(&context.profile) && inputs.iter().all(|input| input.is_within(limit)) {
        return work(inputs, parts.outer, context);
    }
    let SlabParts { outer, read: (read, _), made: (made, _), is_line } = parts;
    let most = match parts.most(&context.profile) {
        0 if is_line => 1,
        0 => return Err(beyond("lines to sort", limit)),
        most => most,
    };
    let whole = Shape::new([outer * made])?;
    let all = outputs.map(|dtype| context.output(dtype, whole));
    let all: Vec<Operand<D>> = all.into_iter().collect::<Result<_>>()?;
    for first in (0..outer).step_by(most) {
        let some = most.min(outer - first);
        let seen = inputs.map(|input| input.span(first * read, some * read).map(|seen| seen.windowed()));
        let seen: Vec<Operand<D>> = seen.into_iter().collect::<Result<_>>()?;
        let pieces = work(std::array::from_fn(|number| &seen[number]), some, context)?;
        for (piece, all) in pieces.iter().zip(&all) {
            put(piece, &all.span(first * made, some * made)?, context)?;
        }
    }
    Ok(std::array::from_fn(|number| all[number].clone()))
}

/// For every rank, the position on its line of the element that belongs there, in the tensor's
/// layout.
pub(super) fn positions<D: Driver>(
    input: &Operand<D>,
    extents: Extents,
    descending: bool,
    context: &mut Context<D>,
) -> Result<Operand<D>> {
    if is_long(input, extents, context) {
        return long_sort::positions(input, descending, context);
    }
    let output = context.output(DType::U32, input.shape)?;
    if extents.axis <= SORT_LINE_MAX {
        let size = extents.axis.next_power_of_two().max(64) as u16;
        let kernel = SortKernel::Line { dtype: input.dtype, descending, size };
        let [_, axis, inner] = extents.params();
        let lines = extents.lines();
        let params = [lines as u32, axis, inner, input.start()];
        context.run(&Kernel::Sort(kernel), &[&output], &[input], &params, lines as u64)?;
        return Ok(output);
    }
    let (_, sorted) = radix(input, extents, descending, true, context)?;
    if extents.inner == 1 {
        return Ok(sorted.reshaped(input.shape));
    }
    relay(SortKernel::Positions, &output, &sorted, extents, context)?;
    Ok(output)
}

/// Whether the input or its keys are beyond a kernel's reach; the input is a single line then.
fn is_long<D: Driver>(input: &Operand<D>, extents: Extents, context: &Context<D>) -> bool {
    let limit = context.profile.binding_bytes_max;
    !input.is_within(limit) || !is_seen(extents.lines() * extents.axis, KEY_BYTES, limit)
}

/// The elements at these positions of their lines.
pub(super) fn pick<D: Driver>(
    input: &Operand<D>,
    positions: &Operand<D>,
    extents: Extents,
    context: &mut Context<D>,
) -> Result<Operand<D>> {
    let count = positions.elements() / extents.lines();
    let picked = GatherSizes { len: extents.axis, count, inner: extents.inner, elementwise: true, signed: false };
    Ok(take(input, positions, positions.shape, picked, context)?.0)
}

/// The sorted keys, line by line, and their positions if `with_positions` is set (otherwise one
/// unused word).
pub(super) fn radix<D: Driver>(
    input: &Operand<D>,
    extents: Extents,
    descending: bool,
    with_positions: bool,
    context: &mut Context<D>,
) -> Result<(Operand<D>, Operand<D>)> {
    let (lines, axis) = (extents.lines(), extents.axis);
    let [_, axis_word, inner] = extents.params();
    let mut keys = context.words(lines * axis)?;
    let mut other_keys = context.words(lines * axis)?;
    let kernel = Kernel::Sort(SortKernel::Keys { dtype: input.dtype, descending, exact: !with_positions });
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

/// The passes of a radix sort: eight bits at a time with subgroups, four without.
struct Passes {
    bits: usize,
    block: usize,
    lanes: Option<u8>,
}

impl Passes {
    fn of<D: Driver>(context: &Context<D>) -> Passes {
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

/// Copies data from line by line to the tensor's layout.
fn relay<D: Driver>(
    kernel: SortKernel,
    output: &Operand<D>,
    source: &Operand<D>,
    extents: Extents,
    context: &mut Context<D>,
) -> Result<()> {
    let [_, axis, inner] = extents.params();
    let params = [extents.lines() as u32, axis, inner];
    let groups = groups_for(extents.lines() * extents.axis);
    context.run(&Kernel::Sort(kernel), &[output], &[source], &params, groups)
}
