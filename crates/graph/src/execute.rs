//! Running plans: what engines share. An engine brings an [`Executor`], keeps [`Plans`], and calls [`run`].

use std::collections::{HashMap, hash_map};
use std::sync::Arc;

use panoply_core::graph::{Graph, SymbolSizes, WeakGraph, fill_in, slot_of, view_of};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Buffer, Error, ErrorKind, HostBufferMut, Op, Part, Result, Shape, Tensor, Value};

use crate::plan::{Place, Plan};
use crate::{Facts, compile};

/// Plans that an engine keeps; of more, the one that was not used for longest goes.
const PLANS_MAX: usize = 64;

/// What an engine does for a plan.
pub trait Executor {
    /// Makes the arena at least so large. What is still under way may use the one before.
    fn prepare(&mut self, arena_bytes: usize) -> Result<()>;

    /// An input as the steps read it: its elements one after the other.
    fn input(&mut self, tensor: &Tensor) -> Result<Tensor>;

    /// A constant, where the engine's ops read it best, to be kept.
    fn constant(&mut self, tensor: &Tensor) -> Result<Tensor>;

    /// Runs one op; its outputs belong at these bytes of the arena, or anywhere.
    fn step(&mut self, op: &Op, places: &[Option<usize>]) -> Result<Value>;
}

/// A plan and what stays on the device for it.
pub struct Ready {
    /// The plan.
    pub plan: Plan,
    /// By slot: constants, and what was made of them once.
    kept: Vec<Option<Tensor>>,
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
    ready: Arc<Ready>,
    used: u64,
}

