//! Conv2d and its gradients: by a vendor's library if it is available and supports the type, else
//! by one kernel that gathers the image while it multiplies. The three operations differ in the
//! index of their sums; see `conv.c`.

use panoply_core::op::compute::{Activation, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvShape};
use panoply_core::{DType, Result, Tensor, Value};
use panoply_graph::fuse::images::{CHANNELS_LAST, is_channels_last};
use panoply_kernels::c::{CONV, Kernel, activation_number};

use crate::arguments::Arguments;
use crate::context::Context;
use crate::driver::{Address, GRID_YZ_MAX, Launch};
use crate::library::{ConvolutionKind, ConvolutionTensors};

pub mod library;
pub mod trial;

use library::{ChannelsLastTensors, ConvolutionTask};

/// `TILE`, `DEPTH` and `THREADS` of the kernel.
const TILE: usize = 64;
const DEPTH: usize = 16;
const THREADS: usize = 256;
/// The kernels, each with the preprocessor word that selects it.
const TILES: (&str, &str) = ("convolve", "TILES");
const MATRIX_UNITS: (&str, &str) = ("convolve_tiles", "MATRIX_UNITS");
const DIRECT: (&str, &str) = ("convolve_directly", "DIRECT");
const PARTS: (&str, &str) = ("add_parts", "PARTS");
/// Up to this many filters (channels, for the input's gradient) per group, sharing tiles does not
/// pay.
const DIRECT_ROWS_MAX: usize = 4;
/// Minimum length in k of a part of a split sum.
const PART_DEPTH_MIN: usize = 16 * DEPTH;
const PARTS_MAX: usize = 64;
/// `WIDE` and `DEEP` of the kernel for matrix units.
const WIDE: usize = 128;
const DEEP: usize = 32;
/// Minimum number of rows for matrix units.
const WIDE_ROWS_MIN: usize = 16;

