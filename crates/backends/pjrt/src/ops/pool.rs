//! Pool2d: the maximum or the average of windows.

use panoply_core::Result;
use panoply_core::op::compute::{Pool2d, PoolKind, PoolShape};

use super::Emit;
use crate::hlo::{Value, Window};

pub(super) fn pool2d(emit: &mut Emit, op: &Pool2d) -> Result<Value> {
    let shape = op.pool_shape()?;
    let input = emit.number(&op.input)?;
    let [top, left, bottom, right] = shape.padding;
    let window = Window {
        size: [&[1, 1][..], &shape.kernel].concat(),
        stride: [&[1, 1][..], &shape.stride].concat(),
        padding: vec![[0, 0], [0, 0], [top, bottom], [left, right]],
    };
    let PoolKind::Average { count_padding } = op.kind else {
        return Ok(emit.writer.reduce_window("maximum", &input, f64::NEG_INFINITY, &window));
    };
    let sums = emit.writer.reduce_window("add", &input, 0.0, &window);
    let counts = match count_padding {
        true => emit.writer.constant((shape.kernel[0] * shape.kernel[1]) as f64, sums.element, &sums.dims),
        false => {
            let (rows, columns) = (counts(emit, &shape, &sums, 0), counts(emit, &shape, &sums, 1));
            emit.writer.like("multiply", &[&rows, &columns])
        }
    };
    Ok(emit.writer.like("divide", &[&sums, &counts]))
}

/// Number of the image's rows or columns in each window.
fn counts(emit: &mut Emit, shape: &PoolShape, sums: &Value, axis: usize) -> Value {
    let lens: Vec<f64> = (0..shape.output()[axis]).map(|index| shape.window(axis, index).len() as f64).collect();
    let list = emit.writer.list(&lens, sums.element);
    emit.writer.broadcast(&list, &[axis + 2], &sums.dims)
}
