//! Shapes as values, and operations that change an array's shape.

use super::call::{Call, axis_of, one, size_of_int};
use super::index::{broadcast, expand as expand_to, strides, transpose as transpose_to, view};
use crate::array::{Array, count_of};
use crate::bounds::{RANK_MAX, list_len};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

/// `Shape`: all dimensions, or a range of them.
pub(crate) fn shape(call: &Call<'_>) -> Result<Vec<Value>> {
    shape_of(call, call.array(0)?.dims())
}

/// `Shape` of a value with known dimensions.
pub(crate) fn shape_of(call: &Call<'_>, dims: &[usize]) -> Result<Vec<Value>> {
    let rank = dims.len() as i64;
    let clamp = |value: i64| (if value < 0 { value + rank } else { value }).clamp(0, rank) as usize;
    let (start, end) = (clamp(call.int("start", 0)?), clamp(call.int("end", i64::MAX)?));
    let dims = dims.get(start..end.max(start)).unwrap_or_default();
    one(Array::from_i64s(dims.iter().map(|dim| *dim as i64), [dims.len()]))
}

/// `Size`: the number of elements.
pub(crate) fn size(call: &Call<'_>) -> Result<Vec<Value>> {
    size_of(call.array(0)?.dims())
}

/// `Size` of a value with known dimensions.
pub(crate) fn size_of(dims: &[usize]) -> Result<Vec<Value>> {
    one(Array::from_i64s([count_of(dims)? as i64], []))
}

/// The shape that `Reshape` requests: 0 keeps a dimension, -1 takes the remaining elements.
pub(crate) fn reshaped(dims: &[usize], wanted: &[i64], allow_zero: bool) -> Result<Vec<usize>> {
    let mut target = Vec::new();
    let mut open = None;
    for (axis, size) in wanted.iter().enumerate() {
        target.push(match *size {
            0 if !allow_zero => {
                *dims.get(axis).ok_or_else(|| Error::invalid("reshape", "a dimension to keep", axis))?
            }
            -1 if open.replace(axis).is_none() => 1,
            -1 => return Err(Error::invalid("reshape", "one dimension of -1", format!("{wanted:?}"))),
            size => size_of_int(size)?,
        });
    }
    let (count, known) = (count_of(dims)?, count_of(&target)?);
    if let Some(axis) = open {
        target[axis] = count.checked_div(known).unwrap_or(0);
    }
    match count_of(&target)? {
        made if made == count => Ok(target),
        _ => Err(Error::invalid("reshape", format!("a shape of {count} elements"), format!("{wanted:?}"))),
    }
}

pub(crate) fn reshape(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, wanted) = (call.array(0)?, call.array(1)?.to_i64s()?);
    one(x.reshape(reshaped(x.dims(), &wanted, call.flag("allowzero", false)?)?))
}

pub(crate) fn flatten(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    one(x.reshape(flattened(x.dims(), call.int("axis", 1)?)?))
}

/// The two dimensions of a matrix that is flattened at an axis.
pub(crate) fn flattened(dims: &[usize], axis: i64) -> Result<[usize; 2]> {
    let axis = if axis == dims.len() as i64 { dims.len() } else { axis_of(axis, dims.len().max(1))? };
    let axis = axis.min(dims.len());
    Ok([dims[..axis].iter().product(), dims[axis..].iter().product()])
}

/// The shape without its axes of length one, or without the named axes.
pub(crate) fn squeezed(dims: &[usize], axes: Option<&[i64]>) -> Result<Vec<usize>> {
    let Some(axes) = axes else { return Ok(dims.iter().copied().filter(|dim| *dim != 1).collect()) };
    let axes: Vec<usize> = axes.iter().map(|axis| axis_of(*axis, dims.len())).collect::<Result<_>>()?;
    if let Some(axis) = axes.iter().find(|axis| dims[**axis] != 1) {
        return Err(Error::invalid("squeeze", "axes of length 1", dims[*axis]));
    }
    Ok(dims.iter().enumerate().filter(|(axis, _)| !axes.contains(axis)).map(|(_, dim)| *dim).collect())
}

