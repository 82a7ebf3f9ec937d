//! ColorConvert: conversion of images between colour formats.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The storage format of an image's colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ColorFormat {
    /// `[.., h, w, 3]`: red, green, blue.
    Rgb,
    /// `[.., h, w, 3]`: blue, green, red.
    Bgr,
    /// `[.., h, w, 1]`: one grey value, full range.
    Gray,
    /// `[.., h · 3 / 2, w]` of u8, with `h` and `w` even: `h` rows of luma, then a plane of
    /// `h/2 · w/2` blue differences (U), then a plane of red differences (V).
    I420,
    /// `[.., h · 3 / 2, w]` of u8, with `h` and `w` even: `h` rows of luma, then `h/2` rows of
    /// interleaved U and V.
    Nv12,
}

impl ColorFormat {
    /// Whether the format has chroma at half the resolution.
    pub const fn is_yuv420(self) -> bool {
        matches!(self, ColorFormat::I420 | ColorFormat::Nv12)
    }

    /// The trailing dimensions of an image of `h` × `w`.
    fn dims(self, height: usize, width: usize) -> Vec<usize> {
        match self {
            ColorFormat::Rgb | ColorFormat::Bgr => vec![height, width, 3],
            ColorFormat::Gray => vec![height, width, 1],
            ColorFormat::I420 | ColorFormat::Nv12 => vec![height / 2 * 3, width],
        }
    }
}

/// The weights of red, green and blue in luma.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ColorStandard {
    /// Standard definition: `kr = 0.299`, `kb = 0.114`.
    #[default]
    Bt601,
    /// High definition: `kr = 0.2126`, `kb = 0.0722`.
    Bt709,
}

impl ColorStandard {
    /// The weights of red, green and blue, which add up to one.
    pub const fn weights(self) -> [f64; 3] {
        match self {
            ColorStandard::Bt601 => [0.299, 0.587, 0.114],
            ColorStandard::Bt709 => [0.2126, 0.7152, 0.0722],
        }
    }
}

/// The codes of black and white in YUV.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ColorRange {
    /// Luma 16 to 235, chroma 16 to 240, as in video streams.
    #[default]
    Limited,
    /// All of 0 to 255, as in JPEG.
    Full,
}

/// Converts images between colour formats. They are u8, or f32 if neither format is YUV.
///
/// With the standard's weights `kr + kg + kb = 1`, luma is `l = kr·R + kg·G + kb·B`, which is also
/// the grey value. YUV is
///
/// * `Y = o + a·l`, `U = 128 + b·(B - l) / (2 - 2·kb)`, `V = 128 + b·(R - l) / (2 - 2·kr)`, where
///   limited range has `o = 16, a = 219/255, b = 224/255` and full range has `o = 0, a = b = 1`;
/// * back: `l = (Y - o) / a`, `R = l + (2 - 2·kr)·(V - 128) / b`,
///   `B = l + (2 - 2·kb)·(U - 128) / b`, `G = (l - kr·R - kb·B) / kg`, with `R` and `B` before
///   rounding.
///
/// Chroma is the mean over 2×2 pixels, and is repeated on the way back. u8 results are rounded to
/// nearest, ties to even, and saturate. Gray from YUV is `l`. YUV from gray has neutral chroma.
/// Between I420 and NV12 only bytes are moved. f32 values keep their scale and are not clamped.
#[derive(Clone, Debug)]
pub struct ColorConvert {
    /// The images.
    pub input: Tensor,
    /// The input's format.
    pub from: ColorFormat,
    /// The output's format.
    pub to: ColorFormat,
    /// The weights of luma.
    pub standard: ColorStandard,
    /// The range of YUV codes.
    pub range: ColorRange,
}

impl ColorConvert {
    /// A conversion with BT.601 and limited range.
    pub fn new(input: &Tensor, from: ColorFormat, to: ColorFormat) -> ColorConvert {
        let (standard, range) = (ColorStandard::default(), ColorRange::default());
        ColorConvert { input: input.clone(), from, to, standard, range }
    }

    /// Sets the weights of luma.
    pub fn standard(self, standard: ColorStandard) -> ColorConvert {
        ColorConvert { standard, ..self }
    }

