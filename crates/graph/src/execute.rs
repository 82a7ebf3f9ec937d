//! Running plans: what engines share. An engine brings an [`Executor`], keeps [`Plans`], and calls [`run`].
//!
//! A run of a plan that ran before allocates nothing here but the list of its outputs: the ops of its steps and the list of its slots are kept with
//! the plan, and filled with the tensors of each run.

use std::collections::{HashMap, hash_map};
use std::sync::Arc;

use panoply_core::graph::{Graph, SymbolSizes, WeakGraph, fill_in, slot_of, view_of};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Error, ErrorKind, HostBufferMut, Op, Part, Result, Tensor, Value};

use crate::plan::{Joined, Order, Place, Plan, Tail};
use crate::{Facts, plan_of};

/// Plans that an engine keeps; of more, the one that was not used for longest goes.
const PLANS_MAX: usize = 64;

/// Stands for an output in the name of what was joined of constants; no step has so many.
const JOINED: usize = usize::MAX;

/// What an engine does for a plan.
pub trait Executor {
    /// The memory that there is, when a plan is used for the first time.
    fn room(&mut self) -> Room;

    /// Makes the arena at least so large. What is still under way may use the one before.
    fn prepare(&mut self, arena_bytes: usize) -> Result<()>;

    /// An input as the steps read it: its elements one after the other.
    fn input(&mut self, tensor: &Tensor) -> Result<Tensor>;

    /// A constant, where the engine's ops read it best, to be kept.
    fn constant(&mut self, tensor: &Tensor) -> Result<Tensor>;

    /// Runs one op, whose outputs belong where these say.
    fn step(&mut self, op: &Op, outputs: &[Destination]) -> Result<Value>;

    /// Runs one op and what is done to its output. Plans have such steps only where the facts say so.
    fn step_with(&mut self, op: &Op, tail: &Tail, outputs: &[Destination]) -> Result<Value> {
        let made = self.step(op, &[])?;
        let missing = || Error::invalid("graph: a step with a tail", "an output", "none");
        self.step(&tail.op(made.tensors().next().ok_or_else(missing)?), outputs)
    }
}

/// The memory that an engine has left.
pub struct Room {
    /// Which memory, as messages name it.
    pub place: String,
    /// Bytes that can be had, those that are kept for reuse included. `None`: nobody knows.
    pub free_bytes: Option<u64>,
    /// Whether it is the host's, where inputs and constants are already.
    pub shares_host_memory: bool,
}

/// Where an output of a step belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// The byte of the arena at which it begins; `None`: in memory of its own.
    pub arena_offset: Option<usize>,
    /// Whether the graph hands it out.
    pub is_output: bool,
    /// Its bytes.
    pub len_bytes: usize,
    /// The order in which its axes are to lie, where that is not the op's.
    pub order: Option<Order>,
}

/// A plan, what stays on the device for it, and what a run of it needs.
pub struct Ready {
    /// The plan and what stays on the device, to be held while anything under way uses it.
    pub held: Arc<Held>,
    stage: Stage,
}

/// A plan and what stays on the device for it.
pub struct Held {
    /// The plan.
    pub plan: Arc<Plan>,
    /// By slot: constants, and what was made of them once.
    kept: Vec<Option<Tensor>>,
}

/// What is filled anew by each run.
struct Stage {
    steps: Vec<StagedStep>,
    /// By slot: what it holds now.
    filled: Vec<Option<Tensor>>,
}

/// One step, with an op of its own.
struct StagedStep {
    op: Op,
    /// The op's tensors as the plan has them, in order: views of slots.
    views: Vec<Tensor>,
    tail: Option<Tail>,
    /// The tail's tensors as the plan has them.
    tail_views: Vec<Tensor>,
    outputs: Vec<Destination>,
}

/// The plans of one engine, each made when it is first used.
#[derive(Default)]
pub struct Plans {
    entries: Vec<Entry>,
    /// Constants and what was made of them, by graph, node and output: plans of one graph share them.
    kept: HashMap<(u64, usize, usize), Tensor>,
    /// Counts uses.
    clock: u64,
}