/// The shape with new axes of length one. `axes` refer to the result.
pub(crate) fn unsqueezed(dims: &[usize], axes: &[i64]) -> Result<Vec<usize>> {
    let rank = dims.len() + axes.len();
    if rank > RANK_MAX {
        return Err(Error::Limit { what: "the dimensions of an array", limit: RANK_MAX as u64, got: rank as u64 });
    }
    let axes: Vec<usize> = axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Result<_>>()?;
    let mut old = dims.iter();
    let dims: Vec<usize> =
        (0..rank).map(|axis| if axes.contains(&axis) { 1 } else { old.next().copied().unwrap_or(1) }).collect();
    match old.next() {
        None => Ok(dims),
        Some(_) => Err(Error::invalid("unsqueeze", "each axis once", format!("{axes:?}"))),
    }
}

pub(crate) fn squeeze(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    one(x.reshape(squeezed(x.dims(), call.axes(1)?.as_deref())?))
}

pub(crate) fn unsqueeze(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let axes = call.axes(1)?.ok_or_else(|| Error::invalid("unsqueeze", "axes", "none"))?;
    one(x.reshape(unsqueezed(x.dims(), &axes)?))
}

/// The axis order that `Transpose` requests.
pub(crate) fn order(call: &Call<'_>, rank: usize) -> Result<Vec<usize>> {
    let Some(order) = call.ints("perm")? else { return Ok((0..rank).rev().collect()) };
    let order: Vec<usize> = order.iter().map(|axis| axis_of(*axis, rank)).collect::<Result<_>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    match sorted.into_iter().eq(0..rank) {
        true => Ok(order),
        false => Err(Error::invalid("perm", format!("each axis below {rank} once"), format!("{order:?}"))),
    }
}

pub(crate) fn transpose(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    one(transpose_to(x, &order(call, x.dims().len())?))
}

/// The result shape of `Expand`.
pub(crate) fn expanded(dims: &[usize], wanted: &[i64]) -> Result<Vec<usize>> {
    let wanted: Vec<usize> = wanted.iter().map(|size| size_of_int(*size)).collect::<Result<_>>()?;
    broadcast([dims, &wanted])
}

pub(crate) fn expand(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    one(expand_to(x, &expanded(x.dims(), &call.array(1)?.to_i64s()?)?))
}

pub(crate) fn tile(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, repeats) = (call.array(0)?, call.array(1)?.to_i64s()?);
    if repeats.len() != x.dims().len() {
        return Err(Error::invalid("repeats", x.dims().len().to_string(), repeats.len()));
    }
    // Each axis becomes two: the repeats with stride zero, and the axis itself.
    let (mut dims, mut steps, mut result) = (Vec::new(), Vec::new(), Vec::new());
    for ((dim, step), times) in x.dims().iter().zip(strides(x.dims())).zip(repeats) {
        let times = size_of_int(times)?;
        dims.extend([times, *dim]);
        steps.extend([0, step]);
        result.push(times.saturating_mul(*dim));
    }
    one(view(x, &dims, 0, &steps).and_then(|tiled| tiled.reshape(result)))
}

/// One axis of a slice: the first index, the number of elements, and the step.
pub(crate) fn slice_axis(dim: usize, start: i64, end: i64, step: i64) -> Result<(usize, usize, i64)> {
    if step == 0 {
        return Err(Error::invalid("the step of a slice", "other than 0", step));
    }
    let dim = dim as i128;
    let (start, end, step_wide) = (i128::from(start), i128::from(end), i128::from(step));
    let wrap = |index: i128| if index < 0 { index + dim } else { index };
    let (low, high) = if step > 0 { (0, dim) } else { (-1, dim - 1) };
    let (start, end) = (wrap(start).clamp(low.max(0), high.max(0)), wrap(end).clamp(low, high.max(low)));
    let count =
        if step > 0 { (end - start + step_wide - 1) / step_wide } else { (start - end - step_wide - 1) / -step_wide };
    let count = if dim == 0 { 0 } else { count.max(0) };
    Ok((start as usize, count as usize, step))
}

