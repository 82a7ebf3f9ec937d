//! Graphs that are queued as one. The steps of a plan are recorded when it runs for the second time
//! (the first run compiled and measured what it needs), and replayed with one call from then on.
//!
//! A recording contains the addresses of its inputs and outputs. Programs that run a graph
//! repeatedly have their inputs at the same few addresses, and the pool gives the outputs the same
//! few addresses: these are recorded as they are, and nothing is copied. The addresses of small
//! inputs and outputs, and of host tensors, change: the recording has memory of its own for them,
//! and each run copies its inputs there and its outputs away, all of them in one launch. If the
//! addresses of large tensors change too, all are copied, unless they are too large for that. Steps
//! that cannot be recorded, because they wait for the host or count their launches, run one by one.
//!
//! Each lane has its own recordings, which use the lane's memory and run beside those of other
//! lanes.
//!
//! `recording` has one recording; this module decides when one is made and which is used.

use std::sync::Arc;

use panoply_core::graph::Step;
use panoply_core::op::compute::ComputeOp;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Op, Result, Tensor, Value};
use panoply_graph::fuse::images::is_channels_last;
use panoply_graph::{Plan, Ready, ResidentPlan};

use super::recording::{PlanOutput, Recording, place_outputs, take_outputs};
use super::run_graph::{Steps, run_steps};
use crate::context::{Context, Replay};
use crate::driver::{Address, LANES_MAX};

/// Maximal number of plans with recordings in an engine; the least recently used one is dropped.
const PLANS_MAX: usize = 16;
/// A single step is queued as fast alone.
const STEPS_MIN: usize = 2;
/// With all tensors copied: fewer steps are queued as fast one by one.
const STEPS_COPIED_MIN: usize = 3;
/// With small tensors copied, which takes two launches and a table.
const STEPS_MIXED_MIN: usize = 6;
/// Thresholds for small tensors: the first for which the copies stay within `COPIED_BYTES_MAX` in
/// total; the last one in any case.
const SMALL_BYTES: [usize; 3] = [256 << 10, 16 << 10, 1 << 10];
/// More bytes of inputs and outputs take longer to copy than the steps take to queue.
const COPIED_BYTES_MAX: usize = 16 << 20;
/// Convolutions that need more memory for permuted tensors run so long that queueing them one by
/// one costs nothing.
const TURNED_BYTES_MAX: usize = 512 << 20;
/// Maximal number of recordings of one plan at fixed addresses, and of address lists that are
/// remembered until they recur.
const DIRECT_MAX: usize = 4;
const MET_MAX: usize = 8;
/// Average number of uses of the recordings that justifies recording further addresses.
const USES_MIN: u64 = 16;
/// After this many consecutive runs at unrecorded addresses, all tensors are copied.
const MISSES_MAX: u32 = 16;

/// Whether a plan consists of steps that can be recorded: kernels with the same arguments each
/// time.
fn is_plain(plan: &Plan) -> bool {
    let is_plain = |op: &Op| match op {
        Op::Compute(op) => matches!(
            op,
            ComputeOp::Map(_)
                | ComputeOp::Attention(_)
                | ComputeOp::MatMul(_)
                | ComputeOp::Conv2d(_)
                | ComputeOp::Conv2dBackwardInput(_)
                | ComputeOp::Conv2dBackwardWeight(_)
                | ComputeOp::Gather(_)
                | ComputeOp::Kernel(_)
                | ComputeOp::RowMap(_)
                | ComputeOp::Softmax(_)
                | ComputeOp::LayerNorm(_)
                | ComputeOp::Reduce(_)
                | ComputeOp::Resize(_)
                | ComputeOp::Pool2d(_)
                | ComputeOp::Transpose(_)
        ),
        _ => false,
    };
    plan.steps.len() >= STEPS_MIN
        && plan.steps.iter().all(|step| is_plain(&step.op))
        && plan.steps.iter().map(|step| turned_bytes(plan, step)).max().unwrap_or(0) <= TURNED_BYTES_MAX
}

