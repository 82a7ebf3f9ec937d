//! The rule of batch norm: a map of `x`, the mean and variance of `x` itself, a weight and a bias.
//!
//! By the rules of its parts the gradient would go through the mean and the variance separately,
//! each with sums over all elements. The combined rule needs two sums for each channel and one map.
//! With `s` = 1 / √(variance + ε), and means over the elements of a channel,
//! `dx = weight · s · (g - mean(g) - (x - mean) · s² · mean(g · (x - mean)))`.

use panoply_core::Op;
use panoply_core::expr::{Expr, Node};
use panoply_core::graph::{Dim, Kind, NodeId};
use panoply_core::op::compute::{ComputeOp, Map, Reduction};

use super::{Backward, NodeVisit};
use crate::error::Result;
use crate::layers::norm::{normalised, squared_distance};

/// A batch norm that was recognised.
struct BatchNorm {
    epsilon: f64,
    /// The axes over which the mean and the variance of a channel are taken.
    axes: Vec<usize>,
}

impl Backward {
    /// The gradients that a map passes on to its operands if it is a batch norm; `None` if it is
    /// not.
    pub(super) fn batch_norm_shares(&mut self, turn: NodeVisit, op: &Map) -> Result<Option<Vec<Option<NodeId>>>> {
        let Some(BatchNorm { epsilon, axes }) = self.batch_norm(turn, op) else { return Ok(None) };
        let [x, mean, variance, weight, bias] = [0, 1, 2, 3, 4].map(|place| self.operand(turn, place));
        let (dtype, dims) = self.tape.type_of(x)?;
        let (weight_dims, bias_dims) = (self.tape.type_of(weight)?.1, self.tape.type_of(bias)?.1);
        let g = turn.g;
        let of_centred = self.tape.g.map(&[g, x, mean], |v| v[0].clone() * (v[1].clone() - v[2].clone()))?;
        let (sum, sum_of_centred) = (self.summed(g, &axes)?, self.summed(of_centred, &axes)?);
        let counted: Vec<Dim> = axes.iter().map(|axis| dims[*axis]).collect();
        let count = self.count(dtype, &counted)?;
        let scale = move |variance: &Expr| (variance.clone() + epsilon).rsqrt();
        // Three numbers for each channel: the factor of the gradient (`factor`), the factor of the
        // distance from the mean (`slope`), and a number to subtract (`less`).
        let factor = self.tape.g.map(&[variance, weight], |v| scale(&v[0]) * v[1].clone())?;
        let less = self.tape.g.map(&[factor, sum, count], |v| v[0].clone() * v[1].clone() / v[2].clone())?;
        let slope = self.tape.g.map(&[factor, variance, sum_of_centred, count], |v| {
            v[0].clone() * scale(&v[1]) * scale(&v[1]) * v[2].clone() / v[3].clone()
        })?;
        let share = self.tape.g.map(&[g, factor, less, x, mean, slope], |v| {
            v[0].clone() * v[1].clone() - v[2].clone() - (v[3].clone() - v[4].clone()) * v[5].clone()
        })?;
        let of_weight = self.tape.g.map(&[sum_of_centred, variance], |v| v[0].clone() * scale(&v[1]))?;
        let of_weight = self.tape.g.reshape(of_weight, &weight_dims)?;
        let of_bias = self.tape.g.reshape(sum, &bias_dims)?;
        Ok(Some(vec![Some(share), None, None, Some(of_weight), Some(of_bias)]))
    }

    /// A sum that keeps its axes with length one: along all axes but the first, then along the
    /// first.
    fn summed(&mut self, x: NodeId, axes: &[usize]) -> Result<NodeId> {
        let mut sum = x;
        for part in [&axes[1..], &axes[..1]] {
            sum = if part.is_empty() { sum } else { self.reduce_keeping(Reduction::Sum, sum, part)? };
        }
        Ok(sum)
    }

    /// Recognises a map that is a batch norm whose mean and variance are those of its own operand.
    fn batch_norm(&self, turn: NodeVisit, op: &Map) -> Option<BatchNorm> {
        let [x, mean, variance, weight, bias] = *self.tape.entries[turn.entry].operands.as_slice() else { return None };
        let program = op.program().ok()?;
        let constant = |node: &Node| if let Node::Const(constant) = node { Some(constant.value()) } else { None };
        let epsilon = program.nodes().iter().find_map(constant)?;
        let inputs: Vec<Expr> = (0..5).map(Expr::input).collect();
        if normalised(&inputs, epsilon).finish().ok()? != *program || !self.needs[x] {
            return None;
        }
        let axes = self.axes_of_mean(mean, x)?;
        let squares = self.source_of_mean(variance)?;
        let distances = squared_distance(&inputs[..2]).finish().ok()?;
        let is_own = self.axes_of_mean(variance, squares)? == axes
            && self.tape.entries[squares].operands == [x, mean]
            && self.map_of(squares)?.program().ok()? == &distances;
        // Weight and bias must have one element for each channel, and length one along the reduced
        // axes.
        let dims = self.tape.type_of(self.tape.entries[x].id).ok()?.1;
        let ones = |axis: usize| axes.contains(&axis);
        let per_channel = |entry: usize| {
            let own = self.tape.type_of(self.tape.entries[entry].id).ok()?.1;
            let lead = dims.len().checked_sub(own.len())?;
            let fits = (0..dims.len()).all(|axis| match axis.checked_sub(lead) {
                None => ones(axis),
                Some(place) => own[place] == if ones(axis) { Dim::fixed(1) } else { dims[axis] },
            });
            fits.then_some(())
        };
        per_channel(weight)?;
        per_channel(bias)?;
        is_own.then_some(BatchNorm { epsilon, axes })
    }

    /// The axes along which an entry is the mean of `of`, taken in one reduction or in two.
    fn axes_of_mean(&self, entry: usize, of: usize) -> Option<Vec<usize>> {
        let (inner, mut axes) = self.mean_of(entry)?;
        if inner != of {
            let (innermost, more) = self.mean_of(inner)?;
            axes.extend(more);
            axes.sort_unstable();
            (innermost == of).then_some(())?;
        }
        (!axes.is_empty()).then_some(axes)
    }

    /// The entry whose mean an entry is, taken in one reduction or in two.
    fn source_of_mean(&self, entry: usize) -> Option<usize> {
        let (inner, _) = self.mean_of(entry)?;
        Some(self.mean_of(inner).map_or(inner, |(innermost, _)| innermost))
    }

    /// The operand and the axes of a mean that keeps its axes with length one.
    fn mean_of(&self, entry: usize) -> Option<(usize, Vec<usize>)> {
        let Kind::Op(op) = &self.tape.entries[entry].kind else { return None };
        let Op::Compute(ComputeOp::Reduce(op)) = &**op else { return None };
        let reduced = op.reduced().ok().filter(|_| op.reduction == Reduction::Mean && op.keeps_dims)?;
        let axes = (0..reduced.len()).filter(|axis| reduced[*axis]).collect();
        Some((*self.tape.entries[entry].operands.first()?, axes))
    }

    fn map_of(&self, entry: usize) -> Option<&Map> {
        let Kind::Op(op) = &self.tape.entries[entry].kind else { return None };
        if let Op::Compute(ComputeOp::Map(map)) = &**op { Some(map) } else { None }
    }
}
