//! Loops: `Loop`, `Scan` and `SequenceMap`, whose bodies are programs of their own.

use std::future::Future;
use std::pin::Pin;

use super::{Context, Executable, RunValue};
use crate::array::Array;
use crate::error::{Error, Result};
use crate::ops::call::{Call, axis_of, size_of_int, truth};
use crate::ops::index::{strides, transpose, view};
use crate::ops::shape::concat_arrays;
use crate::program::OpKind;
use crate::value::Value;

/// Runs a node that has a body. `captured` are the values of the surrounding graph that the body
/// reads.
pub(super) async fn run(
    context: &Context<'_>,
    call: &Call<'_>,
    body: &Executable,
    captured: &[RunValue],
) -> Result<Vec<Value>> {
    match call.node.kind {
        OpKind::Loop => run_loop(context, call, body, captured).await,
        OpKind::Scan => run_scan(context, call, body, captured).await,
        _ => run_map(context, call, body, captured).await,
    }
}

/// The outputs of one iteration.
type Turn<'t> = Pin<Box<dyn Future<Output = Result<Vec<Value>>> + Send + 't>>;

/// Runs the body once. Bodies contain bodies, so the future is on the heap.
fn turn<'t>(context: &'t Context<'_>, body: &'t Executable, inputs: Vec<Value>, captured: &'t [RunValue]) -> Turn<'t> {
    Box::pin(async move {
        context.turn()?;
        let inputs = inputs.into_iter().map(RunValue::Value).chain(captured.iter().cloned());
        let mut outputs = Vec::new();
        for output in body.run(context, inputs.collect()).await? {
            outputs.push(context.fetch(&output).await?);
        }
        Ok(outputs)
    })
}

async fn run_loop(
    context: &Context<'_>,
    call: &Call<'_>,
    body: &Executable,
    captured: &[RunValue],
) -> Result<Vec<Value>> {
    let limit = call.optional_ints(0)?.and_then(|limit| limit.first().copied());
    let mut goes_on = match call.inputs.get(1).and_then(Option::as_ref) {
        Some(condition) => truth(condition)?,
        None => true,
    };
    let mut carried: Vec<Value> = call.inputs.iter().skip(2).flatten().cloned().collect();
    let carried_len = carried.len();
    let mut collected: Vec<Vec<Array>> = vec![Vec::new(); call.node.outputs.len().saturating_sub(carried_len)];
    let mut turns = 0;
    while goes_on && limit.is_none_or(|limit| turns < limit) {
        let mut inputs = vec![Array::from_i64s([turns], [])?.into(), Array::from_bools(&[goes_on], [])?.into()];
        inputs.append(&mut carried);
        let mut outputs = turn(context, body, inputs, captured).await?.into_iter();
        goes_on = outputs.next().as_ref().map(truth).transpose()?.unwrap_or(false);
        carried = outputs.by_ref().take(carried_len).collect();
        for (list, value) in collected.iter_mut().zip(outputs) {
            list.push(value.array()?.clone());
        }
        turns += 1;
    }
    for list in collected {
        carried.push(stack(&list, 0)?.into());
    }
    Ok(carried)
}

/// Stacks arrays of one shape along a new axis.
fn stack(arrays: &[Array], axis: usize) -> Result<Array> {
    if arrays.is_empty() {
        return Err(Error::unsupported("a loop without turns that collects outputs"));
    }
    let raised = |array: &Array| {
        let mut dims = array.dims().to_vec();
        dims.insert(axis.min(dims.len()), 1);
        array.reshape(dims)
    };
    let arrays: Vec<Array> = arrays.iter().map(raised).collect::<Result<_>>()?;
    concat_arrays(&arrays.iter().collect::<Vec<_>>(), axis)
}

/// The subarray at one index of an axis. The axis is removed.
fn at_index(array: &Array, axis: usize, index: usize) -> Result<Array> {
    if array.dims().get(axis).is_none_or(|len| index >= *len) {
        return Err(Error::invalid("what is scanned", format!("index {index} of axis {axis}"), format!("{array:?}")));
    }
    let (mut dims, mut steps) = (array.dims().to_vec(), strides(array.dims()));
    let start = index * steps[axis] as usize;
    dims.remove(axis);
    steps.remove(axis);
    view(array, &dims, start, &steps)
}

