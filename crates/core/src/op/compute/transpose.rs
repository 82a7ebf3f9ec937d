//! Transpose: reorders the axes and writes the result contiguously.

use crate::error::Result;
use crate::op::{AnswerTypes, Describe};
use crate::shape::{RANK_MAX, Shape};
use crate::tensor::Tensor;

/// Writes the input with its axes in another order as a new contiguous tensor, for every element
/// type. [`Tensor::permute`] gives the same as a view, without moving data.
#[derive(Clone, Debug)]
pub struct Transpose {
    /// The tensor to transpose.
    pub input: Tensor,
    order: [u8; RANK_MAX],
    order_len: u8,
}

impl Transpose {
    /// Reverses all axes, as numpy's `.T`.
    pub fn new(input: &Tensor) -> Transpose {
        let order: Vec<usize> = (0..input.shape().rank()).rev().collect();
        Transpose::with_order(input, &order)
    }

    /// Reorders the axes: `order[i]` is the old axis that becomes axis `i`.
    pub fn with_order(input: &Tensor, order: &[usize]) -> Transpose {
        let mut stored = [u8::MAX; RANK_MAX];
        for (slot, axis) in stored.iter_mut().zip(order) {
            *slot = u8::try_from(*axis).unwrap_or(u8::MAX);
        }
        Transpose { input: input.clone(), order: stored, order_len: u8::try_from(order.len()).unwrap_or(u8::MAX) }
    }

    /// The input axis of each output axis.
    pub fn order(&self) -> Vec<usize> {
        self.order.iter().take(usize::from(self.order_len)).map(|axis| usize::from(*axis)).collect()
    }

    /// The input as a view in the requested order. Fails if the order is not a permutation.
    pub fn view(&self) -> Result<Tensor> {
        self.input.permute(&self.order())
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let (shape, order) = (self.input.shape(), &self.order[..usize::from(self.order_len).min(RANK_MAX)]);
        let (mut dims, mut seen) = ([0; RANK_MAX], 0_u32);
        for (dim, axis) in dims.iter_mut().zip(order) {
            *dim = shape.get(usize::from(*axis)).copied().unwrap_or_default();
            seen |= 1_u32.checked_shl(u32::from(*axis)).unwrap_or_default();
        }
        let is_permutation = usize::from(self.order_len) == shape.rank() && seen == (1 << shape.rank()) - 1;
        // If the order is not a permutation, the view reports the error.
        if is_permutation { Shape::new(&dims[..shape.rank()]) } else { Ok(*self.view()?.shape()) }
    }
}

impl Describe for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn validate(&self) -> Result<()> {
        self.view().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()?))
    }
}
