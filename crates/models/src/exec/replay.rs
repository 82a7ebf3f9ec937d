//! Replays lists, and traces new ones.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use super::state::{State, ValueLocation};
use super::tracer::Tracer;
use super::{
    Branch, Context, Executable, Inner, Lists, OperandSource, Outcome, RunStep, RunValue, Segment, TraceEnd, bodies,
};
use crate::array::Array;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::ops::call::{Call, truth};
use crate::ops::index::index_of;
use crate::ops::table;
use crate::program::{Node, OpKind};
use crate::value::Value;

/// Runs a list and the lists that follow it.
pub(super) async fn replay(
    context: &Context<'_>,
    executable: &Executable,
    mut segment: Arc<Segment>,
    mut live: Vec<Option<RunValue>>,
) -> Result<Vec<RunValue>> {
    loop {
        for (step, frees) in segment.steps.iter().zip(&segment.frees) {
            run_step(context, step, &mut live).await?;
            frees.iter().for_each(|slot| context.let_go(live[*slot].take()));
        }
        let branch = match &segment.end {
            TraceEnd::Done(outputs) => return outputs.iter().map(|output| value_of(output, &live)).collect(),
            TraceEnd::Branch(branch) => branch,
        };
        let key = branch_key(context, branch, &live).await?;
        segment = match branch.lists.find(&key) {
            Some(next) => next,
            None => {
                let mut state = branch.state.clone();
                resume(&mut state, branch, &key)?;
                return trace(context, executable, state, live, &branch.lists, key).await;
            }
        };
    }
}

/// Traces from a state to the end and stores each list under its key.
pub(super) async fn trace(
    context: &Context<'_>,
    executable: &Executable,
    mut state: State,
    mut live: Vec<Option<RunValue>>,
    lists: &Lists,
    mut key: Vec<u64>,
) -> Result<Vec<RunValue>> {
    let mut parent: Option<Arc<Segment>> = None;
    loop {
        let mut tracer = Tracer::new(context, executable.share.kept(), state, live);
        let outcome = tracer.run().await?;
        let (segment, left) = finish(tracer, outcome);
        live = left;
        let segment = Arc::new(segment);
        match parent.as_deref().map(|parent| &parent.end) {
            Some(TraceEnd::Branch(branch)) => executable.keep(&branch.lists, key, &segment),
            _ => executable.keep(lists, key, &segment),
        }
        let branch = match &segment.end {
            TraceEnd::Done(outputs) => return outputs.iter().map(|output| value_of(output, &live)).collect(),
            TraceEnd::Branch(branch) => branch,
        };
        key = branch_key(context, branch, &live).await?;
        state = branch.state.clone();
        resume(&mut state, branch, &key)?;
        parent = Some(segment);
    }
}

/// The list that a tracer made, and the contents of the slots.
fn finish(tracer: Tracer<'_, '_>, outcome: Option<Outcome>) -> (Segment, Vec<Option<RunValue>>) {
    let Tracer { mut state, live, steps, .. } = tracer;
    let kept = match &outcome {
        Some(outcome) => {
            let mut kept = state.needed_slots();
            match outcome {
                Outcome::Forms(slots) => kept.extend(slots),
                Outcome::Truth(slot, _) => drop(kept.insert(*slot)),
            }
            kept
        }
        None => BTreeSet::new(),
    };
    let end = match outcome {
        Some(outcome) => {
            state.prune();
            TraceEnd::Branch(Box::new(Branch { outcome, state, lists: Lists::default() }))
        }
        None => TraceEnd::Done(state.outputs.iter().map(|id| source(state.bound.get(id))).collect()),
    };
    let mut kept = kept;
    if let TraceEnd::Done(outputs) = &end {
        kept.extend(
            outputs.iter().filter_map(|output| if let OperandSource::Slot(slot) = output { Some(*slot) } else { None }),
        );
    }
    // In reverse order, the first step found to read or write a slot is the last one to need it.
    let mut frees = vec![Vec::new(); steps.len()];
    for (step, frees) in steps.iter().zip(&mut frees).rev() {
        step_slots(step, &mut |slot| {
            if kept.insert(slot) {
                frees.push(slot);
            }
        });
    }
    (Segment { steps, frees, end }, live)
}

fn step_slots(step: &RunStep, visit: &mut dyn FnMut(usize)) {
    match step {
        RunStep::Graph { inputs, outputs, .. } => {
            inputs.iter().copied().chain(outputs.iter().map(|(slot, _)| *slot)).for_each(visit);
        }
        RunStep::Host { inputs, outputs, bodies, .. } => {
            let read = inputs
                .iter()
                .filter_map(|input| if let OperandSource::Slot(slot) = input { Some(*slot) } else { None });
            let captured = bodies.iter().flat_map(|(_, slots)| slots.iter().copied());
            read.chain(captured).chain(outputs.iter().flatten().copied()).for_each(visit);
        }
        RunStep::Indices { input, output, .. } => [*input, *output].into_iter().for_each(visit),
    }
}

