//! One opened device. `submit` compiles new programs and starts them. The plugin runs them
//! asynchronously, and `poll` returns completed ops in the order of submission.

use std::collections::{HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::graph::WeakGraph;
use panoply_core::op::compute::{ComputeOp, Transfer};
use panoply_core::op::graph::{GraphOp, RunGraph};
use panoply_core::{
    DType, DeviceInfo, Engine, Error, FinishedOp, Health, HostBufferMut, Item, Location, MemoryStats, MemoryUse, Op,
    Part, Result, Shape, Support, Tensor, Value,
};

use crate::cache::{ProgramCounts, Programs};
use crate::client::{Buffer, Client, Device};
use crate::event::{Pending, WakeSignal};
use crate::memory::DeviceMemory;
use crate::ops;
use crate::plugin::{PjrtError, code};
use crate::program::{Argument, Program, compact, compact_dims, is_whole};
use crate::warm::SignatureSet;

/// How long a dropped engine waits for copies in flight.
const FAREWELL: Duration = Duration::from_secs(5);
/// Number of graphs with constants on the device at which constants of dropped graphs are removed.
const CONSTANTS_SWEEP: usize = 64;

/// One opened device.
pub struct PjrtEngine {
    info: DeviceInfo,
    client: Arc<Client>,
    device: Device,
    bell: Arc<WakeSignal>,
    programs: Programs,
    /// The ops with compiled programs, shared with callers.
    warm: Arc<SignatureSet>,
    memory: DeviceMemory,
    /// Constants of graphs, by graph and node.
    constants: HashMap<(u64, usize), Rc<Buffer>>,
    graphs: HashMap<u64, WeakGraph>,
    running: VecDeque<OpInFlight>,
}

/// An op in flight.
struct OpInFlight {
    item: Item,
    answer: OpAnswer,
    /// Events that must complete before the answer is valid.
    pending: Vec<Pending>,
    /// Host tensors that the plugin reads until then.
    held: Vec<Tensor>,
    checks: Vec<PendingCheck>,
    bytes_moved: u64,
    began: Instant,
}

/// The result of an op.
#[allow(clippy::large_enum_variant)] // There are few at a time, and each lives for as long as its op.
enum OpAnswer {
    Known(Result<Value>),
    /// A host tensor that is being written.
    Download {
        target: HostBufferMut,
        dtype: DType,
        shape: Shape,
    },
}

/// Two numbers that are being downloaded, and the check that interprets them.
struct PendingCheck {
    numbers: HostBufferMut,
    check: ops::Check,
    /// The node as text, for error messages.
    node: Option<String>,
}

/// The state of an op while it is started.
#[derive(Default)]
struct StartedOp {
    pending: Vec<Pending>,
    held: Vec<Tensor>,
    checks: Vec<PendingCheck>,
    bytes_moved: u64,
}

impl PjrtEngine {
    pub(crate) fn new(
        info: DeviceInfo,
        client: Arc<Client>,
        device: Device,
        programs: Programs,
        warm: Arc<SignatureSet>,
    ) -> PjrtEngine {
        let memory = DeviceMemory::new(info.id);
        PjrtEngine {
            info,
            client,
            device,
            bell: Arc::default(),
            programs,
            warm,
            memory,
            constants: HashMap::new(),
            graphs: HashMap::new(),
            running: VecDeque::new(),
        }
    }

    /// Where the programs so far came from.
    pub fn counts(&self) -> ProgramCounts {
        self.programs.counts
    }

    fn start(&mut self, op: &Op, started: &mut StartedOp) -> Result<OpAnswer> {
        match op {
            Op::Compute(ComputeOp::Transfer(transfer)) => self.transfer(op, transfer, started),
            Op::Graph(GraphOp::RunGraph(graph)) => {
                let program = Program::of_graph(graph)?;
                let tensors = self.run(&program, graph.inputs(), Some(graph), started)?;
                self.warm.insert(op);
                Ok(OpAnswer::Known(Ok(Value::List(tensors.into_iter().map(Part::Tensor).collect()))))
            }
            op => {
                if let no @ Support::No(_) = ops::supports(&self.info, op) {
                    return Err(no.refusal(op));
                }
                let tensors = self.run_op(op, started)?;
                Ok(OpAnswer::Known(Ok(value_of(tensors))))
            }
        }
    }

    fn run_op(&mut self, op: &Op, started: &mut StartedOp) -> Result<Vec<Tensor>> {
        let program = self.program_of(op)?;
        let mut inputs = Vec::new();
        op.for_each_tensor(&mut |tensor| inputs.push(tensor.clone()));
        let tensors = self.run(&program, &inputs, None, started)?;
        self.warm.insert(op);
        Ok(tensors)
    }

    fn program_of(&self, op: &Op) -> Result<Program> {
        let memory = &self.memory;
        Program::of_op(op, &|tensor| match tensor.location() {
            Location::Host => Ok(compact_dims(tensor)),
            Location::Device(_) => memory.stored(tensor).map(|stored| stored.dims.clone()),
        })
    }

    /// Starts a program on `inputs`.
    fn run(
        &mut self,
        program: &Program,
        inputs: &[Tensor],
        graph: Option<&RunGraph>,
        started: &mut StartedOp,
    ) -> Result<Vec<Tensor>> {
        let executable = self.programs.get(program).map_err(|error| self.error(error))?;
        let mut brought: Vec<(usize, Rc<Buffer>)> = Vec::new();
        let mut resident: Vec<(usize, Tensor)> = Vec::new();
        for (place, argument) in program.arguments.iter().enumerate() {
            match (*argument, graph) {
                (Argument::Constant(node), Some(graph)) => {
                    brought.push((place, self.constant(graph, node, started)?));
                }
                (Argument::Input(input), _) => match self.argument(&inputs[input], graph.is_some(), started)? {
                    ArgumentBuffer::New(buffer) => brought.push((place, Rc::new(buffer))),
                    ArgumentBuffer::There(tensor) => resident.push((place, tensor)),
                },
                (Argument::Constant(_), None) => {
                    return Err(Error::invalid("a program's argument", "an input", "a constant without a graph"));
                }
            }
        }
        let mut list: Vec<(usize, &Buffer)> = brought.iter().map(|(place, buffer)| (*place, &**buffer)).collect();
        for (place, tensor) in &resident {
            list.push((*place, &self.memory.stored(tensor)?.buffer));
        }
        list.sort_by_key(|(place, _)| *place);
        let list: Vec<&Buffer> = list.into_iter().map(|(_, buffer)| buffer).collect();
        let count = program.outputs.len() + program.checks.len();
        let ran = executable.run(self.device, &list, count, &self.bell);
        let (made, pending) = ran.map_err(|error| self.error(error))?;
        started.pending.push(pending);
        self.collect_outputs(program, graph, made, started)
    }

    fn collect_outputs(
        &mut self,
        program: &Program,
        graph: Option<&RunGraph>,
        made: Vec<Buffer>,
        started: &mut StartedOp,
    ) -> Result<Vec<Tensor>> {
        let mut made = made.into_iter();
        let mut tensors = Vec::with_capacity(program.outputs.len());
        for ((dtype, shape), buffer) in program.outputs.iter().zip(made.by_ref()) {
            tensors.push(self.memory.tensor(*dtype, *shape, buffer)?);
        }
        for ((node, check), buffer) in program.checks.iter().zip(made) {
            let mut numbers = HostBufferMut::zeroed(2 * size_of::<u32>())?;
            let room = numbers.bytes_mut();
            let (target, size) = (room.as_mut_ptr(), room.len());
            // SAFETY: the buffer has space for two numbers of four bytes. It stays alive until the
            // copy is done, here or in `Drop`.
            let pending = unsafe { buffer.download(1, target, size, &self.bell) }.map_err(|error| self.error(error))?;
            started.pending.push(pending);
            let node = node.zip(graph).map(|(node, graph)| graph.graph().node_text(node));
            started.checks.push(PendingCheck { numbers, check: check.clone(), node });
        }
        Ok(tensors)
    }

    /// Provides an input in the form that the program expects: contiguous for a graph, or the
    /// tensor's own buffer for an op.
    fn argument(&mut self, tensor: &Tensor, is_whole_wanted: bool, started: &mut StartedOp) -> Result<ArgumentBuffer> {
        match tensor.location() {
            Location::Host => {
                let host = if is_whole_wanted { tensor.contiguous()? } else { compact(tensor)? };
                self.upload(&host, started).map(ArgumentBuffer::New)
            }
            Location::Device(_) if is_whole_wanted => {
                let stored = self.memory.stored(tensor)?;
                match is_whole(tensor) && stored.dims == tensor.shape().dims() {
                    true => Ok(ArgumentBuffer::There(tensor.clone())),
                    false => self.copied(tensor, started).map(ArgumentBuffer::There),
                }
            }
            Location::Device(_) => Ok(ArgumentBuffer::There(tensor.clone())),
        }
    }

    /// Copies a device tensor to a contiguous buffer of the tensor's own shape.
    fn copied(&mut self, tensor: &Tensor, started: &mut StartedOp) -> Result<Tensor> {
        let copy = Op::Compute(ComputeOp::Transfer(Transfer::to_device(tensor, self.info.id)));
        let mut made = self.run_op(&copy, started)?;
        made.pop().ok_or_else(|| Error::invalid("a copy", "one tensor", "none"))
    }

    fn upload(&mut self, host: &Tensor, started: &mut StartedOp) -> Result<Buffer> {
        let uploaded = self.client.upload(self.device, host, &self.bell)?;
        let (buffer, pending) = uploaded.map_err(|error| self.error(error))?;
        started.pending.push(pending);
        started.held.push(host.clone());
        started.bytes_moved += host.len_bytes() as u64;
        Ok(buffer)
    }

    /// Returns a graph's constant on the device. It is uploaded once.
    fn constant(&mut self, graph: &RunGraph, node: usize, started: &mut StartedOp) -> Result<Rc<Buffer>> {
        let key = (graph.graph().id(), node);
        if let Some(buffer) = self.constants.get(&key) {
            return Ok(Rc::clone(buffer));
        }
        self.sweep(graph);
        let missing = || Error::invalid("a graph's constant", "a tensor", format!("none in node {node}"));
        let host = graph.graph().nodes()[node].constant().ok_or_else(missing)?.contiguous()?;
        let buffer = Rc::new(self.upload(&host, started)?);
        self.constants.insert(key, Rc::clone(&buffer));
        Ok(buffer)
    }

    /// Registers a graph, and removes the constants of dropped graphs.
    fn sweep(&mut self, graph: &RunGraph) {
        let id = graph.graph().id();
        if self.graphs.contains_key(&id) {
            return;
        }
        if self.graphs.len() >= CONSTANTS_SWEEP {
            self.forget_graphs();
        }
        self.graphs.insert(id, graph.graph().downgrade());
    }

    fn forget_graphs(&mut self) {
        let PjrtEngine { graphs, constants, .. } = self;
        graphs.retain(|_, graph| graph.is_alive());
        constants.retain(|(graph, _), _| graphs.contains_key(graph));
    }

    fn transfer(&mut self, op: &Op, transfer: &Transfer, started: &mut StartedOp) -> Result<OpAnswer> {
        let tensor = &transfer.input;
        let (dtype, shape) = (tensor.dtype(), *tensor.shape());
        let known = |tensor: Tensor| Ok(OpAnswer::Known(Ok(Value::Tensor(tensor))));
        match (tensor.location(), transfer.to) {
            (Location::Host, Location::Host) => known(tensor.contiguous()?),
            (Location::Host, Location::Device(to)) if to == self.info.id => {
                let buffer = self.upload(&tensor.contiguous()?, started)?;
                known(self.memory.tensor(dtype, shape, buffer)?)
            }
            (Location::Device(_), Location::Host) => {
                let whole = if is_whole(tensor) { tensor.clone() } else { self.copied(tensor, started)? };
                self.download(&whole, shape, started)
            }
            (Location::Device(_), Location::Device(to)) if to == self.info.id => {
                known(if is_whole(tensor) { tensor.clone() } else { self.copied(tensor, started)? })
            }
            _ => Err(Support::No("it moves tensors to itself and to the host".to_owned()).refusal(op)),
        }
    }

    fn download(&mut self, tensor: &Tensor, shape: Shape, started: &mut StartedOp) -> Result<OpAnswer> {
        let mut target = HostBufferMut::zeroed(tensor.len_bytes())?;
        let stored = self.memory.stored(tensor)?;
        if tensor.len_bytes() > 0 {
            let room = target.bytes_mut();
            let (address, size) = (room.as_mut_ptr(), room.len());
            // SAFETY: the target has space for all elements. It stays alive until the copy is done,
            // here or in `Drop`.
            let copy = unsafe { stored.buffer.download(stored.dims.len(), address, size, &self.bell) };
            started.pending.push(copy.map_err(|error| self.error(error))?);
        }
        started.held.push(tensor.clone());
        started.bytes_moved += tensor.len_bytes() as u64;
        Ok(OpAnswer::Download { target, dtype: tensor.dtype(), shape })
    }

    /// Converts a plugin's error for callers.
    fn error(&self, error: PjrtError) -> Error {
        let (device, reason) = (self.info.id, error.to_string());
        match error {
            PjrtError::Call { code: code::RESOURCE_EXHAUSTED, .. } => {
                let memory = self.client.memory(self.device).unwrap_or_default();
                let free = memory.limit_bytes.unwrap_or(0).saturating_sub(memory.used_bytes);
                Error::OutOfMemory { place: format!("{device}: {reason}"), asked: 0, free, largest: free }
            }
            PjrtError::Call { code: code::UNAVAILABLE | code::DATA_LOSS, .. } => Error::DeviceLost { device, reason },
            PjrtError::Call { code: code::UNIMPLEMENTED, .. } => Error::Unsupported { op: "program", reason },
            _ => Error::DeviceFault { device, reason },
        }
    }

    /// Finishes an op whose events have all completed.
    fn end(&mut self, running: OpInFlight) -> FinishedOp {
        let OpInFlight { item, answer, pending, held, checks, bytes_moved, began } = running;
        let failed = pending.iter().find_map(|pending| pending.outcome()?.err());
        if failed.is_some()
            && let Op::Graph(GraphOp::RunGraph(graph)) = &item.op
        {
            // The upload of a constant may have failed, so all constants of the graph will be
            // uploaded again.
            let id = graph.graph().id();
            self.constants.retain(|(graph, _), _| *graph != id);
        }
        let result = match (failed, answer) {
            (Some(error), OpAnswer::Known(Ok(_)) | OpAnswer::Download { .. }) => Err(self.error(error)),
            (_, OpAnswer::Known(result)) => result,
            (None, OpAnswer::Download { target, dtype, shape }) => {
                Tensor::from_host(dtype, shape, target.freeze()).map(Value::Tensor)
            }
        };
        let result = match checks.iter().find_map(PendingCheck::error) {
            Some(error) if result.is_ok() => Err(error),
            _ => result,
        };
        drop(held);
        FinishedOp { bytes_moved, device_time: Some(began.elapsed()), ..FinishedOp::alone(item, result) }
    }
}

/// An argument: just uploaded, or already on the device.
enum ArgumentBuffer {
    New(Buffer),
    There(Tensor),
}

impl PendingCheck {
    fn error(&self) -> Option<Error> {
        let bytes = self.numbers.bytes();
        let number = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let error = self.check.error([number(0), number(4)])?;
        Some(match &self.node {
            Some(node) => Error::Node { node: node.clone(), cause: Box::new(error) },
            None => error,
        })
    }
}

impl OpInFlight {
    fn is_done(&self) -> bool {
        self.pending.iter().all(|pending| pending.outcome().is_some())
    }
}

/// Converts an op's output tensors to its value: a tensor, a pair or a list.
fn value_of(tensors: Vec<Tensor>) -> Value {
    match <[Tensor; 2]>::try_from(tensors) {
        Ok([first, second]) => Value::Pair(first, second),
        Err(mut tensors) if tensors.len() == 1 => Value::Tensor(tensors.swap_remove(0)),
        Err(tensors) => Value::List(tensors.into_iter().map(Part::Tensor).collect()),
    }
}

impl Engine for PjrtEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        for item in batch.drain(..) {
            let (mut started, began) = (StartedOp::default(), Instant::now());
            let answer = self.start(&item.op, &mut started).unwrap_or_else(|error| OpAnswer::Known(Err(error)));
            let StartedOp { pending, held, checks, bytes_moved } = started;
            self.running.push_back(OpInFlight { item, answer, pending, held, checks, bytes_moved, began });
        }
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        let (until, before) = (Instant::now() + wait_max, finished.len());
        loop {
            while let Some(running) = self.running.pop_front_if(|running| running.is_done()) {
                finished.push(self.end(running));
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.running.is_empty() || finished.len() > before || left.is_zero() {
                break;
            }
            self.bell.wait(left);
        }
        self.memory.collect();
        self.running.len()
    }

    fn memory(&mut self) -> MemoryStats {
        self.memory.stats()
    }

    fn health(&mut self) -> Health {
        self.memory.collect();
        self.forget_graphs();
        let measured = |memory: crate::client::Memory| {
            memory.limit_bytes.map(|limit| MemoryUse::new(limit, limit.saturating_sub(memory.used_bytes)))
        };
        Health {
            memory: self.client.memory(self.device).and_then(measured),
            sensors_absent: Some("PJRT has no sensors".to_owned()),
            ..Health::default()
        }
    }

    fn warm_up(&mut self, op: &Op) {
        let program = match op {
            Op::Graph(GraphOp::RunGraph(graph)) => Program::of_graph(graph),
            op => self.program_of(op).map(Arc::new),
        };
        // A failure is reported when the op runs.
        if program.is_ok_and(|program| self.programs.get(&program).is_ok()) {
            self.warm.insert(op);
        }
    }
}

impl Drop for PjrtEngine {
    /// Waits for the plugin, which may still read or write host memory. After the timeout the
    /// memory is leaked.
    fn drop(&mut self) {
        let until = Instant::now() + FAREWELL;
        while self.running.iter().any(|running| !running.is_done()) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            self.bell.wait(left);
        }
        self.running.drain(..).filter(|running| !running.is_done()).for_each(std::mem::forget);
    }
}
