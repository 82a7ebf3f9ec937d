//! Convolutions and pooling of `batch × channels × height × width` images.

use panoply_core::graph::{Dim, NodeId};
use panoply_core::op::compute::{Conv2d as ConvOp, Conv2dBackwardInput, ConvOptions, Pool2d};

use super::Layer;
use crate::error::{Error, Result};
use crate::net::Net;
use crate::parameters::Init;

/// A convolution. Parameters: `weight` (`filters × channels / groups × height × width`), `bias`.
#[derive(Clone, Debug)]
pub struct Conv2d {
    /// The layer's name.
    pub name: String,
    /// Number of input channels.
    pub channels: usize,
    /// Number of output channels.
    pub filters: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Stride, padding, dilation and groups.
    pub options: ConvOptions,
    /// Whether the layer has a bias.
    pub bias: bool,
}

impl Conv2d {
    /// A convolution with a square kernel, stride one, no padding, and a bias.
    pub fn new(name: &str, channels: usize, filters: usize, kernel: usize) -> Conv2d {
        let options = ConvOptions::default();
        Conv2d { name: name.to_owned(), channels, filters, kernel: [kernel; 2], options, bias: true }
    }

    /// Pads every side with `padding` zeros.
    pub fn padding(mut self, padding: usize) -> Conv2d {
        self.options.padding = [padding; 4];
        self
    }

    /// Sets the stride along both axes.
    pub fn stride(mut self, stride: usize) -> Conv2d {
        self.options.stride = [stride; 2];
        self
    }

    /// Sets stride, padding, dilation and groups at once.
    pub fn options(mut self, options: ConvOptions) -> Conv2d {
        self.options = options;
        self
    }

    /// Removes the bias.
    pub fn without_bias(mut self) -> Conv2d {
        self.bias = false;
        self
    }
}

impl Layer for Conv2d {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        net.layer(&self.name, |net| {
            check(self.kernel, &self.options, self.channels, self.filters)?;
            net.expect_features(x, 1, self.channels)?;
            let [height, width] = self.kernel;
            let seen = self.channels / self.options.groups;
            let init = Init::fan_in(seen * height * width);
            let weight = net.parameter("weight", &[self.filters, seen, height, width], init)?;
            let (x, weight) = (net.narrow(x)?, net.narrow(weight)?);
            let y = net.op(&[x, weight], |t| ConvOp::new(&t[0], &t[1]).options(self.options))?;
            if self.bias { with_bias(net, y, self.filters, init) } else { Ok(y) }
        })
    }
}

/// A transposed convolution. Parameters: `weight` (`channels × filters / groups × height × width`),
/// `bias`.
#[derive(Clone, Debug)]
pub struct ConvTranspose2d {
    /// The layer's name.
    pub name: String,
    /// Number of input channels.
    pub channels: usize,
    /// Number of output channels.
    pub filters: usize,
    /// Height and width of the kernel.
    pub kernel: [usize; 2],
    /// Stride, padding, dilation and groups of the convolution that is transposed.
    pub options: ConvOptions,
    /// Number of rows added at the bottom and of columns added on the right.
    pub output_padding: [usize; 2],
    /// Whether the layer has a bias.
    pub bias: bool,
}

impl ConvTranspose2d {
    /// A transposed convolution with a square kernel and stride, no padding, and a bias.
    pub fn new(name: &str, channels: usize, filters: usize, kernel: usize, stride: usize) -> ConvTranspose2d {
        let options = ConvOptions { stride: [stride; 2], ..ConvOptions::default() };
        let (kernel, output_padding) = ([kernel; 2], [0; 2]);
        ConvTranspose2d { name: name.to_owned(), channels, filters, kernel, options, output_padding, bias: true }
    }
}

impl ConvTranspose2d {
    /// The size of the output along an axis. `None` if the padding is larger than the output.
    fn output(&self, axis: usize, size: usize) -> Option<usize> {
        let ConvOptions { stride, padding, dilation, .. } = self.options;
        let reach = dilation[axis].checked_mul(self.kernel[axis].checked_sub(1)?)?;
        let whole = size.checked_sub(1)?.checked_mul(stride[axis])?.checked_add(reach)?;
        let whole = whole.checked_add(self.output_padding[axis])?.checked_add(1)?;
        whole.checked_sub(padding[axis].checked_add(padding[axis + 2])?)
    }
}

