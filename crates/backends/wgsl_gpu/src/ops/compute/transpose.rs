//! Transpose: by tiles if the last two axes of a matrix are exchanged, otherwise by strides. Large
//! batches are cut into groups of matrices; views that are beyond reach even so are copied by
//! strides, window by window.

use panoply_core::op::compute::Transpose;
use panoply_core::{Result, Shape, Tensor};
use panoply_kernels::wgsl::{Kernel, TransposeKernel};

use super::empty;
use crate::context::Context;
use crate::driver::Driver;
use crate::operand::{Operand, collapsed};
use crate::pieces::{in_slabs, slabs_within};
use crate::profile::Profile;

/// Side of a tile.
const TILE: usize = 32;

pub(crate) fn run<D: Driver>(op: &Transpose, context: &mut Context<D>) -> Result<Tensor> {
    let shape = op.output_shape()?;
    if shape.elements() == 0 {
        return empty(op.input.dtype(), shape);
    }
    let source = context.operand(&op.view()?)?;
    let output = match matrices(&source) {
        Some(sizes) if source.dtype.size_bytes() == 4 && is_tiled(&source, sizes, &context.profile) => {
            tiled(&source, sizes, context)?
        }
        _ => context.dense(source)?,
    };
    context.finish(output)
}

/// Count, rows and columns, if the operand is a contiguous batch of matrices with rows and columns
/// exchanged.
fn matrices<D: Driver>(view: &Operand<D>) -> Option<[usize; 3]> {
    let (dims, strides) = collapsed(&view.shape, &[&view.strides]);
    let (dims, strides): (Vec<usize>, Vec<usize>) =
        dims.iter().zip(&strides[0]).map(|(dim, stride)| (*dim as usize, *stride as usize)).unzip();
    // A row of the view is a column of the source: steps of `columns` along the last axis, of one
    // along the other.
    match (dims.as_slice(), strides.as_slice()) {
        ([columns, rows], [1, step]) if step == columns => Some([1, *rows, *columns]),
        ([count, columns, rows], [whole, 1, step]) if step == columns && *whole == rows * columns => {
            Some([*count, *rows, *columns])
        }
        _ => None,
    }
}

/// Whether kernels see all matrices, or at least one at a time.
fn is_tiled<D: Driver>(source: &Operand<D>, [_, rows, columns]: [usize; 3], profile: &Profile) -> bool {
    let size = source.dtype.size_bytes();
    let whole =
        source.is_within(profile.binding_bytes_max) && source.elements() * size <= profile.binding_bytes_max as usize;
    whole || slabs_within(profile, rows * columns, size) > 0
}

fn tiled<D: Driver>(
    source: &Operand<D>,
    [count, rows, columns]: [usize; 3],
    context: &mut Context<D>,
) -> Result<Operand<D>> {
    let output = context.output(source.dtype, source.shape)?;
    let (tiles_r, tiles_c) = (rows.div_ceil(TILE), columns.div_ceil(TILE));
    // The matrices in their memory order, one after the other.
    let lying = source.reshaped(Shape::new([source.elements()])?);
    in_slabs(&lying, &output, count, context, &mut |source, output, matrices, context| {
        let params = [matrices.len(), rows, columns, tiles_r, tiles_c, source.offset].map(|size| size as u32);
        let groups = (matrices.len() * tiles_r * tiles_c) as u64;
        context.run(&Kernel::Transpose(TransposeKernel), &[output], &[source], &params, groups)
    })?;
    Ok(output)
}
