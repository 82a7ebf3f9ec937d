//! Runs cases on an engine and compares the results with the reference.

use std::fmt;

use panoply_core::graph::Graph;
use panoply_core::op::graph::RunGraph;
use panoply_core::{
    Backend, Capabilities, DeviceInfo, Domain, Engine, Op, OpenOptions, Operation, Part, Result, Support, Tensor, Value,
};
use panoply_simulated::run_one;

use crate::layout::laid_out_like;
use crate::random_graph::{RandomGraph, Seeds};
use crate::reference::reference;
use crate::repeat::{Answers, RUNS, RepeatedGraph, check_repeated};
use crate::suite::{Case, cases};
use crate::values::random_tensor;

/// Result of a run of the suite on one device.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Number of cases whose results agreed.
    pub passed: usize,
    /// Cases whose results did not agree, with the difference.
    pub failed: Vec<(String, String)>,
    /// Cases that the device does not support, with its reasons.
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

/// Opens one device of a backend and runs the cases on it. A device that runs a case of a domain
/// that its description does not list fails that case.
pub fn check_backend(backend: &dyn Backend, device: &DeviceInfo, cases: &[Case]) -> Result<Summary> {
    let mut engine = backend.open(device, &OpenOptions::default())?;
    let mut summary = Summary::default();
    for case in cases {
        if let Support::No(reason) = backend.supports(device, &case.op) {
            summary.unsupported.push((case.name.clone(), reason));
            continue;
        }
        let domain = case.op.domain();
        let shown = if let Domain::Outside(_) = domain { Domain::Extension } else { domain };
        let unlisted = (!device.capabilities.domains.contains(&shown))
            .then(|| format!("the device runs ops of the domain {domain}, but does not list it"));
        match unlisted.or_else(|| check_case(engine.as_mut(), case)) {
            None => summary.passed += 1,
            Some(what) => summary.failed.push((case.name.clone(), what)),
        }
    }
    Ok(summary)
}

/// The domains that a device lists although it runs no case of the suite in them, and those that it
/// runs although it does not list them. Ops outside the list are not in the suite, so
/// [`Domain::Extension`] is left out.
pub fn wrong_domains(backend: &dyn Backend, device: &DeviceInfo) -> Vec<Domain> {
    let cases = cases();
    let runs =
        |domain: Domain| cases.iter().any(|case| case.op.domain() == domain && backend.can_run(device, &case.op));
    let is_wrong = |domain: &Domain| device.capabilities.domains.contains(domain) != runs(*domain);
    let listed = Domain::ALL.iter().copied().filter(|domain| *domain != Domain::Extension);
    listed.filter(is_wrong).collect()
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
        let sets = input_sets(&graph, number);
        let judge = |expected: &Value, got: &Value| case.judge.difference(&case.op, expected, got);
        let repeated = |is_resident: bool, answers: Answers| RepeatedGraph {
            graph: graph.graph(),
            sets: &sets,
            is_resident,
            answers,
            judge: &judge,
        };
        let mut check = |is_resident, answers| check_repeated(engine.as_mut(), &repeated(is_resident, answers));
        let fused = match sets.is_empty() {
            true => check_case(engine.as_mut(), &case),
            false => check(number % 2 == 1, Answers::Held).or_else(|| check(number % 2 == 0, Answers::Dropped)),
        };
        let fused = fused.map(|what| format!("as one op: {what}"));
        let apart = || check_apart(engine.as_mut(), &case, &graph).map(|what| format!("op by op: {what}"));
        match fused.or_else(apart) {
            None => summary.passed += 1,
            Some(what) => summary.failed.push((case.name, format!("{what}\n{}", shown(graph.graph())))),
        }
    }
    Ok(summary)
}

/// The inputs of a graph and a further set for each of the other runs, with the same layouts, each
/// with the reference's result.
fn input_sets(graph: &RunGraph, number: u64) -> Vec<(Vec<Tensor>, Value)> {
    let others = (1..RUNS as u64).map(|set| {
        let seed = number.wrapping_mul(31).wrapping_add(set);
        let other = |(input, place): (&Tensor, u64)| {
            let other = random_tensor(input.dtype(), input.shape(), seed ^ place << 32);
            laid_out_like(&other, input).unwrap_or(other)
        };
        graph.inputs().iter().zip(0_u64..).map(other).collect()
    });
    let all = std::iter::once(graph.inputs().to_vec()).chain(others);
    let answered = all.filter_map(|inputs: Vec<Tensor>| {
        let op = RunGraph::new(graph.graph(), &inputs.iter().collect::<Vec<_>>()).into_op().ok()?;
        Some((inputs, reference(&op).ok()?))
    });
    answered.collect()
}

/// Runs the graph's ops one by one on the engine, against the reference.
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

/// A graph's nodes, one per line.
pub(crate) fn shown(graph: &Graph) -> String {
    let lines: Vec<String> = (0..graph.nodes().len()).map(|node| graph.node_text(node)).collect();
    format!("{}\noutputs: {:?}", lines.join("\n"), graph.outputs())
}

pub(crate) fn check_case(engine: &mut dyn Engine, case: &Case) -> Option<String> {
    let flushes = engine.info().capabilities.has(Capabilities::FLUSHES_SUBNORMALS);
    match (case.expected(), run_one(engine, case.op.clone())) {
        (Ok(expected), Ok(got)) => {
            let wrong = case.judge.difference(&case.op, &expected, &got)?;
            (!flushes || !case.judge.accepts_flushed(&case.op, &expected, &got)).then_some(wrong)
        }
        (Err(expected), Err(got)) if expected.kind() == got.kind() => None,
        (Err(expected), Err(got)) => Some(format!("expected the error «{expected}», got «{got}»")),
        (Ok(_), Err(got)) => Some(format!("expected an answer, got the error «{got}»")),
        (Err(expected), Ok(_)) => Some(format!("expected the error «{expected}», got an answer")),
    }
}
