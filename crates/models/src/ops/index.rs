//! Shapes, strides, and the positions that a view of an array reads.

use crate::array::{Array, count_of};
use crate::bounds::RANK_MAX;
use crate::element::ElementType;
use crate::error::{Error, Result};

/// The strides of a row-major layout.
pub(crate) fn strides(dims: &[usize]) -> Vec<isize> {
    let mut strides = vec![1; dims.len()];
    for axis in (1..dims.len()).rev() {
        strides[axis - 1] = strides[axis] * dims[axis].max(1) as isize;
    }
    strides
}

/// The shape to which shapes broadcast, by NumPy's rules.
pub(crate) fn broadcast<'a>(shapes: impl IntoIterator<Item = &'a [usize]>) -> Result<Vec<usize>> {
    let mut joined: Vec<usize> = Vec::new();
    for dims in shapes {
        if dims.len() > RANK_MAX {
            return count_of(dims).map(|_| Vec::new());
        }
        while joined.len() < dims.len() {
            joined.insert(0, 1);
        }
        let added = joined.len() - dims.len();
        for (target, dim) in joined[added..].iter_mut().zip(dims) {
            *target = match (*target, *dim) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                (a, b) => return Err(Error::invalid("shapes", "ones that broadcast", format!("{a} against {b}"))),
            };
        }
    }
    Ok(joined)
}

/// The strides with which an array of these dimensions is read as the broadcast shape.
pub(crate) fn broadcast_strides(dims: &[usize], to: &[usize]) -> Result<Vec<isize>> {
    let own = strides(dims);
    let Some(added) = to.len().checked_sub(dims.len()) else {
        return Err(Error::invalid("a shape", format!("one that stretches to {to:?}"), format!("{dims:?}")));
    };
    let mut steps = vec![0; to.len()];
    for (axis, dim) in dims.iter().enumerate() {
        steps[axis + added] = match *dim {
            dim if dim == to[axis + added] => own[axis],
            1 => 0,
            _ => return Err(Error::invalid("a shape", format!("one that stretches to {to:?}"), format!("{dims:?}"))),
        };
    }
    Ok(steps)
}

/// Iterates over the positions of a view's elements in row-major order, relative to the first.
pub(crate) struct Positions {
    dims: Vec<usize>,
    steps: Vec<isize>,
    index: Vec<usize>,
    at: isize,
    left: usize,
}

impl Positions {
    pub(crate) fn new(dims: &[usize], steps: &[isize]) -> Positions {
        let left = dims.iter().product();
        Positions { dims: dims.to_vec(), steps: steps.to_vec(), index: vec![0; dims.len()], at: 0, left }
    }

    /// The positions of an array that is broadcast to a shape.
    pub(crate) fn broadcast(dims: &[usize], to: &[usize]) -> Result<Positions> {
        Ok(Positions::new(to, &broadcast_strides(dims, to)?))
    }
}

impl Iterator for Positions {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let here = self.at;
        for axis in (0..self.dims.len()).rev() {
            self.index[axis] += 1;
            self.at += self.steps[axis];
            if self.index[axis] < self.dims[axis] {
                break;
            }
            self.at -= self.steps[axis] * self.dims[axis] as isize;
            self.index[axis] = 0;
        }
        Some(here as usize)
    }
}

/// Copies the elements of a view to a new array. `steps` count elements. The view must lie within
/// the array.
pub(crate) fn view(array: &Array, dims: &[usize], start: usize, steps: &[isize]) -> Result<Array> {
    count_of(dims)?;
    if array.kind() == ElementType::String {
        let strings = array.as_strings()?;
        return Array::from_texts(Positions::new(dims, steps).map(|at| &strings[start.wrapping_add(at)]), dims);
    }
    let size = array.kind().size_bytes();
    let source = array.bytes();
    // Trailing contiguous axes are copied as one run.
    let (mut run, mut outer) = (1_usize, dims.len());
    while outer > 0 && (dims[outer - 1] == 1 || steps[outer - 1] == run as isize) {
        run *= dims[outer - 1];
        outer -= 1;
    }
    let run_bytes = run * size;
    Array::build(array.kind(), dims, |target| {
        if run_bytes == 0 {
            return;
        }
        let places = Positions::new(&dims[..outer], &steps[..outer]);
        for (target, at) in target.chunks_exact_mut(run_bytes).zip(places) {
            let begin = start.wrapping_add(at) * size;
            target.copy_from_slice(&source[begin..begin + run_bytes]);
        }
    })
}

/// An array broadcast to a shape.
pub(crate) fn expand(array: &Array, dims: &[usize]) -> Result<Array> {
    if array.dims() == dims {
        return Ok(array.clone());
    }
    view(array, dims, 0, &broadcast_strides(array.dims(), dims)?)
}

/// An array with its axes in another order.
pub(crate) fn transpose(array: &Array, order: &[usize]) -> Result<Array> {
    let own = strides(array.dims());
    let dims: Vec<usize> = order.iter().map(|axis| array.dims()[*axis]).collect();
    let steps: Vec<isize> = order.iter().map(|axis| own[*axis]).collect();
    view(array, &dims, 0, &steps)
}

/// The products of the dimensions before an axis, along it and after it: an array is `outer ×
/// length × inner`.
pub(crate) fn around(dims: &[usize], axis: usize) -> (usize, usize, usize) {
    (dims[..axis].iter().product(), dims[axis], dims[axis + 1..].iter().product())
}

/// An index counted from the front. A negative index counts from the end.
pub(crate) fn index_of(index: i64, len: usize) -> Result<usize> {
    let from_front = if index < 0 { index + len as i64 } else { index };
    match usize::try_from(from_front) {
        Ok(index) if index < len => Ok(index),
        _ => Err(Error::invalid("an index", format!("-{len} to {}", len as i64 - 1), index)),
    }
}