    /// Sets the range of YUV codes.
    pub fn range(self, range: ColorRange) -> ColorConvert {
        ColorConvert { range, ..self }
    }

    /// Number of images, and their height and width.
    pub fn sizes(&self) -> Result<(usize, usize, usize)> {
        let shape = self.input.shape();
        let (least, expected) = if self.from.is_yuv420() { (2, "at least 2") } else { (3, "at least 3") };
        let lead = shape.rank().checked_sub(least).ok_or(Error::RankMismatch {
            what: "color convert",
            expected: expected.into(),
            got: shape.rank(),
        })?;
        let (rows, width) = (shape[lead], shape[lead + 1]);
        let height = if self.from.is_yuv420() { rows / 3 * 2 } else { rows };
        let dims = self.from.dims(height, width);
        let odd = height % 2 != 0 || width % 2 != 0;
        if odd && (self.from.is_yuv420() || self.to.is_yuv420()) {
            let got = format!("{height} x {width}");
            return Err(Error::invalid("color convert: YUV 4:2:0", "even height and width", got));
        }
        if dims != shape[lead..] {
            let (expected, got) = ([&shape[..lead], &dims[..]].concat(), shape.to_vec());
            return Err(Error::ShapeMismatch { what: "color convert", expected, got });
        }
        Ok((shape[..lead].iter().product(), height, width))
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let (_, height, width) = self.sizes()?;
        let lead = self.input.shape().rank() - if self.from.is_yuv420() { 2 } else { 3 };
        Shape::new([&self.input.shape()[..lead], &self.to.dims(height, width)].concat())
    }
}

impl Describe for ColorConvert {
    fn name(&self) -> &'static str {
        "color_convert"
    }

    fn validate(&self) -> Result<()> {
        let yuv = self.from.is_yuv420() || self.to.is_yuv420();
        match self.input.dtype() {
            DType::U8 => {}
            DType::F32 if !yuv => {}
            got => {
                let expected = if yuv { "u8" } else { "u8 or f32" };
                return Err(Error::DTypeUnsupported { what: "color convert", expected, got });
            }
        }
        self.output_shape().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_the_formats() {
        let shape = |dims: &[usize], from, to| {
            let input = Tensor::zeros(DType::U8, dims).unwrap();
            ColorConvert::new(&input, from, to).output_shape().map(|shape| shape.to_vec())
        };
        use ColorFormat::{Bgr, Gray, I420, Nv12, Rgb};
        assert_eq!(shape(&[2, 5, 7, 3], Rgb, Bgr).unwrap(), [2, 5, 7, 3]);
        assert_eq!(shape(&[5, 7, 3], Rgb, Gray).unwrap(), [5, 7, 1]);
        assert_eq!(shape(&[4, 6, 3], Rgb, I420).unwrap(), [6, 6]);
        assert_eq!(shape(&[2, 6, 6], Nv12, Bgr).unwrap(), [2, 4, 6, 3]);
        assert_eq!(shape(&[0, 0], Nv12, Rgb).unwrap(), [0, 0, 3]);
        assert!(matches!(shape(&[5, 6, 3], Rgb, I420), Err(Error::InvalidArgument { .. })));
        assert!(matches!(shape(&[7, 6], I420, Rgb), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(shape(&[3, 6], I420, Rgb), Ok(dims) if dims == [2, 6, 3]));
        assert!(matches!(shape(&[6, 7], I420, Rgb), Err(Error::InvalidArgument { .. })));
        assert!(matches!(shape(&[5, 7, 4], Rgb, Gray), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(shape(&[5, 7], Rgb, Gray), Err(Error::RankMismatch { .. })));
    }

    #[test]
    fn yuv_is_bytes() {
        let input = Tensor::zeros(DType::F32, [4, 6, 3]).unwrap();
        let to = |to| ColorConvert::new(&input, ColorFormat::Rgb, to).validate();
        assert!(to(ColorFormat::Gray).is_ok());
        assert!(matches!(to(ColorFormat::Nv12), Err(Error::DTypeUnsupported { .. })));
    }
}
