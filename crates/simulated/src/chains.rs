//! Chains of ops that must be fused into one kernel, recorded one by one as in a program: for the
//! suite, the compiler's tests and the benchmarks.

use panoply_core::Result;
use panoply_core::expr::BinaryOp;
use panoply_core::graph::{GraphBuilder, NodeId};
use panoply_core::op::compute::Reduction;

/// Eleven elementwise ops on two tensors.
pub fn chain10(g: &mut GraphBuilder, x: NodeId, y: NodeId) -> Result<NodeId> {
    let z = g.with_number(BinaryOp::Mul, x, 2.0)?;
    let z = g.add(z, y)?;
    let z = g.relu(z)?;
    let z = g.with_number(BinaryOp::Sub, z, 0.5)?;
    let gate = g.sigmoid(z)?;
    let z = g.mul(z, gate)?;
    let minus = g.neg(z)?;
    let square = g.mul(minus, z)?;
    let z = g.exp(square)?;
    let below = g.map(&[x], |e| 1.0 + e[0].clone().abs())?;
    g.div(z, below)
}

/// `gelu(layer_norm(x + residual))`.
pub fn add_layernorm_gelu(
    g: &mut GraphBuilder,
    x: NodeId,
    residual: NodeId,
    weight: NodeId,
    bias: NodeId,
) -> Result<NodeId> {
    let sum = g.add(x, residual)?;
    let normal = g.layer_norm(sum, weight, bias)?;
    g.gelu(normal)
}

/// `softmax(x / 8 + mask)`.
pub fn softmax_mask(g: &mut GraphBuilder, x: NodeId, mask: NodeId) -> Result<NodeId> {
    let scaled = g.with_number(BinaryOp::Mul, x, 0.125)?;
    let masked = g.add(scaled, mask)?;
    g.softmax(masked, 1)
}

/// The Euclidean norm of each row.
pub fn norm_rows(g: &mut GraphBuilder, x: NodeId) -> Result<NodeId> {
    let square = g.mul(x, x)?;
    let sum = g.reduce(Reduction::Sum, square, &[1])?;
    g.sqrt(sum)
}

/// `softmax(q·kᵀ / √d + mask) · v`, op by op; `d` must be a fixed size.
pub fn attention(g: &mut GraphBuilder, q: NodeId, k: NodeId, v: NodeId, mask: Option<NodeId>) -> Result<NodeId> {
    let (_, dims) = g.type_of(k)?;
    let rank = dims.len();
    let width = dims.last().and_then(|dim| dim.as_fixed()).unwrap_or(1);
    let mut order: Vec<usize> = (0..rank).collect();
    order.swap(rank.saturating_sub(2), rank.saturating_sub(1));
    let turned = g.permute(k, &order)?;
    let scores = g.matmul(q, turned)?;
    let scores = g.with_number(BinaryOp::Mul, scores, 1.0 / (width as f64).sqrt())?;
    let scores = if let Some(mask) = mask { g.add(scores, mask)? } else { scores };
    let weights = g.softmax(scores, rank.saturating_sub(1))?;
    g.matmul(weights, v)
}
