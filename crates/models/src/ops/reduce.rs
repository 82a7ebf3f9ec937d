//! Reductions, scans and selections along axes.

use std::cmp::Ordering;

use super::call::{Call, axis_of, one, size_of_int};
use super::index::{around, transpose};
use crate::array::{Array, host_count};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::value::Value;

/// The axes of a reduction. `None` if the node is an identity.
pub(crate) fn reduced_axes(call: &Call<'_>, rank: usize) -> Result<Option<Vec<usize>>> {
    let axes = call.axes(1)?.filter(|axes| !axes.is_empty());
    match axes {
        None if call.flag("noop_with_empty_axes", false)? => Ok(None),
        None => Ok(Some((0..rank).collect())),
        Some(axes) => {
            let mut axes: Vec<usize> = axes.iter().map(|axis| axis_of(*axis, rank)).collect::<Result<_>>()?;
            axes.sort_unstable();
            axes.dedup();
            Ok(Some(axes))
        }
    }
}

/// The shape after a reduction.
pub(crate) fn reduced_dims(dims: &[usize], axes: &[usize], keep: bool) -> Vec<usize> {
    let kept = dims.iter().enumerate().filter(|(axis, _)| keep || !axes.contains(axis));
    kept.map(|(axis, dim)| if axes.contains(&axis) { 1 } else { *dim }).collect()
}

pub(crate) fn reduce(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let rank = x.dims().len();
    let keep = call.flag("keepdims", true)?;
    let axes = reduced_axes(call, rank)?;
    let noop = axes.is_none();
    let axes = axes.unwrap_or_default();
    // The reduced axes are moved to the end, so that each result comes from one contiguous run.
    let order: Vec<usize> = (0..rank).filter(|axis| !axes.contains(axis)).chain(axes.iter().copied()).collect();
    let run: usize = axes.iter().map(|axis| x.dims()[*axis]).product();
    let turned = transpose(x, &order)?;
    let dims = if noop { x.dims().to_vec() } else { reduced_dims(x.dims(), &axes, keep) };
    let count = host_count(&dims)?;
    if x.kind().is_float() {
        let (numbers, function) = (turned.to_floats()?, float_reduction(call.op())?);
        let values: Vec<f64> = (0..count).map(|place| function(&numbers[place * run..][..run])).collect();
        return one(Array::from_floats(x.kind(), dims, &values));
    }
    let numbers = turned.to_integers()?;
    let function = integer_reduction(call.op(), x.kind())?;
    let values: Vec<i128> = (0..count).map(|place| function(&numbers[place * run..][..run])).collect();
    one(Array::from_integers(x.kind(), dims, &values))
}

fn float_reduction(op: &str) -> Result<fn(&[f64]) -> f64> {
    fn extreme(row: &[f64], start: f64, better: fn(f64, f64) -> bool) -> f64 {
        row.iter().fold(start, |best, value| {
            if value.is_nan() || best.is_nan() {
                f64::NAN
            } else if better(*value, best) {
                *value
            } else {
                best
            }
        })
    }
    Ok(match op {
        "ReduceSum" => |row| row.iter().sum(),
        "ReduceMean" => |row| row.iter().sum::<f64>() / row.len() as f64,
        "ReduceMax" => |row| extreme(row, f64::NEG_INFINITY, |a, b| a > b),
        "ReduceMin" => |row| extreme(row, f64::INFINITY, |a, b| a < b),
        "ReduceProd" => |row| row.iter().product(),
        "ReduceL1" => |row| row.iter().map(|value| value.abs()).sum(),
        "ReduceL2" => |row| row.iter().map(|value| value * value).sum::<f64>().sqrt(),
        "ReduceLogSum" => |row| row.iter().sum::<f64>().ln(),
        "ReduceSumSquare" => |row| row.iter().map(|value| value * value).sum(),
        "ReduceLogSumExp" => |row| {
            let largest = extreme(row, f64::NEG_INFINITY, |a, b| a > b);
            if !largest.is_finite() {
                largest
            } else {
                row.iter().map(|value| (value - largest).exp()).sum::<f64>().ln() + largest
            }
        },
        other => return Err(Error::unsupported(format!("{other} of floats"))),
    })
}

/// A function of a row of integers.
type IntegerReduction = Box<dyn Fn(&[i128]) -> i128>;

