//! TopK: each line is fully sorted and then cut.

use std::cmp::Ordering;

use panoply_core::op::compute::TopK;
use panoply_core::{DType, Element, Error, Result, Tensor, Value, bf16, f16};

pub(super) fn run(op: &TopK) -> Result<Value> {
    match op.input.dtype() {
        DType::F32 => choose(op, |value: f32| f64::from(value)),
        DType::F16 => choose(op, f16::to_f64),
        DType::BF16 => choose(op, bf16::to_f64),
        DType::F64 => choose(op, |value: f64| value),
        DType::I32 => choose(op, |value: i32| f64::from(value)),
        DType::U32 => choose(op, |value: u32| f64::from(value)),
        DType::I8 => choose(op, |value: i8| f64::from(value)),
        DType::U8 => choose(op, |value: u8| f64::from(value)),
        got @ DType::Complex64 => Err(Error::DTypeUnsupported { what: "topk", expected: "a type with an order", got }),
    }
}

fn choose<T: Element>(op: &TopK, number: impl Fn(T) -> f64) -> Result<Value> {
    let shape = op.output_shape()?;
    let dims = op.input.shape();
    let (len, inner) = (dims[op.axis], dims[op.axis + 1..].iter().product::<usize>());
    let outer: usize = dims[..op.axis].iter().product();
    let input: Vec<T> = op.input.to_vec()?;
    let mut values: Vec<T> = vec![T::zeroed(); shape.elements()];
    let mut indices = vec![0_u32; shape.elements()];
    for lane in 0..outer * inner {
        let at = |index: usize| input[(lane / inner * len + index) * inner + lane % inner];
        let mut order: Vec<usize> = (0..len).collect();
        // The sort is stable, so equal elements stay in the order of their indices.
        order.sort_by(|a, b| {
            let ascending = compare(number(at(*a)), number(at(*b)));
            if op.largest { ascending.reverse() } else { ascending }
        });
        for (place, index) in order.into_iter().take(op.k).enumerate() {
            let output = (lane / inner * op.k + place) * inner + lane % inner;
            values[output] = at(index);
            indices[output] = index as u32;
        }
    }
    Ok(Value::Pair(Tensor::from_vec(values, shape)?, Tensor::from_vec(indices, shape)?))
}

/// The order of numbers, with NaN above all others.
fn compare(a: f64, b: f64) -> Ordering {
    a.partial_cmp(&b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()))
}
