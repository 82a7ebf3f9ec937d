//! A complete backend outside Panoply's own crates: the abacus, an invented device that sorts
//! numbers and counts bytes.
//!
//! The abacus stands for any accelerator that you have a driver for. Its "driver" is a thread with
//! an input queue and an output queue, which is how most hardware looks from above: `submit` puts
//! work into the first, `poll` takes results from the second, and neither blocks for longer than it
//! was asked to. The device runs one of Panoply's own ops, `Sort` of f32. It also brings an op that
//! Panoply does not know, [`CountBytes`], with a [counter](OpenCounter) that lives on the device.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use panoply::backend::*;
use panoply::op::compute::{ComputeOp, Sort};
use panoply::{
    Api, Bytes, Capabilities, DType, Describe, DeviceId, DeviceInfo, DeviceKind, Domain, Error, Operation, Result,
    Tensor,
};

/// The API's name; the device is listed as `abacus:0`.
pub const ABACUS: Api = Api::new("abacus");

/// Makes a counter on the device.
#[derive(Clone, Debug, Default)]
pub struct OpenCounter;

/// Adds the bytes of a message to a counter. Returns the sums of all messages so far, one for each
/// byte value.
#[derive(Clone, Debug)]
pub struct CountBytes {
    /// The counter with the sums.
    pub counter: Object,
    /// The message whose bytes are counted.
    pub message: Bytes,
}

impl Describe for OpenCounter {
    fn name(&self) -> &'static str {
        "open_counter"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    parts!();
}

impl Describe for CountBytes {
    fn name(&self) -> &'static str {
        "count_bytes"
    }
    fn validate(&self) -> Result<()> {
        Ok(())
    }
    parts!(counter, message);
    /// Counting a message twice would be wrong, so no fallback may repeat the op.
    fn is_repeatable(&self) -> bool {
        false
    }
}

impl Operation for OpenCounter {
    type Output = Object;
    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }
    fn output(value: Value) -> Result<Object> {
        value.into_object()
    }
}

impl Operation for CountBytes {
    type Output = Tensor;
    fn into_op(self) -> Result<Op> {
        Op::extension(self)
    }
    fn output(value: Value) -> Result<Tensor> {
        value.into_tensor()
    }
}

/// Finds and opens the device.
pub struct AbacusBackend;

impl Backend for AbacusBackend {
    fn api(&self) -> Api {
        ABACUS
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let mut info = DeviceInfo::new(DeviceId { api: ABACUS, index: 0 }, "Example abacus", DeviceKind::Fpga);
        // The device works in host memory. Its inputs need no copies, and no `Transfer` has to be
        // implemented.
        info.shares_host_memory = true;
        info.capabilities = Capabilities { domains: vec![Domain::Compute, Domain::Extension], features: Vec::new() };
        Ok(vec![info])
    }

    fn supports(&self, _device: &DeviceInfo, op: &Op) -> Support {
        match op {
            Op::Compute(ComputeOp::Sort(op)) if op.input.dtype() == DType::F32 => match WorkItem::sort(op) {
                Some(_) => Support::Yes,
                None => Support::No("it sorts contiguous lines along the last axis".to_owned()),
            },
            Op::Extension(op) if op.downcast_ref::<OpenCounter>().is_some() => Support::Yes,
            Op::Extension(op) if op.downcast_ref::<CountBytes>().is_some() => Support::Yes,
            op => Support::unknown(op),
        }
    }

    fn open(&self, device: &DeviceInfo, _options: &OpenOptions) -> Result<Box<dyn Engine>> {
        let (work, inbox) = channel();
        let (outbox, answers) = channel();
        let driver = std::thread::Builder::new().name("abacus".to_owned()).spawn(move || drive(&inbox, &outbox));
        driver.map_err(|error| Error::DeviceUnavailable { device: device.id, reason: error.to_string() })?;
        let counters = ObjectTable::new(device.id);
        Ok(Box::new(AbacusEngine { info: device.clone(), work, answers, under_way: VecDeque::new(), counters }))
    }
}

/// The work items of the device.
enum WorkItem {
    /// Sorts lines of this length.
    Sort { values: Vec<f32>, line: usize, descending: bool },
    /// A result that the engine has already. It goes through the queue to keep its place in the
    /// order.
    Known(Box<Result<Value>>),
}

