//! One opened virtual device: computes with the answering engine, then does what the script says.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::clock::Clock;
use panoply_core::op::compute::{ComputeOp, Transfer};
use panoply_core::{
    Describe, DeviceInfo, Engine, Error, Finished, Health, HostBufferMut, Item, Location, MemoryStats, Op, Result,
    Tensor, Value,
};

use super::backend::VirtualControl;
use super::memory::VirtualMemory;
use super::script::Fault;
use crate::check::run_one;

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
    done: Finished,
    twice: bool,
}

impl VirtualEngine {
    pub(super) fn new(
        info: DeviceInfo,
        answers: Box<dyn Engine>,
        control: Arc<VirtualControl>,
        clock: Arc<dyn Clock>,
    ) -> VirtualEngine {
        let memory = VirtualMemory::new(info.id, Arc::clone(&control));
        let under_way = VecDeque::new();
        VirtualEngine { info, answers, control, clock, memory, under_way, free_at: None, lost: false }
    }

    fn start(&mut self, item: Item) {
        let fault = self.control.next_fault();
        let mut extra = Duration::ZERO;
        match fault {
            Some(Fault::Panic) => panic!("the script says that the engine panics"),
            Some(Fault::Forget) => return,
            Some(Fault::Block(time)) => self.clock.sleep(time),
            Some(Fault::Slow(time)) => extra = time,
            Some(Fault::Lost) => self.lost = true,
            _ => {}
        }
        let (result, bytes_moved) = self.result(&item.op, fault);
        let start = self.free_at.map_or_else(|| self.clock.now(), |free_at| free_at.max(self.clock.now()));
        let finish = start + self.control.script.latency + extra;
        self.free_at = Some(finish);
        let due = (fault != Some(Fault::Hang)).then_some(finish);
        let done = Finished { bytes_moved, ..Finished::alone(item, result) };
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
        op.for_each_input_mut(&mut |tensor| {
            if tensor.location() == Location::Host {
                *bytes_moved += tensor.len_bytes() as u64;
            }
            match self.memory.load(tensor) {
                Ok(loaded) => *tensor = loaded,
                Err(error) => failure = Some(error),
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
        *bytes_moved += value.tensors().map(|tensor| tensor.len_bytes() as u64).sum::<u64>();
        Ok(value)
    }
}

impl Engine for VirtualEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        for item in batch.drain(..) {
            self.start(item);
        }
    }

    fn poll(&mut self, finished: &mut Vec<Finished>, wait_max: Duration) -> usize {
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
                    finished.push(Finished::alone(again, done.result.clone()));
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
        Health { fault, ..Health::default() }
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
