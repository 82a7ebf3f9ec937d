//! Arrays made from settings: ranges, constants, masks, padding and similar ops.

use std::collections::HashMap;

use super::call::{Call, axis_of, one, size_of_int};
use super::cast::convert;
use super::index::{around, strides, view};
use crate::array::{Array, count_of, host_count};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::program::Attribute;
use crate::value::Value;

/// The value of a `Constant` node.
pub(crate) fn constant(attributes: &HashMap<String, Attribute>) -> Result<Array> {
    for (name, attribute) in attributes {
        match (name.as_str(), attribute) {
            ("value" | "sparse_value", Attribute::Array(array)) => return Ok(array.clone()),
            ("value_float", Attribute::Float(value)) => return Array::from_slice(&[*value], []),
            ("value_int", Attribute::Integer(value)) => return Array::from_slice(&[*value], []),
            ("value_floats", Attribute::Floats(values)) => return Array::from_slice(values, [values.len()]),
            ("value_ints", Attribute::Integers(values)) => return Array::from_slice(values, [values.len()]),
            ("value_string", Attribute::Text(text)) => return Array::from_strings(vec![text.clone()], []),
            ("value_strings", Attribute::Texts(texts)) => return Array::from_strings(texts.clone(), [texts.len()]),
            _ => {}
        }
    }
    Err(Error::invalid("a constant", "a value", "none"))
}

pub(crate) fn constant_of_shape(call: &Call<'_>) -> Result<Vec<Value>> {
    let dims: Vec<usize> = call.array(0)?.to_i64s()?.into_iter().map(size_of_int).collect::<Result<_>>()?;
    let zero = Array::from_slice(&[0.0_f32], [1])?;
    let value = call.tensor("value")?.unwrap_or(&zero);
    if value.len() != 1 {
        return Err(Error::invalid("the value of a constant", "one element", value.len()));
    }
    let steps = vec![0; dims.len()];
    one(view(value, &dims, 0, &steps))
}

pub(crate) fn range(call: &Call<'_>) -> Result<Vec<Value>> {
    let (start, limit, delta) = (call.array(0)?, call.array(1)?, call.array(2)?);
    let kind = start.kind();
    if start.len() != 1 || limit.len() != 1 || delta.len() != 1 {
        return Err(Error::invalid("range", "single numbers", format!("{start:?}")));
    }
    if kind.is_float() {
        let (start, limit, delta) = (start.to_floats()?[0], limit.to_floats()?[0], delta.to_floats()?[0]);
        let count = ((limit - start) / delta).ceil().max(0.0);
        let count = if count.is_finite() && delta != 0.0 { count as usize } else { usize::MAX };
        host_count(&[count])?;
        let values: Vec<f64> = (0..count).map(|place| start + place as f64 * delta).collect();
        return one(Array::from_floats(kind, [count], &values));
    }
    let (start, limit, delta) = (start.to_integers()?[0], limit.to_integers()?[0], delta.to_integers()?[0]);
    if delta == 0 {
        return Err(Error::invalid("the step of a range", "other than 0", delta));
    }
    let count = if delta > 0 { (limit - start + delta - 1) / delta } else { (start - limit - delta - 1) / -delta };
    let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
    host_count(&[count])?;
    let values: Vec<i128> = (0..count).map(|place| start + place as i128 * delta).collect();
    one(Array::from_integers(kind, [count], &values))
}

pub(crate) fn eye_like(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let [rows, columns] = *x.dims() else { return Err(Error::invalid("eye", "a matrix", format!("{x:?}"))) };
    let kind = match call.int("dtype", 0)? {
        0 => x.kind(),
        code => ElementType::from_code(code)?,
    };
    let k = call.int("k", 0)?;
    let values: Vec<i128> = (0..host_count(&[rows, columns])?)
        .map(|place| i128::from((place % columns.max(1)) as i64 - (place / columns.max(1)) as i64 == k))
        .collect();
    one(Array::from_integers(kind, [rows, columns], &values))
}

