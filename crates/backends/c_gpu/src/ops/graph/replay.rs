//! Graphs that are queued as one: the steps of a plan are recorded when it runs for the second time (the first compiled and
//! measured what it needs), and from then on repeated with one call.
//!
//! A recording has the addresses of its inputs and outputs in it. Programs that run a graph again and again have their inputs at the same
//! few places, and the pool hands out the same few places for the outputs: such places are recorded as they are, and nothing is copied.
//! Elsewhere the recording has inputs and outputs of its own: each run copies its inputs there and its outputs away, which pays where they
//! are small and the steps are many. What does not record, a step that waits for the host or counts its launches, runs step by step.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;

use panoply_core::graph::{slot_of, view_of};
use panoply_core::op::compute::ComputeOp;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Buffer, DeviceBuffer, Op, Part, Result, Tensor, Value};
use panoply_graph::{Held, Place, Plan, Ready};

use super::run_graph::Steps;
use crate::context::{Context, Queued};
use crate::driver::{Address, Captured, Driver};

/// Plans whose recordings an engine keeps; of more, the one that was not used for longest goes.
const PLANS_MAX: usize = 16;
/// A single step is queued as fast by itself.
const STEPS_MIN: usize = 2;
/// With copies: fewer steps are queued as fast one by one.
const STEPS_COPIED_MIN: usize = 3;
/// Larger inputs and outputs take longer to copy than steps take to queue.
const COPIED_BYTES_MAX: usize = 8 << 20;
/// Convolutions that take more memory between them are so long that queueing them one by one costs nothing.
const TURNED_BYTES_MAX: usize = 512 << 20;
/// Recordings of one plan at the places of its inputs and outputs, and places that are remembered until they are met again.
const DIRECT_MAX: usize = 4;
const MET_MAX: usize = 8;
/// How often a recording must have been used, on average, for places that change all the time to be recorded again.
const USES_MIN: u64 = 16;

/// Whether a plan is made of steps that can be recorded: kernels whose arguments are the same each time.
fn is_plain(plan: &Plan) -> bool {
    let is_plain = |op: &Op| match op {
        Op::Compute(op) => matches!(
            op,
            ComputeOp::Map(_)
                | ComputeOp::Attention(_)
                | ComputeOp::MatMul(_)
                | ComputeOp::Conv2d(_)
                | ComputeOp::RowMap(_)
                | ComputeOp::Softmax(_)
                | ComputeOp::LayerNorm(_)
                | ComputeOp::Reduce(_)
                | ComputeOp::Pool2d(_)
                | ComputeOp::Transpose(_)
        ),
        _ => false,
    };
    plan.steps.len() >= STEPS_MIN
        && plan.steps.iter().all(|step| is_plain(&step.op))
        && plan.steps.iter().map(|step| turned_bytes(&step.op)).fold(0, usize::saturating_add) <= TURNED_BYTES_MAX
}

/// What a convolution may take for its images and weights with their channels last, which a recording keeps.
fn turned_bytes(op: &Op) -> usize {
    let Op::Compute(ComputeOp::Conv2d(op)) = op else { return 0 };
    let output =
        op.output_shape().map_or(usize::MAX, |shape| shape.elements().saturating_mul(op.input.dtype().size_bytes()));
    op.input.len_bytes().saturating_add(op.weights.len_bytes()).saturating_add(output)
}

/// Whether copying inputs and outputs takes less time than queueing the steps.
fn copies_pay(plan: &Plan, op: &RunGraph) -> bool {
    let bytes: usize = op.inputs().iter().chain(&plan.outputs).map(Tensor::len_bytes).sum();
    plan.steps.len() >= STEPS_COPIED_MIN && bytes <= COPIED_BYTES_MAX
}

/// The recordings of one engine.
#[derive(Default)]
pub(crate) struct Replays {
    known: Vec<Known>,
    clock: u64,
}

/// What is known about a plan of plain steps. It has run once, step by step.
struct Known {
    held: Arc<Held>,
    copied: State,
    direct: Direct,
    used: u64,
}

/// The recording that copies.
enum State {
    Unmade,
    Recorded(Box<Copied>),
    /// The plan does not record.
    Refused,
}

/// Recordings at the places of inputs and outputs, the one that was used last at the end.
#[derive(Default)]
struct Direct {
    recorded: Vec<(Vec<Address>, Replay)>,
    /// Places that were met once.
    met: Vec<Vec<Address>>,
    made: u64,
    uses: u64,
    /// The plan does not record.
    is_refused: bool,
}

/// A recording with inputs and outputs of its own.
struct Copied {
    replay: Replay,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

/// A recording, and all that it uses but what its callers bring.
pub(crate) struct Replay {
    driver: Rc<dyn Driver>,
    captured: Captured,
    #[allow(dead_code)] // Held so that the pool does not lend it.
    held: Queued,
    #[allow(dead_code)] // As above: graphs that need more get another block.
    block: Option<DeviceBuffer>,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if let Some(captures) = self.driver.captures() {
            captures.release(self.captured);
        }
    }
}

