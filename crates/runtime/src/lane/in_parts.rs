//! A graph that runs in parts, one after the other, each on its own device: the outputs made so
//! far, and the parts left. It travels in the op's one ticket. So, like any other op, the graph has
//! one outcome, one deadline and one caller who may cancel it.

use std::sync::Arc;
use std::time::Duration;

use panoply_core::graph::{GraphPart, GraphParts, TensorSource};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Cut, DeviceId, Error, Fallback, Op, Operation, Part, Report, Result, Tensor, Value};

/// The progress of a graph that runs in parts. See the module.
pub(crate) struct InParts {
    whole: RunGraph,
    parts: Arc<GraphParts>,
    /// The outputs of each part before the present one.
    made: Vec<Vec<Tensor>>,
    cuts: Vec<Cut>,
    /// The joined report of the parts so far.
    report: Option<Report>,
    /// Whether the caller wants the outputs on the host.
    to_host: bool,
    /// Whether the present part has no lane yet.
    is_unrouted: bool,
    /// How often the graph was restarted.
    restarts: u32,
    fallback: Option<Fallback>,
}

/// How often a graph is restarted after its intermediate tensors were lost with the device that
/// held them.
const RESTARTS_MAX: u32 = 3;

impl InParts {
    pub(crate) fn new(whole: RunGraph, parts: Arc<GraphParts>, to_host: bool) -> InParts {
        let made = Vec::with_capacity(parts.parts.len());
        let (cuts, report, fallback) = (Vec::new(), None, None);
        InParts { whole, parts, made, cuts, report, to_host, is_unrouted: false, restarts: 0, fallback }
    }

    /// The device that the present part belongs to.
    pub(crate) fn device(&self) -> Result<DeviceId> {
        self.part().map(|part| part.device)
    }

    /// Whether the output of the present part is wanted on the host.
    pub(crate) fn is_wanted_on_host(&self) -> bool {
        self.to_host && self.part().is_ok_and(|part| part.makes_output)
    }

    /// The present part as an op.
    pub(crate) fn op(&self) -> Result<Op> {
        let part = self.part()?;
        let inputs: Vec<&Tensor> = part.inputs.iter().map(|from| self.tensor(*from)).collect::<Result<_>>()?;
        RunGraph::new(&part.graph, &inputs).into_op()
    }

    /// Stores the output of the present part, and goes on to the next. After the last part, returns
    /// the whole graph's outputs and report.
    pub(crate) fn take(&mut self, value: Value, report: Report) -> Result<Option<(Value, Report)>> {
        let part = self.part()?;
        if let Some(reason) = &part.lacks {
            let inputs = part.inputs.iter().map(|from| self.tensor(*from).map_or(0, Tensor::len_bytes));
            let bytes = inputs.fold(value.len_bytes(), usize::saturating_add);
            let from =
                self.parts.parts.iter().find(|part| part.lacks.is_none()).map_or(part.device, |part| part.device);
            self.cuts.push(Cut { from, to: report.device, reason: reason.clone(), bytes: bytes as u64 });
        }
        self.made.push(value.tensors().cloned().collect());
        self.report = Some(joined(self.report.take(), report));
        if self.made.len() < self.parts.parts.len() {
            self.is_unrouted = true;
            return Ok(None);
        }
        let outputs = self.parts.outputs.iter().map(|from| self.tensor(*from).cloned().map(Part::Tensor));
        let value = outputs.collect::<Result<_>>().map(Value::List)?;
        let missing = || Error::invalid("graph: the report of its parts", "one", "none");
        let mut report = self.report.take().ok_or_else(missing)?;
        report.cuts = std::mem::take(&mut self.cuts);
        report.fallback = self.fallback.take().or(report.fallback);
        report.attempts += self.restarts;
        Ok(Some((value, report)))
    }

    /// Goes back to the first part, because the outputs of earlier parts are lost with this device.
    /// The graph's inputs still exist. Returns false if no part has finished, or if `RESTARTS_MAX`
    /// is reached.
    pub(crate) fn begin_again(&mut self, from: DeviceId, cause: &Error) -> bool {
        if self.made.is_empty() || self.restarts == RESTARTS_MAX {
            return false;
        }
        self.restarts += 1;
        self.fallback.get_or_insert_with(|| Fallback { from, cause: cause.clone() });
        self.made.clear();
        self.cuts.clear();
        (self.report, self.is_unrouted) = (None, true);
        true
    }

    /// Whether the present part needs a lane. Returns true only once for each part.
    pub(crate) fn wants_lane(&mut self) -> bool {
        std::mem::take(&mut self.is_unrouted)
    }

    fn part(&self) -> Result<&GraphPart> {
        let missing = || Error::invalid("graph: a part", "one that is left", "none");
        self.parts.parts.get(self.made.len()).ok_or_else(missing)
    }

    fn tensor(&self, from: TensorSource) -> Result<&Tensor> {
        let found = match from {
            TensorSource::Input(input) => self.whole.inputs().get(input),
            TensorSource::Output { part, output } => self.made.get(part).and_then(|outputs| outputs.get(output)),
        };
        found.ok_or_else(|| Error::invalid("graph: an input of a part", "a tensor", "none"))
    }
}

/// The later report, with the time since the first part was accepted, and with the copies of both.
fn joined(earlier: Option<Report>, later: Report) -> Report {
    let Some(earlier) = earlier else { return later };
    let both = |a: Option<Duration>, b: Option<Duration>| match (a, b) {
        (Some(a), Some(b)) => Some(a.saturating_add(b)),
        (a, b) => a.or(b),
    };
    Report {
        queued: earlier.queued,
        ran: (later.queued + later.ran).saturating_sub(earlier.queued),
        transferred: both(earlier.transferred, later.transferred),
        device_time: both(earlier.device_time, later.device_time),
        bytes_moved: earlier.bytes_moved.saturating_add(later.bytes_moved),
        attempts: earlier.attempts.max(later.attempts),
        fallback: earlier.fallback.or(later.fallback),
        alternatives: earlier.alternatives,
        ..later
    }
}
