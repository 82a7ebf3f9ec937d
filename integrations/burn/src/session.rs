//! One client: its tensors, the operations that have not run yet, and the graphs of its earlier
//! recordings.
//!
//! 1. A client's tensor exists, or is a value of the recording, or failed with the operation that
//!    should have made it.
//! 2. Inputs of an operation that the client will not use again are forgotten at once. Values that
//!    no client can name any more when the recording runs are not outputs of its graph.
//! 3. Existing tensors and the pending results of the recording are counted, and together stay
//!    below a limit.

use std::collections::HashMap;
use std::sync::Arc;

use burn_backend::{DTypeUsage, DTypeUsageSet, ExecutionError, Slice, TensorData};
use burn_ir::{
    FloatOperationIr, GraphBindings, GraphId, IrVisitorMut, NumericOperationIr, OperationIr, RandomOpIr, ScalarIr,
    TensorId, TensorIr, TensorStatus,
};
use burn_std::DType as BurnType;
use panoply_core::graph::PORTS_MAX;
use panoply_core::op::compute::Transfer;
use panoply_core::op::graph::RunGraph;
use panoply_core::{Location, Outcome, Tensor};
use panoply_runtime::{RunOptions, Runtime};
use rand::SeedableRng;
use rand::rngs::StdRng;

use crate::convert;
use crate::error::Error;
use crate::recording::{Plans, Recording, Run};
use crate::server::{Limits, Tally};
use crate::wire::{RequestId, Task, TaskResponse, TaskResponseContent};

/// The most tensors of a session, regardless of their size.
const TENSORS_MAX: usize = 1 << 20;
/// The most graphs that a client may register, and the most operations in all of them together.
const REGISTERED_MAX: usize = 4_096;
const REGISTERED_OPS_MAX: usize = 1 << 20;
/// The first number for intermediate tensors of a registered graph; clients' own numbers are
/// smaller.
const INTERMEDIATE: u64 = 1 << 63;

/// The state of a client's tensor.
enum TensorState {
    There(Tensor, u64),
    /// A value of the recording, and its size in bytes.
    Value(usize, u64),
    Failed(Arc<Error>),
}

impl TensorState {
    fn bytes(&self) -> u64 {
        match self {
            TensorState::There(_, bytes) | TensorState::Value(_, bytes) => *bytes,
            TensorState::Failed(_) => 0,
        }
    }
}

pub(crate) struct Session {
    runtime: Arc<Runtime>,
    options: RunOptions,
    limits: Limits,
    tally: Arc<Tally>,
    slots: HashMap<u64, TensorState>,
    /// Bytes of all slots, and bytes of tensors that only the recording still holds.
    bytes: u64,
    held: u64,
    recording: Recording,
    /// Existing tensors that are values of the recording, by the client's number.
    values: HashMap<u64, usize>,
    /// The number of slots that are values.
    pending: usize,
    plans: Plans,
    registered: HashMap<GraphId, Arc<Vec<OperationIr>>>,
    registered_ops: usize,
    intermediate: u64,
    rng: Option<StdRng>,
}

impl Session {
    pub(crate) fn new(runtime: Arc<Runtime>, options: RunOptions, limits: Limits, tally: Arc<Tally>) -> Session {
        let plans = Plans::new(limits.graphs_max);
        Session {
            runtime,
            options,
            limits,
            tally,
            slots: HashMap::new(),
            bytes: 0,
            held: 0,
            recording: Recording::default(),
            values: HashMap::new(),
            pending: 0,
            plans,
            registered: HashMap::new(),
            registered_ops: 0,
            intermediate: 0,
            rng: None,
        }
    }

