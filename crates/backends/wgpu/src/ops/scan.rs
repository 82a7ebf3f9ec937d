//! Scan: short lines by one workgroup, many lines by one invocation each, long lines in three passes.
//!
//! (A single pass in which a chunk waits for the one before it would need workgroups that are sure to make progress, which
//! WebGPU does not promise.)

use panoply_core::op::compute::{Scan, ScanKind};
use panoply_core::{Result, Tensor};
use panoply_kernels::wgsl::{Kernel, ScanForm, ScanKernel};

use super::{Extents, empty};
use crate::context::{Context, groups_for};
use crate::operand::Operand;

/// The fewest elements of a chunk of a long line; all chunks are multiples of it.
const CHUNK: usize = 4096;
/// Chunks beyond this make the scan of their totals longer, and the device no busier.
const CHUNKS_WANTED: usize = 4096;
/// Lines from which on one invocation for each keeps a device busy, where neighbours read neighbouring memory.
const SERIAL_LINES_MIN: usize = 4096;
/// Workgroups that keep a device busy: with so many lines none is cut.
const GROUPS_WANTED: usize = 256;

pub(crate) fn run(op: &Scan, context: &mut Context) -> Result<Tensor> {
    let (dtype, shape) = (op.input.dtype(), op.output_shape());
    if shape.elements() == 0 {
        return empty(dtype, shape);
    }
    let input = context.input(&op.input)?;
    let extents = Extents::new(&shape, op.axis);
    let carriers = context.carriers(dtype, shape)?;
    lines(&input, extents, op.kind, op.reversed, op.excludes_own, &carriers, context)?;
    context.finish_as(carriers, dtype)
}

/// Running values of every line.
pub(super) fn lines(
    input: &Operand,
    extents: Extents,
    kind: ScanKind,
    reversed: bool,
    exclusive: bool,
    output: &Operand,
    context: &mut Context,
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
        [outer, axis, inner, chunks as u32, chunk as u32, input.start(), reversed, exclusive]
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
    let carry = ScanKernel { form: ScanForm::Carries, vector: four(chunks), ..kernel };
    let over = [lines as u32, chunks as u32, 1, 1, chunks as u32, 0, 0, 1];
    context.run(&Kernel::Scan(carry), &[&carries], &[&totals], &over, lines as u64)?;
    let last = ScanKernel { carried: true, ..kernel };
    context.run(&Kernel::Scan(last), &[output], &[input, &carries], &cut, groups)
}
