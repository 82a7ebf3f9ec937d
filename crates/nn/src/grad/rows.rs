//! Rules of reductions, softmax, layer normalisation and attention.

use panoply_core::expr::Expr;
use panoply_core::graph::{Dim, NodeId};
use panoply_core::op::compute::{Attention, LayerNorm, MatMul, Reduce, Reduction, Softmax};
use panoply_core::{DType, Tensor};

use super::{Backward, NodeVisit};
use crate::error::Result;

impl Backward {
    pub(super) fn reduce_shares(&mut self, turn: NodeVisit, op: &Reduce) -> Result<Vec<Option<NodeId>>> {
        let x = self.operand(turn, 0);
        let (dtype, dims) = self.tape.type_of(x)?;
        let axes: Vec<usize> =
            op.reduced()?.iter().enumerate().filter(|(_, reduced)| **reduced).map(|(axis, _)| axis).collect();
        let kept: Vec<Dim> =
            dims.iter().enumerate().map(|(axis, dim)| if axes.contains(&axis) { 1.into() } else { *dim }).collect();
        let g = self.tape.g.reshape(turn.g, &kept)?;
        let share = match op.reduction {
            Reduction::Sum => self.tape.g.broadcast(g, &dims)?,
            Reduction::Mean => {
                let reduced: Vec<Dim> = axes.iter().map(|axis| dims[*axis]).collect();
                // Divide in f32: 16-bit floats cannot hold counts above a few thousand.
                let wide = self.widened(g)?;
                let count = self.count(self.tape.type_of(wide)?.0, &reduced)?;
                let share = self.tape.g.div(wide, count)?;
                let share = self.cast_to(share, dtype)?;
                self.tape.g.broadcast(share, &dims)?
            }
            Reduction::Max | Reduction::Min => {
                let y = self.own(turn);
                let y = self.tape.g.reshape(y, &kept)?;
                let is_extreme = self.tape.g.map(&[x, y], |v| v[0].clone().eq(v[1].clone()))?;
                // Equal elements share the gradient. They are counted in f32, because there may be
                // more than 16-bit floats can count.
                let counted = self.widened(is_extreme)?;
                let count = self.reduce_keeping(Reduction::Sum, counted, &axes)?;
                let wide = self.widened(g)?;
                let part = self.tape.g.div(wide, count)?;
                let part = self.cast_to(part, dtype)?;
                self.tape.g.map(&[is_extreme, part], |v| v[0].clone().select(v[1].clone(), 0.0))?
            }
            Reduction::ArgMax | Reduction::ArgMin => return Ok(vec![None]),
        };
        Ok(vec![Some(share)])
    }

    /// The number of elements of these dimensions, as an f32 or f64. Symbolic dimensions are
    /// counted once, when the sizes of the graph are known.
    pub(super) fn count(&mut self, dtype: DType, dims: &[Dim]) -> Result<NodeId> {
        let product = dims.iter().fold(Dim::fixed(1), |product, dim| product * *dim);
        if let Some(size) = product.as_fixed() {
            return self.number(dtype, size as f64);
        }
        let one = self.number(dtype, 1.0)?;
        let ones = self.tape.g.broadcast(one, &[product])?;
        Ok(self.tape.g.reduce(Reduction::Sum, ones, &[0])?)
    }

    pub(super) fn softmax_shares(&mut self, turn: NodeVisit, op: &Softmax) -> Result<Vec<Option<NodeId>>> {
        let y = self.own(turn);
        let dtype = self.tape.type_of(y)?.0;
        let (y, g) = (self.widened(y)?, self.widened(turn.g)?);
        let share = if op.is_log {
            let sum = self.reduce_keeping(Reduction::Sum, g, &[op.axis])?;
            self.tape.g.map(&[g, y, sum], |v| v[0].clone() - v[1].clone().exp() * v[2].clone())?
        } else {
            self.softmax_share(y, g, op.axis)?
        };
        Ok(vec![Some(self.cast_to(share, dtype)?)])
    }

    /// `y · (g - Σ g·y)`.
    fn softmax_share(&mut self, y: NodeId, g: NodeId, axis: usize) -> Result<NodeId> {
        let weighted = self.tape.g.mul(g, y)?;
        let sum = self.reduce_keeping(Reduction::Sum, weighted, &[axis])?;
        Ok(self.tape.g.map(&[g, y, sum], |v| v[1].clone() * (v[0].clone() - v[2].clone()))?)
    }

