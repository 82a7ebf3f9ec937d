//! What travels in a ticket: the op, what its caller wishes, what the router expects, and what has become of it so far.
//!
//! An op may make several stops. Inputs that live on another device than the one it shall run on are fetched there first;
//! an output that is wanted on the host is delivered after it ran. Each stop is an item for the engine at that stop. The
//! task itself stays in its ticket all the time, so that whoever ends up with the ticket knows the whole story.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use panoply_core::op::compute::Transfer;
use panoply_core::{
    Alternative, Bytes, Describe, DeviceId, Error, ErrorKind, Fallback, Location, Op, Operation, PartMut, PartRef,
    Prediction, Report, Result, Tensor, Value,
};

use super::{InParts, Lane};
use crate::health::Mark;
use crate::learned::model::Key;
use crate::options::{FallbackPolicy, Wishes};

/// What a caller asks of a worker.
pub(crate) struct Task {
    /// `None` while an engine holds the only copy.
    pub(crate) op: Option<Op>,
    pub(crate) accepted: Instant,
    pub(crate) wishes: Wishes,
    pub(crate) forecast: Forecast,
    /// What it adds to the backlog of the lane that it is in.
    pub(crate) load_ns: u64,
    /// Whether a copy of the op is kept while an engine has it, so that it can be tried again.
    pub(crate) keep: bool,
    /// Whether it may be under way for as long as it likes.
    pub(crate) session: bool,
    /// One of the few seats that its lane has for probes and explorers, if it has one.
    pub(crate) seat: Option<Seat>,
    /// Made when something out of the ordinary happens.
    pub(crate) history: Option<Box<History>>,
}

/// What the router expected when it chose a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forecast {
    pub(crate) key: Key,
    pub(crate) work_log2: f32,
    pub(crate) queue_ns: f32,
    pub(crate) transfer_ns: f32,
    pub(crate) run_ns: f32,
    pub(crate) service_ns: f32,
    /// The lane that the op shall run in.
    pub(crate) target: u8,
    /// It was sent to find out whether the device works again.
    pub(crate) probe: bool,
    /// Enough ops of its size were measured there that one more says little.
    pub(crate) settled: bool,
    /// It was sent to learn how fast the device is.
    pub(crate) explored: bool,
    /// Some input may live on another device.
    pub(crate) foreign: bool,
}

/// One of the few seats that a lane has for ops that find something out. It is given back wherever the op ends.
pub(crate) struct Seat {
    lane: Arc<Lane>,
    probe: bool,
    explorer: bool,
}

impl Seat {
    /// Takes the seat that a forecast asks for; `None` where it asks for none, or none is left.
    pub(crate) fn take(lane: &Arc<Lane>, forecast: &Forecast) -> Option<Seat> {
        let probe = forecast.probe && lane.gate.breaker.take_probe(&lane.rules);
        let explorer = forecast.explored;
        if explorer {
            lane.exploring.fetch_add(1, Ordering::Relaxed);
        }
        (probe || explorer).then(|| Seat { lane: Arc::clone(lane), probe, explorer })
    }

    /// Gives the seat back. Returns whether it was one for a probe, whose mark is the caller's to tell.
    pub(crate) fn end_probe(mut self) -> bool {
        std::mem::take(&mut self.probe)
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        if self.explorer {
            self.lane.exploring.fetch_sub(1, Ordering::Relaxed);
        }
        if self.probe {
            self.lane.gate.breaker.note(Mark::Neither, true, 0, &self.lane.rules);
        }
    }
}

