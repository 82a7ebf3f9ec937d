//! Runs plans; shared by all engines. An engine implements [`Executor`], keeps [`Plans`], and calls
//! [`run`].
//!
//! A repeated run of a plan allocates only the list of its outputs: the ops that it fills with its
//! tensors are kept with the plan (`stage`).

use std::collections::{HashMap, HashSet, hash_map};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use panoply_core::graph::{Graph, Instance, Step, SymbolSizes, WeakGraph, fill_in, slot_of};
use panoply_core::op::graph::RunGraph;
use panoply_core::{Error, ErrorKind, HostBufferMut, Op, Result, Tensor, Value};

use crate::plan::{Concatenation, Order, Plan, SlotPlace, Tail};
use crate::stage::Stage;
use crate::{Facts, plan_of};

/// Maximal number of plans that an engine keeps; the least recently used one is dropped.
const PLANS_MAX: usize = 64;

/// The key of data that plans of one graph share: the graph, a hash of the computation, and the
/// number of the output. See [`computation`].
type KeptKey = (u64, u64, usize);

/// The operations of an engine that a plan needs.
pub trait Executor {
    /// The available memory, asked when a plan is used for the first time.
    fn room(&mut self) -> Room;

    /// Makes the arena at least this large. Work in flight may still use the previous one.
    fn prepare(&mut self, arena_bytes: usize) -> Result<()>;

    /// An input in the form that the steps read: contiguous.
    fn input(&mut self, tensor: &Tensor) -> Result<Tensor>;

    /// A constant in the form that the engine's ops read best, to be kept.
    fn constant(&mut self, tensor: &Tensor) -> Result<Tensor>;

    /// Runs one op, whose outputs belong at these destinations.
    fn step(&mut self, op: &Op, outputs: &[Destination]) -> Result<Value>;

    /// Runs one op with a fused epilogue. Plans contain such steps only if the engine's facts
    /// permit them.
    fn step_with(&mut self, op: &Op, tail: &Tail, outputs: &[Destination]) -> Result<Value> {
        let made = self.step(op, &[])?;
        let missing = || Error::invalid("graph: a step with a tail", "an output", "none");
        self.step(&tail.op(made.tensors().next().ok_or_else(missing)?), outputs)
    }
}

/// The memory that an engine has left.
pub struct Room {
    /// Name of the memory, for messages.
    pub place: String,
    /// Free bytes, including those kept for reuse. `None` if unknown.
    pub free_bytes: Option<u64>,
    /// Whether this is the host's memory, where inputs and constants already are.
    pub shares_host_memory: bool,
}

/// The destination of a step's output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Destination {
    /// Byte offset in the arena; `None` if the output has memory of its own.
    pub arena_offset: Option<usize>,
    /// Whether it is an output of the graph.
    pub is_output: bool,
    /// Length in bytes.
    pub len_bytes: usize,
    /// The memory order of its axes, if it differs from the op's.
    pub order: Option<Order>,
}

/// A plan with its constants on the device, and the data that a run needs.
pub struct Ready {
    /// The plan and its data on the device; to be held while any work in flight uses it.
    pub held: Arc<ResidentPlan>,
    stage: Stage,
}

/// A plan and its data on the device.
pub struct ResidentPlan {
    /// The plan.
    pub plan: Arc<Plan>,
    /// Constants, and results computed once from constants.
    #[allow(dead_code)] // Held so that their memory is not reused.
    kept: Vec<Tensor>,
}

/// The plans of one engine, each made on first use.
#[derive(Default)]
pub struct Plans {
    entries: Vec<PlanEntry>,
    /// Constants and results computed from them: plans of one graph share those whose computation
    /// is the same. A result may depend on the sizes of the inputs though its length does not.
    kept: HashMap<KeptKey, Tensor>,
    /// Counts uses.
    clock: u64,
}

struct PlanEntry {
    graph_id: u64,
    sizes: SymbolSizes,
    graph: WeakGraph,
    ready: Ready,
    /// Keys of the entries of [`Plans::kept`] that the plan uses.
    keys: Vec<KeptKey>,
    used: u64,
}

impl Plans {
    /// The plan of an op's graph for the sizes of its inputs. A known plan costs nothing; a new one
    /// is refused if there is not enough memory for its peak.
    pub fn get(&mut self, op: &RunGraph, facts: &Facts, executor: &mut dyn Executor) -> Result<&mut Ready> {
        let (graph, instance) = (op.graph(), op.instance()?);
        let sizes = instance.sizes;
        self.clock += 1;
        let known = self.entries.iter().position(|entry| entry.graph_id == graph.id() && entry.sizes == sizes);
        let place = match known {
            Some(place) => place,
            None => {
                self.make_room();
                let plan = plan_of(op, facts)?;
                check_room(&plan, graph, executor)?;
                let (kept, keys) = self.keep(graph, &plan, executor)?;
                let ready = Ready::new(plan, graph, instance, kept);
                let (graph_id, graph) = (graph.id(), graph.downgrade());
                self.entries.push(PlanEntry { graph_id, sizes, graph, ready, keys, used: 0 });
                self.entries.len() - 1
            }
        };
        let entry = &mut self.entries[place];
        entry.used = self.clock;
        Ok(&mut entry.ready)
    }

    /// Drops everything that is on the device, after the device's memory is gone.
    pub fn clear(&mut self) {
        self.entries.clear();
        self.kept.clear();
    }