    pub(super) fn layernorm_shares(&mut self, turn: NodeVisit, op: &LayerNorm) -> Result<Vec<Option<NodeId>>> {
        let x = self.operand(turn, 0);
        let (dtype, dims) = self.tape.type_of(x)?;
        let axes: Vec<usize> = (dims.len().saturating_sub(op.axes)..dims.len()).collect();
        let (x, g) = (self.widened(x)?, self.widened(turn.g)?);
        let centred = match op.is_rms {
            true => x,
            false => {
                let mean = self.reduce_keeping(Reduction::Mean, x, &axes)?;
                self.tape.g.sub(x, mean)?
            }
        };
        let square = self.tape.g.mul(centred, centred)?;
        let variance = self.reduce_keeping(Reduction::Mean, square, &axes)?;
        let scale = self.tape.g.map(&[variance], |v| (v[0].clone() + op.epsilon).rsqrt())?;
        let normal = self.tape.g.mul(centred, scale)?;
        let mut shares = vec![None; self.tape.entries[turn.entry].operands.len()];
        let mut place = 1;
        let mut weighted = g;
        if op.weight.is_some() {
            let weight = self.operand(turn, place);
            let weight = self.widened(weight)?;
            weighted = self.tape.g.mul(g, weight)?;
            if self.wants(turn, place) {
                let share = self.tape.g.mul(g, normal)?;
                let share = self.sum_to(share, &dims[axes[0]..])?;
                shares[place] = Some(self.cast_to(share, dtype)?);
            }
            place += 1;
        }
        if op.bias.is_some() && self.wants(turn, place) {
            let share = self.sum_to(g, &dims[axes[0]..])?;
            shares[place] = Some(self.cast_to(share, dtype)?);
        }
        if self.wants(turn, 0) {
            let along = self.tape.g.mul(weighted, normal)?;
            let along = self.reduce_keeping(Reduction::Mean, along, &axes)?;
            let rest = |v: &[Expr]| v[0].clone() - v[1].clone() * v[2].clone();
            let share = match op.is_rms {
                true => self.tape.g.map(&[weighted, normal, along, scale], |v| rest(v) * v[3].clone())?,
                false => {
                    let mean = self.reduce_keeping(Reduction::Mean, weighted, &axes)?;
                    self.tape
                        .g
                        .map(&[weighted, normal, along, scale, mean], |v| (rest(v) - v[4].clone()) * v[3].clone())?
                }
            };
            shares[0] = Some(self.cast_to(share, dtype)?);
        }
        Ok(shares)
    }

