//! Lowers the building blocks of layers: products, norms, embeddings and attention.

use burn_ir::{AttentionOpIr, BatchNormOpIr, LayerNormOpIr, ModuleOperationIr, TensorIr};
use panoply_core::expr::Expr;
use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Gather, MatMul, Reduce, Reduction};

use super::{Lowering, Result, no_axis, unserved};

impl Lowering<'_> {
    pub(super) fn module(&mut self, op: &ModuleOperationIr) -> Result<Vec<NodeId>> {
        use ModuleOperationIr as Op;
        let made = match op {
            Op::Linear(_) | Op::LinearXBackward(_) | Op::LinearWeightBackward(_) | Op::LinearBiasBackward(_) => {
                self.linear(op)?
            }
            Op::Embedding(desc) => {
                let (weights, indices) = (self.get(&desc.weights)?, self.get(&desc.indices)?);
                self.g.op(&[weights, indices], |t| Gather::new(&t[0], &t[1], 0))?
            }
            Op::EmbeddingBackward(desc) => {
                let (weights, indices, g) =
                    (self.get(&desc.weights)?, self.get(&desc.indices)?, self.get(&desc.out_grad)?);
                let rows = self.rows(g)?;
                let (count, picked) = (self.size(weights, 0)?, self.size(rows, 0)?);
                let indices = self.reshape(indices, &[picked])?;
                self.rows_added(rows, indices, count)?
            }
            Op::BatchNorm(desc) => self.batch_norm(desc)?,
            Op::LayerNorm(desc) => self.layer_norm(desc)?,
            Op::Attention(desc) => self.attention(desc)?,
            Op::Conv1d(_) | Op::Conv1dXBackward(_) | Op::Conv1dWeightBackward(_) => self.convolved_line(op)?,
            Op::Conv1dBiasBackward(desc) => self.bias_share(&desc.output_grad)?,
            Op::Conv2d(_) | Op::Conv2dXBackward(_) | Op::Conv2dWeightBackward(_) => self.convolved(op)?,
            Op::Conv2dBiasBackward(desc) => self.bias_share(&desc.output_grad)?,
            Op::ConvTranspose2d(_) | Op::ConvTranspose2dWeightBackward(_) => self.convolved_back(op)?,
            Op::ConvTranspose2dBiasBackward(desc) => self.bias_share(&desc.output_grad)?,
            _ => return self.pooling(op),
        };
        Ok(vec![made])
    }

    fn linear(&mut self, op: &ModuleOperationIr) -> Result<NodeId> {
        use ModuleOperationIr as Op;
        Ok(match op {
            Op::Linear(desc) => {
                let (x, weight) = (self.get(&desc.x)?, self.get(&desc.weight)?);
                let mut dims = self.dims(x)?;
                let rows = self.rows(x)?;
                let product = self.g.matmul(rows, weight)?;
                let product = self.biased(product, desc.bias.as_ref(), 1)?;
                if let (Some(last), width) = (dims.last_mut(), self.size(product, 1)?) {
                    *last = width;
                }
                self.reshape(product, &dims)?
            }
            Op::LinearXBackward(desc) => {
                let (weight, g) = (self.get(&desc.weight)?, self.get(&desc.output_grad)?);
                let mut dims = self.dims(g)?;
                let rows = self.rows(g)?;
                let share = self.g.op(&[rows, weight], |t| MatMul::new(&t[0], &t[1]).transpose_b())?;
                if let (Some(last), width) = (dims.last_mut(), self.size(share, 1)?) {
                    *last = width;
                }
                self.reshape(share, &dims)?
            }
            Op::LinearWeightBackward(desc) => {
                let (x, g) = (self.get(&desc.x)?, self.get(&desc.output_grad)?);
                let (x, g) = (self.rows(x)?, self.rows(g)?);
                self.g.op(&[x, g], |t| MatMul::new(&t[0], &t[1]).transpose_a())?
            }
            Op::LinearBiasBackward(desc) => {
                let g = self.get(&desc.output_grad)?;
                let rows = self.rows(g)?;
                self.g.reduce(Reduction::Sum, rows, &[0])?
            }
            _ => return Err(unserved("this layer")),
        })
    }

    /// Reshapes a tensor to a matrix whose columns are the last axis.
    fn rows(&mut self, x: NodeId) -> Result<NodeId> {
        let dims = self.dims(x)?;
        let (last, before) = dims.split_last().ok_or_else(|| no_axis(0, 0))?;
        let rows = before.iter().product();
        match before.len() {
            1 => Ok(x),
            _ => self.reshape(x, &[rows, *last]),
        }
    }

    /// Adds one number per channel. `rank - 1` axes follow the axis of the channels.
    pub(super) fn biased(&mut self, x: NodeId, bias: Option<&TensorIr>, rank: usize) -> Result<NodeId> {
        let Some(bias) = bias else { return Ok(x) };
        let bias = self.get(bias)?;
        let mut dims = vec![1; rank];
        dims[0] = self.size(bias, 0)?;
        let bias = self.reshape(bias, &dims)?;
        Ok(self.g.add(x, bias)?)
    }

    fn batch_norm(&mut self, desc: &BatchNormOpIr) -> Result<NodeId> {
        let x = self.get(&desc.x)?;
        let mut along = vec![1; self.dims(x)?.len().saturating_sub(1)];
        let channels = self.size(x, 1)?;
        along[0] = channels;
        let mut operands = vec![x];
        for tensor in [&desc.gamma, &desc.beta, &desc.mean, &desc.variance] {
            let node = self.get(tensor)?;
            operands.push(self.reshape(node, &along)?);
        }
        self.with_number(&operands, &desc.epsilon, |v, epsilon| {
            let normal = (v[0].clone() - v[3].clone()) / (v[4].clone() + epsilon).sqrt();
            normal * v[1].clone() + v[2].clone()
        })
    }

    fn layer_norm(&mut self, desc: &LayerNormOpIr) -> Result<NodeId> {
        let (x, gamma) = (self.get(&desc.input)?, self.get(&desc.gamma)?);
        let last = self.dims(x)?.len().checked_sub(1).ok_or_else(|| no_axis(0, 0))?;
        let mean = |g: &mut Self, x: NodeId| g.g.op(&[x], |t| Reduce::mean(&t[0]).axes(&[last]).keep_dims());
        let center = mean(self, x)?;
        let centered = self.map(&[x, center], |v| v[0].clone() - v[1].clone())?;
        let squares = self.map(&[centered], |v| v[0].clone() * v[0].clone())?;
        let variance = mean(self, squares)?;
        let mut operands = vec![centered, variance, gamma];
        if let Some(beta) = &desc.beta {
            operands.push(self.get(beta)?);
        }
        self.with_number(&operands, &desc.epsilon, |v, epsilon| {
            let normal = v[0].clone() / (v[1].clone() + epsilon).sqrt() * v[2].clone();
            match v.get(3) {
                Some(beta) => normal + beta.clone(),
                None => normal,
            }
        })
    }

    fn attention(&mut self, desc: &AttentionOpIr) -> Result<NodeId> {
        let (query, key, value) = (self.get(&desc.query)?, self.get(&desc.key)?, self.get(&desc.value)?);
        if desc.options.softcap.is_some() || desc.options.is_causal {
            return Err(unserved("attention with a soft cap or a causal mask of its own"));
        }
        let (dtype, rank) = (self.dtype(query)?, self.dims(query)?.len());
        let width = self.size(query, rank.saturating_sub(1))?;
        let scores = self.g.op(&[query, key], |t| MatMul::new(&t[0], &t[1]).transpose_b())?;
        let mut scores = match &desc.options.scale {
            Some(scale) => self.with_number(&[scores], scale, |v, scale| v[0].clone() * scale)?,
            None => self.map(&[scores], |v| v[0].clone() * (1.0 / (width as f64).sqrt()))?,
        };
        if let Some(bias) = &desc.attn_bias {
            let bias = self.get(bias)?;
            scores = self.g.add(scores, bias)?;
        }
        if let Some(mask) = &desc.mask {
            let mask = self.get(mask)?;
            let hidden = Expr::constant(f64::NEG_INFINITY);
            scores = self.map(&[scores, mask], |v| v[1].clone().cast(dtype).select(hidden, v[0].clone()))?;
        }
        let weights = self.g.softmax(scores, rank - 1)?;
        Ok(self.g.matmul(weights, value)?)
    }
}