pub(crate) fn trilu(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let [.., rows, columns] = *x.dims() else { return Err(Error::invalid("trilu", "a matrix", format!("{x:?}"))) };
    let k = call.optional_ints(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
    let (upper, size) = (call.flag("upper", true)?, x.kind().size_bytes());
    one(Array::build(x.kind(), x.dims(), |bytes| {
        for (place, (target, source)) in bytes.chunks_exact_mut(size).zip(x.bytes().chunks_exact(size)).enumerate() {
            let (row, column) = (place / columns % rows, place % columns);
            let diagonal = (row as i64).saturating_add(k);
            let kept = if upper { column as i64 >= diagonal } else { column as i64 <= diagonal };
            if kept {
                target.copy_from_slice(source);
            }
        }
    }))
}

pub(crate) fn one_hot(call: &Call<'_>) -> Result<Vec<Value>> {
    let (indices, depth, values) = (call.array(0)?, call.array(1)?, call.array(2)?);
    let depth = match depth.kind().is_float() {
        true => depth.to_floats()?.first().copied().unwrap_or(0.0) as i64,
        false => depth.to_i64s()?.first().copied().unwrap_or(0),
    };
    let depth = size_of_int(depth)?;
    if values.len() != 2 {
        return Err(Error::invalid("one-hot", "two values", values.len()));
    }
    let rank = indices.dims().len() + 1;
    let axis = axis_of(call.int("axis", -1)?, rank)?;
    let mut dims = indices.dims().to_vec();
    dims.insert(axis, depth);
    let (_, _, inner) = around(&dims, axis);
    let hot: Vec<i64> = indices.to_floats()?.iter().map(|value| *value as i64).collect();
    let size = values.kind().size_bytes();
    let (off, on) = values.bytes().split_at(size);
    one(Array::build(values.kind(), &dims, |bytes| {
        for (place, target) in bytes.chunks_exact_mut(size).enumerate() {
            let (outer, here, within) = (place / inner / depth, place / inner % depth, place % inner);
            let index = hot[outer * inner + within];
            let index = if index < 0 { index + depth as i64 } else { index };
            target.copy_from_slice(if index == here as i64 { on } else { off });
        }
    }))
}

/// `Pad`.
pub(crate) fn pad(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let (before, after) = super::sizes::pads(call, x.dims())?;
    padded_dims(x.dims(), &before, &after)?;
    let value = pad_value(call, x.kind())?;
    one(padded(x, &before, &after, call.text("mode", "constant")?, value.bytes()))
}

/// The fill element of a `Pad`.
pub(crate) fn pad_value(call: &Call<'_>, kind: ElementType) -> Result<Array> {
    match call.optional(2)? {
        Some(value) if value.len() != 1 => Err(Error::invalid("constant_value", "one element", value.len())),
        Some(value) => convert(value, kind, true, "up"),
        None if kind == ElementType::String => Err(Error::unsupported("padding text")),
        None => Array::from_floats(kind, [1], &[call.float("value", 0.0)?]),
    }
}

/// For each axis, the source index of each index after padding. `None` for axes without padding.
pub(crate) fn pad_sources(
    dims: &[usize],
    before: &[i64],
    after: &[i64],
    mode: &str,
) -> Result<Vec<Option<Vec<Option<usize>>>>> {
    let padded = padded_dims(dims, before, after)?;
    // If one axis is empty, the other axes may have any length, so each is checked alone.
    padded.iter().try_for_each(|len| host_count(&[*len]).map(drop))?;
    let along = |axis: usize| {
        let source = |place: usize| pad_source(place as i64 - before[axis], dims[axis], mode);
        match (before[axis], after[axis]) {
            (0, 0) => Ok(None),
            _ => (0..padded[axis]).map(source).collect::<Result<Vec<_>>>().map(Some),
        }
    };
    (0..dims.len()).map(along).collect()
}

/// An array padded or cropped along each axis.
pub(crate) fn padded(x: &Array, before: &[i64], after: &[i64], mode: &str, value: &[u8]) -> Result<Array> {
    let size = x.kind().size_bytes();
    let mut array = x.clone();
    // Axes are padded one after the other, so corners are filled from elements that an earlier axis
    // added.
    for (axis, sources) in pad_sources(x.dims(), before, after, mode)?.into_iter().enumerate() {
        let Some(sources) = sources else { continue };
        let (outer, len, inner) = around(array.dims(), axis);
        let mut dims = array.dims().to_vec();
        dims[axis] = sources.len();
        count_of(&dims)?;
        let run = inner * size;
        let from = array.bytes();
        array = Array::build(x.kind(), &dims, |bytes| {
            if run == 0 || sources.is_empty() {
                return;
            }
            for (place, target) in bytes.chunks_exact_mut(run).enumerate() {
                match sources[place % sources.len()] {
                    Some(source) => {
                        let row = place / sources.len() * len + source;
                        target.copy_from_slice(&from[row * run..][..run]);
                    }
                    None => target.chunks_exact_mut(size).for_each(|element| element.copy_from_slice(&value[..size])),
                }
            }
        })?;
        debug_assert_eq!(array.len(), outer * dims[axis] * inner);
    }
    Ok(array)
}

/// The length of an axis after padding.
fn axis_padded(len: usize, before: i64, after: i64) -> Result<usize> {
    [before, after].into_iter().try_for_each(|pad| size_of_int(pad.saturating_abs()).map(drop))?;
    let size = i128::from(before) + i128::from(after) + len as i128;
    size_of_int(i64::try_from(size).unwrap_or(if size < 0 { -1 } else { i64::MAX }))
}

/// The shape after padding or cropping each axis.
pub(crate) fn padded_dims(dims: &[usize], before: &[i64], after: &[i64]) -> Result<Vec<usize>> {
    let padded =
        dims.iter().zip(before.iter().zip(after)).map(|(dim, (before, after))| axis_padded(*dim, *before, *after));
    let padded = padded.collect::<Result<Vec<_>>>()?;
    count_of(&padded).map(|_| padded)
}

/// The source index of a position outside of an axis.
fn pad_source(place: i64, len: usize, mode: &str) -> Result<Option<usize>> {
    let len = len as i64;
    if (0..len).contains(&place) {
        return Ok(Some(place as usize));
    }
    if len == 0 && mode != "constant" {
        return Err(Error::invalid("pad", "an axis with elements", "none"));
    }
    Ok(match mode {
        "constant" => None,
        "edge" => Some(place.clamp(0, len - 1) as usize),
        "wrap" => Some(place.rem_euclid(len) as usize),
        "reflect" => {
            let period = 2 * (len - 1).max(1);
            let within = place.rem_euclid(period);
            let within = if len == 1 { 0 } else { within };
            Some(if within < len { within } else { period - within } as usize)
        }
        other => return Err(Error::invalid("the mode of a pad", "constant, edge, reflect or wrap", other)),
    })
}

pub(crate) fn center_crop_pad(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, shape) = (call.array(0)?, call.array(1)?.to_i64s()?);
    let rank = x.dims().len();
    let axes: Vec<usize> = match call.ints("axes")? {
        Some(axes) => axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Result<_>>()?,
        None => (0..rank).collect(),
    };
    if axes.len() != shape.len() {
        return Err(Error::invalid("shape", format!("{} sizes", axes.len()), shape.len()));
    }
    let (mut before, mut after) = (vec![0; rank], vec![0; rank]);
    for (axis, size) in axes.iter().zip(shape) {
        let added = size_of_int(size)? as i64 - x.dims()[*axis] as i64;
        // If the number is odd, one more element is cut or added at the end.
        before[*axis] = if added >= 0 { added / 2 } else { -(-added / 2) };
        after[*axis] = added - before[*axis];
    }
    one(padded(x, &before, &after, "constant", &[0; 16]))
}

pub(crate) fn reverse_sequence(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, lengths) = (call.array(0)?, call.array(1)?.to_i64s()?);
    let (batch, time) = (call.int("batch_axis", 1)?, call.int("time_axis", 0)?);
    let (batch, time) = (axis_of(batch, x.dims().len())?, axis_of(time, x.dims().len())?);
    let (steps, size) = (strides(x.dims()), x.kind().size_bytes());
    if lengths.len() != x.dims()[batch] || lengths.iter().any(|len| *len < 0 || *len as usize > x.dims()[time]) {
        return Err(Error::invalid(
            "sequence_lens",
            "a length for each row, at most the axis'",
            format!("{lengths:?}"),
        ));
    }
    one(Array::build(x.kind(), x.dims(), |bytes| {
        for (place, target) in bytes.chunks_exact_mut(size).enumerate() {
            let at = |axis: usize| place / steps[axis] as usize % x.dims()[axis];
            let (row, when) = (at(batch), at(time));
            let len = lengths[row] as usize;
            let from = if when < len {
                place - when * steps[time] as usize + (len - 1 - when) * steps[time] as usize
            } else {
                place
            };
            target.copy_from_slice(&x.bytes()[from * size..][..size]);
        }
    }))
}
