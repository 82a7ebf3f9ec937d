//! Running a program.
//!
//! 1. The first run with inputs of certain types and shapes is traced: node by node, what depends on constants and shapes alone is
//!    computed once and kept, what devices have ops for is recorded into a graph, everything else is a step on the host. A graph is
//!    as large as possible: it ends only where a step on the host needs something of it.
//! 2. The trace is a list of [`Step`]s. Later runs with the same types and shapes go through the list and decide nothing.
//! 3. Where shapes depend on values (`NonZero`, a slice with computed bounds) or an `If` is decided by a value, the list ends in a
//!    branch: one further list for each outcome met, found by it. What is not known yet is traced from there.
//! 4. Bodies of `Loop`, `Scan` and `SequenceMap` are programs of their own, with lists of their own.
//! 5. Lists are bounded in number; the oldest goes. What all lists of a model keep together is bounded as well ([`KEPT_MAX`]): a
//!    program whose lists exceed it forgets them, and one that still finds no room traces every run. The lock that guards lists is
//!    held to look one up, never while anything runs.
//! 6. The turns of all loops of a run together are bounded, and so are the bytes that it holds on the host.

mod bodies;
mod kept;
mod replay;
mod state;
mod tracer;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::sync::{Arc, RwLock};
use std::time::Instant;

use panoply_core::graph::Graph;
use panoply_core::op::compute::Transfer;
use panoply_core::op::graph::RunGraph;
use panoply_core::{DeviceId, Location, Tensor};
use panoply_runtime::{RunOptions, Runtime};

use crate::array::Array;
use crate::bounds::bound;
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::program::{Body, Node, ValueId};
use crate::value::Value;
pub(crate) use kept::Kept;
use kept::Share;
use state::State;

/// The most turns of all loops of one run: a condition that never becomes false must end somewhere.
pub(crate) const TURNS_MAX: usize = 1 << 20;
/// The most bytes that the values of one run take on the host at a time, graphs aside.
pub(crate) const RUN_BYTES_MAX: usize = 1 << 34;
/// The lists that are kept for one program, and the branches at the end of one list.
const LISTS_MAX: usize = 64;

/// Where a program runs.
pub(crate) struct Context<'a> {
    /// The runtime whose devices run graphs; without one everything runs on the host.
    pub runtime: Option<&'a Runtime>,
    pub options: RunOptions,
    turns: Cell<u64>,
    bytes: Cell<u64>,
    /// The devices that have run graphs, as the runtime reports it, and how many each.
    devices: RefCell<Vec<(DeviceId, u64)>>,
}

