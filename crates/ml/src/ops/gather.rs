//! Elements picked by index, and elements put where an index says.

use super::call::{Call, axis_of, one};
use super::index::{around, index_of, strides};
use crate::array::{Array, count_of, host_count};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

/// Runs of elements of an array, each from a place.
fn pick(x: &Array, dims: &[usize], run: usize, places: impl Iterator<Item = usize>) -> Result<Array> {
    count_of(dims)?;
    if x.kind() == ElementType::String {
        let strings = x.as_strings()?;
        return Array::from_texts(places.flat_map(|place| &strings[place..place + run]), dims);
    }
    let (run, size) = (run * x.kind().size_bytes(), x.kind().size_bytes());
    let source = x.bytes();
    Array::build(x.kind(), dims, |bytes| {
        if run > 0 {
            for (target, place) in bytes.chunks_exact_mut(run).zip(places) {
                target.copy_from_slice(&source[place * size..][..run]);
            }
        }
    })
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
    let places = element_places(x, indices, call.int("axis", 0)?)?;
    one(pick(x, indices.dims(), 1, places.into_iter()))
}

/// For each index the place of its element: the same in all axes but one.
fn element_places(x: &Array, indices: &Array, axis: i64) -> Result<Vec<usize>> {
    let axis = axis_of(axis, x.dims().len())?;
    let fits = indices.dims().len() == x.dims().len()
        && indices.dims().iter().zip(x.dims()).enumerate().all(|(place, (index, dim))| place == axis || index <= dim);
    if !fits {
        return Err(Error::invalid("indices", format!("within {x:?} but for axis {axis}"), format!("{indices:?}")));
    }
    let (own, steps) = (strides(indices.dims()), strides(x.dims()));
    let mut places = Vec::with_capacity(indices.len());
    for (place, index) in indices.to_i64s()?.into_iter().enumerate() {
        let mut at = index_of(index, x.dims()[axis])? * steps[axis] as usize;
        for other in (0..own.len()).filter(|other| *other != axis) {
            at += place / own[other] as usize % indices.dims()[other] * steps[other] as usize;
        }
        places.push(at);
    }
    Ok(places)
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

/// Length and stride of each axis that a tuple of indices goes over, and how many elements lie behind one tuple.
fn nd_rows(dims: &[usize], width: usize) -> (Vec<(usize, usize)>, usize) {
    let rows = dims.iter().zip(strides(dims)).take(width).map(|(dim, step)| (*dim, step as usize)).collect();
    (rows, dims[width..].iter().product())
}

fn nd_place(tuple: &[i64], rows: &[(usize, usize)]) -> Result<usize> {
    let parts = tuple.iter().zip(rows).map(|(index, (dim, step))| Ok(index_of(*index, *dim)? * step));
    parts.sum()
}

/// How an element that is put somewhere joins the one that is there.
fn joined(kind: ElementType, reduction: &str, old: &Array, new: &Array) -> Result<Array> {
    if kind.is_float() {
        let join: fn(f64, f64) -> f64 = match reduction {
            "add" => |a, b| a + b,
            "mul" => |a, b| a * b,
            "max" => f64::max,
            _ => f64::min,
        };
        let values: Vec<f64> = old.to_floats()?.into_iter().zip(new.to_floats()?).map(|(a, b)| join(a, b)).collect();
        return Array::from_floats(kind, old.dims(), &values);
    }
    let join: fn(i128, i128) -> i128 = match reduction {
        "add" => |a, b| a + b,
        "mul" => i128::wrapping_mul,
        "max" => i128::max,
        _ => i128::min,
    };
    let values: Vec<i128> = old.to_integers()?.into_iter().zip(new.to_integers()?).map(|(a, b)| join(a, b)).collect();
    Array::from_integers(kind, old.dims(), &values)
}

/// Runs of updates put at places, one after the other.
fn put(x: &Array, updates: &Array, run: usize, places: &[usize], reduction: &str) -> Result<Array> {
    if !matches!(reduction, "none" | "add" | "mul" | "max" | "min") {
        return Err(Error::invalid("reduction", "none, add, mul, max or min", reduction));
    }
    if x.kind() != updates.kind() || updates.len() != places.len() * run {
        let expected = format!("{} elements of {}", places.len() * run, x.kind());
        return Err(Error::invalid("updates", expected, format!("{updates:?}")));
    }
    if x.kind() == ElementType::String {
        let mut texts = x.as_strings()?.to_vec();
        for (place, new) in places.iter().zip(updates.as_strings()?.chunks(run.max(1))) {
            texts[*place..*place + run].clone_from_slice(new);
        }
        return Array::from_strings(texts, x.dims());
    }
    let (size, kind) = (x.kind().size_bytes(), x.kind());
    let mut failed = Ok(());
    let array = Array::build(kind, x.dims(), |bytes| {
        bytes.copy_from_slice(x.bytes());
        if run == 0 {
            return;
        }
        for (place, new) in places.iter().zip(updates.bytes().chunks_exact(run * size)) {
            let target = &mut bytes[place * size..][..run * size];
            if reduction == "none" {
                target.copy_from_slice(new);
                continue;
            }
            let both =
                Array::from_bytes(kind, [run], target).and_then(|old| Ok((old, Array::from_bytes(kind, [run], new)?)));
            match both.and_then(|(old, new)| joined(kind, reduction, &old, &new)) {
                Ok(sum) => target.copy_from_slice(sum.bytes()),
                Err(error) => failed = Err(error),
            }
        }
    })?;
    failed.map(|()| array)
}

pub(crate) fn scatter_elements(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, indices, updates) = (call.array(0)?, call.array(1)?, call.array(2)?);
    let places = element_places(x, indices, call.int("axis", 0)?)?;
    one(put(x, updates, 1, &places, call.text("reduction", "none")?))
}