pub(super) fn source(bound: Option<&ValueLocation>) -> OperandSource {
    match bound {
        Some(ValueLocation::Static(value)) => OperandSource::Static(value.clone()),
        Some(ValueLocation::Slot(slot)) => OperandSource::Slot(*slot),
        Some(ValueLocation::Pending(..)) | None => OperandSource::Missing,
    }
}

async fn branch_key(context: &Context<'_>, branch: &Branch, live: &[Option<RunValue>]) -> Result<Vec<u64>> {
    let mut key = Vec::new();
    match &branch.outcome {
        Outcome::Forms(slots) => {
            slots.iter().try_for_each(|slot| live_at(live, *slot).map(|live| live.form(&mut key)))?
        }
        Outcome::Truth(slot, _) => key.push(u64::from(truth(&context.fetch(live_at(live, *slot)?).await?)?)),
    }
    Ok(key)
}

/// Continues after a branch. An `If` is replaced by the body that its condition chose.
fn resume(state: &mut State, branch: &Branch, key: &[u64]) -> Result<()> {
    if let Outcome::Truth(_, place) = branch.outcome {
        let node = state.entry(place);
        inline(state, &node, key.first() == Some(&1))?;
    }
    Ok(())
}

/// Replaces an `If` by the nodes of the chosen body.
pub(super) fn inline(state: &mut State, node: &Node, condition: bool) -> Result<()> {
    let body = node.body(if condition { "then_branch" } else { "else_branch" })?;
    if body.outputs.len() < node.outputs.len() {
        return Err(Error::invalid(
            "the branch of an If",
            format!("{} outputs", node.outputs.len()),
            body.outputs.len(),
        ));
    }
    state.add(body);
    for (inner, outer) in body.outputs.iter().zip(&node.outputs) {
        if outer.is_some() {
            let kind = table::find("", "Identity", node.version.max(7))?;
            let (name, op) = (node.name.clone(), "Identity".to_owned());
            let (inputs, outputs) = (vec![Some(*inner)], vec![*outer]);
            let (attributes, captures, version) = (Default::default(), Vec::new(), node.version);
            state.add_node(Arc::new(Node { name, op, kind, version, inputs, outputs, attributes, captures }));
        }
    }
    state.done(node);
    Ok(())
}

pub(super) fn live_at(live: &[Option<RunValue>], slot: usize) -> Result<&RunValue> {
    let missing = || Error::invalid("a run", "a value in each slot that is read", format!("none in {slot}"));
    live.get(slot).and_then(Option::as_ref).ok_or_else(missing)
}

/// A value of the run, on the host or on a device.
fn value_of(source: &OperandSource, live: &[Option<RunValue>]) -> Result<RunValue> {
    match source {
        OperandSource::Static(value) => Ok(RunValue::Value(value.clone())),
        OperandSource::Slot(slot) => live_at(live, *slot).cloned(),
        OperandSource::Missing => Err(Error::invalid("an output", "a value", "none")),
    }
}

async fn fetch(context: &Context<'_>, source: &OperandSource, live: &[Option<RunValue>]) -> Result<Value> {
    match source {
        OperandSource::Static(value) => Ok(value.clone()),
        OperandSource::Slot(slot) => context.fetch(live_at(live, *slot)?).await,
        OperandSource::Missing => Err(Error::invalid("an output", "a value", "none")),
    }
}

fn put(context: &Context<'_>, live: &mut Vec<Option<RunValue>>, slot: usize, value: RunValue) -> Result<()> {
    if live.len() <= slot {
        live.resize_with(slot + 1, || None);
    }
    context.hold(value.bytes())?;
    context.let_go(live[slot].replace(value));
    Ok(())
}

/// Runs one step on the values in the slots, and measures it in runs for a profile.
pub(super) async fn run_step(context: &Context<'_>, step: &RunStep, live: &mut Vec<Option<RunValue>>) -> Result<()> {
    context.in_time()?;
    let Some(recorder) = &context.recorder else { return execute(context, step, live).await };
    let begin = recorder.begin();
    execute(context, step, live).await?;
    match step {
        RunStep::Graph { node: Some(node), .. } => recorder.end(&begin, &node.name, &node.op, true),
        RunStep::Host { node, .. } => recorder.end(&begin, &node.name, &node.op, false),
        RunStep::Graph { node: None, .. } | RunStep::Indices { .. } => recorder.end(&begin, "indices", "Cast", false),
    }
    Ok(())
}

