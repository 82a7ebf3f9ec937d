//! Ops on rows: Softmax, LayerNorm and RowMap.

use panoply_core::op::compute::{LayerNorm, RowFunction, RowMap, Softmax};
use panoply_core::{DType, Result, Tensor};

use super::Emit;
use super::maps::stretched;
use super::reduce::mean;
use crate::hlo::{self, Value, Writer};

pub(super) fn softmax(emit: &mut Emit, op: &Softmax) -> Result<Value> {
    let input = emit.number(&op.input)?;
    Ok(soften(&mut emit.writer, &input, op.axis, op.is_log))
}

pub(super) fn layer_norm(emit: &mut Emit, op: &LayerNorm) -> Result<Value> {
    let input = emit.number(&op.input)?;
    let axes: Vec<usize> = (input.rank() - op.axes..input.rank()).collect();
    let mut value = norm(&mut emit.writer, &input, &axes, op.epsilon, op.is_rms);
    if let Some(weight) = &op.weight {
        let weight = stretched(emit, weight, &input.dims)?;
        value = emit.writer.like("multiply", &[&value, &weight]);
    }
    if let Some(bias) = &op.bias {
        let bias = stretched(emit, bias, &input.dims)?;
        value = emit.writer.like("add", &[&value, &bias]);
    }
    Ok(value)
}

pub(super) fn row_map(emit: &mut Emit, op: &RowMap) -> Result<Value> {
    let (rows, output) = (op.rows_shape()?.to_vec(), op.output_shape()?.to_vec());
    let dtypes: Vec<DType> = op.inputs().iter().map(Tensor::dtype).collect();
    let inputs = op.inputs().iter().map(|input| stretched(emit, input, &rows)).collect::<Result<Vec<Value>>>()?;
    let before = hlo::expression(&mut emit.writer, op.before_program()?, &dtypes, &inputs, &rows)?;
    let (writer, last) = (&mut emit.writer, rows.len() - 1);
    let result = match op.function {
        RowFunction::Sum => writer.reduce("add", &before, 0.0, &[last]),
        RowFunction::Mean => mean(writer, &before, &[last], rows[last]),
        RowFunction::Max => writer.reduce("maximum", &before, f64::NEG_INFINITY, &[last]),
        RowFunction::Min => writer.reduce("minimum", &before, f64::INFINITY, &[last]),
        RowFunction::LogSoftmax => soften(writer, &before, last, true),
        RowFunction::Norm { epsilon, is_rms } => norm(writer, &before, &[last], epsilon, is_rms),
        _ => soften(writer, &before, last, false),
    };
    let mut inputs = vec![result];
    for tensor in op.more() {
        inputs.push(stretched(emit, tensor, &output)?);
    }
    hlo::expression(&mut emit.writer, op.after_program()?, &op.after_dtypes()?, &inputs, &output)
}

/// Softmax or its logarithm. The largest element is subtracted first, so that nothing overflows.
fn soften(writer: &mut Writer, input: &Value, axis: usize, is_log: bool) -> Value {
    let largest = writer.reduce_stretched("maximum", input, f64::NEG_INFINITY, &[axis]);
    let lowered = writer.like("subtract", &[input, &largest]);
    let powers = writer.like("exponential", &[&lowered]);
    let total = writer.reduce_stretched("add", &powers, 0.0, &[axis]);
    if !is_log {
        return writer.like("divide", &[&powers, &total]);
    }
    let log = writer.like("log", &[&total]);
    writer.like("subtract", &[&lowered, &log])
}

/// Normalises to variance one, and to mean zero unless `is_rms`.
fn norm(writer: &mut Writer, input: &Value, axes: &[usize], epsilon: f64, is_rms: bool) -> Value {
    let count: usize = axes.iter().map(|axis| input.dims[*axis]).product();
    let kept: Vec<usize> = (0..input.rank()).filter(|axis| !axes.contains(axis)).collect();
    let centred = match is_rms {
        true => input.clone(),
        false => {
            let middle = mean(writer, input, axes, count);
            let middle = writer.broadcast(&middle, &kept, &input.dims);
            writer.like("subtract", &[input, &middle])
        }
    };
    let squares = writer.like("multiply", &[&centred, &centred]);
    let variance = mean(writer, &squares, axes, count);
    let small = writer.constant(epsilon, variance.element, &variance.dims);
    let sum = writer.like("add", &[&variance, &small]);
    let deviation = writer.like("sqrt", &[&sum]);
    let deviation = writer.broadcast(&deviation, &kept, &input.dims);
    writer.like("divide", &[&centred, &deviation])
}
