//! Elements selected by indices.

use super::call::{Call, axis_of, one};
use super::index::{Positions, around, index_of, strides};
use crate::array::{Array, count_of, host_count};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

/// Copies runs of `run` elements, each from one of `places`.
fn pick(x: &Array, dims: &[usize], run: usize, places: impl Iterator<Item = usize>) -> Result<Array> {
    count_of(dims)?;
    if x.kind() == ElementType::String {
        let strings = x.as_strings()?;
        return Array::from_texts(places.flat_map(|place| &strings[place..place + run]), dims);
    }
    let (run, size) = (run * x.kind().size_bytes(), x.kind().size_bytes());
    let source = x.bytes();
    Array::build(x.kind(), dims, |bytes| match run {
        0 => {}
        1 => copy::<1>(bytes, source, places),
        2 => copy::<2>(bytes, source, places.map(|place| place * size)),
        4 => copy::<4>(bytes, source, places.map(|place| place * size)),
        8 => copy::<8>(bytes, source, places.map(|place| place * size)),
        _ => {
            for (target, place) in bytes.chunks_exact_mut(run).zip(places) {
                target.copy_from_slice(&source[place * size..][..run]);
            }
        }
    })
}

/// Copies short runs. The constant length lets the compiler inline the copy.
fn copy<const RUN: usize>(bytes: &mut [u8], source: &[u8], places: impl Iterator<Item = usize>) {
    for (target, place) in bytes.as_chunks_mut::<RUN>().0.iter_mut().zip(places) {
        target.copy_from_slice(&source[place..][..RUN]);
    }
}

pub(crate) fn gather(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, indices) = (call.array(0)?, call.array(1)?);
    let axis = axis_of(call.int("axis", 0)?, x.dims().len())?;
    let (outer, len, inner) = around(x.dims(), axis);
    let rows: Vec<usize> = indices.to_i64s()?.into_iter().map(|index| index_of(index, len)).collect::<Result<_>>()?;
    let dims = [&x.dims()[..axis], indices.dims(), &x.dims()[axis + 1..]].concat();
    let places = (0..outer).flat_map(|block| rows.iter().map(move |row| (block * len + row) * inner));
    one(pick(x, &dims, inner, places))
}

pub(crate) fn gather_elements(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, indices) = (call.array(0)?, call.array(1)?);
    if let Some((places, run)) = row_places(x, indices, call.int("axis", 0)?)? {
        return one(pick(x, indices.dims(), run, places.into_iter()));
    }
    let places = element_places(x, indices, call.int("axis", 0)?)?;
    one(pick(x, indices.dims(), 1, places.into_iter()))
}

/// For each index, the position of its element. It differs from the position of the index along one
/// axis only.
pub(super) fn element_places(x: &Array, indices: &Array, axis: i64) -> Result<Vec<usize>> {
    let axis = element_axis(x, indices, axis)?;
    let Some((inner, outer)) = indices.dims().split_last() else { return Ok(Vec::new()) };
    let mut steps = strides(x.dims());
    let along = std::mem::replace(&mut steps[axis], 0) as usize;
    let (step, len) = (steps[outer.len()] as usize, x.dims()[axis]);
    let mut places = Vec::with_capacity(indices.len());
    let rows = indices.to_i64s()?;
    let starts = Positions::new(outer, &steps[..outer.len()]);
    for (row, start) in rows.chunks_exact((*inner).max(1)).zip(starts) {
        for (at, index) in row.iter().enumerate() {
            places.push(start + at * step + index_of(*index, len)? * along);
        }
    }
    Ok(places)
}

/// The axis, after a check that the indices fit the array along all other axes.
fn element_axis(x: &Array, indices: &Array, axis: i64) -> Result<usize> {
    let axis = axis_of(axis, x.dims().len())?;
    let fits = indices.dims().len() == x.dims().len()
        && indices.dims().iter().zip(x.dims()).enumerate().all(|(place, (index, dim))| place == axis || index <= dim);
    match fits {
        true => Ok(axis),
        false => Err(Error::invalid("indices", format!("within {x:?} but for axis {axis}"), format!("{indices:?}"))),
    }
}

