//! MatMul: every sum separately. Floats are added up in f64, integers modulo 2^32, complex numbers
//! as pairs of f64.

use panoply_core::op::compute::{Activation, MatMul};
use panoply_core::{Complex64, DType, Result, Tensor, Value};

use super::conv2d::activate;
use crate::values::{tensor_of, to_f64};

pub(super) fn run(op: &MatMul) -> Result<Value> {
    match op.a.dtype() {
        DType::Complex64 => complex(op),
        dtype if dtype.is_integer() => integers(op),
        _ => floats(op),
    }
    .map(Value::Tensor)
}

fn floats(op: &MatMul) -> Result<Tensor> {
    let (alpha, beta) = (f64::from(op.alpha), f64::from(op.beta));
    let outputs = each_output(
        op,
        to_f64,
        0.0,
        |sum, x, y| sum + x * y,
        |sum, c, bias| {
            let added = c.map_or(0.0, |c| beta * c) + bias.unwrap_or(0.0);
            activate(alpha * sum + added, op.activation)
        },
    )?;
    Ok(tensor_of(op.output_dtype(), op.output_shape()?.dims(), &outputs))
}

fn integers(op: &MatMul) -> Result<Tensor> {
    let read = |tensor: &Tensor| Ok(to_f64(tensor)?.into_iter().map(|value| value as i64).collect());
    let (alpha, beta) = (op.alpha as i64, op.beta as i64);
    let relu = op.activation == Activation::Relu && op.output_dtype() == DType::I32;
    let add = |sum: i64, x: i64, y: i64| sum.wrapping_add(x.wrapping_mul(y));
    let outputs = each_output(op, read, 0, add, |sum, c, bias| {
        let scaled = alpha.wrapping_mul(sum).wrapping_add(beta.wrapping_mul(c.unwrap_or(0)));
        let result = scaled.wrapping_add(bias.unwrap_or(0)) as i32;
        if relu { result.max(0) } else { result }
    })?;
    let shape = op.output_shape()?;
    match op.output_dtype() {
        DType::U32 => Tensor::from_vec(outputs.into_iter().map(|value| value as u32).collect(), shape),
        _ => Tensor::from_vec(outputs, shape),
    }
}

fn complex(op: &MatMul) -> Result<Tensor> {
    let read = |tensor: &Tensor| {
        Ok(to_f64(tensor)?.chunks_exact(2).map(|parts| (parts[0], parts[1])).collect::<Vec<(f64, f64)>>())
    };
    let (alpha, beta) = (f64::from(op.alpha), f64::from(op.beta));
    let add =
        |sum: (f64, f64), x: (f64, f64), y: (f64, f64)| (sum.0 + x.0 * y.0 - x.1 * y.1, sum.1 + x.0 * y.1 + x.1 * y.0);
    let outputs = each_output(op, read, (0.0, 0.0), add, |sum, c, bias| {
        let (c, bias) = (c.unwrap_or((0.0, 0.0)), bias.unwrap_or((0.0, 0.0)));
        let part = |sum: f64, c: f64, bias: f64| (alpha * sum + beta * c + bias) as f32;
        Complex64::new(part(sum.0, c.0, bias.0), part(sum.1, c.1, bias.1))
    })?;
    Tensor::from_vec(outputs, op.output_shape()?)
}

/// Calls `finish` with each sum and its addends, in the order of the output's elements.
fn each_output<N: Copy, O>(
    op: &MatMul,
    read: impl Fn(&Tensor) -> Result<Vec<N>>,
    zero: N,
    add: impl Fn(N, N, N) -> N,
    finish: impl Fn(N, Option<N>, Option<N>) -> O,
) -> Result<Vec<O>> {
    let (shape, output_shape) = (op.matmul_shape()?, op.output_shape()?);
    let (m, n, k) = (shape.m, shape.n, shape.k);
    let (a, b) = op.operands()?;
    let a = read(&a.broadcast_to([shape.batch.dims(), &[m, k]].concat())?)?;
    let b = read(&b.broadcast_to([shape.batch.dims(), &[k, n]].concat())?)?;
    let c = op.c.as_ref().map(|c| c.broadcast_to(output_shape).and_then(|c| read(&c))).transpose()?;
    let bias = op.bias.as_ref().map(|bias| bias.broadcast_to([m, n]).and_then(|bias| read(&bias))).transpose()?;
    let mut outputs = Vec::with_capacity(output_shape.elements());
    for index in 0..output_shape.elements() {
        let (batch, row, col) = (index / (m * n), index / n % m, index % n);
        let product = |sum, inner| add(sum, a[(batch * m + row) * k + inner], b[(batch * k + inner) * n + col]);
        let sum = (0..k).fold(zero, product);
        let bias = bias.as_ref().map(|bias| bias[row * n + col]);
        outputs.push(finish(sum, c.as_ref().map(|c| c[index]), bias));
    }
    Ok(outputs)
}
