//! The compute domain: arithmetic on tensors.

use panoply_core::op::compute::{ComputeOp, Kernel};
use panoply_core::{Result, Value};

mod attention;
mod color_convert;
mod conv2d;
mod gather;
mod layernorm;
mod map;
mod matmul;
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

/// The answers to a map, one for each way in which arithmetic may flush subnormal numbers.
pub(super) fn flushed(op: &ComputeOp) -> Option<Vec<Value>> {
    let ComputeOp::Map(op) = op else { return None };
    map::Flush::ALL.into_iter().map(|flush| map::run_flushing(op, flush).ok()).collect()
}

/// The answer to an op of the domain.
pub(super) fn run(op: &ComputeOp) -> Result<Value> {
    match op {
        ComputeOp::ArgSort(op) => sort::run_arg(op),
        ComputeOp::Attention(op) => attention::run(op),
        ComputeOp::ColorConvert(op) => color_convert::run(op),
        ComputeOp::Conv2d(op) => conv2d::forward(op),
        ComputeOp::Conv2dBackwardInput(op) => conv2d::backward_input(op),
        ComputeOp::Conv2dBackwardWeight(op) => conv2d::backward_weight(op),
        ComputeOp::Gather(op) => gather::run(op),
        // The closure defines the meaning of the kernel.
        ComputeOp::Kernel(op) => op.compute().map(Kernel::value),
        ComputeOp::LayerNorm(op) => layernorm::run(op),
        ComputeOp::Map(op) => map::run(op),
        ComputeOp::MatMul(op) => matmul::run(op),
        ComputeOp::Normalize(op) => normalize::run(op),
        ComputeOp::Pool2d(op) => pool2d::run(op),
        ComputeOp::Reduce(op) => reduce::run(op),
        ComputeOp::Resize(op) => resize::run(op),
        ComputeOp::RowMap(op) => row_map::run(op),
        ComputeOp::Scan(op) => scan::run(op),
        ComputeOp::Search(op) => search::run(op),
        ComputeOp::Softmax(op) => softmax::run(op),
        ComputeOp::Sort(op) => sort::run(op),
        ComputeOp::SortPairs(op) => sort::run_pairs(op),
        ComputeOp::TopK(op) => topk::run(op),
        ComputeOp::Transfer(op) => transfer::run(op),
        ComputeOp::Transpose(op) => transpose::run(op),
    }
}
