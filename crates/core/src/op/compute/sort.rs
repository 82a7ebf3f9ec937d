//! Sort, ArgSort and SortPairs: elements in order along one axis, the positions that put them in order, and values that
//! follow their keys.
//!
//! The order is total: NaN is larger than every number, so that it comes last in rising order and first in falling
//! order; -0 and +0 are equal, and so are all NaNs. Defined for every element type but complex64.

use super::axis::{check_axis, check_positions};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::Describe;
use crate::part::{PartMut, PartRef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Sorts along the last axis, or that of [`Sort::axis`], in rising order, or falling with [`Sort::descending`].
///
/// Equal elements cannot be told apart but by the sign of a zero and the bits of a NaN: with [`Sort::stable`] these keep
/// their order, without it they may come out in any, and any NaN as any other.
#[derive(Clone, Debug)]
pub struct Sort {
    /// The tensor to sort, of at least one dimension.
    pub input: Tensor,
    /// The axis to sort along.
    pub axis: usize,
    /// Whether the largest element comes first.
    pub falls: bool,
    /// Whether equal elements keep their order.
    pub is_stable: bool,
}

/// The positions, as `u32`, of the elements in sorted order along an axis. Always stable: equal elements, zeros of
/// either sign and NaNs among themselves, keep their order, in falling order too.
#[derive(Clone, Debug)]
pub struct ArgSort {
    /// The tensor to sort, of at least one dimension.
    pub input: Tensor,
    /// The axis to sort along.
    pub axis: usize,
    /// Whether the largest element comes first.
    pub falls: bool,
}

/// Sorts keys along an axis and moves values, of any element type and the same shape, along with them. Always stable.
#[derive(Clone, Debug)]
pub struct SortPairs {
    /// What decides the order, of at least one dimension.
    pub keys: Tensor,
    /// What follows the keys.
    pub values: Tensor,
    /// The axis to sort along.
    pub axis: usize,
    /// Whether the largest key comes first.
    pub falls: bool,
}

fn last_axis(tensor: &Tensor) -> usize {
    tensor.shape().rank().saturating_sub(1)
}

impl Sort {
    /// Rising order along the last axis.
    pub fn new(input: &Tensor) -> Sort {
        Sort { input: input.clone(), axis: last_axis(input), falls: false, is_stable: false }
    }

    /// Along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> Sort {
        self.axis = axis;
        self
    }

    /// The largest element first.
    pub fn descending(mut self) -> Sort {
        self.falls = true;
        self
    }

    /// Equal elements keep their order and every element its bits.
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
    /// Rising order along the last axis.
    pub fn new(input: &Tensor) -> ArgSort {
        ArgSort { input: input.clone(), axis: last_axis(input), falls: false }
    }

    /// Along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> ArgSort {
        self.axis = axis;
        self
    }

    /// The position of the largest element first.
    pub fn descending(mut self) -> ArgSort {
        self.falls = true;
        self
    }

    /// The output's shape: the input's.
    pub fn output_shape(&self) -> Shape {
        *self.input.shape()
    }
}

impl SortPairs {
    /// Rising order of the keys along the last axis.
    pub fn new(keys: &Tensor, values: &Tensor) -> SortPairs {
        SortPairs { keys: keys.clone(), values: values.clone(), axis: last_axis(keys), falls: false }
    }

    /// Along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> SortPairs {
        self.axis = axis;
        self
    }

    /// The largest key first.
    pub fn descending(mut self) -> SortPairs {
        self.falls = true;
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

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
    }
}

impl Describe for ArgSort {
    fn name(&self) -> &'static str {
        "argsort"
    }

    fn validate(&self) -> Result<()> {
        check(&self.input, self.axis)
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
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

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.keys).into());
        visit((&self.values).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.keys).into());
        visit((&mut self.values).into());
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
