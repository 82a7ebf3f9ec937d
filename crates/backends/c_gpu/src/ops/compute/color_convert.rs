//! ColorConvert: one launch, with one thread per pixel or per square of pixels that share their
//! chroma.

use panoply_core::op::compute::{ColorConvert, ColorFormat, ColorRange};
use panoply_core::{Result, Value};
use panoply_kernels::c::{COLOR, Kernel};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::Launch;

const THREADS: usize = 256;

pub(crate) fn run(op: &ColorConvert, context: &mut Context) -> Result<Value> {
    let (images, height, width) = op.sizes()?;
    let input = context.input(&op.input)?;
    let output = context.output(op.input.dtype(), op.output_shape()?)?;
    let pixels = images * height * width;
    if pixels == 0 {
        return Ok(Value::Tensor(output.into_tensor()));
    }
    if op.from == op.to {
        context.copy(output.address, input, op.input.len_bytes())?;
        return Ok(Value::Tensor(output.into_tensor()));
    }
    let shares_chroma = op.from.is_yuv420() || op.to.is_yuv420();
    let threads = if shares_chroma { pixels / 4 } else { pixels };
    let kernel = Kernel::new(COLOR, "convert")
        .dtype("T", op.input.dtype())
        .integer("SIDE", if shares_chroma { 2 } else { 1 })
        .word("INDEX", if u32::try_from(threads).is_ok() { "u32" } else { "u64" });
    let mut arguments = Arguments::new()
        .address(input)
        .address(output.address)
        .u64(threads as u64)
        .size(height)
        .size(width)
        .u32(number(op.from))
        .u32(number(op.to))
        .structure(&coding(op));
    context.launch(&kernel, Launch::new(threads.div_ceil(THREADS), THREADS), &mut arguments)?;
    Ok(Value::Tensor(output.into_tensor()))
}

/// The kernel's number of a format.
fn number(format: ColorFormat) -> u32 {
    match format {
        ColorFormat::Rgb => 0,
        ColorFormat::Bgr => 1,
        ColorFormat::Gray => 2,
        ColorFormat::I420 => 3,
        ColorFormat::Nv12 => 4,
    }
}

/// The kernel's `coding` structure: six f32, two per word.
fn coding(op: &ColorConvert) -> [u64; 3] {
    let [kr, kg, kb] = op.standard.weights();
    let (black, luma_span, chroma_span) = match op.range {
        ColorRange::Limited => (16.0, 219.0 / 255.0, 224.0 / 255.0),
        ColorRange::Full => (0.0, 1.0, 1.0),
    };
    let bits = |number: f64| u64::from((number as f32).to_bits());
    [(kr, kg), (kb, black), (luma_span, chroma_span)].map(|(low, high)| bits(low) | bits(high) << 32)
}
