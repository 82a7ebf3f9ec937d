//! The content of a ticket: the op, its caller's wishes, the router's forecast, and the op's
//! history.
//!
//! An op may make several stops. Inputs that live on another device than the op's target are
//! fetched there first; an output that is wanted on the host is delivered after the run. Each stop
//! is an item for the engine at that stop. The task itself always stays in its ticket, so that the
//! owner of the ticket knows the whole history.

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
use crate::learned::model::{CurveKey, log2};
use crate::options::{FallbackPolicy, Wishes};

/// A caller's request to a worker.
pub(crate) struct OpRequest {
    /// `None` while an engine holds the only copy.
    pub(crate) op: Option<Op>,
    pub(crate) accepted: Instant,
    pub(crate) wishes: Wishes,
    pub(crate) forecast: Forecast,
    /// Its share of the backlog of the lane that it is in.
    pub(crate) load_ns: u64,
    /// Whether a copy of the op is kept while an engine has it, so that it can be tried again.
    pub(crate) keep: bool,
    /// Whether its answer must be compared with another device's.
    pub(crate) verify: bool,
    /// Whether the op is a session, which has no time limit.
    pub(crate) session: bool,
    /// Its lane's seat for a probe or an explorer, if it has one.
    pub(crate) seat: Option<ProbeSeat>,
    /// Allocated only when something unusual happens, such as a failure, a fetch or a delivery.
    pub(crate) history: Option<Box<History>>,
}

/// The router's expectations when it chose a lane.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Forecast {
    pub(crate) key: CurveKey,
    pub(crate) work_log2: f32,
    pub(crate) queue_ns: f32,
    pub(crate) transfer_ns: f32,
    pub(crate) run_ns: f32,
    pub(crate) service_ns: f32,
    /// The id of the lane that the op is to run in.
    pub(crate) target: u16,
    /// Whether it was sent to find out if the device works again.
    pub(crate) probe: bool,
    /// Whether enough ops of its size were measured on the device that one more adds little.
    pub(crate) settled: bool,
    /// Whether it was sent to learn how fast the device is.
    pub(crate) explored: bool,
    /// Whether some input may live on another device.
    pub(crate) foreign: bool,
}

/// One of the few seats that a lane has for probes and explorers. It is given back wherever the op
/// ends.
pub(crate) struct ProbeSeat {
    lane: Arc<Lane>,
    probe: bool,
    explorer: bool,
}

impl ProbeSeat {
    /// Takes the seat that a forecast asks for. `None` if it asks for none, or if none is left.
    pub(crate) fn take(lane: &Arc<Lane>, forecast: &Forecast) -> Option<ProbeSeat> {
        let probe = forecast.probe && lane.gate.breaker.take_probe(&lane.rules);
        let explorer = forecast.explored;
        if explorer {
            lane.exploring.fetch_add(1, Ordering::Relaxed);
        }
        (probe || explorer).then(|| ProbeSeat { lane: Arc::clone(lane), probe, explorer })
    }

    /// Gives the seat back. Returns whether it was a probe's seat; the caller must then report the
    /// probe's mark to the breaker.
    pub(crate) fn end_probe(mut self) -> bool {
        std::mem::take(&mut self.probe)
    }
}

impl Drop for ProbeSeat {
    fn drop(&mut self) {
        if self.explorer {
            self.lane.exploring.fetch_sub(1, Ordering::Relaxed);
        }
        if self.probe {
            self.lane.gate.breaker.note(Mark::Neither, true, 0, &self.lane.rules);
        }
    }
}

/// The earlier events of an op.
#[derive(Default)]
pub(crate) struct History {
    /// A bit for the slot of each lane that failed the op.
    pub(crate) tried: u64,
    pub(crate) failures: u32,
    /// The first failure.
    pub(crate) fallback: Option<Fallback>,
    /// The failure that sent it to the relay, if one did.
    pub(crate) failure: Option<Error>,
    /// Whether it left a queue without having failed, so that it may go back if no other device
    /// takes it.
    pub(crate) evacuated: bool,
    pub(crate) alternatives: Vec<Alternative>,
    pub(crate) bytes_moved: u64,
    pub(crate) transferred: Duration,
    /// The output on its way to the host.
    pub(crate) output: Option<(Value, Box<Report>)>,
    /// The other parts of the graph, if the op is one part of a graph.
    pub(crate) parts: Option<InParts>,
}

/// The work of a worker for an op at one stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpStage {
    /// Copies an input to the host.
    Fetch,
    /// Runs the op.
    Run,
    /// Copies an output to the host.
    Deliver,
}

impl Forecast {
    pub(crate) fn prediction(&self) -> Prediction {
        let time = |ns: f32| Duration::from_nanos(ns as u64);
        Prediction { queue: time(self.queue_ns), transfer: time(self.transfer_ns), run: time(self.run_ns) }
    }
}

