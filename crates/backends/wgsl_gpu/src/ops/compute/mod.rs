//! Arithmetic on tensors: from an op to dispatches, one file per op.

use panoply_core::op::compute::ComputeOp;
use panoply_core::{DType, Error, Location, Result, Shape, Tensor, Value};

use crate::context::Context;
use crate::driver::Driver;
use crate::engine::Answer;
use crate::operand::{WINDOW_STEP_BYTES, is_seen};
use crate::pieces::slabs_within;
use crate::profile::Profile;

use super::fits_memory;
use turned::Turned;

pub(crate) use map_again::KnownMaps;
pub(super) use map_again::run as run_again;

mod attention;
mod color_convert;
mod columns;
mod conv2d;
mod gather;
mod kernel;
mod large_matmul;
mod layernorm;
mod listed_search;
mod long_map;
mod long_sort;
mod map;
mod map_again;
mod matmul;
mod matrix_units;
mod normalize;
mod pool2d;
mod reduce;
mod resize;
mod row_map;
mod scan;
mod search;
mod softmax;
mod sort;
mod topk;
mod transfer;
mod transpose;
mod turned;
mod wide_units;

/// Whether an adapter runs an op, or why not.
pub(super) fn support(profile: &Profile, op: &ComputeOp) -> Result<(), String> {
    way(profile, op).map(drop)
}

/// How an op is run.
enum Way<'a> {
    /// As it is.
    Direct(&'a ComputeOp),
    /// On lines that are laid one after the other first.
    Turned(Box<Turned>),
}

/// How an adapter runs an op, or why it does not.
fn way<'a>(profile: &Profile, op: &'a ComputeOp) -> Result<Way<'a>, String> {
    let Err(reason) = direct(profile, op) else { return Ok(Way::Direct(op)) };
    match Turned::new(op) {
        Some(turned) if direct(profile, turned.op()).is_ok() => Ok(Way::Turned(Box::new(turned))),
        _ => Err(reason),
    }
}

/// Whether an adapter runs an op as it is, or why not.
fn direct(profile: &Profile, op: &ComputeOp) -> Result<(), String> {
    for (dtype, shape) in outputs(op).map_err(|error| error.to_string())? {
        fits_memory(profile, "an output", dtype, &shape)?;
    }
    match op {
        ComputeOp::ArgSort(op) => sort::lines_support(profile, &[&op.input], op.axis),
        ComputeOp::Attention(op) => attention::support(profile, op),
        ComputeOp::ColorConvert(op) => color_convert::support(profile, op),
        ComputeOp::Conv2d(op) => conv2d::support(profile, op),
        ComputeOp::Conv2dBackwardInput(op) => conv2d::input_support(profile, op),
        ComputeOp::Conv2dBackwardWeight(op) => conv2d::weight_support(profile, op),
        ComputeOp::Gather(op) => gather::support(profile, op),
        ComputeOp::Kernel(op) => kernel::support(profile, op),
        ComputeOp::LayerNorm(op) => layernorm::support(profile, op),
        ComputeOp::Map(op) => map::support(op),
        ComputeOp::MatMul(op) => no_f64(op.a.dtype(), "matmul").and_then(|()| large_matmul::support(profile, op)),
        ComputeOp::Normalize(op) => normalize::support(profile, op),
        ComputeOp::Pool2d(op) => pool2d::support(profile, op),
        ComputeOp::Reduce(op) => no_f64(op.input.dtype(), "reduce"),
        ComputeOp::Resize(op) => resize::support(profile, op),
        ComputeOp::RowMap(op) => row_map::support(profile, op),
        ComputeOp::Scan(op) => scan::support(profile, op),
        ComputeOp::Search(op) => search::support(profile, op),
        ComputeOp::Softmax(op) => softmax::support(profile, op),
        ComputeOp::Sort(op) => sort::lines_support(profile, &[&op.input], op.axis),
        ComputeOp::SortPairs(op) => sort::lines_support(profile, &[&op.keys, &op.values], op.axis),
        ComputeOp::TopK(op) => topk::support(profile, op),
        ComputeOp::Transfer(_) | ComputeOp::Transpose(_) => Ok(()),
    }
}

