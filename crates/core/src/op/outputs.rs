//! What an op gives, before it runs: the element types and shapes of its output's tensors, in the order of its value's parts.

use super::Op;
use super::compute::ComputeOp;
use super::signal::SignalOp;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::shape::Shape;

impl Op {
    /// The element types and shapes of the tensors that the op gives. Fails where its inputs do not fit, and for ops whose
    /// output is not tensors.
    pub fn outputs(&self) -> Result<Vec<(DType, Shape)>> {
        let one = |dtype, shape| Ok(vec![(dtype, shape)]);
        match self {
            Op::Compute(op) => match op {
                ComputeOp::ArgSort(op) => one(DType::U32, op.output_shape()),
                ComputeOp::Attention(op) => one(op.q.dtype(), op.output_shape()?),
                ComputeOp::ColorConvert(op) => one(op.input.dtype(), op.output_shape()?),
                ComputeOp::Conv2d(op) => one(op.input.dtype(), op.output_shape()?),
                ComputeOp::Gather(op) => one(op.input.dtype(), op.output_shape()?),
                ComputeOp::Kernel(op) => Ok(op.output_types().collect()),
                ComputeOp::LayerNorm(op) => one(op.input.dtype(), op.output_shape()),
                ComputeOp::Map(op) => one(op.output_dtype()?, op.output_shape()?),
                ComputeOp::MatMul(op) => one(op.output_dtype(), op.output_shape()?),
                ComputeOp::Pool2d(op) => one(op.input.dtype(), op.output_shape()?),
                ComputeOp::Reduce(op) => one(op.output_dtype(), op.output_shape()?),
                ComputeOp::Resize(op) => one(op.input.dtype(), op.output_shape()?),
                ComputeOp::RowMap(op) => one(op.output_dtype()?, op.output_shape()?),
                ComputeOp::Scan(op) => one(op.input.dtype(), op.output_shape()),
                ComputeOp::Softmax(op) => one(op.input.dtype(), op.output_shape()),
                ComputeOp::Sort(op) => one(op.input.dtype(), op.output_shape()),
                ComputeOp::SortPairs(op) => {
                    Ok(vec![(op.keys.dtype(), *op.keys.shape()), (op.values.dtype(), *op.values.shape())])
                }
                ComputeOp::TopK(op) => {
                    let shape = op.output_shape()?;
                    Ok(vec![(op.input.dtype(), shape), (DType::U32, shape)])
                }
                ComputeOp::Transpose(op) => one(op.input.dtype(), op.output_shape()?),
                _ => self.without_outputs(),
            },
            Op::Signal(op) => match op {
                SignalOp::Fft(op) => one(DType::Complex64, op.output_shape()?),
                SignalOp::Ifft(op) => one(op.output_dtype(), op.output_shape()?),
            },
            _ => self.without_outputs(),
        }
    }

    fn without_outputs(&self) -> Result<Vec<(DType, Shape)>> {
        let reason = "the shapes of its outputs are not known before it runs".to_owned();
        Err(Error::Unsupported { op: self.name(), reason })
    }
}
