//! Products and convolutions of f16 or bf16 on matrix units, by kernels whose 16-bit matrices the
//! driver declares.

use std::time::{Duration, Instant};

use panoply_core::op::compute::{Activation, ConvShape};
use panoply_core::{DType, Result, Shape};
use panoply_kernels::wgsl::{
    Accumulate, Addend, Epilogue, Kernel, Load, WIDE_STEP, WideKernel, WideSource, WideTarget, WideTile,
};

use super::matmul::{Product, load, params};
use crate::context::Context;
use crate::driver::Driver;
use crate::operand::{ELEMENTS_MAX, Operand};
use crate::tuning::{LARGE_TILES, SEARCH_TILE, SMALL_WIDE_TILE, TEST_WIDE_TILE, WIDE_TILES, fastest};

/// Number of tiles of 128 × 128 from which large tiles keep a device busy, and from which matrix
/// units are worth using.
const LARGE_WANTED: usize = 96;
const SMALL_WANTED: usize = 8;
const COUNTED_TILE: usize = 128;
/// The size of the products that compare tiles.
const TRIAL_SIZE: usize = 4096;
/// Number of runs of each tile in one trial.
const TRIAL_RUNS: u32 = 4;
/// The longest wait for a trial.
const TRIAL_WAIT_MAX: Duration = Duration::from_secs(5);

/// Records a product and returns its output; `None` if it does not suit matrix units.
pub(super) fn multiply<D: Driver>(
    product: &Product,
    [a, b]: [&Operand<D>; 2],
    [c, bias]: [Option<&Operand<D>>; 2],
    shape: Shape,
    context: &mut Context<D>,
) -> Result<Option<Operand<D>>> {
    let tiles = product.batch.elements() * counted([product.m, product.n]);
    let Some(loads) = loads(product, [a, b], context).filter(|_| tiles >= SMALL_WANTED) else { return Ok(None) };
    let limit = context.profile.binding_bytes_max;
    if !c.into_iter().chain(bias).all(|operand| operand.is_within(limit)) {
        return Ok(None);
    }
    let Some(tile) = tile(tiles, context) else { return Ok(None) };
    let packed = product.n.is_multiple_of(4);
    let target = WideTarget::Sums { epilogue: product.epilogue(c.is_some()), packed };
    let Some(output) = Output::new(a.dtype, shape, packed, context)? else { return Ok(None) };
    let kernel = kernel(product, loads, target, a.dtype, tile);
    let reads: Vec<&Operand<D>> = [a, b].into_iter().chain(c).chain(bias).collect();
    let params = wide_params(product, [a, b], [c, bias], tile);
    let groups = product.batch.elements() * product.m.div_ceil(tile.m()) * product.n.div_ceil(tile.n());
    run(&kernel, output, &reads, &params, groups, context)
}

/// Records the sums of a product of f16 or bf16 as f32, in the same steps as [`list_kernel`].
pub(super) fn sums<D: Driver>(
    product: &Product,
    operands: [&Operand<D>; 2],
    output: &Operand<D>,
    context: &mut Context<D>,
) -> Result<bool> {
    let Some(loads) = loads(product, operands, context) else { return Ok(false) };
    let Some(tile) = search_tile(context) else { return Ok(false) };
    let dtype = operands[0].dtype;
    let target = WideTarget::Sums { epilogue: Epilogue::none(dtype), packed: false };
    let kernel = kernel(product, loads, target, dtype, tile);
    if !is_compiled(&kernel, (1, 2), context) {
        return Ok(false);
    }
    let params = wide_params(product, operands, [None, None], tile);
    let groups = product.m.div_ceil(tile.m()) * product.n.div_ceil(tile.n());
    context.run(&Kernel::Wide(kernel), &[output], &operands, &params, groups as u64)?;
    Ok(true)
}