    /// Handles a message. Returns the answer, if the message needs one. An error ends the session.
    pub(crate) fn task(&mut self, task: Task) -> Result<Option<TaskResponse>, Error> {
        match task {
            Task::Seed(seed) => self.rng = Some(StdRng::seed_from_u64(seed)),
            Task::RegisterOperation(_, op) => self.operation(op)?,
            Task::RegisterAndExecuteGraph { graph_id, relative_graph, bindings, .. } => {
                let graph = self.register(graph_id, relative_graph)?;
                self.replay(&graph, &bindings)?;
            }
            Task::ExecuteGraph { graph_id, bindings, .. } => {
                let graph = self.registered.get(&graph_id).cloned();
                let graph =
                    graph.ok_or_else(|| Error::Protocol(format!("graph {} was never registered", graph_id.0)))?;
                self.replay(&graph, &bindings)?;
            }
            Task::RegisterTensor(_, id, data) => self.given(id, &data)?,
            Task::RegisterAlias { new_id, src_id, .. } => self.alias(new_id, src_id)?,
            Task::RegisterTensorRemote(_, _, id) | Task::RegisterTensorLocal { new_id: id, .. } => {
                let error = Error::unsupported("transfer", "tensors between sessions or servers");
                self.put(id.value(), TensorState::Failed(Arc::new(error)))?;
            }
            Task::ExposeTensorRemote(_) | Task::ExposeTensorLocal(_) | Task::ProfileAbandon(..) => {}
            Task::ReadTensor(request, _, tensor) => {
                let answer = self.read(&tensor).map_err(failure);
                return Ok(Some(answered(request, TaskResponseContent::ReadTensor(answer))));
            }
            Task::SyncBackend(request, _) => {
                let answer = self.run().map_err(failure);
                return Ok(Some(answered(request, TaskResponseContent::SyncBackend(answer))));
            }
            Task::DTypeUsage(request, dtype) => {
                return Ok(Some(answered(request, TaskResponseContent::DTypeUsage(usage(dtype)))));
            }
            Task::ProfileStart(request, _) => {
                return Ok(Some(answered(request, TaskResponseContent::ProfileStart(Ok(None)))));
            }
            Task::ProfileEnd(request, ..) => {
                return Ok(Some(answered(request, TaskResponseContent::ProfileEnd(Ok(None)))));
            }
        }
        Ok(None)
    }

    /// Accepts an operation. An error of the operation itself is stored for readers of its outputs;
    /// an error returned here ends the session.
    fn operation(&mut self, op: OperationIr) -> Result<(), Error> {
        self.tally.op();
        match &op {
            OperationIr::Drop(tensor) => {
                self.forget(tensor.id.value());
                return Ok(());
            }
            OperationIr::Init(_) => return Ok(()),
            OperationIr::Float(_, FloatOperationIr::Random(desc))
            | OperationIr::NumericInt(_, NumericOperationIr::IntRandom(desc))
            | OperationIr::NumericFloat(_, NumericOperationIr::IntRandom(desc)) => return self.random(desc),
            _ => {}
        }
        let operands: Vec<(u64, bool)> =
            op.inputs().map(|input| (input.id.value(), input.status == TensorStatus::ReadWrite)).collect();
        let outputs: Vec<TensorIr> = op.outputs().cloned().collect();
        let recorded = self.record(op, &operands, &outputs);
        for (id, _) in operands.iter().filter(|(_, is_last)| *is_last) {
            self.forget(*id);
        }
        match recorded {
            Ok(values) => {
                for ((value, bytes), out) in values.into_iter().zip(&outputs) {
                    self.put(out.id.value(), TensorState::Value(value, bytes))?;
                }
            }
            Err(error) => {
                for out in &outputs {
                    self.put(out.id.value(), TensorState::Failed(Arc::clone(&error)))?;
                }
            }
        }
        Ok(())
    }

