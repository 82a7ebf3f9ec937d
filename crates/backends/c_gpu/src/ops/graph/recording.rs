//! One recording of a plan: the copies before and after it runs, and the memory of its tensors.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;

use panoply_core::graph::{Step, slot_of, view_of};
use panoply_core::op::compute::ComputeOp;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Buffer, DeviceBuffer, Error, Op, Part, Result, Tensor, Value};
use panoply_graph::{Plan, Ready, SlotPlace};

use super::run_graph::{Steps, run_steps};
use crate::context::{Context, Copies, Output, Replay};
use crate::driver::Address;

/// A recording with its own memory for small inputs and outputs.
pub(super) struct Recording {
    replay: Replay,
    /// By input: the tensor that the steps read, if it is the recording's own.
    inputs: Vec<Option<Tensor>>,
    /// By output: the tensor that the steps write, if it is copied afterwards.
    outputs: Vec<Option<Tensor>>,
}

/// Memory for an output of a plan.
pub(super) struct PlanOutput {
    slot: usize,
    tensor: Tensor,
    pub(super) address: Address,
}

/// The slots of a plan that steps produce and the graph outputs, in the order of its steps.
fn own_slots(plan: &Plan) -> impl Iterator<Item = usize> {
    let slots = plan.steps.iter().flat_map(|step| step.outputs.iter());
    slots.filter(|slot| plan.slots[*slot].place == SlotPlace::Own)
}

/// Allocates memory for the outputs of more than `small` bytes, in the order of the plan's steps.
/// Among outputs of one size, the first gets the lowest address, for any order of the pool: if
/// a program feeds its last outputs back as inputs, two recordings then alternate.
pub(super) fn take_outputs(plan: &Plan, context: &mut Context, small: usize) -> Result<Vec<PlanOutput>> {
    let large: Vec<usize> = own_slots(plan).filter(|slot| plan.slots[*slot].slot.len_bytes() > small).collect();
    let mut memory = Vec::with_capacity(large.len());
    for slot in &large {
        let bytes = plan.slots[*slot].slot.len_bytes();
        let (buffer, address) = context.memory.tensor(bytes)?;
        memory.push((bytes, address, buffer));
    }
    memory.sort_by_key(|(bytes, address, _)| (*bytes, address.0));
    let mut order: Vec<usize> = (0..large.len()).collect();
    order.sort_by_key(|place| plan.slots[large[*place]].slot.len_bytes());
    let mut taken: Vec<Option<PlanOutput>> = large.iter().map(|_| None).collect();
    for (place, (_, address, buffer)) in order.into_iter().zip(memory) {
        let (slot, of) = (large[place], &plan.slots[large[place]].slot);
        let tensor = Tensor::from_device(of.dtype, of.shape, buffer)?;
        taken[place] = Some(PlanOutput { slot, tensor, address });
    }
    Ok(taken.into_iter().flatten().collect())
}

/// Makes the steps of a plan write their outputs to the allocated memory, and allocates the rest.
pub(super) fn place_outputs(plan: &Plan, taken: &[PlanOutput], steps: &mut Steps<'_>) -> Result<()> {
    for slot in own_slots(plan) {
        let place = match taken.iter().find(|taken| taken.slot == slot) {
            Some(taken) => buffer(&taken.tensor).map(|buffer| (buffer, taken.address)),
            None => Some(steps.context.memory.tensor(plan.slots[slot].slot.len_bytes())?),
        };
        steps.outputs.extend(place);
    }
    Ok(())
}

impl Recording {
    /// Records the steps of a plan: inputs of more than `small` bytes in place, outputs at their
    /// destinations. `None` if they cannot be recorded; then nothing was queued.
    pub(super) fn new(
        ready: &mut Ready,
        op: &RunGraph,
        steps: &mut Steps<'_>,
        taken: &[PlanOutput],
        small: usize,
    ) -> Result<Option<Recording>> {
        let plan = Arc::clone(&ready.held.plan);
        if hands_on_inputs(&plan, op, small) {
            return Ok(None);
        }
        let mut inputs = Vec::new();
        for tensor in op.inputs() {
            let is_copied = tensor.len_bytes() <= small;
            let own = is_copied.then(|| steps.context.output(tensor.dtype(), *tensor.shape())).transpose()?;
            inputs.push(own.map(Output::into_tensor));
        }
        let read: Vec<&Tensor> =
            inputs.iter().zip(op.inputs()).map(|(own, given)| own.as_ref().unwrap_or(given)).collect();
        let fixed = RunGraph::new(op.graph(), &read);
        let mut theirs: Vec<u64> = taken.iter().filter_map(|taken| token(&taken.tensor)).collect();
        place_outputs(&plan, taken, steps)?;
        let recorded = record(ready, &fixed, steps);
        let all_taken = steps.outputs.is_empty();
        steps.outputs.clear();
        let Some((mut replay, value)) = recorded? else { return Ok(None) };
        let is_taken = |view: &Tensor| taken.iter().any(|taken| slot_of(view) == Some(taken.slot));
        let made: Vec<&Tensor> = value.tensors().collect();
        // A step that did not use the memory allocated for its output has put it elsewhere.
        let fits = |(view, made): (&Tensor, &&Tensor)| {
            let own = taken.iter().find(|taken| slot_of(view) == Some(taken.slot));
            own.is_none_or(|own| token(made) == token(&own.tensor))
        };
        if !all_taken || made.len() != plan.outputs.len() || !plan.outputs.iter().zip(&made).all(fits) {
            steps.context.hold_replays([replay]);
            return Ok(None);
        }
        let outputs: Vec<Option<Tensor>> =
            plan.outputs.iter().zip(made).map(|(view, made)| (!is_taken(view)).then(|| made.clone())).collect();
        theirs.extend(
            inputs.iter().zip(op.inputs()).filter(|(own, _)| own.is_none()).filter_map(|(_, given)| token(given)),
        );
        replay.held.between.retain(|tensor| token(tensor).is_none_or(|token| !theirs.contains(&token)));
        replay.own = inputs.iter().chain(&outputs).flatten().cloned().collect();
        Ok(Some(Recording { replay, inputs, outputs }))
    }

