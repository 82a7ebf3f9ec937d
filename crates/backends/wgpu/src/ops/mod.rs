//! From an op to dispatches, one file per op. [`support`] says what runs; [`run`] records it.

use panoply_core::op::compute::ComputeOp;
use panoply_core::{DType, Describe, Error, Location, Op, Result, Shape, Tensor, Value};

use crate::adapter::Profile;
use crate::context::Context;
use crate::engine::Answer;
use crate::operand::{WINDOW_STEP_BYTES, reach};
use crate::pieces::slabs_within;
use crate::quirks::{self, QUIRKS};

pub(crate) use map_again::KnownMaps;

mod color_convert;
mod conv2d;
mod gather;
mod large_matmul;
mod layernorm;
mod listed_search;
mod long_map;
mod map;
mod map_again;
mod matmul;
mod matrix_units;
mod normalize;
mod pool2d;
mod reduce;
mod resize;
mod scan;
mod search;
mod softmax;
mod sort;
mod topk;
mod transfer;
mod transpose;

/// The most elements of a tensor: indices and their products are 32-bit integers in kernels.
const ELEMENTS_MAX: usize = i32::MAX as usize;

/// Whether an adapter runs an op, or why not.
pub(crate) fn support(profile: &Profile, op: &Op) -> Result<(), String> {
    let Op::Compute(compute) = op else { return Err(format!("the {} domain is not for GPUs", op.domain())) };
    if let Some(quirk) = quirks::find(QUIRKS, &profile.name, &profile.driver, op.name()) {
        return Err(format!("{} with {}: {}", profile.name, profile.driver, quirk.reason));
    }
    let within = if is_cut(compute) { Reach::Memory } else { Reach::Binding };
    let mut wrong = None;
    op.for_each_input(&mut |tensor| wrong = wrong.take().or_else(|| input_trouble(profile, within, tensor)));
    if let Some(reason) = wrong {
        return Err(reason);
    }
    for (dtype, shape) in outputs(compute).map_err(|error| error.to_string())? {
        fits(profile, within, "an output", dtype, &shape)?;
    }
    match compute {
        ComputeOp::Map(op) => map::support(profile, op),
        ComputeOp::Reduce(op) => no_f64(op.input.dtype(), "reduce"),
        ComputeOp::Scan(op) => scan::support(profile, op),
        ComputeOp::Softmax(op) => no_f64(op.input.dtype(), "softmax")
            .and_then(|()| slab_fits(profile, Extents::new(op.input.shape(), op.axis), DType::F32)),
        ComputeOp::LayerNorm(op) => {
            no_f64(op.input.dtype(), "layernorm").and_then(|()| layernorm::support(profile, op))
        }
        ComputeOp::MatMul(op) => no_f64(op.a.dtype(), "matmul").and_then(|()| large_matmul::support(profile, op)),
        ComputeOp::Conv2d(op) => no_f64(op.input.dtype(), "conv2d").and_then(|()| conv2d::support(op.conv_shape())),
        ComputeOp::Conv2dBackwardInput(op) => {
            no_f64(op.weights.dtype(), "conv2d").and_then(|()| conv2d::support(op.conv_shape()))
        }
        ComputeOp::Conv2dBackwardWeight(op) => {
            no_f64(op.input.dtype(), "conv2d").and_then(|()| conv2d::support(op.conv_shape()))
        }
        ComputeOp::Pool2d(op) => no_f64(op.input.dtype(), "pool2d").and_then(|()| pool2d::support(op)),
        ComputeOp::Sort(op) => sort::support(profile, op.input.dtype(), op.input.shape()[op.axis])
            .and_then(|()| sort::cut_support(profile, op.input.shape(), op.axis, &[op.input.dtype()])),
        ComputeOp::ArgSort(op) => sort::support(profile, op.input.dtype(), op.input.shape()[op.axis])
            .and_then(|()| sort::cut_support(profile, op.input.shape(), op.axis, &[op.input.dtype()])),
        ComputeOp::SortPairs(op) => sort::support(profile, op.keys.dtype(), op.keys.shape()[op.axis])
            .and_then(|()| sort::cut_support(profile, op.keys.shape(), op.axis, &[op.keys.dtype(), op.values.dtype()])),
        ComputeOp::TopK(op) => topk::support(profile, op),
        ComputeOp::Search(op) => search::support(profile, op),
        ComputeOp::Resize(op) => resize::support(op),
        ComputeOp::Gather(op) => gather::support(profile, op),
        ComputeOp::ColorConvert(_) | ComputeOp::Normalize(_) | ComputeOp::Transfer(_) | ComputeOp::Transpose(_) => {
            Ok(())
        }
    }
}