impl Replays {
    /// Runs a plan: by a recording, or step by step, and recorded on the way where it is time.
    pub(super) fn run(&mut self, ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>) -> Result<Value> {
        self.let_go(|known| Arc::strong_count(&known.held) == 1, steps.context);
        if !is_plain(&ready.held.plan) {
            return panoply_graph::run(ready, op, steps);
        }
        self.clock += 1;
        let place = self.known.iter().position(|known| Arc::ptr_eq(&known.held, &ready.held));
        let used = self.clock;
        let Some(place) = place else {
            let oldest = self.known.iter().map(|known| known.used).min().filter(|_| self.known.len() >= PLANS_MAX);
            self.let_go(|known| Some(known.used) == oldest, steps.context);
            let held = Arc::clone(&ready.held);
            self.known.push(Known { held, copied: State::Unmade, direct: Direct::default(), used });
            return panoply_graph::run(ready, op, steps);
        };
        let known = &mut self.known[place];
        known.used = used;
        if let Some(value) = known.direct.run(ready, op, steps)? {
            return Ok(value);
        }
        if let State::Unmade = known.copied
            && copies_pay(&ready.held.plan, op)
        {
            known.copied = match Copied::record(ready, op, steps)? {
                Some(copied) => State::Recorded(Box::new(copied)),
                None => State::Refused,
            };
        }
        match &known.copied {
            State::Recorded(copied) => copied.run(op, steps.context),
            State::Unmade | State::Refused => panoply_graph::run(ready, op, steps),
        }
    }

    /// Takes all recordings away; what was recorded is recorded anew.
    pub(super) fn take_all(&mut self) -> Vec<Replay> {
        self.known.drain(..).flat_map(Known::into_replays).collect()
    }

    /// Lets plans go. What is under way may still use their recordings.
    fn let_go(&mut self, goes: impl Fn(&Known) -> bool, context: &mut Context) {
        if self.known.iter().any(&goes) {
            let gone: Vec<Known> = self.known.extract_if(.., |known| goes(known)).collect();
            context.hold_replays(gone.into_iter().flat_map(Known::into_replays));
        }
    }
}

impl Known {
    fn into_replays(self) -> impl Iterator<Item = Replay> {
        let copied = match self.copied {
            State::Recorded(copied) => Some(copied.replay),
            State::Unmade | State::Refused => None,
        };
        self.direct.recorded.into_iter().map(|(_, replay)| replay).chain(copied)
    }
}

impl Direct {
    /// Runs a plan where inputs and outputs are, if that was recorded, or is now. `None`: nothing was queued.
    fn run(&mut self, ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>) -> Result<Option<Value>> {
        let plan = Arc::clone(&ready.held.plan);
        if self.is_refused {
            return Ok(None);
        }
        let Some(mut places) = places_of_inputs(op, steps.context) else { return Ok(None) };
        let Some(outputs) = take_outputs(&plan, steps.context)? else { return Ok(None) };
        places.extend(outputs.iter().map(|output| output.address));
        if let Some(at) = self.recorded.iter().position(|(recorded, _)| *recorded == places) {
            self.recorded[at..].rotate_left(1);
        } else if self.is_time(&places) {
            let Some(replay) = record_at(ready, op, steps, &outputs)? else {
                self.is_refused = true;
                return Ok(None);
            };
            if self.recorded.len() == DIRECT_MAX {
                let (_, oldest) = self.recorded.remove(0);
                steps.context.hold_replays([oldest]);
            }
            self.made += 1;
            self.recorded.push((places, replay));
        } else {
            return Ok(None);
        }
        let Some((_, replay)) = self.recorded.last() else { return Ok(None) };
        replay.run()?;
        self.uses += 1;
        let made = |view: &Tensor| {
            let output = outputs.iter().find(|output| Some(output.slot) == slot_of(view))?;
            Some(view_of(view, &output.tensor).map(Part::Tensor))
        };
        plan.outputs.iter().filter_map(made).collect::<Result<_>>().map(Value::List).map(Some)
    }

    /// Whether places are worth recording: they were met before, and recordings made so far were used.
    fn is_time(&mut self, places: &[Address]) -> bool {
        if self.made >= DIRECT_MAX as u64 && self.uses < self.made.saturating_mul(USES_MIN) {
            return false;
        }
        let known = self.met.iter().position(|met| met == places);
        match known {
            Some(at) => drop(self.met.swap_remove(at)),
            None if self.met.len() == MET_MAX => {
                self.met.rotate_left(1);
                self.met[MET_MAX - 1] = places.to_vec();
            }
            None => self.met.push(places.to_vec()),
        }
        known.is_some()
    }
}

/// Where the inputs are on the device; `None` where steps would read copies of them.
fn places_of_inputs(op: &RunGraph, context: &mut Context) -> Option<Vec<Address>> {
    let place = |tensor: &Tensor| {
        let is_there = context.owns(tensor) && tensor.is_contiguous();
        is_there.then(|| context.view(tensor).ok()).flatten().map(|view| view.address)
    };
    op.inputs().iter().map(place).collect()
}

