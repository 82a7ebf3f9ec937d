//! Shapes and strides: the arrangement of a tensor's elements. Making a shape checks the product of
//! its dimensions, so later code may multiply dimensions without overflow checks.

use std::fmt;
use std::ops::Deref;

use crate::error::{Error, Result};

/// The most dimensions a tensor can have.
pub const RANK_MAX: usize = 8;

/// The largest tensor, in bytes: the limit of one allocation.
pub const TENSOR_BYTES_MAX: usize = isize::MAX as usize;

/// The dimensions of a tensor, outermost first. A shape of rank zero has a single element. The
/// product of the non-zero dimensions, times the size of the widest element, fits in an `isize`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    dims: [usize; RANK_MAX],
    rank: u8,
}

impl Shape {
    /// Makes a shape. Fails for more than [`RANK_MAX`] dimensions, or if the size overflows.
    pub fn new(dims: impl AsRef<[usize]>) -> Result<Shape> {
        let dims = dims.as_ref();
        if dims.len() > RANK_MAX {
            let expected = format!("at most {RANK_MAX}").into();
            return Err(Error::RankMismatch { what: "shape", expected, got: dims.len() });
        }
        let widest_bytes = 8_usize;
        let product = dims.iter().filter(|dim| **dim != 0).try_fold(widest_bytes, |sum, dim| sum.checked_mul(*dim));
        match product {
            Some(bytes) if bytes <= TENSOR_BYTES_MAX => {}
            _ => return Err(Error::SizeOverflow { what: "shape", got: dims.to_vec(), limit: TENSOR_BYTES_MAX }),
        }
        let mut stored = [0; RANK_MAX];
        stored[..dims.len()].copy_from_slice(dims);
        Ok(Shape { dims: stored, rank: dims.len() as u8 })
    }

    /// The shape of a single element.
    pub const fn scalar() -> Shape {
        Shape { dims: [0; RANK_MAX], rank: 0 }
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..usize::from(self.rank)]
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        usize::from(self.rank)
    }

    /// Number of elements: the product of the dimensions.
    pub fn elements(&self) -> usize {
        self.dims().iter().product()
    }

    /// The strides of a row-major layout without gaps.
    pub fn contiguous_strides(&self) -> Strides {
        let mut strides = Strides { steps: [0; RANK_MAX], rank: self.rank };
        let mut step = 1_isize;
        for axis in (0..self.rank()).rev() {
            strides.steps[axis] = step;
            step *= self.dims[axis].max(1) as isize;
        }
        strides
    }

    /// Broadcasts two shapes against each other, as numpy does. They are aligned at the last
    /// dimension, and dimensions of one are stretched.
    pub fn broadcast(&self, other: &Shape) -> Result<Shape> {
        let rank = self.rank().max(other.rank());
        let mut dims = [0; RANK_MAX];
        for back in 1..=rank {
            let pick = |shape: &Shape| if back <= shape.rank() { shape[shape.rank() - back] } else { 1 };
            dims[rank - back] = match (pick(self), pick(other)) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => {
                    let (expected, got) = (self.to_vec(), other.to_vec());
                    return Err(Error::ShapeMismatch { what: "broadcast", expected, got });
                }
            };
        }
        Shape::new(&dims[..rank])
    }

    /// Appends dimensions after the last one of this shape.
    pub fn joined(&self, more: &[usize]) -> Result<Shape> {
        let (rank, both) = (self.rank(), self.rank() + more.len());
        let mut dims = [0; RANK_MAX];
        let Some(joined) = dims.get_mut(..both) else {
            return Err(Error::RankMismatch {
                what: "shape",
                expected: format!("at most {RANK_MAX}").into(),
                got: both,
            });
        };
        joined[..rank].copy_from_slice(self.dims());
        joined[rank..].copy_from_slice(more);
        Shape::new(joined)
    }

    /// Replaces one dimension.
    pub fn with_dim(&self, axis: usize, dim: usize) -> Result<Shape> {
        let mut dims = *self;
        *dims.dims[..self.rank()].get_mut(axis).ok_or(Error::OutOfBounds {
            what: "axis",
            limit: self.rank().saturating_sub(1),
            got: axis,
        })? = dim;
        Shape::new(dims.dims())
    }
}

impl Deref for Shape {
    type Target = [usize];

    fn deref(&self) -> &[usize] {
        self.dims()
    }
}

