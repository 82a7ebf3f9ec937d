//! Softmax: exponentials in f64, after subtracting the maximum.

use panoply_core::op::compute::Softmax;
use panoply_core::{Result, Value};

use crate::reference::lines::map_lines;

pub(super) fn run(op: &Softmax) -> Result<Value> {
    map_lines(&op.input, op.axis, |line| soften(line, op.is_log)).map(Value::Tensor)
}

fn soften(line: &[f64], log: bool) -> Vec<f64> {
    // `f64::max` ignores NaN, which propagates through the sum.
    let max = line.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = line.iter().map(|value| (value - max).exp()).sum();
    let answer = |value: &f64| if log { value - max - total.ln() } else { (value - max).exp() / total };
    line.iter().map(answer).collect()
}
