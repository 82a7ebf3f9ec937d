//! Resizing, normalising and colour conversion of images, in `resize.wgsl`, `normalize.wgsl` and
//! `color.wgsl`. One invocation per output element, written as a carrier.
//!
//! Parameters of [`ResizeKernel`]: planes, input height and width, output height and width,
//! interleaved channels, offset. Of [`NormalizeKernel`]: elements, channels, elements after the
//! channel axis, offset, the index of the first element in its image; it reads factors and
//! summands, one pair for each channel. Of [`ColorKernel`]: images, height, width, offset, the
//! weights of red, green and blue, the code of black, the spans of luma and of chroma.

use panoply_core::DType;
use panoply_core::op::compute::{ColorFormat, ResizeMode};

use super::template::Template;

/// Resizes images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ResizeKernel {
    /// The type of the elements: f32, f16, bf16 or u8.
    pub dtype: DType,
    /// The interpolation.
    pub mode: ResizeMode,
}

/// Scales and shifts images by channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct NormalizeKernel {
    /// The type of the input.
    pub dtype: DType,
}

/// Converts the colour format of images.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ColorKernel {
    /// u8 or f32.
    pub dtype: DType,
    /// The input's format.
    pub from: ColorFormat,
    /// The output's format.
    pub to: ColorFormat,
}

impl ResizeKernel {
    pub(super) fn source(&self) -> String {
        let template = Template::new(include_str!("resize.wgsl")).dtype("TYPE", self.dtype);
        template.set("MODE", format!("{:?}", self.mode)).text()
    }
}

impl NormalizeKernel {
    pub(super) fn source(&self) -> String {
        Template::new(include_str!("normalize.wgsl")).dtype("TYPE", self.dtype).text()
    }
}

impl ColorKernel {
    pub(super) fn source(&self) -> String {
        let template = Template::new(include_str!("color.wgsl")).dtype("TYPE", self.dtype);
        template.set("FROM", format!("{:?}", self.from)).set("TO", format!("{:?}", self.to)).text()
    }
}
