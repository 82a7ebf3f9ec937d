//! Scan: short lines by one workgroup, many lines by one invocation each, long lines in three
//! passes.
//!
//! (A single pass in which a chunk waits for the chunk before it would need a guarantee that
//! workgroups make progress, which WebGPU does not give.)

use panoply_core::op::compute::{Scan, ScanKind};
use panoply_core::{Result, Tensor};
use panoply_kernels::wgsl::{Kernel, ScanForm, ScanKernel, carrier_dtype};

use super::{Extents, empty, no_f64, slabs_fit};
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::Operand;
use crate::pieces::{beyond, in_slabs, slabs_within};
use crate::profile::Profile;

/// The fewest elements of a chunk of a long line; all chunks are multiples of it.
const CHUNK: usize = 4096;
/// More chunks make the scan of their totals longer, and the device no busier.
const CHUNKS_WANTED: usize = 4096;
/// Number of lines from which one invocation per line keeps a device busy, if neighbours read
/// neighbouring memory.
const SERIAL_LINES_MIN: usize = 4096;
/// Number of workgroups that keep a device busy: with this many lines none is cut.
const GROUPS_WANTED: usize = 256;

pub(crate) fn run<D: Driver>(op: &Scan, context: &mut Context<D>) -> Result<Tensor> {
    let (dtype, shape) = (op.input.dtype(), op.output_shape());
    if shape.elements() == 0 {
        return empty(dtype, shape);
    }
    let input = context.input(&op.input)?;
    let extents = Extents::new(&shape, op.axis);
    let carriers = context.carriers(dtype, shape)?;
    if extents.inner == 1 && slabs_within(&context.profile, extents.axis, carriers.dtype.size_bytes()) == 0 {
        for line in 0..extents.outer {
            let first = line * extents.axis;
            let (input, output) = (input.span(first, extents.axis)?, carriers.span(first, extents.axis)?);
            long_line(&input, op, &output, context)?;
        }
        return context.finish_as(carriers, dtype);
    }
    in_slabs(&input, &carriers, extents.outer, context, &mut |input, output, slabs, context| {
        lines(input, Extents { outer: slabs.len(), ..extents }, op.kind, op.reversed, op.excludes_own, output, context)
    })?;
    context.finish_as(carriers, dtype)
}

/// Checks that lines are within reach, or can be cut.
pub(crate) fn support(profile: &Profile, op: &Scan) -> Result<(), String> {
    no_f64(op.input.dtype(), "scan")?;
    let extents = Extents::new(op.input.shape(), op.axis);
    if extents.inner == 1 {
        return Ok(());
    }
    let output = (op.input.elements(), carrier_dtype(op.input.dtype()));
    slabs_fit(profile, extents.outer, &[&op.input], output)
}

/// Scans a line that is longer than a kernel sees: chunk by chunk as in [`lines`], some chunks at a
/// time.
fn long_line<D: Driver>(input: &Operand<D>, op: &Scan, output: &Operand<D>, context: &mut Context<D>) -> Result<()> {
    let axis = input.elements();
    let chunk = axis.div_ceil(CHUNKS_WANTED).next_multiple_of(CHUNK);
    let chunks = axis.div_ceil(chunk);
    let at_once = slabs_within(&context.profile, chunk, output.dtype.size_bytes());
    if at_once == 0 {
        return Err(beyond("chunks of a line", context.profile.binding_bytes_max));
    }
    let four = |number: usize| number.is_multiple_of(4);
    let whole = four(axis) && four(input.offset) && four(output.offset);
    let vector = !op.reversed && input.dtype.size_bytes() == 4 && whole;
    let summed = matches!(op.kind, ScanKind::Sum | ScanKind::Product);
    let lanes = context.profile.subgroup_lanes.filter(|_| summed);
    let kernel = ScanKernel { dtype: input.dtype, kind: op.kind, form: ScanForm::Chunks, carried: true, vector, lanes };
    let totals = context.words(chunks)?;
    let carries = context.words(chunks)?;
    let some = |kernel: ScanKernel, context: &mut Context<D>| -> Result<()> {
        for first in (0..chunks).step_by(at_once) {
            let last = chunks.min(first + at_once);
            let (from, to) = (first * chunk, axis.min(last * chunk));
            // The offset of the first element in memory: the part is counted from the line's
            // beginning, or from its end if reversed.
            let start = if op.reversed { axis - to } else { from };
            let (seen, place) = (input.span(start, to - from)?.windowed(), output.span(start, to - from)?.windowed());
            let offset = |operand: &Operand<D>| operand.start().wrapping_sub(start as u32);
            let mut params = [1, axis, 1, chunks, chunk].map(|size| size as u32).to_vec();
            params.extend([offset(&seen), u32::from(op.reversed), u32::from(op.excludes_own)]);
            params.extend([first as u32, last as u32, offset(&place)]);
            let groups = (last - first) as u64;
            match kernel.form {
                ScanForm::Total => context.run(&Kernel::Scan(kernel), &[&totals], &[&seen], &params, groups)?,
                _ => context.run(&Kernel::Scan(kernel), &[&place], &[&seen, &carries], &params, groups)?,
            }
        }
        Ok(())
    };
    some(ScanKernel { form: ScanForm::Total, carried: false, lanes: None, ..kernel }, context)?;
    carry(&kernel, [&totals, &carries], 1, chunks, context)?;
    some(kernel, context)
}

