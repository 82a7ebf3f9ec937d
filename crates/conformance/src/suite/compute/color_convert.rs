//! ColorConvert: every pair of formats, standards and ranges; empty, smallest and odd sizes, views,
//! NaN and infinity.

use panoply_core::DType;
use panoply_core::op::compute::{ColorConvert, ColorFormat, ColorRange, ColorStandard};

use crate::suite::case::Case;
use crate::tolerance::Tolerance;
use crate::values::{random_tensor, tensor_of};

const FORMATS: [ColorFormat; 5] =
    [ColorFormat::Rgb, ColorFormat::Bgr, ColorFormat::Gray, ColorFormat::I420, ColorFormat::Nv12];

pub(super) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for from in FORMATS {
        for to in FORMATS {
            for (standard, range) in [
                (ColorStandard::Bt601, ColorRange::Limited),
                (ColorStandard::Bt601, ColorRange::Full),
                (ColorStandard::Bt709, ColorRange::Limited),
                (ColorStandard::Bt709, ColorRange::Full),
            ] {
                for (height, width) in [(2, 2), (0, 6), (6, 22), (4, 1034)] {
                    let input = random_tensor(DType::U8, &dims(from, height, width), 41);
                    let op = ColorConvert::new(&input, from, to).standard(standard).range(range);
                    let name = format!("color_convert/u8/{from:?} to {to:?}/{standard:?}/{range:?}/{height} x {width}");
                    cases.push(Case::new(name, op, bytes(from, to)));
                }
            }
            if !from.is_yuv420() && !to.is_yuv420() {
                cases.extend(odd_sizes(from, to));
            }
        }
    }
    cases.extend(views());
    cases
}

fn odd_sizes(from: ColorFormat, to: ColorFormat) -> Vec<Case> {
    let mut cases = Vec::new();
    for (height, width) in [(1, 1), (7, 13), (3, 0), (1, 1031)] {
        for (dtype, tolerance) in [(DType::U8, bytes(from, to)), (DType::F32, FLOATS)] {
            let input = random_tensor(dtype, &dims(from, height, width), 42);
            let name = format!("color_convert/{dtype}/{from:?} to {to:?}/{height} x {width}");
            cases.push(Case::new(name, ColorConvert::new(&input, from, to), tolerance));
        }
    }
    cases
}

fn views() -> Vec<Case> {
    let whole = random_tensor(DType::U8, &[3, 8, 12], 43);
    let view = whole.permute(&[1, 2, 0]).and_then(|part| part.slice_step(1, 0, 12, 3));
    let view = view.unwrap_or_else(|error| panic!("the view is wrong: {error}"));
    let rgb_view = ColorConvert::new(&view, ColorFormat::Rgb, ColorFormat::Nv12);
    let whole = random_tensor(DType::U8, &[2, 6, 16], 44);
    let view = whole.slice_step(2, 0, 16, 2).unwrap_or_else(|error| panic!("the view is wrong: {error}"));
    let yuv_view = ColorConvert::new(&view, ColorFormat::Nv12, ColorFormat::Bgr);
    let values = [1.0, f64::NAN, 2.0, f64::INFINITY, 3.0, f64::NEG_INFINITY];
    let odd = tensor_of(DType::F32, &[1, 2, 3], &values);
    let one = Tolerance::Close { relative: 0.0, absolute: 1.0 };
    vec![
        Case::new("color_convert/u8/view of Rgb", rgb_view, one),
        Case::new("color_convert/u8/view of Nv12", yuv_view, one),
        Case::new("color_convert/f32/non-finite", ColorConvert::new(&odd, ColorFormat::Rgb, ColorFormat::Gray), FLOATS),
    ]
}

const FLOATS: Tolerance = Tolerance::Close { relative: 1e-5, absolute: 1e-6 };

/// Exact if bytes are only moved. Other results may be rounded either way at a tie.
fn bytes(from: ColorFormat, to: ColorFormat) -> Tolerance {
    let color = |format| matches!(format, ColorFormat::Rgb | ColorFormat::Bgr);
    let moves = from == to || (color(from) && color(to)) || (from.is_yuv420() && to.is_yuv420());
    if moves || (from == ColorFormat::Gray && color(to)) {
        return Tolerance::Exact;
    }
    Tolerance::Close { relative: 0.0, absolute: 1.0 }
}

/// The dimensions of two images.
fn dims(format: ColorFormat, height: usize, width: usize) -> Vec<usize> {
    match format {
        ColorFormat::Rgb | ColorFormat::Bgr => vec![2, height, width, 3],
        ColorFormat::Gray => vec![2, height, width, 1],
        ColorFormat::I420 | ColorFormat::Nv12 => vec![2, height / 2 * 3, width],
    }
}
