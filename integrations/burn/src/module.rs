//! Burn's ops of layers. Convolutions and pools of pictures are recorded.

use burn_backend::ops::{
    AttentionModuleOptions, ConvOptions, ConvTransposeOptions, DeformConv2dBackward, DeformConvOptions,
    InterpolateOptions, MaxPool2dBackward, MaxPool2dWithIndices, ModuleOps,
};
use burn_backend::{DType, TensorMetadata};
use burn_flex::Flex;
use burn_std::IntDType;

use crate::array::Array;
use crate::backend::Panoply;
use crate::float::{are_floats, float, is_recordable};
use crate::host::{OfHost, ToHost, count, on_host};
use crate::step::{Step, Window};

/// A convolution's options as graphs have them.
fn options_of(options: &ConvOptions<2>) -> panoply_core::op::compute::ConvOptions {
    let [(top, bottom), (left, right)] = options.padding;
    panoply_core::op::compute::ConvOptions {
        stride: options.stride,
        padding: [top, left, bottom, right],
        dilation: options.dilation,
        groups: options.groups,
        ..Default::default()
    }
}

/// The sizes of a convolution's answer; none, where there is none.
fn conv_dims(x: &Array, weight: &Array, options: &ConvOptions<2>) -> Option<[usize; 4]> {
    let ([batch, channels, size @ ..], [filters, inputs, kernel @ ..]) = (x.dims(), weight.dims()) else { return None };
    let count = |axis: usize| {
        let (before, after) = options.padding[axis];
        let reach = options.dilation[axis] * kernel.get(axis)?.checked_sub(1)? + 1;
        Some((size.get(axis)? + before + after).checked_sub(reach)? / options.stride[axis].max(1) + 1)
    };
    let fits = size.len() == 2 && kernel.len() == 2 && *channels == inputs * options.groups;
    if fits { Some([*batch, *filters, count(0)?, count(1)?]) } else { None }
}

/// A window over these pictures, and what it gives; none, where it is not recorded.
fn window(
    x: &Array,
    [kernel, stride, padding]: [[usize; 2]; 3],
    average: Option<bool>,
    plain: bool,
) -> Option<(Window, [usize; 4])> {
    let &[batch, channels, height, width] = x.dims() else { return None };
    let window = Window { size: [height, width], kernel, stride, padding, average };
    let [down, across] = window.output()?;
    (plain && are_floats(&[x])).then_some((window, [batch, channels, down, across]))
}

impl ModuleOps<Panoply> for Panoply {
    fn conv2d(x: Array, weight: Array, bias: Option<Array>, options: ConvOptions<2>) -> Array {
        let operands: Vec<&Array> = [&x, &weight].into_iter().chain(&bias).collect();
        if let Some(dims) = conv_dims(&x, &weight, &options).filter(|_| are_floats(&operands)) {
            return float(Step::Conv(options_of(&options)), &operands, dims);
        }
        count("conv2d");
        let device = x.device();
        let answer = Flex::conv2d(ToHost::to_host(x), ToHost::to_host(weight), bias.to_host(), options);
        Array::from_host(answer, device)
    }

    fn conv2d_x_backward(x: Array, weight: Array, output_grad: Array, options: ConvOptions<2>) -> Array {
        let made = conv_dims(&x, &weight, &options).filter(|_| are_floats(&[&weight, &output_grad]));
        if let (Some(_), &[_, _, height, width]) = (made, x.dims()) {
            let step = Step::ConvInput(options_of(&options), [height, width]);
            return float(step, &[&output_grad, &weight], x.shape());
        }
        count("conv2d_x_backward");
        let (device, x, weight) = (x.device(), ToHost::to_host(x), ToHost::to_host(weight));
        Array::from_host(Flex::conv2d_x_backward(x, weight, ToHost::to_host(output_grad), options), device)
    }

    fn conv2d_weight_backward(x: Array, weight: Array, output_grad: Array, options: ConvOptions<2>) -> Array {
        let made = conv_dims(&x, &weight, &options).filter(|_| are_floats(&[&x, &output_grad]));
        if let (Some(_), &[_, _, height, width]) = (made, weight.dims()) {
            let step = Step::ConvWeight(options_of(&options), [height, width]);
            return float(step, &[&x, &output_grad], weight.shape());
        }
        count("conv2d_weight_backward");
        let (device, x, weight) = (x.device(), ToHost::to_host(x), ToHost::to_host(weight));
        Array::from_host(Flex::conv2d_weight_backward(x, weight, ToHost::to_host(output_grad), options), device)
    }

    fn max_pool2d(
        x: Array,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
    ) -> Array {
        match window(&x, [kernel_size, stride, padding], None, dilation == [1, 1] && !ceil_mode) {
            Some((window, dims)) => float(Step::Pool(window), &[&x], dims),
            None => {
                count("max_pool2d");
                let (device, x) = (x.device(), ToHost::to_host(x));
                Array::from_host(Flex::max_pool2d(x, kernel_size, stride, padding, dilation, ceil_mode), device)
            }
        }
    }

