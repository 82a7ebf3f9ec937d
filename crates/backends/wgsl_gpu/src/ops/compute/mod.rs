//! Arithmetic on tensors: from an op to dispatches, one file per op.

use panoply_core::op::compute::ComputeOp;
use panoply_core::{DType, Error, Result, Shape, Tensor, Value};

use crate::context::Context;
use crate::driver::Driver;
use crate::engine::Answer;
use crate::profile::Profile;

use super::fits_memory;
use extents::{Extents, empty, fits_whole, is_within, no_f64, slabs_fit, wide};
use turned::TransposedOp;

pub(super) use map_again::run as run_again;

mod attention;
mod color_convert;
mod columns;
mod conv2d;
mod extents;
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

/// Checks that an adapter runs an op.
pub(super) fn support(profile: &Profile, op: &ComputeOp) -> Result<(), String> {
    way(profile, op).map(drop)
}

/// The way in which an op is run.
enum RunMethod<'a> {
    /// Unchanged.
    Direct(&'a ComputeOp),
    /// On transposed inputs, whose lines are contiguous.
    Turned(Box<TransposedOp>),
}

/// The way in which an adapter runs an op, or the reason why it does not.
fn way<'a>(profile: &Profile, op: &'a ComputeOp) -> Result<RunMethod<'a>, String> {
    let Err(reason) = direct(profile, op) else { return Ok(RunMethod::Direct(op)) };
    match TransposedOp::new(op) {
        Some(turned) if direct(profile, turned.op()).is_ok() => Ok(RunMethod::Turned(Box::new(turned))),
        _ => Err(reason),
    }
}

/// Checks that an adapter runs an op unchanged.
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
pub(super) fn run<D: Driver>(op: &ComputeOp, context: &mut Context<D>) -> Result<Answer> {
    let unsupported = |reason| Error::Unsupported { op: op.describe().name(), reason };
    match way(&context.profile, op).map_err(unsupported)? {
        RunMethod::Direct(op) => record(op, context),
        RunMethod::Turned(turned) => turned.run(context),
    }
}

/// Records an op unchanged.
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

/// The types and shapes of an op's outputs, in the largest type that they take on the way.
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
