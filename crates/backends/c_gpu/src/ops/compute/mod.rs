//! Arithmetic on tensors.

use panoply_core::op::compute::ComputeOp;
use panoply_core::{Result, Support, Value};

use crate::context::Context;
use crate::driver::Stream;

pub(crate) mod attention;
mod color_convert;
pub mod conv2d;
mod gather;
mod kernel;
mod layernorm;
pub(crate) mod map;
pub(crate) mod matmul;
mod normalize;
mod pool2d;
pub(crate) mod reduce;
mod resize;
pub(crate) mod row_map;
mod rows;
pub(crate) mod scan;
pub(crate) mod search;
mod softmax;
mod sort;
pub(crate) mod topk;
mod transfer;
mod transpose;

pub(super) fn first_stream(op: &ComputeOp, context: &Context) -> Stream {
    match op {
        ComputeOp::Transfer(op) if transfer::is_download_alone(op, context) => Stream::Download,
        _ => Stream::Compute,
    }
}

pub(super) fn run(op: &ComputeOp, context: &mut Context) -> Result<Value> {
    match op {
        ComputeOp::ArgSort(op) => sort::run_arg(op, context),
        ComputeOp::Attention(op) => attention::run(op, context),
        ComputeOp::ColorConvert(op) => color_convert::run(op, context),
        ComputeOp::Conv2d(op) => conv2d::run(op, context),
        ComputeOp::Conv2dBackwardInput(op) => conv2d::run_backward_input(op, context),
        ComputeOp::Conv2dBackwardWeight(op) => conv2d::run_backward_weight(op, context),
        ComputeOp::Gather(op) => gather::run(op, context),
        ComputeOp::Kernel(op) => kernel::run(op, context),
        ComputeOp::LayerNorm(op) => layernorm::run(op, context),
        ComputeOp::Map(op) => map::run(op, context),
        ComputeOp::MatMul(op) => matmul::run(op, context),
        ComputeOp::Normalize(op) => normalize::run(op, context),
        ComputeOp::Pool2d(op) => pool2d::run(op, context),
        ComputeOp::Reduce(op) => reduce::run(op, context),
        ComputeOp::Resize(op) => resize::run(op, context),
        ComputeOp::RowMap(op) => row_map::run(op, context),
        ComputeOp::Scan(op) => scan::run(op, context),
        ComputeOp::Search(op) => search::run(op, context),
        ComputeOp::TopK(op) => topk::run(op, context),
        ComputeOp::Softmax(op) => softmax::run(op, context),
        ComputeOp::Sort(op) => sort::run(op, context),
        ComputeOp::SortPairs(op) => sort::run_pairs(op, context),
        ComputeOp::Transfer(op) => transfer::run(op, context),
        ComputeOp::Transpose(op) => transpose::run(op, context),
    }
}

pub(super) fn supports(op: &ComputeOp) -> Support {
    match op {
        ComputeOp::Kernel(op) => kernel::supports(op),
        ComputeOp::Reduce(op) => reduce::supports(op),
        ComputeOp::Resize(op) => resize::supports(op),
        ComputeOp::Search(op) => search::supports(op),
        _ => Support::Yes,
    }
}

/// Whether the kernels of an op number the elements of contiguous tensors with 64 bits, for any
/// axes.
pub(super) fn goes_over_elements(op: &ComputeOp) -> bool {
    matches!(
        op,
        ComputeOp::Kernel(_)
            | ComputeOp::Map(_)
            | ComputeOp::Reduce(_)
            | ComputeOp::Scan(_)
            | ComputeOp::Sort(_)
            | ComputeOp::Transfer(_)
    )
}