async fn execute(context: &Context<'_>, step: &RunStep, live: &mut Vec<Option<RunValue>>) -> Result<()> {
    match step {
        RunStep::Graph { graph, inputs, outputs, .. } => {
            let tensors = inputs.iter().map(|slot| live_at(live, *slot)?.tensor()).collect::<Result<Vec<_>>>()?;
            let made = context.run_graph(graph, &tensors.iter().collect::<Vec<_>>()).await?;
            for (tensor, (slot, kind)) in made.into_iter().zip(outputs) {
                put(context, live, *slot, RunValue::Tensor(tensor, *kind))?;
            }
        }
        RunStep::Indices { input, output, len } => {
            let value = context.fetch(live_at(live, *input)?).await?;
            put(context, live, *output, RunValue::Value(indices(value.array()?, *len)?.into()))?;
        }
        RunStep::Host { node, inputs, outputs, bodies } => {
            let mut values = Vec::with_capacity(inputs.len());
            for input in inputs {
                values.push(match input {
                    OperandSource::Missing => None,
                    other => Some(fetch(context, other, live).await.map_err(|cause| node.error(cause))?),
                });
            }
            let begun = Instant::now();
            let made = run_node(context, node, &values, bodies, live).await.map_err(|cause| node.error(cause))?;
            context.note(|| format!("{} {:?}", node.op, node.name), begun.elapsed(), None);
            for (place, slot) in outputs.iter().enumerate() {
                let Some(slot) = slot else { continue };
                let value = made.get(place).cloned();
                let missing = || node.error(Error::unsupported(format!("output {place}")));
                put(context, live, *slot, RunValue::Value(value.ok_or_else(missing)?))?;
            }
        }
    }
    Ok(())
}

/// Runs a node on the host.
pub(super) async fn run_node(
    context: &Context<'_>,
    node: &Node,
    inputs: &[Option<Value>],
    bodies: &[Inner],
    live: &[Option<RunValue>],
) -> Result<Vec<Value>> {
    match node.kind {
        OpKind::Plain { eval, .. } => eval(&Call { node, inputs }),
        OpKind::Constant | OpKind::If => Err(Error::unsupported(format!("{} on the host", node.op))),
        OpKind::Loop | OpKind::Scan | OpKind::SequenceMap => {
            let Some((body, slots)) = bodies.first() else {
                return Err(Error::invalid("a loop", "a body", "none"));
            };
            let captured = slots.iter().map(|slot| live_at(live, *slot).cloned()).collect::<Result<Vec<_>>>()?;
            bodies::run(context, &Call { node, inputs }, body, &captured).await
        }
    }
}

/// Indices as 32-bit integers counted from the front. Each is checked against an axis of length
/// `len`.
fn indices(array: &Array, len: usize) -> Result<Array> {
    let widened;
    let given = match array.kind() {
        ElementType::I64 => array.as_slice::<i64>()?,
        _ => {
            widened = array.to_i64s()?;
            &widened
        }
    };
    // Fast path: most indices count from the front and are within the axis.
    let mut is_odd = false;
    let places = Array::build(ElementType::I32, array.dims(), |bytes| {
        for (place, index) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(given) {
            is_odd |= *index as u64 >= len as u64;
            *place = (*index as i32).to_ne_bytes();
        }
    })?;
    if !is_odd {
        return Ok(places);
    }
    let places = given.iter().map(|index| index_of(*index, len).map(|index| index as i32));
    Array::from_slice(&places.collect::<Result<Vec<i32>>>()?, array.dims())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indices_count_from_the_front_within_their_axis() {
        let of = |given: &[i64], len| indices(&Array::from_slice(given, [given.len()]).unwrap(), len);
        let places = |given: &[i64], len| of(given, len).unwrap().as_slice::<i32>().unwrap().to_vec();
        assert_eq!(places(&[0, 3, 1], 4), [0, 3, 1]);
        assert_eq!(places(&[-1, 3, -4], 4), [3, 3, 0]);
        assert!(places(&[], 4).is_empty());
        for outside in [4, -5, i64::MAX, i64::MIN] {
            assert!(of(&[0, outside], 4).is_err(), "{outside}");
        }
        assert!(of(&[0], 0).is_err());
        let short = Array::from_slice(&[2_i32, -1], [2]).unwrap();
        assert_eq!(indices(&short, 3).unwrap().as_slice::<i32>().unwrap(), [2, 2]);
    }
}
