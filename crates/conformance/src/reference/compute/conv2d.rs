//! Conv2d and its gradients: every product of the convolution, added up one by one in f64.

use panoply_core::op::compute::{Activation, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvShape};
use panoply_core::{Result, Value};

use crate::values::{tensor_of, to_f64};

pub(super) fn forward(op: &Conv2d) -> Result<Value> {
    let shape = op.conv_shape()?;
    let (input, weights) = (to_f64(&op.input)?, to_f64(&op.weights)?);
    let mut output = vec![0.0; shape.output_len()];
    if let Some(bias) = &op.bias {
        let bias = to_f64(bias)?;
        let plane: usize = shape.output().iter().product();
        for (index, sum) in output.iter_mut().enumerate() {
            *sum = bias[index / plane % shape.filters];
        }
    }
    // Padding consists of zeros, which are multiplied as well: an infinite weight times zero is
    // NaN.
    for_each_product(&shape, |place| {
        let value = place.input.map_or(0.0, |at| input[at]);
        output[place.output] += value * weights[place.weight];
    });
    output.iter_mut().for_each(|sum| *sum = activate(*sum, op.activation));
    Ok(Value::Tensor(tensor_of(op.input.dtype(), &shape.output_dims(), &output)))
}

pub(super) fn backward_input(op: &Conv2dBackwardInput) -> Result<Value> {
    let shape = op.conv_shape()?;
    let (gradient, weights) = (to_f64(&op.gradient)?, to_f64(&op.weights)?);
    let mut input = vec![0.0; shape.input_len()];
    for_each_product(&shape, |place| {
        if let Some(at) = place.input {
            input[at] += gradient[place.output] * weights[place.weight];
        }
    });
    Ok(Value::Tensor(tensor_of(op.gradient.dtype(), &shape.input_dims(), &input)))
}

pub(super) fn backward_weight(op: &Conv2dBackwardWeight) -> Result<Value> {
    let shape = op.conv_shape()?;
    let (input, gradient) = (to_f64(&op.input)?, to_f64(&op.gradient)?);
    let mut weights = vec![0.0; shape.weight_len()];
    for_each_product(&shape, |place| {
        if let Some(at) = place.input {
            weights[place.weight] += input[at] * gradient[place.output];
        }
    });
    Ok(Value::Tensor(tensor_of(op.input.dtype(), &shape.weight_dims(), &weights)))
}

/// The indices of the elements that one product of a convolution uses.
struct ProductIndices {
    /// The input, or `None` for padding.
    input: Option<usize>,
    weight: usize,
    output: usize,
}

fn for_each_product(shape: &ConvShape, mut visit: impl FnMut(ProductIndices)) {
    let [out_height, out_width] = shape.output();
    for image in 0..shape.batch {
        for filter in 0..shape.filters {
            for row in 0..out_height {
                for column in 0..out_width {
                    let output = ((image * shape.filters + filter) * out_height + row) * out_width + column;
                    for_each_tap(shape, image, filter, [row, column], |input, weight| {
                        visit(ProductIndices { input, weight, output });
                    });
                }
            }
        }
    }
}

/// Visits the inputs that one output reads, with their weights. `None` is padding.
fn for_each_tap(
    shape: &ConvShape,
    image: usize,
    filter: usize,
    pixel: [usize; 2],
    mut visit: impl FnMut(Option<usize>, usize),
) {
    let first_channel = filter / shape.group_filters() * shape.group_channels();
    for channel in 0..shape.group_channels() {
        for tap_row in 0..shape.kernel[0] {
            for tap_column in 0..shape.kernel[1] {
                let tap = [tap_row, tap_column];
                let read = |axis: usize| {
                    let padded = pixel[axis] * shape.stride[axis] + tap[axis] * shape.dilation[axis];
                    padded.checked_sub(shape.padding[axis]).filter(|position| *position < shape.input[axis])
                };
                let plane = image * shape.channels + first_channel + channel;
                let input =
                    read(0).zip(read(1)).map(|(row, column)| (plane * shape.input[0] + row) * shape.input[1] + column);
                let weight_plane = filter * shape.group_channels() + channel;
                let weight = (weight_plane * shape.kernel[0] + tap_row) * shape.kernel[1] + tap_column;
                visit(input, weight);
            }
        }
    }
}

pub(super) fn activate(x: f64, activation: Activation) -> f64 {
    match activation {
        Activation::Relu if x < 0.0 => 0.0,
        Activation::Gelu | Activation::Silu if x == f64::NEG_INFINITY => 0.0,
        Activation::Gelu => x * normal_probability(x),
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Activation::Tanh => x.tanh(),
        _ => x,
    }
}

/// The probability that a standard normal number is below `x`: a power series near zero, and a
/// continued fraction in the tails, where the probability is small and needs full relative
/// precision.
fn normal_probability(x: f64) -> f64 {
    let density = (-0.5 * x * x).exp() / (2.0 * std::f64::consts::PI).sqrt();
    if x.abs() < 3.0 {
        let (mut term, mut sum) = (x, x);
        for step in 1..100 {
            term *= x * x / f64::from(2 * step + 1);
            sum += term;
        }
        return 0.5 + density * sum;
    }
    let fraction = (1..200).rev().fold(x.abs(), |fraction, step| x.abs() + f64::from(step) / fraction);
    let tail = density / fraction;
    if x < 0.0 { tail } else { 1.0 - tail }
}
