//! Joins requests into one batch, and splits its outputs into their answers.

use std::time::Instant;

use panoply_models::rows::{self, cut};
use panoply_models::{Array, Dimension, ElementType, Model, Outputs, Port};
use panoply_runtime::{RunOptions, TaskOutcome, TaskReport};

use super::ServeOptions;
use super::queue::Request;
use super::room::InstanceBuffers;
use crate::error::{Error, Result};

/// Inputs that are the same for all rows are compared byte by byte up to this size; requests with
/// larger ones are not joined.
const SHARED_BYTES_MAX: usize = 256;

/// The row axis of each input and output; `None` for inputs that all rows share.
#[derive(Clone, Debug)]
pub(super) struct RowAxes {
    inputs: Vec<Input>,
    outputs: Vec<(usize, bool)>,
    joins: bool,
}

#[derive(Clone, Debug)]
struct Input {
    name: String,
    axis: Option<usize>,
    grows: bool,
    /// Number of dimensions, if the file gives it.
    rank: Option<usize>,
}

impl RowAxes {
    pub(super) fn of(model: &Model) -> RowAxes {
        let first = |port: &Port| port.dims.as_ref().and_then(|dims| dims.first().cloned());
        let open = |port: &Port| matches!(first(port), Some(Dimension::Named(_)));
        let symbol = model.inputs().iter().filter(|port| open(port)).find_map(first);
        // Unnamed dimensions are not necessarily equal.
        let named =
            symbol.as_ref().filter(|dim| !matches!(dim, Dimension::Named(name) if name.is_empty() || name == "?"));
        let axis = |port: &Port| {
            let named = |dims: &Vec<Dimension>| named.and_then(|named| dims.iter().position(|dim| dim == named));
            port.dims.as_ref().and_then(named).or(open(port).then_some(0))
        };
        let grows = |port: &Port| matches!(port.dims.as_deref(), Some([_, Dimension::Named(_), ..]));
        RowAxes {
            inputs: model
                .inputs()
                .iter()
                .map(|port| {
                    let (name, rank) = (port.name.clone(), port.dims.as_ref().map(Vec::len));
                    Input { name, axis: axis(port), grows: grows(port), rank }
                })
                .collect(),
            outputs: model
                .outputs()
                .iter()
                .map(|port| (axis(port).unwrap_or(0), grows(port) || port.dims.is_none()))
                .collect(),
            joins: symbol.is_some() && model.inputs().iter().all(|port| port.dims.is_some()),
        }
    }
}

/// The length that a sequence is padded to.
fn bucket(len: usize, buckets: &[usize]) -> usize {
    buckets.iter().copied().find(|bucket| *bucket >= len).unwrap_or(len)
}

/// The key that joinable requests share, and the number of rows of a request.
pub(super) fn key(form: &RowAxes, inputs: &[(String, Array)], buckets: &[usize]) -> (Option<Vec<u64>>, usize) {
    let (mut key, mut rows) = (Vec::new(), None);
    for Input { name, axis, grows, rank } in &form.inputs {
        let Some((_, array)) = inputs.iter().find(|(known, _)| known == name) else { return (None, 1) };
        // A request that does not fit the model is not joined: it is refused alone.
        if rank.is_some_and(|rank| rank != array.dims().len()) {
            return (None, 1);
        }
        key.extend([array.kind().code() as u64, array.dims().len() as u64]);
        for (place, dim) in array.dims().iter().enumerate() {
            key.push(match place {
                place if Some(place) == *axis => match *rows.get_or_insert(*dim) == *dim {
                    true => u64::MAX,
                    false => return (None, 1),
                },
                1 if *grows => bucket(*dim, buckets) as u64,
                _ => *dim as u64,
            });
        }
        if axis.is_none() {
            // Texts have no bytes that could be compared.
            if array.kind() == ElementType::String || array.bytes().len() > SHARED_BYTES_MAX {
                return (None, 1);
            }
            key.extend(array.bytes().iter().map(|byte| u64::from(*byte)));
        }
    }
    let rows = rows.unwrap_or(1);
    ((form.joins && rows > 0 && inputs.len() == form.inputs.len()).then_some(key), rows)
}

/// Runs a batch and answers each of its requests.
pub(super) fn answer(
    model: &Model,
    form: &RowAxes,
    batch: Vec<Request>,
    options: &ServeOptions,
    room: &mut InstanceBuffers,
) {
    let mut batch = in_time(batch);
    let plain = batch.len() == 1 && (batch[0].key.is_none() || is_full(&batch[0], options));
    if !plain
        && !batch.is_empty()
        && let Ok(answers) = joined(model, form, &batch, options, room)
    {
        batch.drain(..).zip(answers).for_each(|(request, answer)| request.answer(Ok(answer)));
    }
    for request in batch {
        if let Some(request) = in_time(vec![request]).pop() {
            let inputs: Vec<(&str, Array)> =
                request.inputs.iter().map(|(name, array)| (name.as_str(), array.clone())).collect();
            let (run, began) = (alone(&request.run, &options.run), Instant::now());
            let answer = model.infer_while(&inputs, &run, &|| request.is_worth_a_step());
            let answer = answer.map(|outcome| reported(&request, began, 1, outcome.output, outcome.report));
            request.answer(answer.map_err(Error::from));
        }
    }
}

