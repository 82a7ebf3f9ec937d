//! Finds the op that produced a NaN or an infinity, by running a graph op by op.

use panoply_core::graph::Graph;
use panoply_core::op::compute::Transfer;
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Location, Op, Tensor, Value, bf16, f16};
use panoply_runtime::{RunOptions, Runtime};

use crate::error::Result;
use crate::grad::RecordedOp;

/// A message that names the first op of a graph with finite inputs and an output that is not
/// finite, or the input of the graph that is not finite. `None` if all values are finite.
pub(crate) fn first_bad_op(runtime: &Runtime, graph: &Graph, inputs: &[Tensor]) -> Result<Option<String>> {
    let host = |tensor: &Tensor| match tensor.location() {
        Location::Host => Ok(tensor.clone()),
        Location::Device(_) => runtime.run(Transfer::to_host(tensor)).wait(),
    };
    let inputs: Vec<Tensor> = inputs.iter().map(host).collect::<panoply_core::Result<_>>()?;
    for (input, node) in inputs.iter().zip(graph.inputs()) {
        if !is_finite(input) {
            return Ok(Some(format!("no op: the input {} is not finite", graph.node_name(*node))));
        }
    }
    let op = RunGraph::new(graph, &inputs.iter().collect::<Vec<_>>());
    let instance = op.instance()?;
    let mut steps = instance.steps.iter();
    let mut found = None;
    instance.run(graph, &inputs, &mut |op: &Op| {
        let value: Value = runtime.run_with(RecordedOp(op.clone()), RunOptions::default().to_host()).wait()?;
        let step = steps.next();
        if found.is_none() && !value.tensors().all(is_finite) {
            let mut clean = true;
            op.for_each_tensor(&mut |tensor| clean &= is_finite(tensor));
            if clean {
                found = step.map(|step| graph.node_text(step.node));
            }
        }
        Ok(value)
    })?;
    Ok(found)
}

/// Whether every element of a tensor on the host is finite.
fn is_finite(tensor: &Tensor) -> bool {
    match tensor.dtype() {
        DType::F32 => tensor.to_vec::<f32>().is_ok_and(|values| values.iter().all(|value| value.is_finite())),
        DType::F64 => tensor.to_vec::<f64>().is_ok_and(|values| values.iter().all(|value| value.is_finite())),
        DType::F16 => tensor.to_vec::<f16>().is_ok_and(|values| values.iter().all(|value| value.is_finite())),
        DType::BF16 => tensor.to_vec::<bf16>().is_ok_and(|values| values.iter().all(|value| value.is_finite())),
        _ => true,
    }
}