/// The positions of whole rows and their length, if all elements after the axis share one index.
/// Models that gather or scatter rows by elements repeat an index over each row.
pub(super) fn row_places(x: &Array, indices: &Array, axis: i64) -> Result<Option<(Vec<usize>, usize)>> {
    let axis = element_axis(x, indices, axis)?;
    let (outer, len, inner) = around(indices.dims(), axis);
    let (_, target_len, _) = around(x.dims(), axis);
    let same = |place: usize| place == axis || indices.dims()[place] == x.dims()[place];
    if inner < 2 || len == 0 || indices.kind() != ElementType::I64 || !(0..x.dims().len()).all(same) {
        return Ok(None);
    }
    let index = indices.as_slice::<i64>()?;
    host_count(&[outer, len])?;
    let mut places = Vec::with_capacity(outer * len);
    for (number, row) in index.chunks_exact(inner).enumerate() {
        if row.iter().any(|other| *other != row[0]) {
            return Ok(None);
        }
        places.push((number / len * target_len + index_of(row[0], target_len)?) * inner);
    }
    Ok(Some((places, inner)))
}

pub(crate) fn gather_nd(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, indices) = (call.array(0)?, call.array(1)?);
    let batch = usize::try_from(call.int("batch_dims", 0)?).unwrap_or(usize::MAX);
    let (Some(width), true) = (indices.dims().last().copied(), batch < indices.dims().len().min(x.dims().len())) else {
        return Err(Error::invalid("gather", "batch dimensions within both operands", batch));
    };
    if width > x.dims().len() - batch || x.dims()[..batch] != indices.dims()[..batch] {
        return Err(Error::invalid("indices", format!("those of {x:?}"), format!("{indices:?}")));
    }
    let (rows, inner) = nd_rows(&x.dims()[batch..], width);
    let per_batch: usize = indices.dims()[batch..indices.dims().len() - 1].iter().product();
    let block: usize = x.dims()[batch..].iter().product();
    let index = indices.to_i64s()?;
    let count = host_count(&indices.dims()[..indices.dims().len() - 1])?;
    let mut places = Vec::with_capacity(count);
    for tuple in 0..count {
        let at = nd_place(&index[tuple * width..][..width], &rows)?;
        places.push(tuple / per_batch.max(1) * block + at);
    }
    let dims = [&indices.dims()[..indices.dims().len() - 1], &x.dims()[batch + width..]].concat();
    one(pick(x, &dims, inner, places.into_iter()))
}

/// Length and stride of each axis that a tuple of indices addresses, and the number of elements
/// behind one tuple.
pub(super) fn nd_rows(dims: &[usize], width: usize) -> (Vec<(usize, usize)>, usize) {
    let rows = dims.iter().zip(strides(dims)).take(width).map(|(dim, step)| (*dim, step as usize)).collect();
    (rows, dims[width..].iter().product())
}

pub(super) fn nd_place(tuple: &[i64], rows: &[(usize, usize)]) -> Result<usize> {
    let parts = tuple.iter().zip(rows).map(|(index, (dim, step))| Ok(index_of(*index, *dim)? * step));
    parts.sum()
}

pub(crate) fn compress(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, condition) = (call.array(0)?, call.array(1)?);
    if condition.kind() != ElementType::Bool {
        return Err(Error::invalid("a condition", "elements of bool", condition.kind()));
    }
    let flat;
    let (x, axis) = match call.node.attributes.contains_key("axis") {
        true => (x, axis_of(call.int("axis", 0)?, x.dims().len())?),
        false => {
            flat = x.reshape([x.len()])?;
            (&flat, 0)
        }
    };
    let (outer, len, inner) = around(x.dims(), axis);
    let kept: Vec<usize> =
        condition.bytes().iter().take(len).enumerate().filter(|(_, keep)| **keep != 0).map(|(row, _)| row).collect();
    let mut dims = x.dims().to_vec();
    dims[axis] = kept.len();
    let places = (0..outer).flat_map(|block| kept.iter().map(move |row| (block * len + row) * inner));
    one(pick(x, &dims, inner, places))
}

