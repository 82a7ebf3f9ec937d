//! Runs a graph several times on one engine, with other inputs each time.
//!
//! Every result is compared with the reference's immediately. If results are held, each is compared
//! once more, byte by byte, after the last run: this detects an engine that reuses memory of a live
//! result. If they are dropped, two sets of inputs alternate: then inputs and outputs have the same
//! addresses again, as in a program's loop. Engines record frequent runs together with their
//! addresses, so the first runs of a graph take other paths than later ones.

use panoply_core::graph::Graph;
use panoply_core::op::compute::Transfer;
use panoply_core::op::graph::RunGraph;
use panoply_core::{
    Backend, Capabilities, DeviceInfo, Engine, Error, Location, OpenOptions, Operation, Result, Support, Tensor, Value,
};
use panoply_simulated::run_there;

use crate::check::{Summary, shown};
use crate::layout::resident;
use crate::past_failures::past_failures;
use crate::random_graph::Seeds;
use crate::suite_graph::{SuiteGraphs, difference};

/// Number of runs of each graph.
pub const RUNS: usize = 7;
/// Number of input sets that alternate if results are dropped.
const SETS_IN_TURNS: usize = 2;

/// Whether results are held during later runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Answers {
    Held,
    Dropped,
}

/// A graph to run repeatedly.
pub(crate) struct RepeatedGraph<'a> {
    pub(crate) graph: &'a Graph,
    /// Sets of inputs, each with the expected result. Runs use them in turn.
    pub(crate) sets: &'a [(Vec<Tensor>, Value)],
    /// Whether the inputs are brought to the device before the first run and stay there.
    pub(crate) is_resident: bool,
    /// Whether the results are held.
    pub(crate) answers: Answers,
    /// Returns the fault of a result, given the expected and the actual one.
    pub(crate) judge: &'a dyn Fn(&Value, &Value) -> Option<String>,
}

/// Runs graphs of the suite's cases that one device supports, and the past failures, each with
/// inputs on the host and on the device, and with results held and dropped. Graphs that the device
/// does not support are counted as unsupported.
pub fn check_suite_graphs(backend: &dyn Backend, device: &DeviceInfo, seeds: Seeds) -> Result<Summary> {
    println!("{} {}: {} graphs of the suite's ops from seed {}", device.id, device.name, seeds.count, seeds.first);
    let mut engine = backend.open(device, &OpenOptions::default())?;
    let flushes = engine.info().capabilities.has(Capabilities::FLUSHES_SUBNORMALS);
    let claims = |op: &_| matches!(backend.supports(device, op), Support::Yes);
    let graphs = SuiteGraphs::new().without_subnormals(flushes).claimed(&claims);
    let mut summary = Summary::default();
    // The location of the inputs at a graph's first run determines the engine's recording.
    let past = past_failures()?.into_iter().map(|(name, made)| Ok::<_, Error>((name.to_owned(), made, false)));
    let again = past_failures()?.into_iter().map(|(name, made)| Ok((format!("{name}, on the device"), made, true)));
    let of_seeds = seeds.numbers().map(|seed| Ok((format!("seed {seed}"), graphs.graph(seed)?, seed % 2 == 1)));
    for made in past.chain(again).chain(of_seeds) {
        let (name, made, is_resident) = made?;
        let name = format!("graph/suite/{name}");
        let inputs: Vec<&Tensor> = made.sets[0].0.iter().collect();
        if let Support::No(reason) = backend.supports(device, &RunGraph::new(&made.graph, &inputs).into_op()?) {
            summary.unsupported.push((name, reason));
            continue;
        }
        let ways = [(is_resident, Answers::Held), (!is_resident, Answers::Held), (is_resident, Answers::Dropped)];
        let wrong = ways.into_iter().find_map(|(is_resident, answers)| {
            let judge = |expected: &Value, got: &Value| difference(&made, expected, got, flushes);
            let repeated = RepeatedGraph { graph: &made.graph, sets: &made.sets, is_resident, answers, judge: &judge };
            let what = check_repeated(engine.as_mut(), &repeated)?;
            let place = if is_resident { "on the device" } else { "on the host" };
            Some(format!("inputs {place}, answers {answers:?}: {what}"))
        });
        match wrong {
            None => summary.passed += 1,
            Some(what) => summary.failed.push((name, format!("{what}\n{}", shown(&made.graph)))),
        }
    }
    Ok(summary)
}

/// The first fault of any result, or `None`.
pub(crate) fn check_repeated(engine: &mut dyn Engine, repeated: &RepeatedGraph<'_>) -> Option<String> {
    run_all(engine, repeated).unwrap_or_else(|error| Some(format!("expected an answer, got the error «{error}»")))
}

fn run_all(engine: &mut dyn Engine, repeated: &RepeatedGraph<'_>) -> Result<Option<String>> {
    let sets = match repeated.answers {
        Answers::Held => repeated.sets,
        Answers::Dropped => &repeated.sets[..repeated.sets.len().min(SETS_IN_TURNS)],
    };
    let mut given: Vec<Vec<Tensor>> = Vec::new();
    for (inputs, _) in sets {
        given.push(match repeated.is_resident {
            true => inputs.iter().map(|tensor| resident(engine, tensor)).collect::<Result<_>>()?,
            false => inputs.clone(),
        });
    }
    let mut held = Vec::new();
    for run in 0..RUNS {
        let set = run % sets.len();
        let inputs: Vec<&Tensor> = given[set].iter().collect();
        let value = run_there(engine, RunGraph::new(repeated.graph, &inputs).into_op()?)?;
        let seen = to_host(engine, &value)?;
        if let Some(what) = (repeated.judge)(&sets[set].1, &seen) {
            return Ok(Some(format!("run {} of {RUNS}, on input set {set}: {what}", run + 1)));
        }
        if repeated.answers == Answers::Held {
            let bytes = bytes_of(&seen)?;
            held.push((value, bytes));
        }
    }
    for (run, (value, before)) in held.into_iter().enumerate() {
        let after = bytes_of(&to_host(engine, &value)?)?;
        if let Some(output) = (0..before.len()).find(|output| before[*output] != after[*output]) {
            let what = format!("output {output} of run {} changed while later runs ran", run + 1);
            return Ok(Some(what));
        }
    }
    Ok(None)
}

fn to_host(engine: &mut dyn Engine, value: &Value) -> Result<Value> {
    value.clone().try_map(|tensor| match tensor.location() {
        Location::Host => Ok(tensor),
        Location::Device(_) => run_there(engine, Transfer::to_host(&tensor).into_op()?)?.into_tensor(),
    })
}

/// A copy of all elements.
fn bytes_of(value: &Value) -> Result<Vec<Vec<u8>>> {
    let copy = |tensor: &Tensor| Ok::<_, Error>(tensor.contiguous()?.as_bytes()?.to_vec());
    value.tensors().map(copy).collect()
}
