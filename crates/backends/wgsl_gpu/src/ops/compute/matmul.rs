//! MatMul: strides, tiles and epilogues for one kernel; products beyond a kernel's reach are cut in
//! `large_matmul`.

use std::time::{Duration, Instant};

use panoply_core::op::compute::{Activation, MatMul};
use panoply_core::shape::Strides;
use panoply_core::{DType, Result, Shape, Tensor};
use panoply_kernels::wgsl::{Accumulate, Addend, Epilogue, GemmKernel, Kernel, Load, NaiveGemmKernel, Tile};

use super::large_matmul::multiply_all;
use super::map::cast;
use super::{empty, matrix_units, wide_units};
use crate::context::{Context, groups_for};
use crate::driver::Driver;
use crate::operand::Operand;
use crate::tuning::{LARGE_TILES, SMALL_TILE, fastest};

/// The most dimensions of a batch.
const BATCH_RANK: usize = 6;
/// Number of large tiles that keep a device busy.
const LARGE_TILES_WANTED: usize = 96;
/// The size of the products that compare tiles.
const TRIAL_SIZE: usize = 2048;
/// Number of runs of each tile in one trial.
const TRIAL_RUNS: u32 = 4;
/// The longest wait for a trial.
const TRIAL_SECONDS_MAX: u64 = 5;

pub(crate) fn run<D: Driver>(op: &MatMul, context: &mut Context<D>) -> Result<Tensor> {
    let (sizes, shape) = (op.matmul_shape()?, op.output_shape()?);
    let dtype = op.output_dtype();
    if shape.elements() == 0 {
        return empty(dtype, shape);
    }
    let (a, b) = op.operands()?;
    let (mut a, mut b) = (context.operand(&a)?, context.operand(&b)?);
    // If `beta` is zero, C is not read.
    let c = op.c.as_ref().filter(|_| op.beta != 0.0).map(|c| context.operand(c)).transpose()?;
    let bias = op.bias.as_ref().map(|bias| context.operand(bias)).transpose()?;
    let bias_kind = match &bias {
        None => Addend::None,
        Some(bias) if bias.shape.rank() == 2 => Addend::PerRow,
        Some(_) => Addend::PerColumn,
    };
    let product = Product {
        m: sizes.m,
        n: sizes.n,
        k: sizes.k,
        batch: sizes.batch,
        alpha: op.alpha,
        beta: op.beta,
        bias_kind,
        activation: op.activation,
        accumulate: Accumulate::Product,
        addend_dtype: dtype,
    };
    if let Some(made) = wide_units::multiply(&product, [&a, &b], [c.as_ref(), bias.as_ref()], shape, context)? {
        return context.finish(made);
    }
    if matches!(a.dtype, DType::F16 | DType::BF16)
        && large_tiles(&product.batch, product.m, product.n) >= LARGE_TILES_WANTED
    {
        if let Some(made) = matrix_units::multiply(&product, [&a, &b], [c.as_ref(), bias.as_ref()], shape, context)? {
            return context.finish(made);
        }
        // Large tiles read vectors of f32; the conversion takes little time compared with the
        // product.
        (a, b) = (widened(&a, context)?, widened(&b, context)?);
    }
    let carriers = context.carriers(dtype, shape)?;
    multiply_all(&product, [&a, &b], [c.as_ref(), bias.as_ref()], &carriers, context)?;
    context.finish_as(carriers, dtype)
}

/// A matrix of 16-bit floats as f32, with the same order of axes in memory.
fn widened<D: Driver>(operand: &Operand<D>, context: &mut Context<D>) -> Result<Operand<D>> {
    let rank = operand.shape.rank();
    if operand.strides[rank - 2] != 1 || operand.shape[rank - 1] == 1 {
        return cast(operand, DType::F32, context);
    }
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank - 2, rank - 1);
    cast(&operand.permuted(&order)?, DType::F32, context)?.permuted(&order)
}

/// Number of large tiles in a product.
fn large_tiles(batch: &Shape, m: usize, n: usize) -> usize {
    let large = LARGE_TILES[0];
    batch.elements() * m.div_ceil(large.m()) * n.div_ceil(large.n())
}

/// The sizes and the epilogue of a product.
#[derive(Clone)]
pub(super) struct Product {
    pub(super) m: usize,
    pub(super) n: usize,
    pub(super) k: usize,
    pub(super) batch: Shape,
    pub(super) alpha: f32,
    pub(super) beta: f32,
    pub(super) bias_kind: Addend,
    pub(super) activation: Activation,
    pub(super) accumulate: Accumulate,
    /// The type of C, of the bias and of the output.
    pub(super) addend_dtype: DType,
}

impl Product {
    pub(super) fn epilogue(&self, with_c: bool) -> Epilogue {
        Epilogue {
            scaled: self.alpha != 1.0,
            with_c,
            bias: self.bias_kind,
            addend_dtype: self.addend_dtype,
            activation: self.activation,
        }
    }

