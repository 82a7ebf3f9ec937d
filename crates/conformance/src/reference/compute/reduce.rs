//! Reduce: the reduced axes are moved to the end, then reduced by loops in f64 or exact integers.

use panoply_core::op::compute::{Reduce, Reduction};
use panoply_core::{Complex64, DType, Result, Tensor, Value};

use crate::reference::lines::wrap;
use crate::values::{tensor_of, to_f64};

pub(super) fn run(op: &Reduce) -> Result<Value> {
    let reduced = op.reduced()?;
    let mut order: Vec<usize> = (0..reduced.len()).collect();
    order.sort_by_key(|axis| reduced[*axis]);
    let numbers = to_f64(&op.input.permute(&order)?)?;
    let (count, shape) = (op.count()?, op.output_shape()?);
    if op.input.dtype() == DType::Complex64 {
        return complex(op, &numbers, count).map(Value::Tensor);
    }
    let sets = (0..shape.elements()).map(|index| &numbers[index * count..(index + 1) * count]);
    let values: Vec<f64> = sets.map(|set| reduce(op, set)).collect();
    Ok(Value::Tensor(tensor_of(op.output_dtype(), &shape, &values)))
}

fn reduce(op: &Reduce, set: &[f64]) -> f64 {
    let exact: i128 = if op.input.dtype().is_integer() { set.iter().map(|value| *value as i128).sum() } else { 0 };
    match op.reduction {
        Reduction::Sum if op.input.dtype().is_integer() => wrap(op.input.dtype(), exact) as f64,
        Reduction::Sum => set.iter().sum(),
        Reduction::Mean => set.iter().sum::<f64>() / set.len() as f64,
        Reduction::Max => set[first(set, |candidate, best| candidate > best)],
        Reduction::Min => set[first(set, |candidate, best| candidate < best)],
        Reduction::ArgMax => first(set, |candidate, best| candidate > best) as f64,
        Reduction::ArgMin => first(set, |candidate, best| candidate < best) as f64,
    }
}

/// The index of the first NaN, or else of the first element for which no other element is better.
fn first(set: &[f64], better: impl Fn(f64, f64) -> bool) -> usize {
    if let Some(nan) = set.iter().position(|value| value.is_nan()) {
        return nan;
    }
    (1..set.len()).fold(0, |best, index| if better(set[index], set[best]) { index } else { best })
}

fn complex(op: &Reduce, parts: &[f64], count: usize) -> Result<Tensor> {
    let shape = op.output_shape()?;
    let sums = (0..shape.elements()).map(|index| {
        let set = &parts[index * count * 2..(index + 1) * count * 2];
        let part = |offset: usize| set.iter().skip(offset).step_by(2).sum::<f64>();
        let scale = if op.reduction == Reduction::Mean { count as f64 } else { 1.0 };
        Complex64::new((part(0) / scale) as f32, (part(1) / scale) as f32)
    });
    Tensor::from_vec(sums.collect(), shape)
}
