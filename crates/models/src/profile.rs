//! The time that each node of a model takes.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use panoply_core::DeviceId;

/// The time of one node, in runs that execute one node after the other. Nodes that are fused in
/// ordinary runs are apart here, so all of them together take longer.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct NodeTime {
    /// The node's name, or the name of its first output.
    pub node: String,
    /// The name of its op.
    pub op: String,
    /// The device that ran it; `None` is the host.
    pub device: Option<DeviceId>,
    /// The time from its inputs to its outputs, without nodes of its bodies: the median of several
    /// runs of the model. For a node of a loop, all its executions in a run together.
    pub time: Duration,
    /// The number of its executions in one run of the model.
    pub executions: u64,
}

/// Measures the steps of one run.
#[derive(Default)]
pub(crate) struct Recorder(Mutex<Measurements>);

#[derive(Default)]
struct Measurements {
    times: Vec<NodeTime>,
    /// The sum of all times so far.
    total: Duration,
    /// The device that ran the latest graph.
    device: Option<DeviceId>,
}

/// The start of a step.
pub(crate) struct Begin {
    at: Instant,
    total: Duration,
}

impl Recorder {
    pub(crate) fn begin(&self) -> Begin {
        let mut measured = self.measured();
        measured.device = None;
        Begin { at: Instant::now(), total: measured.total }
    }

    /// Notes the device that ran a graph.
    pub(crate) fn ran_on(&self, device: DeviceId) {
        self.measured().device = Some(device);
    }

    fn measured(&self) -> MutexGuard<'_, Measurements> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds the time since `begin`, without the steps that were measured in between: those of the
    /// step's own bodies.
    pub(crate) fn end(&self, begin: &Begin, node: &str, op: &str, is_graph: bool) {
        let mut measured = self.measured();
        let inner = measured.total.saturating_sub(begin.total);
        let time = begin.at.elapsed().saturating_sub(inner);
        measured.total += time;
        let device = measured.device.filter(|_| is_graph);
        let times = &mut measured.times;
        match times.iter_mut().find(|known| known.node == node && known.op == op && known.device == device) {
            Some(known) => {
                known.time += time;
                known.executions += 1;
            }
            None => times.push(NodeTime { node: node.to_owned(), op: op.to_owned(), device, time, executions: 1 }),
        }
    }

    pub(crate) fn into_times(self) -> Vec<NodeTime> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).times
    }
}

/// The median times of several runs, in the order of the first run. Nodes that the first run did
/// not execute are left out.
pub(crate) fn medians(runs: &[Vec<NodeTime>]) -> Vec<NodeTime> {
    let median = |node: &NodeTime| {
        let is_same = |other: &&NodeTime| (&other.node, &other.op, other.device) == (&node.node, &node.op, node.device);
        let mut times: Vec<Duration> = runs.iter().filter_map(|run| Some(run.iter().find(is_same)?.time)).collect();
        times.sort_unstable();
        NodeTime { time: times.get(times.len() / 2).copied().unwrap_or(node.time), ..node.clone() }
    };
    runs.first().into_iter().flatten().map(median).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ms: u64) -> NodeTime {
        let (node, op, time) = (name.to_owned(), "Relu".to_owned(), Duration::from_millis(ms));
        NodeTime { node, op, device: None, time, executions: 1 }
    }

    #[test]
    fn a_loop_is_measured_without_its_body() {
        let recorder = Recorder::default();
        let outer = recorder.begin();
        for _ in 0..2 {
            let inner = recorder.begin();
            std::thread::sleep(Duration::from_millis(20));
            recorder.end(&inner, "body", "Add", false);
        }
        recorder.end(&outer, "loop", "Loop", false);
        let times = recorder.into_times();
        assert_eq!((times[0].executions, times[1].executions, times.len()), (2, 1, 2));
        assert!(times[0].time >= Duration::from_millis(40) && times[1].time < Duration::from_millis(20), "{times:?}");
    }

    #[test]
    fn the_median_of_runs_counts() {
        let runs = [vec![node("a", 9), node("b", 1)], vec![node("a", 2)], vec![node("a", 3), node("b", 2)]];
        assert_eq!(medians(&runs), [node("a", 3), node("b", 2)]);
    }
}