/// What happened to an op before.
#[derive(Default)]
pub(crate) struct History {
    /// A bit for each lane that failed it.
    pub(crate) tried: u64,
    pub(crate) failures: u32,
    /// The first failure.
    pub(crate) fallback: Option<Fallback>,
    /// The failure that sent it to the relay, if one did.
    pub(crate) failure: Option<Error>,
    /// It left a queue unharmed, and may go back where nobody else takes it.
    pub(crate) evacuated: bool,
    pub(crate) alternatives: Vec<Alternative>,
    pub(crate) bytes_moved: u64,
    pub(crate) transferred: Duration,
    /// The output on its way to the host.
    pub(crate) output: Option<(Value, Box<Report>)>,
    /// The other parts of the graph of which the op is one, where it is.
    pub(crate) parts: Option<InParts>,
}

/// What a worker does for an op at one stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Leg {
    /// Brings an input to the host.
    Fetch,
    /// Runs it.
    Run,
    /// Brings an output to the host.
    Deliver,
}

impl Forecast {
    pub(crate) fn prediction(&self) -> Prediction {
        let time = |ns: f32| Duration::from_nanos(ns as u64);
        Prediction { queue: time(self.queue_ns), transfer: time(self.transfer_ns), run: time(self.run_ns) }
    }
}

impl Task {
    pub(crate) fn history(&mut self) -> &mut History {
        self.history.get_or_insert_default()
    }

    /// Goes back to the first part of its graph where parts were lost with this device, and the caller allows to try again.
    pub(crate) fn begin_parts_again(&mut self, device: DeviceId, error: &Error) -> bool {
        let allowed = self.wishes.policy != FallbackPolicy::None && error.kind() == ErrorKind::Device;
        let parts = self.history.as_mut().and_then(|history| history.parts.as_mut());
        allowed && parts.is_some_and(|parts| parts.begin_again(device, error)) && self.begin_part().is_ok()
    }

    /// Makes the op the present part of its graph, as if it had just been accepted.
    pub(crate) fn begin_part(&mut self) -> Result<()> {
        let Some(History { parts: Some(parts), .. }) = self.history.as_deref() else { return Ok(()) };
        let (op, to_host) = (parts.op()?, parts.is_wanted_on_host());
        (self.op, self.wishes.to_host, self.seat) = (Some(op), to_host, None);
        let history = self.history();
        let (parts, alternatives) = (history.parts.take(), std::mem::take(&mut history.alternatives));
        *history = History { parts, alternatives, ..History::default() };
        Ok(())
    }

    /// The item for the engine of the lane with this number, on this device.
    pub(crate) fn next_item(&mut self, lane: u8, device: DeviceId) -> Option<(Op, Leg)> {
        if lane != self.forecast.target {
            return Some((fetch(self.op.as_ref()?, device)?, Leg::Fetch));
        }
        let op = if self.keep { self.op.clone() } else { self.op.take() };
        op.map(|op| (op, Leg::Run))
    }

    /// The device that holds the next input to be fetched before the op can run on `target`.
    pub(crate) fn next_owner(&self, target: DeviceId) -> Option<DeviceId> {
        let op = self.op.as_ref().filter(|_| self.forecast.foreign)?;
        let input = input_on(op, |owner| owner != target)?;
        match input.location() {
            Location::Device(owner) => Some(owner),
            Location::Host => None,
        }
    }

    /// Puts a fetched input into the op, wherever the op reads it. One of another type would make it another op, which nobody has
    /// checked, and one that is not on the host would have to be fetched again: both are left out.
    pub(crate) fn put_input(&mut self, device: DeviceId, fetched: &Tensor) {
        let input = self.op.as_ref().and_then(|op| input_on(op, |owner| owner == device));
        let Some(input) = input.filter(|input| stands_for(fetched, input)) else { return };
        if let Some(op) = &mut self.op {
            op.for_each_part_mut(&mut |part| match part {
                PartMut::Tensor(tensor) if same_view(tensor, &input) => *tensor = fetched.clone(),
                PartMut::Bytes(bytes) if bytes.to_tensor().is_ok_and(|view| same_view(&view, &input)) => {
                    if let Ok(arrived) = Bytes::from_tensor(fetched) {
                        *bytes = arrived;
                    }
                }
                _ => {}
            });
        }
    }

