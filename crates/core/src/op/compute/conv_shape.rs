//! The sizes of a convolution, checked once for the forward op and both of its gradients.

use crate::error::{Error, Result};
use crate::shape::{Shape, TENSOR_BYTES_MAX};
use crate::tensor::Tensor;

/// The movement of a kernel over an image. Pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConvOptions {
    /// Distance between the inputs of neighbouring outputs.
    pub stride: [usize; 2],
    /// Zeros around the image: top, left, bottom, right.
    pub padding: [usize; 4],
    /// Distance between neighbouring taps of the kernel.
    pub dilation: [usize; 2],
    /// Groups with disjoint input channels and disjoint filters. A depthwise convolution has as
    /// many groups as channels.
    pub groups: usize,
}

impl Default for ConvOptions {
    fn default() -> ConvOptions {
        ConvOptions { stride: [1, 1], padding: [0; 4], dilation: [1, 1], groups: 1 }
    }
}

/// The sizes of a two-dimensional convolution over `batch × channels × height × width` images.
/// [`ConvShape::new`] has checked that `groups` divides `channels` and `filters`, that stride,
/// dilation and kernel are at least one, that the kernel fits the padded image, and that no product
/// of sizes overflows. Pairs are (vertical, horizontal).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Number of images.
    pub batch: usize,
    /// Channels of an image, over all groups.
    pub channels: usize,
    /// Channels of an output image, over all groups.
    pub filters: usize,
    /// Groups with disjoint input channels and disjoint filters.
    pub groups: usize,
    /// Height and width of an image.
    pub input: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Distance between the inputs of neighbouring outputs.
    pub stride: [usize; 2],
    /// Distance between neighbouring taps of the kernel.
    pub dilation: [usize; 2],
    /// Zeros around the image: top, left, bottom, right.
    pub padding: [usize; 4],
}

impl ConvShape {
    /// Checks the sizes of a convolution of images with weights.
    pub fn new(input: [usize; 4], weights: [usize; 4], options: &ConvOptions) -> Result<ConvShape> {
        let [batch, channels, height, width] = input;
        let [filters, group_channels, kernel_height, kernel_width] = weights;
        let ConvOptions { stride, padding, dilation, groups } = *options;
        at_least_one("conv2d stride", &stride)?;
        at_least_one("conv2d dilation", &dilation)?;
        at_least_one("conv2d kernel", &[kernel_height, kernel_width])?;
        at_least_one("conv2d groups", &[groups])?;
        for (what, count) in [("conv2d channels", channels), ("conv2d filters", filters)] {
            if count % groups != 0 {
                return Err(Error::invalid(what, format!("a multiple of the {groups} groups"), count));
            }
        }
        if group_channels != channels / groups {
            let expected = vec![filters, channels / groups, kernel_height, kernel_width];
            return Err(Error::ShapeMismatch { what: "conv2d weights", expected, got: weights.to_vec() });
        }
        let mut shape = ConvShape {
            batch,
            channels,
            filters,
            groups,
            input: [height, width],
            kernel: [kernel_height, kernel_width],
            stride,
            dilation,
            padding,
        };
        for axis in 0..2 {
            let padded = padded_size("conv2d padding", shape.input[axis], padding[axis], padding[axis + 2])?;
            let reach = (shape.kernel[axis] - 1).checked_mul(dilation[axis]).and_then(|span| span.checked_add(1));
            if reach.is_none_or(|reach| reach > padded) {
                let expected = format!("a kernel that reaches over at most the {padded} of the padded input");
                let got = format!("{} with dilation {}", shape.kernel[axis], dilation[axis]);
                return Err(Error::invalid("conv2d kernel", expected, got));
            }
            // A stride beyond the image changes nothing. A stride limited to the image can be
            // multiplied without overflow.
            shape.stride[axis] = stride[axis].min(padded.max(1));
        }
        Shape::new(input)?;
        Shape::new(weights)?;
        Shape::new(shape.output_dims())?;
        Ok(shape)
    }

    /// Height and width of an output image.
    pub fn output(&self) -> [usize; 2] {
        std::array::from_fn(|axis| {
            let padded = self.input[axis] + self.padding[axis] + self.padding[axis + 2];
            let reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1;
            (padded - reach) / self.stride[axis] + 1
        })
    }

    /// `batch × channels × height × width` of the input.
    pub fn input_dims(&self) -> [usize; 4] {
        [self.batch, self.channels, self.input[0], self.input[1]]
    }

    /// `filters × channels of a group × height × width` of the weights.
    pub fn weight_dims(&self) -> [usize; 4] {
        [self.filters, self.group_channels(), self.kernel[0], self.kernel[1]]
    }

    /// `batch × filters × height × width` of the output.
    pub fn output_dims(&self) -> [usize; 4] {
        let [height, width] = self.output();
        [self.batch, self.filters, height, width]
    }

    /// Number of channels that one filter reads.
    pub fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    /// Number of filters in one group.
    pub fn group_filters(&self) -> usize {
        self.filters / self.groups
    }

