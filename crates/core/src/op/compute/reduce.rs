//! Reduce: combines many elements into one, along any set of axes.

use super::axis::check_positions;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::{RANK_MAX, Shape};
use crate::tensor::Tensor;

/// The function of a [`Reduce`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    /// The sum. 16-bit floats are added in f32 or better and rounded once. Integers wrap in their
    /// own type. The sum of no elements is zero.
    Sum,
    /// The mean: f32 for integers, which are added exactly, otherwise the input's type. The mean of
    /// no elements is NaN.
    Mean,
    /// The largest element, or NaN if there is one.
    Max,
    /// The smallest element, or NaN if there is one.
    Min,
    /// The index of the largest element as `u32`. Of several, the first. If there is a NaN, the
    /// index of the first NaN.
    ArgMax,
    /// The index of the smallest element as `u32`. Of several, the first. If there is a NaN, the
    /// index of the first NaN.
    ArgMin,
}

impl Reduction {
    /// Every reduction.
    pub const ALL: [Reduction; 6] =
        [Reduction::Sum, Reduction::Mean, Reduction::Max, Reduction::Min, Reduction::ArgMax, Reduction::ArgMin];

    /// The name in messages and benchmarks.
    pub const fn name(self) -> &'static str {
        match self {
            Reduction::Sum => "sum",
            Reduction::Mean => "mean",
            Reduction::Max => "max",
            Reduction::Min => "min",
            Reduction::ArgMax => "argmax",
            Reduction::ArgMin => "argmin",
        }
    }

    /// The reduction of an empty set, for errors.
    pub(super) const fn of_no_elements(self) -> &'static str {
        match self {
            Reduction::Sum => "reduce: the sum of no elements",
            Reduction::Mean => "reduce: the mean of no elements",
            Reduction::Max => "reduce: the maximum of no elements",
            Reduction::Min => "reduce: the minimum of no elements",
            Reduction::ArgMax => "reduce: the index of the maximum of no elements",
            Reduction::ArgMin => "reduce: the index of the minimum of no elements",
        }
    }

    /// The output's element type for this input type.
    pub const fn output_dtype(self, input: DType) -> DType {
        match self {
            Reduction::ArgMax | Reduction::ArgMin => DType::U32,
            Reduction::Mean if input.is_integer() => DType::F32,
            _ => input,
        }
    }
}

/// Reduces a tensor along all axes, or along the axes of [`Reduce::axes`]. Reduced axes disappear
/// from the shape unless [`Reduce::keep_dims`] keeps them with length one.
///
/// Defined for every element type. Complex numbers have no order, so only their sum and mean exist.
/// An index counts the reduced elements in row-major order. [`Reduction::Max`], [`Reduction::Min`]
/// and the indices of an empty set are an error, unless the output is empty too. Sums are the same
/// for every run on one device. Different devices may round differently.
#[derive(Clone, Debug)]
pub struct Reduce {
    /// The tensor to reduce.
    pub input: Tensor,
    /// The function to compute.
    pub reduction: Reduction,
    /// Whether reduced axes are kept, with length one.
    pub keeps_dims: bool,
    /// The reduced axes. `None`: all axes.
    axes: Option<([u8; RANK_MAX], u8)>,
}

impl Reduce {
    /// Reduces along all axes.
    pub fn new(input: &Tensor, reduction: Reduction) -> Reduce {
        Reduce { input: input.clone(), reduction, keeps_dims: false, axes: None }
    }

    /// The sum of all elements.
    pub fn sum(input: &Tensor) -> Reduce {
        Reduce::new(input, Reduction::Sum)
    }

    /// The mean of all elements.
    pub fn mean(input: &Tensor) -> Reduce {
        Reduce::new(input, Reduction::Mean)
    }

    /// The largest element.
    pub fn max(input: &Tensor) -> Reduce {
        Reduce::new(input, Reduction::Max)
    }

    /// The smallest element.
    pub fn min(input: &Tensor) -> Reduce {
        Reduce::new(input, Reduction::Min)
    }

    /// The index of the largest element.
    pub fn arg_max(input: &Tensor) -> Reduce {
        Reduce::new(input, Reduction::ArgMax)
    }

    /// The index of the smallest element.
    pub fn arg_min(input: &Tensor) -> Reduce {
        Reduce::new(input, Reduction::ArgMin)
    }

    /// Reduces along these axes only, each named once, in any order. With no axes, every element is
    /// reduced by itself.
    pub fn axes(mut self, axes: &[usize]) -> Reduce {
        let mut stored = [u8::MAX; RANK_MAX];
        for (slot, axis) in stored.iter_mut().zip(axes) {
            *slot = u8::try_from(*axis).unwrap_or(u8::MAX);
        }
        self.axes = Some((stored, u8::try_from(axes.len()).unwrap_or(u8::MAX)));
        self
    }

    /// Keeps the reduced axes, with length one.
    pub fn keep_dims(mut self) -> Reduce {
        self.keeps_dims = true;
        self
    }

    /// The axes that were given to [`Reduce::axes`]. `None` if all axes are reduced.
    pub fn named_axes(&self) -> Option<Vec<usize>> {
        let (axes, count) = self.axes.as_ref()?;
        Some(axes.iter().take(usize::from(*count)).map(|axis| usize::from(*axis)).collect())
    }

