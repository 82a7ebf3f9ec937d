//! The CUDA engine: queues each item on the device and hands it back when the device has passed it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::error::panic_message;
use panoply_core::{
    DeviceInfo, Engine, Error, Finished, Health, HostBufferMut, Item, Location, MemoryStats, Op, Result, Tensor, Value,
};

use crate::context::{Context, Queued};
use crate::driver::{Event, Stream};
use crate::ops;
use crate::staging::SMALL_BYTES_MAX;
use crate::warm::Warm;

/// For how long after a submission the device is asked without a pause: a pause costs a short op more than it takes.
const EAGER_MAX: Duration = Duration::from_millis(2);
/// The pause between questions after that.
const PAUSE: Duration = Duration::from_micros(20);

/// One opened device.
pub(crate) struct CudaEngine {
    info: DeviceInfo,
    context: Context,
    warm: Arc<Warm>,
    flights: VecDeque<Flight>,
    /// When the last batch was submitted.
    submitted: Option<Instant>,
    lost: Option<Error>,
}

/// An item on the device.
struct Flight {
    item: Item,
    result: Result<Value>,
    marks: Option<Marks>,
    /// Whether its marks and its copies' are free once it has landed: of a group that shares them, the last one's are.
    keeps_marks: bool,
    queued: Queued,
    batch_size: u32,
}

#[derive(Clone, Copy)]
struct Marks {
    start: Event,
    stop: Event,
}

impl CudaEngine {
    /// An engine over a context.
    pub(crate) fn new(info: DeviceInfo, context: Context, warm: Arc<Warm>) -> CudaEngine {
        CudaEngine { info, context, warm, flights: VecDeque::new(), submitted: None, lost: None }
    }

    #[cfg(test)]
    pub(crate) fn context_mut(&mut self) -> &mut Context {
        &mut self.context
    }

    /// Queues items as one launch, or a single item by itself.
    fn start(&mut self, items: Vec<Item>) {
        if let Some(error) = self.lost.clone() {
            return self.refuse(items, &error);
        }
        let marks = match self.mark_start() {
            Ok(marks) => marks,
            Err(error) => {
                self.notice_loss(&error);
                return self.refuse(items, &error);
            }
        };
        let ran = catch_unwind(AssertUnwindSafe(|| match items.as_slice() {
            [only] => ops::run(&only.op, &mut self.context).map(|value| vec![value]),
            several => ops::together::run(several, &mut self.context),
        }));
        let ran = ran.unwrap_or_else(|panic| {
            let message = panic_message(panic.as_ref());
            Err(Error::EnginePanicked { device: self.info.id, message })
        });
        let mut queued = self.context.take_queued();
        // Also after a failure: what was queued before it still uses the scratch.
        let stream = if queued.downloads { Stream::Download } else { Stream::Compute };
        let ran = self.context.driver.record(marks.stop, stream).and(ran);
        match &ran {
            Ok(_) => items.iter().for_each(|item| self.warm.insert(&item.op)),
            Err(error) => self.notice_loss(error),
        }
        let count = items.len();
        let mut values = ran.map(Vec::into_iter);
        for (index, item) in items.into_iter().enumerate() {
            let last = index + 1 == count;
            let result = match &mut values {
                Ok(values) => values.next().ok_or_else(|| Error::DeviceFault {
                    device: self.info.id,
                    reason: "fewer results than ops that ran together".to_owned(),
                }),
                Err(error) => Err(error.clone()),
            };
            let queued = if last { std::mem::take(&mut queued) } else { Queued::default() };
            let flight =
                Flight { item, result, marks: Some(marks), keeps_marks: !last, queued, batch_size: count as u32 };
            self.flights.push_back(flight);
        }
    }

    /// Answers items that cannot be queued.
    fn refuse(&mut self, items: Vec<Item>, error: &Error) {
        for item in items {
            let (result, queued) = (Err(error.clone()), Queued::default());
            self.flights.push_back(Flight { item, result, marks: None, keeps_marks: false, queued, batch_size: 1 });
        }
    }

    fn mark_start(&mut self) -> Result<Marks> {
        let marks = Marks { start: self.context.event()?, stop: self.context.event()? };
        self.context.driver.record(marks.start, Stream::Compute)?;
        Ok(marks)
    }

