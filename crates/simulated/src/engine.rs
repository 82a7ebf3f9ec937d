//! One opened virtual device: computes with the answering engine, then does what the script says.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::clock::Clock;
use panoply_core::op::compute::{ComputeOp, Transfer};
use panoply_core::{
    BatchKey, Bytes, Describe, DeviceInfo, Engine, Error, FinishedOp, Health, HostBufferMut, Item, Location,
    MemoryLimits, MemoryStats, MemoryUse, Op, PartMut, Result, Tensor, Value,
};

use crate::backend::VirtualControl;
use crate::memory::VirtualMemory;
use crate::run::run_one;
use crate::script::Fault;

pub(super) struct VirtualEngine {
    info: DeviceInfo,
    answers: Box<dyn Engine>,
    control: Arc<VirtualControl>,
    clock: Arc<dyn Clock>,
    memory: VirtualMemory,
    under_way: VecDeque<Flight>,
    free_at: Option<Instant>,
    lost: bool,
}

struct Flight {
    /// `None`: never.
    due: Option<Instant>,
    done: FinishedOp,
    twice: bool,
}

impl VirtualEngine {
    pub(super) fn new(
        info: DeviceInfo,
        answers: Box<dyn Engine>,
        control: Arc<VirtualControl>,
        clock: Arc<dyn Clock>,
        limits: MemoryLimits,
    ) -> VirtualEngine {
        let memory = VirtualMemory::new(info.id, Arc::clone(&control), limits.device_bytes_max);
        let under_way = VecDeque::new();
        VirtualEngine { info, answers, control, clock, memory, under_way, free_at: None, lost: false }
    }

    /// Starts one item. `joined`: it runs together with the one before it, in no time of its own.
    fn start(&mut self, item: Item, joined: bool) {
        let fault = self.control.next_fault();
        let script = &self.control.script;
        let mut extra = script.per_kib.mul_f64(item.op.input_bytes() as f64 / 1024.0);
        extra += script.cost.map_or(Duration::ZERO, |cost| cost(&item.op));
        extra += self.control.warm(item.op.name());
        match fault {
            Some(Fault::Panic) => panic!("the script says that the engine panics"),
            Some(Fault::Forget) => return,
            Some(Fault::Block(time)) => self.clock.sleep(time),
            Some(Fault::Slow(time)) => extra += time,
            Some(Fault::Lost) => self.lost = true,
            _ => {}
        }
        let (result, bytes_moved) = self.result(&item.op, fault);
        let start = self.free_at.map_or_else(|| self.clock.now(), |free_at| free_at.max(self.clock.now()));
        let transferred = self.control.script.link.map(|link| link.time(bytes_moved));
        let own = if joined { Duration::ZERO } else { self.control.script.latency + extra };
        let finish = start + own + transferred.unwrap_or_default();
        self.free_at = Some(finish);
        let due = (fault != Some(Fault::Hang)).then_some(finish);
        let done = FinishedOp { bytes_moved, transferred, ..FinishedOp::alone(item, result) };
        self.under_way.push_back(Flight { due, done, twice: fault == Some(Fault::Twice) });
    }

    /// The op's result, and the bytes that crossed between host and device for it.
    fn result(&mut self, op: &Op, fault: Option<Fault>) -> (Result<Value>, u64) {
        let device = self.info.id;
        if self.lost {
            let reason = "the script says that the device is lost".to_owned();
            return (Err(Error::DeviceLost { device, reason }), 0);
        }
        match fault {
            Some(Fault::Error) => {
                let reason = "the script says that the op fails".to_owned();
                (Err(Error::DeviceFault { device, reason }), 0)
            }
            Some(Fault::OutOfMemory) => {
                let (asked, place) = (op.input_bytes() as u64, device.to_string());
                (Err(Error::OutOfMemory { place, asked, free: 0, largest: 0 }), 0)
            }
            _ => {
                let mut bytes_moved = 0;
                let result = self.compute(op, &mut bytes_moved);
                let wrong = fault == Some(Fault::WrongAnswer);
                (if wrong { result.and_then(|value| value.try_map(flip_one_bit)) } else { result }, bytes_moved)
            }
        }
    }