fn integer_reduction(op: &str, kind: ElementType) -> Result<IntegerReduction> {
    let (low, high) = kind.range();
    Ok(match op {
        "ReduceSum" => Box::new(|row| row.iter().sum()),
        "ReduceMean" => Box::new(|row| row.iter().sum::<i128>().checked_div(row.len() as i128).unwrap_or(0)),
        "ReduceMax" => Box::new(move |row| row.iter().copied().max().unwrap_or(low)),
        "ReduceMin" => Box::new(move |row| row.iter().copied().min().unwrap_or(high)),
        "ReduceProd" => Box::new(|row| row.iter().fold(1, |product: i128, value| product.wrapping_mul(*value))),
        "ReduceL1" => Box::new(|row| row.iter().map(|value| value.abs()).sum()),
        "ReduceL2" => Box::new(|row| row.iter().map(|value| (*value as f64).powi(2)).sum::<f64>().sqrt() as i128),
        "ReduceSumSquare" => {
            Box::new(|row| row.iter().fold(0, |sum: i128, value| sum.wrapping_add(value.wrapping_mul(*value))))
        }
        "ReduceLogSum" => Box::new(|row| (row.iter().sum::<i128>() as f64).ln() as i128),
        "ReduceLogSumExp" => Box::new(|row| row.iter().map(|value| (*value as f64).exp()).sum::<f64>().ln() as i128),
        other => return Err(Error::unsupported(format!("{other} of {kind}"))),
    })
}

/// Numbers compared in their own type: integers beyond 53 bits do not fit f64.
enum Numbers {
    Floats(Vec<f64>),
    Integers(Vec<i128>),
}

impl Numbers {
    fn of(array: &Array) -> Result<Numbers> {
        match array.kind().is_float() {
            true => array.to_floats().map(Numbers::Floats),
            false => array.to_integers().map(Numbers::Integers),
        }
    }

    fn compare(&self, a: usize, b: usize) -> Option<Ordering> {
        match self {
            Numbers::Floats(values) => values[a].partial_cmp(&values[b]),
            Numbers::Integers(values) => Some(values[a].cmp(&values[b])),
        }
    }

    fn total_order(&self, a: usize, b: usize) -> Ordering {
        match self {
            Numbers::Floats(values) => values[a].total_cmp(&values[b]),
            Numbers::Integers(values) => values[a].cmp(&values[b]),
        }
    }
}

/// The indices of the largest or smallest elements.
pub(crate) fn arg(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let axis = axis_of(call.int("axis", 0)?, x.dims().len())?;
    let (outer, len, inner) = around(x.dims(), axis);
    let (last, is_max) = (call.flag("select_last_index", false)?, call.op() == "ArgMax");
    if len == 0 && outer * inner > 0 {
        return Err(Error::invalid("an axis", "at least one element", 0));
    }
    let numbers = Numbers::of(x)?;
    let mut places = Vec::with_capacity(host_count(&[outer, inner])?);
    for line in 0..outer * inner {
        let at = |row: usize| (line / inner * len + row) * inner + line % inner;
        let mut best = 0;
        for row in 1..len {
            let order = numbers.compare(at(row), at(best));
            let order = if is_max { order } else { order.map(Ordering::reverse) };
            if order == Some(Ordering::Greater) || (last && order == Some(Ordering::Equal)) {
                best = row;
            }
        }
        places.push(best as i64);
    }
    one(Array::from_i64s(places, reduced_dims(x.dims(), &[axis], call.flag("keepdims", true)?)))
}

/// Cumulative sums and products.
pub(crate) fn cumulate(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let axis = call.array(1)?.to_i64s()?.first().copied().unwrap_or(0);
    let (outer, len, inner) = around(x.dims(), axis_of(axis, x.dims().len())?);
    let (exclusive, reverse) = (call.flag("exclusive", false)?, call.flag("reverse", false)?);
    let is_sum = call.op() == "CumSum";
    fn run<T: Copy>(
        values: &mut [T],
        form: (usize, usize, usize),
        how: (bool, bool),
        start: T,
        join: impl Fn(T, T) -> T,
    ) {
        let (outer, len, inner) = form;
        let lines = if values.is_empty() { 0 } else { outer * inner };
        for line in 0..lines {
            let mut sum = start;
            for row in 0..len {
                let row = if how.1 { len - 1 - row } else { row };
                let at = (line / inner * len + row) * inner + line % inner;
                let next = join(sum, values[at]);
                values[at] = if how.0 { sum } else { next };
                sum = next;
            }
        }
    }
    let (form, how) = ((outer, len, inner), (exclusive, reverse));
    if x.kind().is_float() {
        let mut values = x.to_floats()?;
        run(&mut values, form, how, if is_sum { 0.0 } else { 1.0 }, |a, b| if is_sum { a + b } else { a * b });
        return one(Array::from_floats(x.kind(), x.dims(), &values));
    }
    let mut values = x.to_integers()?;
    run(&mut values, form, how, i128::from(!is_sum), |a, b| if is_sum { a.wrapping_add(b) } else { a.wrapping_mul(b) });
    one(Array::from_integers(x.kind(), x.dims(), &values))
}