struct Entry {
    graph_id: u64,
    sizes: SymbolSizes,
    graph: WeakGraph,
    ready: Ready,
    used: u64,
}

impl Plans {
    /// The plan of an op's graph for the sizes of its inputs. One that was met before costs nothing; a new one is refused where the
    /// memory that it needs at its peak is not there.
    pub fn get(&mut self, op: &RunGraph, facts: &Facts, executor: &mut dyn Executor) -> Result<&mut Ready> {
        let (graph, sizes) = (op.graph(), op.instance()?.sizes);
        self.clock += 1;
        let known = self.entries.iter().position(|entry| entry.graph_id == graph.id() && entry.sizes == sizes);
        let place = match known {
            Some(place) => place,
            None => {
                self.make_room();
                let plan = plan_of(op, facts)?;
                check_room(&plan, graph, executor)?;
                let kept = self.keep(graph, &plan, executor)?;
                let (graph_id, graph) = (graph.id(), graph.downgrade());
                self.entries.push(Entry { graph_id, sizes, graph, ready: Ready::new(plan, kept), used: 0 });
                self.entries.len() - 1
            }
        };
        let entry = &mut self.entries[place];
        entry.used = self.clock;
        Ok(&mut entry.ready)
    }

    /// Forgets everything that is on the device: it is gone.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.kept.clear();
    }

    /// Lets go what belongs to graphs that nobody has, and the oldest where there are too many.
    fn make_room(&mut self) {
        self.entries.retain(|entry| entry.graph.is_alive());
        if self.entries.len() >= PLANS_MAX
            && let Some(oldest) = (0..self.entries.len()).min_by_key(|index| self.entries[*index].used)
        {
            self.entries.swap_remove(oldest);
        }
        let entries = &self.entries;
        self.kept.retain(|(graph, _, _), _| entries.iter().any(|entry| entry.graph_id == *graph));
    }

    /// Brings the constants to the device and runs the steps that need nothing else.
    fn keep(&mut self, graph: &Graph, plan: &Plan, executor: &mut dyn Executor) -> Result<Vec<Option<Tensor>>> {
        let mut kept: Vec<Option<Tensor>> = vec![None; plan.slots.len()];
        let read = slots_read(plan);
        for (slot, place) in plan.slots.iter().enumerate().map(|(index, slot)| (index, slot.place)) {
            let Place::Constant(node) = place else { continue };
            let Some(tensor) = graph.nodes()[node].constant().filter(|_| read[slot]) else { continue };
            let joined = plan.slots[slot].joined.as_ref();
            let key = (graph.id(), node, if joined.is_some() { JOINED } else { 0 });
            let brought = match self.kept.entry(key) {
                hash_map::Entry::Occupied(place) => place.into_mut(),
                hash_map::Entry::Vacant(place) => place.insert(match joined {
                    Some(joined) => executor.constant(&join(graph, joined)?)?,
                    None => executor.constant(tensor)?,
                }),
            };
            kept[slot] = Some(brought.clone());
        }
        for step in &plan.once {
            let key = |port: usize| (graph.id(), step.node, port + 1);
            let known: Vec<Tensor> =
                (0..step.outputs.len()).filter_map(|port| self.kept.get(&key(port)).cloned()).collect();
            let fits = |(tensor, slot): (&Tensor, &usize)| tensor.len_bytes() == plan.slots[*slot].slot.len_bytes();
            let known = match known.len() == step.outputs.len() && known.iter().zip(&step.outputs).all(fits) {
                true => known,
                false => {
                    let mut op = step.op.clone();
                    fill_in(&mut op, &|slot| kept[slot].clone())?;
                    let made = executor.step(&op, &[]).map_err(|cause| at_node(graph, step.node, cause))?;
                    made.tensors().cloned().collect()
                }
            };
            for (port, (slot, tensor)) in step.outputs.iter().zip(known).enumerate() {
                self.kept.insert(key(port), tensor.clone());
                kept[*slot] = Some(tensor);
            }
        }
        Ok(kept)
    }
}

