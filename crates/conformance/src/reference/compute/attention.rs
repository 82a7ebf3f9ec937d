//! Attention: every score of a query in f64, their softmax, and the weighted sum of the values.

use panoply_core::op::compute::Attention;
use panoply_core::{Result, Value};

use crate::values::{tensor_of, to_f64};

pub(super) fn run(op: &Attention) -> Result<Value> {
    let shape = op.attention_shape()?;
    let (q, k, v) = (to_f64(&op.q)?, to_f64(&op.k)?, to_f64(&op.v)?);
    let mask = op.whole_mask()?.map(|mask| to_f64(&mask)).transpose()?;
    let scale = f64::from(op.scale_or_default());
    let (n_q, n_k, d, d_v) = (shape.n_q, shape.n_k, shape.d, shape.d_v);
    let mut outputs = Vec::with_capacity(shape.lines() * n_q * d_v);
    for row in 0..shape.lines() * n_q {
        let (line, query) = (row / n_q, row % n_q);
        let kv_line = line / shape.heads * shape.kv_heads + line % shape.heads / shape.group();
        let seen = if op.is_causal { shape.seen_by(query) } else { n_k };
        let score = |key: usize| {
            let product = |sum: f64, at: usize| sum + q[row * d + at] * k[(kv_line * n_k + key) * d + at];
            let added = mask.as_ref().map_or(0.0, |mask| mask[row * n_k + key]);
            (0..d).fold(0.0, product) * scale + added
        };
        let scores: Vec<f64> = (0..seen).map(score).collect();
        let weights = soften(&scores);
        for column in 0..d_v {
            let weighted = |key: usize| weights[key] * v[(kv_line * n_k + key) * d_v + column];
            // Values with weight zero are left out, so that their contents do not matter.
            outputs.push((0..seen).filter(|key| weights[*key] != 0.0).map(weighted).sum());
        }
    }
    Ok(Value::Tensor(tensor_of(op.q.dtype(), op.output_shape()?.dims(), &outputs)))
}

/// The softmax, or zeros if every score is -∞.
fn soften(scores: &[f64]) -> Vec<f64> {
    if scores.iter().all(|score| *score == f64::NEG_INFINITY) {
        return vec![0.0; scores.len()];
    }
    // `f64::max` ignores NaN, which propagates through the sum.
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|score| (score - max).exp()).sum();
    scores.iter().map(|score| (score - max).exp() / total).collect()
}