impl Plans {
    /// The plan of an op's graph for the sizes of its inputs. One that was met before costs nothing.
    pub fn get(&mut self, op: &RunGraph, facts: &Facts, executor: &mut dyn Executor) -> Result<Arc<Ready>> {
        let (graph, sizes) = (op.graph(), op.instance()?.sizes);
        self.clock += 1;
        let is_it = |entry: &&mut Entry| entry.graph_id == graph.id() && entry.sizes == sizes;
        if let Some(entry) = self.entries.iter_mut().find(is_it) {
            entry.used = self.clock;
            return Ok(Arc::clone(&entry.ready));
        }
        self.make_room();
        let plan = compile(graph, &sizes, facts)?;
        let kept = self.keep(graph, &plan, executor)?;
        let ready = Arc::new(Ready { plan, kept });
        let entry = Entry {
            graph_id: graph.id(),
            sizes,
            graph: graph.downgrade(),
            ready: Arc::clone(&ready),
            used: self.clock,
        };
        self.entries.push(entry);
        Ok(ready)
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
            let key = (graph.id(), node, 0);
            let brought = match self.kept.entry(key) {
                hash_map::Entry::Occupied(place) => place.into_mut(),
                hash_map::Entry::Vacant(place) => place.insert(executor.constant(tensor)?),
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

/// Runs a plan on the inputs of an op. The outputs come in the graph's order.
pub fn run(ready: &Ready, op: &RunGraph, executor: &mut dyn Executor) -> Result<Value> {
    let Ready { plan, kept } = ready;
    executor.prepare(plan.arena_bytes)?;
    let mut filled = kept.clone();
    for (place, slot) in filled.iter_mut().zip(&plan.slots) {
        if let Place::Input(input) = slot.place {
            *place = op.inputs().get(input).map(|tensor| executor.input(tensor)).transpose()?;
        }
    }
    let mut places = Vec::new();
    for (step, ends) in plan.steps.iter().zip(&plan.ends) {
        let mut one = step.op.clone();
        fill_in(&mut one, &|slot| filled[slot].clone())?;
        places.clear();
        places.extend(step.outputs.iter().map(|slot| match plan.slots[*slot].place {
            Place::Arena(offset) => Some(offset),
            _ => None,
        }));
        let value = executor.step(&one, &places).map_err(|cause| at_node(op.graph(), step.node, cause))?;
        // The op's own handles end before its inputs' bytes are used again.
        drop(one);
        for (slot, tensor) in step.outputs.iter().zip(value.tensors()) {
            filled[*slot] = Some(tensor.clone());
        }
        ends.iter().for_each(|slot| filled[*slot] = None);
    }
    outputs(plan, op, &filled)
}

fn outputs(plan: &Plan, op: &RunGraph, filled: &[Option<Tensor>]) -> Result<Value> {
    let missing = || Error::invalid("graph: an output", "a tensor", "nothing");
    let output = |view: &Tensor| {
        let slot = slot_of(view).ok_or_else(missing)?;
        match (plan.slots[slot].place, &filled[slot]) {
            (_, Some(actual)) => view_of(view, actual),
            // A constant that no step reads was not brought to the device.
            (Place::Constant(node), None) => view_of(view, op.graph().nodes()[node].constant().ok_or_else(missing)?),
            _ => Err(missing()),
        }
    };
    let parts = plan.outputs.iter().map(|view| output(view).map(Part::Tensor));
    parts.collect::<Result<_>>().map(Value::List)
}

/// For each slot whether a step reads it.
fn slots_read(plan: &Plan) -> Vec<bool> {
    let mut read = vec![false; plan.slots.len()];
    for step in plan.once.iter().chain(&plan.steps) {
        step.op.for_each_tensor(&mut |tensor| {
            if let Some(slot) = slot_of(tensor) {
                read[slot] = true;
            }
        });
    }
    read
}

/// What the caller did wrong, with the node; what a device did stays what it is, so that the worker knows it.
fn at_node(graph: &Graph, node: usize, cause: Error) -> Error {
    match cause.kind() {
        ErrorKind::Caller => Error::Node { node: graph.node_text(node), cause: Box::new(cause) },
        ErrorKind::Device | ErrorKind::Capacity => cause,
    }
}

/// So many rows, or up to a quarter more: few sizes are met, so their plans are found again.
fn padded_rows(rows: usize) -> usize {
    let step = (rows.next_power_of_two() / 8).max(1);
    rows.next_multiple_of(step)
}

/// What each of several runs that were joined gets of the outputs.
pub fn split_rows(value: &Value, rows: &[usize]) -> Result<Vec<Value>> {
    let mut start = 0;
    let part = |rows: &usize| {
        let range = start..start + rows;
        start = range.end;
        let parts = value.tensors().map(|tensor| tensor.slice(0, range.start, range.end).map(Part::Tensor));
        parts.collect::<Result<_>>().map(Value::List)
    };
    rows.iter().map(part).collect()
}

/// Several runs of one graph whose rows are independent, as one run with all their rows and a few that mean nothing, and
/// the rows of each. `None` where
/// they are not of one graph, or inputs are not on the host.
pub fn join_rows(ops: &[&RunGraph]) -> Option<(RunGraph, Vec<usize>)> {
    let first = ops.first()?;
    let same = |op: &&RunGraph| op.graph() == first.graph() && op.graph().has_rows();
    if !ops.iter().all(same) {
        return None;
    }
    let rows: Vec<usize> = ops.iter().map(|op| op.inputs()[0].shape()[0]).collect();
    let total = padded_rows(rows.iter().sum());
    let joined = (0..first.inputs().len()).map(|input| {
        let like = &first.inputs()[input];
        let shape: Shape = like.shape().with_dim(0, total).ok()?;
        let mut target = HostBufferMut::zeroed(shape.elements() * like.dtype().size_bytes()).ok()?;
        let mut at = 0;
        for op in ops {
            let tensor = &op.inputs()[input];
            let Buffer::Host(_) = tensor.buffer() else { return None };
            let tensor = tensor.contiguous().ok()?;
            let bytes = tensor.as_bytes().ok()?;
            target.bytes_mut().get_mut(at..at + bytes.len())?.copy_from_slice(bytes);
            at += bytes.len();
        }
        Tensor::from_host(like.dtype(), shape, target.freeze()).ok()
    });
    let joined: Vec<Tensor> = joined.collect::<Option<_>>()?;
    Some((RunGraph::new(first.graph(), &joined.iter().collect::<Vec<_>>()), rows))
}
