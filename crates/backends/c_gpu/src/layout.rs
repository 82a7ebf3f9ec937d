//! The layout of a tensor's elements on the device.

use panoply_core::Tensor;

use crate::driver::Address;
use crate::strides::Axes;

/// Maximum number of axes of a layout; see `layout` in the kernels' prelude.
pub const LAYOUT_AXES_MAX: usize = 8;

/// The elements of a tensor on the device, in any layout.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Address of the first element.
    pub address: Address,
    /// Sizes and strides in elements.
    pub layout: Layout,
}

/// Sizes and strides of up to eight axes, the last axis first.
#[derive(Clone, Copy, Debug, Default)]
pub struct Layout {
    rank: usize,
    size: [usize; LAYOUT_AXES_MAX],
    stride: [i64; LAYOUT_AXES_MAX],
}

impl Layout {
    /// The layout of a view.
    pub fn new(shape: &[usize], strides: &[isize]) -> Layout {
        let mut layout = Layout { rank: shape.len(), ..Layout::default() };
        for (axis, (size, stride)) in shape.iter().zip(strides).rev().enumerate() {
            layout.size[axis] = *size;
            layout.stride[axis] = *stride as i64;
        }
        layout
    }

    /// The layout of one of several views with the same axes.
    pub(crate) fn of_axes<const N: usize>(axes: &Axes<N>, view: usize) -> Layout {
        let mut layout = Layout { rank: axes.rank, ..Layout::default() };
        layout.size[..axes.rank].copy_from_slice(&axes.sizes[..axes.rank]);
        layout.stride[..axes.rank].copy_from_slice(&axes.strides[view][..axes.rank]);
        layout
    }

    /// Size and stride of each axis, last axis first.
    pub fn axes(&self) -> impl Iterator<Item = (usize, i64)> {
        (0..self.rank).map(|axis| (self.size[axis], self.stride[axis]))
    }

    /// The `layout` structure of the kernels' prelude. Its sizes have 32 bits; the launch checks
    /// that they fit.
    pub(crate) fn words(&self) -> [u64; 13] {
        let mut words = [0_u64; 13];
        let size = |axis: usize| self.size[axis] as u64 & 0xffff_ffff;
        words[0] = self.rank as u64 | size(0) << 32;
        for pair in 0..3 {
            words[1 + pair] = size(1 + 2 * pair) | size(2 + 2 * pair) << 32;
        }
        words[4] = size(7);
        for (word, stride) in words[5..].iter_mut().zip(self.stride) {
            *word = stride as u64;
        }
        words
    }
}

impl View {
    /// The view of a tensor whose buffer begins at `start`.
    pub(crate) fn of_tensor(start: Address, tensor: &Tensor) -> View {
        let offset = if tensor.elements() == 0 { 0 } else { tensor.offset() * tensor.dtype().size_bytes() };
        View { address: start + offset, layout: Layout::new(tensor.shape(), tensor.strides()) }
    }

    /// One of several views with the same axes.
    pub(crate) fn of_axes<const N: usize>(address: Address, axes: &Axes<N>, view: usize) -> View {
        View { address, layout: Layout::of_axes(axes, view) }
    }
}
