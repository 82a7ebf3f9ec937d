//! Writes Panoply's ops as StableHLO. An op's tensors are placeholders for a program's slots, and
//! its outputs become values of the program.

mod attention;
mod conv;
mod emit;
mod images;
mod indexed;
mod maps;
mod pool;
mod product;
mod reduce;
mod rows;
mod support;

use panoply_core::op::compute::ComputeOp;
use panoply_core::{DType, Describe, Op, Result, Shape, Support};

use crate::hlo::{self, Value};

pub(crate) use emit::{Check, Emit};
pub(crate) use support::supports;

/// The outputs of an op, also of ops that cannot be nodes of graphs.
pub(crate) fn outputs(op: &Op) -> Result<Vec<(DType, Shape)>> {
    op.answer_types().map(|types| types.to_vec())
}

impl Emit {
    /// Writes an op. Its outputs have the dtypes that the op declares.
    pub(crate) fn op(&mut self, op: &Op) -> Result<Vec<Value>> {
        let outputs = outputs(op)?;
        let Op::Compute(op) = op else { return Err(Support::unknown(op).refusal(op)) };
        let is_empty = outputs.iter().all(|(_, shape)| shape.elements() == 0);
        let values = match op {
            // Indices are checked even if the output is empty.
            ComputeOp::Gather(op) => vec![indexed::gather(self, op)?],
            _ if is_empty => {
                let empty = |(dtype, shape): &(DType, Shape)| self.writer.constant(0.0, (*dtype).into(), shape.dims());
                outputs.iter().map(empty).collect()
            }
            op => self.compute(op)?,
        };
        Ok(values
            .iter()
            .zip(&outputs)
            .map(|(value, (dtype, _))| hlo::stored(&mut self.writer, value, *dtype))
            .collect())
    }

    fn compute(&mut self, op: &ComputeOp) -> Result<Vec<Value>> {
        let one = |value: Result<Value>| value.map(|value| vec![value]);
        match op {
            ComputeOp::ArgSort(op) => one(indexed::arg_sort(self, op)),
            ComputeOp::Attention(op) => one(attention::attention(self, op)),
            ComputeOp::Conv2d(op) => one(conv::conv2d(self, op)),
            ComputeOp::Conv2dBackwardInput(op) => one(conv::backward_input(self, op)),
            ComputeOp::Conv2dBackwardWeight(op) => one(conv::backward_weight(self, op)),
            ComputeOp::LayerNorm(op) => one(rows::layer_norm(self, op)),
            ComputeOp::Map(op) => one(maps::map(self, op)),
            ComputeOp::MatMul(op) => one(product::matmul(self, op)),
            ComputeOp::Normalize(op) => one(images::normalize(self, op)),
            ComputeOp::Pool2d(op) => one(pool::pool2d(self, op)),
            ComputeOp::Reduce(op) => one(reduce::reduce(self, op)),
            ComputeOp::Resize(op) => one(images::resize(self, op)),
            ComputeOp::RowMap(op) => one(rows::row_map(self, op)),
            ComputeOp::Scan(op) => one(reduce::scan(self, op)),
            ComputeOp::Softmax(op) => one(rows::softmax(self, op)),
            ComputeOp::Sort(op) => one(indexed::sort(self, op)),
            ComputeOp::SortPairs(op) => indexed::sort_pairs(self, op),
            ComputeOp::TopK(op) => indexed::top_k(self, op),
            ComputeOp::Transfer(op) => one(self.tensor(&op.input)),
            ComputeOp::Transpose(op) => one(op.view().and_then(|view| self.tensor(&view))),
            _ => {
                let op = Op::Compute(op.clone());
                Err(Support::unknown(&op).refusal(&op))
            }
        }
    }
}