/// Bytes that a convolution may need for channels-last copies of its images and weights, which a
/// recording keeps. Its steps share this memory.
fn turned_bytes(plan: &Plan, step: &Step) -> usize {
    let mut bytes: usize = 0;
    match &*step.op {
        Op::Compute(ComputeOp::Conv2d(op)) if step.outputs.iter().any(|slot| plan.slots[slot].order.is_some()) => {
            // Tensors that are already channels-last need nothing more.
            let own = |tensor: &Tensor| if is_channels_last(tensor) { 0 } else { tensor.len_bytes() };
            own(&op.input).saturating_add(own(&op.weights))
        }
        Op::Compute(ComputeOp::Conv2d(_) | ComputeOp::Conv2dBackwardInput(_) | ComputeOp::Conv2dBackwardWeight(_)) => {
            step.op.for_each_tensor(&mut |tensor| bytes = bytes.saturating_add(tensor.len_bytes()));
            bytes.saturating_mul(2)
        }
        _ => 0,
    }
}

/// The threshold of small tensors for a plan: tensors of at most this many bytes are copied.
fn small_bytes(plan: &Plan, op: &RunGraph) -> usize {
    if plan.steps.len() < STEPS_MIXED_MIN {
        return 0;
    }
    let copied = |most: usize| -> usize {
        op.inputs().iter().chain(&plan.outputs).map(Tensor::len_bytes).filter(|bytes| *bytes <= most).sum()
    };
    let [.., least] = SMALL_BYTES;
    SMALL_BYTES.into_iter().find(|most| copied(*most) <= COPIED_BYTES_MAX).unwrap_or(least)
}

/// Whether copying all inputs and outputs is faster than queueing the steps.
fn copies_pay(plan: &Plan, op: &RunGraph) -> bool {
    let bytes: usize = op.inputs().iter().chain(&plan.outputs).map(Tensor::len_bytes).sum();
    plan.steps.len() >= STEPS_COPIED_MIN && bytes <= COPIED_BYTES_MAX
}

/// The recordings of one engine.
#[derive(Default)]
pub(crate) struct Replays {
    known: Vec<RecordedPlan>,
    clock: u64,
}

/// A plan of recordable steps.
struct RecordedPlan {
    held: Arc<ResidentPlan>,
    lanes: [LaneRecordings; LANES_MAX],
    used: u64,
}

/// The recordings of a plan for one lane.
#[derive(Default)]
struct LaneRecordings {
    /// Whether the plan has run there once, step by step.
    has_run: bool,
    /// Recordings with small tensors copied.
    mixed: Recordings,
    /// Recordings with all tensors copied.
    copied: Recordings,
}

/// Recordings of one plan at different addresses, the most recently used last.
#[derive(Default)]
struct Recordings {
    recorded: Vec<(Vec<Address>, Recording)>,
    /// Addresses that occurred once.
    met: Vec<Vec<Address>>,
    made: u64,
    uses: u64,
    /// Number of consecutive runs whose addresses were not recorded.
    misses: u32,
    /// Whether the plan cannot be recorded.
    is_refused: bool,
}

impl Replays {
    /// Runs a plan: by a recording, or step by step, recording it if it is time.
    pub(super) fn run(&mut self, ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>) -> Result<Value> {
        self.let_go(|known| Arc::strong_count(&known.held) == 1, steps.context);
        let has_captures = steps.context.driver.captures().is_some();
        if !has_captures || !is_plain(&ready.held.plan) {
            return run_steps(ready, op, steps);
        }
        self.clock += 1;
        let place = self.known.iter().position(|known| Arc::ptr_eq(&known.held, &ready.held));
        let used = self.clock;
        let place = place.unwrap_or_else(|| {
            let oldest = self.known.iter().map(|known| known.used).min().filter(|_| self.known.len() >= PLANS_MAX);
            self.let_go(|known| Some(known.used) == oldest, steps.context);
            self.known.push(RecordedPlan { held: Arc::clone(&ready.held), lanes: Default::default(), used });
            self.known.len() - 1
        });
        let known = &mut self.known[place];
        known.used = used;
        let known = &mut known.lanes[steps.context.lane()];
        if !std::mem::replace(&mut known.has_run, true) {
            return run_steps(ready, op, steps);
        }
        let small = small_bytes(&ready.held.plan, op);
        let resident = if small > 0 { steps.with_resident(op, small)? } else { None };
        let op = resident.as_ref().unwrap_or(op);
        if let Some(value) = known.mixed.run(ready, op, steps, small)? {
            return Ok(value);
        }
        if (small == 0 || known.mixed.is_hopeless())
            && copies_pay(&ready.held.plan, op)
            && let Some(value) = known.copied.run(ready, op, steps, usize::MAX)?
        {
            return Ok(value);
        }
        run_steps(ready, op, steps)
    }