    fn compute(&mut self, op: &Op, bytes_moved: &mut u64) -> Result<Value> {
        self.memory.collect();
        let mut op = op.clone();
        let mut failure = None;
        op.for_each_part_mut(&mut |part| {
            if let Err(error) = self.bring(part, bytes_moved) {
                failure = Some(error);
            }
        });
        if let Some(error) = failure {
            return Err(error);
        }
        let stay = match &op {
            Op::Compute(ComputeOp::Transfer(Transfer { to, .. })) => *to == Location::Device(self.info.id),
            _ => self.control.script.resident,
        };
        let value = run_one(self.answers.as_mut(), op)?;
        if stay {
            return value.try_map(|tensor| self.memory.store(&tensor));
        }
        if !self.control.script.in_host_memory {
            *bytes_moved += value.len_bytes() as u64;
        }
        Ok(value)
    }
}

impl VirtualEngine {
    /// Has a part be where the answering engine reads it, and counts what crossed the link for it.
    fn bring(&self, part: PartMut<'_>, bytes_moved: &mut u64) -> Result<()> {
        let is_in_reach = |location: Location| location == Location::Host;
        let crossed = |len: usize| if self.control.script.in_host_memory { 0 } else { len as u64 };
        match part {
            PartMut::Tensor(tensor) if is_in_reach(tensor.location()) => *bytes_moved += crossed(tensor.len_bytes()),
            PartMut::Tensor(tensor) => *tensor = self.memory.load(tensor)?,
            PartMut::Bytes(bytes) if is_in_reach(bytes.location()) => *bytes_moved += crossed(bytes.len()),
            PartMut::Bytes(bytes) => *bytes = Bytes::from_tensor(&self.memory.load(&bytes.to_tensor()?)?)?,
            PartMut::Object(_) | PartMut::Sink(_) => {}
        }
        Ok(())
    }
}

impl Engine for VirtualEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        if !self.control.script.fused {
            batch.drain(..).for_each(|item| self.start(item, false));
            return;
        }
        let first = self.under_way.len();
        let mut sizes = HashMap::new();
        for item in batch.drain(..) {
            let key = item.op.batch_key();
            let size: &mut u32 = sizes.entry(key.unwrap_or(BatchKey(item.token))).or_default();
            *size += 1;
            let joined = key.is_some() && *size > 1;
            self.start(item, joined);
        }
        for flight in self.under_way.iter_mut().skip(first) {
            let key = flight.done.op.batch_key();
            flight.done.batch_size = key.and_then(|key| sizes.get(&key).copied()).unwrap_or(1);
        }
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        let now = self.clock.now();
        if let Some(Flight { due, .. }) = self.under_way.front() {
            let wait = due.map_or(wait_max, |due| due.saturating_duration_since(now).min(wait_max));
            if !wait.is_zero() {
                self.clock.sleep(wait);
            }
        }
        let now = self.clock.now();
        while self.under_way.front().is_some_and(|flight| flight.due.is_some_and(|due| due <= now)) {
            if let Some(Flight { done, twice, .. }) = self.under_way.pop_front() {
                if twice {
                    let again = Item { token: done.token, op: done.op.clone() };
                    finished.push(FinishedOp::alone(again, done.result.clone()));
                }
                finished.push(done);
            }
        }
        self.memory.collect();
        self.under_way.len()
    }

    fn memory(&mut self) -> MemoryStats {
        MemoryStats { lent_bytes: self.memory.live_bytes(), ..MemoryStats::default() }
    }

    fn health(&mut self) -> Health {
        let reason = "the script says that the device is lost".to_owned();
        let fault = self.lost.then_some(Error::DeviceLost { device: self.info.id, reason });
        let vitals = self.control.vitals.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
        self.memory.collect();
        let live_bytes = self.memory.live_bytes();
        let own = self.control.script.memory_bytes.map(|total| MemoryUse::new(total, total.saturating_sub(live_bytes)));
        Health { fault, memory: vitals.memory.or(own), ..vitals }
    }

    fn warm_up(&mut self, op: &Op) {
        let time = self.control.warm(op.name());
        self.clock.sleep(time);
    }
}

/// The same tensor with the highest bit of its last byte flipped.
fn flip_one_bit(tensor: Tensor) -> Result<Tensor> {
    let mut buffer = HostBufferMut::zeroed(tensor.len_bytes())?;
    buffer.bytes_mut().copy_from_slice(tensor.contiguous()?.as_bytes()?);
    if let Some(last) = buffer.bytes_mut().last_mut() {
        *last ^= 0x80;
    }
    Tensor::from_host(tensor.dtype(), *tensor.shape(), buffer.freeze())
}
