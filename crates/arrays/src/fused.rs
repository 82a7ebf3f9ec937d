//! Arrays on any device of the runtime, whose ops are recorded until somebody reads an array. Then
//! they run as one fused graph.
//!
//! 1. An op is checked, and the shape of its array is known, when it is recorded. Errors that need
//!    the elements (an index outside a table, a lost device) come when an array is read.
//! 2. Reading an array runs the graph of all ops that it needs and that have not run. Every array
//!    of this graph that the program still holds becomes an output too, so nothing is computed
//!    twice.
//! 3. The ops of a backend that wait have at most [`PENDING_MAX`] operands: beyond that, each op
//!    runs at once, with those that it needs. So a graph never has too many inputs.
//! 4. Graphs are kept by their form (ops and shapes), so a training loop compiles its graph once.
//!    At most [`GRAPHS_MAX`] are kept.
//! 5. One thread at a time runs a backend's graphs. Others wait, and find what they need computed.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use panoply_core::graph::{Dim, Graph, GraphBuilder, NodeId};
use panoply_core::op::compute::{
    Attention, Conv2d, Conv2dBackwardInput, Gather, LayerNorm, Map, MatMul, Pool2d, Reduce, Softmax,
};
use panoply_core::op::graph::RunGraph;
use panoply_core::{DType, Fallback, Tensor};
use panoply_nn::{Error, Result, random};
use panoply_runtime::{RunOptions, Runtime};

use crate::{ArrayOp, ComputeBackend, RuntimeBackend};

/// The most operands of all ops of a backend that are recorded and have not run.
pub const PENDING_MAX: usize = 512;
/// The most graphs that a backend keeps. The one that was not used for longest is dropped first.
pub const GRAPHS_MAX: usize = 64;

/// The runtime as a compute backend that fuses ops. Clones share it.
#[derive(Clone)]
pub struct FusedBackend {
    runtime: RuntimeBackend,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    pending: Arc<AtomicUsize>,
    /// The graphs by their forms, the most recently used last. Locked while a graph runs.
    graphs: Mutex<Vec<(Form, Graph)>>,
}

/// An array that is computed when it is read. Cloning copies a handle.
#[derive(Clone)]
pub struct FusedData(Arc<Entry>);

struct Entry {
    dtype: DType,
    dims: Vec<usize>,
    state: Mutex<State>,
}

enum State {
    Recorded(PendingStep),
    Computed(Tensor),
}

/// An op that has not run.
struct PendingStep {
    op: ArrayOp,
    operands: Vec<FusedData>,
    _pending: PendingOp,
}

/// The operands of one recorded op, among those of all that have not run.
struct PendingOp(Arc<AtomicUsize>, usize);

impl PendingOp {
    fn begin(count: &Arc<AtomicUsize>, op: &ArrayOp, operands: usize) -> PendingOp {
        // The seed of a mask is an operand too.
        let own = operands.max(1) + usize::from(matches!(op, ArrayOp::Mask { .. }));
        count.fetch_add(own, Ordering::Relaxed);
        PendingOp(Arc::clone(count), own)
    }
}

impl Drop for PendingOp {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// The form of a graph: everything that its text depends on.
#[derive(PartialEq)]
struct Form {
    inputs: Vec<(DType, Vec<usize>)>,
    steps: Vec<(ArrayOp, Vec<Operand>)>,
    outputs: Vec<usize>,
}

/// An operand of a step: an input of the graph, or the output of an earlier step.
#[derive(Clone, Copy, PartialEq)]
enum Operand {
    Input(usize),
    Step(usize),
}

impl FusedBackend {
    /// Leaves the choice of device for each graph to the runtime.
    pub fn new(runtime: impl Into<Arc<Runtime>>) -> FusedBackend {
        FusedBackend::with_options(runtime, RunOptions::default())
    }