/// The axes, starts, ends and steps of a slice: attributes in old versions, operands in new ones.
pub(crate) fn slice_bounds(call: &Call<'_>, rank: usize) -> Result<Vec<(usize, i64, i64, i64)>> {
    let given = |place, name| match call.optional_ints(place)? {
        Some(values) => Ok::<_, Error>(Some(values)),
        None => Ok(call.ints(name)?.map(<[i64]>::to_vec)),
    };
    let missing = || Error::invalid("slice", "starts and ends", "none");
    let starts = given(1, "starts")?.ok_or_else(missing)?;
    let ends = given(2, "ends")?.ok_or_else(missing)?;
    let axes = given(3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = call.optional_ints(4)?.unwrap_or_else(|| vec![1; starts.len()]);
    if [ends.len(), axes.len(), steps.len()] != [starts.len(); 3] {
        return Err(Error::invalid("slice", "as many starts as ends, axes and steps", format!("{axes:?}")));
    }
    let bounds = axes.iter().zip(starts).zip(ends).zip(steps);
    let mut sliced = vec![false; rank];
    let bound = |(((axis, start), end), step): (((&i64, i64), i64), i64)| {
        let axis = axis_of(*axis, rank)?;
        match std::mem::replace(&mut sliced[axis], true) {
            false => Ok((axis, start, end, step)),
            true => Err(Error::invalid("slice", "each axis once", axis)),
        }
    };
    bounds.map(bound).collect()
}

pub(crate) fn slice(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let (mut dims, mut steps, mut start) = (x.dims().to_vec(), strides(x.dims()), 0_usize);
    for (axis, from, to, step) in slice_bounds(call, dims.len())? {
        let (first, count, step) = slice_axis(x.dims()[axis], from, to, step)?;
        start += if count > 0 { first * steps[axis].unsigned_abs() } else { 0 };
        dims[axis] = count;
        steps[axis] = steps[axis].saturating_mul(step as isize);
    }
    if count_of(&dims)? == 0 {
        start = 0;
    }
    one(view(x, &dims, start, &steps))
}

/// The lengths of the parts of a split.
pub(crate) fn split_sizes(call: &Call<'_>, len: usize) -> Result<Vec<usize>> {
    let sizes = match call.optional_ints(1)? {
        Some(sizes) => Some(sizes),
        None => call.ints("split")?.map(<[i64]>::to_vec),
    };
    if let Some(sizes) = sizes {
        let sizes: Vec<usize> = sizes.iter().map(|size| size_of_int(*size)).collect::<Result<_>>()?;
        let total = sizes.iter().fold(0_usize, |sum, size| sum.saturating_add(*size));
        list_len(sizes.len())?;
        return match total == len {
            true => Ok(sizes),
            false => Err(Error::invalid("split", format!("sizes that add up to {len}"), format!("{sizes:?}"))),
        };
    }
    let outputs = call.node.outputs.len();
    let parts = size_of_int(call.int("num_outputs", outputs as i64)?)?.max(1);
    if parts != outputs.max(1) {
        return Err(Error::invalid("num_outputs", outputs.to_string(), parts));
    }
    if call.version() < 18 && !len.is_multiple_of(parts) {
        return Err(Error::invalid("split", format!("{parts} equal parts"), len));
    }
    let each = len.div_ceil(parts);
    Ok((0..parts).map(|part| each.min(len.saturating_sub(part * each))).collect())
}

pub(crate) fn split(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let axis = axis_of(call.int("axis", 0)?, x.dims().len())?;
    let (steps, mut start, mut parts) = (strides(x.dims()), 0, Vec::new());
    for size in split_sizes(call, x.dims()[axis])? {
        let mut dims = x.dims().to_vec();
        dims[axis] = size;
        let first = if count_of(&dims)? == 0 { 0 } else { start * steps[axis] as usize };
        parts.push(Value::Array(view(x, &dims, first, &steps)?));
        start += size;
    }
    Ok(parts)
}

pub(crate) fn concat(call: &Call<'_>) -> Result<Vec<Value>> {
    let arrays = call.arrays(0)?;
    let first = *arrays.first().ok_or_else(|| Error::invalid("concat", "at least one array", "none"))?;
    let axis = axis_of(call.int("axis", 1)?, first.dims().len())?;
    one(concat_arrays(&arrays, axis))
}

/// The shape of arrays concatenated along an axis. Fails if they do not fit together.
pub(crate) fn concat_dims(arrays: &[&Array], axis: usize) -> Result<Vec<usize>> {
    let (first, mut dims) = (arrays[0], arrays[0].dims().to_vec());
    dims[axis] = 0;
    for array in arrays {
        let same = array.dims().len() == dims.len()
            && array.kind() == first.kind()
            && array.dims().iter().zip(first.dims()).enumerate().all(|(place, (a, b))| place == axis || a == b);
        if !same {
            return Err(Error::invalid("concat", format!("{first:?} but for axis {axis}"), format!("{array:?}")));
        }
        dims[axis] += array.dims()[axis];
    }
    Ok(dims)
}

/// Concatenates arrays along an axis.
pub(crate) fn concat_arrays(arrays: &[&Array], axis: usize) -> Result<Array> {
    let (first, dims) = (arrays[0], concat_dims(arrays, axis)?);
    if count_of(&dims)? == 0 {
        return empty(first.kind(), &dims);
    }
    let outer: usize = dims[..axis].iter().product();
    let inner: usize = dims[axis + 1..].iter().product();
    if first.kind() == ElementType::String {
        let runs = arrays.iter().map(|array| Ok((array.as_strings()?, array.dims()[axis] * inner)));
        let runs = runs.collect::<Result<Vec<_>>>()?;
        let row = |row: usize| runs.iter().flat_map(move |(texts, run)| &texts[row * run..][..*run]);
        return Array::from_texts((0..outer).flat_map(row), &dims);
    }
    let size = first.kind().size_bytes();
    let runs: Vec<(&[u8], usize)> =
        arrays.iter().map(|array| (array.bytes(), array.dims()[axis] * inner * size)).collect();
    Array::build(first.kind(), &dims, |mut target| {
        for row in 0..outer {
            for (bytes, run) in &runs {
                let (head, rest) = target.split_at_mut(*run);
                head.copy_from_slice(&bytes[row * run..][..*run]);
                target = rest;
            }
        }
    })
}

/// An array without elements.
fn empty(kind: ElementType, dims: &[usize]) -> Result<Array> {
    match kind {
        ElementType::String => Array::from_strings(Vec::new(), dims),
        kind => Array::build(kind, dims, |_| ()),
    }
}

/// `DepthToSpace` and `SpaceToDepth`.
pub(crate) fn depth_space(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let block = size_of_int(call.int("blocksize", 1)?)?.max(1);
    let (split, order, dims) = depth_space_form(call, x.dims(), block)?;
    one(x.reshape(split).and_then(|x| transpose_to(&x, &order)).and_then(|x| x.reshape(dims)))
}

/// The six dimensions, the order of their axes, and the result's shape.
pub(crate) fn depth_space_form(
    call: &Call<'_>,
    dims: &[usize],
    block: usize,
) -> Result<([usize; 6], [usize; 6], [usize; 4])> {
    let [n, c, h, w] = *dims else { return Err(Error::invalid(call.op().to_owned(), "four dimensions", dims.len())) };
    let wrong =
        || Error::invalid(call.op().to_owned(), format!("sizes that blocks of {block} divide"), format!("{dims:?}"));
    let square = block.checked_mul(block).ok_or_else(wrong)?;
    let times = |size: usize, factor: usize| size.checked_mul(factor).ok_or_else(wrong);
    if call.op() == "SpaceToDepth" {
        if !h.is_multiple_of(block) || !w.is_multiple_of(block) {
            return Err(wrong());
        }
        let split = [n, c, h / block, block, w / block, block];
        let order = match call.text("mode", "DCR")? {
            "DCR" => [0, 3, 5, 1, 2, 4],
            "CRD" => [0, 1, 3, 5, 2, 4],
            other => return Err(Error::invalid("mode", "DCR or CRD", other)),
        };
        return Ok((split, order, [n, times(c, square)?, h / block, w / block]));
    }
    if !c.is_multiple_of(square) {
        return Err(wrong());
    }
    let (depth, result) = (c / square, [n, c / square, times(h, block)?, times(w, block)?]);
    match call.text("mode", "DCR")? {
        "DCR" => Ok(([n, block, block, depth, h, w], [0, 3, 4, 1, 5, 2], result)),
        "CRD" => Ok(([n, depth, block, block, h, w], [0, 1, 4, 2, 5, 3], result)),
        other => Err(Error::invalid("mode", "DCR or CRD", other)),
    }
}