impl<'a> Context<'a> {
    pub(crate) fn new(runtime: Option<&'a Runtime>, options: RunOptions) -> Context<'a> {
        let (turns, bytes, devices) = (Cell::new(0), Cell::new(0), RefCell::default());
        Context { runtime, options, turns, bytes, devices }
    }

    /// Counts a turn of a loop, and ends the run where its time is over.
    fn turn(&self) -> Result<()> {
        self.turns.set(self.turns.get() + 1);
        if self.turns.get() > bound(TURNS_MAX) as u64 {
            let (what, limit) = ("the turns of a run's loops", TURNS_MAX as u64);
            return Err(Error::Limit { what, limit, got: self.turns.get() });
        }
        self.in_time()
    }

    /// Whether there is time left.
    pub(crate) fn in_time(&self) -> Result<()> {
        match self.options.deadline {
            Some(deadline) if Instant::now() >= deadline => {
                let late_by = deadline.elapsed();
                Err(Error::Run(panoply_core::Error::DeadlineExceeded { late_by }))
            }
            _ => Ok(()),
        }
    }

    /// Counts what a value takes from here on.
    fn hold(&self, bytes: u64) -> Result<()> {
        self.bytes.set(self.bytes.get().saturating_add(bytes));
        let limit = bound(RUN_BYTES_MAX) as u64;
        match self.bytes.get() <= limit {
            true => Ok(()),
            false => Err(Error::Limit { what: "the bytes of a run's values", limit, got: self.bytes.get() }),
        }
    }

    fn let_go(&self, live: Option<Live>) {
        self.bytes.set(self.bytes.get().saturating_sub(live.map_or(0, |live| live.bytes())));
    }

    fn run_graph(&self, graph: &Graph, inputs: &[&Tensor]) -> Result<Vec<Tensor>> {
        let runtime = self.runtime.ok_or_else(|| Error::unsupported("a graph without a runtime"))?;
        let outcome = runtime.run_with(RunGraph::new(graph, inputs), self.options.clone()).with_report().wait()?;
        // Of a graph that was cut, parts ran elsewhere.
        let mut devices = self.devices.borrow_mut();
        count_in(&mut devices, outcome.report.device, 1);
        outcome.report.cuts.iter().for_each(|cut| count_in(&mut devices, cut.to, 1));
        Ok(outcome.output)
    }

    /// The devices that have run graphs so far, and how many each; parts of graphs count as graphs.
    pub(crate) fn devices(&self) -> Vec<(DeviceId, u64)> {
        self.devices.borrow().clone()
    }

    /// The value on the host.
    pub(crate) fn fetch(&self, live: &Live) -> Result<Value> {
        match live {
            Live::Value(value) => Ok(value.clone()),
            Live::Tensor(tensor, kind) if tensor.location() == Location::Host => {
                Array::from_carrier(tensor, *kind).map(Value::Array)
            }
            Live::Tensor(tensor, kind) => {
                let runtime = self.runtime.ok_or_else(|| Error::unsupported("a device without a runtime"))?;
                let tensor = runtime.run(Transfer::to_host(tensor)).wait()?;
                Array::from_carrier(&tensor, *kind).map(Value::Array)
            }
        }
    }
}

/// Counts graphs for a device.
pub(crate) fn count_in(devices: &mut Vec<(DeviceId, u64)>, device: DeviceId, graphs: u64) {
    match devices.iter_mut().find(|(known, _)| *known == device) {
        Some((_, count)) => *count += graphs,
        None => devices.push((device, graphs)),
    }
}

/// A value of a run: on the host, or wherever a graph left it.
#[derive(Clone)]
pub(crate) enum Live {
    Value(Value),
    /// A tensor that holds elements of this type, in as many bits or fewer.
    Tensor(Tensor, ElementType),
}

impl Live {
    /// As a tensor that graphs read.
    pub(crate) fn tensor(&self) -> Result<Tensor> {
        match self {
            Live::Value(value) => value.array()?.tensor(),
            Live::Tensor(tensor, _) => Ok(tensor.clone()),
        }
    }

    /// The bytes that it takes on the host; those of devices are the runtime's to count.
    fn bytes(&self) -> u64 {
        match self {
            Live::Value(value) => value.bytes(),
            Live::Tensor(..) => 0,
        }
    }

    fn form(&self, form: &mut Vec<u64>) {
        match self {
            Live::Value(value) => value.form(form),
            Live::Tensor(tensor, kind) => {
                form.extend([kind.code() as u64, tensor.shape().rank() as u64]);
                form.extend(tensor.shape().iter().map(|dim| *dim as u64));
            }
        }
    }
}

/// Where a step's operand comes from.
#[derive(Clone)]
enum Source {
    Missing,
    Static(Value),
    Slot(usize),
}

/// The body of a node, and the slots of the values that it takes from around it.
type Inner = (Arc<Executable>, Vec<usize>);

/// One step of a run.
enum Step {
    /// A graph on a device.
    Graph { graph: Graph, inputs: Vec<usize>, outputs: Vec<(usize, ElementType)> },
    /// A node on the host.
    Host { node: Arc<Node>, inputs: Vec<Source>, outputs: Vec<Option<usize>>, bodies: Vec<Inner> },
    /// Indices as devices read them: 32 bits, counted from the front, within an axis of this length.
    Indices { input: usize, output: usize, len: usize },
}

/// A list of steps, and what comes after.
pub(crate) struct Segment {
    steps: Vec<Step>,
    /// After each step: the slots that nothing needs any more.
    frees: Vec<Vec<usize>>,
    end: End,
}

impl Segment {
    /// What it is counted as: its steps, and what is left to do where it ends in a branch.
    fn size(&self) -> usize {
        let left = match &self.end {
            End::Done(outputs) => outputs.len(),
            End::Branch(branch) => branch.state.size(),
        };
        kept::SEGMENT_SIZE + self.steps.len() + left
    }
}

enum End {
    Done(Vec<Source>),
    Branch(Box<Branch>),
}

/// What decides how a run goes on.
enum Outcome {
    /// The types and shapes in these slots.
    Forms(Vec<usize>),
    /// The condition of an If, in this slot; the If is this entry of the state.
    Truth(usize, usize),
}

struct Branch {
    outcome: Outcome,
    state: State,
    lists: Lists,
}

/// Lists by what they were made for.
type Known = Vec<(Vec<u64>, Arc<Segment>)>;

#[derive(Default)]
struct Lists(RwLock<Known>);

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