/// Several constants of a graph as one, on the host.
pub(crate) fn join(graph: &Graph, joined: &Joined) -> Result<Tensor> {
    let missing = || Error::invalid("graph: a constant", "a tensor on the host", "nothing");
    let constants = joined.nodes.iter().map(|node| graph.nodes()[*node].constant().ok_or_else(missing));
    let tensors: Vec<Tensor> = constants.map(|tensor| tensor?.contiguous()).collect::<Result<_>>()?;
    let first = tensors.first().ok_or_else(missing)?;
    let size = tensors.iter().map(|tensor| tensor.shape()[joined.axis]).sum();
    let shape = first.shape().with_dim(joined.axis, size)?;
    let lines: usize = first.shape()[..joined.axis].iter().product();
    let mut target = HostBufferMut::zeroed(shape.elements() * first.dtype().size_bytes())?;
    let mut at = 0;
    for line in 0..lines {
        for tensor in &tensors {
            let bytes = tensor.as_bytes()?;
            let len = bytes.len() / lines;
            target.bytes_mut()[at..at + len].copy_from_slice(&bytes[line * len..(line + 1) * len]);
            at += len;
        }
    }
    Tensor::from_host(first.dtype(), shape, target.freeze())
}

/// Compares what a plan needs at its peak with what there is.
fn check_room(plan: &Plan, graph: &Graph, executor: &mut dyn Executor) -> Result<()> {
    let Room { place, free_bytes, shares_host_memory } = executor.room();
    let asked = plan.peak.bytes(shares_host_memory);
    match free_bytes {
        Some(free) if asked > free => {
            let place = format!("{place} for the graph {} ({})", graph.name(), plan.peak);
            Err(Error::OutOfMemory { place, asked, free, largest: free })
        }
        _ => Ok(()),
    }
}

/// Runs a plan on the inputs of an op. The outputs come in the graph's order.
pub fn run(ready: &mut Ready, op: &RunGraph, executor: &mut dyn Executor) -> Result<Value> {
    let Ready { held, stage } = ready;
    executor.prepare(held.plan.arena_bytes)?;
    let ran = stage.run(held, op, executor);
    stage.clear(&held.plan);
    ran
}

impl Ready {
    fn new(plan: Arc<Plan>, kept: Vec<Option<Tensor>>) -> Ready {
        let destination = |slot: &usize| {
            let planned = &plan.slots[*slot];
            let arena_offset = if let Place::Arena(offset) = planned.place { Some(offset) } else { None };
            let is_output = planned.place == Place::Own;
            let (len_bytes, order) = (planned.slot.len_bytes(), planned.order);
            Destination { arena_offset, is_output, len_bytes, order }
        };
        let steps = plan.steps.iter().zip(&plan.tails).map(|(step, tail)| {
            let mut views = Vec::new();
            step.op.for_each_tensor(&mut |tensor| views.push(tensor.clone()));
            let tail_views = tail.iter().flat_map(|tail| tail.more.clone()).collect();
            let outputs = step.outputs.iter().map(destination).collect();
            StagedStep { op: step.op.clone(), views, tail: tail.clone(), tail_views, outputs }
        });
        let stage = Stage { steps: steps.collect(), filled: kept.clone() };
        Ready { held: Arc::new(Held { plan, kept }), stage }
    }
}