/// The answer of a request, with its wait and the steps of its batch.
fn reported(
    request: &Request,
    began: Instant,
    rows: usize,
    output: Outputs,
    batch: TaskReport,
) -> TaskOutcome<Outputs> {
    let mut report = TaskReport::default();
    report.add("wait for a batch", began.saturating_duration_since(request.arrived), None);
    report.add_part(&format!("batch of {rows}"), batch);
    report.took = request.arrived.elapsed();
    TaskOutcome { output, report }
}

/// The options for a request that runs alone: its own device choice, or else the server's.
fn alone(wished: &RunOptions, server: &RunOptions) -> RunOptions {
    let wished = RunOptions { verify_every: wished.verify_every.or(server.verify_every), ..wished.clone() };
    match wished.device.is_none() && wished.prefer.is_none() && wished.forbid.is_empty() {
        false => wished,
        true => {
            let RunOptions { device, prefer, forbid, .. } = server.clone();
            RunOptions { device, prefer, forbid, ..wished }
        }
    }
}

/// The requests whose callers still wait and whose deadline has not passed. Those that are late are
/// answered with an error.
fn in_time(batch: Vec<Request>) -> Vec<Request> {
    let now = Instant::now();
    let (late, timely): (Vec<_>, Vec<_>) = batch
        .into_iter()
        .filter(Request::is_wanted)
        .partition(|request| request.run.deadline.is_some_and(|deadline| deadline <= now));
    for request in late {
        let late_by = request.run.deadline.map_or(Default::default(), |deadline| now - deadline);
        request.answer(Err(Error::Run(panoply_core::Error::DeadlineExceeded { late_by })));
    }
    timely
}

/// Whether a single request needs no padding.
fn is_full(request: &Request, options: &ServeOptions) -> bool {
    options.buckets.is_empty() && bucket(request.rows, &options.preferred) == request.rows
}

fn joined(
    model: &Model,
    form: &RowAxes,
    batch: &[Request],
    options: &ServeOptions,
    room: &mut InstanceBuffers,
) -> Result<Vec<TaskOutcome<Outputs>>> {
    let (rows, began): (usize, Instant) = (batch.iter().map(|request| request.rows).sum(), Instant::now());
    let filled = bucket(rows, &options.preferred);
    let mut inputs = Vec::with_capacity(form.inputs.len());
    for Input { name, axis, grows, .. } in &form.inputs {
        let own = batch.iter().map(|request| given(request, name)).collect::<Result<Vec<&Array>>>()?;
        let array = match axis {
            None => own[0].clone(),
            Some(axis) => {
                let parts = own
                    .iter()
                    .map(|array| if *grows { lengthened(array, &options.buckets) } else { Ok((*array).clone()) });
                let mut parts = parts.collect::<Result<Vec<Array>>>()?;
                let last = parts[parts.len() - 1].clone();
                let row = cut(&last, *axis, last.dims()[*axis] - 1, 1)?;
                parts.extend(std::iter::repeat_n(row, filled - rows));
                room.concat(&parts.iter().collect::<Vec<_>>(), *axis)?
            }
        };
        inputs.push((name.as_str(), array));
    }
    let run = RunOptions { priority: batch[0].run.priority, deadline: None, ..options.run.clone() };
    // The batch goes on as long as one of its callers waits.
    let is_wanted = || batch.iter().any(Request::is_worth_a_step);
    let TaskOutcome { output, report } = model.infer_while(&inputs, &run, &is_wanted)?;
    let answers = split(form, &output, batch, filled, options)?;
    let told = |(request, output)| reported(request, began, filled, output, report.clone());
    Ok(batch.iter().zip(answers).map(told).collect())
}

fn given<'a>(request: &'a Request, name: &str) -> Result<&'a Array> {
    let found = request.inputs.iter().find(|(known, _)| known == name).map(|(_, array)| array);
    found.ok_or_else(|| Error::invalid("an input", name.to_owned(), "none"))
}

/// An array whose second dimension is padded with zeros.
fn lengthened(array: &Array, buckets: &[usize]) -> Result<Array> {
    Ok(rows::filled(array, 1, bucket(array.dims()[1], buckets))?)
}

/// Each request's rows of each output, without padding.
fn split(
    form: &RowAxes,
    outputs: &Outputs,
    batch: &[Request],
    filled: usize,
    options: &ServeOptions,
) -> Result<Vec<Outputs>> {
    let mut answers: Vec<Outputs> = batch.iter().map(|_| Outputs(Vec::with_capacity(outputs.0.len()))).collect();
    for ((name, array), (axis, grows)) in outputs.0.iter().zip(&form.outputs) {
        if array.dims().get(*axis) != Some(&filled) {
            return Err(Error::unsupported(format!("rows of the output {name:?}, which is {array:?}")));
        }
        let mut start = 0;
        for (answer, request) in answers.iter_mut().zip(batch) {
            let mut part = cut(array, *axis, start, request.rows)?;
            let (own, len) = lengths(form, request, options);
            if *grows && own != len && part.dims().get(1) == Some(&len) && *axis != 1 {
                part = cut(&part, 1, 0, own)?;
            }
            answer.0.push((name.clone(), part));
            start += request.rows;
        }
    }
    Ok(answers)
}

/// Length of a request's sequence, and its padded length.
fn lengths(form: &RowAxes, request: &Request, options: &ServeOptions) -> (usize, usize) {
    let growing = form.inputs.iter().find(|input| input.axis.is_some() && input.grows);
    let array = growing.and_then(|input| given(request, &input.name).ok());
    let own = array.and_then(|array| array.dims().get(1).copied()).unwrap_or(0);
    (own, bucket(own, &options.buckets))
}
