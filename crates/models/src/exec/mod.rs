//! Running a program.
//!
//! 1. The first run with inputs of certain types and shapes is traced node by node. Nodes that
//!    depend only on constants and shapes are computed once and their results kept. Nodes that
//!    devices have ops for are recorded into a graph. Every other node is a step on the host. A
//!    graph is as large as possible: it ends only when a step on the host needs a value of the
//!    graph.
//! 2. The trace is a list of [`RunStep`]s. Later runs with the same types and shapes replay the
//!    list without decisions.
//! 3. If shapes depend on values (`NonZero`, a slice with computed bounds), or a value decides an
//!    `If`, the list ends in a branch. A branch has one further list for each outcome seen, keyed
//!    by the outcome. A new outcome is traced from there.
//! 4. Bodies of `Loop`, `Scan` and `SequenceMap` are programs with lists of their own.
//! 5. The number of lists is bounded; the oldest is dropped first. The total size of all lists of a
//!    model is bounded too ([`KEPT_MAX`]). A program whose lists exceed it drops them. A program
//!    that still finds no room traces every run. The lock on the lists is held for look-ups only,
//!    never while a step runs.
//! 6. The iterations of all loops of a run are bounded in total, and so are the bytes that the run
//!    holds on the host.
//! 7. A run is a future. Nodes on the host are computed where it is polled. A run whose context
//!    blocks waits for each graph on the calling thread instead, and so is done when it is first
//!    polled ([`finished`]). Before each step a run looks whether it is still wanted and in time.

mod bodies;
mod kept;
mod replay;
mod state;
mod tracer;

use std::collections::HashMap;
use std::future::Future;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::{Poll, Waker};
use std::time::{Duration, Instant};

use panoply_core::graph::Graph;
use panoply_core::op::compute::Transfer;
use panoply_core::op::graph::RunGraph;
use panoply_core::{DeviceId, Location, Operation, Outcome as OpOutcome, Report, Tensor};
use panoply_runtime::{RunOptions, Runtime, TaskReport};

use crate::array::Array;
use crate::bounds::bound;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::profile::{NodeTime, Recorder};
use crate::program::{Body, Node, ValueId};
use crate::value::Value;
pub(crate) use kept::CachedNodeCount;
use kept::Share;
use state::State;

/// The most iterations of all loops of one run in total. A condition that never becomes false has
/// to end.
pub(crate) const TURNS_MAX: usize = 1 << 20;
/// The most bytes that the values of one run take on the host at a time, without graphs.
pub(crate) const RUN_BYTES_MAX: usize = 1 << 34;
/// The most lists kept for one program, and the most further lists of one branch.
const LISTS_MAX: usize = 64;

/// The environment of a run: runtime, options and counters.
pub struct Context<'a> {
    /// The runtime whose devices run graphs. Without a runtime everything runs on the host.
    pub runtime: Option<&'a Runtime>,
    /// The options of every graph that is run.
    pub options: RunOptions,
    /// Whether the run waits on the calling thread.
    blocks: bool,
    turns: AtomicU64,
    bytes: AtomicU64,
    /// The devices that ran graphs, as reported by the runtime, each with its number of graphs.
    devices: Mutex<Vec<(DeviceId, u64)>>,
    /// Measures each step, if the run is for a profile. Every graph then has one node.
    recorder: Option<Recorder>,
    /// The steps so far, if a report is wanted.
    report: Option<Mutex<TaskReport>>,
    /// Whether the answer is still wanted.
    is_wanted: Option<&'a (dyn Fn() -> bool + Sync)>,
}