pub(crate) fn non_zero(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let found: Vec<usize> =
        x.to_floats()?.iter().enumerate().filter(|(_, value)| **value != 0.0).map(|(place, _)| place).collect();
    let steps = strides(x.dims());
    let mut rows = Vec::with_capacity(host_count(&[x.dims().len(), found.len()])?);
    for (axis, dim) in x.dims().iter().enumerate() {
        rows.extend(found.iter().map(|place| (place / steps[axis] as usize % dim) as i64));
    }
    one(Array::from_i64s(rows, [x.dims().len(), found.len()]))
}

pub(crate) fn unique(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let flat;
    let (x, axis) = match call.node.attributes.contains_key("axis") {
        true => (x, axis_of(call.int("axis", 0)?, x.dims().len())?),
        false => {
            flat = x.reshape([x.len()])?;
            (&flat, 0)
        }
    };
    let (outer, len, inner) = around(x.dims(), axis);
    if x.kind() == ElementType::String {
        return Err(Error::unsupported("Unique of text"));
    }
    host_count(&[len])?;
    let mut groups = match x.kind().is_float() {
        true => {
            // Minus zero counts as zero.
            let numbers: Vec<f64> = x.to_floats()?.into_iter().map(|number| number + 0.0).collect();
            equal_rows(&numbers, (outer, len, inner), f64::total_cmp)
        }
        false => equal_rows(&x.to_integers()?, (outer, len, inner), i128::cmp),
    };
    if !call.flag("sorted", true)? {
        groups.sort_by_key(|group| group[0]);
    }
    let mut dims = x.dims().to_vec();
    dims[axis] = groups.len();
    let places = (0..outer).flat_map(|block| groups.iter().map(move |group| (block * len + group[0]) * inner));
    let values = pick(x, &dims, inner, places)?;
    let mut inverse = vec![0; len];
    groups
        .iter()
        .enumerate()
        .for_each(|(number, group)| group.iter().for_each(|place| inverse[*place] = number as i64));
    let first = Array::from_i64s(groups.iter().map(|group| group[0] as i64), [groups.len()])?;
    let counts = Array::from_i64s(groups.iter().map(|group| group.len() as i64), [groups.len()])?;
    Ok([values, first, Array::from_i64s(inverse, [len])?, counts].map(Value::Array).to_vec())
}

/// Groups of equal rows in sorted order, each with its positions in increasing order.
fn equal_rows<T>(
    numbers: &[T],
    (outer, len, inner): (usize, usize, usize),
    order: fn(&T, &T) -> std::cmp::Ordering,
) -> Vec<Vec<usize>> {
    // Rows without elements are equal, for any number of blocks.
    let outer = if inner == 0 { 0 } else { outer };
    let row =
        |place: usize| (0..outer).flat_map(move |block| (0..inner).map(move |at| (block * len + place) * inner + at));
    let compare = |a: usize, b: usize| {
        let mut pairs = row(a).zip(row(b)).map(|(a, b)| order(&numbers[a], &numbers[b]));
        pairs.find(|order| order.is_ne()).unwrap_or(std::cmp::Ordering::Equal)
    };
    let mut places: Vec<usize> = (0..len).collect();
    places.sort_by(|a, b| compare(*a, *b).then(a.cmp(b)));
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for place in places {
        match groups.last_mut() {
            Some(group) if compare(group[0], place).is_eq() => group.push(place),
            _ => groups.push(vec![place]),
        }
    }
    groups
}