    /// Every step of every list, those behind branches too.
    fn visit(&self, visit: &mut dyn FnMut(&Step)) {
        let known: Vec<Arc<Segment>> = {
            let known = self.0.read().unwrap_or_else(|poisoned| poisoned.into_inner());
            known.iter().map(|(_, segment)| Arc::clone(segment)).collect()
        };
        for segment in known {
            segment.steps.iter().for_each(&mut *visit);
            if let End::Branch(branch) = &segment.end {
                branch.lists.visit(visit);
            }
        }
    }

    fn clear(&self) {
        self.0.write().unwrap_or_else(|poisoned| poisoned.into_inner()).clear();
    }
}

/// A program with the lists that were made of it.
pub(crate) struct Executable {
    body: Arc<Body>,
    /// Values from around the body that never change.
    statics: HashMap<ValueId, Value>,
    /// Values from around the body that are given with each run, behind the inputs.
    dynamics: Vec<ValueId>,
    lists: Lists,
    share: Share,
}

impl Executable {
    pub(crate) fn new(
        body: Arc<Body>,
        statics: HashMap<ValueId, Value>,
        dynamics: Vec<ValueId>,
        kept: &Arc<Kept>,
    ) -> Executable {
        Executable { body, statics, dynamics, lists: Lists::default(), share: Share::of(kept) }
    }

    /// Forgets every list, and with them the graphs and what devices keep for them.
    pub(crate) fn forget(&self) {
        self.lists.clear();
        self.share.give_back();
    }

    /// Keeps a list where it will be looked for, if there is room for it.
    fn keep(&self, lists: &Lists, key: Vec<u64>, segment: &Arc<Segment>) {
        let size = segment.size();
        if !self.share.take(size) {
            self.forget();
            // What is behind a branch that was just forgotten would never be found again.
            if !std::ptr::eq(lists, &self.lists) || !self.share.take(size) {
                return;
            }
        }
        lists.insert(key, Arc::clone(segment));
    }

    /// What the lists are made of: how many graphs, and the ops on the host with how often each.
    pub(crate) fn steps(&self) -> String {
        let (mut graphs, mut nodes, mut hosts) = (0, 0, std::collections::BTreeMap::<String, usize>::new());
        self.lists.visit(&mut |step| match step {
            Step::Graph { graph, .. } => {
                graphs += 1;
                nodes += graph.nodes().len();
            }
            Step::Host { node, .. } => *hosts.entry(node.op.clone()).or_default() += 1,
            Step::Indices { .. } => *hosts.entry("indices".to_owned()).or_default() += 1,
        });
        let hosts: Vec<String> = hosts.into_iter().map(|(op, count)| format!("{count} {op}")).collect();
        let hosts = if hosts.is_empty() { "nothing".to_owned() } else { hosts.join(", ") };
        format!("{graphs} graphs of {nodes} nodes, on the host {hosts}")
    }

    /// The graphs of all lists.
    pub(crate) fn graphs(&self) -> Vec<Graph> {
        let mut graphs = Vec::new();
        self.lists.visit(&mut |step| {
            if let Step::Graph { graph, .. } = step {
                graphs.push(graph.clone());
            }
        });
        graphs
    }

    /// Runs on these inputs: those of the body, then the values from around it. Outputs stay where they were computed.
    pub(crate) fn run(&self, context: &Context<'_>, inputs: Vec<Live>) -> Result<Vec<Live>> {
        let expected = self.body.inputs.len() + self.dynamics.len();
        if inputs.len() != expected {
            return Err(Error::invalid("the inputs of a graph", expected.to_string(), inputs.len()));
        }
        // Lists that were made without devices have everything on the host.
        let mut form = vec![u64::from(context.runtime.is_some())];
        inputs.iter().for_each(|input| input.form(&mut form));
        let live: Vec<Option<Live>> = inputs.into_iter().map(Some).collect();
        match self.lists.find(&form) {
            Some(segment) => replay::replay(context, self, segment, live),
            None => {
                let state = State::new(&self.body, &self.statics, &self.dynamics);
                replay::trace(context, self, state, live, &self.lists, form)
            }
        }
    }
}
