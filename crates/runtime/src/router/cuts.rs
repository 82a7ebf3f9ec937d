//! Graphs that no device runs whole: how they are cut into parts for several devices.
//!
//! A graph is cut if none of the allowed devices runs all of its ops, or if its caller prefers a
//! device that runs only some. The preferred device gets all ops that it can run. Without a
//! preference, devices with memory of their own come first, and the processor's cores last. Each
//! part then goes to its device if that is healthy, otherwise wherever it finishes first.

use std::time::Instant;

use panoply_core::graph::GraphParts;
use panoply_core::op::graph::{GraphOp, RunGraph};
use panoply_core::{DeviceId, Error, Op, Result, Support};

use super::Router;
use super::lanes::Candidate;
use crate::lane::{InParts, OpRequest};
use crate::options::Wishes;

impl Router {
    /// The parts of a graph that must be cut. `None` for every other op, and if cutting does not
    /// help.
    pub(crate) fn cut(&self, op: &Op, wishes: &Wishes) -> Result<Option<InParts>> {
        let Op::Graph(GraphOp::RunGraph(graph)) = op else { return Ok(None) };
        let may = |candidate: &&Candidate| {
            wishes.allows(candidate.lane.number, candidate.lane.placed()) && candidate.is_alive()
        };
        let preferred = wishes.prefer.and_then(|lane| self.lanes.made(lane)).filter(may);
        let runs_whole = match preferred {
            Some(preferred) => preferred.can_run(op),
            None => self.lanes.iter().filter(may).any(|candidate| candidate.can_run(op)),
        };
        if runs_whole || wishes.pinned {
            return Ok(None);
        }
        let mut devices: Vec<&Candidate> = self.lanes.iter().filter(may).collect();
        devices.sort_by_key(|candidate| {
            let info = &candidate.lane.info;
            (
                Some(info.id) != preferred.map(|preferred| preferred.lane.info.id),
                info.runs_on_cores,
                info.is_processor(),
            )
        });
        let devices: Vec<DeviceId> = devices.into_iter().map(|candidate| candidate.lane.info.id).collect();
        match self.parts(graph, &devices) {
            Ok(parts) if parts.parts.len() > 1 => Ok(Some(InParts::new(graph.clone(), parts, wishes.to_host))),
            // One device has every op but refuses the graph for another reason, which it reports
            // itself.
            Ok(_) => Ok(None),
            // Another device may run the whole graph that cannot be cut for the preferred one.
            Err(_) if preferred.is_some() => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn parts(&self, graph: &RunGraph, devices: &[DeviceId]) -> Result<std::sync::Arc<GraphParts>> {
        let ask = |device: DeviceId, op: &Op| {
            let gone = || Support::No("it is gone".to_owned());
            self.lanes.serving(device).map_or_else(gone, |candidate| candidate.supports(op))
        };
        graph.instance()?.parts(graph.graph(), devices, &ask)
    }

    /// Chooses the lane of the present part of a graph.
    pub(crate) fn route_part(&self, task: &mut OpRequest, now: Instant) -> Result<()> {
        let parts = task.history.as_ref().and_then(|history| history.parts.as_ref());
        task.wishes.prefer = parts.map(|parts| self.lane_of_part(parts)).transpose()?.flatten();
        let op = task.op.as_ref().ok_or(Error::ShuttingDown)?;
        task.forecast = self.choose(op, &task.wishes, now)?.forecast;
        self.take_seat(task);
        Ok(())
    }

    /// The lane that serves the device of the present part, if there is one.
    pub(crate) fn lane_of_part(&self, parts: &InParts) -> Result<Option<u16>> {
        let device = parts.device()?;
        Ok(self.lanes.serving(device).map(|candidate| candidate.lane.id))
    }
}