pub(crate) fn run(op: &Conv2d, context: &mut Context) -> Result<Value> {
    let shape = op.conv_shape()?;
    if context.output_order() == Some(CHANNELS_LAST) {
        return run_turned(op, &shape, context);
    }
    let (input, weights) = (context.input(&op.input)?, context.input(&op.weights)?);
    let bias = op.bias.as_ref().map(|bias| context.input(bias)).transpose()?;
    let output = context.output(op.input.dtype(), op.output_shape()?)?;
    let (dtype, activation) = (op.input.dtype(), op.activation);
    let tensors = ConvolutionTensors { input, weights, output: output.address, bias, residual: None };
    if !library::run(&ConvolutionTask::new(shape, dtype, ConvolutionKind::Forward, tensors, activation), context)? {
        let product = ConvProduct { activation, ..ConvProduct::of(ConvolutionKind::Forward, &shape) };
        product.run(dtype, Operands::of(ConvolutionKind::Forward, &tensors), context)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// The same with a channels-last output. Channels-last images and weights are read in place.
fn run_turned(op: &Conv2d, shape: &ConvShape, context: &mut Context) -> Result<Value> {
    let lies = |tensor: &Tensor, context: &Context| context.owns(tensor) && is_channels_last(tensor);
    let lies =
        ChannelsLastTensors { input: lies(&op.input, context), weights: lies(&op.weights, context), output: true };
    let mut place = |tensor: &Tensor, lies: bool| match lies {
        true => Ok(context.view(tensor)?.address),
        false => context.input(tensor),
    };
    let (input, weights) = (place(&op.input, lies.input)?, place(&op.weights, lies.weights)?);
    let bias = op.bias.as_ref().map(|bias| context.input(bias)).transpose()?;
    let output = context.output(op.input.dtype(), op.output_shape()?)?;
    let (dtype, activation) = (op.input.dtype(), op.activation);
    let tensors = ConvolutionTensors { input, weights, output: output.address, bias, residual: None };
    let job = ConvolutionTask {
        lies,
        is_fused: true,
        ..ConvolutionTask::new(*shape, dtype, ConvolutionKind::Forward, tensors, activation)
    };
    if shape.output_len() > 0 && !library::run(&job, context)? {
        // Our own kernel needs channels-first images.
        let (input, weights) = (context.input(&op.input)?, context.input(&op.weights)?);
        let first = context.scratch(shape.output_len() * dtype.size_bytes())?;
        let tensors = ConvolutionTensors { input, weights, output: first, bias, residual: None };
        if !library::run(&ConvolutionTask::new(*shape, dtype, ConvolutionKind::Forward, tensors, activation), context)?
        {
            let product = ConvProduct { activation, ..ConvProduct::of(ConvolutionKind::Forward, shape) };
            product.run(dtype, Operands::of(ConvolutionKind::Forward, &tensors), context)?;
        }
        let [batch, filters, height, width] = shape.output_dims();
        turn(dtype, output.address, first, [batch, filters, height * width], Activation::None, context)?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

pub(crate) fn run_backward_input(op: &Conv2dBackwardInput, context: &mut Context) -> Result<Value> {
    let shape = op.conv_shape()?;
    let (gradient, weights) = (context.input(&op.gradient)?, context.input(&op.weights)?);
    let output = context.output(op.gradient.dtype(), op.output_shape()?)?;
    let (dtype, activation) = (op.gradient.dtype(), Activation::None);
    let tensors = ConvolutionTensors { input: output.address, weights, output: gradient, bias: None, residual: None };
    if !library::run(&ConvolutionTask::new(shape, dtype, ConvolutionKind::Input, tensors, activation), context)? {
        ConvProduct::of(ConvolutionKind::Input, &shape).run(
            dtype,
            Operands::of(ConvolutionKind::Input, &tensors),
            context,
        )?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

pub(crate) fn run_backward_weight(op: &Conv2dBackwardWeight, context: &mut Context) -> Result<Value> {
    let shape = op.conv_shape()?;
    let (input, gradient) = (context.input(&op.input)?, context.input(&op.gradient)?);
    let output = context.output(op.input.dtype(), op.output_shape()?)?;
    let (dtype, activation) = (op.input.dtype(), Activation::None);
    let tensors = ConvolutionTensors { input, weights: output.address, output: gradient, bias: None, residual: None };
    if !library::run(&ConvolutionTask::new(shape, dtype, ConvolutionKind::Weights, tensors, activation), context)? {
        ConvProduct::of(ConvolutionKind::Weights, &shape).run(
            dtype,
            Operands::of(ConvolutionKind::Weights, &tensors),
            context,
        )?;
    }
    Ok(Value::Tensor(output.into_tensor()))
}

/// The operands of a product.
#[derive(Clone, Copy)]
pub struct Operands {
    /// The left factor.
    pub a: Address,
    /// The image.
    pub b: Address,
    /// The bias of each row.
    pub bias: Option<Address>,
    /// The result.
    pub out: Address,
}

impl Operands {
    /// The operands of a convolution or a gradient.
    pub fn of(kind: ConvolutionKind, tensors: &ConvolutionTensors) -> Operands {
        let ConvolutionTensors { input, weights, output, bias, .. } = *tensors;
        match kind {
            ConvolutionKind::Forward => Operands { a: weights, b: input, bias, out: output },
            ConvolutionKind::Input => Operands { a: weights, b: output, bias, out: input },
            ConvolutionKind::Weights => Operands { a: output, b: input, bias, out: weights },
        }
    }
}

/// One of the two indices that select an element of the image: `side` of the kernel.
#[derive(Clone, Copy)]
struct Side {
    planes: usize,
    size: [usize; 2],
    mul: [i64; 2],
    add: [i64; 2],
    /// Distance between planes in the image, and in the other matrix, in elements.
    plane: usize,
    other: usize,
}

/// A convolution or one of its gradients as matrix products, one per group: `product` of the
/// kernel.
pub struct ConvProduct {
    m: usize,
    n: Side,
    k: Side,
    groups: usize,
    a_row: usize,
    out_row: usize,
    /// Distance between groups in `a`, `b` and `out`, in elements.
    group_steps: [usize; 3],
    image: [usize; 2],
    divide: [usize; 2],
    /// Rows and columns of the padded image: the limit of all positions.
    padded: [usize; 2],
    activation: Activation,
    /// Whether sums may be split into parts.
    splits: bool,
    /// The sizes for transposing the weights, so that each row of `a` has its channels adjacent,
    /// tap by tap.
    turned: Option<[usize; 3]>,
}

impl ConvProduct {
    /// The product for a convolution of this shape.
    pub fn of(kind: ConvolutionKind, shape: &ConvShape) -> ConvProduct {
        match kind {
            ConvolutionKind::Forward => ConvProduct::forward(shape),
            ConvolutionKind::Input => ConvProduct::to_input(shape),
            ConvolutionKind::Weights => ConvProduct::to_weights(shape),
        }
    }

    fn forward(shape: &ConvShape) -> ConvProduct {
        let (taps, pixels, area) = (shape.taps(), product(shape.output()), product(shape.input));
        let (channels, filters) = (shape.group_channels(), shape.group_filters());
        ConvProduct {
            m: filters,
            n: Side {
                planes: shape.batch,
                size: shape.output(),
                mul: signed(shape.stride),
                add: negative_padding(shape),
                plane: shape.channels * area,
                other: shape.filters * pixels,
            },
            k: Side {
                planes: channels,
                size: shape.kernel,
                mul: signed(shape.dilation),
                add: [0, 0],
                plane: area,
                other: taps,
            },
            groups: shape.groups,
            a_row: channels * taps,
            out_row: pixels,
            group_steps: [filters * channels * taps, channels * area, filters * pixels],
            image: shape.input,
            divide: [1, 1],
            padded: padded(shape),
            activation: Activation::None,
            splits: false,
            turned: Some([shape.filters, channels, taps]),
        }
    }

    fn to_input(shape: &ConvShape) -> ConvProduct {
        let (taps, pixels, area) = (shape.taps(), product(shape.output()), product(shape.input));
        let (channels, filters) = (shape.group_channels(), shape.group_filters());
        ConvProduct {
            m: channels,
            n: Side {
                planes: shape.batch,
                size: shape.input,
                mul: [1, 1],
                add: signed([shape.padding[0], shape.padding[1]]),
                plane: shape.filters * pixels,
                other: shape.channels * area,
            },
            k: Side {
                planes: filters,
                size: shape.kernel,
                mul: signed(shape.dilation).map(|dilation| -dilation),
                add: [0, 0],
                plane: pixels,
                other: channels * taps,
            },
            groups: shape.groups,
            a_row: taps,
            out_row: area,
            group_steps: [filters * channels * taps, filters * pixels, channels * area],
            image: shape.output(),
            divide: shape.stride,
            padded: padded(shape),
            activation: Activation::None,
            splits: false,
            turned: Some([shape.groups, filters, channels * taps]),
        }
    }

    fn to_weights(shape: &ConvShape) -> ConvProduct {
        let (taps, pixels, area) = (shape.taps(), product(shape.output()), product(shape.input));
        let (channels, filters) = (shape.group_channels(), shape.group_filters());
        ConvProduct {
            m: filters,
            n: Side {
                planes: channels,
                size: shape.kernel,
                mul: signed(shape.dilation),
                add: negative_padding(shape),
                plane: area,
                other: taps,
            },
            k: Side {
                planes: shape.batch,
                size: shape.output(),
                mul: signed(shape.stride),
                add: [0, 0],
                plane: shape.channels * area,
                other: shape.filters * pixels,
            },
            groups: shape.groups,
            a_row: pixels,
            out_row: channels * taps,
            group_steps: [filters * pixels, channels * area, filters * channels * taps],
            image: shape.input,
            divide: [1, 1],
            padded: padded(shape),
            activation: Activation::None,
            splits: true,
            turned: None,
        }
    }

    /// Number of sums.
    pub(super) fn elements(&self) -> usize {
        self.groups * self.m * self.n.count()
    }

    /// Number of products per sum.
    pub fn terms(&self) -> usize {
        self.k.count()
    }

    /// Queues the product.
    pub fn run(&self, dtype: DType, operands: Operands, context: &mut Context) -> Result<()> {
        if self.elements() == 0 {
            return Ok(());
        }
        let parts = self.parts(context);
        if parts > 1 {
            return self.run_in_parts(dtype, operands, parts, context);
        }
        let kernel = |entry| self.kernel(entry, dtype);
        if self.m <= DIRECT_ROWS_MAX && !self.splits {
            let lines = (self.groups * self.m).min(GRID_YZ_MAX);
            let launch = Launch::grid([self.n.count().div_ceil(THREADS), lines, 1], THREADS);
            return context.launch(&kernel(DIRECT), launch, &mut self.arguments(operands, 1));
        }
        if let Some(matrices) = self.turned
            && context.driver.properties().matrix_tiles
            && self.suits_matrix_units(dtype)
        {
            let weights = context.workspace(matrices.iter().product::<usize>() * dtype.size_bytes())?;
            turn(dtype, weights, operands.a, matrices, Activation::None, context)?;
            let operands = Operands { a: weights, ..operands };
            let (columns, rows) = (self.n.count().div_ceil(WIDE), self.m.div_ceil(WIDE));
            let launch = Launch::grid([columns, rows, self.groups], THREADS);
            let by_tap = ConvProduct { a_row: self.k.count(), ..*self };
            return context.launch(&kernel(MATRIX_UNITS), launch, &mut by_tap.arguments(operands, 1));
        }
        context.launch(&kernel(TILES), self.tiles(1), &mut self.arguments(operands, 1))
    }

    /// Whether the kernel for matrix units can be used: 16-bit numbers, whole tiles of channels,
    /// and enough rows.
    fn suits_matrix_units(&self, dtype: DType) -> bool {
        matches!(dtype, DType::F16 | DType::BF16)
            && self.k.planes > 0
            && self.k.planes.is_multiple_of(DEEP)
            && self.m >= WIDE_ROWS_MIN
            && self.groups <= GRID_YZ_MAX
    }

    /// Computes sums in parts, each by separate blocks, and then adds the parts, always in the same
    /// order.
    fn run_in_parts(&self, dtype: DType, operands: Operands, parts: usize, context: &mut Context) -> Result<()> {
        let sum_bytes = if dtype == DType::F64 { 8 } else { 4 };
        let count = self.elements();
        let sums = context.workspace(count * parts * sum_bytes)?;
        let of_parts = Operands { out: sums, ..operands };
        let kernel = self.kernel(TILES, dtype);
        context.launch(&kernel, self.tiles(parts), &mut self.arguments(of_parts, parts))?;
        let kernel = self.kernel(PARTS, dtype);
        let mut arguments = Arguments::new().address(operands.out).address(sums).u64(count as u64).size(parts);
        let launch = context.blocks(count, THREADS, 1);
        context.launch(&kernel, launch, &mut arguments)
    }

    /// Number of parts of each sum, so that there are blocks for the whole device.
    fn parts(&self, context: &Context) -> usize {
        let blocks = self.n.count().div_ceil(TILE) * self.m.div_ceil(TILE) * self.groups;
        let wanted = (2 * context.multiprocessors()).div_ceil(blocks);
        let most = (self.k.count() / PART_DEPTH_MIN).min(PARTS_MAX).min(GRID_YZ_MAX / self.groups);
        if self.splits { wanted.min(most).max(1) } else { 1 }
    }

    fn tiles(&self, parts: usize) -> Launch {
        let (columns, rows) = (self.n.count().div_ceil(TILE), self.m.div_ceil(TILE));
        Launch::grid([columns, rows, self.groups * parts], THREADS)
    }

    pub(super) fn kernel(&self, (entry, chosen): (&'static str, &'static str), dtype: DType) -> Kernel {
        let reach = self.padded.into_iter().max().unwrap_or(0);
        let numbers = self.n.count().max(self.k.count());
        Kernel::new(CONV, entry)
            .dtype("T", dtype)
            .flag(chosen, true)
            .word("POS", if reach < 1 << 29 { "i32" } else { "i64" })
            .word("INDEX", if u32::try_from(numbers).is_ok() { "u32" } else { "u64" })
            .flag("DIVIDES", self.divide != [1, 1])
    }

    /// The first arguments of every product kernel.
    pub(super) fn arguments(&self, operands: Operands, parts: usize) -> Arguments {
        Arguments::new()
            .address(operands.out)
            .address(operands.a)
            .address(operands.b)
            .address(operands.bias.unwrap_or_default())
            .structure(&self.words(parts))
            .structure(&self.n.words())
            .structure(&self.k.words())
    }

    /// The kernel's `product` structure.
    pub(super) fn words(&self, parts: usize) -> [u64; 17] {
        let part_k = self.k.count().div_ceil(parts).next_multiple_of(DEPTH);
        [
            self.m,
            self.n.count(),
            self.k.count(),
            self.groups,
            self.a_row,
            self.out_row,
            self.group_steps[0],
            self.group_steps[1],
            self.group_steps[2],
            self.image[0],
            self.image[1],
            self.divide[0],
            self.divide[1],
            part_k,
            parts,
            self.elements(),
            activation_number(self.activation) as usize,
        ]
        .map(|size| size as u64)
    }

    /// The kernel's `side` structure for n.
    pub(super) fn words_of_n(&self) -> [u64; 8] {
        self.n.words()
    }
}

impl Side {
    fn count(&self) -> usize {
        self.planes * product(self.size)
    }

    fn words(&self) -> [u64; 8] {
        let [height, width] = self.size.map(|size| size as u64);
        let ([mul_y, mul_x], [add_y, add_x]) = (self.mul.map(|x| x as u64), self.add.map(|x| x as u64));
        [height, width, mul_y, add_y, mul_x, add_x, self.plane as u64, self.other as u64]
    }
}

fn product(sizes: [usize; 2]) -> usize {
    sizes[0] * sizes[1]
}

fn signed(sizes: [usize; 2]) -> [i64; 2] {
    sizes.map(|size| size as i64)
}

fn negative_padding(shape: &ConvShape) -> [i64; 2] {
    [-(shape.padding[0] as i64), -(shape.padding[1] as i64)]
}

fn padded(shape: &ConvShape) -> [usize; 2] {
    [0, 1].map(|axis| shape.input[axis] + shape.padding[axis] + shape.padding[axis + 2])
}

/// Transposes each of `matrices` matrices of rows × columns 16-bit numbers, and applies an
/// activation.
pub(super) fn turn(
    dtype: DType,
    target: Address,
    source: Address,
    [matrices, rows, columns]: [usize; 3],
    activation: Activation,
    context: &mut Context,
) -> Result<()> {
    if matrices * rows * columns == 0 {
        return Ok(());
    }
    let aligned = (target | source).is_multiple_of(4);
    let pairs = aligned && rows.is_multiple_of(2) && columns.is_multiple_of(2);
    let grid = [columns.div_ceil(TILE), rows.div_ceil(TILE).min(GRID_YZ_MAX), matrices.min(GRID_YZ_MAX)];
    let mut arguments = Arguments::new()
        .address(target)
        .address(source)
        .u64(matrices as u64)
        .u64(rows as u64)
        .u64(columns as u64)
        .u32(activation_number(activation));
    let launch = Launch::grid(grid, THREADS);
    context.launch(&around("turn", dtype).flag("PAIRS", pairs), launch, &mut arguments)
}

/// Converts 16-bit images of fewer than eight channels to channels-last with eight channels, padded
/// with zeros.
pub(super) fn widen(
    dtype: DType,
    target: Address,
    source: Address,
    [images, channels, area]: [usize; 3],
    context: &mut Context,
) -> Result<()> {
    let mut arguments =
        Arguments::new().address(target).address(source).u64(images as u64).u64(area as u64).size(channels);
    let launch = context.blocks(images * area, THREADS, 1);
    context.launch(&around("widen", dtype).flag("PAIRS", false), launch, &mut arguments)
}

/// A kernel that runs before or after a convolution.
pub(super) fn around(entry: &'static str, dtype: DType) -> Kernel {
    Kernel::new(CONV, entry).dtype("T", dtype).flag("AROUND", true)
}
