//! TopK: the k largest or smallest elements along one axis, in order.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The `k` largest elements along an axis, the largest first, with their indices along that axis as
/// `u32`. With [`TopK::smallest`], the `k` smallest elements, the smallest first. The axis is the
/// last, or that of [`TopK::axis`].
///
/// Defined for f32, f16, bf16, f64, i32, u32, i8 and u8. NaN is larger than every number, so it
/// comes first among the largest and last among the smallest. Among equal elements, such as -0 and
/// +0 or two NaNs, the smaller index wins. The values have the bits of the input. A `k` of zero
/// gives empty outputs. A `k` above the axis' length is an error.
#[derive(Clone, Debug)]
pub struct TopK {
    /// The tensor to choose from, of at least one dimension.
    pub input: Tensor,
    /// Number of elements to choose.
    pub k: usize,
    /// The axis to choose along.
    pub axis: usize,
    /// Whether the largest elements are chosen, rather than the smallest.
    pub largest: bool,
}

impl TopK {
    /// The `k` largest elements along the last axis.
    pub fn new(input: &Tensor, k: usize) -> TopK {
        TopK { input: input.clone(), k, axis: input.shape().rank().saturating_sub(1), largest: true }
    }

    /// Chooses along this axis instead of the last.
    pub fn axis(mut self, axis: usize) -> TopK {
        self.axis = axis;
        self
    }

    /// Chooses the smallest elements instead of the largest.
    pub fn smallest(mut self) -> TopK {
        self.largest = false;
        self
    }

    /// The shape of the values and of the indices: the input's, with `k` along the axis.
    pub fn output_shape(&self) -> Result<Shape> {
        let shape = self.input.shape();
        if shape.rank() == 0 {
            return Err(Error::RankMismatch { what: "topk: input", expected: "at least 1".into(), got: 0 });
        }
        let Some(len) = shape.get(self.axis) else {
            return Err(Error::OutOfBounds { what: "topk: axis", limit: shape.rank() - 1, got: self.axis });
        };
        if u32::try_from(*len).is_err() {
            let limit = u32::MAX as usize;
            return Err(Error::OutOfBounds { what: "topk: length of the axis", limit, got: *len });
        }
        if self.k > *len {
            return Err(Error::OutOfBounds { what: "topk: k", limit: *len, got: self.k });
        }
        shape.with_dim(self.axis, self.k)
    }
}

impl Describe for TopK {
    fn name(&self) -> &'static str {
        "topk"
    }

    fn validate(&self) -> Result<()> {
        if self.input.dtype() == DType::Complex64 {
            let expected = "f32, f16, bf16, f64, i32, u32, i8 or u8";
            return Err(Error::DTypeUnsupported { what: "topk", expected, got: DType::Complex64 });
        }
        self.output_shape().map(drop)
    }

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        let shape = self.output_shape()?;
        Ok(AnswerTypes::Pair([(self.input.dtype(), shape), (DType::U32, shape)]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::Complex64;

    #[test]
    fn shapes_and_their_errors() {
        let input = Tensor::from_vec(vec![1_i32; 12], [3, 4]).unwrap();
        assert_eq!(TopK::new(&input, 2).output_shape().unwrap().dims(), [3, 2]);
        assert_eq!(TopK::new(&input, 0).axis(0).output_shape().unwrap().dims(), [0, 4]);
        let error = TopK::new(&input, 5).validate().unwrap_err();
        assert_eq!(error, Error::OutOfBounds { what: "topk: k", limit: 4, got: 5 });
        let error = TopK::new(&input, 1).axis(2).validate().unwrap_err();
        assert_eq!(error, Error::OutOfBounds { what: "topk: axis", limit: 1, got: 2 });
        let scalar = Tensor::from_vec(vec![1_i32], []).unwrap();
        assert!(matches!(TopK::new(&scalar, 1).validate(), Err(Error::RankMismatch { .. })));
        let complex = Tensor::from_vec(vec![Complex64::new(1.0, 2.0)], [1]).unwrap();
        assert!(matches!(TopK::new(&complex, 1).validate(), Err(Error::DTypeUnsupported { .. })));
    }
}