    fn max_pool2d_with_indices(
        x: Array,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
        indices_dtype: IntDType,
    ) -> MaxPool2dWithIndices<Panoply> {
        let plain = dilation == [1, 1] && !ceil_mode && indices_dtype == IntDType::I32;
        let made = window(&x, [kernel_size, stride, padding], None, plain);
        if let Some((window, dims)) = made.filter(|(window, _)| window.is_side_by_side()) {
            let kind = (dims.into(), DType::I32);
            let indices = Array::recorded(Step::PoolPlaces(window), &[&x], Vec::new(), kind, x.device());
            return MaxPool2dWithIndices { output: float(Step::Pool(window), &[&x], dims), indices };
        }
        count("max_pool2d_with_indices");
        let (device, x) = (x.device(), ToHost::to_host(x));
        let answer =
            Flex::max_pool2d_with_indices(x, kernel_size, stride, padding, dilation, ceil_mode, indices_dtype);
        let of = |tensor| Array::of_host(tensor, device);
        MaxPool2dWithIndices { output: of(answer.output), indices: of(answer.indices) }
    }

    fn max_pool2d_with_indices_backward(
        x: Array,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        dilation: [usize; 2],
        ceil_mode: bool,
        output_grad: Array,
        indices: Array,
    ) -> MaxPool2dBackward<Panoply> {
        let plain = dilation == [1, 1] && !ceil_mode && is_recordable(&indices, DType::I32);
        let made = window(&x, [kernel_size, stride, padding], None, plain && are_floats(&[&output_grad]));
        if let Some((window, _)) = made.filter(|(window, _)| window.is_side_by_side()) {
            let x_grad = float(Step::PoolBackward(window), &[&output_grad, &indices], x.shape());
            return MaxPool2dBackward { x_grad };
        }
        count("max_pool2d_with_indices_backward");
        let (device, x) = (x.device(), ToHost::to_host(x));
        let (grad, indices) = (ToHost::to_host(output_grad), ToHost::to_host(indices));
        let answer = Flex::max_pool2d_with_indices_backward(
            x, kernel_size, stride, padding, dilation, ceil_mode, grad, indices,
        );
        MaxPool2dBackward { x_grad: Array::of_host(answer.x_grad, device) }
    }

    fn avg_pool2d(
        x: Array,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> Array {
        match window(&x, [kernel_size, stride, padding], Some(count_include_pad), !ceil_mode) {
            Some((window, dims)) => float(Step::Pool(window), &[&x], dims),
            None => {
                count("avg_pool2d");
                let (device, x) = (x.device(), ToHost::to_host(x));
                Array::from_host(Flex::avg_pool2d(x, kernel_size, stride, padding, count_include_pad, ceil_mode), device)
            }
        }
    }

    fn avg_pool2d_backward(
        x: Array,
        grad: Array,
        kernel_size: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
        count_include_pad: bool,
        ceil_mode: bool,
    ) -> Array {
        let made = window(&x, [kernel_size, stride, padding], Some(count_include_pad), !ceil_mode && are_floats(&[&grad]));
        if let Some((window, _)) = made.filter(|(window, _)| window.is_side_by_side()) {
            return float(Step::AverageBackward(window), &[&grad], x.shape());
        }
        count("avg_pool2d_backward");
        let (device, x, grad) = (x.device(), ToHost::to_host(x), ToHost::to_host(grad));
        let answer = Flex::avg_pool2d_backward(x, grad, kernel_size, stride, padding, count_include_pad, ceil_mode);
        Array::from_host(answer, device)
    }

    fn deform_conv2d_backward(
        x: Array,
        offset: Array,
        weight: Array,
        mask: Option<Array>,
        bias: Option<Array>,
        output_grad: Array,
        options: DeformConvOptions<2>,
    ) -> DeformConv2dBackward<Panoply> {
        count("deform_conv2d_backward");
        let device = x.device();
        let (x, offset, weight) = (ToHost::to_host(x), ToHost::to_host(offset), ToHost::to_host(weight));
        let (mask, bias, grad) = (mask.to_host(), bias.to_host(), ToHost::to_host(output_grad));
        let answer = Flex::deform_conv2d_backward(x, offset, weight, mask, bias, grad, options);
        let of = |tensor| Array::of_host(tensor, device);
        DeformConv2dBackward {
            x_grad: of(answer.x_grad),
            offset_grad: of(answer.offset_grad),
            weight_grad: of(answer.weight_grad),
            mask_grad: answer.mask_grad.map(of),
            bias_grad: answer.bias_grad.map(of),
        }
    }

    on_host! {
        fn deform_conv2d(x: Array, offset: Array, weight: Array, mask: Option<Array>, bias: Option<Array>, options: DeformConvOptions<2>) -> Array;
        fn conv3d(x: Array, weight: Array, bias: Option<Array>, options: ConvOptions<3>) -> Array;
        fn conv_transpose2d(x: Array, weight: Array, bias: Option<Array>, options: ConvTransposeOptions<2>) -> Array;
        fn conv_transpose3d(x: Array, weight: Array, bias: Option<Array>, options: ConvTransposeOptions<3>) -> Array;
        fn adaptive_avg_pool2d(x: Array, output_size: [usize; 2]) -> Array;
        fn adaptive_avg_pool2d_backward(x: Array, grad: Array) -> Array;
        fn adaptive_avg_pool3d(x: Array, output_size: [usize; 3]) -> Array;
        fn adaptive_avg_pool3d_backward(x: Array, grad: Array) -> Array;
        fn interpolate(x: Array, output_size: [usize; 2], options: InterpolateOptions) -> Array;
        fn interpolate_backward(x: Array, grad: Array, output_size: [usize; 2], options: InterpolateOptions) -> Array;
        fn attention(query: Array, key: Array, value: Array, mask: Option<Array>, attn_bias: Option<Array>, options: AttentionModuleOptions) -> Array;
    }
}