/// The kernel that lists candidates of a search, with queries as A and rows as B, and its tile;
/// `None` if they do not suit matrix units.
pub(super) fn list_kernel<D: Driver>(
    product: &Product,
    operands: [&Operand<D>; 2],
    target: WideTarget,
    reads: usize,
    context: &mut Context<D>,
) -> Result<Option<(Kernel, WideTile)>> {
    let Some(loads) = loads(product, operands, context) else { return Ok(None) };
    let Some(tile) = search_tile(context) else { return Ok(None) };
    let kernel = kernel(product, loads, target, operands[0].dtype, tile);
    Ok(is_compiled(&kernel, (2, reads), context).then_some((Kernel::Wide(kernel), tile)))
}

/// Records a convolution of contiguous operands and returns its output; `None` if it does not suit
/// matrix units.
pub(super) fn convolve<D: Driver>(
    shape: &ConvShape,
    [images, weights]: [&Operand<D>; 2],
    bias: Option<&Operand<D>>,
    activation: Activation,
    context: &mut Context<D>,
) -> Result<Option<Operand<D>>> {
    let [height, width] = shape.output();
    let (places, channels) = (height * width, shape.channels.next_multiple_of(WIDE_STEP));
    let (m, n, k) = (shape.filters, shape.batch * places, shape.taps() * channels);
    let limit = context.profile.binding_bytes_max;
    let tiles = counted([m, n]);
    let laid_out = [shape.batch * shape.input[0] * shape.input[1] * channels, m * k, n * m];
    let suits = context.profile.wide_matrices.have(images.dtype)
        && shape.groups == 1
        && shape.channels > 0
        && laid_out.iter().all(|elements| *elements <= ELEMENTS_MAX && (elements * 2) as u64 <= limit)
        && [images, weights].into_iter().chain(bias).all(|operand| operand.is_within(limit))
        && tiles >= SMALL_WANTED;
    if !suits {
        return Ok(None);
    }
    let Some(tile) = tile(tiles, context) else { return Ok(None) };
    let packed = places.is_multiple_of(4);
    let dtype = images.dtype;
    let Some(output) = Output::new(dtype, Shape::new([shape.batch, m, height, width])?, packed, context)? else {
        return Ok(None);
    };
    let bias_kind = if bias.is_some() { Addend::PerRow } else { Addend::None };
    let epilogue = Epilogue { bias: bias_kind, activation, ..Epilogue::none(dtype) };
    let target = WideTarget::Sums { epilogue, packed };
    let (load_a, b) = (Load::AlongInner, WideSource::Windows);
    let kernel = WideKernel { dtype, load_a, b, target, whole: false, tile };
    if !is_compiled(&kernel, (1, 2 + usize::from(bias.is_some())), context) {
        return Ok(None);
    }
    let taken = [shape.batch, shape.channels, shape.input[0] * shape.input[1], channels];
    let images = channels_last(images, taken, context)?;
    let weights = channels_last(weights, [m, shape.channels, shape.taps(), channels], context)?;
    let params = window_params(shape, [m, n, k], [places, width, channels], bias, tile);
    let reads: Vec<&Operand<D>> = [&weights, &images].into_iter().chain(bias).collect();
    let groups = m.div_ceil(tile.m()) * n.div_ceil(tile.n());
    run(&kernel, output, &reads, &params, groups, context)
}

/// The target of sums: elements, or carriers that become elements.
struct Output<D: Driver> {
    written: Operand<D>,
    dtype: DType,
}

impl<D: Driver> Output<D> {
    /// Returns `None` if the output is larger than a kernel sees.
    fn new(dtype: DType, shape: Shape, packed: bool, context: &mut Context<D>) -> Result<Option<Output<D>>> {
        let written = if packed { dtype } else { DType::F32 };
        let fits = (shape.elements() * written.size_bytes()) as u64 <= context.profile.binding_bytes_max;
        let written = fits.then(|| context.output(written, shape)).transpose()?;
        Ok(written.map(|written| Output { written, dtype }))
    }
}