    /// Runs every graph with these options.
    pub fn with_options(runtime: impl Into<Arc<Runtime>>, options: RunOptions) -> FusedBackend {
        FusedBackend { runtime: RuntimeBackend::with_options(runtime, options), shared: Arc::default() }
    }

    /// The latest fallbacks: the device that was chosen first, and why it failed.
    pub fn fallbacks(&self) -> Vec<Fallback> {
        self.runtime.fallbacks()
    }

    /// Number of operands of the ops that were recorded and have not run.
    pub fn pending(&self) -> usize {
        self.shared.pending.load(Ordering::Relaxed)
    }

    /// The array's elements, in the memory where they were computed. Runs what has not run.
    fn computed(&self, data: &FusedData) -> Result<Tensor> {
        if let State::Computed(tensor) = &*locked(&data.0.state) {
            return Ok(tensor.clone());
        }
        let mut graphs = locked(&self.shared.graphs);
        // Another thread may have computed it meanwhile.
        if let State::Computed(tensor) = &*locked(&data.0.state) {
            return Ok(tensor.clone());
        }
        let Plan { form, inputs, seeds, arrays } = Plan::of(data);
        let graph = match graphs.iter().position(|(known, _)| *known == form) {
            Some(place) => {
                let known = graphs.remove(place);
                graphs.push(known);
                graphs[graphs.len() - 1].1.clone()
            }
            None => {
                let graph = form.graph()?;
                if graphs.len() == GRAPHS_MAX {
                    graphs.remove(0);
                }
                graphs.push((form, graph.clone()));
                graph
            }
        };
        let inputs: Vec<&Tensor> = inputs.iter().chain(&seeds).collect();
        let made = self.runtime.run_op(RunGraph::new(&graph, &inputs))?;
        if made.len() != arrays.len() {
            return Err(Error::invalid("array: a graph's outputs", arrays.len().to_string(), made.len()));
        }
        for (array, tensor) in arrays.iter().zip(made) {
            let recorded = std::mem::replace(&mut *locked(&array.0.state), State::Computed(tensor));
            // The operands are dropped without the lock: they may hold long chains.
            drop(recorded);
        }
        match &*locked(&data.0.state) {
            State::Computed(tensor) => Ok(tensor.clone()),
            State::Recorded(_) => Err(Error::invalid("array", "an output of its graph", "none")),
        }
    }
}

/// The graph that computes an array.
struct Plan {
    form: Form,
    inputs: Vec<Tensor>,
    /// The seeds of masks, which are inputs too, so that each step of a training uses one graph.
    seeds: Vec<Tensor>,
    /// The arrays that the outputs belong to.
    arrays: Vec<FusedData>,
}

/// The search for the ops that an array needs.
#[derive(Default)]
struct Search {
    places: HashMap<*const Entry, Operand>,
    inputs: Vec<Tensor>,
    steps: Vec<(ArrayOp, Vec<Operand>)>,
    arrays: Vec<FusedData>,
    /// How often the operands of each step's array name it.
    uses: Vec<usize>,
    seeds: Vec<Tensor>,
}

impl Search {
    /// Visits the array and what it needs, operands first. At most [`PENDING_MAX`] + 1 ops have not
    /// run, so the recursion is bounded.
    fn visit(&mut self, data: &FusedData) -> Operand {
        let key = Arc::as_ptr(&data.0);
        if let Some(place) = self.places.get(&key) {
            return *place;
        }
        let (op, operands) = match &*locked(&data.0.state) {
            State::Computed(tensor) => {
                self.inputs.push(tensor.clone());
                let place = Operand::Input(self.inputs.len() - 1);
                self.places.insert(key, place);
                return place;
            }
            State::Recorded(recorded) => (recorded.op.clone(), recorded.operands.clone()),
        };
        let places: Vec<Operand> = operands.iter().map(|operand| self.visit(operand)).collect();
        drop(operands);
        for place in &places {
            if let Operand::Step(step) = place {
                self.uses[*step] += 1;
            }
        }
        let op = match op {
            ArrayOp::Mask { keep, seed, stream } => {
                self.seeds.extend(Tensor::scalar(seed));
                ArrayOp::Mask { keep, seed: 0, stream }
            }
            other => other,
        };
        self.steps.push((op, places));
        self.arrays.push(data.clone());
        self.uses.push(0);
        let place = Operand::Step(self.steps.len() - 1);
        self.places.insert(key, place);
        place
    }
}

impl Plan {
    fn of(data: &FusedData) -> Plan {
        let mut search = Search::default();
        search.visit(data);
        let Search { inputs, steps, arrays, uses, seeds, .. } = search;
        let last = steps.len().saturating_sub(1);
        // Handles: one in `arrays`, one for each use by a recorded op. Any other is the program's,
        // or that of an op outside this graph.
        let is_held = |step: usize| Arc::strong_count(&arrays[step].0) > 1 + uses[step];
        let outputs: Vec<usize> = (0..steps.len()).filter(|step| *step == last || is_held(*step)).collect();
        let types = inputs.iter().map(|tensor| (tensor.dtype(), tensor.shape().to_vec())).collect();
        let arrays = outputs.iter().map(|step| arrays[*step].clone()).collect();
        Plan { form: Form { inputs: types, steps, outputs }, inputs, seeds, arrays }
    }
}

impl Form {
    fn graph(&self) -> Result<Graph> {
        let mut g = Graph::builder("arrays");
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (place, (dtype, dims)) in self.inputs.iter().enumerate() {
            inputs.push(g.input(&format!("input_{place}"), *dtype, &fixed(dims))?);
        }
        let masks = self.steps.iter().filter(|(op, _)| matches!(op, ArrayOp::Mask { .. })).count();
        let mut seeds = Vec::with_capacity(masks);
        for place in 0..masks {
            seeds.push(g.input(&format!("seed_{place}"), DType::U32, &[])?);
        }
        let (mut seeds, mut nodes): (_, Vec<NodeId>) = (seeds.into_iter(), Vec::with_capacity(self.steps.len()));
        for (op, operands) in &self.steps {
            let node = |operand: &Operand| match operand {
                Operand::Input(place) => inputs[*place],
                Operand::Step(place) => nodes[*place],
            };
            let operands: Vec<NodeId> = operands.iter().map(node).collect();
            let seed = if let ArrayOp::Mask { .. } = op { seeds.next() } else { None };
            nodes.push(record(&mut g, op, &operands, seed)?);
        }
        for (place, step) in self.outputs.iter().enumerate() {
            g.output(&format!("output_{place}"), nodes[*step])?;
        }
        Ok(g.finish()?)
    }
}

fn fixed(dims: &[usize]) -> Vec<Dim> {
    dims.iter().map(|size| Dim::fixed(*size)).collect()
}

/// Adds an op to a graph.
fn record(g: &mut GraphBuilder, op: &ArrayOp, operands: &[NodeId], seed: Option<NodeId>) -> Result<NodeId> {
    let wrong = || Error::invalid("array: operands", "as many as the op has", operands.len());
    Ok(match (op, operands) {
        (ArrayOp::Map(program), _) => g.op(operands, |t| Map::with_program(program, &t.iter().collect::<Vec<_>>()))?,
        (ArrayOp::Reshape(dims), [x]) => g.reshape(*x, &fixed(dims))?,
        (ArrayOp::Permute(order), [x]) => g.permute(*x, order)?,
        (ArrayOp::Slice { axis, start, end, step }, [x]) => g.slice(*x, *axis, *start, *end, *step)?,
        (ArrayOp::Broadcast(dims), [x]) => g.broadcast(*x, &fixed(dims))?,
        (ArrayOp::Reduce(reduction, axes), [_]) => {
            g.op(operands, |t| Reduce::new(&t[0], *reduction).axes(axes).keep_dims())?
        }
        (ArrayOp::MatMul { transpose_a, transpose_b }, [_, _]) => {
            let (transpose_a, transpose_b) = (*transpose_a, *transpose_b);
            g.op(operands, |t| MatMul { transpose_a, transpose_b, ..MatMul::new(&t[0], &t[1]) })?
        }
        (ArrayOp::Conv2d(options), [_, _]) => g.op(operands, |t| Conv2d::new(&t[0], &t[1]).options(*options))?,
        (ArrayOp::ConvTranspose2d(options, size), [_, _]) => {
            g.op(operands, |t| Conv2dBackwardInput::new(&t[0], &t[1], *size).options(*options))?
        }
        (ArrayOp::Pool2d { kind, kernel, stride, padding }, [_]) => {
            g.op(operands, |t| Pool2d { kind: *kind, ..Pool2d::max(&t[0], *kernel) }.stride(*stride).padding(*padding))?
        }
        (ArrayOp::Softmax { axis, is_log }, [_]) => {
            g.op(operands, |t| Softmax { is_log: *is_log, ..Softmax::new(&t[0]).axis(*axis) })?
        }
        (ArrayOp::LayerNorm { epsilon }, [_, _, _]) => {
            g.op(operands, |t| LayerNorm::new(&t[0]).weight(&t[1]).bias(&t[2]).epsilon(*epsilon))?
        }
        (ArrayOp::Gather, [_, _]) => g.op(operands, |t| Gather::new(&t[0], &t[1], 0))?,
        (ArrayOp::Attention { is_causal }, [_, _, _]) => {
            g.op(operands, |t| Attention { is_causal: *is_causal, ..Attention::new(&t[0], &t[1], &t[2]) })?
        }
        (ArrayOp::Mask { keep, stream, .. }, [x]) => {
            let seed = seed.ok_or_else(wrong)?;
            let (dtype, dims) = g.type_of(*x)?;
            let dims = dims.to_vec();
            random::mask(g, &dims, dtype, *keep, seed, stream)?
        }
        _ => return Err(wrong()),
    })
}

/// The element type and the dimensions of an op's array.
fn type_of(op: &ArrayOp, operands: &[&FusedData]) -> Result<(DType, Vec<usize>)> {
    if let (ArrayOp::Mask { .. }, [x]) = (op, operands) {
        return Ok((x.0.dtype, x.0.dims.clone()));
    }
    let mut g = Graph::builder("array");
    let mut inputs = Vec::with_capacity(operands.len());
    for (place, operand) in operands.iter().enumerate() {
        inputs.push(g.input(&format!("input_{place}"), operand.0.dtype, &fixed(&operand.0.dims))?);
    }
    let node = record(&mut g, op, &inputs, None)?;
    let (dtype, dims) = g.type_of(node)?;
    let open = || Error::invalid("array: a shape", "sizes", "an open dimension");
    let dims = dims.iter().map(|dim| dim.as_fixed().ok_or_else(open)).collect::<Result<_>>()?;
    Ok((dtype, dims))
}

impl ComputeBackend for FusedBackend {
    type Data = FusedData;