/// Memory for an output of a plan.
struct Taken {
    slot: usize,
    tensor: Tensor,
    address: Address,
}

/// Memory for the outputs of a plan, in the order of its steps. `None` where an output is something else than what a step makes.
fn take_outputs(plan: &Plan, context: &mut Context) -> Result<Option<Vec<Taken>>> {
    let is_own = |slot: usize| plan.slots[slot].place == Place::Own;
    if !plan.outputs.iter().all(|view| slot_of(view).is_some_and(is_own)) {
        return Ok(None);
    }
    let own = plan.steps.iter().flat_map(|step| &step.outputs).copied().filter(|slot| is_own(*slot));
    let take = |slot: usize| {
        let output = context.output(plan.slots[slot].slot.dtype, plan.slots[slot].slot.shape)?;
        Ok(Taken { slot, address: output.address, tensor: output.into_tensor() })
    };
    own.map(take).collect::<Result<_>>().map(Some)
}

/// Records the steps of a plan where the inputs are and the outputs are to be. `None` where they cannot be; then nothing was queued.
fn record_at(ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>, outputs: &[Taken]) -> Result<Option<Replay>> {
    let buffer =
        |tensor: &Tensor| if let Buffer::Device(buffer) = tensor.buffer() { Some(buffer.clone()) } else { None };
    steps.outputs = outputs.iter().filter_map(|output| Some((buffer(&output.tensor)?, output.address))).collect();
    let recorded = record(ready, op, steps);
    let all_taken = steps.outputs.is_empty();
    steps.outputs.clear();
    let Some((mut replay, value)) = recorded? else { return Ok(None) };
    let token = |tensor: &Tensor| buffer(tensor).map(|buffer| buffer.token());
    let theirs: Vec<u64> = outputs.iter().map(|output| &output.tensor).chain(op.inputs()).filter_map(token).collect();
    // A step that asked for memory of another size first has put its output elsewhere.
    if !all_taken || !value.tensors().all(|tensor| token(tensor).is_some_and(|token| theirs.contains(&token))) {
        return Ok(None);
    }
    replay.held.between.retain(|tensor| token(tensor).is_none_or(|token| !theirs.contains(&token)));
    Ok(Some(replay))
}

/// Records the steps of a plan, with what they make. `None` where they cannot be; then nothing was queued.
fn record(ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>) -> Result<Option<(Replay, Value)>> {
    let driver = Rc::clone(&steps.context.driver);
    let Some(captures) = driver.captures() else { return Ok(None) };
    steps.context.planned.forget();
    let before = steps.context.begin_apart();
    let begun = captures.begin();
    // Also where a step panics the recording ends, or the stream would go on recording.
    let ran = catch_unwind(AssertUnwindSafe(|| begun.and_then(|()| panoply_graph::run(ready, op, steps))));
    let captured = captures.end();
    let ran = ran.unwrap_or_else(|panic| {
        captured.iter().for_each(|captured| captures.release(*captured));
        resume_unwind(panic)
    });
    let mut held = steps.context.end_apart(before);
    match (ran, captured) {
        (Ok(value), Ok(captured)) if held.is_repeatable() => {
            let block = steps.block.as_ref().map(|(block, _)| block.clone());
            Ok(Some((Replay { driver: Rc::clone(&driver), captured, held, block }, value)))
        }
        (_, captured) => {
            captured.iter().for_each(|captured| captures.release(*captured));
            // Nothing ran, so nothing has complained.
            drop(steps.context.settle(&mut held));
            Ok(None)
        }
    }
}

impl Replay {
    fn run(&self) -> Result<()> {
        match self.driver.captures() {
            // SAFETY: the recording holds the memory that it uses and goes before its kernels do; it is not dropped before the op
            // under way has finished. Inputs and outputs at its places are the op's, or held by who has the recording.
            Some(captures) => unsafe { captures.replay(self.captured) },
            None => Ok(()),
        }
    }
}

impl Copied {
    fn record(ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>) -> Result<Option<Copied>> {
        let input =
            |tensor: &Tensor, context: &mut Context| Ok(context.output(tensor.dtype(), *tensor.shape())?.into_tensor());
        let inputs: Vec<Tensor> =
            op.inputs().iter().map(|tensor| input(tensor, steps.context)).collect::<Result<_>>()?;
        let fixed = RunGraph::new(op.graph(), &inputs.iter().collect::<Vec<_>>());
        let recorded = record(ready, &fixed, steps)?;
        Ok(recorded.map(|(replay, value)| Copied { replay, inputs, outputs: value.tensors().cloned().collect() }))
    }

    fn run(&self, op: &RunGraph, context: &mut Context) -> Result<Value> {
        for (own, given) in self.inputs.iter().zip(op.inputs()) {
            let address = context.view(own)?.address;
            context.place(address, given)?;
        }
        self.replay.run()?;
        let output = |tensor: &Tensor| {
            let output = context.output(tensor.dtype(), *tensor.shape())?;
            context.place(output.address, tensor)?;
            Ok(Part::Tensor(output.into_tensor()))
        };
        self.outputs.iter().map(output).collect::<Result<_>>().map(Value::List)
    }
}
