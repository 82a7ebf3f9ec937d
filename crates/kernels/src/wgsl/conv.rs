//! Convolutions and their gradients as tiled matrix products, in `conv.wgsl` and the files
//! `conv_*.wgsl`. The latter document rows, columns, inner steps and parameters.

use panoply_core::DType;

use super::gemm::{Accumulate, Epilogue, Load, Tile, finished, tiled};
use super::template::Template;

/// The kind of convolution.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConvPass {
    /// The convolution.
    Forward,
    /// The gradient with respect to its input.
    BackwardInput,
    /// The gradient with respect to its weights.
    BackwardWeight,
}

/// A convolution of f32, f16 or bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvKernel {
    /// The type of all operands.
    pub dtype: DType,
    /// The kind of convolution.
    pub pass: ConvPass,
    /// Bias (per row) and activation.
    pub epilogue: Epilogue,
    /// The size of a workgroup's tile.
    pub tile: Tile,
}

/// The windows of images of 16-bit elements, as columns (im2col). Parameters: total groups of eight
/// elements; positions of the output and its width; lines of an image's columns, channels, taps and
/// the kernel's width; height and width of the input; stride, dilation and padding at top and left;
/// the offset.
pub(super) fn columns() -> String {
    Template::new(include_str!("columns.wgsl")).text()
}

impl ConvKernel {
    pub(super) fn source(&self) -> String {
        let template = Template::new(include_str!("conv.wgsl")).set("KERNEL", "Conv").dtype("TYPE", self.dtype);
        let template = finished(template.set("CARRIER", "f32"), &self.epilogue).set("PASS", format!("{:?}", self.pass));
        let order_a = if self.pass == ConvPass::Forward { Load::AlongInner } else { Load::AlongOuter };
        tiled(template, self.tile, Accumulate::Product, [order_a, Load::AlongOuter]).text()
    }
}

/// Converts images to channels-last. Parameters: images, channels, positions, channels of the
/// output, the offset.
pub(super) fn channels_last() -> String {
    Template::new(include_str!("channels_last.wgsl")).text()
}
