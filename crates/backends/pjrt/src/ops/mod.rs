//! Ops as StableHLO: from one of Panoply's ops, whose tensors are placeholders of a program's slots, to values of a program.

mod attention;
mod conv;
mod images;
mod indexed;
mod maps;
mod pool;
mod product;
mod reduce;
mod rows;
mod support;

use panoply_core::graph::slot_of;
use panoply_core::op::compute::ComputeOp;
use panoply_core::{DType, Error, Op, Result, Shape, Support, Tensor};

use crate::hlo::{self, Value, Writer};

pub(crate) use support::supports;

/// A program while its ops are written.
pub(crate) struct Emit {
    pub(crate) writer: Writer,
    /// What each slot holds, as far as the program has come.
    pub(crate) slots: Vec<Option<Value>>,
    /// What the program finds out about its inputs' numbers, and what it means.
    pub(crate) checks: Vec<(Value, Check)>,
}

/// Something that only the device can see: two numbers, of which the first says whether something is wrong.
#[derive(Clone, Debug)]
pub(crate) enum Check {
    /// An index is out of range; the second number is it.
    Index {
        /// What is indexed has so many.
        len: usize,
        /// Whether indices have a sign.
        signed: bool,
    },
}

impl Check {
    /// The error that the two numbers mean.
    pub(crate) fn error(&self, numbers: [u32; 2]) -> Option<Error> {
        let Check::Index { len, signed } = self;
        let got = if *signed { i64::from(numbers[1] as i32) } else { i64::from(numbers[1]) };
        (numbers[0] != 0).then(|| Error::invalid("gather: index", format!("an index into {len}"), got))
    }
}

/// What an op answers, of those too that are no nodes of graphs.
pub(crate) fn outputs(op: &Op) -> Result<Vec<(DType, Shape)>> {
    match op {
        Op::Compute(ComputeOp::Normalize(op)) => Ok(vec![(op.output, op.output_shape())]),
        Op::Compute(ComputeOp::Transfer(op)) => Ok(vec![(op.input.dtype(), *op.input.shape())]),
        op => op.outputs(),
    }
}

impl Emit {
    pub(crate) fn new(slots: usize) -> Emit {
        Emit { writer: Writer::new(), slots: vec![None; slots], checks: Vec::new() }
    }

    /// What a placeholder stands for, in its own element type.
    pub(crate) fn tensor(&mut self, tensor: &Tensor) -> Result<Value> {
        let missing = || Error::invalid("a program's operand", "a slot that is filled", format!("{tensor:?}"));
        let base = slot_of(tensor).and_then(|slot| self.slots.get(slot)?.clone()).ok_or_else(missing)?;
        Ok(self.writer.view(&base, tensor.shape().dims(), tensor.strides(), tensor.offset()))
    }

    /// As [`Emit::tensor`], in the type in which it is computed with.
    fn number(&mut self, tensor: &Tensor) -> Result<Value> {
        let value = self.tensor(tensor)?;
        Ok(hlo::carried(&mut self.writer, &value))
    }

    /// Writes an op; its outputs have the types that the op says.
    pub(crate) fn op(&mut self, op: &Op) -> Result<Vec<Value>> {
        let outputs = outputs(op)?;
        let Op::Compute(op) = op else { return Err(Support::unknown(op).refusal(op)) };
        let is_empty = outputs.iter().all(|(_, shape)| shape.elements() == 0);
        let values = match op {
            // Indices are looked at even where nothing is picked.
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