/// Records an op.
pub(super) fn run<D: Driver>(op: &ComputeOp, name: &'static str, context: &mut Context<D>) -> Result<Answer> {
    match way(&context.profile, op).map_err(|reason| Error::Unsupported { op: name, reason })? {
        Way::Direct(op) => record(op, context),
        Way::Turned(turned) => turned.run(context),
    }
}

/// Records an op as it is.
fn record<D: Driver>(op: &ComputeOp, context: &mut Context<D>) -> Result<Answer> {
    let tensor = |tensor: Result<Tensor>| tensor.map(|tensor| Answer::Value(Value::Tensor(tensor)));
    let pair = |pair: Result<(Tensor, Tensor)>| pair.map(|(first, second)| Answer::Value(Value::Pair(first, second)));
    match op {
        ComputeOp::ArgSort(op) => tensor(sort::run_arg(op, context)),
        ComputeOp::Attention(op) => tensor(attention::run(op, context)),
        ComputeOp::ColorConvert(op) => tensor(color_convert::run(op, context)),
        ComputeOp::Conv2d(op) => tensor(conv2d::forward(op, context)),
        ComputeOp::Conv2dBackwardInput(op) => tensor(conv2d::backward_input(op, context)),
        ComputeOp::Conv2dBackwardWeight(op) => tensor(conv2d::backward_weight(op, context)),
        ComputeOp::Gather(op) => gather::run(op, context),
        ComputeOp::Kernel(op) => kernel::run(op, context).map(Answer::Value),
        ComputeOp::LayerNorm(op) => tensor(layernorm::run(op, context)),
        ComputeOp::Map(op) => tensor(map::run(op, context)),
        ComputeOp::MatMul(op) => tensor(matmul::run(op, context)),
        ComputeOp::Normalize(op) => tensor(normalize::run(op, context)),
        ComputeOp::Pool2d(op) => tensor(pool2d::run(op, context)),
        ComputeOp::Reduce(op) => tensor(reduce::run(op, context)),
        ComputeOp::Resize(op) => tensor(resize::run(op, context)),
        ComputeOp::RowMap(op) => tensor(row_map::run(op, context)),
        ComputeOp::Scan(op) => tensor(scan::run(op, context)),
        ComputeOp::Search(op) => pair(search::run(op, context)),
        ComputeOp::Softmax(op) => tensor(softmax::run(op, context)),
        ComputeOp::Sort(op) => tensor(sort::run(op, context)),
        ComputeOp::SortPairs(op) => pair(sort::run_pairs(op, context)),
        ComputeOp::TopK(op) => pair(topk::run(op, context)),
        ComputeOp::Transfer(op) => transfer::run(op, context),
        ComputeOp::Transpose(op) => tensor(transpose::run(op, context)),
    }
}