    fn name(&self) -> String {
        format!("{}, fused", self.runtime.name())
    }

    fn upload(&self, tensor: Tensor) -> Result<FusedData> {
        let (dtype, dims) = (tensor.dtype(), tensor.shape().to_vec());
        Ok(FusedData(Arc::new(Entry { dtype, dims, state: Mutex::new(State::Computed(tensor)) })))
    }

    fn download(&self, data: &FusedData) -> Result<Tensor> {
        self.runtime.download(&self.computed(data)?)
    }

    fn dims(&self, data: &FusedData) -> Vec<usize> {
        data.0.dims.clone()
    }

    fn run(&self, op: &ArrayOp, operands: &[&FusedData]) -> Result<FusedData> {
        let (dtype, dims) = type_of(op, operands)?;
        let is_full = self.pending() >= PENDING_MAX;
        let pending = PendingOp::begin(&self.shared.pending, op, operands.len());
        let operands = operands.iter().map(|operand| (*operand).clone()).collect();
        let recorded = PendingStep { op: op.clone(), operands, _pending: pending };
        let data = FusedData(Arc::new(Entry { dtype, dims, state: Mutex::new(State::Recorded(recorded)) }));
        if is_full {
            self.computed(&data)?;
        }
        Ok(data)
    }
}

fn locked<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend() -> FusedBackend {
        let runtime = Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build().unwrap();
        FusedBackend::new(runtime)
    }

