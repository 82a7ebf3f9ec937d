//! The compute domain: arithmetic on tensors.

use panoply_core::op::compute::ComputeOp;
use panoply_core::{Result, Value};

use crate::context::Context;

mod attention;
mod color_convert;
pub(crate) mod conv2d;
mod gather;
mod kernel;
mod layernorm;
mod map;
mod matmul;
mod normalize;
mod pool2d;
mod reduce;
mod resize;
mod row_map;
mod scan;
pub(crate) mod search;
mod softmax;
mod sort;
mod topk;
mod transfer;
pub(crate) mod transpose;

/// Runs one op of the domain.
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
        ComputeOp::Softmax(op) => softmax::run(op, context),
        ComputeOp::Sort(op) => sort::run(op, context),
        ComputeOp::SortPairs(op) => sort::run_pairs(op, context),
        ComputeOp::TopK(op) => topk::run(op, context),
        ComputeOp::Transfer(op) => transfer::run(op, context),
        ComputeOp::Transpose(op) => transpose::run(op, context),
    }
}
