//! Pool2d: the maximum or the average of windows of images.

use std::ops::Range;

use super::conv_shape::{at_least_one, check_floats, dims4, padded_size};
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::{Shape, TENSOR_BYTES_MAX};
use crate::tensor::Tensor;

/// The function of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PoolKind {
    /// The largest number, or NaN if the window contains one. Padding is never the maximum.
    Max,
    /// The sum divided by a count.
    Average {
        /// Whether to divide by the size of the window, including padding, rather than by the
        /// number of image elements in it.
        count_padding: bool,
    },
}

/// Combines the numbers in each window of `batch × channels × height × width` images, for f32, f16,
/// bf16 and f64.
///
/// Every window overlaps the image: the padding must be smaller than the kernel, and the kernel no
/// larger than the padded image, which has at least one row and one column. f16 and bf16 are summed
/// in f32.
#[derive(Clone, Debug)]
pub struct Pool2d {
    /// The images.
    pub input: Tensor,
    /// The function of a window.
    pub kind: PoolKind,
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// Distance between neighbouring windows: vertical, horizontal.
    pub stride: [usize; 2],
    /// Padding rows and columns that windows may cover: top, left, bottom, right.
    pub padding: [usize; 4],
}

impl Pool2d {
    /// The largest number of each window of this height and width. Windows are adjacent unless a
    /// stride is set.
    pub fn max(input: &Tensor, kernel: [usize; 2]) -> Pool2d {
        Pool2d { input: input.clone(), kind: PoolKind::Max, kernel, stride: kernel, padding: [0; 4] }
    }

    /// The average of each window of this height and width. Windows are adjacent unless a stride is
    /// set. Padding does not count unless [`Pool2d::count_padding`] is set.
    pub fn average(input: &Tensor, kernel: [usize; 2]) -> Pool2d {
        Pool2d { kind: PoolKind::Average { count_padding: false }, ..Pool2d::max(input, kernel) }
    }

    /// The largest number of each channel of each image.
    pub fn global_max(input: &Tensor) -> Pool2d {
        Pool2d::max(input, image_size(input))
    }

    /// The average of each channel of each image.
    pub fn global_average(input: &Tensor) -> Pool2d {
        Pool2d::average(input, image_size(input))
    }

    /// Distance between neighbouring windows: vertical, horizontal.
    pub fn stride(mut self, stride: [usize; 2]) -> Pool2d {
        self.stride = stride;
        self
    }

    /// Padding rows and columns that windows may cover: top, left, bottom, right.
    pub fn padding(mut self, padding: [usize; 4]) -> Pool2d {
        self.padding = padding;
        self
    }

    /// Whether an average divides by the size of the window, including padding. Has no effect on a
    /// maximum.
    pub fn count_padding(mut self, count_padding: bool) -> Pool2d {
        if let PoolKind::Average { .. } = self.kind {
            self.kind = PoolKind::Average { count_padding };
        }
        self
    }

    /// Checks and returns the sizes of the pooling.
    pub fn pool_shape(&self) -> Result<PoolShape> {
        let [batch, channels, height, width] = dims4("pool2d input", &self.input)?;
        at_least_one("pool2d input height and width", &[height, width])?;
        at_least_one("pool2d kernel", &self.kernel)?;
        at_least_one("pool2d stride", &self.stride)?;
        let (kernel, mut stride, padding) = (self.kernel, self.stride, self.padding);
        if kernel[0].checked_mul(kernel[1]).is_none_or(|size| size > TENSOR_BYTES_MAX) {
            let (what, got, limit) = ("pool2d kernel", kernel.to_vec(), TENSOR_BYTES_MAX);
            return Err(Error::SizeOverflow { what, got, limit });
        }
        for axis in 0..2 {
            let (before, after) = (padding[axis], padding[axis + 2]);
            let padded = padded_size("pool2d padding", [height, width][axis], before, after)?;
            if before.max(after) >= kernel[axis] {
                let expected = format!("less than the kernel's {}", kernel[axis]);
                return Err(Error::invalid("pool2d padding", expected, before.max(after)));
            }
            if kernel[axis] > padded {
                return Err(Error::invalid("pool2d kernel", format!("at most the padded {padded}"), kernel[axis]));
            }
            // A stride beyond the image changes nothing. A stride limited to the image can be
            // multiplied without overflow.
            stride[axis] = stride[axis].min(padded);
        }
        Ok(PoolShape { batch, channels, input: [height, width], kernel, stride, padding })
    }

    /// The output's shape: `batch × channels × height × width`.
    pub fn output_shape(&self) -> Result<Shape> {
        let shape = self.pool_shape()?;
        let [height, width] = shape.output();
        Shape::new([shape.batch, shape.channels, height, width])
    }
}

/// The sizes of a pooling, checked by [`Pool2d::pool_shape`]. Pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PoolShape {
    /// Number of images.
    pub batch: usize,
    /// Channels of an image.
    pub channels: usize,
    /// Height and width of an image, at least one.
    pub input: [usize; 2],
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// Distance between neighbouring windows, at most the size of the padded image.
    pub stride: [usize; 2],
    /// Padding rows and columns that windows may cover: top, left, bottom, right.
    pub padding: [usize; 4],
}

impl PoolShape {
    /// Height and width of the output.
    pub fn output(&self) -> [usize; 2] {
        std::array::from_fn(|axis| {
            let padded = self.input[axis] + self.padding[axis] + self.padding[axis + 2];
            (padded - self.kernel[axis]) / self.stride[axis] + 1
        })
    }

    /// The part of the image that the window at `index` covers along one axis. Never empty.
    pub fn window(&self, axis: usize, index: usize) -> Range<usize> {
        let start = index * self.stride[axis];
        let end = start + self.kernel[axis] - self.padding[axis].min(start + self.kernel[axis]);
        start.saturating_sub(self.padding[axis])..end.min(self.input[axis])
    }
}

impl Describe for Pool2d {
    fn name(&self) -> &'static str {
        "pool2d"
    }

    fn validate(&self) -> Result<()> {
        check_floats("pool2d", &self.input, &[])?;
        self.output_shape().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()?))
    }
}

/// Height and width of the images. Zero for tensors of another rank, which validation rejects.
fn image_size(input: &Tensor) -> [usize; 2] {
    match input.shape().dims() {
        [_, _, height, width] => [*height, *width],
        _ => [0, 0],
    }
}