impl Layer for ConvTranspose2d {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        net.layer(&self.name, |net| {
            check(self.kernel, &self.options, self.channels, self.filters)?;
            let dims = net.expect_features(x, 1, self.channels)?;
            let mut size = [0; 2];
            for (axis, size) in size.iter_mut().enumerate() {
                let own = dims.get(2 + axis).and_then(Dim::as_fixed).filter(|size| *size > 0);
                let own =
                    own.ok_or_else(|| Error::invalid("input", "a height and a width that are numbers", "others"))?;
                let refused = || Error::invalid("padding", format!("less than the output along axis {axis}"), "more");
                *size = self.output(axis, own).filter(|size| *size > 0).ok_or_else(refused)?;
            }
            let [height, width] = self.kernel;
            let made = self.filters / self.options.groups;
            let init = Init::fan_in(made * height * width);
            let weight = net.parameter("weight", &[self.channels, made, height, width], init)?;
            let (x, weight) = (net.narrow(x)?, net.narrow(weight)?);
            let y = net.op(&[x, weight], |t| Conv2dBackwardInput::new(&t[0], &t[1], size).options(self.options))?;
            if self.bias { with_bias(net, y, self.filters, init) } else { Ok(y) }
        })
    }
}

/// Checks the sizes of a convolution.
fn check(kernel: [usize; 2], options: &ConvOptions, channels: usize, filters: usize) -> Result<()> {
    if kernel.contains(&0) || options.stride.contains(&0) || options.dilation.contains(&0) {
        let got = format!("{kernel:?}, {:?} and {:?}", options.stride, options.dilation);
        return Err(Error::invalid("kernel, stride and dilation", "at least 1", got));
    }
    let groups = options.groups;
    if groups == 0 || !channels.is_multiple_of(groups) || !filters.is_multiple_of(groups) {
        return Err(Error::invalid(
            "groups",
            format!("a divisor of {channels} channels and {filters} filters"),
            groups,
        ));
    }
    Ok(())
}

fn with_bias(net: &mut Net, y: NodeId, filters: usize, init: Init) -> Result<NodeId> {
    let bias = net.parameter("bias", &[filters], init)?;
    let bias = net.narrow(bias)?;
    let bias = net.reshape(bias, &[filters.into(), 1.into(), 1.into()])?;
    Ok(net.add(y, bias)?)
}

/// The largest element of each window.
#[derive(Clone, Copy, Debug)]
pub struct MaxPool2d {
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// Distance between the starts of neighbouring windows.
    pub stride: [usize; 2],
    /// Number of padding rows and columns: top, left, bottom, right.
    pub padding: [usize; 4],
}

impl MaxPool2d {
    /// Square windows without overlap or gaps.
    pub fn new(kernel: usize) -> MaxPool2d {
        MaxPool2d { kernel: [kernel; 2], stride: [kernel; 2], padding: [0; 4] }
    }
}

impl Layer for MaxPool2d {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        Ok(net.op(&[x], |t| Pool2d::max(&t[0], self.kernel).stride(self.stride).padding(self.padding))?)
    }
}

/// The average of each window.
#[derive(Clone, Copy, Debug)]
pub struct AvgPool2d {
    /// Height and width of a window.
    pub kernel: [usize; 2],
    /// Distance between the starts of neighbouring windows.
    pub stride: [usize; 2],
    /// Number of padding rows and columns: top, left, bottom, right.
    pub padding: [usize; 4],
    /// Whether padding counts in the average. The default is PyTorch's: it does.
    pub count_padding: bool,
}

impl AvgPool2d {
    /// Square windows without overlap or gaps.
    pub fn new(kernel: usize) -> AvgPool2d {
        AvgPool2d { kernel: [kernel; 2], stride: [kernel; 2], padding: [0; 4], count_padding: true }
    }
}

impl Layer for AvgPool2d {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        Ok(net.op(&[x], |t| {
            let pool = Pool2d::average(&t[0], self.kernel).stride(self.stride).padding(self.padding);
            pool.count_padding(self.count_padding)
        })?)
    }
}

/// The average of each channel, as `batch × channels`.
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalAvgPool2d;

impl Layer for GlobalAvgPool2d {
    fn forward(&self, net: &mut Net, x: NodeId) -> Result<NodeId> {
        Ok(net.reduce(panoply_core::op::compute::Reduction::Mean, x, &[2, 3])?)
    }
}
