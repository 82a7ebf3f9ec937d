//! Operands: views of blocks, as ops see tensors while they record.

use std::rc::Rc;

use panoply_core::shape::Strides;
use panoply_core::{DType, Result, Shape};

use crate::memory::{Block, BlockLease};

/// A view of elements in a block. The block is lent for as long as a view of it exists.
#[derive(Clone)]
pub(crate) struct Operand {
    pub(crate) block: Rc<BlockLease>,
    pub(crate) dtype: DType,
    pub(crate) shape: Shape,
    pub(crate) strides: Strides,
    /// The index of the first element.
    pub(crate) offset: usize,
}

impl Operand {
    /// A contiguous view from the block's start.
    pub(crate) fn whole(block: Rc<BlockLease>, dtype: DType, shape: Shape) -> Operand {
        Operand { block, dtype, strides: shape.contiguous_strides(), shape, offset: 0 }
    }

    /// The block.
    pub(crate) fn block(&self) -> &Block {
        &self.block.block
    }

    /// How many elements there are.
    pub(crate) fn elements(&self) -> usize {
        self.shape.elements()
    }

    /// Whether the elements lie one after the other.
    pub(crate) fn is_contiguous(&self) -> bool {
        let mut step = 1;
        self.elements() == 0
            || self.shape.iter().zip(self.strides.iter()).rev().all(|(dim, stride)| {
                let fits = *dim == 1 || *stride == step;
                step *= *dim as isize;
                fits
            })
    }

    /// The offset as a kernel's parameter.
    pub(crate) fn start(&self) -> u32 {
        self.offset as u32
    }

    /// The same elements seen with another shape; they must be contiguous and as many.
    pub(crate) fn reshaped(&self, shape: Shape) -> Operand {
        Operand { shape, strides: shape.contiguous_strides(), ..self.clone() }
    }

    /// The same contiguous bits seen as another type of the same size.
    pub(crate) fn retyped(&self, dtype: DType) -> Operand {
        Operand { dtype, ..self.clone() }
    }

    /// The axes in another order.
    pub(crate) fn permuted(&self, order: &[usize]) -> Result<Operand> {
        let dims: Vec<usize> = order.iter().map(|axis| self.shape[*axis]).collect();
        let steps: Vec<isize> = order.iter().map(|axis| self.strides[*axis]).collect();
        Ok(Operand { shape: Shape::new(dims)?, strides: Strides::new(steps)?, ..self.clone() })
    }
}

/// Dimensions with the strides of several operands, with ones dropped and neighbours joined where all operands allow it.
/// Returns dimensions, then for each operand its strides.
pub(crate) fn collapsed(dims: &[usize], strides: &[&[isize]]) -> (Vec<u32>, Vec<Vec<u32>>) {
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