    /// Whether each axis of the input is reduced. Fails if an axis does not exist or is named
    /// twice.
    pub fn reduced(&self) -> Result<Vec<bool>> {
        let rank = self.input.shape().rank();
        let Some((axes, count)) = self.axes else {
            return Ok(vec![true; rank]);
        };
        if usize::from(count) > rank {
            let expected = format!("at most {rank}, each axis once");
            return Err(Error::invalid("reduce: axes", expected, count));
        }
        let mut reduced = vec![false; rank];
        for axis in axes.into_iter().take(usize::from(count)).map(usize::from) {
            match reduced.get_mut(axis) {
                None => {
                    let limit = rank.saturating_sub(1);
                    return Err(Error::OutOfBounds { what: "reduce: axis", limit, got: axis });
                }
                Some(true) => return Err(Error::invalid("reduce: axes", "each axis once", format!("{axis} twice"))),
                Some(axis) => *axis = true,
            }
        }
        Ok(reduced)
    }

    /// Number of elements that are combined into one.
    pub fn count(&self) -> Result<usize> {
        let reduced = self.reduced()?;
        let dims = self.input.shape().iter().zip(&reduced).filter(|(_, reduced)| **reduced);
        Ok(dims.map(|(dim, _)| *dim).product())
    }

    /// The output's element type.
    pub fn output_dtype(&self) -> DType {
        self.reduction.output_dtype(self.input.dtype())
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let reduced = self.reduced()?;
        let dims = self.input.shape().iter().zip(&reduced);
        let kept = dims.filter_map(|(dim, reduced)| if *reduced { self.keeps_dims.then_some(1) } else { Some(*dim) });
        Shape::new(kept.collect::<Vec<usize>>())
    }
}

impl Describe for Reduce {
    fn name(&self) -> &'static str {
        "reduce"
    }

    fn validate(&self) -> Result<()> {
        let shape = self.output_shape()?;
        if matches!(self.reduction, Reduction::Sum | Reduction::Mean) {
            return Ok(());
        }
        if self.input.dtype() == DType::Complex64 {
            let expected = "f32, f16, bf16, f64, i32, u32, i8 or u8";
            return Err(Error::DTypeUnsupported { what: "reduce: an order", expected, got: DType::Complex64 });
        }
        let count = self.count()?;
        if count == 0 && shape.elements() > 0 {
            let expected = "at least one element along the reduced axes";
            let got = format!("the shape {:?}", self.input.shape().dims());
            return Err(Error::invalid(self.reduction.of_no_elements(), expected, got));
        }
        match self.reduction {
            Reduction::ArgMax | Reduction::ArgMin => check_positions(count, "reduce: elements for a position"),
            _ => Ok(()),
        }
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.output_dtype(), self.output_shape()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dims: &[usize]) -> Tensor {
        Tensor::zeros(DType::F32, dims).unwrap()
    }

    #[test]
    fn shapes_and_types() {
        let input = tensor(&[2, 3, 4]);
        let dims = |op: Reduce| op.output_shape().unwrap().to_vec();
        assert_eq!(dims(Reduce::sum(&input)), [0_usize; 0]);
        assert_eq!(dims(Reduce::sum(&input).keep_dims()), [1, 1, 1]);
        assert_eq!(dims(Reduce::sum(&input).axes(&[2, 0])), [3]);
        assert_eq!(dims(Reduce::sum(&input).axes(&[1]).keep_dims()), [2, 1, 4]);
        assert_eq!(dims(Reduce::sum(&input).axes(&[])), [2, 3, 4]);
        assert_eq!(Reduce::arg_max(&input).output_dtype(), DType::U32);
        assert_eq!(Reduction::Mean.output_dtype(DType::I8), DType::F32);
        assert_eq!(Reduction::Mean.output_dtype(DType::F16), DType::F16);
    }

    #[test]
    fn axes_must_exist_and_differ() {
        let input = tensor(&[2, 3]);
        let error = Reduce::sum(&input).axes(&[2]).validate().unwrap_err();
        assert_eq!(error, Error::OutOfBounds { what: "reduce: axis", limit: 1, got: 2 });
        assert!(Reduce::sum(&input).axes(&[usize::MAX]).validate().is_err());
        assert!(Reduce::sum(&input).axes(&[0; 300]).validate().is_err());
        assert!(matches!(Reduce::sum(&input).axes(&[1, 1]).validate(), Err(Error::InvalidArgument { .. })));
    }

    #[test]
    fn nothing_has_a_sum_but_no_maximum() {
        let empty = tensor(&[2, 0]);
        assert!(Reduce::sum(&empty).validate().is_ok() && Reduce::mean(&empty).validate().is_ok());
        assert!(matches!(Reduce::max(&empty).validate(), Err(Error::InvalidArgument { .. })));
        assert!(matches!(Reduce::arg_min(&empty).axes(&[1]).validate(), Err(Error::InvalidArgument { .. })));
        let text = |op: Reduce| op.axes(&[1]).validate().unwrap_err().to_string();
        let told = "expected at least one element along the reduced axes, got the shape [2, 0]";
        assert_eq!(text(Reduce::max(&empty)), format!("reduce: the maximum of no elements: {told}"));
        assert_eq!(text(Reduce::min(&empty)), format!("reduce: the minimum of no elements: {told}"));
        assert_eq!(text(Reduce::arg_max(&empty)), format!("reduce: the index of the maximum of no elements: {told}"));
        assert!(Reduce::max(&empty).axes(&[0]).validate().is_ok());
        let complex = Tensor::zeros(DType::Complex64, [3]).unwrap();
        assert!(Reduce::mean(&complex).validate().is_ok());
        assert!(matches!(Reduce::min(&complex).validate(), Err(Error::DTypeUnsupported { .. })));
    }
}
