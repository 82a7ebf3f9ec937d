//! Convolutions and their two gradients.

use panoply_core::op::compute::{Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvShape, Precision};
use panoply_core::{DType, Result};

use super::Emit;
use super::maps::activate;
use super::product::precision_of;
use crate::hlo::{Value, carrier};

/// The attributes of a StableHLO convolution. Pairs are (vertical, horizontal).
struct Convolution<'a> {
    /// The roles of the axes of input, kernel and output.
    axes: &'a str,
    stride: [usize; 2],
    padding: [[i64; 2]; 2],
    input_dilation: [usize; 2],
    kernel_dilation: [usize; 2],
    is_reversed: bool,
    feature_groups: usize,
    batch_groups: usize,
    output: [usize; 4],
}

impl Convolution<'_> {
    fn write(&self, emit: &mut Emit, input: &Value, kernel: &Value, dtype: DType) -> Value {
        let pair = |[a, b]: [usize; 2]| format!("array<i64: {a}, {b}>");
        let [[top, bottom], [left, right]] = self.padding;
        let (reversed, precision) = (self.is_reversed, precision_of(dtype, Precision::Full));
        let attribute = format!(
            "window_strides = {}, padding = dense<[[{top}, {bottom}], [{left}, {right}]]> : tensor<2x2xi64>, lhs_dilation = {}, rhs_dilation = {}, window_reversal = array<i1: {reversed}, {reversed}>, dimension_numbers = #stablehlo.conv<{}>, feature_group_count = {} : i64, batch_group_count = {} : i64, precision_config = [#stablehlo<precision {precision}>, #stablehlo<precision {precision}>]",
            pair(self.stride),
            pair(self.input_dilation),
            pair(self.kernel_dilation),
            self.axes,
            self.feature_groups,
            self.batch_groups,
        );
        emit.writer.op("convolution", &[input, kernel], &attribute, carrier(dtype).into(), &self.output)
    }
}

pub(super) fn conv2d(emit: &mut Emit, op: &Conv2d) -> Result<Value> {
    let shape = op.conv_shape()?;
    let dims = shape.output_dims();
    let mut value = if shape.channels == 0 {
        emit.writer.constant(0.0, carrier(op.input.dtype()).into(), &dims)
    } else {
        let (input, weights) = (emit.tensor(&op.input)?, emit.tensor(&op.weights)?);
        let convolution = Convolution {
            axes: "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]",
            stride: shape.stride,
            padding: std::array::from_fn(|axis| [shape.padding[axis] as i64, shape.padding[axis + 2] as i64]),
            input_dilation: [1, 1],
            kernel_dilation: shape.dilation,
            is_reversed: false,
            feature_groups: shape.groups,
            batch_groups: 1,
            output: dims,
        };
        convolution.write(emit, &input, &weights, op.input.dtype())
    };
    if let Some(bias) = &op.bias {
        let bias = emit.number(bias)?;
        let bias = emit.writer.broadcast(&bias, &[1], &dims);
        value = emit.writer.like("add", &[&value, &bias]);
    }
    activate(&mut emit.writer, op.activation, &value)
}

/// The gradient with respect to the input: the output gradient, dilated by the stride, is convolved
/// with the flipped kernel, whose filters and channels are swapped.
pub(super) fn backward_input(emit: &mut Emit, op: &Conv2dBackwardInput) -> Result<Value> {
    let shape = op.conv_shape()?;
    let dtype = op.gradient.dtype();
    let dims = shape.input_dims();
    if shape.filters == 0 || op.gradient.elements() == 0 {
        return Ok(emit.writer.constant(0.0, carrier(dtype).into(), &dims));
    }
    let (gradient, weights) = (emit.tensor(&op.gradient)?, emit.tensor(&op.weights)?);
    let (groups, [height, width]) = (shape.groups, shape.kernel);
    let split = [groups, shape.group_filters(), shape.group_channels(), height, width];
    let weights = emit.writer.reshape(&weights, &split);
    let weights = emit.writer.transpose(&weights, &[0, 2, 1, 3, 4]);
    let weights = emit.writer.reshape(&weights, &[shape.channels, shape.group_filters(), height, width]);
    let convolution = Convolution {
        axes: "[b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]",
        stride: [1, 1],
        padding: std::array::from_fn(|axis| {
            let reach = reach(&shape, axis);
            let before = reach - shape.padding[axis] as i64;
            [before, shape.input[axis] as i64 + reach - spread(&shape, axis) - before]
        }),
        input_dilation: shape.stride,
        kernel_dilation: shape.dilation,
        is_reversed: true,
        feature_groups: groups,
        batch_groups: 1,
        output: dims,
    };
    Ok(convolution.write(emit, &gradient, &weights, dtype))
}

/// The gradient with respect to the weights: the input is convolved with the output gradient,
/// dilated by the stride. The batch axis is contracted like channels in a convolution.
pub(super) fn backward_weight(emit: &mut Emit, op: &Conv2dBackwardWeight) -> Result<Value> {
    let shape = op.conv_shape()?;
    let dtype = op.input.dtype();
    let dims = shape.weight_dims();
    if shape.batch == 0 || op.gradient.elements() == 0 {
        return Ok(emit.writer.constant(0.0, carrier(dtype).into(), &dims));
    }
    let (input, gradient) = (emit.tensor(&op.input)?, emit.tensor(&op.gradient)?);
    let convolution = Convolution {
        axes: "[f, b, 0, 1]x[i, o, 0, 1]->[f, b, 0, 1]",
        stride: shape.dilation,
        padding: std::array::from_fn(|axis| {
            let before = shape.padding[axis] as i64;
            [before, reach(&shape, axis) + spread(&shape, axis) - shape.input[axis] as i64 - before]
        }),
        input_dilation: [1, 1],
        kernel_dilation: shape.stride,
        is_reversed: false,
        feature_groups: 1,
        batch_groups: shape.groups,
        output: dims,
    };
    Ok(convolution.write(emit, &input, &gradient, dtype))
}

/// Distance from the first tap to the last.
fn reach(shape: &ConvShape, axis: usize) -> i64 {
    ((shape.kernel[axis] - 1) * shape.dilation[axis]) as i64
}

/// Length of the output dilated by its stride.
fn spread(shape: &ConvShape, axis: usize) -> i64 {
    ((shape.output()[axis] - 1) * shape.stride[axis] + 1) as i64
}
