//! A place where recorded steps are run, as graphs.
//!
//! 1. A step that is recorded is put behind the others of its place.
//! 2. When a number is read, or [`STEPS_MAX`] steps wait, all that wait become one graph. Its outputs are the nodes that a program still holds; what
//!    nobody can read, and nothing that is read needs, is not run.
//! 3. Numbers that steps were given (learning rates, corrections) are one input of the graph, so a program that does the same again and again
//!    with other numbers has the same graph, which is found by its text and compiled once.
//! 4. Each thread's steps are graphs of their own, as each session of a server has one thread: what goes wrong in one is not felt by another.
//!    One thread at a time runs a place's steps; a node that another thread has recorded is run first where it is needed.

use std::collections::HashMap;
use std::fmt::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::{self, ThreadId};

use burn_flex::FlexTensor;
use panoply_core::graph::{Dim, Graph, NodeId};
use panoply_core::op::compute::Transfer;
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, DeviceId, Error, Location, Result, Tensor};
use panoply_runtime::{RunOptions, Runtime};

use crate::array::{Handle, Node, Recorded, State};

/// Steps that wait before they are run without being asked for. A graph has room for their operands and results.
const STEPS_MAX: usize = 256;
/// Graphs that are kept for the next time.
const GRAPHS_MAX: usize = 64;

/// A node that waits to be run, and whether somebody can still read it.
type Waiting = (Weak<Handle>, Arc<Node>);
/// Graphs by their text, with when they were last used.
type Graphs = HashMap<String, (u64, Graph)>;

/// A device, or the router's choice, with what waits for it.
pub struct Place {
    runtime: Arc<Runtime>,
    pin: Option<DeviceId>,
    waiting: Mutex<HashMap<ThreadId, Vec<Waiting>>>,
    /// Held while steps are run.
    graphs: Mutex<Graphs>,
    ran: AtomicU64,
    steps: AtomicU64,
}

impl Place {
    pub(crate) fn new(runtime: Arc<Runtime>, pin: Option<DeviceId>) -> Place {
        let (waiting, graphs) = (Mutex::new(HashMap::new()), Mutex::new(HashMap::new()));
        Place { runtime, pin, waiting, graphs, ran: AtomicU64::new(0), steps: AtomicU64::new(0) }
    }

    /// How many graphs were run, how many steps they had, and how many different ones are known.
    pub fn counts(&self) -> (u64, u64, usize) {
        let known = locked(&self.graphs).len();
        (self.ran.load(Ordering::Relaxed), self.steps.load(Ordering::Relaxed), known)
    }

    pub(crate) fn record(&self, handle: &Arc<Handle>) {
        let is_full = {
            let mut waiting = locked(&self.waiting);
            let own = waiting.entry(thread::current().id()).or_default();
            own.push((Arc::downgrade(handle), Arc::clone(&handle.node)));
            own.len() >= STEPS_MAX
        };
        if is_full {
            self.flush();
        }
    }

    /// Runs what this thread has recorded.
    pub fn flush(&self) {
        let mut graphs = locked(&self.graphs);
        self.run_thread(thread::current().id(), &mut graphs);
    }

    /// Runs what all threads have recorded.
    pub fn flush_all(&self) {
        let mut graphs = locked(&self.graphs);
        let threads: Vec<ThreadId> = locked(&self.waiting).keys().copied().collect();
        threads.into_iter().for_each(|thread| self.run_thread(thread, &mut graphs));
    }

    fn run_thread(&self, thread: ThreadId, graphs: &mut Graphs) {
        let waiting = locked(&self.waiting).remove(&thread).unwrap_or_default();
        let Some(batch) = Batch::new(waiting) else { return };
        if batch.given.iter().any(|node| matches!(node.state(), State::Recorded(_))) {
            let others: Vec<ThreadId> = locked(&self.waiting).keys().copied().collect();
            others.into_iter().for_each(|other| self.run_thread(other, graphs));
        }
        let made = batch.given.iter().map(|node| self.upload(node)).collect::<std::result::Result<Vec<Tensor>, _>>();
        let made = made.and_then(|given| self.run(&batch, given, graphs).map_err(|error| error.to_string().into()));
        match made {
            Ok(tensors) => batch.outputs().zip(tensors).for_each(|(node, tensor)| node.set(State::There(tensor))),
            Err(cause) => batch.outputs().for_each(|node| node.set(State::Failed(Arc::clone(&cause)))),
        }
    }