    fn relu() -> ArrayOp {
        let program = panoply_core::expr::Expr::input(0).relu().finish().unwrap();
        ArrayOp::Map(program)
    }

    fn row(backend: &FusedBackend) -> FusedData {
        backend.upload(Tensor::from_vec(vec![1.0_f32, -2.0, 3.0], [3]).unwrap()).unwrap()
    }

    /// The number of ops that the runtime has completed. Devices count an op after its answer.
    fn ran(backend: &FusedBackend) -> u64 {
        std::thread::sleep(std::time::Duration::from_millis(50));
        backend.runtime.completed()
    }

    #[test]
    fn arrays_that_the_program_holds_are_computed_once() {
        let backend = backend();
        let x = row(&backend);
        let held = backend.run(&relu(), &[&x]).unwrap();
        let sum = ArrayOp::Reduce(panoply_core::op::compute::Reduction::Sum, vec![0]);
        let total = backend.run(&sum, &[&backend.run(&relu(), &[&held]).unwrap()]).unwrap();
        assert_eq!((backend.pending(), ran(&backend)), (3, 0), "nothing runs before it is read");
        for _ in 0..2 {
            assert_eq!(backend.download(&total).unwrap().to_vec::<f32>().unwrap(), [4.0]);
        }
        assert_eq!((backend.pending(), ran(&backend)), (0, 1), "one graph");
        assert_eq!(backend.download(&held).unwrap().to_vec::<f32>().unwrap(), [1.0, 0.0, 3.0]);
        assert_eq!(ran(&backend), 1, "the graph has computed the array that was held");
    }

