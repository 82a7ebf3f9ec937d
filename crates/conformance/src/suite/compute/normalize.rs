//! Normalize: every pair of element types, both layouts; empty, one pixel, prime sizes, views, NaN
//! and infinity.

use panoply_core::DType;
use panoply_core::op::compute::{ImageLayout, Normalize};

use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of};

const SHAPES: [&[usize]; 8] =
    [&[1, 1, 1], &[3, 0, 4], &[0, 3, 2, 2], &[2, 3, 17, 13], &[2, 5, 7, 3], &[3, 64, 65], &[1, 2, 1, 1], &[129, 3, 3]];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for input in [DType::U8, DType::F32, DType::F16, DType::BF16] {
        for output in [DType::F32, DType::F16, DType::BF16] {
            for layout in [ImageLayout::Nchw, ImageLayout::Nhwc] {
                for dims in SHAPES {
                    let images = random_tensor(input, dims, 21);
                    let axis = if layout == ImageLayout::Nchw { dims.len() - 3 } else { dims.len() - 1 };
                    let mean: Vec<f32> = (0..dims[axis]).map(|channel| 0.4 + 0.01 * channel as f32).collect();
                    let std: Vec<f32> = (0..dims[axis]).map(|channel| 0.25 + 0.001 * channel as f32).collect();
                    let scale = if input == DType::U8 { 1.0 / 255.0 } else { 0.75 };
                    let op = Normalize::new(&images, &mean, &std).scale(scale).layout(layout).to(output);
                    let name = format!("normalize/{input}/{output}/{layout:?}/{dims:?}");
                    cases.push(Case::new(name, op, tolerance(output)));
                }
            }
        }
    }
    let whole = random_tensor(DType::U8, &[4, 9, 3], 22);
    let view = whole.permute(&[2, 1, 0]).and_then(|part| part.slice_step(1, 0, 9, 2));
    let view = view.unwrap_or_else(|error| panic!("the view is wrong: {error}"));
    let op = Normalize::new(&view, &[1.0, 2.0, 3.0], &[4.0, 5.0, -6.0]);
    cases.push(Case::new("normalize/u8/view", op, tolerance(DType::F32)));
    let values = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.0];
    let op = Normalize::new(&tensor_of(DType::F32, &[1, 2, 2], &values), &[0.5], &[-2.0]);
    cases.push(Case::new("normalize/f32/non-finite", op, tolerance(DType::F32)));
    cases
}

/// The subtraction cancels, so part of the error is absolute.
fn tolerance(output: DType) -> Tolerance {
    match output {
        DType::F16 => Tolerance::Close { relative: 1e-3, absolute: 1e-5 },
        DType::BF16 => Tolerance::Close { relative: 8e-3, absolute: 1e-5 },
        _ => Tolerance::Close { relative: 1e-6, absolute: 2e-6 },
    }
}