/// From the totals of chunks to the value before each chunk.
fn carry<D: Driver>(
    kernel: &ScanKernel,
    [totals, carries]: [&Operand<D>; 2],
    lines: usize,
    chunks: usize,
    context: &mut Context<D>,
) -> Result<()> {
    let kernel = ScanKernel { form: ScanForm::Carries, carried: false, vector: chunks.is_multiple_of(4), ..*kernel };
    let over = [lines, chunks, 1, 1, chunks, 0, 0, 1, 0, lines, 0].map(|size| size as u32);
    context.run(&Kernel::Scan(kernel), &[carries], &[totals], &over, lines as u64)
}

/// The running values of every line.
pub(super) fn lines<D: Driver>(
    input: &Operand<D>,
    extents: Extents,
    kind: ScanKind,
    reversed: bool,
    exclusive: bool,
    output: &Operand<D>,
    context: &mut Context<D>,
) -> Result<()> {
    let four = |number: usize| number.is_multiple_of(4);
    let vector = !reversed
        && extents.inner == 1
        && input.dtype.size_bytes() == 4
        && four(extents.axis)
        && four(input.offset)
        && four(output.offset);
    let summed = matches!(kind, ScanKind::Sum | ScanKind::Product);
    let lanes = context.profile.subgroup_lanes.filter(|_| summed);
    let kernel = ScanKernel { dtype: input.dtype, kind, form: ScanForm::Chunks, carried: false, vector, lanes };
    let [outer, axis, inner] = extents.params();
    let (reversed, exclusive) = (u32::from(reversed), u32::from(exclusive));
    let params = |chunks: usize, chunk: usize| {
        let all = extents.lines() * chunks;
        let cut = [outer, axis, inner, chunks as u32, chunk as u32, input.start(), reversed, exclusive];
        [&cut[..], &[0, all as u32, 0]].concat()
    };
    let lines = extents.lines();
    if extents.axis <= 16 || (extents.inner >= 32 && lines >= SERIAL_LINES_MIN) {
        let kernel = ScanKernel { form: ScanForm::Serial, vector: false, lanes: None, ..kernel };
        return context.run(&Kernel::Scan(kernel), &[output], &[input], &params(1, extents.axis), groups_for(lines));
    }
    if extents.axis <= 2 * CHUNK || lines >= GROUPS_WANTED {
        return context.run(&Kernel::Scan(kernel), &[output], &[input], &params(1, extents.axis), lines as u64);
    }
    let chunk = (lines * extents.axis).div_ceil(CHUNKS_WANTED).next_multiple_of(CHUNK);
    let chunks = extents.axis.div_ceil(chunk);
    let totals = context.words(lines * chunks)?;
    let carries = context.words(lines * chunks)?;
    let cut = params(chunks, chunk);
    let groups = (lines * chunks) as u64;
    let total = ScanKernel { form: ScanForm::Total, lanes: None, ..kernel };
    context.run(&Kernel::Scan(total), &[&totals], &[input], &cut, groups)?;
    carry(&kernel, [&totals, &carries], lines, chunks, context)?;
    let last = ScanKernel { carried: true, ..kernel };
    context.run(&Kernel::Scan(last), &[output], &[input, &carries], &cut, groups)
}