    fn run(&self, batch: &Batch, mut given: Vec<Tensor>, graphs: &mut Graphs) -> Result<Vec<Tensor>> {
        if !batch.numbers.is_empty() {
            given.push(Tensor::from_slice(&batch.numbers, [batch.numbers.len()])?);
        }
        let now = self.ran.fetch_add(1, Ordering::Relaxed);
        self.steps.fetch_add(batch.steps.len() as u64, Ordering::Relaxed);
        let text = batch.text(&given);
        let graph = match graphs.get_mut(&text) {
            Some((used, graph)) => {
                *used = now;
                graph.clone()
            }
            None => {
                let graph = batch.graph(&given)?;
                if graphs.len() >= GRAPHS_MAX {
                    let oldest = graphs.iter().min_by_key(|(_, (used, _))| *used).map(|(text, _)| text.clone());
                    oldest.and_then(|text| graphs.remove(&text));
                }
                graphs.insert(text, (now, graph.clone()));
                graph
            }
        };
        let op = RunGraph::new(&graph, &given.iter().collect::<Vec<_>>());
        let options = self.pin.map_or_else(RunOptions::default, RunOptions::require);
        self.runtime.run_with(op, options).wait()
    }

    /// A node's tensor. What is on the host stays in the form in which graphs take it.
    fn upload(&self, node: &Node) -> std::result::Result<Tensor, Arc<str>> {
        match node.state() {
            State::There(tensor) => Ok(tensor),
            State::Host(tensor) => {
                let made = of_host(tensor).map_err(|error| Arc::<str>::from(error.to_string()))?;
                node.set(State::There(made.clone()));
                Ok(made)
            }
            State::Failed(cause) => Err(cause),
            State::Recorded(recorded) => Err(format!("{:?} was recorded and not run", recorded.step).into()),
        }
    }

    /// A tensor's bytes, brought to the host.
    pub(crate) fn fetch(&self, tensor: &Tensor) -> std::result::Result<Vec<u8>, String> {
        let host = match tensor.location() {
            Location::Host => Ok(tensor.clone()),
            Location::Device(_) => self.runtime.run(Transfer::to_host(tensor)).wait(),
        };
        let bytes = host.and_then(|host| host.contiguous()?.as_bytes().map(<[u8]>::to_vec));
        bytes.map_err(|error| error.to_string())
    }
}

fn of_host(tensor: FlexTensor) -> Result<Tensor> {
    let (bytes, shape, dtype) = tensor.to_contiguous().into_data().into_parts();
    match dtype {
        burn_backend::DType::F32 => Tensor::from_vec(bytemuck::pod_collect_to_vec::<u8, f32>(&bytes), &*shape),
        burn_backend::DType::I32 => Tensor::from_vec(bytemuck::pod_collect_to_vec::<u8, i32>(&bytes), &*shape),
        burn_backend::DType::Bool(_) => Tensor::from_slice::<u8>(&bytes, &*shape),
        other => Err(Error::invalid("burn: a recorded operand", "f32, i32 or bool", format!("{other:?}"))),
    }
}

/// Where a step's operand comes from.
#[derive(Clone, Copy)]
enum Source {
    /// An earlier step of the batch.
    Step(usize),
    /// An input of the graph.
    Given(usize),
}

/// Steps that become one graph.
struct Batch {
    steps: Vec<(Arc<Node>, Arc<Recorded>, Vec<Source>)>,
    given: Vec<Arc<Node>>,
    numbers: Vec<f32>,
    is_output: Vec<bool>,
}

