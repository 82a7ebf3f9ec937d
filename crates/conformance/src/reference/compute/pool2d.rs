//! Pool2d: the numbers of each window, one by one.

use panoply_core::op::compute::{Pool2d, PoolKind};
use panoply_core::{Result, Value};

use crate::values::{tensor_of, to_f64};

pub(super) fn run(op: &Pool2d) -> Result<Value> {
    let shape = op.pool_shape()?;
    let input = to_f64(&op.input)?;
    let [height, width] = shape.output();
    let mut output = Vec::new();
    for plane in 0..shape.batch * shape.channels {
        for row in 0..height {
            for column in 0..width {
                // Taps outside the image have no number.
                let taps = |axis: usize, index: usize| {
                    let (start, before) = (index * shape.stride[axis], shape.padding[axis]);
                    let end = (start + shape.kernel[axis]).saturating_sub(before).min(shape.input[axis]);
                    start.saturating_sub(before)..end
                };
                let mut window = Vec::new();
                for y in taps(0, row) {
                    for x in taps(1, column) {
                        window.push(input[(plane * shape.input[0] + y) * shape.input[1] + x]);
                    }
                }
                output.push(join(op.kind, &window, shape.kernel[0] * shape.kernel[1]));
            }
        }
    }
    let dims = op.output_shape()?;
    Ok(Value::Tensor(tensor_of(op.input.dtype(), &dims, &output)))
}

fn join(kind: PoolKind, window: &[f64], window_size: usize) -> f64 {
    match kind {
        PoolKind::Max if window.iter().any(|number| number.is_nan()) => f64::NAN,
        PoolKind::Max => window.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        PoolKind::Average { count_padding } => {
            let count = if count_padding { window_size } else { window.len() };
            window.iter().sum::<f64>() / count as f64
        }
    }
}
