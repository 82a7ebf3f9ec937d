//! Parts of arrays along an axis: cut out, filled up, and concatenated. Servers join the rows of
//! many requests with these functions, and split a batch's outputs.

use crate::array::Array;
use crate::error::{Error, Result};
use crate::ops::index::{strides, view};
use crate::ops::make::padded;
use crate::ops::shape::{concat_arrays, concat_dims};

/// The part of an array from `start` on along an axis, `len` long.
pub fn cut(array: &Array, axis: usize, start: usize, len: usize) -> Result<Array> {
    let size = size_along(array, axis)?;
    if start.checked_add(len).is_none_or(|end| end > size) {
        return Err(Error::invalid(
            "a part of an array",
            format!("an end up to {size}"),
            format!("{len} from {start}"),
        ));
    }
    let (mut dims, steps) = (array.dims().to_vec(), strides(array.dims()));
    dims[axis] = len;
    view(array, &dims, start * steps[axis] as usize, &steps)
}

/// The array with zeros after its elements along an axis, so that it is `len` long there.
pub fn filled(array: &Array, axis: usize, len: usize) -> Result<Array> {
    let size = size_along(array, axis)?;
    let missing = len.checked_sub(size).and_then(|missing| i64::try_from(missing).ok());
    let missing = missing.ok_or_else(|| Error::invalid("a length", format!("at least {size}"), len))?;
    let mut after = vec![0; array.dims().len()];
    after[axis] = missing;
    padded(array, &vec![0; after.len()], &after, "constant", &[0; 16])
}

/// The arrays one after the other along an axis. They have one element type, and equal dimensions
/// except along the axis.
pub fn concat(arrays: &[&Array], axis: usize) -> Result<Array> {
    expect_axis(arrays, axis)?;
    concat_arrays(arrays, axis)
}

/// The dimensions of [`concat`]'s array. Fails if the arrays do not fit together.
pub fn concatenated_dims(arrays: &[&Array], axis: usize) -> Result<Vec<usize>> {
    expect_axis(arrays, axis)?;
    concat_dims(arrays, axis)
}

fn expect_axis(arrays: &[&Array], axis: usize) -> Result<()> {
    let first = arrays.first().ok_or_else(|| Error::invalid("arrays to concatenate", "at least one", 0))?;
    size_along(first, axis).map(drop)
}

fn size_along(array: &Array, axis: usize) -> Result<usize> {
    let size = array.dims().get(axis).copied();
    size.ok_or_else(|| Error::invalid("an axis", format!("below {}", array.dims().len()), axis))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_lie_within_their_array() {
        let array = Array::from_slice(&[1_i32, 2, 3, 4, 5, 6], [3, 2]).unwrap();
        assert_eq!(cut(&array, 0, 1, 2).unwrap().as_slice::<i32>().unwrap(), [3, 4, 5, 6]);
        assert_eq!(cut(&array, 1, 1, 1).unwrap().as_slice::<i32>().unwrap(), [2, 4, 6]);
        assert_eq!(filled(&array, 1, 3).unwrap().as_slice::<i32>().unwrap(), [1, 2, 0, 3, 4, 0, 5, 6, 0]);
        let pair = concat(&[&array, &array], 1).unwrap();
        assert_eq!((pair.dims(), pair.as_slice::<i32>().unwrap()[..4].to_vec()), (&[3, 4][..], vec![1, 2, 1, 2]));
        assert!(
            cut(&array, 2, 0, 1).is_err() && cut(&array, 0, 2, 2).is_err() && cut(&array, 0, 1, usize::MAX).is_err()
        );
        assert!(filled(&array, 0, 2).is_err() && filled(&array, 2, 2).is_err());
        assert!(concat(&[], 0).is_err() && concatenated_dims(&[&array], 5).is_err());
    }
}