impl AsRef<[usize]> for Shape {
    fn as_ref(&self) -> &[usize] {
        self.dims()
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.dims()).finish()
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (axis, dim) in self.dims().iter().enumerate() {
            write!(f, "{}{dim}", if axis == 0 { "" } else { "x" })?;
        }
        Ok(())
    }
}

/// Number of elements to step for the next index along each dimension. Steps may be negative or
/// zero.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strides {
    steps: [isize; RANK_MAX],
    rank: u8,
}

impl Strides {
    /// Makes strides from at most [`RANK_MAX`] steps.
    pub fn new(steps: impl AsRef<[isize]>) -> Result<Strides> {
        let steps = steps.as_ref();
        if steps.len() > RANK_MAX {
            let expected = format!("at most {RANK_MAX}").into();
            return Err(Error::RankMismatch { what: "strides", expected, got: steps.len() });
        }
        let mut stored = [0; RANK_MAX];
        stored[..steps.len()].copy_from_slice(steps);
        Ok(Strides { steps: stored, rank: steps.len() as u8 })
    }

    /// The steps, outermost first.
    pub fn steps(&self) -> &[isize] {
        &self.steps[..usize::from(self.rank)]
    }

    /// The lowest and the highest element index, relative to the first element, that a tensor of
    /// this shape touches; or that it touches none, or that the arithmetic overflows.
    pub(crate) fn reach(&self, shape: &Shape) -> Reach {
        let (mut low, mut high) = (0_isize, 0_isize);
        for (dim, step) in shape.iter().zip(self.steps()) {
            if *dim == 0 {
                return Reach::Nothing;
            }
            let Some(last) = isize::try_from(dim - 1).ok().and_then(|count| count.checked_mul(*step)) else {
                return Reach::Overflow;
            };
            let end = if last < 0 { &mut low } else { &mut high };
            match end.checked_add(last) {
                Some(sum) => *end = sum,
                None => return Reach::Overflow,
            }
        }
        Reach::Between(low, high)
    }
}

/// The result of [`Strides::reach`].
pub(crate) enum Reach {
    Nothing,
    Between(isize, isize),
    Overflow,
}

impl Deref for Strides {
    type Target = [isize];

    fn deref(&self) -> &[isize] {
        self.steps()
    }
}

impl AsRef<[isize]> for Strides {
    fn as_ref(&self) -> &[isize] {
        self.steps()
    }
}

impl fmt::Debug for Strides {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.steps()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn products_that_overflow_are_errors_even_beside_a_zero() {
        assert!(matches!(Shape::new([usize::MAX, 2]), Err(Error::SizeOverflow { .. })));
        assert!(matches!(Shape::new([0, usize::MAX, 2]), Err(Error::SizeOverflow { .. })));
        assert!(matches!(Shape::new([1 << 62]), Err(Error::SizeOverflow { .. })));
        assert!(matches!(Shape::new([1; 9]), Err(Error::RankMismatch { got: 9, .. })));
    }

    #[test]
    fn scalars_and_empty_shapes_count_right() {
        assert_eq!(Shape::scalar().elements(), 1);
        assert_eq!(Shape::new([3, 0, 2]).unwrap().elements(), 0);
        assert_eq!(Shape::new([3, 4]).unwrap().contiguous_strides().steps(), [4, 1]);
        assert_eq!(Shape::new([3, 4]).unwrap().to_string(), "3x4");
    }

    #[test]
    fn broadcasting_follows_numpy() {
        let shape = |dims: &[usize]| Shape::new(dims).unwrap();
        assert_eq!(shape(&[3, 1]).broadcast(&shape(&[1, 4])).unwrap(), shape(&[3, 4]));
        assert_eq!(shape(&[5]).broadcast(&shape(&[2, 1])).unwrap(), shape(&[2, 5]));
        assert_eq!(shape(&[]).broadcast(&shape(&[0])).unwrap(), shape(&[0]));
        assert!(matches!(shape(&[3]).broadcast(&shape(&[4])), Err(Error::ShapeMismatch { .. })));
    }

    proptest! {
        #[test]
        fn no_dimensions_panic(dims in prop::collection::vec(any::<usize>(), 0..12)) {
            if let Ok(shape) = Shape::new(&dims) {
                let _ = shape.elements();
                let _ = shape.contiguous_strides();
            }
        }
    }
}
