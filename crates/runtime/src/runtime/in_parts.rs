//! Graphs that a device cannot run whole: what it lacks runs elsewhere, and the report tells each cut.

use panoply_core::graph::Source;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Cut, DeviceId, Error, Outcome, Report, Result, Tensor};

use super::Runtime;
use crate::options::RunOptions;

impl Runtime {
    /// Runs a graph on a device as far as that can: parts with ops that it lacks run wherever they finish first, with the
    /// relay between them. The report is the last part's with the times and bytes of all, and names every cut. Blocks
    /// until the outputs are there.
    ///
    /// A graph that the device runs whole is one op, as with [`Runtime::run_with`].
    pub fn run_in_parts(&self, op: &RunGraph, device: DeviceId, options: &RunOptions) -> Result<Outcome<Vec<Tensor>>> {
        let candidate = self.router.lanes.current().find(|candidate| candidate.lane.info.id == device);
        let candidate = candidate.ok_or_else(|| {
            let known: Vec<String> = self.devices().map(|info| info.id.to_string()).collect();
            Error::NoSuchDevice { device, known: known.join(", ") }
        })?;
        let parts = op.instance()?.parts(op.graph(), device, &|op| candidate.supports(op))?;
        let there = RunOptions { device: None, prefer: Some(device), ..options.clone() };
        let mut elsewhere = RunOptions { device: None, prefer: None, ..options.clone() };
        elsewhere.forbid.push(device);
        if parts.parts.iter().all(|part| part.lacks.is_none()) {
            return self.run_with(op.clone(), there).with_report().wait();
        }
        let mut made: Vec<Vec<Tensor>> = Vec::new();
        let mut whole: Option<Report> = None;
        let mut cuts = Vec::new();
        for part in &parts.parts {
            let inputs: Vec<&Tensor> =
                part.inputs.iter().map(|from| tensor(*from, op, &made)).collect::<Result<_>>()?;
            let run = RunGraph::new(&part.graph, &inputs);
            let options = if part.lacks.is_none() { &there } else { &elsewhere };
            let Outcome { output, report } = self.run_with(run, options.clone()).with_report().wait()?;
            if let Some(reason) = &part.lacks {
                let bytes: usize = inputs.into_iter().chain(&output).map(Tensor::len_bytes).sum();
                cuts.push(Cut { from: device, to: report.device, reason: reason.clone(), bytes: bytes as u64 });
            }
            whole = Some(joined(whole, report));
            made.push(output);
        }
        let output = parts.outputs.iter().map(|from| tensor(*from, op, &made).cloned()).collect::<Result<_>>()?;
        let mut report = whole.ok_or_else(|| Error::invalid("graph: parts", "at least one", "none"))?;
        report.cuts = cuts;
        Ok(Outcome { output, report })
    }
}

fn tensor<'a>(from: Source, op: &'a RunGraph, made: &'a [Vec<Tensor>]) -> Result<&'a Tensor> {
    let found = match from {
        Source::Input(input) => op.inputs().get(input),
        Source::Output { part, output } => made.get(part).and_then(|outputs| outputs.get(output)),
    };
    found.ok_or_else(|| Error::invalid("graph: an input of a part", "a tensor", "none"))
}

/// The later report, with the times and bytes of both.
fn joined(earlier: Option<Report>, later: Report) -> Report {
    let Some(earlier) = earlier else { return later };
    let both = |a: Option<std::time::Duration>, b: Option<std::time::Duration>| match (a, b) {
        (Some(a), Some(b)) => Some(a + b),
        (a, b) => a.or(b),
    };
    Report {
        queued: earlier.queued + later.queued,
        ran: earlier.ran + later.ran,
        transferred: both(earlier.transferred, later.transferred),
        device_time: both(earlier.device_time, later.device_time),
        bytes_moved: earlier.bytes_moved + later.bytes_moved,
        attempts: earlier.attempts.max(later.attempts),
        fallback: later.fallback.or(earlier.fallback),
        ..later
    }
}
