//! Convolutions of f16 on a device's matrix units. The windows of the images are written out as
//! columns, and the weights are multiplied with them. This moves more memory than a kernel that
//! loads windows itself, and is several times as fast: matrix units load their operands from plain
//! memory.

use panoply_core::op::compute::{Activation, ConvShape};
use panoply_core::shape::Strides;
use panoply_core::{DType, Result, Shape};
use panoply_kernels::wgsl::{Accumulate, Addend, COOP_STEP, COOP_TILE, Kernel};

use super::large_matmul::multiply_all;
use super::matmul::Product;
use super::matrix_units;
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::{ELEMENTS_MAX, Operand};

/// The most bytes of columns.
const COLUMNS_BYTES_MAX: u64 = 1 << 30;
/// Number of tiles that keep a device busy.
const TILES_WANTED: usize = 96;

/// Records a convolution of contiguous operands and returns its output; `None` if it does not suit
/// matrix units.
pub(super) fn convolve<D: Driver>(
    shape: &ConvShape,
    [images, weights]: [&Operand<D>; 2],
    bias: Option<&Operand<D>>,
    activation: Activation,
    context: &mut Context<D>,
) -> Result<Option<Operand<D>>> {
    if !suits(shape, [images, weights], bias, context) {
        return Ok(None);
    }
    let [height, width] = shape.output();
    let (batch, m, n, k) = (shape.batch, shape.filters, height * width, shape.channels * shape.taps());
    let columns = if is_columns(shape) { images.clone() } else { columns(shape, images, context)? };
    let columns = columns.reshaped(Shape::new([batch, k, n])?);
    let (all, strides) = (Shape::new([batch, m, k])?, Strides::new([0, k as isize, 1])?);
    let weights = Operand { shape: all, strides, ..weights.clone() };
    let column = Shape::new([m, 1])?;
    let bias = bias.map(|bias| bias.reshaped(column));
    let product = Product {
        batch: Shape::new([batch])?,
        bias_kind: if bias.is_some() { Addend::PerRow } else { Addend::None },
        activation,
        addend_dtype: DType::F16,
        ..Product::plain([m, n, k], Accumulate::Product)
    };
    let (operands, shape) = ([&weights, &columns], Shape::new([batch, m, n])?);
    let made = match matrix_units::multiply(&product, operands, [None, bias.as_ref()], shape, context)? {
        Some(made) => made,
        None => {
            // The driver does not compile the kernel after all.
            let carriers = context.carriers(DType::F16, shape)?;
            multiply_all(&product, operands, [None, bias.as_ref()], &carriers, context)?;
            context.narrow(carriers, DType::F16)?
        }
    };
    Ok(Some(made.reshaped(Shape::new([batch, m, height, width])?)))
}

fn suits<D: Driver>(
    shape: &ConvShape,
    [images, weights]: [&Operand<D>; 2],
    bias: Option<&Operand<D>>,
    context: &Context<D>,
) -> bool {
    let [height, width] = shape.output();
    let (places, inner) = (height * width, shape.channels * shape.taps());
    let elements = shape.batch * places * inner.max(shape.filters);
    let limit = context.profile.binding_bytes_max;
    let near = [images, weights].into_iter().chain(bias).all(|operand| operand.is_within(limit));
    let tiles = shape.batch * shape.filters.div_ceil(COOP_TILE) * places.div_ceil(COOP_TILE);
    let stepped = [places, inner, weights.offset].iter().all(|size| size.is_multiple_of(COOP_STEP));
    let aligned = !is_columns(shape) || images.offset.is_multiple_of(COOP_STEP);
    context.profile.matrix_units
        && images.dtype == DType::F16
        && shape.groups == 1
        && inner > 0
        && (stepped && aligned && near)
        && tiles >= TILES_WANTED
        && elements <= ELEMENTS_MAX
        && (elements * DType::F32.size_bytes()) as u64 <= limit
        && (elements * DType::F16.size_bytes()) as u64 <= COLUMNS_BYTES_MAX
}

/// Whether the images are their own columns: windows of one pixel, without gaps or padding.
fn is_columns(shape: &ConvShape) -> bool {
    shape.taps() == 1 && shape.stride == [1; 2] && shape.padding == [0; 4]
}

/// The windows of the images: for each image, channel and tap, a row with all positions of the
/// output.
fn columns<D: Driver>(shape: &ConvShape, images: &Operand<D>, context: &mut Context<D>) -> Result<Operand<D>> {
    let [height, width] = shape.output();
    let lines = shape.channels * shape.taps();
    let output = context.output(DType::F16, Shape::new([shape.batch, lines, height * width])?)?;
    let eights = output.elements() / COOP_STEP;
    let params = [
        eights,
        height * width,
        width,
        lines,
        shape.channels,
        shape.taps(),
        shape.kernel[1],
        shape.input[0],
        shape.input[1],
        shape.stride[0],
        shape.stride[1],
        shape.dilation[0],
        shape.dilation[1],
        shape.padding[0],
        shape.padding[1],
        images.offset,
    ];
    let params = params.map(|size| size as u32);
    context.run(&Kernel::Columns, &[&output], &[images], &params, groups_for(eights))?;
    Ok(output)
}