    /// Removes all recordings; plans are recorded again.
    pub(super) fn take_all(&mut self) -> Vec<Replay> {
        self.known.drain(..).flat_map(RecordedPlan::into_replays).collect()
    }

    /// Drops plans. Work in flight may still use their recordings.
    fn let_go(&mut self, goes: impl Fn(&RecordedPlan) -> bool, context: &mut Context) {
        if self.known.iter().any(&goes) {
            context.release_behind_all();
            let gone: Vec<RecordedPlan> = self.known.extract_if(.., |known| goes(known)).collect();
            context.hold_replays(gone.into_iter().flat_map(RecordedPlan::into_replays));
        }
    }
}

impl RecordedPlan {
    fn into_replays(self) -> impl Iterator<Item = Replay> {
        let all = self.lanes.into_iter().flat_map(|lane| lane.mixed.recorded.into_iter().chain(lane.copied.recorded));
        all.map(|(_, recording)| recording.into_replay())
    }
}

impl Recordings {
    /// Runs a plan with tensors of at most `small` bytes copied and the others in place, if it is
    /// recorded or can be recorded now. `None`: nothing was queued.
    fn run(&mut self, ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>, small: usize) -> Result<Option<Value>> {
        if self.is_refused {
            return Ok(None);
        }
        let Some(mut places) = places_of_inputs(op, steps.context, small) else { return Ok(None) };
        let outputs = take_outputs(&ready.held.plan, steps.context, small)?;
        places.extend(outputs.iter().map(|output| output.address));
        if let Some(at) = self.recorded.iter().position(|(recorded, _)| *recorded == places) {
            self.recorded[at..].rotate_left(1);
        } else if self.is_time(&places) {
            let Some(recording) = Recording::new(ready, op, steps, &outputs, small)? else {
                self.is_refused = true;
                return Ok(None);
            };
            if self.recorded.len() == DIRECT_MAX {
                let (_, oldest) = self.recorded.remove(0);
                steps.context.hold_replays([oldest.into_replay()]);
            }
            self.made += 1;
            self.recorded.push((places, recording));
        } else {
            self.misses = self.misses.saturating_add(1);
            return match small > 0 && !self.is_hopeless() {
                // The outputs are placed as a recording would place them, so that they recur as
                // inputs at known addresses.
                true => run_at(ready, op, steps, &outputs).map(Some),
                false => Ok(None),
            };
        }
        let Some((_, recording)) = self.recorded.last() else { return Ok(None) };
        (self.uses, self.misses) = (self.uses + 1, 0);
        recording.run(&ready.held.plan, op, &outputs, steps.context).map(Some)
    }

    /// Whether addresses are worth recording: they occurred before, and earlier recordings were
    /// used.
    fn is_time(&mut self, places: &[Address]) -> bool {
        if places.is_empty() {
            return true;
        }
        if self.was_in_vain() {
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

    fn was_in_vain(&self) -> bool {
        self.made >= DIRECT_MAX as u64 && self.uses < self.made.saturating_mul(USES_MIN)
    }

    /// Whether the addresses change all the time.
    fn is_hopeless(&self) -> bool {
        self.is_refused || self.was_in_vain() || self.misses >= MISSES_MAX
    }
}

/// Queues a plan step by step, with its large outputs at these addresses.
fn run_at(ready: &mut Ready, op: &RunGraph, steps: &mut Steps<'_>, outputs: &[PlanOutput]) -> Result<Value> {
    place_outputs(&Arc::clone(&ready.held.plan), outputs, steps)?;
    let ran = run_steps(ready, op, steps);
    steps.outputs.clear();
    ran
}

/// The device addresses of the inputs of more than `small` bytes; `None` if the steps would read
/// copies of them.
fn places_of_inputs(op: &RunGraph, context: &mut Context, small: usize) -> Option<Vec<Address>> {
    let place = |tensor: &Tensor| {
        let is_there = context.owns(tensor) && tensor.is_contiguous();
        is_there.then(|| context.view(tensor).ok()).flatten().map(|view| view.address)
    };
    op.inputs().iter().filter(|tensor| tensor.len_bytes() > small).map(place).collect()
}