impl OpRequest {
    /// The request of a caller that reads a tensor on the lane's device: a transfer, which no other
    /// lane can run.
    pub(crate) fn of_read(lane: &Lane, transfer: Op, accepted: Instant, deadline: Instant) -> OpRequest {
        let time_ns = lane.links.down.time_ns(transfer.input_bytes() as f32);
        let forecast = Forecast {
            key: CurveKey::new(transfer.name(), transfer.dtype(), transfer.cost_class()),
            work_log2: log2(transfer.work() as f32),
            queue_ns: lane.backlog_ns() as f32,
            transfer_ns: 0.0,
            run_ns: time_ns,
            service_ns: time_ns,
            target: lane.id,
            probe: false,
            settled: false,
            explored: false,
            foreign: false,
        };
        let wishes = Wishes { deadline: Some(deadline), pinned: true, ..Wishes::none(FallbackPolicy::None) };
        let (op, load_ns) = (Some(transfer), time_ns as u64);
        let (keep, verify, session, seat, history) = (false, false, false, None, None);
        OpRequest { op, accepted, wishes, forecast, load_ns, keep, verify, session, seat, history }
    }

    pub(crate) fn history(&mut self) -> &mut History {
        self.history.get_or_insert_default()
    }

    /// Goes back to the first part of the op's graph, if parts were lost with this device and the
    /// caller allows a retry.
    pub(crate) fn begin_parts_again(&mut self, device: DeviceId, error: &Error) -> bool {
        let allowed = self.wishes.policy != FallbackPolicy::None && error.kind() == ErrorKind::Device;
        let parts = self.history.as_mut().and_then(|history| history.parts.as_mut());
        allowed && parts.is_some_and(|parts| parts.begin_again(device, error)) && self.begin_part().is_ok()
    }

    /// Makes the present part of its graph the op of this task, as if it had just been accepted.
    pub(crate) fn begin_part(&mut self) -> Result<()> {
        let Some(History { parts: Some(parts), .. }) = self.history.as_deref() else { return Ok(()) };
        let (op, to_host) = (parts.op()?, parts.is_wanted_on_host());
        (self.op, self.wishes.to_host, self.seat) = (Some(op), to_host, None);
        let history = self.history();
        let (parts, alternatives) = (history.parts.take(), std::mem::take(&mut history.alternatives));
        *history = History { parts, alternatives, ..History::default() };
        Ok(())
    }

    /// The next item for the engine of the lane with this id, on this device.
    pub(crate) fn next_item(&mut self, lane: u16, device: DeviceId) -> Option<(Op, OpStage)> {
        if lane != self.forecast.target {
            return Some((fetch(self.op.as_ref()?, device)?, OpStage::Fetch));
        }
        let op = if self.keep { self.op.clone() } else { self.op.take() };
        op.map(|op| (op, OpStage::Run))
    }

    /// The device that holds the next input to fetch before the op can run on `target`.
    pub(crate) fn next_owner(&self, target: DeviceId) -> Option<DeviceId> {
        let op = self.op.as_ref().filter(|_| self.forecast.foreign)?;
        let input = input_on(op, |owner| owner != target)?;
        match input.location() {
            Location::Device(owner) => Some(owner),
            Location::Host => None,
        }
    }

    /// Puts a fetched input into the op, at every place where the op reads it. A tensor of another
    /// type or shape is ignored: it would make the op another op that was never validated. A tensor
    /// that is not on the host is ignored too: it would have to be fetched again.
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

    /// Notes that the lane in this slot failed the op.
    pub(crate) fn note_failure(&mut self, lane: u8, device: DeviceId, error: &Error) {
        let history = self.history();
        history.tried |= 1 << lane;
        history.failures += 1;
        history.output = None;
        history.failure = Some(error.clone());
        history.fallback.get_or_insert_with(|| Fallback { from: device, cause: error.clone() });
    }

    /// Prepares the op to leave a lane that cannot serve it now. Returns false if it may not leave.
    pub(crate) fn evacuate(&mut self, lane: u16, device: DeviceId, cause: &Error) -> bool {
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

    /// How many movable inputs are on this device.
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

/// The op that copies the next input of `op` on this device to the host.
pub(crate) fn fetch(op: &Op, device: DeviceId) -> Option<Op> {
    transfer_to_host(&input_on(op, |owner| owner == device)?)
}

/// The first tensor on a wanted device, or the first bytes there as a tensor of bytes. Device
/// objects do not move.
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

/// The op that copies a tensor to the host.
pub(crate) fn transfer_to_host(tensor: &Tensor) -> Option<Op> {
    Transfer::to_host(tensor).into_op().ok()
}

/// Whether a transferred tensor is on the host and has the element type and shape of the original.
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
