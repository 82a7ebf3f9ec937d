//! From an op to launches: a folder for each domain, a file for each op. Each brings its inputs to the device, takes memory for its
//! output, and queues what computes it. Nothing here waits for the device.

use panoply_core::{DeviceInfo, Error, Op, Result, Support, Tensor, Value};

use crate::context::Context;
use crate::driver::Stream;

pub mod compute;
pub(crate) mod graph;
pub mod signal;
pub(crate) mod together;

/// The stream on which an op's work begins. What begins with a copy to the host is nothing else.
pub(crate) fn first_stream(op: &Op, context: &Context) -> Stream {
    match op {
        Op::Compute(op) => compute::first_stream(op, context),
        _ => Stream::Compute,
    }
}

/// Queues one op.
pub(crate) fn run(op: &Op, context: &mut Context) -> Result<Value> {
    match op {
        Op::Compute(op) => compute::run(op, context),
        Op::Signal(op) => signal::run(op, context),
        Op::Graph(op) => graph::run(op, context),
        op => Err(Support::unknown(op).refusal(op)),
    }
}

/// Whether devices of the C dialect run this op.
pub fn supports(op: &Op) -> Support {
    if let Err(error) = check_axes(op) {
        return Support::No(error.to_string());
    }
    match op {
        Op::Compute(op) => compute::supports(op),
        Op::Signal(op) => signal::supports(op),
        Op::Graph(op) => graph::supports(op),
        op => Support::unknown(op),
    }
}

/// Whether this device of the C dialect runs this op: the op itself, and the memory that a graph needs.
pub fn supports_on(device: &DeviceInfo, op: &Op) -> Support {
    match (supports(op), op) {
        (Support::Yes, Op::Graph(graph)) => graph::fits(graph, device),
        (answer, _) => answer,
    }
}

/// Kernels count along an axis with 32 bits; ops that go over contiguous elements, whatever the axes, have 64.
fn check_axes(op: &Op) -> Result<()> {
    let goes_over_elements = matches!(op, Op::Compute(op) if compute::goes_over_elements(op));
    let mut checked = Ok(());
    op.for_each_tensor(&mut |tensor| {
        if !(goes_over_elements && tensor.is_contiguous())
            && let Some(got) = longest_axis(tensor).filter(|axis| *axis > u32::MAX as usize)
        {
            checked = Err(Error::OutOfBounds { what: "the axis of a tensor", limit: u32::MAX as usize, got });
        }
    });
    checked
}

/// The longest axis of a tensor that has elements.
fn longest_axis(tensor: &Tensor) -> Option<usize> {
    if tensor.elements() == 0 { None } else { tensor.shape().iter().copied().max() }
}

#[cfg(test)]
mod tests {
    use panoply_core::op::compute::{Map, Reduce, Scan, ScanKind, Softmax, Transpose};
    use panoply_core::{DType, Describe, Operation};

    use super::*;

    #[test]
    fn axes_beyond_32_bits_are_refused_before_anything_runs() {
        let one = Tensor::zeros(DType::F32, [1, 1]).unwrap();
        let most = one.broadcast_to([2, u32::MAX as usize]).unwrap();
        let over = one.broadcast_to([2, u32::MAX as usize + 1]).unwrap();
        let ops = |x: &Tensor| {
            [
                Map::neg(x).into_op(),
                Softmax::new(x).into_op(),
                Transpose::new(x).into_op(),
                Reduce::sum(x).into_op(),
                Scan::new(x, ScanKind::Sum).into_op(),
            ]
            .map(Result::unwrap)
        };
        for op in ops(&most) {
            assert_eq!(supports(&op), Support::Yes, "{}", op.name());
        }
        for op in ops(&over) {
            let Support::No(reason) = supports(&op) else { panic!("{} is not refused", op.name()) };
            assert!(reason.contains("at most 4294967295, got 4294967296"), "{reason}");
        }
        // Nobody goes along an axis of no elements.
        let none = Tensor::zeros(DType::F32, [0, 1]).unwrap().broadcast_to([0, u32::MAX as usize + 1]).unwrap();
        assert_eq!(supports(&Map::neg(&none).into_op().unwrap()), Support::Yes);
    }
}