    /// Number of weights of one filter for one channel.
    pub fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Number of elements of the input.
    pub fn input_len(&self) -> usize {
        self.input_dims().iter().product()
    }

    /// Number of elements of the output.
    pub fn output_len(&self) -> usize {
        self.output_dims().iter().product()
    }

    /// Number of elements of the weights.
    pub fn weight_len(&self) -> usize {
        self.weight_dims().iter().product()
    }

    /// Calls `visit` for every product of the convolution that reads the image; products with
    /// padding are left out. For host code and test libraries whose speed does not matter. The
    /// products of one output follow each other, channel by channel.
    pub fn for_each_product(&self, mut visit: impl FnMut(ConvProduct)) {
        let [rows, columns] = self.output();
        for at in 0..self.output_len() {
            let (column, row) = (at % columns, at / columns % rows);
            let (filter, image) = (at / (columns * rows) % self.filters, at / (columns * rows * self.filters));
            let first_channel = filter / self.group_filters() * self.group_channels();
            for channel in 0..self.group_channels() {
                for tap in 0..self.taps() {
                    let taps = [tap / self.kernel[1], tap % self.kernel[1]];
                    let read = |axis: usize, pixel: usize| {
                        let padded = pixel * self.stride[axis] + taps[axis] * self.dilation[axis];
                        padded.checked_sub(self.padding[axis]).filter(|position| *position < self.input[axis])
                    };
                    if let (Some(y), Some(x)) = (read(0, row), read(1, column)) {
                        visit(ConvProduct {
                            input: [image, first_channel + channel, y, x],
                            weight: [filter, channel, taps[0], taps[1]],
                            output: [image, filter, row, column],
                        });
                    }
                }
            }
        }
    }
}

/// One product of a convolution: `output += input · weight`. Each index is that of an element in
/// the dimensions that [`ConvShape::input_dims`] and the others tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvProduct {
    /// Image, channel, row and column.
    pub input: [usize; 4],
    /// Filter, channel of its group, row and column of the kernel.
    pub weight: [usize; 4],
    /// Image, filter, row and column.
    pub output: [usize; 4],
}

/// The builder methods that set [`ConvOptions`].
macro_rules! conv_builders {
    () => {
        /// Distance between the inputs of neighbouring outputs: vertical, horizontal.
        pub fn stride(mut self, stride: [usize; 2]) -> Self {
            self.options.stride = stride;
            self
        }

        /// Zeros around the image: top, left, bottom, right.
        pub fn padding(mut self, padding: [usize; 4]) -> Self {
            self.options.padding = padding;
            self
        }

        /// Distance between neighbouring taps of the kernel: vertical, horizontal.
        pub fn dilation(mut self, dilation: [usize; 2]) -> Self {
            self.options.dilation = dilation;
            self
        }

        /// Groups with disjoint input channels and disjoint filters.
        pub fn groups(mut self, groups: usize) -> Self {
            self.options.groups = groups;
            self
        }

        /// Sets stride, padding, dilation and groups together.
        pub fn options(mut self, options: ConvOptions) -> Self {
            self.options = options;
            self
        }
    };
}
pub(super) use conv_builders;

/// The dimensions of a tensor of rank four.
pub(super) fn dims4(what: &'static str, tensor: &Tensor) -> Result<[usize; 4]> {
    let got = tensor.shape().rank();
    tensor.shape().dims().try_into().map_err(|_| Error::RankMismatch { what, expected: "4".into(), got })
}

/// Checks that the first operand has a float type, and that the others have the same type.
pub(super) fn check_floats(op: &'static str, first: &Tensor, others: &[(&'static str, &Tensor)]) -> Result<()> {
    if !first.dtype().is_float() {
        return Err(Error::DTypeUnsupported { what: op, expected: "f32, f16, bf16 or f64", got: first.dtype() });
    }
    for (what, other) in others {
        if other.dtype() != first.dtype() {
            return Err(Error::DTypeMismatch { what, expected: first.dtype(), got: other.dtype() });
        }
    }
    Ok(())
}

/// Checks that every size is at least one.
pub(super) fn at_least_one(what: &'static str, sizes: &[usize]) -> Result<()> {
    match sizes.contains(&0) {
        true => Err(Error::invalid(what, "at least 1", format!("{sizes:?}"))),
        false => Ok(()),
    }
}

/// The size of an axis with its padding.
pub(super) fn padded_size(what: &'static str, size: usize, before: usize, after: usize) -> Result<usize> {
    let padded = size.checked_add(before).and_then(|sum| sum.checked_add(after));
    padded.filter(|padded| *padded <= TENSOR_BYTES_MAX).ok_or_else(|| Error::SizeOverflow {
        what,
        got: vec![size, before, after],
        limit: TENSOR_BYTES_MAX,
    })
}

#[cfg(test)]
#[path = "conv_tests.rs"]
mod tests;
