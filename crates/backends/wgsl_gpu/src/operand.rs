//! Operands: views of blocks, as ops see tensors while they record.

use std::rc::Rc;

use panoply_core::shape::Strides;
use panoply_core::{DType, Result, Shape};

use crate::driver::Driver;
use crate::memory::LentMemory;

/// Alignment of a window's start: kernels see a block from a multiple of this.
pub const WINDOW_STEP_BYTES: usize = 256;
/// The most elements that a kernel sees: indices and their products are 32-bit integers.
pub const ELEMENTS_MAX: usize = i32::MAX as usize;

/// A view of elements in a block. The block stays lent as long as a view of it exists.
pub struct Operand<D: Driver> {
    pub(crate) block: Rc<LentMemory<D>>,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    pub(crate) strides: Strides,
    /// Index of the first element, counted from the window's start.
    pub(crate) offset: usize,
    /// Offset in bytes from which kernels see the block, which may be larger than they can see at
    /// once.
    pub(crate) window: usize,
}

impl<D: Driver> Clone for Operand<D> {
    fn clone(&self) -> Operand<D> {
        let Operand { block, dtype, shape, strides, offset, window } = self;
        let (block, dtype, offset, window) = (Rc::clone(block), *dtype, *offset, *window);
        Operand { block, dtype, shape: *shape, strides: *strides, offset, window }
    }
}

impl<D: Driver> Operand<D> {
    /// A contiguous view from the block's start.
    pub fn whole(block: Rc<LentMemory<D>>, dtype: DType, shape: Shape) -> Operand<D> {
        Operand { block, dtype, strides: shape.contiguous_strides(), shape, offset: 0, window: 0 }
    }

    /// The block.
    pub fn block(&self) -> &LentMemory<D> {
        &self.block
    }

    /// Offset of the window from the start of the buffer.
    pub fn window_in_buffer(&self) -> usize {
        self.block.start() + self.window
    }

    /// Number of elements.
    pub fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Whether the elements lie one after the other.
    pub fn is_contiguous(&self) -> bool {
        let mut step = 1;
        self.elements() == 0
            || self.shape.iter().zip(self.strides.iter()).rev().all(|(dim, stride)| {
                let fits = *dim == 1 || *stride == step;
                step *= *dim as isize;
                fits
            })
    }

    /// The offset as a kernel's parameter.
    pub fn start(&self) -> u32 {
        self.offset as u32
    }

    /// Index of the first element, counted from the block's start.
    pub fn offset_in_block(&self) -> usize {
        self.offset + self.window / self.dtype.size_bytes()
    }

    /// Offset of a contiguous view's first byte from the block's start.
    pub fn start_byte(&self) -> usize {
        self.window + self.offset * self.dtype.size_bytes()
    }

    /// The lowest index that the view reaches, and the highest plus one.
    pub fn reach(&self) -> (usize, usize) {
        let (low, high) = reach(&self.shape, &self.strides);
        (self.offset.saturating_add_signed(low), self.offset.saturating_add_signed(high) + 1)
    }

    /// The same elements, seen through a window that begins just before them.
    pub fn windowed(&self) -> Operand<D> {
        let size = self.dtype.size_bytes();
        let skipped = self.reach().0 * size / WINDOW_STEP_BYTES * WINDOW_STEP_BYTES;
        Operand { window: self.window + skipped, offset: self.offset - skipped / size, ..self.clone() }
    }

    /// Whether kernels that see `binding_bytes_max` bytes from the window's start see the whole
    /// view.
    pub fn is_within(&self, binding_bytes_max: u64) -> bool {
        is_seen(self.reach().1, self.dtype.size_bytes(), binding_bytes_max)
    }

