//! Checks batches of images larger than a kernel sees, on the simulated adapter with small
//! bindings.

use panoply_conformance::Tolerance;
use panoply_conformance::values::random_tensor;
use panoply_core::op::compute::{
    Activation, ColorConvert, ColorFormat, Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ImageLayout, Normalize,
    Pool2d, Resize, ResizeMode,
};
use panoply_core::{DType, Tensor};

use crate::TestBackend;
use crate::form::{CLOSE, agree, floats};
use crate::piece::{LOOSE, agree_here, engine, refused};

/// For results of 16 bits.
const HALF: Tolerance = Tolerance::Close { relative: 2e-3, absolute: 1e-2 };
/// For bytes that may be rounded the other way.
const BYTE: Tolerance = Tolerance::Close { relative: 0.0, absolute: 1.0 };

pub fn images_are_normalized_in_pieces(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let (mean, std) = ([0.1, -3.0, 40.0, 7.0, 0.5], [0.2, 0.5, 2.0, 9.0, 31.0]);
    // Batches of images, one image beyond reach, and channels-last images that are cut in the
    // middle of a pixel's channels.
    for (dims, layout, channels) in [
        (&[7, 3, 37, 41][..], ImageLayout::Nchw, 3),
        (&[2, 5, 60, 71], ImageLayout::Nchw, 5),
        (&[3, 150, 131], ImageLayout::Nchw, 3),
        (&[3, 50, 61, 5], ImageLayout::Nhwc, 5),
        (&[17_001, 3], ImageLayout::Nhwc, 3),
    ] {
        let (mean, std) = (&mean[..channels], &std[..channels]);
        for (from, to, tolerance) in
            [(DType::F32, DType::F32, CLOSE), (DType::U8, DType::F32, CLOSE), (DType::F16, DType::F16, HALF)]
        {
            let images = random_tensor(from, dims, 1);
            let op = |images: &Tensor| Normalize::new(images, mean, std).scale(0.3).layout(layout).to(to);
            agree(&mut *engine, &format!("{from:?} {dims:?}"), op(&images), tolerance);
            let part = |images: &Tensor| op(&images.slice(0, 1, dims[0]).unwrap());
            if layout == ImageLayout::Nhwc || dims.len() == 4 {
                agree_here(&mut *engine, &format!("a part of {from:?} {dims:?}"), &images, part, tolerance);
            }
        }
    }
    let many = vec![1.0; 9_000];
    refused(&mut *engine, Normalize::new(&floats(&[2, 9_000], 2), &many, &many).layout(ImageLayout::Nhwc), 72_000);
}

pub fn colours_are_converted_in_pieces(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let (rgb, gray, i420, nv12) = (ColorFormat::Rgb, ColorFormat::Gray, ColorFormat::I420, ColorFormat::Nv12);
    // Images that are beyond reach; only their rows are within it.
    for (dtype, tolerance) in [(DType::F32, LOOSE), (DType::U8, BYTE)] {
        let images = random_tensor(dtype, &[3, 91, 77, 3], 1);
        agree(&mut *engine, "gray", ColorConvert::new(&images, rgb, gray), tolerance);
        agree(&mut *engine, "reversed", ColorConvert::new(&images, rgb, ColorFormat::Bgr), Tolerance::Exact);
        agree(&mut *engine, "copied", ColorConvert::new(&images, rgb, rgb), Tolerance::Exact);
        let part = |images: &Tensor| ColorConvert::new(&images.slice(1, 1, 90).unwrap(), rgb, gray);
        agree_here(&mut *engine, "a part", &images, part, tolerance);
    }
    let images = random_tensor(DType::U8, &[7, 46, 62, 3], 2);
    agree(&mut *engine, "to planes", ColorConvert::new(&images, rgb, i420), BYTE);
    agree(&mut *engine, "to pairs", ColorConvert::new(&images, rgb, nv12), BYTE);
    let images = random_tensor(DType::U8, &[7, 69, 62], 3);
    agree(&mut *engine, "from planes", ColorConvert::new(&images, i420, rgb), BYTE);
    let part = |images: &Tensor| ColorConvert::new(&images.slice(0, 1, 7).unwrap(), nv12, i420);
    agree_here(&mut *engine, "from pairs to planes", &images, part, BYTE);
    let large = random_tensor(DType::U8, &[2, 150, 100], 4);
    refused(&mut *engine, ColorConvert::new(&large, i420, rgb), 120_000);
}

pub fn images_are_resized_in_pieces(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    let modes = [ResizeMode::Nearest, ResizeMode::Bilinear, ResizeMode::Area];
    for (dtype, tolerance) in [(DType::F32, CLOSE), (DType::F16, HALF), (DType::U8, BYTE)] {
        // Larger, smaller and much smaller outputs: only the input is beyond reach, or only the
        // output, or both.
        for (dims, layout, [height, width]) in [
            ([5, 3, 50, 61], ImageLayout::Nchw, [33, 47]),
            ([5, 7, 50, 61], ImageLayout::Nchw, [3, 4]),
            ([5, 3, 13, 17], ImageLayout::Nchw, [81, 79]),
            ([7, 50, 41, 3], ImageLayout::Nhwc, [61, 37]),
        ] {
            let images = random_tensor(dtype, &dims, 1);
            for mode in modes {
                let what = format!("{dtype:?} {dims:?} {mode:?}");
                let op = Resize::new(&images, height, width).layout(layout).mode(mode);
                agree(&mut *engine, &what, op, tolerance);
            }
            let part =
                |images: &Tensor| Resize::new(&images.slice(0, 1, dims[0]).unwrap(), height, width).layout(layout);
            agree_here(&mut *engine, &format!("a part of {dtype:?} {dims:?}"), &images, part, tolerance);
        }
        let images = random_tensor(dtype, &[2, 130, 140], 2);
        agree(&mut *engine, "copied", Resize::new(&images, 130, 140), Tolerance::Exact);
    }
    refused(&mut *engine, Resize::new(&floats(&[2, 130, 140], 3), 10, 10), 72_800);
    refused(&mut *engine, Resize::new(&floats(&[2, 13, 14], 4), 130, 140), 72_800);
}

