//! RowMap: the expression of each element, the function of each row in f64, and the expression of
//! its result.

use panoply_core::op::compute::{RowFunction, RowMap};
use panoply_core::{DType, Result, Tensor, Value};

use super::map::{Scalar, carried, evaluate, read, write};

pub(super) fn run(op: &RowMap) -> Result<Value> {
    let (rows, row_dtype) = (op.rows_shape()?, op.row_dtype()?);
    let dtypes: Vec<DType> = op.inputs().iter().map(Tensor::dtype).collect();
    let types = op.before_program()?.types(&dtypes)?;
    let inputs: Vec<Vec<Scalar>> =
        op.inputs().iter().map(|input| read(&input.broadcast_to(rows)?)).collect::<Result<_>>()?;
    let values = (0..rows.elements()).map(|element| {
        let value = evaluate(op.before_program()?, &types, |index| inputs[index][element])?;
        Ok(if let Scalar::Float(value) = value { value } else { f64::NAN })
    });
    let values: Vec<f64> = values.collect::<Result<_>>()?;
    let len = op.row_len()?;
    let count: usize = rows[..rows.rank() - 1].iter().product();
    let results = (0..count).flat_map(|row| of_row(op.function, &values[row * len..(row + 1) * len]));
    let results: Vec<Scalar> = results.map(|value| carried(Scalar::Float(value), row_dtype)).collect();
    let shape = op.output_shape()?;
    let more: Vec<Vec<Scalar>> =
        op.more().iter().map(|tensor| read(&tensor.broadcast_to(shape)?)).collect::<Result<_>>()?;
    let types = op.after_program()?.types(&op.after_dtypes()?)?;
    let outputs = (0..shape.elements()).map(|element| {
        let input = |index: usize| if index == 0 { results[element] } else { more[index - 1][element] };
        evaluate(op.after_program()?, &types, input)
    });
    let outputs: Vec<Scalar> = outputs.collect::<Result<_>>()?;
    write(types.output(), &shape, &outputs).map(Value::Tensor)
}

fn of_row(function: RowFunction, row: &[f64]) -> Vec<f64> {
    let extreme = |better: fn(f64, f64) -> f64| match row.iter().any(|value| value.is_nan()) {
        true => f64::NAN,
        false => row.iter().copied().reduce(better).unwrap_or(f64::NAN),
    };
    let len = row.len() as f64;
    match function {
        RowFunction::Sum => vec![row.iter().sum()],
        RowFunction::Mean => vec![row.iter().sum::<f64>() / len],
        RowFunction::Max => vec![extreme(f64::max)],
        RowFunction::Min => vec![extreme(f64::min)],
        RowFunction::Norm { epsilon, is_rms } => {
            let mean = if is_rms { 0.0 } else { row.iter().sum::<f64>() / len };
            let variance = row.iter().map(|value| (value - mean) * (value - mean)).sum::<f64>() / len;
            row.iter().map(|value| (value - mean) / (variance + epsilon).sqrt()).collect()
        }
        _ => {
            let is_log = function == RowFunction::LogSoftmax;
            let max = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let total: f64 = row.iter().map(|value| (value - max).exp()).sum();
            let soft = |value: &f64| if is_log { value - max - total.ln() } else { (value - max).exp() / total };
            row.iter().map(soft).collect()
        }
    }
}