/// The type and shape of what an op makes.
fn outputs(op: &ComputeOp) -> Result<Vec<(DType, Shape)>> {
    Ok(match op {
        ComputeOp::ArgSort(op) => vec![(DType::U32, op.output_shape())],
        ComputeOp::Attention(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::ColorConvert(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::Conv2d(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::Conv2dBackwardInput(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::Conv2dBackwardWeight(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::Gather(op) => vec![(op.input.dtype(), op.output_shape()?)],
        ComputeOp::Kernel(op) => op.output_types().collect(),
        ComputeOp::LayerNorm(op) => vec![(DType::F32, op.output_shape())],
        ComputeOp::Map(op) => vec![(op.output_dtype()?, op.output_shape()?)],
        ComputeOp::MatMul(op) => vec![(wide(op.output_dtype()), op.output_shape()?)],
        ComputeOp::Normalize(op) => vec![(DType::F32, op.output_shape())],
        ComputeOp::Pool2d(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::Reduce(op) => vec![(wide(op.output_dtype()), op.output_shape()?)],
        ComputeOp::Resize(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::RowMap(op) => vec![(wide(op.output_dtype()?), op.output_shape()?)],
        ComputeOp::Scan(op) => vec![(wide(op.input.dtype()), op.output_shape())],
        ComputeOp::Search(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::Softmax(op) => vec![(DType::F32, op.output_shape())],
        ComputeOp::Sort(op) => vec![(DType::U32, op.output_shape()), (op.input.dtype(), op.output_shape())],
        ComputeOp::SortPairs(op) => vec![(DType::U32, *op.keys.shape()), (op.values.dtype(), *op.keys.shape())],
        ComputeOp::TopK(op) => vec![(op.input.dtype(), op.output_shape()?), (DType::U32, op.output_shape()?)],
        ComputeOp::Transfer(op) => vec![(op.input.dtype(), *op.input.shape())],
        ComputeOp::Transpose(op) => vec![(op.input.dtype(), *op.input.shape())],
    })
}

/// The type that takes the most memory on the way to this one: its carrier.
fn wide(dtype: DType) -> DType {
    panoply_kernels::wgsl::carrier_dtype(dtype)
}

/// Whether a kernel sees all of a tensor, its elements one after the other: where they are, behind the start of a window, or
/// in a block of their own.
fn is_within(profile: &Profile, tensor: &Tensor) -> bool {
    let size = tensor.dtype().size_bytes();
    let is_moved = tensor.location() == Location::Host || !tensor.is_contiguous();
    let before = if is_moved { 0 } else { tensor.offset() % (WINDOW_STEP_BYTES / size) };
    is_seen(before + tensor.elements(), size, profile.binding_bytes_max)
}

/// Whether a tensor that cannot be cut is within a kernel's reach, or why not.
fn fits_whole(profile: &Profile, what: &str, tensor: &Tensor) -> Result<(), String> {
    if is_within(profile, tensor) {
        return Ok(());
    }
    let bytes = tensor.elements() * tensor.dtype().size_bytes();
    Err(format!("{what} of {bytes} bytes; the adapter binds {}", profile.binding_bytes_max))
}

/// Whether slabs that inputs and an output consist of, one after the other, are within a kernel's reach, all at once or some
/// at a time, or why not. A slab is what is worked on by itself: all lines behind one place of the axes before theirs, or an
/// image. The output has so many elements of the type that carries them.
fn slabs_fit(
    profile: &Profile,
    slabs: usize,
    inputs: &[&Tensor],
    (elements, carrier): (usize, DType),
) -> Result<(), String> {
    let limit = profile.binding_bytes_max;
    let whole = is_seen(elements, carrier.size_bytes(), limit) && inputs.iter().all(|input| is_within(profile, input));
    if whole {
        return Ok(());
    }
    let read = inputs.iter().map(|input| (input.elements(), input.dtype().size_bytes()));
    for (elements, size) in read.chain([(elements, carrier.size_bytes())]) {
        let slab = elements / slabs.max(1);
        if slabs_within(profile, slab, size) == 0 {
            return Err(format!("{} bytes that belong together; the adapter binds {limit}", slab * size));
        }
    }
    Ok(())
}

fn no_f64(dtype: DType, op: &str) -> Result<(), String> {
    if dtype == DType::F64 { Err(format!("{op} of f64")) } else { Ok(()) }
}

/// An output without elements: nothing to compute, and nothing to bind.
fn empty(dtype: DType, shape: Shape) -> Result<Tensor> {
    Tensor::zeros(dtype, shape)
}

/// One axis among the others.
#[derive(Clone, Copy, Debug)]
struct Extents {
    outer: usize,
    axis: usize,
    inner: usize,
}

impl Extents {
    fn new(shape: &[usize], axis: usize) -> Extents {
        let product = |dims: &[usize]| dims.iter().product();
        Extents { outer: product(&shape[..axis]), axis: shape[axis], inner: product(&shape[axis + 1..]) }
    }

    /// How many lines run along the axis.
    fn lines(&self) -> usize {
        self.outer * self.inner
    }

    fn params(&self) -> [u32; 3] {
        [self.outer as u32, self.axis as u32, self.inner as u32]
    }
}