pub(crate) fn top_k(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let k = match call.optional_ints(1)? {
        Some(k) => k.first().copied().unwrap_or(0),
        None => call.int("k", 0)?,
    };
    let axis = axis_of(call.int("axis", -1)?, x.dims().len())?;
    let (outer, len, inner) = around(x.dims(), axis);
    let k = size_of_int(k)?;
    if k > len {
        return Err(Error::invalid("k", format!("at most {len}"), k));
    }
    host_count(&[len])?;
    let (largest, size) = (call.flag("largest", true)?, x.kind().size_bytes());
    let numbers = Numbers::of(x)?;
    let mut chosen = vec![0_usize; host_count(&[outer, k, inner])?];
    let mut rows: Vec<usize> = Vec::with_capacity(len);
    for line in 0..outer * inner {
        let at = |row: usize| (line / inner * len + row) * inner + line % inner;
        rows.clear();
        rows.extend(0..len);
        rows.sort_by(|a, b| {
            let order = numbers.total_order(at(*a), at(*b));
            (if largest { order.reverse() } else { order }).then(a.cmp(b))
        });
        for (rank, row) in rows.iter().take(k).enumerate() {
            chosen[(line / inner * k + rank) * inner + line % inner] = *row;
        }
    }
    let mut dims = x.dims().to_vec();
    dims[axis] = k;
    let values = Array::build(x.kind(), &dims, |bytes| {
        for (place, (target, row)) in bytes.chunks_exact_mut(size).zip(&chosen).enumerate() {
            let from = (place / inner / k * len + row) * inner + place % inner;
            target.copy_from_slice(&x.bytes()[from * size..][..size]);
        }
    })?;
    let indices = Array::from_i64s(chosen.iter().map(|row| *row as i64), &dims)?;
    Ok(vec![values.into(), indices.into()])
}

/// The axis of softmax and similar ops, as `(outer, length, inner)`. Before version 13 the axis and
/// all axes after it count as one.
pub(crate) fn softmax_form(call: &Call<'_>, dims: &[usize]) -> Result<(usize, usize, usize)> {
    if dims.is_empty() {
        return Ok((1, 1, 1));
    }
    if call.version() >= 13 {
        return Ok(around(dims, axis_of(call.int("axis", -1)?, dims.len())?));
    }
    let axis = match call.int("axis", 1)? {
        axis if axis == dims.len() as i64 => dims.len(),
        axis => axis_of(axis, dims.len())?,
    };
    Ok((dims[..axis].iter().product(), dims[axis..].iter().product(), 1))
}

/// `Softmax`, `LogSoftmax` and `Hardmax`.
pub(crate) fn softmax(call: &Call<'_>) -> Result<Vec<Value>> {
    let x = call.array(0)?;
    let (outer, len, inner) = softmax_form(call, x.dims())?;
    let mut values = x.to_floats()?;
    let lines = if values.is_empty() { 0 } else { outer * inner };
    for line in 0..lines {
        let at = |row: usize| (line / inner * len + row) * inner + line % inner;
        let mut best = 0;
        for row in 1..len {
            if values[at(row)] > values[at(best)] {
                best = row;
            }
        }
        if call.op() == "Hardmax" {
            (0..len).for_each(|row| values[at(row)] = f64::from(u8::from(row == best)));
            continue;
        }
        let largest = if len == 0 { 0.0 } else { values[at(best)] };
        let sum: f64 = (0..len).map(|row| (values[at(row)] - largest).exp()).sum();
        for row in 0..len {
            let shifted = values[at(row)] - largest;
            values[at(row)] = if call.op() == "LogSoftmax" { shifted - sum.ln() } else { shifted.exp() / sum };
        }
    }
    one(Array::from_floats(x.kind(), x.dims(), &values))
}
