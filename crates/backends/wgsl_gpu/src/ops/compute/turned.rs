//! Ops on lines along an axis that is not the last, if all those lines together exceed a kernel's
//! reach: the inputs are transposed so that lines are contiguous, computed some at a time, and the
//! results are transposed back.

use panoply_core::op::compute::{ArgSort, ComputeOp, Scan, Softmax, Sort, SortPairs, TopK};
use panoply_core::{Result, Tensor, Value};

use super::record;
use crate::context::Context;
use crate::driver::Driver;
use crate::engine::Answer;

/// An op on lines along the last axis, in place of an op along another axis.
pub(super) struct TransposedOp {
    op: ComputeOp,
    /// For each axis of the answer, its index among the axes of the transposed answer.
    back: Vec<usize>,
}

impl TransposedOp {
    /// The op on contiguous lines; `None` if they are contiguous already, or the op does not work
    /// on lines.
    pub(super) fn new(op: &ComputeOp) -> Option<TransposedOp> {
        let (shape, axis) = match op {
            ComputeOp::ArgSort(op) => (op.input.shape(), op.axis),
            ComputeOp::Scan(op) => (op.input.shape(), op.axis),
            ComputeOp::Softmax(op) => (op.input.shape(), op.axis),
            ComputeOp::Sort(op) => (op.input.shape(), op.axis),
            ComputeOp::SortPairs(op) => (op.keys.shape(), op.axis),
            ComputeOp::TopK(op) => (op.input.shape(), op.axis),
            _ => return None,
        };
        let last = shape.rank().checked_sub(1)?;
        if axis == last {
            return None;
        }
        let order: Vec<usize> = (0..=last).filter(|own| *own != axis).chain([axis]).collect();
        let back = (0..=last).filter_map(|axis| order.iter().position(|own| *own == axis)).collect();
        let turn = |tensor: &Tensor| tensor.permute(&order).ok();
        let op = match op.clone() {
            ComputeOp::ArgSort(op) => ComputeOp::ArgSort(ArgSort { input: turn(&op.input)?, axis: last, ..op }),
            ComputeOp::Scan(op) => ComputeOp::Scan(Scan { input: turn(&op.input)?, axis: last, ..op }),
            ComputeOp::Softmax(op) => ComputeOp::Softmax(Softmax { input: turn(&op.input)?, axis: last, ..op }),
            ComputeOp::Sort(op) => ComputeOp::Sort(Sort { input: turn(&op.input)?, axis: last, ..op }),
            ComputeOp::SortPairs(op) => {
                let (keys, values) = (turn(&op.keys)?, turn(&op.values)?);
                ComputeOp::SortPairs(SortPairs { keys, values, axis: last, ..op })
            }
            ComputeOp::TopK(op) => ComputeOp::TopK(TopK { input: turn(&op.input)?, axis: last, ..op }),
            _ => return None,
        };
        Some(TransposedOp { op, back })
    }

    /// The op on contiguous lines.
    pub(super) fn op(&self) -> &ComputeOp {
        &self.op
    }

    /// Records the op and the transposition of its answer.
    pub(super) fn run<D: Driver>(&self, context: &mut Context<D>) -> Result<Answer> {
        let laid_back = |tensor: Tensor, context: &mut Context<D>| {
            let operand = context.input(&tensor.permute(&self.back)?)?;
            context.finish(operand)
        };
        Ok(match record(&self.op, context)? {
            Answer::Value(Value::Tensor(tensor)) => Answer::Value(Value::Tensor(laid_back(tensor, context)?)),
            Answer::Value(Value::Pair(first, second)) => {
                Answer::Value(Value::Pair(laid_back(first, context)?, laid_back(second, context)?))
            }
            other => other,
        })
    }
}
