//! Normalize: scales and shifts images channel by channel.

use std::sync::Arc;

use super::resize::ImageLayout;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Computes `(x · scale - mean[c]) / std[c]` for each channel `c`, from u8, f32, f16 or bf16 to
/// f32, f16 or bf16. The arithmetic is f32, as `x · (scale / std[c]) - mean[c] / std[c]`. NaN and
/// infinities in the input follow IEEE arithmetic.
#[derive(Clone, Debug)]
pub struct Normalize {
    /// The images: `[.., c, h, w]` or `[.., c]`.
    pub input: Tensor,
    /// Factor of the input, applied first, such as 1 / 255.
    pub scale: f32,
    /// The mean of each channel.
    pub mean: Arc<[f32]>,
    /// The standard deviation of each channel, never zero.
    pub std: Arc<[f32]>,
    /// Position of the channels.
    pub layout: ImageLayout,
    /// Element type of the output.
    pub output: DType,
}

impl Normalize {
    /// Normalises NCHW images with a scale of one. The output has the input's type, or f32 for u8.
    pub fn new(input: &Tensor, mean: &[f32], std: &[f32]) -> Normalize {
        let output = if input.dtype() == DType::U8 { DType::F32 } else { input.dtype() };
        let layout = ImageLayout::default();
        Normalize { input: input.clone(), scale: 1.0, mean: mean.into(), std: std.into(), layout, output }
    }

    /// Sets the factor of the input, such as 1 / 255.
    pub fn scale(self, scale: f32) -> Normalize {
        Normalize { scale, ..self }
    }

    /// Sets the layout.
    pub fn layout(self, layout: ImageLayout) -> Normalize {
        Normalize { layout, ..self }
    }

    /// Sets the element type of the output.
    pub fn to(self, output: DType) -> Normalize {
        Normalize { output, ..self }
    }

    /// The axis of the channels in the input.
    pub fn channel_axis(&self) -> Result<usize> {
        let rank = self.input.shape().rank();
        let (back, expected) = match self.layout {
            ImageLayout::Nchw => (3, "at least 3"),
            ImageLayout::Nhwc => (1, "at least 1"),
        };
        rank.checked_sub(back).ok_or(Error::RankMismatch { what: "normalize", expected: expected.into(), got: rank })
    }

    /// The output's shape, which is the input's.
    pub fn output_shape(&self) -> Shape {
        *self.input.shape()
    }
}

impl Describe for Normalize {
    fn name(&self) -> &'static str {
        "normalize"
    }

    fn validate(&self) -> Result<()> {
        let input = self.input.dtype();
        if !matches!(input, DType::U8 | DType::F32 | DType::F16 | DType::BF16) {
            let expected = "u8, f32, f16 or bf16";
            return Err(Error::DTypeUnsupported { what: "normalize", expected, got: input });
        }
        if !matches!(self.output, DType::F32 | DType::F16 | DType::BF16) {
            let expected = "f32, f16 or bf16";
            return Err(Error::DTypeUnsupported { what: "normalize: output", expected, got: self.output });
        }
        let channels = self.input.shape()[self.channel_axis()?];
        for (what, figures) in [("normalize: mean", &self.mean), ("normalize: std", &self.std)] {
            if figures.len() != channels {
                return Err(Error::ShapeMismatch { what, expected: vec![channels], got: vec![figures.len()] });
            }
        }
        let bad = self.std.iter().find(|std| !std.is_finite() || **std == 0.0);
        if let Some(std) = bad {
            return Err(Error::invalid("normalize: std", "finite figures other than 0", std));
        }
        match self.mean.iter().chain([&self.scale]).find(|figure| !figure.is_finite()) {
            Some(figure) => Err(Error::invalid("normalize: scale and mean", "finite figures", figure)),
            None => Ok(()),
        }
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.output, self.output_shape()))
    }

    fn can_be_node(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_input_is_refused() {
        let images = Tensor::zeros(DType::U8, [2, 3, 4, 5]).unwrap();
        let check = |mean: &[f32], std: &[f32]| Normalize::new(&images, mean, std).validate();
        assert!(check(&[0.0; 3], &[1.0; 3]).is_ok());
        assert!(matches!(check(&[0.0; 2], &[1.0; 3]), Err(Error::ShapeMismatch { .. })));
        assert!(matches!(check(&[0.0; 3], &[1.0, 0.0, 1.0]), Err(Error::InvalidArgument { .. })));
        assert!(matches!(check(&[f32::NAN; 3], &[1.0; 3]), Err(Error::InvalidArgument { .. })));
        let op = Normalize::new(&images, &[0.0; 3], &[1.0; 3]).to(DType::U8);
        assert!(matches!(op.validate(), Err(Error::DTypeUnsupported { .. })));
        let op = Normalize::new(&Tensor::zeros(DType::F32, [3, 4]).unwrap(), &[0.0; 3], &[1.0; 3]);
        assert!(matches!(op.validate(), Err(Error::RankMismatch { .. })));
    }
}
