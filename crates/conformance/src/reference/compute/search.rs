//! Search: every score in double precision, rounded to f32, and a full sort.

use std::cmp::Ordering;

use panoply_core::op::compute::{Metric, Search};
use panoply_core::{Result, Tensor, Value};

use crate::values::to_f64;

pub(super) fn run(op: &Search) -> Result<Value> {
    let shape = op.output_shape()?;
    let (rows, queries) = (to_f64(&op.rows)?, to_f64(&op.queries)?);
    let (row_count, dim) = (op.rows.shape()[0], op.rows.shape()[1]);
    let filter = op.filter.as_ref().map(Tensor::to_vec::<u32>).transpose()?;
    let norms = op.row_norms.as_ref().map(Tensor::to_vec::<f32>).transpose()?;
    let mut ids = vec![u32::MAX; shape.elements()];
    let mut scores = vec![op.metric.missing_score(); shape.elements()];
    for query in 0..shape[0] {
        let vector = &queries[query * dim..][..dim];
        let mut found: Vec<(u32, f32)> = Vec::new();
        for row in 0..row_count {
            if filter.as_ref().is_none_or(|words| words[row / 32] >> (row % 32) & 1 == 1) {
                let norm = norms.as_ref().map(|norms| f64::from(norms[row]));
                found.push((row as u32, score(op.metric, &rows[row * dim..][..dim], vector, norm) as f32));
            }
        }
        // The sort is stable, so equal scores stay in the order of their ids.
        found.sort_by(|a, b| nearest_first(op.metric, a.1, b.1));
        for (place, (id, score)) in found.into_iter().take(op.k).enumerate() {
            ids[query * op.k + place] = id;
            scores[query * op.k + place] = score;
        }
    }
    Ok(Value::Pair(Tensor::from_vec(ids, shape)?, Tensor::from_vec(scores, shape)?))
}

fn score(metric: Metric, row: &[f64], query: &[f64], row_norm: Option<f64>) -> f64 {
    match metric {
        Metric::Dot => dot(row, query),
        Metric::Cosine => {
            let norms = row_norm.unwrap_or_else(|| dot(row, row).sqrt()) * dot(query, query).sqrt();
            if norms == 0.0 { 0.0 } else { dot(row, query) / norms }
        }
        Metric::Euclidean => row.iter().zip(query).map(|(a, b)| (a - b) * (a - b)).sum::<f64>().sqrt(),
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The order of scores: nearer first, NaN last.
fn nearest_first(metric: Metric, a: f32, b: f32) -> Ordering {
    match a.partial_cmp(&b) {
        Some(order) if metric.smaller_is_nearer() => order,
        Some(order) => order.reverse(),
        None => a.is_nan().cmp(&b.is_nan()),
    }
}
