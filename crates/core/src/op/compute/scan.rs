//! Scan: running sums, products, maxima and minima along one axis.

use super::axis::check_axis;
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The accumulated function of a [`Scan`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ScanKind {
    /// The running sum. Floats are accumulated in their own type or better; integers wrap.
    Sum,
    /// The running product. Floats are accumulated in their own type or better; integers wrap.
    Product,
    /// The running maximum. NaN from the first NaN on.
    Max,
    /// The running minimum. NaN from the first NaN on.
    Min,
}

impl ScanKind {
    /// Every kind.
    pub const ALL: [ScanKind; 4] = [ScanKind::Sum, ScanKind::Product, ScanKind::Max, ScanKind::Min];

    /// The name in messages and benchmarks.
    pub const fn name(self) -> &'static str {
        match self {
            ScanKind::Sum => "sum",
            ScanKind::Product => "product",
            ScanKind::Max => "max",
            ScanKind::Min => "min",
        }
    }
}

/// Writes at each index the accumulated value of the elements up to it, along the last axis or the
/// axis of [`Scan::axis`]. The element at the index itself is included, or excluded with
/// [`Scan::exclusive`]. The scan begins at the first element, or at the last with
/// [`Scan::reverse`].
///
/// Defined for every element type but complex64. The output has the input's shape and type. An
/// exclusive scan starts with the neutral element: 0, 1, or the lowest or highest value of the type
/// (an infinity for floats).
#[derive(Clone, Debug)]
pub struct Scan {
    /// The tensor to scan, of at least one dimension.
    pub input: Tensor,
    /// The accumulated function.
    pub kind: ScanKind,
    /// The axis to scan along.
    pub axis: usize,
    /// Whether the scan starts at the last element.
    pub reversed: bool,
    /// Whether each output excludes the element at its own index.
    pub excludes_own: bool,
}

impl Scan {
    /// An inclusive, forward scan along the last axis.
    pub fn new(input: &Tensor, kind: ScanKind) -> Scan {
        let axis = input.shape().rank().saturating_sub(1);
        Scan { input: input.clone(), kind, axis, reversed: false, excludes_own: false }
    }

    /// The running sum along the last axis.
    pub fn sum(input: &Tensor) -> Scan {
        Scan::new(input, ScanKind::Sum)
    }

    /// Scans along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> Scan {
        self.axis = axis;
        self
    }

    /// Scans from the last element to the first.
    pub fn reverse(mut self) -> Scan {
        self.reversed = true;
        self
    }

    /// Excludes the element at each output's own index.
    pub fn exclusive(mut self) -> Scan {
        self.excludes_own = true;
        self
    }

    /// The output's shape: the input's.
    pub fn output_shape(&self) -> Shape {
        *self.input.shape()
    }
}

impl Describe for Scan {
    fn name(&self) -> &'static str {
        "scan"
    }

    fn validate(&self) -> Result<()> {
        if self.input.dtype() == DType::Complex64 {
            let expected = "f32, f16, bf16, f64, i32, u32, i8 or u8";
            return Err(Error::DTypeUnsupported { what: "scan", expected, got: DType::Complex64 });
        }
        check_axis(self.input.shape(), self.axis, "scan: input", "scan: axis")
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_and_types_are_checked() {
        let input = Tensor::zeros(DType::I8, [2, 3]).unwrap();
        assert!(Scan::sum(&input).reverse().exclusive().validate().is_ok());
        let error = Scan::sum(&input).axis(2).validate().unwrap_err();
        assert_eq!(error, Error::OutOfBounds { what: "scan: axis", limit: 1, got: 2 });
        let scalar = Tensor::zeros(DType::F32, []).unwrap();
        assert!(matches!(Scan::sum(&scalar).validate(), Err(Error::RankMismatch { .. })));
        let complex = Tensor::zeros(DType::Complex64, [3]).unwrap();
        assert!(matches!(Scan::sum(&complex).validate(), Err(Error::DTypeUnsupported { .. })));
    }
}
