//! The elements of a tensor as numbers, line by line along an axis.

use panoply_core::{DType, Result, Tensor};

use crate::values::{tensor_of, to_f64};

/// The indices, in a contiguous tensor, of the elements of each line along the axis.
pub(super) fn lines(dims: &[usize], axis: usize) -> Vec<Vec<usize>> {
    let inner: usize = dims[axis + 1..].iter().product();
    let outer: usize = dims[..axis].iter().product();
    let place = |line: usize, row: usize| (line / inner * dims[axis] + row) * inner + line % inner;
    (0..outer * inner).map(|line| (0..dims[axis]).map(|row| place(line, row)).collect()).collect()
}

/// Applies `change` to each line along the axis. The result has the shape and type of the input.
pub(super) fn map_lines(input: &Tensor, axis: usize, change: impl Fn(&[f64]) -> Vec<f64>) -> Result<Tensor> {
    let numbers = to_f64(input)?;
    let mut changed = numbers.clone();
    for places in lines(input.shape(), axis) {
        let line: Vec<f64> = places.iter().map(|place| numbers[*place]).collect();
        for (place, value) in places.into_iter().zip(change(&line)) {
            changed[place] = value;
        }
    }
    Ok(tensor_of(input.dtype(), input.shape(), &changed))
}

/// Wraps an integer to its element type. Values of other types are unchanged.
pub(super) fn wrap(dtype: DType, value: i128) -> i128 {
    match dtype {
        DType::I32 => i128::from(value as i32),
        DType::U32 => i128::from(value as u32),
        DType::I8 => i128::from(value as i8),
        DType::U8 => i128::from(value as u8),
        _ => value,
    }
}
