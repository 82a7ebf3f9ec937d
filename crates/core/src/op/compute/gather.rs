//! Gather: elements or rows picked by index.

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::op::{AnswerTypes, Describe};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Picks elements of the input along one axis, for every element type. Indices are u32 or i32. A
/// negative index counts from the end of the axis. An index out of range is the caller's error,
/// found before any output is written.
#[derive(Clone, Debug)]
pub struct Gather {
    /// The tensor to pick from.
    pub input: Tensor,
    /// The indices.
    pub indices: Tensor,
    /// The axis of the input to which the indices refer.
    pub axis: usize,
    /// Whether each output element has its own index. Otherwise each index picks a whole row.
    pub elementwise: bool,
}

impl Gather {
    /// Picks whole rows, as numpy's `take`: the axis is replaced by the dimensions of `indices`.
    pub fn new(input: &Tensor, indices: &Tensor, axis: usize) -> Gather {
        Gather { input: input.clone(), indices: indices.clone(), axis, elementwise: false }
    }

    /// Picks single elements, as numpy's `take_along_axis`: `indices` has the input's dimensions
    /// except along the axis.
    pub fn along(input: &Tensor, indices: &Tensor, axis: usize) -> Gather {
        Gather { elementwise: true, ..Gather::new(input, indices, axis) }
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let (input, indices) = (self.input.shape(), self.indices.shape());
        if self.axis >= input.rank() {
            let limit = input.rank().saturating_sub(1);
            return Err(Error::OutOfBounds { what: "gather: axis", limit, got: self.axis });
        }
        if !self.elementwise {
            return Shape::new([&input[..self.axis], &indices[..], &input[self.axis + 1..]].concat());
        }
        let expected = match indices.get(self.axis) {
            Some(count) => input.with_dim(self.axis, *count)?,
            None => *input,
        };
        if *indices != expected {
            let (expected, got) = (expected.to_vec(), indices.to_vec());
            return Err(Error::ShapeMismatch { what: "gather: indices", expected, got });
        }
        Ok(*indices)
    }
}

impl Describe for Gather {
    fn name(&self) -> &'static str {
        "gather"
    }

    fn validate(&self) -> Result<()> {
        if !matches!(self.indices.dtype(), DType::I32 | DType::U32) {
            let got = self.indices.dtype();
            return Err(Error::DTypeUnsupported { what: "gather: indices", expected: "i32 or u32", got });
        }
        self.output_shape().map(drop)
    }

    crate::parts!(input, indices);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), self.output_shape()?))
    }

    /// Number of elements picked.
    fn work(&self) -> u64 {
        self.output_shape().map_or(0, |shape| shape.elements() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_follow_numpy_and_bad_input_is_refused() {
        let input = Tensor::zeros(DType::F32, [2, 3, 5]).unwrap();
        let indices = |dims: &[usize]| Tensor::zeros(DType::I32, dims).unwrap();
        let shape = |dims: &[usize], axis| Gather::new(&input, &indices(dims), axis).output_shape();
        assert_eq!(shape(&[7, 4], 1).unwrap().dims(), [2, 7, 4, 5]);
        assert_eq!(shape(&[], 0).unwrap().dims(), [3, 5]);
        assert!(matches!(shape(&[1], 3), Err(Error::OutOfBounds { .. })));
        assert!(matches!(shape(&[1; 7], 0), Err(Error::RankMismatch { .. })));
        assert_eq!(Gather::along(&input, &indices(&[2, 9, 5]), 1).output_shape().unwrap().dims(), [2, 9, 5]);
        let along = Gather::along(&input, &indices(&[2, 9, 4]), 1).validate();
        assert!(matches!(along, Err(Error::ShapeMismatch { .. })));
        assert!(matches!(Gather::new(&input, &input, 0).validate(), Err(Error::DTypeUnsupported { .. })));
        let scalar = Tensor::scalar(1.0_f32).unwrap();
        assert!(Gather::new(&scalar, &indices(&[1]), 0).validate().is_err());
    }
}