/// Records a kernel that suits the operands; `None` if the driver does not compile it.
fn run<D: Driver>(
    kernel: &WideKernel,
    output: Output<D>,
    reads: &[&Operand<D>],
    params: &[u32],
    groups: usize,
    context: &mut Context<D>,
) -> Result<Option<Operand<D>>> {
    if !is_compiled(kernel, (1, reads.len()), context) {
        return Ok(None);
    }
    context.run(&Kernel::Wide(*kernel), &[&output.written], reads, params, groups as u64)?;
    let Output { written, dtype } = output;
    if written.dtype == dtype { Ok(Some(written)) } else { context.narrow(written, dtype).map(Some) }
}

/// Whether the driver compiles a kernel. A driver that reports matrices and does not compile them
/// is not asked again.
fn is_compiled<D: Driver>(kernel: &WideKernel, shape: (usize, usize), context: &mut Context<D>) -> bool {
    let is_compiled = context.pipelines.get(&Kernel::Wide(*kernel), shape).is_ok();
    let wide = &mut context.profile.wide_matrices;
    match kernel.dtype {
        DType::BF16 => wide.bf16 &= is_compiled,
        _ => wide.f16 &= is_compiled,
    }
    is_compiled
}

/// The loads of both operands; `None` if they do not suit matrix units.
fn loads<D: Driver>(product: &Product, [a, b]: [&Operand<D>; 2], context: &Context<D>) -> Option<[Load; 2]> {
    let limit = context.profile.binding_bytes_max;
    let suits = a.dtype == b.dtype
        && context.profile.wide_matrices.have(a.dtype)
        && product.accumulate == Accumulate::Product
        && product.k > 0
        && a.is_within(limit)
        && b.is_within(limit);
    let load_a = load(a, [0, 1], [product.m, product.k], WIDE_STEP);
    let load_b = load(b, [1, 0], [product.n, product.k], WIDE_STEP);
    (suits && load_a != Load::Single && load_b != Load::Single).then_some([load_a, load_b])
}

fn kernel(
    product: &Product,
    [load_a, load_b]: [Load; 2],
    target: WideTarget,
    dtype: DType,
    tile: WideTile,
) -> WideKernel {
    let whole = product.m.is_multiple_of(tile.m())
        && product.n.is_multiple_of(tile.n())
        && product.k.is_multiple_of(usize::from(tile.depth));
    WideKernel { dtype, load_a, b: WideSource::Matrix(load_b), target, whole, tile }
}

/// The parameters of a product, with the numbers of these tiles.
pub(super) fn wide_params<D: Driver>(
    product: &Product,
    operands: [&Operand<D>; 2],
    addends: [Option<&Operand<D>>; 2],
    tile: WideTile,
) -> Vec<u32> {
    let mut params = params(product, operands, addends, LARGE_TILES[0]);
    params[3] = product.m.div_ceil(tile.m()) as u32;
    params[4] = product.n.div_ceil(tile.n()) as u32;
    params
}

fn window_params<D: Driver>(
    shape: &ConvShape,
    [m, n, k]: [usize; 3],
    [places, width, channels]: [usize; 3],
    bias: Option<&Operand<D>>,
    tile: WideTile,
) -> Vec<u32> {
    let sizes = [m, n, k, m.div_ceil(tile.m()), n.div_ceil(tile.n()), 1];
    let starts = [0, k, 0, bias.map_or(0, |bias| bias.offset), 1];
    let images = [
        places,
        width,
        channels,
        shape.kernel[0],
        shape.kernel[1],
        shape.input[0],
        shape.input[1],
        shape.stride[0],
        shape.stride[1],
        shape.dilation[0],
        shape.dilation[1],
        shape.padding[0],
        shape.padding[1],
    ];
    sizes.into_iter().chain(starts).chain(images).map(|size| size as u32).collect()
}

/// Copies contiguous elements of two bytes, `images × channels × places`, to channels-last layout
/// with `wanted` channels.
fn channels_last<D: Driver>(
    source: &Operand<D>,
    [images, channels, places, wanted]: [usize; 4],
    context: &mut Context<D>,
) -> Result<Operand<D>> {
    let output = context.output(source.dtype, Shape::new([images, places, wanted])?)?;
    let params = [images, channels, places, wanted, source.offset].map(|size| size as u32);
    let groups = images * places.div_ceil(64) * wanted.div_ceil(32);
    context.run(&Kernel::ChannelsLast, &[&output], &[source], &params, groups as u64)?;
    Ok(output)
}

