//! Normalize: the formula for each element, in f64.

use panoply_core::op::compute::Normalize;
use panoply_core::{Result, Value};

use crate::values::{tensor_of, to_f64};

pub(super) fn run(op: &Normalize) -> Result<Value> {
    let axis = op.channel_axis()?;
    let shape = op.output_shape();
    let inner: usize = shape[axis + 1..].iter().product();
    let mut values = to_f64(&op.input)?;
    for (index, value) in values.iter_mut().enumerate() {
        let channel = index / inner % op.mean.len();
        let scaled = *value * f64::from(op.scale) - f64::from(op.mean[channel]);
        *value = scaled / f64::from(op.std[channel]);
    }
    Ok(Value::Tensor(tensor_of(op.output, &shape, &values)))
}
