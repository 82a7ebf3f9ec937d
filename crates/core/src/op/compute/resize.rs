//! Resize: scales images to another height and width.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The most elements (width times interleaved channels) that a row of a resized image may have.
pub const RESIZE_ROW_ELEMENTS_MAX: usize = i32::MAX as usize;

/// Position of an image's channels.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ImageLayout {
    /// `[.., channels, height, width]`: each channel is a separate plane.
    #[default]
    Nchw,
    /// `[.., height, width, channels]`: the channels of a pixel are adjacent.
    Nhwc,
}

/// The sampling of a resized image's pixels. `scale` is input size / output size, separately for
/// each axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ResizeMode {
    /// Input pixel `floor(i · scale)`, in exact integers: torch's `nearest`, ONNX's `asymmetric`
    /// with `floor`.
    Nearest,
    /// The two pixels around `max(0, (i + 0.5) · scale - 0.5)`, weighted by distance. The last
    /// pixel is repeated beyond the edge. This is torch's `bilinear` with `align_corners=False`,
    /// and ONNX's `linear` with `half_pixel`. There is no antialiasing.
    #[default]
    Bilinear,
    /// The mean of the pixels `floor(i · scale) .. ceil((i + 1) · scale)`: torch's `area` and
    /// adaptive average pooling.
    Area,
}

/// Resizes images of f32, f16, bf16 or u8. The last two dimensions (NCHW), or the two before the
/// last (NHWC), are height and width. All other dimensions are kept. Sums are f32. u8 results are
/// rounded to nearest, ties to even. A NaN or an infinity affects every pixel that reads it, also
/// with a weight of zero: then an infinity becomes NaN, as in IEEE arithmetic. An image that keeps
/// its size is copied.
#[derive(Clone, Debug)]
pub struct Resize {
    /// The images.
    pub input: Tensor,
    /// Height of the output.
    pub height: usize,
    /// Width of the output.
    pub width: usize,
    /// Position of the channels.
    pub layout: ImageLayout,
    /// Sampling of the pixels.
    pub mode: ResizeMode,
}

impl Resize {
    /// A bilinear resize of NCHW images.
    pub fn new(input: &Tensor, height: usize, width: usize) -> Resize {
        let (layout, mode) = (ImageLayout::default(), ResizeMode::default());
        Resize { input: input.clone(), height, width, layout, mode }
    }

    /// Sets the sampling mode.
    pub fn mode(self, mode: ResizeMode) -> Resize {
        Resize { mode, ..self }
    }

    /// Sets the layout.
    pub fn layout(self, layout: ImageLayout) -> Resize {
        Resize { layout, ..self }
    }

    /// The axis of the height in the input. The next axis is the width.
    pub fn height_axis(&self) -> Result<usize> {
        let rank = self.input.shape().rank();
        let (least, expected) = match self.layout {
            ImageLayout::Nchw => (2, "at least 2"),
            ImageLayout::Nhwc => (3, "at least 3"),
        };
        rank.checked_sub(least).ok_or(Error::RankMismatch { what: "resize", expected: expected.into(), got: rank })
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let axis = self.height_axis()?;
        self.input.shape().with_dim(axis, self.height)?.with_dim(axis + 1, self.width)
    }
}

impl Describe for Resize {
    fn name(&self) -> &'static str {
        "resize"
    }

    fn validate(&self) -> Result<()> {
        if !matches!(self.input.dtype(), DType::F32 | DType::F16 | DType::BF16 | DType::U8) {
            let got = self.input.dtype();
            return Err(Error::DTypeUnsupported { what: "resize", expected: "f32, f16, bf16 or u8", got });
        }
        let output = self.output_shape()?;
        let axis = self.height_axis()?;
        if output.elements() > 0 && self.input.elements() == 0 {
            let got = format!("{:?}", self.input.shape());
            return Err(Error::invalid("resize: input", "at least one pixel to make an image of", got));
        }
        for shape in [self.input.shape(), &output] {
            let row: usize = shape[axis + 1..].iter().product();
            if row > RESIZE_ROW_ELEMENTS_MAX {
                let (what, limit) = ("resize: elements of a row", RESIZE_ROW_ELEMENTS_MAX);
                return Err(Error::OutOfBounds { what, limit, got: row });
            }
        }
        Ok(())
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()?))
    }

    /// Number of output elements.
    fn work(&self) -> u64 {
        self.output_shape().map_or(0, |shape| shape.elements() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_the_layout() {
        let input = Tensor::zeros(DType::F32, [2, 3, 4, 5]).unwrap();
        let op = Resize::new(&input, 7, 9);
        assert_eq!(op.output_shape().unwrap().dims(), [2, 3, 7, 9]);
        assert_eq!(op.layout(ImageLayout::Nhwc).output_shape().unwrap().dims(), [2, 7, 9, 5]);
    }

    #[test]
    fn bad_input_is_refused() {
        let zeros = |dtype, dims: &[usize]| Tensor::zeros(dtype, dims).unwrap();
        let check = |input: &Tensor, height, width| Resize::new(input, height, width).validate();
        assert!(matches!(check(&zeros(DType::I32, &[4, 4]), 2, 2), Err(Error::DTypeUnsupported { .. })));
        assert!(matches!(check(&zeros(DType::F32, &[4]), 2, 2), Err(Error::RankMismatch { .. })));
        assert!(matches!(check(&zeros(DType::F32, &[4, 0]), 2, 2), Err(Error::InvalidArgument { .. })));
        assert!(matches!(check(&zeros(DType::U8, &[4, 4]), 2, usize::MAX), Err(Error::SizeOverflow { .. })));
        assert!(matches!(check(&zeros(DType::U8, &[4, 4]), 2, 1 << 40), Err(Error::OutOfBounds { .. })));
        assert!(check(&zeros(DType::F32, &[4, 0]), 2, 0).is_ok());
    }
}