    /// Whether the op may be sent elsewhere, or again, after this error.
    pub(crate) fn may_move(&self, error: &Error) -> bool {
        let failures = self.history.as_ref().map_or(0, |history| history.failures);
        let allowed = match self.wishes.policy {
            FallbackPolicy::None => false,
            FallbackPolicy::Retry { times } => failures < times,
            FallbackPolicy::Alternate | FallbackPolicy::Cpu => true,
        };
        let elsewhere = error.kind() == ErrorKind::Device || matches!(error, Error::OutOfMemory { .. });
        allowed && elsewhere && self.op.is_some()
    }

    /// Notes that a lane failed it.
    pub(crate) fn note_failure(&mut self, lane: u8, device: DeviceId, error: &Error) {
        let history = self.history();
        history.tried |= 1 << lane;
        history.failures += 1;
        history.output = None;
        history.failure = Some(error.clone());
        history.fallback.get_or_insert_with(|| Fallback { from: device, cause: error.clone() });
    }

    /// Readies the op to leave a lane that cannot serve it now; false where it may not.
    pub(crate) fn evacuate(&mut self, lane: u8, device: DeviceId, cause: &Error) -> bool {
        let elsewhere = matches!(self.wishes.policy, FallbackPolicy::Alternate | FallbackPolicy::Cpu);
        let before = self.history.as_ref().is_some_and(|history| history.evacuated);
        if !elsewhere || before || self.forecast.target != lane {
            return false;
        }
        let history = self.history();
        history.evacuated = true;
        history.failure = Some(cause.clone());
        history.fallback.get_or_insert_with(|| Fallback { from: device, cause: cause.clone() });
        true
    }

    /// How many inputs that can move are on this device.
    pub(crate) fn inputs_on(&self, device: DeviceId) -> usize {
        let mut count = 0;
        if let Some(op) = &self.op {
            op.for_each_part(&mut |part| {
                count += usize::from(part.object().is_none() && part.location() == Location::Device(device));
            });
        }
        count
    }
}

/// The op that brings the next input of `op` on this device to the host.
pub(crate) fn fetch(op: &Op, device: DeviceId) -> Option<Op> {
    transfer_to_host(&input_on(op, |owner| owner == device)?)
}

/// The first tensor, or bytes as a tensor of bytes, on a device that is wanted. Device objects do not move.
fn input_on(op: &Op, wanted: impl Fn(DeviceId) -> bool) -> Option<Tensor> {
    let mut found = None;
    op.for_each_part(&mut |part| {
        if let Location::Device(owner) = part.location()
            && found.is_none()
            && wanted(owner)
        {
            found = match part {
                PartRef::Tensor(tensor) => Some(tensor.clone()),
                PartRef::Bytes(bytes) => bytes.to_tensor().ok(),
                PartRef::Object(_) | PartRef::Sink(_) => None,
            };
        }
    });
    found
}

/// The op that brings a tensor to the host.
pub(crate) fn transfer_to_host(tensor: &Tensor) -> Option<Op> {
    Transfer::to_host(tensor).into_op().ok()
}

/// Whether what a transfer brought is on the host, and of the element type and shape of what it shall stand for.
pub(crate) fn stands_for(brought: &Tensor, original: &Tensor) -> bool {
    brought.location() == Location::Host && (brought.dtype(), brought.shape()) == (original.dtype(), original.shape())
}

fn same_view(a: &Tensor, b: &Tensor) -> bool {
    let place = |tensor: &Tensor| match tensor.buffer() {
        panoply_core::Buffer::Device(buffer) => Some((buffer.device(), buffer.token())),
        panoply_core::Buffer::Host(_) => None,
    };
    place(a).is_some()
        && place(a) == place(b)
        && (a.shape(), a.strides(), a.offset(), a.dtype()) == (b.shape(), b.strides(), b.offset(), b.dtype())
}