    #[test]
    fn the_ops_that_wait_are_bounded() {
        let backend = backend();
        let mut last = row(&backend);
        let mut held = Vec::new();
        for _ in 0..3 * PENDING_MAX {
            last = backend.run(&relu(), &[&last]).unwrap();
            assert!(backend.pending() <= PENDING_MAX);
        }
        let x = row(&backend);
        for _ in 0..PENDING_MAX + 5 {
            held.push(backend.run(&relu(), &[&x]).unwrap());
            assert!(backend.pending() <= PENDING_MAX);
        }
        assert_eq!(backend.download(&last).unwrap().to_vec::<f32>().unwrap(), [1.0, 0.0, 3.0]);
        drop((last, held));
        assert_eq!(backend.pending(), 0, "arrays that nobody holds never run");
    }

    #[test]
    fn graphs_of_one_form_are_recorded_once_and_few_are_kept() {
        let backend = backend();
        for turn in 0..3 * GRAPHS_MAX {
            let count = 1 + turn % (GRAPHS_MAX + 9);
            let x = backend.upload(Tensor::from_vec(vec![-1.0_f32; count], [count]).unwrap()).unwrap();
            let y = backend.run(&relu(), &[&x]).unwrap();
            assert_eq!(backend.download(&y).unwrap().to_vec::<f32>().unwrap(), vec![0.0; count]);
            let graphs = locked(&backend.shared.graphs).len();
            assert!(graphs <= GRAPHS_MAX && (turn >= GRAPHS_MAX || graphs == turn + 1), "{graphs} after {turn}");
        }
        let id = || locked(&backend.shared.graphs).last().map(|(_, graph)| graph.id());
        let again = || {
            let y = backend.run(&relu(), &[&row(&backend)]).unwrap();
            backend.download(&y).unwrap();
            id()
        };
        assert_eq!(again(), again());
    }
}
