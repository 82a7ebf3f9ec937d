//! Lowers convolutions of lines and images, and their gradients.

use burn_ir::{ModuleOperationIr, TensorIr};
use panoply_core::graph::NodeId;
use panoply_core::op::compute::{Conv2d, Conv2dBackwardInput, Conv2dBackwardWeight, ConvOptions, Reduction};

use super::{Lowering, Result, unserved};

/// The padding of a convolution, before and after along each axis.
type Padding<const N: usize> = [(usize, usize); N];

impl Lowering<'_> {
    /// Lowers a convolution of images, or its gradient with respect to the images or the weights.
    pub(super) fn convolved(&mut self, op: &ModuleOperationIr) -> Result<NodeId> {
        use ModuleOperationIr as Op;
        Ok(match op {
            Op::Conv2d(desc) => {
                let options = &desc.options;
                let options = conv(options.stride, options.padding, options.dilation, options.groups);
                let (x, weight) = (self.get(&desc.x)?, self.get(&desc.weight)?);
                let made = self.g.op(&[x, weight], |t| Conv2d::new(&t[0], &t[1]).options(options))?;
                self.biased(made, desc.bias.as_ref(), 3)?
            }
            Op::Conv2dXBackward(desc) => {
                let options = &desc.options;
                let options = conv(options.stride, options.padding, options.dilation, options.groups);
                let (x, weight, g) = (self.get(&desc.x)?, self.get(&desc.weight)?, self.get(&desc.output_grad)?);
                let size = [self.size(x, 2)?, self.size(x, 3)?];
                self.g.op(&[g, weight], |t| Conv2dBackwardInput::new(&t[0], &t[1], size).options(options))?
            }
            Op::Conv2dWeightBackward(desc) => {
                let options = &desc.options;
                let options = conv(options.stride, options.padding, options.dilation, options.groups);
                let (x, weight, g) = (self.get(&desc.x)?, self.get(&desc.weight)?, self.get(&desc.output_grad)?);
                let kernel = [self.size(weight, 2)?, self.size(weight, 3)?];
                self.g.op(&[x, g], |t| Conv2dBackwardWeight::new(&t[0], &t[1], kernel).options(options))?
            }
            _ => return Err(unserved("this convolution")),
        })
    }

    /// Like `convolved`, for lines, which are images of one row.
    pub(super) fn convolved_line(&mut self, op: &ModuleOperationIr) -> Result<NodeId> {
        use ModuleOperationIr as Op;
        Ok(match op {
            Op::Conv1d(desc) => {
                let options = &desc.options;
                let options = conv_line(options.stride, options.padding, options.dilation, options.groups);
                let (x, weight) = (self.as_image(&desc.x)?, self.as_image(&desc.weight)?);
                let made = self.g.op(&[x, weight], |t| Conv2d::new(&t[0], &t[1]).options(options))?;
                let made = self.as_line(made)?;
                self.biased(made, desc.bias.as_ref(), 2)?
            }
            Op::Conv1dXBackward(desc) => {
                let options = &desc.options;
                let options = conv_line(options.stride, options.padding, options.dilation, options.groups);
                let (weight, g) = (self.as_image(&desc.weight)?, self.as_image(&desc.output_grad)?);
                let x = self.get(&desc.x)?;
                let size = [1, self.size(x, 2)?];
                let made =
                    self.g.op(&[g, weight], |t| Conv2dBackwardInput::new(&t[0], &t[1], size).options(options))?;
                self.as_line(made)?
            }
            Op::Conv1dWeightBackward(desc) => {
                let options = &desc.options;
                let options = conv_line(options.stride, options.padding, options.dilation, options.groups);
                let (x, g) = (self.as_image(&desc.x)?, self.as_image(&desc.output_grad)?);
                let weight = self.get(&desc.weight)?;
                let kernel = [1, self.size(weight, 2)?];
                let made = self.g.op(&[x, g], |t| Conv2dBackwardWeight::new(&t[0], &t[1], kernel).options(options))?;
                self.as_line(made)?
            }
            _ => return Err(unserved("this convolution")),
        })
    }

    /// Lowers a transposed convolution. It equals the gradient of a convolution with respect to its
    /// images.
    pub(super) fn convolved_back(&mut self, op: &ModuleOperationIr) -> Result<NodeId> {
        use ModuleOperationIr as Op;
        Ok(match op {
            Op::ConvTranspose2d(desc) => {
                let own = &desc.options;
                let options = conv(own.stride, own.padding.map(|size| (size, size)), own.dilation, own.groups);
                let (x, weight) = (self.get(&desc.x)?, self.get(&desc.weight)?);
                let mut size = [0; 2];
                for (axis, size) in size.iter_mut().enumerate() {
                    let (image, kernel) = (self.size(x, 2 + axis)?, self.size(weight, 2 + axis)?);
                    let steps = image.checked_sub(1).and_then(|steps| steps.checked_mul(own.stride[axis]));
                    let reach = kernel.checked_sub(1).and_then(|taps| taps.checked_mul(own.dilation[axis]));
                    let whole = steps.zip(reach).and_then(|(steps, reach)| steps.checked_add(reach)?.checked_add(1));
                    let whole = whole.and_then(|whole| whole.checked_add(own.padding_out[axis]));
                    let whole = whole.and_then(|whole| whole.checked_sub(own.padding[axis].checked_mul(2)?));
                    *size = whole.ok_or_else(|| unserved("a transposed convolution of these sizes"))?;
                }
                let made =
                    self.g.op(&[x, weight], |t| Conv2dBackwardInput::new(&t[0], &t[1], size).options(options))?;
                self.biased(made, desc.bias.as_ref(), 3)?
            }
            Op::ConvTranspose2dWeightBackward(desc) => {
                let own = &desc.options;
                let options = conv(own.stride, own.padding.map(|size| (size, size)), own.dilation, own.groups);
                let (x, weight, g) = (self.get(&desc.x)?, self.get(&desc.weight)?, self.get(&desc.output_grad)?);
                let kernel = [self.size(weight, 2)?, self.size(weight, 3)?];
                self.g.op(&[g, x], |t| Conv2dBackwardWeight::new(&t[0], &t[1], kernel).options(options))?
            }
            _ => return Err(unserved("this convolution")),
        })
    }

    /// Sums a gradient per channel (axis 1).
    pub(super) fn bias_share(&mut self, g: &TensorIr) -> Result<NodeId> {
        let g = self.get(g)?;
        let axes: Vec<usize> = (0..self.dims(g)?.len()).filter(|axis| *axis != 1).collect();
        Ok(self.g.reduce(Reduction::Sum, g, &axes)?)
    }

    /// Reshapes `batch × channels × length` to images of one row.
    fn as_image(&mut self, x: &TensorIr) -> Result<NodeId> {
        let x = self.get(x)?;
        let mut dims = self.dims(x)?;
        if dims.len() != 3 {
            return Err(unserved(format!("a line of {} axes", dims.len())));
        }
        dims.insert(2, 1);
        self.reshape(x, &dims)
    }

    fn as_line(&mut self, x: NodeId) -> Result<NodeId> {
        let mut dims = self.dims(x)?;
        dims.remove(2);
        self.reshape(x, &dims)
    }
}

fn conv(stride: [usize; 2], padding: Padding<2>, dilation: [usize; 2], groups: usize) -> ConvOptions {
    let padding = [padding[0].0, padding[1].0, padding[0].1, padding[1].1];
    ConvOptions { stride, padding, dilation, groups }
}

fn conv_line(stride: [usize; 1], padding: Padding<1>, dilation: [usize; 1], groups: usize) -> ConvOptions {
    conv([1, stride[0]], [(0, 0), padding[0]], [1, dilation[0]], groups)
}