    fn notice_loss(&mut self, error: &Error) {
        if matches!(error, Error::DeviceLost { .. }) {
            self.lost = Some(error.clone());
        }
    }

    /// Hands back what the device has passed, in order.
    fn collect(&mut self, finished: &mut Vec<Finished>) {
        while let Some(flight) = self.flights.front() {
            let passed = match (flight.marks, &self.lost) {
                (Some(marks), None) => self.context.driver.is_past(marks.stop),
                _ => Ok(true),
            };
            match passed {
                Ok(false) => return,
                Ok(true) => {}
                Err(error) => self.lost = Some(lost(&self.info, error)),
            }
            if let Some(flight) = self.flights.pop_front() {
                finished.push(self.land(flight));
            }
        }
    }

    fn land(&mut self, flight: Flight) -> Finished {
        let Flight { item, result, marks, keeps_marks, mut queued, batch_size } = flight;
        if let Some(error) = &self.lost {
            return Finished::alone(item, Err(error.clone()));
        }
        let mut between = |marks: Option<(Event, Event)>| {
            let (start, stop) = marks?;
            let time = self.context.driver.between(start, stop).ok();
            if !keeps_marks {
                self.context.give_back(start);
                self.context.give_back(stop);
            }
            time
        };
        let device_time = between(marks.map(|marks| (marks.start, marks.stop)));
        let transferred = between(queued.copies);
        let complaint = self.context.settle(&mut queued);
        let result = result.and_then(|value| complaint.and_then(|()| value.try_map(settled)));
        let bytes_moved = queued.bytes_moved;
        Finished { bytes_moved, device_time, transferred, batch_size, ..Finished::alone(item, result) }
    }
}

/// A small output on the host moves out of pinned memory, which is too precious to lie in a caller's drawer.
fn settled(tensor: Tensor) -> Result<Tensor> {
    if tensor.location() != Location::Host || tensor.len_bytes() > SMALL_BYTES_MAX {
        return Ok(tensor);
    }
    let mut copy = HostBufferMut::zeroed(tensor.len_bytes())?;
    copy.bytes_mut().copy_from_slice(tensor.as_bytes()?);
    Tensor::from_host(tensor.dtype(), *tensor.shape(), copy.freeze())
}

/// A device that cannot even say whether it has passed a mark is gone.
fn lost(info: &DeviceInfo, error: Error) -> Error {
    match error {
        error @ Error::DeviceLost { .. } => error,
        other => Error::DeviceLost { device: info.id, reason: other.to_string() },
    }
}

impl Engine for CudaEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        let mut rest = batch.drain(..).collect::<VecDeque<Item>>();
        while !rest.is_empty() {
            let together = ops::together::joinable(rest.make_contiguous()).max(1);
            let group = rest.drain(..together).collect();
            self.start(group);
        }
        self.submitted = Some(Instant::now());
    }

    fn poll(&mut self, finished: &mut Vec<Finished>, wait_max: Duration) -> usize {
        let before = finished.len();
        self.collect(finished);
        if finished.len() > before || self.flights.is_empty() || wait_max.is_zero() {
            return self.flights.len();
        }
        let begin = Instant::now();
        while finished.len() == before && begin.elapsed() < wait_max {
            if self.submitted.is_some_and(|at| at.elapsed() > EAGER_MAX) {
                std::thread::sleep(PAUSE);
            } else {
                std::thread::yield_now();
            }
            self.collect(finished);
        }
        self.flights.len()
    }

    fn memory(&mut self) -> MemoryStats {
        self.context.memory_stats()
    }

    fn health(&mut self) -> Health {
        let mut health = self.context.driver.libraries().map(|libraries| libraries.health()).unwrap_or_default();
        health.fault = self.lost.clone();
        if let Ok((free, total)) = self.context.driver.memory_info()
            && total > 0
        {
            health.memory_percent = Some((total - free) as f32 / total as f32 * 100.0);
        }
        health
    }

    fn warm_up(&mut self, op: &Op) {
        if self.lost.is_none() {
            // A rehearsal that failed is over all the same: the op itself will show why.
            self.context.rehearse(|context| drop(ops::run(op, context)));
            self.warm.insert(op);
        }
    }
}