    /// A range of indices along an axis.
    pub fn slice(&self, axis: usize, first: usize, count: usize) -> Result<Operand<D>> {
        let mut dims = self.shape.dims().to_vec();
        dims[axis] = count;
        let offset = self.offset.saturating_add_signed(first as isize * self.strides[axis]);
        Ok(Operand { shape: Shape::new(dims)?, offset, ..self.clone() })
    }

    /// A range of elements of a contiguous view, as one axis.
    pub fn span(&self, first: usize, count: usize) -> Result<Operand<D>> {
        let shape = Shape::new([count])?;
        let strides = shape.contiguous_strides();
        Ok(Operand { shape, strides, offset: self.offset + first, ..self.clone() })
    }

    /// The same contiguous elements with another shape of equal size.
    pub fn reshaped(&self, shape: Shape) -> Operand<D> {
        Operand { shape, strides: shape.contiguous_strides(), ..self.clone() }
    }

    /// The same contiguous bits as another type of the same size.
    pub fn retyped(&self, dtype: DType) -> Operand<D> {
        Operand { dtype, ..self.clone() }
    }

    /// The view with its axes in another order.
    pub fn permuted(&self, order: &[usize]) -> Result<Operand<D>> {
        let dims: Vec<usize> = order.iter().map(|axis| self.shape[*axis]).collect();
        let steps: Vec<isize> = order.iter().map(|axis| self.strides[*axis]).collect();
        Ok(Operand { shape: Shape::new(dims)?, strides: Strides::new(steps)?, ..self.clone() })
    }
}

/// Whether kernels that see `binding_bytes_max` bytes see this many elements.
pub fn is_seen(elements: usize, element_bytes: usize, binding_bytes_max: u64) -> bool {
    elements <= ELEMENTS_MAX && (elements * element_bytes).next_multiple_of(16) as u64 <= binding_bytes_max
}

/// The distances of the lowest and the highest element from the first one, in elements.
pub fn reach(dims: &[usize], strides: &[isize]) -> (isize, isize) {
    let steps = || dims.iter().zip(strides).map(|(dim, stride)| (*dim as isize - 1).max(0) * stride);
    (steps().filter(|step| *step < 0).sum(), steps().filter(|step| *step > 0).sum())
}

/// Drops dimensions of size one and joins neighbouring dimensions if the strides of all operands
/// allow it. Returns the dimensions, then the strides of each operand.
pub fn collapsed(dims: &[usize], strides: &[&[isize]]) -> (Vec<u32>, Vec<Vec<u32>>) {
    let mut kept: Vec<(usize, Vec<isize>)> = Vec::new();
    for (axis, dim) in dims.iter().enumerate() {
        if *dim == 1 {
            continue;
        }
        let steps: Vec<isize> = strides.iter().map(|strides| strides[axis]).collect();
        if let Some((last_dim, last_steps)) = kept.last_mut()
            && last_steps.iter().zip(&steps).all(|(outer, inner)| *outer == *inner * *dim as isize)
        {
            *last_dim *= dim;
            *last_steps = steps;
        } else {
            kept.push((*dim, steps));
        }
    }
    let dims = kept.iter().map(|(dim, _)| *dim as u32).collect();
    let of = |operand: usize| kept.iter().map(|(_, steps)| steps[operand] as i32 as u32).collect();
    (dims, (0..strides.len()).map(of).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_where_all_operands_allow_it() {
        let (dims, strides) = collapsed(&[2, 1, 3, 4], &[&[12, 12, 4, 1], &[4, 9, 0, 1]]);
        assert_eq!(dims, [2, 3, 4]);
        assert_eq!(strides, [vec![12, 4, 1], vec![4, 0, 1]]);
        let (dims, strides) = collapsed(&[2, 1, 3, 4], &[&[12, 12, 4, 1], &[0, 0, 0, 0]]);
        assert_eq!((dims, strides), (vec![24], vec![vec![1], vec![0]]));
        assert_eq!(collapsed(&[1, 1], &[&[5, 5]]), (vec![], vec![vec![]]));
    }
}