impl Stage {
    fn run(&mut self, held: &Held, op: &RunGraph, executor: &mut dyn Executor) -> Result<Value> {
        let Held { plan, kept } = held;
        let Stage { steps, filled } = self;
        for ((place, slot), kept) in filled.iter_mut().zip(&plan.slots).zip(kept) {
            *place = match slot.place {
                Place::Input(input) => op.inputs().get(input).map(|tensor| executor.input(tensor)).transpose()?,
                _ => kept.clone(),
            };
        }
        for ((staged, step), ends) in steps.iter_mut().zip(&plan.steps).zip(&plan.ends) {
            staged.fill(filled)?;
            let made = match &staged.tail {
                Some(tail) => executor.step_with(&staged.op, tail, &staged.outputs),
                None => executor.step(&staged.op, &staged.outputs),
            };
            // The op's own handles end before its inputs' bytes are used again.
            staged.clear();
            let value = made.map_err(|cause| at_node(op.graph(), step.node, cause))?;
            for (slot, tensor) in step.outputs.iter().zip(value.tensors()) {
                filled[*slot] = Some(tensor.clone());
            }
            ends.iter().for_each(|slot| filled[*slot] = None);
        }
        outputs(plan, op, filled)
    }

    /// Lets go of everything that belongs to the run.
    fn clear(&mut self, plan: &Plan) {
        for (place, slot) in self.filled.iter_mut().zip(&plan.slots) {
            if !matches!(slot.place, Place::Constant(_) | Place::Kept) {
                *place = None;
            }
        }
    }
}

impl StagedStep {
    /// Gives the op the tensors that its views show now.
    fn fill(&mut self, filled: &[Option<Tensor>]) -> Result<()> {
        let mut views = self.views.iter().chain(&self.tail_views);
        let mut wrong = Ok(());
        let mut fill = |tensor: &mut Tensor| {
            let Some(view) = views.next() else { return };
            let Some(slot) = slot_of(view) else { return };
            let missing = || Error::invalid("graph: a slot", "a value", format!("none in {slot}"));
            match filled[slot].as_ref().ok_or_else(missing).and_then(|actual| view_of(view, actual)) {
                Ok(actual) => *tensor = actual,
                Err(error) => wrong = Err(error),
            }
        };
        self.op.for_each_tensor_mut(&mut fill);
        self.tail.iter_mut().flat_map(|tail| &mut tail.more).for_each(fill);
        if wrong.is_err() {
            self.clear();
        }
        wrong
    }

    fn clear(&mut self) {
        let mut views = self.views.iter().chain(&self.tail_views);
        let mut clear = |tensor: &mut Tensor| views.next().into_iter().for_each(|view| tensor.clone_from(view));
        self.op.for_each_tensor_mut(&mut clear);
        self.tail.iter_mut().flat_map(|tail| &mut tail.more).for_each(clear);
    }
}

fn outputs(plan: &Plan, op: &RunGraph, filled: &[Option<Tensor>]) -> Result<Value> {
    let missing = || Error::invalid("graph: an output", "a tensor", "nothing");
    let mut parts = Vec::with_capacity(plan.outputs.len());
    for view in &plan.outputs {
        let slot = slot_of(view).ok_or_else(missing)?;
        let output = match (plan.slots[slot].place, &filled[slot]) {
            (_, Some(actual)) => view_of(view, actual),
            // A constant that no step reads was not brought to the device.
            (Place::Constant(node), None) => view_of(view, op.graph().nodes()[node].constant().ok_or_else(missing)?),
            _ => Err(missing()),
        };
        parts.push(Part::Tensor(output?));
    }
    Ok(Value::List(parts))
}

/// For each slot whether a step reads it.
fn slots_read(plan: &Plan) -> Vec<bool> {
    let mut read = vec![false; plan.slots.len()];
    let mut see = |tensor: &Tensor| {
        if let Some(slot) = slot_of(tensor) {
            read[slot] = true;
        }
    };
    plan.once.iter().chain(&plan.steps).for_each(|step| step.op.for_each_tensor(&mut see));
    plan.tails.iter().flatten().flat_map(|tail| &tail.more).for_each(see);
    read
}

/// What the caller did wrong, with the node; what a device did stays what it is, so that the worker knows it.
fn at_node(graph: &Graph, node: usize, cause: Error) -> Error {
    match cause.kind() {
        ErrorKind::Caller => Error::Node { node: graph.node_text(node), cause: Box::new(cause) },
        ErrorKind::Device | ErrorKind::Capacity => cause,
    }
}
