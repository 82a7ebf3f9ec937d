//! The cost of a step: the bytes that it must read and write, its operations, and its time on a
//! device of known rates.

use panoply_core::op::compute::ComputeOp;
use panoply_core::{Describe, Op, Tensor};

/// The bytes and operations of one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of its inputs (broadcast elements counted once) and of its outputs.
    pub bytes: u64,
    /// Additions, multiplications and functions.
    pub flops: u64,
}

/// The approximate rates of a device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Bytes read or written per nanosecond.
    pub bytes_per_ns: f64,
    /// Operations per nanosecond.
    pub flops_per_ns: f64,
    /// Nanoseconds to launch a kernel.
    pub launch_ns: f64,
}

impl Rates {
    /// The time of a step in nanoseconds: the launch, plus the time for its bytes or its
    /// operations, whichever is longer.
    pub fn time_ns(&self, cost: &Cost) -> f64 {
        self.launch_ns + (cost.bytes as f64 / self.bytes_per_ns).max(cost.flops as f64 / self.flops_per_ns)
    }
}

/// The cost of an op over tensors or placeholders.
pub fn cost(op: &Op) -> Cost {
    let mut bytes = 0_u64;
    op.for_each_tensor(&mut |tensor| bytes = bytes.saturating_add(touched_bytes(tensor)));
    let outputs = op.outputs().unwrap_or_default();
    for (dtype, shape) in &outputs {
        bytes = bytes.saturating_add((shape.elements() * dtype.size_bytes()) as u64);
    }
    let elements = outputs.first().map_or(0, |(_, shape)| shape.elements() as u64);
    Cost { bytes, flops: flops(op, elements) }
}

fn flops(op: &Op, elements: u64) -> u64 {
    let Op::Compute(compute) = op else { return op.work() };
    let nodes = |program: panoply_core::Result<&panoply_core::expr::Program>| {
        program.map_or(1, |program| program.nodes().len()) as u64
    };
    match compute {
        ComputeOp::MatMul(_) | ComputeOp::Conv2d(_) | ComputeOp::Attention(_) => op.work().saturating_mul(2),
        ComputeOp::Map(op) => elements.saturating_mul(nodes(op.program())),
        ComputeOp::RowMap(op) => {
            let rows = op.work().saturating_mul(nodes(op.before_program()) + 4);
            rows.saturating_add(elements.saturating_mul(nodes(op.after_program())))
        }
        ComputeOp::Softmax(_) | ComputeOp::LayerNorm(_) => op.work().saturating_mul(6),
        _ => op.work(),
    }
}

/// Bytes of the distinct elements of a view.
pub(crate) fn touched_bytes(tensor: &Tensor) -> u64 {
    let axes = tensor.shape().iter().zip(tensor.strides().iter());
    let distinct = axes.filter(|(_, stride)| **stride != 0).map(|(size, _)| *size as u64).product::<u64>();
    if tensor.elements() == 0 { 0 } else { distinct.saturating_mul(tensor.dtype().size_bytes() as u64) }
}
