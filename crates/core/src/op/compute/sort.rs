//! Sort, ArgSort and SortPairs: sorted elements along one axis, the indices that sort them, and
//! values sorted by their keys.
//!
//! The order is total. NaN is larger than every number, so it comes last in ascending order and
//! first in descending order. -0 and +0 are equal, and so are all NaNs. Defined for every element
//! type but complex64.

use super::axis::{check_axis, check_positions};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Sorts along the last axis, or along the axis of [`Sort::axis`], in ascending order, or in
/// descending order with [`Sort::descending`].
///
/// Equal elements differ at most in the sign of a zero or the bits of a NaN. With [`Sort::stable`]
/// they keep their order. Without it they may come out in any order, and a NaN may come out as any
/// other NaN.
#[derive(Clone, Debug)]
pub struct Sort {
    /// The tensor to sort, of at least one dimension.
    pub input: Tensor,
    /// The axis to sort along.
    pub axis: usize,
    /// Whether the order is descending: the largest element comes first.
    pub descending: bool,
    /// Whether equal elements keep their order.
    pub is_stable: bool,
}

/// The indices, as `u32`, of the elements in sorted order along an axis. Always stable, also in
/// descending order: equal elements, including zeros of either sign and NaNs, keep their order.
#[derive(Clone, Debug)]
pub struct ArgSort {
    /// The tensor to sort, of at least one dimension.
    pub input: Tensor,
    /// The axis to sort along.
    pub axis: usize,
    /// Whether the order is descending: the largest element comes first.
    pub descending: bool,
}

/// Sorts keys along an axis and reorders values, of any element type and the same shape, in the
/// same way. Always stable.
#[derive(Clone, Debug)]
pub struct SortPairs {
    /// The keys that determine the order, of at least one dimension.
    pub keys: Tensor,
    /// The values that are reordered with the keys.
    pub values: Tensor,
    /// The axis to sort along.
    pub axis: usize,
    /// Whether the order is descending: the largest key comes first.
    pub descending: bool,
}

fn last_axis(tensor: &Tensor) -> usize {
    tensor.shape().rank().saturating_sub(1)
}

impl Sort {
    /// Ascending order along the last axis.
    pub fn new(input: &Tensor) -> Sort {
        Sort { input: input.clone(), axis: last_axis(input), descending: false, is_stable: false }
    }

    /// Sorts along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> Sort {
        self.axis = axis;
        self
    }

    /// Sorts in descending order: the largest element first.
    pub fn descending(mut self) -> Sort {
        self.descending = true;
        self
    }

    /// Keeps the order of equal elements, and the bits of every element.
    pub fn stable(mut self) -> Sort {
        self.is_stable = true;
        self
    }

    /// The output's shape: the input's.
    pub fn output_shape(&self) -> Shape {
        *self.input.shape()
    }
}

impl ArgSort {
    /// Ascending order along the last axis.
    pub fn new(input: &Tensor) -> ArgSort {
        ArgSort { input: input.clone(), axis: last_axis(input), descending: false }
    }

    /// Sorts along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> ArgSort {
        self.axis = axis;
        self
    }

    /// Sorts in descending order: the index of the largest element first.
    pub fn descending(mut self) -> ArgSort {
        self.descending = true;
        self
    }

    /// The output's shape: the input's.
    pub fn output_shape(&self) -> Shape {
        *self.input.shape()
    }
}

impl SortPairs {
    /// Ascending order of the keys along the last axis.
    pub fn new(keys: &Tensor, values: &Tensor) -> SortPairs {
        SortPairs { keys: keys.clone(), values: values.clone(), axis: last_axis(keys), descending: false }
    }

    /// Sorts along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> SortPairs {
        self.axis = axis;
        self
    }

    /// Sorts in descending order: the largest key first.
    pub fn descending(mut self) -> SortPairs {
        self.descending = true;
        self
    }
}

fn check(keys: &Tensor, axis: usize) -> Result<()> {
    if keys.dtype() == DType::Complex64 {
        let expected = "f32, f16, bf16, f64, i32, u32, i8 or u8";
        return Err(Error::DTypeUnsupported { what: "sort", expected, got: DType::Complex64 });
    }
    check_axis(keys.shape(), axis, "sort: input", "sort: axis")?;
    check_positions(keys.shape()[axis], "sort: length of the axis")
}

impl Describe for Sort {
    fn name(&self) -> &'static str {
        "sort"
    }

    fn validate(&self) -> Result<()> {
        check(&self.input, self.axis)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()))
    }
}

impl Describe for ArgSort {
    fn name(&self) -> &'static str {
        "argsort"
    }

    fn validate(&self) -> Result<()> {
        check(&self.input, self.axis)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(DType::U32, self.output_shape()))
    }
}

impl Describe for SortPairs {
    fn name(&self) -> &'static str {
        "sort_pairs"
    }

    fn validate(&self) -> Result<()> {
        if self.values.shape() != self.keys.shape() {
            let (expected, got) = (self.keys.shape().to_vec(), self.values.shape().to_vec());
            return Err(Error::ShapeMismatch { what: "sort: values", expected, got });
        }
        check(&self.keys, self.axis)
    }

    crate::parts!(keys, values);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        let of = |tensor: &Tensor| (tensor.dtype(), *tensor.shape());
        Ok(AnswerTypes::Pair([of(&self.keys), of(&self.values)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_shapes_and_types_are_checked() {
        let input = Tensor::zeros(DType::F16, [2, 3]).unwrap();
        assert!(Sort::new(&input).descending().stable().validate().is_ok());
        let error = ArgSort::new(&input).axis(2).validate().unwrap_err();
        assert_eq!(error, Error::OutOfBounds { what: "sort: axis", limit: 1, got: 2 });
        let scalar = Tensor::zeros(DType::F32, []).unwrap();
        assert!(matches!(Sort::new(&scalar).validate(), Err(Error::RankMismatch { .. })));
        let complex = Tensor::zeros(DType::Complex64, [2, 3]).unwrap();
        assert!(matches!(Sort::new(&complex).validate(), Err(Error::DTypeUnsupported { .. })));
        assert!(SortPairs::new(&input, &complex).validate().is_ok());
        let other = Tensor::zeros(DType::U8, [3, 2]).unwrap();
        assert!(matches!(SortPairs::new(&input, &other).validate(), Err(Error::ShapeMismatch { .. })));
    }
}