    /// A plain product of f32 that accumulates `accumulate`.
    pub(super) fn plain([m, n, k]: [usize; 3], accumulate: Accumulate) -> Product {
        Product {
            m,
            n,
            k,
            batch: Shape::scalar(),
            alpha: 1.0,
            beta: 0.0,
            bias_kind: Addend::None,
            activation: Activation::None,
            accumulate,
            addend_dtype: DType::F32,
        }
    }
}

/// Records a product of operands `… × m × k` and `… × k × n`, with C and bias, into carriers.
pub(super) fn multiply<D: Driver>(
    product: &Product,
    [a, b]: [&Operand<D>; 2],
    [c, bias]: [Option<&Operand<D>>; 2],
    output: &Operand<D>,
    context: &mut Context<D>,
) -> Result<()> {
    let reads: Vec<&Operand<D>> = [a, b].into_iter().chain(c).chain(bias).collect();
    let batches = product.batch.elements();
    if a.dtype == DType::Complex64 {
        let kernel = NaiveGemmKernel { with_c: c.is_some(), bias: product.bias_kind };
        let params = params(product, [a, b], [c, bias], SMALL_TILE);
        let groups = groups_for(batches * product.m * product.n);
        return context.run(&Kernel::NaiveGemm(kernel), &[output], &reads, &params, groups);
    }
    // Software adapters compile slowly and gain nothing from unrolled steps.
    let tile = Tile { unrolled: !context.profile.is_software, ..tile(product, a.dtype, context)? };
    let epilogue = product.epilogue(c.is_some());
    let kernel = GemmKernel {
        a: a.dtype,
        b: b.dtype,
        load_a: by_words(a, load(a, [0, 1], [product.m, product.k], 4)),
        load_b: by_words(b, load(b, [1, 0], [product.n, product.k], 4)),
        accumulate: product.accumulate,
        epilogue,
        tile,
        vector_store: product.n.is_multiple_of(4),
    };
    let params = params(product, [a, b], [c, bias], tile);
    let groups = (batches * product.m.div_ceil(tile.m()) * product.n.div_ceil(tile.n())) as u64;
    context.run(&Kernel::Gemm(kernel), &[output], &reads, &params, groups)
}

/// Tiles read only vectors of four-byte words.
fn by_words<D: Driver>(operand: &Operand<D>, load: Load) -> Load {
    if operand.dtype.size_bytes() == 4 { load } else { Load::Single }
}

/// Along which axis an operand can be read in vectors of `vector` elements. `outer` and `inner` are
/// its axes, counted from the second last, with their lengths.
pub(super) fn load<D: Driver>(
    operand: &Operand<D>,
    [outer, inner]: [usize; 2],
    [outer_len, inner_len]: [usize; 2],
    vector: usize,
) -> Load {
    let first = operand.shape.rank() - 2;
    let (outer, inner) = (operand.strides[first + outer], operand.strides[first + inner]);
    let whole = |stride: isize| stride.unsigned_abs().is_multiple_of(vector);
    let aligned = operand.offset.is_multiple_of(vector) && operand.strides[..first].iter().all(|stride| whole(*stride));
    match () {
        () if aligned && inner == 1 && whole(outer) && inner_len.is_multiple_of(vector) => Load::AlongInner,
        () if aligned && outer == 1 && whole(inner) && outer_len.is_multiple_of(vector) => Load::AlongOuter,
        () => Load::Single,
    }
}

pub(super) fn params<D: Driver>(
    product: &Product,
    [a, b]: [&Operand<D>; 2],
    [c, bias]: [Option<&Operand<D>>; 2],
    tile: Tile,
) -> Vec<u32> {
    let mut params = vec![product.m as u32, product.n as u32, product.k as u32];
    params.push(product.m.div_ceil(tile.m()) as u32);
    params.push(product.n.div_ceil(tile.n()) as u32);
    params.push(product.batch.elements() as u32);
    for operand in [a, b] {
        let first = operand.shape.rank() - 2;
        params.push(operand.start());
        params.extend([step(operand.strides[first]), step(operand.strides[first + 1])]);
    }
    let rank = product.batch.rank();
    params.extend(
        (0..BATCH_RANK).map(|axis| axis.checked_sub(BATCH_RANK - rank).map_or(1, |axis| product.batch[axis] as u32)),
    );
    let whole = [product.batch.dims(), &[product.m, product.n]].concat();
    for operand in [a, b] {
        params.extend(batch_steps(&operand.shape[..operand.shape.rank() - 2], &operand.strides, product.batch.dims()));
    }
    match c {
        Some(c) => {
            let steps = stretched_steps(c, &whole);
            params.push(c.start());
            params.extend([step(steps[rank]), step(steps[rank + 1])]);
            params.extend(
                (0..BATCH_RANK).map(|axis| axis.checked_sub(BATCH_RANK - rank).map_or(0, |axis| step(steps[axis]))),
            );
        }
        None => params.extend([0; 3 + BATCH_RANK]),
    }
    params.extend(bias.map_or([0, 0], |bias| [bias.start(), step(bias.strides[0])]));
    let integer = product.addend_dtype.is_integer();
    let scalar = |factor: f32| if integer { factor as i64 as u32 } else { factor.to_bits() };
    params.extend([scalar(product.alpha), scalar(product.beta)]);
    params.extend([0; 5]);
    params
}

