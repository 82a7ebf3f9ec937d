//! Resize: every mode, layout and element type; empty, one pixel, prime sizes, views, NaN and
//! infinity.

use panoply_core::op::compute::{ImageLayout, Resize, ResizeMode};
use panoply_core::{DType, Tensor};

use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of};

/// Input dimensions, output height and width.
const SIZES: [(&[usize], usize, usize); 10] = [
    (&[1, 1, 1], 1, 1),
    (&[1, 1, 1], 5, 7),
    (&[2, 3, 5, 7], 1, 1),
    (&[2, 3, 7, 13], 11, 5),
    (&[3, 31, 17], 62, 51),
    (&[2, 16, 8, 3], 8, 16),
    (&[13, 41, 37], 13, 97),
    (&[5, 6, 7], 5, 6),
    (&[0, 3, 4, 4], 8, 8),
    (&[2, 3, 4, 5], 0, 3),
];

const MODES: [ResizeMode; 3] = [ResizeMode::Nearest, ResizeMode::Bilinear, ResizeMode::Area];
const LAYOUTS: [ImageLayout; 2] = [ImageLayout::Nchw, ImageLayout::Nhwc];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for dtype in [DType::F32, DType::F16, DType::BF16, DType::U8] {
        for mode in MODES {
            for layout in LAYOUTS {
                let mut add = |what: String, input: &Tensor, height, width| {
                    let op = Resize::new(input, height, width).mode(mode).layout(layout);
                    cases.push(Case::new(
                        format!("resize/{dtype}/{mode:?}/{layout:?}/{what}"),
                        op,
                        tolerance(dtype, mode),
                    ));
                };
                for (dims, height, width) in SIZES {
                    let input = random_tensor(dtype, dims, 11);
                    add(format!("{dims:?} to {height} x {width}"), &input, height, width);
                }
                add("view".to_owned(), &view(dtype), 9, 4);
            }
        }
    }
    for mode in MODES {
        let values = [1.0, f64::NAN, 2.0, f64::INFINITY, -3.0, f64::NEG_INFINITY, 4.0, 5.0];
        let input = tensor_of(DType::F32, &[2, 4], &values);
        let tolerance = tolerance(DType::F32, mode);
        cases.push(Case::new(
            format!("resize/f32/{mode:?}/non-finite"),
            Resize::new(&input, 4, 8).mode(mode),
            tolerance,
        ));
    }
    cases
}

/// Nearest copies, and area over bytes is exact. Bilinear bytes may be rounded either way at a tie.
fn tolerance(dtype: DType, mode: ResizeMode) -> Tolerance {
    match (dtype, mode) {
        (_, ResizeMode::Nearest) | (DType::U8, ResizeMode::Area) => Tolerance::Exact,
        (DType::U8, _) => Tolerance::Close { relative: 0.0, absolute: 1.0 },
        (DType::F16, _) => Tolerance::Close { relative: 2e-3, absolute: 1e-5 },
        (DType::BF16, _) => Tolerance::Close { relative: 1.6e-2, absolute: 1e-5 },
        _ => Tolerance::Close { relative: 1e-5, absolute: 2e-6 },
    }
}

/// A transposed, stepped part of a larger tensor.
fn view(dtype: DType) -> Tensor {
    let whole = random_tensor(dtype, &[3, 10, 23], 12);
    let view = whole.slice_step(2, 1, 23, 3).and_then(|part| part.permute(&[2, 0, 1]));
    view.unwrap_or_else(|error| panic!("the view is wrong: {error}"))
}