    /// The rule of attention: that of the two products and of the softmax. The attention weights
    /// are computed again.
    pub(super) fn attention_shares(&mut self, turn: NodeVisit, op: &Attention) -> Result<Vec<Option<NodeId>>> {
        let [q, k, v] = [0, 1, 2].map(|place| self.operand(turn, place));
        let (dtype, q_dims) = self.tape.type_of(q)?;
        let (k_dims, v_dims) = (self.operand_dims(turn, 1)?, self.operand_dims(turn, 2)?);
        let rank = q_dims.len();
        // The default scale depends on the queries' last dimension, which the op's sample tensor
        // has too.
        let scale = f64::from(op.scale_or_default());
        // Query heads that share a key head become one more dimension, along which keys and values
        // are broadcast.
        let heads = self.fixed(turn, q_dims[rank - 3])?;
        let kv_heads = self.fixed(turn, k_dims[rank - 3])?;
        let grouped = |dims: &[Dim], group: usize| -> Vec<Dim> {
            [&dims[..rank - 3], &[kv_heads.into(), group.into()], &dims[rank - 2..]].concat()
        };
        let group = heads / kv_heads.max(1);
        let (q5, kv1) = (grouped(&q_dims, group), 1);
        let q = self.tape.g.reshape(q, &q5)?;
        let k = self.tape.g.reshape(k, &grouped(&k_dims, kv1))?;
        let v = self.tape.g.reshape(v, &grouped(&v_dims, kv1))?;
        let g_dims = grouped(&[&q_dims[..rank - 1], &v_dims[rank - 1..]].concat(), group);
        let g = self.tape.g.reshape(turn.g, &g_dims)?;
        let [q, k, v, g] = self.all_widened([q, k, v, g])?;
        let scores = self.tape.g.op(&[q, k], |t| MatMul::new(&t[0], &t[1]).transpose_b().alpha(scale as f32))?;
        let score_dims = self.tape.type_of(scores)?.1;
        let (scores, mask) = self.masked(turn, op, scores, &score_dims, &q_dims, &k_dims)?;
        let weights = self.tape.g.softmax(scores, rank)?;
        // A query that sees no keys has the result zero, for which softmax would give NaN. Masked
        // keys get the weight zero explicitly.
        let weights = match op.mask.is_some() || op.is_causal {
            true => {
                self.tape.g.map(&[scores, weights], |v| v[0].clone().eq(f64::NEG_INFINITY).select(0.0, v[1].clone()))?
            }
            false => weights,
        };
        let by_weights = self.tape.g.op(&[g, v], |t| MatMul::new(&t[0], &t[1]).transpose_b())?;
        let by_scores = self.softmax_share(weights, by_weights, rank)?;
        let mut shares = vec![None; self.tape.entries[turn.entry].operands.len()];
        if self.wants(turn, 0) {
            let share = self.tape.g.op(&[by_scores, k], |t| MatMul::new(&t[0], &t[1]).alpha(scale as f32))?;
            shares[0] = Some(self.folded(share, &q5, &q_dims, dtype)?);
        }
        if self.wants(turn, 1) {
            let share =
                self.tape.g.op(&[by_scores, q], |t| MatMul::new(&t[0], &t[1]).transpose_a().alpha(scale as f32))?;
            shares[1] = Some(self.folded(share, &grouped(&k_dims, kv1), &k_dims, dtype)?);
        }
        if self.wants(turn, 2) {
            let share = self.tape.g.op(&[weights, g], |t| MatMul::new(&t[0], &t[1]).transpose_a())?;
            shares[2] = Some(self.folded(share, &grouped(&v_dims, kv1), &v_dims, dtype)?);
        }
        if let Some(mask) = mask.filter(|_| self.wants(turn, 3)) {
            let whole: Vec<Dim> = [&q_dims[..rank - 1], &k_dims[rank - 2..rank - 1]].concat();
            let share = self.tape.g.reshape(by_scores, &whole)?;
            let (mask_dtype, dims) = self.tape.type_of(mask)?;
            let share = self.sum_to(share, &dims)?;
            shares[3] = Some(self.cast_to(share, mask_dtype)?);
        }
        Ok(shares)
    }

    /// Adds the given mask and the causal mask to the scores. Returns the node of the given mask
    /// too.
    fn masked(
        &mut self,
        turn: NodeVisit,
        op: &Attention,
        mut scores: NodeId,
        score_dims: &[Dim],
        q_dims: &[Dim],
        k_dims: &[Dim],
    ) -> Result<(NodeId, Option<NodeId>)> {
        let rank = q_dims.len();
        let mut mask = None;
        if op.mask.is_some() {
            let given = self.operand(turn, 3);
            let whole: Vec<Dim> = [&q_dims[..rank - 1], &k_dims[rank - 2..rank - 1]].concat();
            let wide = self.widened(given)?;
            let stretched = self.tape.g.broadcast(wide, &whole)?;
            let stretched = self.tape.g.reshape(stretched, score_dims)?;
            scores = self.tape.g.add(scores, stretched)?;
            mask = Some(given);
        }
        if op.is_causal {
            let (rows, columns) = (self.fixed(turn, q_dims[rank - 2])?, self.fixed(turn, k_dims[rank - 2])?);
            let seen = |row: usize, column: usize| column + rows <= row + columns;
            let values: Vec<f32> = (0..rows * columns)
                .map(|place| if seen(place / columns, place % columns) { 0.0 } else { f32::NEG_INFINITY })
                .collect();
            let causal = self.tape.g.unnamed_constant(&Tensor::from_vec(values, [rows, columns])?)?;
            scores = self.tape.g.add(scores, causal)?;
        }
        Ok((scores, mask))
    }

    fn all_widened<const N: usize>(&mut self, nodes: [NodeId; N]) -> Result<[NodeId; N]> {
        let mut wide = nodes;
        for node in &mut wide {
            *node = self.widened(*node)?;
        }
        Ok(wide)
    }

    /// Sums a gradient over the queries of a group, and brings it to the operand's own shape and
    /// type.
    fn folded(&mut self, share: NodeId, grouped: &[Dim], dims: &[Dim], dtype: DType) -> Result<NodeId> {
        let share = self.sum_to(share, grouped)?;
        let share = self.tape.g.reshape(share, dims)?;
        self.cast_to(share, dtype)
    }
}