/// The strides of an operand along the batch's dimensions, zero where it is broadcast.
fn batch_steps(dims: &[usize], strides: &[isize], batch: &[usize]) -> [u32; BATCH_RANK] {
    std::array::from_fn(|place| {
        let axis = (place + dims.len()).checked_sub(BATCH_RANK);
        let batch_axis = (place + batch.len()).checked_sub(BATCH_RANK);
        match (axis, batch_axis) {
            (Some(axis), Some(wanted)) if dims[axis] == batch[wanted] => step(strides[axis]),
            _ => 0,
        }
    })
}

/// An operand broadcast to a shape.
pub(super) fn stretched<D: Driver>(operand: &Operand<D>, shape: &Shape) -> Result<Operand<D>> {
    let strides = Strides::new(stretched_steps(operand, shape.dims()))?;
    Ok(Operand { shape: *shape, strides, ..operand.clone() })
}

/// The strides of an operand that is broadcast to a shape.
fn stretched_steps<D: Driver>(operand: &Operand<D>, dims: &[usize]) -> Vec<isize> {
    let added = dims.len() - operand.shape.rank();
    let own = |axis: usize| axis.checked_sub(added).filter(|own| operand.shape[*own] == dims[axis]);
    (0..dims.len()).map(|axis| own(axis).map_or(0, |own| operand.strides[own])).collect()
}

fn step(stride: isize) -> u32 {
    stride as i32 as u32
}

/// The tile for a product: the measured one if there are enough tiles to keep the device busy.
fn tile<D: Driver>(product: &Product, dtype: DType, context: &mut Context<D>) -> Result<Tile> {
    let large = LARGE_TILES[0];
    let tiles = large_tiles(&product.batch, product.m, product.n);
    if tiles < LARGE_TILES_WANTED || dtype.size_bytes() != 4 {
        return Ok(SMALL_TILE);
    }
    if let Some(tile) = context.tuning().large() {
        return Ok(tile);
    }
    if !context.profile.is_software {
        context.in_earnest(measure)?;
    }
    Ok(context.tuning().large().unwrap_or(large))
}

/// Times every tile that fits the adapter and keeps the fastest. Waits for the device, once in an
/// adapter's life.
fn measure<D: Driver>(context: &mut Context<D>) -> Result<()> {
    // The trials need a known tile: otherwise a large product in a trial would call this function
    // again.
    context.tuning().keep(0);
    let shape = Shape::new([TRIAL_SIZE, TRIAL_SIZE])?;
    let [a, b, output] = [(); 3].map(|()| context.output(DType::F32, shape));
    let (a, b, output) = (a?, b?, output?);
    context.clear(&a);
    context.clear(&b);
    let product = Product::plain([TRIAL_SIZE; 3], Accumulate::Product);
    let fits = |number: &usize| LARGE_TILES[*number].workgroup_bytes() <= context.profile.workgroup_bytes_max;
    let candidates: Vec<usize> = (0..LARGE_TILES.len()).filter(fits).collect();
    let fastest = fastest(candidates, |number: usize| trial(&product, [&a, &b], &output, LARGE_TILES[number], context));
    context.tuning().keep(fastest);
    Ok(())
}

/// The time for some runs of a tile, one after the other.
fn trial<D: Driver>(
    product: &Product,
    operands: [&Operand<D>; 2],
    output: &Operand<D>,
    tile: Tile,
    context: &mut Context<D>,
) -> Result<Duration> {
    let kernel = Kernel::Gemm(GemmKernel {
        a: DType::F32,
        b: DType::F32,
        load_a: Load::AlongInner,
        load_b: Load::AlongOuter,
        accumulate: Accumulate::Product,
        epilogue: Epilogue::none(DType::F32),
        tile,
        vector_store: true,
    });
    let params = params(product, operands, [None, None], tile);
    let groups = (product.m.div_ceil(tile.m()) * product.n.div_ceil(tile.n())) as u64;
    for _ in 0..TRIAL_RUNS {
        context.run(&kernel, &[output], &operands, &params, groups)?;
    }
    let started = Instant::now();
    if let Some(fence) = context.submit() {
        // A device that does not answer in time loses the trial.
        context.driver.wait(fence, Duration::from_secs(TRIAL_SECONDS_MAX));
    }
    Ok(started.elapsed())
}