impl WorkItem {
    fn sort(op: &Sort) -> Option<WorkItem> {
        let last = op.axis + 1 == op.input.shape().rank();
        let values = op.input.as_slice::<f32>().ok().filter(|_| last)?.to_vec();
        Some(WorkItem::Sort { values, line: op.input.shape()[op.axis].max(1), descending: op.descending })
    }
}

/// The device itself: takes work in order and returns results in order.
fn drive(inbox: &Receiver<(Vec<usize>, WorkItem)>, outbox: &Sender<Result<Value>>) {
    while let Ok((shape, work)) = inbox.recv() {
        let answer = match work {
            WorkItem::Known(answer) => *answer,
            WorkItem::Sort { mut values, line, descending } => {
                // NaN counts as larger than every number.
                let rising = |a: &f32, b: &f32| a.partial_cmp(b).unwrap_or_else(|| a.is_nan().cmp(&b.is_nan()));
                let order = |a: &f32, b: &f32| if descending { rising(b, a) } else { rising(a, b) };
                values.chunks_mut(line).for_each(|line| line.sort_by(order));
                Tensor::from_vec(values, shape).map(Value::Tensor)
            }
        };
        if outbox.send(answer).is_err() {
            return;
        }
    }
}

/// The opened device. One thread owns it; the counters are in its table only.
struct AbacusEngine {
    info: DeviceInfo,
    work: Sender<(Vec<usize>, WorkItem)>,
    answers: Receiver<Result<Value>>,
    under_way: VecDeque<Item>,
    counters: ObjectTable<[u32; 256]>,
}

impl AbacusEngine {
    fn prepare(&mut self, op: &Op) -> Result<WorkItem> {
        match op {
            Op::Compute(ComputeOp::Sort(sort)) => WorkItem::sort(sort).ok_or_else(|| Support::unknown(op).refusal(op)),
            Op::Extension(extension) => {
                if let Some(CountBytes { counter, message }) = extension.downcast_ref() {
                    let sums = self.counters.get_mut(counter)?;
                    message.as_slice()?.iter().for_each(|byte| sums[usize::from(*byte)] += 1);
                    return Ok(WorkItem::Known(Box::new(
                        Tensor::from_slice(sums.as_slice(), [256]).map(Value::Tensor),
                    )));
                }
                // The op serves as the recipe: if the device is lost, the worker opens a new
                // counter, which starts at zero.
                let counter = self.counters.insert("counter", [0; 256], Some(op))?;
                Ok(WorkItem::Known(Box::new(Ok(Value::Object(counter)))))
            }
            op => Err(Support::unknown(op).refusal(op)),
        }
    }
}

impl Engine for AbacusEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.counters.collect();
        for item in batch.drain(..) {
            let work = self.prepare(&item.op).unwrap_or_else(|error| WorkItem::Known(Box::new(Err(error))));
            let shape = match &item.op {
                Op::Compute(ComputeOp::Sort(op)) => op.input.shape().to_vec(),
                _ => Vec::new(),
            };
            // If the device is gone, `poll` reports it.
            let _ = self.work.send((shape, work));
            self.under_way.push_back(item);
        }
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        self.counters.collect();
        let mut wait = if self.under_way.is_empty() { Duration::ZERO } else { wait_max };
        while let Some(item) = self.under_way.pop_front() {
            match self.answers.recv_timeout(wait) {
                Ok(result) => finished.push(FinishedOp::alone(item, result)),
                Err(std::sync::mpsc::RecvTimeoutError::Timeout) => {
                    self.under_way.push_front(item);
                    break;
                }
                Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
                    let (device, reason) = (self.info.id, "its thread has ended".to_owned());
                    finished.push(FinishedOp::alone(item, Err(Error::DeviceLost { device, reason })));
                }
            }
            wait = Duration::ZERO;
        }
        self.under_way.len()
    }

    fn memory(&mut self) -> MemoryStats {
        MemoryStats { lent_bytes: (self.counters.len() * size_of::<[u32; 256]>()) as u64, ..MemoryStats::default() }
    }

    fn health(&mut self) -> Health {
        self.counters.collect();
        Health { temperature_celsius: Some(21.0), ..Health::default() }
    }
}