    /// Drops the data of graphs that no longer exist, and the oldest plan if there are too many.
    fn make_room(&mut self) {
        self.entries.retain(|entry| entry.graph.is_alive());
        if self.entries.len() >= PLANS_MAX
            && let Some(oldest) = (0..self.entries.len()).min_by_key(|index| self.entries[*index].used)
        {
            self.entries.swap_remove(oldest);
        }
        let used: HashSet<&KeptKey> = self.entries.iter().flat_map(|entry| &entry.keys).collect();
        self.kept.retain(|key, _| used.contains(key));
    }

    /// Brings the constants to the device, and runs the steps that depend only on constants.
    /// Returns the data by slot, and its keys.
    fn keep(
        &mut self,
        graph: &Graph,
        plan: &Plan,
        executor: &mut dyn Executor,
    ) -> Result<(HashMap<usize, Tensor>, Vec<KeptKey>)> {
        let (mut kept, mut hashes, mut keys) = (HashMap::new(), HashMap::new(), Vec::new());
        let read = slots_read(plan);
        for (slot, place) in plan.slots.iter().enumerate().map(|(index, slot)| (index, slot.place)) {
            let SlotPlace::Constant(node) = place else { continue };
            let Some(tensor) = graph.nodes()[node].constant().filter(|_| read[slot]) else { continue };
            let joined = plan.slots[slot].joined.as_ref();
            let hash = match joined {
                Some(joined) => hash_of(&(&joined.nodes, joined.axis)),
                None => hash_of(&node),
            };
            let key = (graph.id(), hash, 0);
            let brought = match self.kept.entry(key) {
                hash_map::Entry::Occupied(place) => place.into_mut(),
                hash_map::Entry::Vacant(place) => place.insert(match joined {
                    Some(joined) => executor.constant(&join(graph, joined)?)?,
                    None => executor.constant(tensor)?,
                }),
            };
            kept.insert(slot, brought.clone());
            hashes.insert(slot, hash_of(&key));
            keys.push(key);
        }
        for step in &plan.once {
            let hash = computation(step, &hashes)?;
            let key = |port: usize| (graph.id(), hash, port);
            let known: Vec<Tensor> =
                (0..step.outputs.len()).filter_map(|port| self.kept.get(&key(port)).cloned()).collect();
            let fits = |(tensor, slot): (&Tensor, usize)| tensor.len_bytes() == plan.slots[slot].slot.len_bytes();
            let known = match known.len() == step.outputs.len() && known.iter().zip(step.outputs.iter()).all(fits) {
                true => known,
                false => {
                    let mut op = Op::clone(&step.op);
                    fill_in(&mut op, &|slot| kept.get(&slot).cloned())?;
                    let made = executor.step(&op, &[]).map_err(|cause| at_node(graph, step.node, cause))?;
                    made.tensors().cloned().collect()
                }
            };
            for (port, (slot, tensor)) in step.outputs.iter().zip(known).enumerate() {
                self.kept.insert(key(port), tensor.clone());
                kept.insert(slot, tensor);
                hashes.insert(slot, hash_of(&key(port)));
                keys.push(key(port));
            }
        }
        Ok((kept, keys))
    }
}

/// A hash of what a step computes: its op with all numbers, and for each of its tensors the layout
/// and the computation that makes it. Two steps of one graph with equal hashes have equal results.
fn computation(step: &Step, hashes: &HashMap<usize, u64>) -> Result<u64> {
    let mut op = Op::clone(&step.op);
    let mut hasher = DefaultHasher::new();
    // Stands for every tensor: a slot has another number in each plan.
    let any = Tensor::scalar(0.0_f32)?;
    op.for_each_tensor_mut(&mut |tensor| {
        match slot_of(tensor) {
            Some(slot) => hashes.get(&slot).hash(&mut hasher),
            // A tensor of the op's own, which belongs to the node.
            None => ("own", step.node).hash(&mut hasher),
        }
        (tensor.dtype(), tensor.shape(), tensor.strides(), tensor.offset()).hash(&mut hasher);
        tensor.clone_from(&any);
    });
    format!("{op:?}").hash(&mut hasher);
    Ok(hasher.finish())
}

fn hash_of(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Joins several constants of a graph into one, on the host.
pub(crate) fn join(graph: &Graph, joined: &Concatenation) -> Result<Tensor> {
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

/// Compares a plan's peak memory with the available memory.
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

/// Runs a plan on the inputs of an op. The outputs are in the graph's order.
pub fn run(ready: &mut Ready, op: &RunGraph, executor: &mut dyn Executor) -> Result<Value> {
    let Ready { held, stage } = ready;
    executor.prepare(held.plan.arena_bytes)?;
    let ran = stage.run(&held.plan, op, executor);
    stage.clear();
    ran
}

impl Ready {
    fn new(plan: Arc<Plan>, graph: &Graph, instance: &Instance, kept: HashMap<usize, Tensor>) -> Ready {
        let stage = Stage::new(&plan, graph, instance, &kept);
        Ready { held: Arc::new(ResidentPlan { plan, kept: kept.into_values().collect() }), stage }
    }
}

/// For each slot, whether a step reads it.
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

/// Adds the node to a caller's error; a device's error stays unchanged, so that the worker
/// recognises it.
pub(crate) fn at_node(graph: &Graph, node: usize, cause: Error) -> Error {
    match cause.kind() {
        ErrorKind::Caller => Error::Node { node: graph.node_text(node), cause: Box::new(cause) },
        ErrorKind::Device | ErrorKind::Capacity => cause,
    }
}
