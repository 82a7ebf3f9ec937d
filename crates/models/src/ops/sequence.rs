//! Sequences and optional values.

use super::call::{Call, axis_of, one, size_of_int};
use super::index::{strides, view};
use super::shape::concat_arrays;
use crate::array::Array;
use crate::bounds::list_len;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

fn position(call: &Call<'_>, place: usize, len: usize) -> Result<Option<usize>> {
    let Some(at) = call.optional_ints(place)?.and_then(|at| at.first().copied()) else { return Ok(None) };
    let from_front = if at < 0 { at + len as i64 } else { at };
    match usize::try_from(from_front) {
        Ok(at) if at <= len => Ok(Some(at)),
        _ => Err(Error::invalid("a position", format!("-{len} to {len}"), at)),
    }
}

pub(crate) fn construct(call: &Call<'_>) -> Result<Vec<Value>> {
    Ok(vec![Value::list(call.inputs.iter().flatten().cloned().collect())?])
}

pub(crate) fn empty(_: &Call<'_>) -> Result<Vec<Value>> {
    Ok(vec![Value::Sequence(Vec::new().into())])
}

pub(crate) fn at(call: &Call<'_>) -> Result<Vec<Value>> {
    let values = call.value(0)?.sequence()?;
    let at = position(call, 1, values.len())?.unwrap_or(0);
    let value = values.get(at).cloned();
    Ok(vec![value.ok_or_else(|| Error::invalid("a position", format!("below {}", values.len()), at))?])
}

pub(crate) fn length(call: &Call<'_>) -> Result<Vec<Value>> {
    one(Array::from_i64s([call.value(0)?.sequence()?.len() as i64], []))
}

pub(crate) fn insert(call: &Call<'_>) -> Result<Vec<Value>> {
    let mut values = call.value(0)?.sequence()?.to_vec();
    let at = position(call, 2, values.len())?.unwrap_or(values.len());
    values.insert(at, call.value(1)?.clone());
    Ok(vec![Value::list(values)?])
}

pub(crate) fn erase(call: &Call<'_>) -> Result<Vec<Value>> {
    let mut values = call.value(0)?.sequence()?.to_vec();
    let last = values.len().saturating_sub(1);
    let at = position(call, 1, values.len())?.unwrap_or(last);
    if at >= values.len() {
        return Err(Error::invalid("a position", format!("below {}", values.len()), at));
    }
    values.remove(at);
    Ok(vec![Value::Sequence(values.into())])
}

pub(crate) fn split(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let axis = axis_of(call.int("axis", 0)?, x.dims().len())?;
    let len = x.dims()[axis];
    let sizes: Vec<usize> = match call.optional(1)? {
        None => {
            list_len(len)?;
            vec![1; len]
        }
        Some(size) if size.dims().is_empty() => {
            let each = size_of_int(size.to_i64s()?.first().copied().unwrap_or(1))?.max(1);
            list_len(len.div_ceil(each))?;
            (0..len.div_ceil(each)).map(|part| each.min(len - part * each)).collect()
        }
        Some(sizes) => {
            list_len(sizes.len())?;
            sizes.to_i64s()?.into_iter().map(size_of_int).collect::<Result<_>>()?
        }
    };
    if sizes.iter().fold(0_usize, |sum, size| sum.saturating_add(*size)) != len {
        return Err(Error::invalid("split", format!("sizes that add up to {len}"), format!("{sizes:?}")));
    }
    let drops = call.optional(1)?.is_none() && !call.flag("keepdims", true)?;
    let (steps, mut start, mut parts) = (strides(x.dims()), 0, Vec::new());
    for size in sizes {
        let mut dims = x.dims().to_vec();
        dims[axis] = size;
        let part = view(x, &dims, start * steps[axis] as usize, &steps)?;
        if drops {
            dims.remove(axis);
        }
        parts.push(Value::Array(if drops { part.reshape(dims)? } else { part }));
        start += size;
    }
    Ok(vec![Value::Sequence(parts.into())])
}

pub(crate) fn concat(call: &Call<'_>) -> Result<Vec<Value>> {
    let arrays = call.value(0)?.sequence()?.iter().map(Value::array).collect::<Result<Vec<_>>>()?;
    let first = *arrays.first().ok_or_else(|| Error::invalid("a sequence", "at least one array", "none"))?;
    if !call.flag("new_axis", false)? {
        let axis = axis_of(call.int("axis", 0)?, first.dims().len())?;
        return one(concat_arrays(&arrays, axis));
    }
    let axis = axis_of(call.int("axis", 0)?, first.dims().len() + 1)?;
    let raised = arrays.iter().map(|array| {
        let mut dims = array.dims().to_vec();
        dims.insert(axis.min(dims.len()), 1);
        array.reshape(dims)
    });
    let raised = raised.collect::<Result<Vec<_>>>()?;
    one(concat_arrays(&raised.iter().collect::<Vec<_>>(), axis))
}

pub(crate) fn optional(call: &Call<'_>) -> Result<Vec<Value>> {
    Ok(vec![Value::maybe(call.inputs.first().and_then(Option::as_ref).cloned())?])
}

pub(crate) fn optional_has(call: &Call<'_>) -> Result<Vec<Value>> {
    let has = !matches!(call.inputs.first().and_then(Option::as_ref), None | Some(Value::Optional(None)));
    one(Array::from_bytes(ElementType::Bool, [], &[u8::from(has)]))
}

pub(crate) fn optional_get(call: &Call<'_>) -> Result<Vec<Value>> {
    match call.value(0)? {
        Value::Optional(Some(value)) => Ok(vec![(**value).clone()]),
        Value::Optional(None) => Err(Error::invalid("an optional value", "one that is there", "none")),
        value => Ok(vec![value.clone()]),
    }
}
