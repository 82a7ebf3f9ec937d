//! Graphs that are queued as one: the steps of a plan are recorded when it runs for the second time (the first compiled and
//! measured what it needs), and from then on repeated with one call.
//!
//! A recording has the addresses of its inputs and outputs in it. So each run copies its inputs to where the recording reads them and
//! the outputs away from where it writes them, which pays where they are small and the steps are many. What does not record, a step
//! that waits for the host or counts its launches, runs step by step as ever.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::rc::Rc;
use std::sync::Arc;

use panoply_core::op::compute::ComputeOp;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Op, Part, Result, Tensor, Value};
use panoply_graph::{Held, Plan, Ready};

use super::run_graph::Steps;
use crate::context::{Context, Queued};
use crate::driver::{Captured, Driver};

/// Recordings that an engine keeps; of more, the one that was not used for longest goes.
const REPLAYS_MAX: usize = 16;
/// Fewer steps are queued as fast one by one: copying inputs and outputs takes two calls and more.
const STEPS_MIN: usize = 3;
/// Larger inputs and outputs take longer to copy than steps take to queue.
const COPIED_BYTES_MAX: usize = 8 << 20;

/// Whether a plan is worth recording, and made of steps that can be: kernels whose arguments are the same each time.
pub(super) fn is_worthwhile(plan: &Plan, op: &RunGraph) -> bool {
    let is_plain = |op: &Op| match op {
        Op::Compute(op) => matches!(
            op,
            ComputeOp::Map(_)
                | ComputeOp::Attention(_)
                | ComputeOp::MatMul(_)
                | ComputeOp::RowMap(_)
                | ComputeOp::Softmax(_)
                | ComputeOp::LayerNorm(_)
                | ComputeOp::Reduce(_)
                | ComputeOp::Pool2d(_)
                | ComputeOp::Transpose(_)
        ),
        _ => false,
    };
    let bytes: usize = op.inputs().iter().chain(&plan.outputs).map(Tensor::len_bytes).sum();
    plan.steps.len() >= STEPS_MIN && bytes <= COPIED_BYTES_MAX && plan.steps.iter().all(|step| is_plain(&step.op))
}

/// The recordings of one engine.
#[derive(Default)]
pub(crate) struct Replays {
    known: Vec<Known>,
    clock: u64,
}

/// What is known about a plan that is worth recording.
struct Known {
    held: Arc<Held>,
    state: State,
    used: u64,
}

enum State {
    /// It ran once, step by step.
    RanOnce,
    Recorded(Box<Replay>),
    /// It does not record.
    Refused,
}

/// A recording, and all that it uses.
pub(crate) struct Replay {
    driver: Rc<dyn Driver>,
    captured: Captured,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    #[allow(dead_code)] // Held so that the pool does not lend it.
    held: Queued,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if let Some(captures) = self.driver.captures() {
            captures.release(self.captured);
        }
    }
}

impl Replays {
    /// Runs a plan: by its recording, or step by step, and recorded on the way where it is time.
    pub(super) fn run(&mut self, ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>) -> Result<Value> {
        self.clock += 1;
        let place = self.place(&ready.held, steps.context);
        let clock = self.clock;
        let Some(place) = place else {
            self.known.push(Known { held: Arc::clone(&ready.held), state: State::RanOnce, used: clock });
            return panoply_graph::run(ready, op, steps);
        };
        let known = &mut self.known[place];
        known.used = clock;
        if let State::RanOnce = known.state {
            known.state = match record(ready, op, steps)? {
                Some(replay) => State::Recorded(Box::new(replay)),
                None => State::Refused,
            };
        }
        match &known.state {
            State::Recorded(replay) => replay.run(op, steps.context),
            State::RanOnce | State::Refused => panoply_graph::run(ready, op, steps),
        }
    }

    /// Takes all recordings away; what was recorded is recorded anew.
    pub(super) fn take_all(&mut self) -> Vec<Replay> {
        let recorded = self.known.drain(..).filter_map(|known| match known.state {
            State::Recorded(replay) => Some(*replay),
            State::RanOnce | State::Refused => None,
        });
        recorded.collect()
    }

    /// Where a plan is known. Room is made for one that is not, and those whose plans are gone go too.
    fn place(&mut self, held: &Arc<Held>, context: &mut Context) -> Option<usize> {
        if let Some(place) = self.known.iter().position(|known| Arc::ptr_eq(&known.held, held)) {
            return Some(place);
        }
        let oldest = self.known.iter().map(|known| known.used).min().filter(|_| self.known.len() >= REPLAYS_MAX);
        let goes = |known: &mut Known| Arc::strong_count(&known.held) == 1 || Some(known.used) == oldest;
        // What is under way may still use them.
        let gone: Vec<Known> = self.known.extract_if(.., goes).collect();
        context.hold_replays(gone.into_iter().filter_map(|known| match known.state {
            State::Recorded(replay) => Some(*replay),
            State::RanOnce | State::Refused => None,
        }));
        None
    }
}

/// Records the steps of a plan. `None` where they cannot be; then nothing was queued.
fn record(ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>) -> Result<Option<Replay>> {
    let driver = Rc::clone(&steps.context.driver);
    let Some(captures) = driver.captures() else { return Ok(None) };
    steps.context.planned.forget();
    let input =
        |tensor: &Tensor, context: &mut Context| Ok(context.output(tensor.dtype(), *tensor.shape())?.into_tensor());
    let inputs: Vec<Tensor> = op.inputs().iter().map(|tensor| input(tensor, steps.context)).collect::<Result<_>>()?;
    let fixed = RunGraph::new(op.graph(), &inputs.iter().collect::<Vec<_>>());
    let before = steps.context.begin_apart();
    let begun = captures.begin();
    // Also where a step panics the recording ends, or the stream would go on recording.
    let ran = catch_unwind(AssertUnwindSafe(|| begun.and_then(|()| panoply_graph::run(ready, &fixed, steps))));
    let captured = captures.end();
    let ran = ran.unwrap_or_else(|panic| {
        captured.iter().for_each(|captured| captures.release(*captured));
        resume_unwind(panic)
    });
    let mut held = steps.context.end_apart(before);
    let (Ok(value), Ok(captured), true) = (&ran, &captured, held.is_repeatable()) else {
        if let Ok(captured) = captured {
            captures.release(captured);
        }
        // Nothing ran, so nothing has complained.
        drop(steps.context.settle(&mut held));
        return Ok(None);
    };
    let outputs = value.tensors().cloned().collect();
    Ok(Some(Replay { driver: Rc::clone(&driver), captured: *captured, inputs, outputs, held }))
}

impl Replay {
    fn run(&self, op: &RunGraph, context: &mut Context) -> Result<Value> {
        for (own, given) in self.inputs.iter().zip(op.inputs()) {
            let address = context.view(own)?.address;
            context.place(address, given)?;
        }
        if let Some(captures) = self.driver.captures() {
            // SAFETY: the recording holds the memory that it uses and goes before its kernels do; it is not dropped before the op
            // under way has finished.
            unsafe { captures.replay(self.captured)? };
        }
        let output = |tensor: &Tensor| {
            let output = context.output(tensor.dtype(), *tensor.shape())?;
            context.place(output.address, tensor)?;
            Ok(Part::Tensor(output.into_tensor()))
        };
        self.outputs.iter().map(output).collect::<Result<_>>().map(Value::List)
    }
}