    /// Runs the recording with the inputs of an op. Outputs without memory of the recording's own
    /// are left in `taken`.
    pub(super) fn run(&self, plan: &Plan, op: &RunGraph, taken: &[PlanOutput], context: &mut Context) -> Result<Value> {
        let (mut before, mut after) = (Copies::default(), Copies::default());
        for (own, given) in self.inputs.iter().zip(op.inputs()) {
            if let Some(own) = own {
                before.push(context.view(own)?.address, given);
            }
        }
        let mut parts = Vec::with_capacity(self.outputs.len());
        for (own, view) in self.outputs.iter().zip(&plan.outputs) {
            let made = taken.iter().find(|taken| slot_of(view) == Some(taken.slot));
            parts.push(Part::Tensor(match (own, made) {
                (None, Some(made)) => view_of(view, &made.tensor)?,
                (None, None) => return Err(Error::invalid("graph: an output", "a tensor", "nothing")),
                (Some(own), _) => {
                    let output = context.output(own.dtype(), *own.shape())?;
                    after.push(output.address, own);
                    output.into_tensor()
                }
            }));
        }
        if let Some(words) = &self.replay.words {
            context.hear(words, &mut after)?;
        }
        context.copy_around(&before, after, |_| self.replay.run())?;
        Ok(Value::List(parts))
    }

    pub(super) fn into_replay(self) -> Replay {
        self.replay
    }
}

/// Records the steps of a plan, and returns their outputs. `None` if they cannot be recorded; then
/// nothing was queued.
fn record(ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>) -> Result<Option<(Replay, Value)>> {
    let driver = Rc::clone(&steps.context.driver);
    let Some(captures) = driver.captures() else { return Ok(None) };
    steps.context.planned.forget();
    // Words are found by their addresses. Plans without error reports take no memory for words,
    // which would change the addresses of the next allocations.
    let complains = |step: &Step| matches!(&*step.op, Op::Compute(ComputeOp::Gather(_)));
    if driver.properties().pointers && ready.held.plan.steps.iter().any(complains) {
        steps.context.begin_words()?;
    }
    let before = steps.context.begin_apart();
    steps.context.is_recording = true;
    let begun = captures.begin();
    // The recording must end even if a step panics, or the stream would continue recording.
    let ran = catch_unwind(AssertUnwindSafe(|| begun.and_then(|()| run_steps(ready, op, steps))));
    let captured = captures.end();
    steps.context.is_recording = false;
    let mut held = steps.context.end_apart(before);
    let words = steps.context.end_words();
    let ran = ran.unwrap_or_else(|panic| {
        captured.iter().for_each(|captured| captures.release(*captured));
        resume_unwind(panic)
    });
    match (ran, captured) {
        (Ok(value), Ok(captured)) if held.is_repeatable() => {
            let block = steps.block().as_ref().map(|(block, _)| block.clone());
            let (driver, own) = (Rc::clone(&driver), Vec::new());
            Ok(Some((Replay { driver, captured, held, block, own, words }, value)))
        }
        (_, captured) => {
            captured.iter().for_each(|captured| captures.release(*captured));
            // Nothing ran, so no error word was written.
            drop(steps.context.settle(&mut held));
            words.into_iter().for_each(|words| steps.context.hold_words(words));
            Ok(None)
        }
    }
}

/// Whether an output is an input whose address changes each time.
fn hands_on_inputs(plan: &Plan, op: &RunGraph, small: usize) -> bool {
    let is_large = |input: usize| op.inputs().get(input).is_some_and(|tensor| tensor.len_bytes() > small);
    plan.outputs
        .iter()
        .filter_map(slot_of)
        .any(|slot| matches!(plan.slots[slot].place, SlotPlace::Input(input) if is_large(input)))
}

fn buffer(tensor: &Tensor) -> Option<DeviceBuffer> {
    if let Buffer::Device(buffer) = tensor.buffer() { Some(buffer.clone()) } else { None }
}

fn token(tensor: &Tensor) -> Option<u64> {
    buffer(tensor).map(|buffer| buffer.token())
}
