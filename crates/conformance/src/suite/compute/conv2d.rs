//! Conv2d and its gradients: every element type; sizes that are empty, one, prime and no multiple of anything; strides,
//! dilation, groups and uneven padding; views; infinities and NaN in the images.

use panoply_core::op::compute::{
    Activation, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvOptions, ConvShape,
};
use panoply_core::{DType, Tensor};

use crate::suite::{Case, Tolerance};
use crate::values::{random_tensor, tensor_of, to_f64};

const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// What is convolved with what: a name, the images, the weights, and how.
type Sizes = (&'static str, [usize; 4], [usize; 4], ConvOptions);

fn sizes() -> Vec<Sizes> {
    let plain = ConvOptions { stride: [1, 1], padding: [0; 4], dilation: [1, 1], groups: 1 };
    let same = ConvOptions { padding: [1; 4], ..plain };
    vec![
        ("one", [1, 1, 1, 1], [1, 1, 1, 1], plain),
        ("same", [2, 3, 11, 13], [5, 3, 3, 3], same),
        ("valid", [2, 3, 11, 13], [5, 3, 3, 3], plain),
        ("deep", [1, 67, 7, 7], [17, 67, 3, 3], same),
        ("wide", [1, 2, 3, 131], [9, 2, 1, 5], ConvOptions { padding: [0, 2, 0, 2], ..plain }),
        ("pointwise", [2, 19, 9, 8], [24, 19, 1, 1], plain),
        ("pointwise/padded", [1, 2, 3, 4], [3, 2, 1, 1], same),
        ("whole", [2, 3, 5, 7], [4, 3, 5, 7], plain),
        ("uneven", [1, 3, 6, 7], [8, 3, 2, 4], ConvOptions { padding: [0, 3, 2, 1], ..plain }),
        ("mostly padding", [1, 2, 2, 3], [3, 2, 3, 3], ConvOptions { padding: [4, 5, 3, 6], ..plain }),
        ("stride", [2, 3, 15, 14], [5, 3, 3, 3], ConvOptions { stride: [2, 2], ..same }),
        ("stride/beyond the kernel", [1, 2, 11, 13], [3, 2, 2, 1], ConvOptions { stride: [5, 4], ..plain }),
        ("stride/huge", [1, 2, 5, 5], [3, 2, 2, 2], ConvOptions { stride: [usize::MAX, 99], ..plain }),
        ("dilation", [1, 3, 13, 17], [4, 3, 3, 3], ConvOptions { dilation: [2, 3], padding: [2, 3, 2, 3], ..plain }),
        (
            "dilation/huge",
            [1, 2, 3, 4],
            [2, 2, 2, 2],
            ConvOptions { dilation: [1 << 30, 1 << 30], padding: [1 << 29; 4], ..plain },
        ),
        (
            "stride and dilation",
            [2, 4, 17, 19],
            [6, 2, 3, 3],
            ConvOptions { stride: [3, 2], padding: [2, 1, 0, 3], dilation: [2, 3], groups: 2 },
        ),
        ("groups", [2, 6, 7, 9], [20, 3, 3, 3], ConvOptions { groups: 2, ..same }),
        ("depthwise", [2, 7, 10, 11], [7, 1, 3, 3], ConvOptions { groups: 7, ..same }),
        ("depthwise/multiplied", [1, 3, 8, 9], [9, 1, 5, 3], ConvOptions { groups: 3, stride: [2, 1], ..same }),
        ("stem", [1, 3, 29, 31], [8, 3, 7, 7], ConvOptions { stride: [2, 2], padding: [3; 4], ..plain }),
        ("empty batch", [0, 3, 5, 5], [2, 3, 3, 3], plain),
        ("no channels", [2, 0, 5, 5], [2, 0, 3, 3], plain),
        ("no filters", [2, 3, 5, 5], [0, 3, 3, 3], plain),
        ("empty images", [1, 2, 0, 4], [3, 2, 3, 3], ConvOptions { padding: [2, 1, 1, 1], ..plain }),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in DTYPES {
        for sizes in sizes() {
            sized_cases(dtype, sizes, &mut cases);
        }
        view_cases(dtype, &mut cases);
        activation_cases(dtype, &mut cases);
        special_cases(dtype, &mut cases);
    }
    cases
}

fn sized_cases(dtype: DType, (name, input, weights, options): Sizes, cases: &mut Vec<Case>) {
    let shape = ConvShape::new(input, weights, &options).unwrap_or_else(|error| panic!("conv2d/{name}: {error}"));
    let images = random_tensor(dtype, &input, 11);
    let kernels = random_tensor(dtype, &weights, 12);
    let gradient = random_tensor(dtype, &shape.output_dims(), 13);
    let bias = random_tensor(dtype, &[shape.filters], 14);

    let op = Conv2d::new(&images, &kernels).options(options).bias(&bias);
    let sums = shape.group_channels() * shape.taps();
    cases.push(Case::new(format!("conv2d/{dtype}/{name}"), op, tolerance(dtype, sums)));
    let op = Conv2dBackwardInput::new(&gradient, &kernels, shape.input).options(options);
    let sums = shape.group_filters() * shape.taps();
    cases.push(Case::new(format!("conv2d_backward_input/{dtype}/{name}"), op, tolerance(dtype, sums)));
    let op = Conv2dBackwardWeight::new(&images, &gradient, shape.kernel).options(options);
    let sums = shape.batch * shape.output().iter().product::<usize>();
    cases.push(Case::new(format!("conv2d_backward_weight/{dtype}/{name}"), op, tolerance(dtype, sums)));
}

/// Operands that are not contiguous, and the same tensor as image and as weights.
fn view_cases(dtype: DType, cases: &mut Vec<Case>) {
    let view = |tensor: &Tensor| tensor.permute(&[0, 3, 1, 2]).and_then(|view| view.slice_step(2, 1, 9, 2));
    let images = view(&random_tensor(dtype, &[2, 9, 6, 4], 21)).unwrap_or_else(|error| panic!("images: {error}"));
    let kernels = random_tensor(dtype, &[3, 2, 4, 5], 22).permute(&[3, 2, 1, 0]);
    let kernels = kernels.unwrap_or_else(|error| panic!("weights: {error}"));
    let bias = random_tensor(dtype, &[1], 23).broadcast_to([5]).unwrap_or_else(|error| panic!("bias: {error}"));
    let op = Conv2d::new(&images, &kernels).padding([1, 1, 1, 1]).bias(&bias);
    let gradient = op.output_shape().map(|shape| random_tensor(dtype, &[shape[2], shape[3], shape[0], shape[1]], 24));
    let gradient = gradient.and_then(|tensor| tensor.permute(&[2, 3, 0, 1]));
    let gradient = gradient.unwrap_or_else(|error| panic!("gradient: {error}"));
    cases.push(Case::new(format!("conv2d/{dtype}/views"), op, tolerance(dtype, 24)));
    let op = Conv2dBackwardInput::new(&gradient, &kernels, [4, 6]).padding([1, 1, 1, 1]);
    cases.push(Case::new(format!("conv2d_backward_input/{dtype}/views"), op, tolerance(dtype, 30)));
    let op = Conv2dBackwardWeight::new(&images, &gradient, [2, 3]).padding([1, 1, 1, 1]);
    cases.push(Case::new(format!("conv2d_backward_weight/{dtype}/views"), op, tolerance(dtype, 60)));
    let twice = random_tensor(dtype, &[3, 3, 5, 5], 25);
    cases.push(Case::new(format!("conv2d/{dtype}/twice"), Conv2d::new(&twice, &twice), tolerance(dtype, 75)));
}

fn activation_cases(dtype: DType, cases: &mut Vec<Case>) {
    let (images, kernels) = (random_tensor(dtype, &[1, 2, 6, 7], 31), random_tensor(dtype, &[3, 2, 2, 2], 32));
    for activation in [Activation::Relu, Activation::Gelu, Activation::Silu, Activation::Sigmoid, Activation::Tanh] {
        let op = Conv2d::new(&images, &kernels).activation(activation);
        cases.push(Case::new(format!("conv2d/{dtype}/{activation:?}"), op, tolerance(dtype, 8)));
    }
}

/// One NaN and infinities of both signs, far enough apart to meet in some windows and not in others. The weights are
/// finite and not zero, so that what becomes of them does not depend on the order of sums.
fn special_cases(dtype: DType, cases: &mut Vec<Case>) {
    let dims = [1, 2, 9, 23];
    let mut values = to_f64(&random_tensor(dtype, &dims, 41)).unwrap_or_default();
    (values[30], values[100], values[104], values[206]) = (f64::NAN, f64::INFINITY, f64::NEG_INFINITY, f64::INFINITY);
    let images = tensor_of(dtype, &dims, &values);
    let kernels = random_tensor(dtype, &[3, 2, 3, 3], 42);
    for (name, stride) in [("specials", [1, 1]), ("specials/stride", [2, 2])] {
        let op = Conv2d::new(&images, &kernels).padding([1; 4]).stride(stride);
        let dims = op.output_shape().unwrap_or_else(|error| panic!("conv2d/{name}: {error}"));
        let gradient = random_tensor(dtype, &dims, 43);
        cases.push(Case::new(format!("conv2d/{dtype}/{name}"), op, tolerance(dtype, 18)));
        let op = Conv2dBackwardWeight::new(&images, &gradient, [3, 3]).padding([1; 4]).stride(stride);
        cases.push(Case::new(format!("conv2d_backward_weight/{dtype}/{name}"), op, tolerance(dtype, 207)));
    }
}

/// Sums of `terms` products of numbers up to 2 in size, accumulated in f32 (f64 for f64) and rounded once.
fn tolerance(dtype: DType, terms: usize) -> Tolerance {
    let (relative, unit) = match dtype {
        DType::F64 => (1e-14, f64::EPSILON),
        DType::F16 => (1.0 / 1024.0, f64::from(f32::EPSILON)),
        DType::BF16 => (1.0 / 128.0, f64::from(f32::EPSILON)),
        _ => (1e-6, f64::from(f32::EPSILON)),
    };
    let smallest_half = if dtype == DType::F16 { 6e-8 } else { 0.0 };
    Tolerance::Close { relative, absolute: unit * 4.0 * (terms as f64 + 4.0) + smallest_half }
}
