//! Transpose: by tiles where the last two axes of a matrix change places, else by strides.

use panoply_core::op::compute::Transpose;
use panoply_core::{Result, Shape, Tensor};
use panoply_kernels::wgsl::{Kernel, TransposeKernel};

use super::empty;
use crate::context::Context;
use crate::operand::{Operand, collapsed};

/// Side of a tile.
const TILE: usize = 32;

pub(crate) fn run(op: &Transpose, context: &mut Context) -> Result<Tensor> {
    let shape = op.output_shape()?;
    if shape.elements() == 0 {
        return empty(op.input.dtype(), shape);
    }
    let source = context.operand(&op.view()?)?;
    let output = match matrices(&source) {
        Some(sizes) if source.dtype.size_bytes() == 4 => tiled(&source, sizes, context)?,
        _ => context.dense(source)?,
    };
    context.finish(output)
}

/// Count, rows and columns, where the operand is a contiguous batch of matrices seen with rows and columns exchanged.
fn matrices(view: &Operand) -> Option<[usize; 3]> {
    let (dims, strides) = collapsed(&view.shape, &[&view.strides]);
    let (dims, strides): (Vec<usize>, Vec<usize>) =
        dims.iter().zip(&strides[0]).map(|(dim, stride)| (*dim as usize, *stride as usize)).unzip();
    // The view has a column of the source as its row: steps of `columns` along the last axis, of one along the other.
    match (dims.as_slice(), strides.as_slice()) {
        ([columns, rows], [1, step]) if step == columns => Some([1, *rows, *columns]),
        ([count, columns, rows], [whole, 1, step]) if step == columns && *whole == rows * columns => {
            Some([*count, *rows, *columns])
        }
        _ => None,
    }
}

fn tiled(source: &Operand, [count, rows, columns]: [usize; 3], context: &mut Context) -> Result<Operand> {
    let output = context.output(source.dtype, Shape::new(source.shape.dims())?)?;
    let (tiles_r, tiles_c) = (rows.div_ceil(TILE), columns.div_ceil(TILE));
    let params = [count, rows, columns, tiles_r, tiles_c, source.offset].map(|size| size as u32);
    let groups = (count * tiles_r * tiles_c) as u64;
    context.run(&Kernel::Transpose(TransposeKernel), &[&output], &[source], &params, groups)?;
    Ok(output)
}
