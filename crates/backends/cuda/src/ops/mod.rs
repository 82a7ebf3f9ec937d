//! From an op to launches: one file per op. Each brings its inputs to the device, takes memory for its output, and queues
//! what computes it. Nothing here waits for the device.

use panoply_core::op::compute::ComputeOp;
use panoply_core::op::signal::SignalOp;
use panoply_core::{Op, Result, Support, Value};

use crate::context::Context;
use crate::driver::Stream;

mod color_convert;
mod conv2d;
mod conv2d_cudnn;
mod conv2d_trial;
mod fft;
mod gather;
mod layernorm;
pub(crate) mod map;
mod matmul;
mod matmul_tiles;
mod normalize;
mod pool2d;
mod reduce;
mod resize;
mod rows;
pub(crate) mod scan;
mod search;
mod softmax;
mod sort;
pub(crate) mod together;
mod topk;
mod transfer;
mod transpose;

/// The stream on which an op's work begins. What begins with a copy to the host is nothing else.
pub(crate) fn first_stream(op: &Op, context: &Context) -> Stream {
    match op {
        Op::Compute(ComputeOp::Transfer(op)) if transfer::is_download_alone(op, context) => Stream::Download,
        _ => Stream::Compute,
    }
}

/// Queues one op.
pub(crate) fn run(op: &Op, context: &mut Context) -> Result<Value> {
    match op {
        Op::Compute(op) => run_compute(op, context),
        Op::Signal(op) => run_signal(op, context),
        op => Err(Support::unknown(op).refusal(op)),
    }
}

fn run_compute(op: &ComputeOp, context: &mut Context) -> Result<Value> {
    match op {
        ComputeOp::ArgSort(op) => sort::run_arg(op, context),
        ComputeOp::ColorConvert(op) => color_convert::run(op, context),
        ComputeOp::Conv2d(op) => conv2d::run(op, context),
        ComputeOp::Conv2dBackwardInput(op) => conv2d::run_backward_input(op, context),
        ComputeOp::Conv2dBackwardWeight(op) => conv2d::run_backward_weight(op, context),
        ComputeOp::Gather(op) => gather::run(op, context),
        ComputeOp::LayerNorm(op) => layernorm::run(op, context),
        ComputeOp::Map(op) => map::run(op, context),
        ComputeOp::MatMul(op) => matmul::run(op, context),
        ComputeOp::Normalize(op) => normalize::run(op, context),
        ComputeOp::Pool2d(op) => pool2d::run(op, context),
        ComputeOp::Reduce(op) => reduce::run(op, context),
        ComputeOp::Resize(op) => resize::run(op, context),
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

/// Whether a device runs this op.
pub(crate) fn supports(op: &Op) -> Support {
    match op {
        Op::Compute(op) => supports_compute(op),
        Op::Signal(op) => supports_signal(op),
        op => Support::unknown(op),
    }
}

fn supports_compute(op: &ComputeOp) -> Support {
    match op {
        ComputeOp::Search(op) => search::supports(op),
        ComputeOp::TopK(op) => topk::supports(op),
        _ => Support::Yes,
    }
}

fn run_signal(op: &SignalOp, context: &mut Context) -> Result<Value> {
    match op {
        SignalOp::Fft(op) => fft::run(op, context),
        SignalOp::Ifft(op) => fft::run_inverse(op, context),
    }
}

fn supports_signal(op: &SignalOp) -> Support {
    match op {
        SignalOp::Fft(_) | SignalOp::Ifft(_) => Support::Yes,
    }
}
