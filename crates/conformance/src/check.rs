//! Runs cases on an engine and compares the answers with the reference.

use std::fmt;
use std::time::{Duration, Instant};

use panoply_core::graph::Graph;
use panoply_core::op::compute::Transfer;
use panoply_core::op::graph::RunGraph;
use panoply_core::{
    Backend, DeviceInfo, Engine, Error, Item, Location, Op, OpenOptions, Operation, Part, Result, Support, Value,
};

use crate::random_graph::{RandomGraph, Seeds};
use crate::reference::reference;
use crate::suite::Case;

/// The longest that one case may take on an engine.
const CASE_SECONDS_MAX: u64 = 60;

/// What came of a run of the suite on one device.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Cases whose answers agreed.
    pub passed: usize,
    /// Cases whose answers did not, with what was wrong.
    pub failed: Vec<(String, String)>,
    /// Cases that the device does not claim to run, with its reasons.
    pub unsupported: Vec<(String, String)>,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, what) in &self.failed {
            writeln!(f, "FAILED {name}: {what}")?;
        }
        write!(f, "{} passed, {} failed, {} unsupported", self.passed, self.failed.len(), self.unsupported.len())
    }
}

/// Opens one device of a backend and runs the cases on it.
pub fn check_backend(backend: &dyn Backend, device: &DeviceInfo, cases: &[Case]) -> Result<Summary> {
    let mut engine = backend.open(device, &OpenOptions::default())?;
    let mut summary = Summary::default();
    for case in cases {
        if let Support::No(reason) = backend.supports(device, &case.op) {
            summary.unsupported.push((case.name.clone(), reason));
            continue;
        }
        match check_case(engine.as_mut(), case) {
            None => summary.passed += 1,
            Some(what) => summary.failed.push((case.name.clone(), what)),
        }
    }
    Ok(summary)
}

/// Runs random graphs on one device: as one op and op by op, each against the reference.
pub fn check_graphs(backend: &dyn Backend, device: &DeviceInfo, seeds: Seeds) -> Result<Summary> {
    let mut engine = backend.open(device, &OpenOptions::default())?;
    let mut summary = Summary::default();
    for (number, RandomGraph { op: graph, tolerance }) in seeds.graphs() {
        let case = Case::new(format!("graph/random/{number} of {seeds:?}"), graph.clone(), tolerance);
        if let Support::No(reason) = backend.supports(device, &case.op) {
            summary.unsupported.push((case.name, reason));
            continue;
        }
        let fused = check_case(engine.as_mut(), &case).map(|what| format!("as one op: {what}"));
        let apart = || check_apart(engine.as_mut(), &case, &graph).map(|what| format!("op by op: {what}"));
        match fused.or_else(apart) {
            None => summary.passed += 1,
            Some(what) => summary.failed.push((case.name, format!("{what}\n{}", shown(graph.graph())))),
        }
    }
    Ok(summary)
}

/// The graph's ops one by one on the engine, against the reference.
fn check_apart(engine: &mut dyn Engine, case: &Case, graph: &RunGraph) -> Option<String> {
    let mut run = |op: &Op| run_one(engine, op.clone());
    let ran = graph.instance().and_then(|instance| instance.run(graph.graph(), graph.inputs(), &mut run));
    match (reference(&case.op), ran) {
        (Ok(expected), Ok(got)) => {
            let got = Value::List(got.into_iter().map(Part::Tensor).collect());
            case.judge.difference(&case.op, &expected, &got)
        }
        (Err(_), Err(_)) => None,
        (Ok(_), Err(got)) => Some(format!("expected an answer, got the error «{got}»")),
        (Err(expected), Ok(_)) => Some(format!("expected the error «{expected}», got an answer")),
    }
}

/// A graph's nodes, one a line.
fn shown(graph: &Graph) -> String {
    let lines: Vec<String> = (0..graph.nodes().len()).map(|node| graph.node_text(node)).collect();
    format!("{}\noutputs: {:?}", lines.join("\n"), graph.outputs())
}

/// Runs one op on an engine and brings the answer to the host.
pub fn run_one(engine: &mut dyn Engine, op: Op) -> Result<Value> {
    let value = run_there(engine, op)?;
    value.try_map(|tensor| match tensor.location() {
        Location::Host => Ok(tensor),
        Location::Device(_) => run_there(engine, Transfer::to_host(&tensor).into_op()?)?.into_tensor(),
    })
}

fn check_case(engine: &mut dyn Engine, case: &Case) -> Option<String> {
    match (reference(&case.op), run_one(engine, case.op.clone())) {
        (Ok(expected), Ok(got)) => case.judge.difference(&case.op, &expected, &got),
        (Err(expected), Err(got)) if expected.kind() == got.kind() => None,
        (Err(expected), Err(got)) => Some(format!("expected the error «{expected}», got «{got}»")),
        (Ok(_), Err(got)) => Some(format!("expected an answer, got the error «{got}»")),
        (Err(expected), Ok(_)) => Some(format!("expected the error «{expected}», got an answer")),
    }
}

/// Runs one op; what it makes stays where the engine put it.
pub fn run_there(engine: &mut dyn Engine, op: Op) -> Result<Value> {
    let mut batch = vec![Item { token: 1, op }];
    engine.submit(&mut batch);
    let (started, limit) = (Instant::now(), Duration::from_secs(CASE_SECONDS_MAX));
    let mut finished = Vec::new();
    while finished.is_empty() {
        engine.poll(&mut finished, Duration::from_millis(10));
        if started.elapsed() > limit {
            return Err(Error::Timeout { device: engine.info().id, after: limit });
        }
    }
    match finished.pop() {
        Some(done) if done.token == 1 && finished.is_empty() => {
            let value = done.result?;
            done.op.check_answer(&value, engine.info().id)?;
            Ok(value)
        }
        _ => Err(Error::invalid("the engine's answer", "one item with token 1", "something else")),
    }
}