pub(crate) fn scatter_nd(call: &Call<'_>) -> Result<Vec<Value>> {
    let (x, indices, updates) = (call.array(0)?, call.array(1)?, call.array(2)?);
    let width = indices.dims().last().copied().unwrap_or(0);
    if width > x.dims().len() || indices.dims().is_empty() {
        return Err(Error::invalid("indices", format!("those of {x:?}"), format!("{indices:?}")));
    }
    let (rows, inner) = nd_rows(x.dims(), width);
    let index = indices.to_i64s()?;
    let count = host_count(&indices.dims()[..indices.dims().len() - 1])?;
    let places: Vec<usize> =
        (0..count).map(|tuple| nd_place(&index[tuple * width..][..width], &rows)).collect::<Result<_>>()?;
    one(put(x, updates, inner, &places, call.text("reduction", "none")?))
}

/// `TensorScatter`: rows of a cache replaced from a place of each batch on.
pub(crate) fn tensor_scatter(call: &Call<'_>) -> Result<Vec<Value>> {
    let (cache, update) = (call.array(0)?, call.array(1)?);
    let axis = axis_of(call.int("axis", -2)?, cache.dims().len())?;
    let circular = match call.text("mode", "linear")? {
        "linear" => false,
        "circular" => true,
        other => return Err(Error::invalid("mode", "linear or circular", other)),
    };
    let batch = cache.dims().first().copied().unwrap_or(0);
    let starts = call.optional_ints(2)?.unwrap_or_else(|| vec![0; batch]);
    let (outer, len, inner) = around(cache.dims(), axis);
    let pairs = cache.dims().iter().zip(update.dims()).enumerate();
    if update.dims().len() != cache.dims().len() || pairs.clone().any(|(at, (a, b))| at != axis && a != b) {
        return Err(Error::invalid("an update", format!("{cache:?} but for axis {axis}"), format!("{update:?}")));
    }
    let new = update.dims()[axis];
    host_count(&[outer, new])?;
    if starts.len() != batch || axis == 0 {
        return Err(Error::invalid("write_indices", format!("{batch} of them"), starts.len()));
    }
    let mut places = Vec::new();
    for block in 0..outer {
        let start = starts[block / (outer / batch.max(1)).max(1)];
        for row in 0..new as i64 {
            let at = match circular && len > 0 {
                true => (start.rem_euclid(len as i64) + row).rem_euclid(len as i64),
                false => start.saturating_add(row),
            };
            places.push((block * len + index_of(at, len)?) * inner);
        }
    }
    one(put(cache, update, inner, &places, "none"))
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
            // Minus zero is zero.
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

/// Groups of rows that are equal, in order, each with its places from the first on.
fn equal_rows<T>(
    numbers: &[T],
    (outer, len, inner): (usize, usize, usize),
    order: fn(&T, &T) -> std::cmp::Ordering,
) -> Vec<Vec<usize>> {
    // Rows of nothing are equal, however many of them lie in a row.
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