/// Number of tiles of [`COUNTED_TILE`], the measure for a product's size.
fn counted([m, n]: [usize; 2]) -> usize {
    m.div_ceil(COUNTED_TILE) * n.div_ceil(COUNTED_TILE)
}

/// The tile for a product with `tiles` tiles of [`COUNTED_TILE`]; `None` if the device lacks the
/// workgroup memory.
fn tile<D: Driver>(tiles: usize, context: &mut Context<D>) -> Option<WideTile> {
    if context.profile.is_software {
        // The order of steps follows the fixed tile, if there is one.
        let early = context.tuning().wide().is_some_and(|tile| tile.early);
        return Some(WideTile { double: early, early, ..TEST_WIDE_TILE });
    }
    if tiles >= LARGE_WANTED && context.tuning().wide().is_none() {
        // If nothing can be measured, the first tile is used.
        let _ = context.in_earnest(measure);
    }
    let large = context.tuning().wide().filter(|_| tiles >= LARGE_WANTED);
    let fits = |tile: &WideTile| tile.workgroup_bytes() <= context.profile.workgroup_bytes_max;
    large.filter(fits).or(Some(SMALL_WIDE_TILE).filter(fits))
}

/// The tile for searches.
fn search_tile<D: Driver>(context: &mut Context<D>) -> Option<WideTile> {
    let fits = SEARCH_TILE.workgroup_bytes() <= context.profile.workgroup_bytes_max;
    if fits && !context.profile.is_software { Some(SEARCH_TILE) } else { tile(LARGE_WANTED, context) }
}

/// Times every tile that fits the device and keeps the fastest. Waits for the device, once in its
/// life.
fn measure<D: Driver>(context: &mut Context<D>) -> Result<()> {
    context.tuning().assume_wide(0);
    let dtype = if context.profile.wide_matrices.f16 { DType::F16 } else { DType::BF16 };
    let shape = Shape::new([TRIAL_SIZE, TRIAL_SIZE])?;
    let [a, b, output] = [(); 3].map(|()| context.output(dtype, shape));
    let (a, b, output) = (a?, b?, output?);
    context.clear(&a);
    context.clear(&b);
    let fits = |number: &usize| WIDE_TILES[*number].workgroup_bytes() <= context.profile.workgroup_bytes_max;
    let candidates: Vec<usize> = (0..WIDE_TILES.len()).filter(fits).collect();
    let fastest = fastest(candidates, |number: usize| trial([&a, &b], &output, WIDE_TILES[number], context));
    context.tuning().keep_wide(fastest);
    Ok(())
}

/// The time for some runs of a tile, one after the other.
fn trial<D: Driver>(
    operands: [&Operand<D>; 2],
    output: &Operand<D>,
    tile: WideTile,
    context: &mut Context<D>,
) -> Result<Duration> {
    let product = Product::plain([TRIAL_SIZE; 3], Accumulate::Product);
    let target = WideTarget::Sums { epilogue: Epilogue::none(output.dtype), packed: true };
    let kernel = Kernel::Wide(kernel(&product, [Load::AlongInner, Load::AlongOuter], target, output.dtype, tile));
    let params = wide_params(&product, operands, [None, None], tile);
    let groups = (TRIAL_SIZE.div_ceil(tile.m()) * TRIAL_SIZE.div_ceil(tile.n())) as u64;
    for _ in 0..TRIAL_RUNS {
        context.run(&kernel, &[output], &operands, &params, groups)?;
    }
    let started = Instant::now();
    if let Some(fence) = context.submit() {
        // A device that does not answer in time loses the trial.
        context.driver.wait(fence, TRIAL_WAIT_MAX);
    }
    Ok(started.elapsed())
}