pub fn images_are_pooled_in_pieces(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    for (dtype, tolerance) in [(DType::F32, CLOSE), (DType::F16, HALF)] {
        let images = random_tensor(dtype, &[5, 7, 41, 43], 1);
        for op in [Pool2d::max(&images, [3, 2]), Pool2d::average(&images, [3, 4])] {
            agree(&mut *engine, "strided", op.clone().stride([2, 3]).padding([1, 1, 2, 0]), tolerance);
            agree(&mut *engine, "neighbours", op.stride([1, 1]), tolerance);
        }
        let part = |images: &Tensor| Pool2d::max(&images.slice(0, 1, 5).unwrap(), [5, 5]).stride([3, 3]);
        agree_here(&mut *engine, "a part", &images, part, tolerance);
    }
    refused(&mut *engine, Pool2d::max(&floats(&[1, 2, 130, 140], 2), [3, 3]), 72_800);
}

pub fn batches_are_convolved_in_pieces(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    for (dtype, tolerance) in [(DType::F32, LOOSE), (DType::F16, HALF)] {
        let random = |dims: &[usize], seed| random_tensor(dtype, dims, seed);
        let (images, weights, bias) = (random(&[11, 6, 23, 21], 1), random(&[10, 3, 3, 2], 2), random(&[10], 3));
        let op = |images: &Tensor| {
            let op = Conv2d::new(images, &weights).groups(2).stride([2, 1]).padding([1, 2, 1, 0]);
            op.bias(&bias).activation(Activation::Relu)
        };
        agree(&mut *engine, &format!("{dtype:?}"), op(&images), tolerance);
        let part = |images: &Tensor| op(&images.slice(0, 1, 11).unwrap());
        agree_here(&mut *engine, &format!("a part of {dtype:?}"), &images, part, tolerance);
        // Only the outputs are beyond reach.
        let (images, weights) = (random(&[5, 2, 17, 19], 4), random(&[15, 2, 1, 3], 5));
        agree(&mut *engine, &format!("many filters of {dtype:?}"), Conv2d::new(&images, &weights), tolerance);
    }
    refused(&mut *engine, Conv2d::new(&floats(&[1, 6, 60, 50], 6), &floats(&[2, 6, 3, 3], 7)), 72_000);
    refused(&mut *engine, Conv2d::new(&floats(&[1, 60, 8, 8], 8), &floats(&[40, 60, 3, 3], 9)), 86_400);
}

pub fn gradients_of_batches_are_made_in_pieces(backend: &dyn TestBackend) {
    let Some(mut engine) = engine(backend) else { return };
    for (dtype, tolerance) in [(DType::F32, LOOSE), (DType::F16, Tolerance::Close { relative: 5e-3, absolute: 0.3 })] {
        let random = |dims: &[usize], seed| random_tensor(dtype, dims, seed);
        // Heights from 23 to 12, widths from 21 to 22.
        let (images, weights, gradient) =
            (random(&[11, 6, 23, 21], 1), random(&[10, 3, 3, 2], 2), random(&[11, 10, 12, 22], 3));
        let inputs = |gradient: &Tensor| {
            let op = Conv2dBackwardInput::new(gradient, &weights, [23, 21]);
            op.groups(2).stride([2, 1]).padding([1, 2, 1, 0])
        };
        agree(&mut *engine, &format!("inputs of {dtype:?}"), inputs(&gradient), tolerance);
        let part = |gradient: &Tensor| inputs(&gradient.slice(0, 1, 11).unwrap());
        agree_here(&mut *engine, &format!("a part of {dtype:?}"), &gradient, part, tolerance);
        let of_weights = |images: &Tensor, gradient: &Tensor| {
            let op = Conv2dBackwardWeight::new(images, gradient, [3, 2]);
            op.groups(2).stride([2, 1]).padding([1, 2, 1, 0])
        };
        agree(&mut *engine, &format!("weights of {dtype:?}"), of_weights(&images, &gradient), tolerance);
        let rest = gradient.slice(0, 2, 11).unwrap();
        let part = |images: &Tensor| of_weights(&images.slice(0, 1, 10).unwrap(), &rest);
        agree_here(&mut *engine, &format!("weights of a part of {dtype:?}"), &images, part, tolerance);
    }
    let (images, gradient) = (floats(&[1, 60, 8, 8], 4), floats(&[1, 40, 6, 6], 5));
    refused(&mut *engine, Conv2dBackwardWeight::new(&images, &gradient, [3, 3]), 86_400);
    let gradient = floats(&[1, 6, 60, 50], 6);
    refused(&mut *engine, Conv2dBackwardInput::new(&gradient, &floats(&[6, 1, 1, 1], 7), [60, 50]), 72_000);
    refused(&mut *engine, Conv2dBackwardWeight::new(&floats(&[1, 1, 60, 50], 8), &gradient, [1, 1]), 72_000);
}