    /// Records an operation. Returns the values of its outputs, with their sizes in bytes.
    fn record(
        &mut self,
        op: OperationIr,
        operands: &[(u64, bool)],
        outputs: &[TensorIr],
    ) -> Result<Vec<(usize, u64)>, Arc<Error>> {
        let room = PORTS_MAX - 1;
        if operands.len() + outputs.len() > room {
            let got = (operands.len() + outputs.len()) as u64;
            return Err(Arc::new(Error::Limit { what: "tensors of an operation", limit: room as u64, got }));
        }
        let is_full = self.recording.inputs() + operands.len() > room || self.pending + outputs.len() > room;
        if is_full || self.recording.len() >= self.limits.ops_max {
            // Failures are stored with the affected tensors.
            let _ = self.run();
        }
        let sizes = outputs.iter().map(|out| convert::len_bytes(out.dtype, &out.shape));
        let sizes: Vec<u64> = sizes.collect::<Result<_, _>>().map_err(Arc::new)?;
        let all = sizes.iter().fold(0_u64, |all, size| all.saturating_add(*size));
        self.make_room(all).map_err(Arc::new)?;
        let mut values = Vec::with_capacity(operands.len());
        for (id, _) in operands {
            values.push(self.value(*id)?);
        }
        let made = self.recording.record(op, &values).map_err(Arc::new)?;
        Ok(made.into_iter().zip(sizes).collect())
    }

    /// Returns a client's tensor as a value of the recording.
    fn value(&mut self, id: u64) -> Result<usize, Arc<Error>> {
        match self.slots.get(&id) {
            None => Err(Arc::new(Error::UnknownTensor { id })),
            Some(TensorState::Failed(error)) => Err(Arc::clone(error)),
            Some(TensorState::Value(value, _)) => Ok(*value),
            Some(TensorState::There(tensor, _)) => match self.values.get(&id) {
                Some(value) => Ok(*value),
                None => {
                    let value = self.recording.input(tensor.clone());
                    self.values.insert(id, value);
                    Ok(value)
                }
            },
        }
    }

    /// Runs the recorded operations. Errors are stored with the tensors that they affect.
    fn run(&mut self) -> Result<(), Error> {
        let recording = std::mem::take(&mut self.recording);
        self.values.clear();
        (self.pending, self.held) = (0, 0);
        let mut owners: Vec<(usize, u64)> = Vec::new();
        for (id, slot) in &self.slots {
            if let TensorState::Value(value, _) = slot {
                owners.push((*value, *id));
            }
        }
        owners.sort_unstable();
        let mut wanted: Vec<usize> = owners.iter().map(|(value, _)| *value).collect();
        wanted.dedup();
        if wanted.is_empty() {
            return Ok(());
        }
        let (made, error) = match self.computed(recording, wanted) {
            Ok(made) => (made, None),
            Err(error) => (HashMap::new(), Some(Arc::new(error))),
        };
        let mut first_error = error.clone();
        for (value, id) in owners {
            let lost = || Arc::new(Error::Protocol(format!("value {value} was not computed")));
            let slot = match (made.get(&value), &error) {
                (Some(Ok(tensor)), _) => TensorState::There(tensor.clone(), tensor.len_bytes() as u64),
                (Some(Err(error)), _) | (None, Some(error)) => TensorState::Failed(Arc::clone(error)),
                (None, None) => TensorState::Failed(lost()),
            };
            if let TensorState::Failed(error) = &slot {
                first_error.get_or_insert_with(|| Arc::clone(error));
            }
            self.replace(id, slot);
        }
        match first_error {
            Some(error) => Err((*error).clone()),
            None => Ok(()),
        }
    }

    fn computed(
        &mut self,
        recording: Recording,
        wanted: Vec<usize>,
    ) -> Result<HashMap<usize, Result<Tensor, Arc<Error>>>, Error> {
        let before = self.plans.made;
        let Run { lowered, inputs } = self.plans.find(recording, wanted)?;
        let mut made: HashMap<usize, Result<Tensor, Arc<Error>>> = HashMap::new();
        made.extend(lowered.failed.iter().map(|(value, error)| (*value, Err(Arc::clone(error)))));
        if let Some(graph) = &lowered.graph {
            let inputs: Vec<&Tensor> = inputs.iter().collect();
            let op = RunGraph::new(graph, &inputs);
            let Outcome { output, report } = self.runtime.run_with(op, self.options.clone()).with_report().wait()?;
            self.tally.ran(&report, self.plans.made > before);
            made.extend(lowered.outputs.iter().zip(output).map(|(value, tensor)| (*value, Ok(tensor))));
        }
        Ok(made)
    }

