//! Decides which ops have a program.

use panoply_core::op::compute::{ComputeOp, ResizeMode};
use panoply_core::op::graph::GraphOp;
use panoply_core::{DeviceInfo, Op, Support};

use super::images::area_taps;

/// Maximum number of a tensor's elements. Positions are signed 32-bit numbers.
const ELEMENTS_MAX: usize = i32::MAX as usize;
/// Maximum number of a box's pixels along one axis. Each pixel is a step of the program.
const AREA_TAPS_MAX: usize = 64;

/// Whether an op has a program.
pub(crate) fn supports(device: &DeviceInfo, op: &Op) -> Support {
    match op {
        Op::Graph(GraphOp::RunGraph(graph)) => match graph.instance() {
            Ok(instance) => instance.support(graph.graph(), device.id, &|op| supports(device, op)),
            Err(error) => Support::No(error.to_string()),
        },
        Op::Compute(ComputeOp::Transfer(_)) => Support::Yes,
        Op::Compute(compute) => match family(compute) {
            Support::Yes => sizes(op),
            no => no,
        },
        op => Support::unknown(op),
    }
}

fn family(op: &ComputeOp) -> Support {
    match op {
        ComputeOp::Kernel(_) => Support::No("it runs StableHLO, no kernel's source".to_owned()),
        ComputeOp::Search(_) | ComputeOp::ColorConvert(_) => {
            Support::No("there is no StableHLO program for it".to_owned())
        }
        ComputeOp::Resize(op) if op.mode == ResizeMode::Area && area_taps(op) > AREA_TAPS_MAX => {
            Support::No(format!("boxes of more than {AREA_TAPS_MAX} pixels a side are not written out"))
        }
        _ => Support::Yes,
    }
}

fn sizes(op: &Op) -> Support {
    let mut largest = 0;
    op.for_each_tensor(&mut |tensor| {
        let behind = tensor.buffer().len_bytes() / tensor.dtype().size_bytes();
        largest = largest.max(tensor.elements()).max(behind);
    });
    let outputs = super::outputs(op).unwrap_or_default();
    let largest = outputs.iter().map(|(_, shape)| shape.elements()).fold(largest, usize::max);
    match largest > ELEMENTS_MAX {
        true => Support::No(format!("a tensor of {largest} elements; at most {ELEMENTS_MAX} have positions")),
        false => Support::Yes,
    }
}
