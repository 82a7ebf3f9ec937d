//! Attention: scores, their softmax, and the weighted sum of the values.

use panoply_core::Result;
use panoply_core::op::compute::{Attention, AttentionShape};

use super::Emit;
use super::product::inner_product;
use crate::hlo::{Compare, DotAxes, Element, Value, Writer};

pub(super) fn attention(emit: &mut Emit, op: &Attention) -> Result<Value> {
    let shape = op.attention_shape()?;
    let output = op.output_shape()?.to_vec();
    // Query heads that share a key head become queries of one head.
    let lines = shape.batch.elements() * shape.kv_heads;
    let (queries, keys) = (shape.group() * shape.n_q, shape.n_k);
    if keys == 0 || lines == 0 {
        return Ok(emit.writer.constant(0.0, Element::from(crate::hlo::carrier(op.q.dtype())), &output));
    }
    let (q, k, v) = (emit.tensor(&op.q)?, emit.tensor(&op.k)?, emit.number(&op.v)?);
    let q = emit.writer.reshape(&q, &[lines, queries, shape.d]);
    let k = emit.writer.reshape(&k, &[lines, keys, shape.d]);
    let v = emit.writer.reshape(&v, &[lines, keys, shape.d_v]);
    let scores = inner_product(emit, &q, &k, &DotAxes { batch: &[0], a: 2, b: 2 });
    let scores = masked(emit, op, &shape, &scores)?;
    let weights = soften(&mut emit.writer, &scores);
    let sums = weighted(emit, &weights, &v);
    Ok(emit.writer.reshape(&sums, &output))
}

/// Scales the scores and adds the mask. Keys hidden from a query get -∞.
fn masked(emit: &mut Emit, op: &Attention, shape: &AttentionShape, scores: &Value) -> Result<Value> {
    let scale = emit.writer.constant(f64::from(op.scale_or_default()), scores.element, &scores.dims);
    let mut scores = emit.writer.like("multiply", &[scores, &scale]);
    if let Some(mask) = op.whole_mask()? {
        let mask = emit.number(&mask)?;
        let mask = emit.writer.convert(&mask, scores.element);
        let mask = emit.writer.reshape(&mask, &scores.dims);
        scores = emit.writer.like("add", &[&scores, &mask]);
    }
    if op.is_causal {
        let writer = &mut emit.writer;
        let dims = [scores.dims[0], shape.group(), shape.n_q, shape.n_k];
        let (row, key) = (writer.iota(2, Element::I32, &dims), writer.iota(3, Element::I32, &dims));
        let moved = writer.constant(shape.n_k as f64 - shape.n_q as f64, Element::I32, &dims);
        let last = writer.like("add", &[&row, &moved]);
        let seen = writer.compare(Compare::Le, &key, &last);
        let seen = writer.reshape(&seen, &scores.dims);
        let hidden = writer.constant(f64::NEG_INFINITY, scores.element, &scores.dims);
        scores = writer.select(&seen, &scores, &hidden);
    }
    Ok(scores)
}

/// Softmax along the last axis. Rows with all scores -∞ become zeros.
fn soften(writer: &mut Writer, scores: &Value) -> Value {
    let (element, dims) = (scores.element, &scores.dims);
    let (nothing, zero) = (writer.constant(f64::NEG_INFINITY, element, dims), writer.constant(0.0, element, dims));
    let largest = writer.reduce_stretched("maximum", scores, f64::NEG_INFINITY, &[2]);
    let is_nothing = writer.compare(Compare::Eq, &largest, &nothing);
    let largest = writer.select(&is_nothing, &zero, &largest);
    let lowered = writer.like("subtract", &[scores, &largest]);
    let powers = writer.like("exponential", &[&lowered]);
    let total = writer.reduce_stretched("add", &powers, 0.0, &[2]);
    let shares = writer.like("divide", &[&powers, &total]);
    writer.select(&is_nothing, &zero, &shares)
}

/// Sums the values by their weights. A value with weight zero is ignored, even if it is not finite.
/// If some values are not finite, they are removed from the sums and added again where their weight
/// is not zero.
fn weighted(emit: &mut Emit, weights: &Value, values: &Value) -> Value {
    let axes = DotAxes { batch: &[0], a: 2, b: 1 };
    let finite = emit.writer.op("is_finite", &[values], "", Element::Bool, &values.dims);
    let all = emit.writer.convert(&finite, Element::I32);
    let all = emit.writer.reduce("minimum", &all, 1.0, &[0, 1, 2]);
    let one = emit.writer.constant(1.0, Element::I32, &[]);
    let is_tame = emit.writer.compare(Compare::Eq, &all, &one);
    let precision = "HIGHEST";
    let element = values.element;
    emit.writer.choose(
        &is_tame,
        |writer| writer.dot(weights, values, &axes, element, precision),
        |writer| {
            let zero = writer.constant(0.0, element, &values.dims);
            let tame = writer.select(&finite, values, &zero);
            let sums = writer.dot(weights, &tame, &axes, element, precision);
            let mut wild = |number: f64, direction: Compare| {
                let bound = writer.constant(number, element, &values.dims);
                let there = match number.is_nan() {
                    true => writer.compare(direction, values, values),
                    false => writer.compare(direction, values, &bound),
                };
                let there = writer.convert(&there, element);
                writer.dot(weights, &there, &axes, element, precision)
            };
            let above = wild(f64::INFINITY, Compare::Eq);
            let below = wild(f64::NEG_INFINITY, Compare::Eq);
            let neither = wild(f64::NAN, Compare::Ne);
            put_back(writer, &sums, [(&above, f64::INFINITY), (&below, f64::NEG_INFINITY), (&neither, f64::NAN)])
        },
    )
}

/// Adds each non-finite number where its weight is greater than zero.
fn put_back(writer: &mut Writer, sums: &Value, wild: [(&Value, f64); 3]) -> Value {
    let zero = writer.constant(0.0, sums.element, &sums.dims);
    let mut result = sums.clone();
    for (weight, number) in wild {
        let counts = writer.compare(Compare::Gt, weight, &zero);
        let number = writer.constant(number, sums.element, &sums.dims);
        let more = writer.like("add", &[&result, &number]);
        result = writer.select(&counts, &more, &result);
    }
    result
}