async fn run_scan(
    context: &Context<'_>,
    call: &Call<'_>,
    body: &Executable,
    captured: &[RunValue],
) -> Result<Vec<Value>> {
    if call.version() < 9 {
        return scan_batches(context, call, body, captured).await;
    }
    let scanned = size_of_int(call.int("num_scan_inputs", 1)?)?;
    let arrays = call.arrays(0)?;
    let states = arrays.len().checked_sub(scanned);
    let states =
        states.ok_or_else(|| Error::invalid("num_scan_inputs", format!("at most {}", arrays.len()), scanned))?;
    let list = |name: &str, place: usize| {
        call.ints(name).map(|list| list.and_then(|list| list.get(place).copied()).unwrap_or(0))
    };
    let mut inputs = Vec::new();
    for (place, array) in arrays[states..].iter().enumerate() {
        let axis = axis_of(list("scan_input_axes", place)?, array.dims().len())?;
        inputs.push((*array, axis, list("scan_input_directions", place)? == 1));
    }
    let turns = inputs.first().map_or(0, |(array, axis, _)| array.dims()[*axis]);
    let mut carried: Vec<Value> = arrays[..states].iter().map(|array| Value::Array((*array).clone())).collect();
    let mut collected: Vec<Vec<Array>> = vec![Vec::new(); call.node.outputs.len().saturating_sub(states)];
    for at in 0..turns {
        let mut given = std::mem::take(&mut carried);
        for (array, axis, reversed) in &inputs {
            if array.dims()[*axis] != turns {
                return Err(Error::invalid("what is scanned", format!("{turns} along its axis"), array.dims()[*axis]));
            }
            given.push(at_index(array, *axis, if *reversed { turns - 1 - at } else { at })?.into());
        }
        let mut outputs = turn(context, body, given, captured).await?.into_iter();
        carried = outputs.by_ref().take(states).collect();
        for (list, value) in collected.iter_mut().zip(outputs) {
            list.push(value.array()?.clone());
        }
    }
    for (place, mut list) in collected.into_iter().enumerate() {
        if list_flag(call, "scan_output_directions", place)? {
            list.reverse();
        }
        let rank = list.first().map_or(1, |array| array.dims().len() + 1);
        let axis = axis_of(list_int(call, "scan_output_axes", place)?, rank)?;
        let stacked = stack(&list, 0)?;
        let mut order: Vec<usize> = (1..rank).collect();
        order.insert(axis, 0);
        carried.push(transpose(&stacked, &order)?.into());
    }
    Ok(carried)
}

fn list_int(call: &Call<'_>, name: &str, place: usize) -> Result<i64> {
    Ok(call.ints(name)?.and_then(|list| list.get(place).copied()).unwrap_or(0))
}

fn list_flag(call: &Call<'_>, name: &str, place: usize) -> Result<bool> {
    Ok(list_int(call, name, place)? == 1)
}

/// Version 8 of `Scan`: a leading batch axis and sequence lengths. Only sequences of full length
/// are supported.
async fn scan_batches(
    context: &Context<'_>,
    call: &Call<'_>,
    body: &Executable,
    captured: &[RunValue],
) -> Result<Vec<Value>> {
    if call.optional(0)?.is_some() || call.ints("directions")?.is_some() {
        return Err(Error::unsupported("Scan of version 8 with lengths or directions"));
    }
    let scanned = size_of_int(call.int("num_scan_inputs", 1)?)?;
    let arrays = call.arrays(1)?;
    let states = arrays.len().saturating_sub(scanned);
    if call.node.outputs.len() < states {
        return Err(Error::invalid("Scan", format!("at least {states} outputs"), call.node.outputs.len()));
    }
    let batch = arrays.first().and_then(|array| array.dims().first().copied()).unwrap_or(0);
    let mut rows: Vec<Vec<Array>> = vec![Vec::new(); call.node.outputs.len()];
    for row in 0..batch {
        let one = |array: &&Array| at_index(array, 0, row);
        let given = arrays.iter().map(one).collect::<Result<Vec<_>>>()?;
        let turns = given.get(states).and_then(|array| array.dims().first().copied()).unwrap_or(0);
        let mut carried: Vec<Value> = given[..states].iter().cloned().map(Value::Array).collect();
        let mut collected: Vec<Vec<Array>> = vec![Vec::new(); rows.len().saturating_sub(states)];
        for at in 0..turns {
            let mut inputs = std::mem::take(&mut carried);
            for array in &given[states..] {
                inputs.push(at_index(array, 0, at)?.into());
            }
            let mut outputs = turn(context, body, inputs, captured).await?.into_iter();
            carried = outputs.by_ref().take(states).collect();
            for (list, value) in collected.iter_mut().zip(outputs) {
                list.push(value.array()?.clone());
            }
        }
        for (row, value) in rows.iter_mut().zip(&carried) {
            row.push(value.array()?.clone());
        }
        for (row, list) in rows[states..].iter_mut().zip(&collected) {
            row.push(stack(list, 0)?);
        }
    }
    rows.iter().map(|list| stack(list, 0).map(Value::Array)).collect()
}

async fn run_map(
    context: &Context<'_>,
    call: &Call<'_>,
    body: &Executable,
    captured: &[RunValue],
) -> Result<Vec<Value>> {
    let values: Vec<&Value> = call.inputs.iter().flatten().collect();
    let first = values.first().ok_or_else(|| Error::invalid("SequenceMap", "a sequence", "nothing"))?;
    let turns = first.sequence()?.len();
    let mut lists: Vec<Vec<Value>> = vec![Vec::new(); call.node.outputs.len()];
    for at in 0..turns {
        let pick = |value: &&Value| match value {
            Value::Sequence(items) => items
                .get(at)
                .cloned()
                .ok_or_else(|| Error::invalid("SequenceMap", format!("{turns} elements"), items.len())),
            other => Ok((*other).clone()),
        };
        let outputs = turn(context, body, values.iter().map(pick).collect::<Result<_>>()?, captured).await?;
        for (list, value) in lists.iter_mut().zip(outputs) {
            list.push(value);
        }
    }
    lists.into_iter().map(Value::list).collect()
}