/// Records an op.
pub(crate) fn run(op: &Op, context: &mut Context) -> Result<Answer> {
    if let Op::Compute(ComputeOp::Map(map)) = op
        && let Some(tensor) = map_again::run(map, context)?
    {
        return Ok(Answer::Value(Value::Tensor(tensor)));
    }
    if let Err(reason) = support(&context.profile, op) {
        return Err(Error::Unsupported { op: op.name(), reason });
    }
    let Op::Compute(op) = op else {
        return Err(Error::Unsupported { op: op.name(), reason: "not an op of the compute domain".to_owned() });
    };
    let tensor = |tensor: Result<Tensor>| tensor.map(|tensor| Answer::Value(Value::Tensor(tensor)));
    let pair = |pair: Result<(Tensor, Tensor)>| pair.map(|(first, second)| Answer::Value(Value::Pair(first, second)));
    match op {
        ComputeOp::ArgSort(op) => tensor(sort::run_arg(op, context)),
        ComputeOp::ColorConvert(op) => tensor(color_convert::run(op, context)),
        ComputeOp::Conv2d(op) => tensor(conv2d::forward(op, context)),
        ComputeOp::Conv2dBackwardInput(op) => tensor(conv2d::backward_input(op, context)),
        ComputeOp::Conv2dBackwardWeight(op) => tensor(conv2d::backward_weight(op, context)),
        ComputeOp::Gather(op) => gather::run(op, context),
        ComputeOp::LayerNorm(op) => tensor(layernorm::run(op, context)),
        ComputeOp::Map(op) => tensor(map::run(op, context)),
        ComputeOp::MatMul(op) => tensor(matmul::run(op, context)),
        ComputeOp::Normalize(op) => tensor(normalize::run(op, context)),
        ComputeOp::Pool2d(op) => tensor(pool2d::run(op, context)),
        ComputeOp::Reduce(op) => tensor(reduce::run(op, context)),
        ComputeOp::Resize(op) => tensor(resize::run(op, context)),
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
        ComputeOp::ColorConvert(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::Conv2d(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::Conv2dBackwardInput(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::Conv2dBackwardWeight(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::Gather(op) => vec![(op.input.dtype(), op.output_shape()?)],
        ComputeOp::LayerNorm(op) => vec![(DType::F32, op.output_shape())],
        ComputeOp::Map(op) => vec![(op.output_dtype()?, op.output_shape()?)],
        ComputeOp::MatMul(op) => vec![(wide(op.output_dtype()), op.output_shape()?)],
        ComputeOp::Normalize(op) => vec![(DType::F32, op.output_shape())],
        ComputeOp::Pool2d(op) => vec![(DType::F32, op.output_shape()?)],
        ComputeOp::Reduce(op) => vec![(wide(op.output_dtype()), op.output_shape()?)],
        ComputeOp::Resize(op) => vec![(DType::F32, op.output_shape()?)],
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

/// What a tensor must not be larger than.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    /// What one kernel sees.
    Binding,
    /// The largest buffer: the op works in pieces.
    Memory,
}

/// Whether the op cuts tensors that are larger than a kernel sees into pieces.
fn is_cut(op: &ComputeOp) -> bool {
    matches!(
        op,
        ComputeOp::ArgSort(_)
            | ComputeOp::Gather(_)
            | ComputeOp::LayerNorm(_)
            | ComputeOp::Map(_)
            | ComputeOp::MatMul(_)
            | ComputeOp::Reduce(_)
            | ComputeOp::Scan(_)
            | ComputeOp::Search(_)
            | ComputeOp::Softmax(_)
            | ComputeOp::Sort(_)
            | ComputeOp::SortPairs(_)
            | ComputeOp::Transfer(_)
    )
}

fn input_trouble(profile: &Profile, within: Reach, tensor: &Tensor) -> Option<String> {
    match tensor.location() {
        Location::Device(device) if device != profile.id => {
            Some(format!("an input lives on {device}; transfer it to the host first"))
        }
        Location::Device(_) if within == Reach::Memory => None,
        Location::Device(_) => {
            // A view is read where it is, so all that lies between its elements must be within reach.
            let (low, high) = reach(tensor.shape(), tensor.strides());
            let bytes = (high - low + 1) as u64 * tensor.dtype().size_bytes() as u64;
            let large = bytes + WINDOW_STEP_BYTES as u64 > profile.binding_bytes_max
                && tensor.buffer().len_bytes() as u64 > profile.binding_bytes_max;
            large.then(|| format!("an input that spans {bytes} bytes; the adapter binds {}", profile.binding_bytes_max))
        }
        Location::Host => fits(profile, within, "an input", tensor.dtype(), tensor.shape()).err(),
    }
}

fn fits(profile: &Profile, within: Reach, what: &str, dtype: DType, shape: &Shape) -> Result<(), String> {
    let elements = shape.elements();
    let bytes = elements.saturating_mul(dtype.size_bytes()) as u64;
    if within == Reach::Memory {
        let most = profile.buffer_bytes_max;
        return if bytes > most { Err(format!("{what} of {bytes} bytes; a buffer has {most}")) } else { Ok(()) };
    }
    if bytes > profile.binding_bytes_max {
        return Err(format!("{what} of {bytes} bytes; the adapter binds {}", profile.binding_bytes_max));
    }
    if elements > ELEMENTS_MAX {
        return Err(format!("{what} of {elements} elements; kernels count to {ELEMENTS_MAX}"));
    }
    Ok(())
}

/// Whether the lines behind one place of the axes before theirs are within a kernel's reach, as this type; all of them may
/// be more.
fn slab_fits(profile: &Profile, extents: Extents, dtype: DType) -> Result<(), String> {
    let (slab, size) = (extents.axis * extents.inner, dtype.size_bytes());
    let whole =
        (extents.outer * slab * size) as u64 <= profile.binding_bytes_max && extents.outer * slab <= ELEMENTS_MAX;
    if whole || slabs_within(profile, slab, size) > 0 {
        return Ok(());
    }
    Err(format!("lines of {} bytes that belong together; the adapter binds {}", slab * size, profile.binding_bytes_max))
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