    fn read(&mut self, tensor: &TensorIr) -> Result<TensorData, Error> {
        let id = tensor.id.value();
        if matches!(self.slots.get(&id), Some(TensorState::Value(..))) {
            // Failures are stored with the affected tensors; the wanted tensor may exist
            // nevertheless.
            let _ = self.run();
        }
        let there = match self.slots.get(&id) {
            Some(TensorState::There(there, _)) => there.clone(),
            Some(TensorState::Failed(error)) => return Err((**error).clone()),
            Some(TensorState::Value(..)) | None => return Err(Error::UnknownTensor { id }),
        };
        if tensor.status == TensorStatus::ReadWrite {
            self.forget(id);
        }
        let there = match there.location() {
            Location::Host => there,
            Location::Device(_) => self.runtime.run(Transfer::to_host(&there)).wait()?,
        };
        convert::to_burn(&there, tensor.dtype)
    }

    /// Stores a tensor that the client sends with its elements.
    fn given(&mut self, id: TensorId, data: &TensorData) -> Result<(), Error> {
        let slot = match convert::from_burn(data) {
            Ok(tensor) => {
                let bytes = tensor.len_bytes() as u64;
                self.make_room(bytes)?;
                TensorState::There(tensor, bytes)
            }
            Err(error) => TensorState::Failed(Arc::new(error)),
        };
        self.put(id.value(), slot)
    }

    fn random(&mut self, desc: &RandomOpIr) -> Result<(), Error> {
        self.tally.host_op();
        let bytes = convert::len_bytes(desc.out.dtype, &desc.out.shape);
        let made = bytes.and_then(|bytes| {
            self.make_room(bytes)?;
            let rng = self.rng.get_or_insert_with(burn_std::rand::get_seeded_rng);
            convert::random(&desc.out.shape, desc.out.dtype, desc.distribution, rng)
        });
        let slot = match made {
            Ok(tensor) => {
                let bytes = tensor.len_bytes() as u64;
                TensorState::There(tensor, bytes)
            }
            Err(error) => TensorState::Failed(Arc::new(error)),
        };
        self.put(desc.out.id.value(), slot)
    }

    fn alias(&mut self, new_id: TensorId, id: TensorId) -> Result<(), Error> {
        self.make_room(self.slots.get(&id.value()).map_or(0, TensorState::bytes))?;
        let slot = match self.slots.get(&id.value()) {
            Some(TensorState::There(tensor, bytes)) => TensorState::There(tensor.clone(), *bytes),
            Some(TensorState::Value(value, bytes)) => TensorState::Value(*value, *bytes),
            Some(TensorState::Failed(error)) => TensorState::Failed(Arc::clone(error)),
            None => TensorState::Failed(Arc::new(Error::UnknownTensor { id: id.value() })),
        };
        self.put(new_id.value(), slot)
    }

    fn register(&mut self, id: GraphId, ops: Vec<OperationIr>) -> Result<Arc<Vec<OperationIr>>, Error> {
        self.registered_ops = self.registered_ops.saturating_add(ops.len());
        if self.registered.len() >= REGISTERED_MAX || self.registered_ops > REGISTERED_OPS_MAX {
            let (limit, got) = (REGISTERED_OPS_MAX as u64, self.registered_ops as u64);
            return Err(Error::Limit { what: "operations in registered graphs", limit, got });
        }
        let ops = Arc::new(ops);
        self.registered.insert(id, Arc::clone(&ops));
        Ok(ops)
    }