impl Batch {
    /// The steps that somebody can read or that such a one needs, in order. None, where there is none.
    fn new(waiting: Vec<Waiting>) -> Option<Batch> {
        let address = |node: &Arc<Node>| Arc::as_ptr(node) as usize;
        let live: Vec<bool> = waiting.iter().map(|(handle, _)| handle.strong_count() > 0).collect();
        let mut needed = live.clone();
        let places: HashMap<usize, usize> = waiting.iter().enumerate().map(|(at, (_, node))| (address(node), at)).collect();
        let recorded = |node: &Node| match node.state() {
            State::Recorded(recorded) => Some(recorded),
            _ => None,
        };
        let all: Vec<Option<Arc<Recorded>>> = waiting.iter().map(|(_, node)| recorded(node)).collect();
        for at in (0..waiting.len()).rev().filter(|at| all[*at].is_some()) {
            let operands = all[at].iter().filter(|_| needed[at]).flat_map(|recorded| &recorded.operands);
            let before: Vec<usize> = operands.filter_map(|operand| places.get(&address(operand)).copied()).collect();
            before.into_iter().for_each(|operand| needed[operand] = true);
        }
        let mut batch = Batch { steps: Vec::new(), given: Vec::new(), numbers: Vec::new(), is_output: Vec::new() };
        let (mut made, mut inputs) = (HashMap::new(), HashMap::new());
        for (at, (_, node)) in waiting.iter().enumerate() {
            let Some(recorded) = all[at].as_ref().filter(|_| needed[at]) else { continue };
            let mut from = Vec::new();
            for operand in &recorded.operands {
                from.push(match made.get(&address(operand)) {
                    Some(step) => Source::Step(*step),
                    None => Source::Given(*inputs.entry(address(operand)).or_insert_with(|| {
                        batch.given.push(Arc::clone(operand));
                        batch.given.len() - 1
                    })),
                });
            }
            made.insert(address(node), batch.steps.len());
            batch.numbers.extend(&recorded.numbers);
            batch.steps.push((Arc::clone(node), Arc::clone(recorded), from));
            batch.is_output.push(live[at]);
        }
        (!batch.steps.is_empty()).then_some(batch)
    }

    fn outputs(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.steps.iter().zip(&self.is_output).filter(|(_, is_output)| **is_output).map(|((node, _, _), _)| node)
    }

    /// All that decides about the graph.
    fn text(&self, given: &[Tensor]) -> String {
        let mut text = String::new();
        // Writing into a string does not fail.
        for tensor in given {
            let _ = write!(text, "{}{:?};", tensor.dtype(), tensor.shape().dims());
        }
        for ((_, recorded, from), is_output) in self.steps.iter().zip(&self.is_output) {
            let _ = write!(text, "{:?}", recorded.step);
            for operand in from {
                let _ = match operand {
                    Source::Step(step) => write!(text, " {step}"),
                    Source::Given(given) => write!(text, " i{given}"),
                };
            }
            let _ = write!(text, " {}{};", recorded.numbers.len(), if *is_output { "!" } else { "" });
        }
        text
    }

    fn graph(&self, given: &[Tensor]) -> Result<Graph> {
        let mut g = Graph::builder("burn");
        let mut inputs = Vec::new();
        for (place, tensor) in given.iter().enumerate() {
            let dims: Vec<Dim> = tensor.shape().iter().map(|size| Dim::fixed(*size)).collect();
            inputs.push(g.input(&format!("x{place}"), tensor.dtype(), &dims)?);
        }
        let mut made: Vec<NodeId> = Vec::new();
        let mut number = 0;
        for (place, (_, recorded, from)) in self.steps.iter().enumerate() {
            let mut operands = Vec::new();
            for operand in from {
                let node = match operand {
                    Source::Step(step) => made[*step],
                    Source::Given(given) => inputs[*given],
                };
                operands.push(node);
            }
            for _ in &recorded.numbers {
                let one = g.slice(inputs[self.given.len()], 0, number, number + 1, 1)?;
                operands.push(g.reshape(one, &[])?);
                number += 1;
            }
            let node = recorded.step.build(&mut g, &operands)?;
            if self.is_output[place] {
                g.output(&format!("y{place}"), node)?;
            }
            made.push(node);
        }
        g.finish()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The element type in which graphs have a tensor of Burn's.
pub(crate) fn graph_dtype(dtype: burn_backend::DType) -> Option<DType> {
    match dtype {
        burn_backend::DType::F32 => Some(DType::F32),
        burn_backend::DType::I32 => Some(DType::I32),
        burn_backend::DType::Bool(burn_std::BoolStore::Native | burn_std::BoolStore::U8) => Some(DType::U8),
        _ => None,
    }
}