/// The output of a future that never waits: a run whose context blocks.
pub fn finished<T, E: From<Error>>(run: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    match pin!(run).poll(&mut std::task::Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => Err(Error::invalid("a run", "a context that blocks", "one that does not").into()),
    }
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'a> Context<'a> {
    /// The environment of a run that waits on the calling thread: see [`finished`].
    pub fn blocking(runtime: Option<&'a Runtime>, options: RunOptions) -> Context<'a> {
        let (turns, bytes, devices) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::default());
        let (recorder, report, is_wanted) = (None, None, None);
        Context { runtime, options, blocks: true, turns, bytes, devices, recorder, report, is_wanted }
    }

    /// The environment of a run that is awaited, with a report of its steps.
    pub fn awaiting(runtime: &'a Runtime, options: RunOptions) -> Context<'a> {
        Context { blocks: false, ..Context::blocking(Some(runtime), options).with_report() }
    }

    /// Makes a report of the steps.
    pub fn with_report(self) -> Context<'a> {
        Context { report: Some(Mutex::default()), ..self }
    }

    /// The environment of a part of this run, with bounds and a report of its own: the report goes
    /// to [`Context::absorb`].
    pub fn part(&self) -> Context<'a> {
        let report = self.report.as_ref().map(|_| Mutex::default());
        let (blocks, is_wanted) = (self.blocks, self.is_wanted);
        Context { blocks, report, is_wanted, ..Context::blocking(self.runtime, self.options.clone()) }
    }

    /// Adds the steps of a part to the report, with the part's name before theirs.
    pub fn absorb(&self, name: &str, part: Context<'_>) {
        if let (Some(report), Some(part)) = (&self.report, part.report) {
            locked(report).add_part(name, part.into_inner().unwrap_or_else(PoisonError::into_inner));
        }
    }

    /// Ends the run before its next step if its answer is no longer wanted.
    pub fn while_wanted(self, is_wanted: &'a (dyn Fn() -> bool + Sync)) -> Context<'a> {
        Context { is_wanted: Some(is_wanted), ..self }
    }

    /// The report of the run, which began at this time.
    pub fn into_report(self, began: Instant) -> TaskReport {
        let report = self.report.map(|report| report.into_inner().unwrap_or_else(PoisonError::into_inner));
        TaskReport { took: began.elapsed(), ..report.unwrap_or_default() }
    }

    /// Adds a step to the report, if there is one.
    pub fn note(&self, name: impl FnOnce() -> String, took: Duration, op: Option<Report>) {
        if let Some(report) = &self.report {
            locked(report).add(name(), took, op);
        }
    }

    /// The environment of a run that executes one node after the other and measures each.
    pub(crate) fn profiling(runtime: &'a Runtime, options: RunOptions) -> Context<'a> {
        Context { recorder: Some(Recorder::default()), ..Context::blocking(Some(runtime), options) }
    }

    /// The times of a run that was measured.
    pub(crate) fn into_times(self) -> Vec<NodeTime> {
        self.recorder.map(Recorder::into_times).unwrap_or_default()
    }

    /// Counts an iteration of a loop. Fails beyond the bound or after the deadline.
    fn turn(&self) -> Result<()> {
        let turns = self.turns.fetch_add(1, Ordering::Relaxed) + 1;
        if turns > bound(TURNS_MAX) as u64 {
            let (what, limit) = ("the turns of a run's loops", TURNS_MAX as u64);
            return Err(Error::Limit { what, limit, got: turns });
        }
        self.in_time()
    }

    /// Fails after the deadline, or if the answer is no longer wanted.
    pub fn in_time(&self) -> Result<()> {
        if self.is_wanted.is_some_and(|is_wanted| !is_wanted()) {
            return Err(Error::Run(panoply_core::Error::Cancelled));
        }
        match self.options.deadline {
            Some(deadline) if Instant::now() >= deadline => {
                let late_by = deadline.elapsed();
                Err(Error::Run(panoply_core::Error::DeadlineExceeded { late_by }))
            }
            _ => Ok(()),
        }
    }

    /// Adds a value's bytes to those held by the run.
    fn hold(&self, bytes: u64) -> Result<()> {
        let got = self.bytes.load(Ordering::Relaxed).saturating_add(bytes);
        self.bytes.store(got, Ordering::Relaxed);
        let limit = bound(RUN_BYTES_MAX) as u64;
        match got <= limit {
            true => Ok(()),
            false => Err(Error::Limit { what: "the bytes of a run's values", limit, got }),
        }
    }

    fn let_go(&self, live: Option<RunValue>) {
        let held = self.bytes.load(Ordering::Relaxed);
        self.bytes.store(held.saturating_sub(live.map_or(0, |live| live.bytes())), Ordering::Relaxed);
    }

    /// Runs an op, and adds it to the report.
    async fn run_op<O: Operation>(
        &self,
        op: O,
        options: RunOptions,
        name: impl FnOnce() -> String,
    ) -> Result<OpOutcome<O::Output>> {
        let runtime = self.runtime.ok_or_else(|| Error::unsupported("an op without a runtime"))?;
        let begun = Instant::now();
        let pending = runtime.run_with(op, options).with_report();
        let outcome = if self.blocks { pending.wait()? } else { pending.await? };
        if self.report.is_some() {
            self.note(name, begun.elapsed(), Some(outcome.report.clone()));
        }
        Ok(outcome)
    }

    /// Runs a graph with the options of the run.
    pub async fn run_graph(&self, graph: &Graph, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let name = || format!("graph of {} nodes", graph.nodes().len());
        let OpOutcome { output, report } =
            self.run_op(RunGraph::new(graph, inputs), self.options.clone(), name).await?;
        // Parts of a split graph ran on other devices.
        let mut devices = locked(&self.devices);
        count_in(&mut devices, report.device, 1);
        if let Some(recorder) = &self.recorder {
            recorder.ran_on(report.device);
        }
        report.cuts.iter().for_each(|cut| count_in(&mut devices, cut.to, 1));
        Ok(output)
    }

    /// The devices that ran graphs so far, each with its number of graphs. Parts of split graphs
    /// count as graphs.
    pub(crate) fn devices(&self) -> Vec<(DeviceId, u64)> {
        locked(&self.devices).clone()
    }

    /// The value, copied to the host if it is on a device.
    pub async fn fetch(&self, live: &RunValue) -> Result<Value> {
        match live {
            RunValue::Value(value) => Ok(value.clone()),
            RunValue::Tensor(tensor, kind) if tensor.location() == Location::Host => {
                Array::from_carrier(tensor, *kind).map(Value::Array)
            }
            RunValue::Tensor(tensor, kind) => {
                let tensor = self.to_host(tensor).await?;
                Array::from_carrier(&tensor, *kind).map(Value::Array)
            }
        }
    }

    /// Copies a tensor to the host. Of the run's options those count that name no device: the
    /// tensor is where it is.
    pub async fn to_host(&self, tensor: &Tensor) -> Result<Tensor> {
        let RunOptions { deadline, priority, fallback, ref claim, .. } = self.options;
        let options = RunOptions { deadline, priority, fallback, claim: claim.clone(), ..RunOptions::default() };
        Ok(self.run_op(Transfer::to_host(tensor), options, || "to the host".to_owned()).await?.output)
    }
}

/// Adds `graphs` to the count of a device.
pub(crate) fn count_in(devices: &mut Vec<(DeviceId, u64)>, device: DeviceId, graphs: u64) {
    match devices.iter_mut().find(|(known, _)| *known == device) {
        Some((_, count)) => *count += graphs,
        None => devices.push((device, graphs)),
    }
}

/// A value of a run, on the host or in the memory where a graph left it.
#[derive(Clone)]
pub enum RunValue {
    /// A value on the host.
    Value(Value),
    /// A tensor that holds elements of this type, in as many bits or fewer.
    Tensor(Tensor, ElementType),
}

impl RunValue {
    /// The value as a tensor for graphs.
    pub fn tensor(&self) -> Result<Tensor> {
        match self {
            RunValue::Value(value) => value.array()?.tensor(),
            RunValue::Tensor(tensor, _) => Ok(tensor.clone()),
        }
    }

    /// The bytes that the value takes on the host. The runtime accounts for device memory.
    fn bytes(&self) -> u64 {
        match self {
            RunValue::Value(value) => value.bytes(),
            RunValue::Tensor(..) => 0,
        }
    }

    fn form(&self, form: &mut Vec<u64>) {
        match self {
            RunValue::Value(value) => value.form(form),
            RunValue::Tensor(tensor, kind) => {
                form.extend([kind.code() as u64, tensor.shape().rank() as u64]);
                form.extend(tensor.shape().iter().map(|dim| *dim as u64));
            }
        }
    }
}

/// The origin of a step's operand.
#[derive(Clone)]
enum OperandSource {
    Missing,
    Static(Value),
    Slot(usize),
}

/// The body of a node, and the slots of the surrounding values that it reads.
type Inner = (Arc<Executable>, Vec<usize>);

/// One step of a run.
enum RunStep {
    /// A graph on a device. `node` is its only node in runs for a profile, else `None`.
    Graph { graph: Graph, inputs: Vec<usize>, outputs: Vec<(usize, ElementType)>, node: Option<Arc<Node>> },
    /// A node on the host.
    Host { node: Arc<Node>, inputs: Vec<OperandSource>, outputs: Vec<Option<usize>>, bodies: Vec<Inner> },
    /// Converts indices to the form that devices read: 32 bits, counted from the front, checked
    /// against an axis of this length.
    Indices { input: usize, output: usize, len: usize },
}

/// A list of steps and its end.
pub(crate) struct Segment {
    steps: Vec<RunStep>,
    /// For each step, the slots that are not needed after it.
    frees: Vec<Vec<usize>>,
    end: TraceEnd,
}

impl Segment {
    /// Its size in the budget: the steps, plus the outputs or, for a branch, the size of its state.
    fn size(&self) -> usize {
        let left = match &self.end {
            TraceEnd::Done(outputs) => outputs.len(),
            TraceEnd::Branch(branch) => branch.state.size(),
        };
        kept::SEGMENT_SIZE + self.steps.len() + left
    }
}

enum TraceEnd {
    Done(Vec<OperandSource>),
    Branch(Box<Branch>),
}

/// The value that decides how a run continues.
enum Outcome {
    /// The types and shapes in these slots.
    Forms(Vec<usize>),
    /// The condition of an `If`, in the first slot. The second number is the entry of the `If` in
    /// the state.
    Truth(usize, usize),
}

struct Branch {
    outcome: Outcome,
    state: State,
    lists: Lists,
}

/// Lists with their keys.
type CachedSegments = Vec<(Vec<u64>, Arc<Segment>)>;

#[derive(Default)]
struct Lists(RwLock<CachedSegments>);

impl Lists {
    fn find(&self, key: &[u64]) -> Option<Arc<Segment>> {
        let known = self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.iter().find(|(known, _)| known == key).map(|(_, segment)| Arc::clone(segment))
    }

    fn insert(&self, key: Vec<u64>, segment: Arc<Segment>) {
        let mut known = self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner());
        known.retain(|(other, _)| *other != key);
        if known.len() >= LISTS_MAX {
            known.remove(0);
        }
        known.push((key, segment));
    }

    /// Visits every step of every list, lists behind branches included.
    fn visit(&self, visit: &mut dyn FnMut(&RunStep)) {
        let known: Vec<Arc<Segment>> = {
            let known = self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            known.iter().map(|(_, segment)| Arc::clone(segment)).collect()
        };
        for segment in known {
            segment.steps.iter().for_each(&mut *visit);
            if let TraceEnd::Branch(branch) = &segment.end {
                branch.lists.visit(visit);
            }
        }
    }

    fn clear(&self) {
        self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
    }
}

/// A program with its traced lists.
pub(crate) struct Executable {
    body: Arc<Body>,
    /// Values of the surrounding graph that never change.
    statics: HashMap<ValueId, Value>,
    /// Values of the surrounding graph that each run passes after the inputs.
    dynamics: Vec<ValueId>,
    lists: Lists,
    share: Share,
}

impl Executable {
    pub(crate) fn new(
        body: Arc<Body>,
        statics: HashMap<ValueId, Value>,
        dynamics: Vec<ValueId>,
        kept: &Arc<CachedNodeCount>,
    ) -> Executable {
        Executable { body, statics, dynamics, lists: Lists::default(), share: Share::of(kept) }
    }

    /// Drops every list, and with them the graphs and the data that devices keep for these graphs.
    pub(crate) fn forget(&self) {
        self.lists.clear();
        self.share.give_back();
    }

    /// Stores a list in `lists` if there is room for it.
    fn keep(&self, lists: &Lists, key: Vec<u64>, segment: &Arc<Segment>) {
        let size = segment.size();
        if !self.share.take(size) {
            self.forget();
            // The branch that owns `lists` was just dropped, so a list stored there would never be
            // found.
            if !std::ptr::eq(lists, &self.lists) || !self.share.take(size) {
                return;
            }
        }
        lists.insert(key, Arc::clone(segment));
    }

    /// Describes the lists: the number of graphs, and each op on the host with its count.
    pub(crate) fn steps(&self) -> String {
        let (mut graphs, mut nodes, mut hosts) = (0, 0, std::collections::BTreeMap::<String, usize>::new());
        self.lists.visit(&mut |step| match step {
            RunStep::Graph { graph, .. } => {
                graphs += 1;
                nodes += graph.nodes().len();
            }
            RunStep::Host { node, .. } => *hosts.entry(node.op.clone()).or_default() += 1,
            RunStep::Indices { .. } => *hosts.entry("indices".to_owned()).or_default() += 1,
        });
        let hosts: Vec<String> = hosts.into_iter().map(|(op, count)| format!("{count} {op}")).collect();
        let hosts = if hosts.is_empty() { "nothing".to_owned() } else { hosts.join(", ") };
        let (graph_end, node_end) = (if graphs == 1 { "" } else { "s" }, if nodes == 1 { "" } else { "s" });
        format!("{graphs} graph{graph_end} of {nodes} node{node_end}, on the host {hosts}")
    }

    /// The graphs of all lists.
    pub(crate) fn graphs(&self) -> Vec<Graph> {
        let mut graphs = Vec::new();
        self.lists.visit(&mut |step| {
            if let RunStep::Graph { graph, .. } = step {
                graphs.push(graph.clone());
            }
        });
        graphs
    }

    /// Runs on these inputs: those of the body, followed by the surrounding values. Outputs stay
    /// where they were computed.
    pub(crate) async fn run(&self, context: &Context<'_>, inputs: Vec<RunValue>) -> Result<Vec<RunValue>> {
        let expected = self.body.inputs.len() + self.dynamics.len();
        if inputs.len() != expected {
            return Err(Error::invalid("the inputs of a graph", expected.to_string(), inputs.len()));
        }
        // Lists traced without devices have every step on the host, and those for a profile have
        // one node in each graph, so the key holds this too.
        let mut form = vec![u64::from(context.runtime.is_some()) | u64::from(context.recorder.is_some()) << 1];
        inputs.iter().for_each(|input| input.form(&mut form));
        let live: Vec<Option<RunValue>> = inputs.into_iter().map(Some).collect();
        match self.lists.find(&form) {
            Some(segment) => replay::replay(context, self, segment, live).await,
            None => {
                let state = State::new(&self.body, &self.statics, &self.dynamics);
                replay::trace(context, self, state, live, &self.lists, form).await
            }
        }
    }
}
