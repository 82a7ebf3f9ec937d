//! The sizes of one convolution.

use std::ops::Range;

/// A two-dimensional convolution over `batch × channels × height × width` images. Pairs are (vertical, horizontal).
///
/// The op's validation guarantees what the kernels rely on: `groups` divides `channels` and `filters`, stride, dilation
/// and kernel are at least one, the kernel fits the padded image, and no product of sizes overflows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    /// Images.
    pub batch: usize,
    /// Channels of an image, over all groups.
    pub channels: usize,
    /// Channels of an output image, over all groups.
    pub filters: usize,
    /// Groups that see disjoint channels and make disjoint filters.
    pub groups: usize,
    /// Height and width of an image.
    pub input: [usize; 2],
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Steps between neighbouring outputs.
    pub stride: [usize; 2],
    /// Steps between neighbouring taps of the kernel.
    pub dilation: [usize; 2],
    /// Zeros around the image: top, left, bottom, right.
    pub padding: [usize; 4],
}

impl ConvShape {
    /// Height and width of an output image.
    pub fn output(&self) -> [usize; 2] {
        std::array::from_fn(|axis| {
            let padded = self.input[axis] + self.padding[axis] + self.padding[axis + 2];
            let reach = (self.kernel[axis] - 1) * self.dilation[axis] + 1;
            (padded - reach) / self.stride[axis] + 1
        })
    }

    /// Channels that one filter sees.
    pub fn group_channels(&self) -> usize {
        self.channels / self.groups
    }

    /// Filters of one group.
    pub fn group_filters(&self) -> usize {
        self.filters / self.groups
    }

    /// Weights of one filter for one channel.
    pub fn taps(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    /// Numbers in the input.
    pub fn input_len(&self) -> usize {
        self.batch * self.channels * self.input[0] * self.input[1]
    }

    /// Numbers in the output.
    pub fn output_len(&self) -> usize {
        let [height, width] = self.output();
        self.batch * self.filters * height * width
    }

    /// Numbers in the weights.
    pub fn weight_len(&self) -> usize {
        self.filters * self.group_channels() * self.taps()
    }
}

/// `index`th of the runs of at most `size` that cover `0..len`.
pub(super) fn block(len: usize, size: usize, index: usize) -> Range<usize> {
    let start = (index * size).min(len);
    start..len.min(start + size)
}