    /// Runs the operations of a registered graph with the tensors, sizes and numbers of this call.
    fn replay(&mut self, ops: &[OperationIr], bindings: &GraphBindings) -> Result<(), Error> {
        let mut ids: HashMap<u64, u64> =
            bindings.tensors.iter().map(|(own, bound)| (own.value(), bound.value())).collect();
        for op in ops {
            let mut op = op.clone();
            let mut binder = Binder { ids: &mut ids, next: &mut self.intermediate, bindings };
            op.visit_mut(&mut binder);
            self.operation(op)?;
        }
        Ok(())
    }

    /// Checks that `bytes` more fit. Tensors that only the recording still holds are released by
    /// running the recording.
    fn make_room(&mut self, bytes: u64) -> Result<(), Error> {
        let limit = self.limits.memory_bytes_max;
        if self.held > 0 && self.bytes.saturating_add(self.held).saturating_add(bytes) > limit {
            let _ = self.run();
        }
        let got = self.bytes.saturating_add(self.held).saturating_add(bytes);
        match got <= limit {
            true => Ok(()),
            false => Err(Error::Limit { what: "bytes of a session's tensors", limit, got }),
        }
    }

    fn put(&mut self, id: u64, slot: TensorState) -> Result<(), Error> {
        self.forget(id);
        if self.slots.len() >= TENSORS_MAX {
            let (limit, got) = (TENSORS_MAX as u64, self.slots.len() as u64 + 1);
            return Err(Error::Limit { what: "tensors of a session", limit, got });
        }
        self.pending += usize::from(matches!(slot, TensorState::Value(..)));
        self.bytes += slot.bytes();
        self.slots.insert(id, slot);
        Ok(())
    }

    /// Replaces the state of a known tensor.
    fn replace(&mut self, id: u64, slot: TensorState) {
        self.bytes += slot.bytes();
        if let Some(old) = self.slots.insert(id, slot) {
            self.bytes -= old.bytes();
        }
    }

    fn forget(&mut self, id: u64) {
        let is_held = self.values.remove(&id).is_some();
        if let Some(old) = self.slots.remove(&id) {
            self.bytes -= old.bytes();
            self.held += if is_held { old.bytes() } else { 0 };
            self.pending -= usize::from(matches!(old, TensorState::Value(..)));
        }
    }
}

/// Puts the tensors, sizes, numbers and ranges of one call into an operation of a registered graph.
struct Binder<'a> {
    ids: &'a mut HashMap<u64, u64>,
    next: &'a mut u64,
    bindings: &'a GraphBindings,
}

impl IrVisitorMut for Binder<'_> {
    fn visit_tensor_mut(&mut self, tensor: &mut TensorIr) {
        let id = self.ids.entry(tensor.id.value()).or_insert_with(|| {
            *self.next += 1;
            INTERMEDIATE | *self.next
        });
        tensor.id = TensorId::new(*id);
        for dim in tensor.shape.iter_mut() {
            *dim = self.bindings.shapes.get(*dim).copied().unwrap_or(*dim);
        }
    }

    fn visit_scalar_mut(&mut self, scalar: &mut ScalarIr) {
        if let ScalarIr::UInt(place) = *scalar
            && let Some(value) = usize::try_from(place).ok().and_then(|place| self.bindings.scalars.get(place))
        {
            *scalar = *value;
        }
    }

    fn visit_range_mut(&mut self, range: &mut Slice) {
        let place = usize::try_from(range.start).ok();
        if let Some(bound) = place.and_then(|place| self.bindings.ranges.get(place)) {
            *range = *bound;
        }
    }
}

fn answered(id: RequestId, content: TaskResponseContent) -> TaskResponse {
    TaskResponse { content, id }
}

fn failure(error: Error) -> ExecutionError {
    ExecutionError::WithContext { reason: error.to_string() }
}

/// Returns the possible uses of an element type.
fn usage(dtype: BurnType) -> DTypeUsageSet {
    match convert::dtype(dtype) {
        Ok(_) => DTypeUsage::general(),
        Err(_) => DTypeUsageSet::empty(),
    }
}
