//! Conv2d and its gradients: every element type; empty, one, prime and otherwise awkward sizes;
//! strides, dilation, groups and uneven padding; views; infinities and NaN in the images.

use panoply_core::graph::Graph;
use panoply_core::op::compute::{
    Activation, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvOptions, ConvShape,
};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Result, Tensor};

use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of, to_f64};

const DTYPES: [DType; 4] = [DType::F32, DType::F16, DType::BF16, DType::F64];

/// A name, the dimensions of the images and of the weights, and the options.
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
        infinite_weight_cases(dtype, &mut cases);
    }
    let graph = infinite_graph().unwrap_or_else(|error| panic!("the suite's graph is wrong: {error}"));
    cases.push(Case::new("conv2d/f32/infinite weights/graph", graph, tolerance(DType::F32, 2000)));
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

/// Operands that are not contiguous, and the same tensor as images and as weights.
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

/// One NaN, and infinities of both signs at such distances that they meet in some windows only. The
/// weights are finite and not zero, so that the results do not depend on the order of sums.
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

/// Weights with infinities and a NaN, which meet padding at some pixels and numbers at others, and
/// infinities at the borders of images. All numbers have one sign, so that the results do not
/// depend on the order of sums.
fn infinite_weight_cases(dtype: DType, cases: &mut Vec<Case>) {
    let positive = |dims: &[usize], seed: u64| -> Vec<f64> {
        to_f64(&random_tensor(dtype, dims, seed)).unwrap_or_default().iter().map(|value| value.abs() + 0.125).collect()
    };
    for (name, dims, kernel, groups, stride) in [
        ("dense", [2, 3, 9, 11], [4, 3, 3, 3], 1, [1, 1]),
        ("stride", [1, 3, 9, 11], [4, 3, 3, 3], 1, [2, 2]),
        ("pointwise", [1, 3, 5, 7], [2, 3, 1, 1], 1, [1, 1]),
        ("depthwise", [1, 4, 9, 11], [4, 1, 3, 3], 4, [1, 1]),
        ("depthwise5", [1, 8, 12, 14], [8, 1, 5, 5], 8, [2, 2]),
        ("grouped", [1, 4, 9, 11], [6, 2, 3, 3], 2, [1, 1]),
        ("wide", [1, 32, 24, 24], [32, 32, 3, 3], 1, [1, 1]),
    ] {
        let (mut images, mut weights) = (positive(&dims, 44), positive(&kernel, 45));
        let filter = kernel[1] * kernel[2] * kernel[3];
        // The first tap of the first filter, the middle tap of the second, and the last tap of the
        // last.
        (weights[0], weights[filter + filter / 2]) = (f64::INFINITY, f64::INFINITY);
        let last = weights.len() - 1;
        weights[last] = f64::NAN;
        let op = |images: &[f64], weights: &[f64]| {
            let (images, weights) = (tensor_of(dtype, &dims, images), tensor_of(dtype, &kernel, weights));
            Conv2d::new(&images, &weights).padding([1, 1, 1, 1]).stride(stride).groups(groups)
        };
        let close = tolerance(dtype, 4 * filter);
        cases.push(Case::new(format!("conv2d/{dtype}/infinite weights/{name}"), op(&images, &weights), close));
        let finite = positive(&kernel, 45);
        let last = images.len() - 1;
        (images[0], images[last], images[dims[3] - 1]) = (f64::INFINITY, f64::INFINITY, f64::NAN);
        cases.push(Case::new(format!("conv2d/{dtype}/infinite borders/{name}"), op(&images, &finite), close));
    }
}

/// A graph with an infinite constant weight. Engines may keep constant weights in forms of their
/// own.
fn infinite_graph() -> Result<RunGraph> {
    let mut g = Graph::builder("infinite weights");
    let x = g.input("x", DType::F32, &[1.into(), 32.into(), 24.into(), 24.into()])?;
    let options = ConvOptions { padding: [1; 4], ..ConvOptions::default() };
    let one = |dims: [usize; 4], seed: u64, place: usize| {
        let mut weights = to_f64(&random_tensor(DType::F32, &dims, seed)).unwrap_or_default();
        weights.iter_mut().for_each(|weight| *weight = (weight.abs() + 0.125) / 32.0);
        weights[place] = f64::INFINITY;
        tensor_of(DType::F32, &dims, &weights)
    };
    let dense = g.constant("dense", &one([32, 32, 3, 3], 46, 32 * 9))?;
    let h = g.conv2d(x, dense, options)?;
    let y = g.relu(h)?;
    let depthwise = g.constant("depthwise", &one([32, 1, 3, 3], 47, 9 * 5 + 8))?;
    let z = g.conv2d(x, depthwise, ConvOptions { groups: 32, ..options })?;
    let z = g.relu(z)?;
    g.output("y", y)?;
    g.output("z", z)?;
    let images = to_f64(&random_tensor(DType::F32, &[1, 32, 24, 24], 48))?;
    let images: Vec<f64> = images.iter().map(|value| value.abs() + 0.125).collect();
    Ok(RunGraph::new(&g.finish()?, &[&tensor_of(DType::F32, &[1, 32, 24, 24], &images)]))
}

/// The tolerance for sums of `terms` products of numbers of magnitude up to 2, accumulated in f32
/// (f64 for f64) and rounded once.
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
