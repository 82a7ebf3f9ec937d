//! The engine: queues each item on the device and returns it when the device has passed it.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::error::panic_message;
use panoply_core::{
    DeviceInfo, Engine, Error, FinishedOp, Health, HostBufferMut, Item, Location, MemoryStats, Op, Result, Tensor,
    Value,
};
use panoply_kernels::warm::GrowingSet;

use crate::context::{Context, Mode, OpResources};
use crate::driver::{Event, Stream};
use crate::ops;
use crate::staging::SMALL_BYTES_MAX;

/// Time after a submission during which the device is polled without a pause: a pause would cost a
/// short op more than the op takes.
const EAGER_MAX: Duration = Duration::from_millis(2);
/// The pause between polls after that.
const PAUSE: Duration = Duration::from_micros(20);

/// One opened device.
pub struct GpuEngine {
    info: DeviceInfo,
    context: Context,
    warm: Arc<GrowingSet>,
    /// Items on the device, in the order in which it passes them.
    flights: VecDeque<Flight>,
    /// Items that only copy to the host, in order. They wait for no kernel, and may finish before
    /// items that do.
    downloads: VecDeque<Flight>,
    /// The events that a group of items shares, after the device has passed them, and the time
    /// between them. The driver is asked once for the whole group.
    passed: Option<(Marks, Option<Duration>)>,
    /// Time of the last submission.
    submitted: Option<Instant>,
    lost: Option<Error>,
}

/// An item on the device.
struct Flight {
    item: Item,
    result: Result<Value>,
    marks: Option<Marks>,
    /// Whether a later item still uses its events: in a group that shares them, only the last item
    /// releases them.
    keeps_marks: bool,
    queued: OpResources,
    batch_size: u32,
}

/// The result of queueing work.
struct Attempt<T> {
    result: Result<T>,
    marks: Marks,
    queued: OpResources,
}

#[derive(Clone, Copy, PartialEq)]
struct Marks {
    start: Event,
    stop: Event,
}

impl GpuEngine {
    /// An engine over a context.
    pub(crate) fn new(info: DeviceInfo, context: Context, warm: Arc<GrowingSet>) -> GpuEngine {
        let (flights, downloads) = (VecDeque::new(), VecDeque::new());
        GpuEngine { info, context, warm, flights, downloads, passed: None, submitted: None, lost: None }
    }

    /// The ops' context, for tests that inspect it.
    pub fn context_mut(&mut self) -> &mut Context {
        &mut self.context
    }

    /// Compiles the kernels of these ops in parallel, and runs nothing. Reports the number done and
    /// the total.
    pub fn compile_ahead(&mut self, ops: &mut dyn Iterator<Item = &Op>, progress: &mut dyn FnMut(usize, usize)) {
        self.make_current();
        for op in ops {
            self.rehearse(Mode::Request, op);
        }
        self.context.compile_queue().finish(progress);
    }

    /// Requests or loads the kernels of an op, both alone and batched with others. Errors of a
    /// rehearsal are ignored: the op itself reports them when it runs.
    fn rehearse(&mut self, mode: Mode, op: &Op) {
        self.context.rehearse(mode, |context| drop(ops::run(op, context)));
        self.context.rehearse(mode, |context| ops::together::rehearse(op, context));
    }

    /// Queues one item.
    fn start(&mut self, item: Item) {
        let first = ops::first_stream(&item.op, &self.context);
        match self.attempt(first, |context| ops::run(&item.op, context)) {
            Err(error) => self.refuse(item, &error),
            Ok(Attempt { result, marks, queued }) => {
                if result.is_ok() {
                    self.warm.insert(&item.op);
                }
                let line = if first == Stream::Download { &mut self.downloads } else { &mut self.flights };
                let marks = Some(marks);
                line.push_back(Flight { item, result, marks, keeps_marks: false, queued, batch_size: 1 });
            }
        }
    }

    /// Queues items as one launch. If that fails, queues each separately, so that no item fails
    /// because of its neighbours.
    fn start_together(&mut self, items: Vec<Item>) {
        match self.attempt(Stream::Compute, |context| ops::together::run(&items, context)) {
            Err(error) => items.into_iter().for_each(|item| self.refuse(item, &error)),
            Ok(Attempt { result: Ok(values), marks, queued }) if values.len() == items.len() => {
                self.take_off(items, values, marks, queued);
            }
            Ok(Attempt { marks, queued, .. }) => {
                self.context.give_back(marks.start);
                self.context.give_back(marks.stop);
                let first = self.flights.len();
                items.into_iter().for_each(|item| self.start(item));
                // The work queued together before the failure precedes the first of the items, and
                // is complete when that one has landed.
                if let Some(flight) = self.flights.get_mut(first) {
                    flight.queued.absorb(queued);
                }
            }
        }
    }

    /// Adds items that were queued as one. They share their events, and the last item holds the
    /// resources.
    fn take_off(&mut self, items: Vec<Item>, values: Vec<Value>, marks: Marks, mut queued: OpResources) {
        if let Some(first) = items.first() {
            self.warm.insert(&first.op);
        }
        let count = items.len();
        for (index, (item, value)) in items.into_iter().zip(values).enumerate() {
            let is_last = index + 1 == count;
            self.flights.push_back(Flight {
                item,
                result: Ok(value),
                marks: Some(marks),
                keeps_marks: !is_last,
                queued: if is_last { std::mem::take(&mut queued) } else { OpResources::default() },
                batch_size: count as u32,
            });
        }
    }

    /// Lets `run` queue its work, which begins on the stream `first`, between two events. Fails if
    /// nothing can be queued at all.
    fn attempt<T>(&mut self, first: Stream, run: impl FnOnce(&mut Context) -> Result<T>) -> Result<Attempt<T>> {
        if let Some(error) = self.lost.clone() {
            return Err(error);
        }
        let marks = self.mark_start(first).inspect_err(|error| self.notice_loss(error))?;
        let first_token = self.context.memory.next_token();
        let ran = catch_unwind(AssertUnwindSafe(|| run(&mut self.context)));
        let ran = ran.unwrap_or_else(|panic| {
            self.context.planned.forget();
            let message = panic_message(panic.as_ref());
            Err(Error::EnginePanicked { device: self.info.id, message })
        });
        let wiped = self.context.wipe_secrets(ran.is_err());
        let mut queued = self.context.take_queued();
        // Also after a failure: work queued before it still uses the scratch memory, and outputs
        // that no caller will see.
        let stream = if queued.downloads { Stream::Download } else { Stream::Compute };
        let result = self.context.driver.record(marks.stop, stream).and(wiped).and(ran);
        if let Err(error) = &result {
            queued.held.extend(self.context.memory.tensors_since(first_token));
            self.notice_loss(error);
        }
        Ok(Attempt { result, marks, queued })
    }

    /// Answers an item that cannot be queued.
    fn refuse(&mut self, item: Item, error: &Error) {
        let (result, queued) = (Err(error.clone()), OpResources::default());
        self.flights.push_back(Flight { item, result, marks: None, keeps_marks: false, queued, batch_size: 1 });
    }

    /// Makes this engine's device current: a thread may own several engines, and driver calls apply
    /// to its current device.
    fn make_current(&mut self) {
        if self.lost.is_none()
            && let Err(error) = self.context.driver.make_current()
        {
            self.lose(lost(&self.info, error));
        }
    }

    fn mark_start(&mut self, first: Stream) -> Result<Marks> {
        let marks = Marks { start: self.context.event()?, stop: self.context.event()? };
        self.context.driver.record(marks.start, first)?;
        Ok(marks)
    }

    fn notice_loss(&mut self, error: &Error) {
        if matches!(error, Error::DeviceLost { .. }) {
            self.lose(error.clone());
        }
    }

    fn lose(&mut self, error: Error) {
        self.context.memory.lose();
        self.lost = Some(error);
    }

    /// Returns the items that the device has passed.
    fn collect(&mut self, finished: &mut Vec<FinishedOp>) {
        let lines: [fn(&mut GpuEngine) -> &mut VecDeque<Flight>; 2] =
            [|engine| &mut engine.downloads, |engine| &mut engine.flights];
        for line in lines {
            while let Some(flight) = line(self).front() {
                let marks = flight.marks;
                if !self.is_past(marks) {
                    break;
                }
                if let Some(flight) = line(self).pop_front() {
                    finished.push(self.land(flight));
                }
            }
        }
    }

    /// Whether the device has passed these events. True for a lost device, which is not waited for.
    fn is_past(&mut self, marks: Option<Marks>) -> bool {
        let (Some(marks), None) = (marks, &self.lost) else { return true };
        if self.passed.is_some_and(|(passed, _)| passed == marks) {
            return true;
        }
        match self.context.driver.is_past(marks.stop) {
            Ok(passed) => passed,
            Err(error) => {
                self.lose(lost(&self.info, error));
                true
            }
        }
    }

    /// Number of items that have not been returned.
    fn under_way(&self) -> usize {
        self.flights.len() + self.downloads.len()
    }

    /// The time between two events that the device has passed. The events are released unless a
    /// later item `keeps` them.
    fn time_between(&mut self, marks: Marks, keeps: bool) -> Option<Duration> {
        let known = self.passed.filter(|(passed, _)| *passed == marks).map(|(_, time)| time);
        let time = known.unwrap_or_else(|| self.context.driver.between(marks.start, marks.stop).ok());
        self.passed = keeps.then_some((marks, time));
        if !keeps {
            self.context.give_back(marks.start);
            self.context.give_back(marks.stop);
        }
        time
    }

    fn land(&mut self, flight: Flight) -> FinishedOp {
        let Flight { item, result, marks, keeps_marks, mut queued, batch_size } = flight;
        if let Some(error) = &self.lost {
            return FinishedOp::alone(item, Err(error.clone()));
        }
        let device_time = marks.and_then(|marks| self.time_between(marks, keeps_marks));
        let transferred = queued.copies.and_then(|(start, stop)| self.time_between(Marks { start, stop }, false));
        let complaint = self.context.settle(&mut queued);
        let finish = queued.finish.take().unwrap_or_else(|| Box::new(Ok));
        let result = result.and_then(|value| complaint.and_then(|()| finish(value)?.try_map(settled)));
        let bytes_moved = queued.bytes_moved;
        FinishedOp { bytes_moved, device_time, transferred, batch_size, ..FinishedOp::alone(item, result) }
    }
}

/// Copies a small output on the host out of pinned memory, because pinned memory is scarce and a
/// caller may keep its result for long.
fn settled(tensor: Tensor) -> Result<Tensor> {
    if tensor.location() != Location::Host || tensor.len_bytes() > SMALL_BYTES_MAX || tensor.buffer().is_secret() {
        return Ok(tensor);
    }
    let mut copy = HostBufferMut::zeroed(tensor.len_bytes())?;
    copy.bytes_mut().copy_from_slice(tensor.as_bytes()?);
    Tensor::from_host(tensor.dtype(), *tensor.shape(), copy.freeze())
}

/// Turns any error of polling an event into a lost device.
fn lost(info: &DeviceInfo, error: Error) -> Error {
    match error {
        error @ Error::DeviceLost { .. } => error,
        other => Error::DeviceLost { device: info.id, reason: other.to_string() },
    }
}

impl Engine for GpuEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.make_current();
        let mut rest = batch.drain(..);
        loop {
            match ops::together::joinable(rest.as_slice(), &self.context) {
                0 => break,
                1 => rest.next().into_iter().for_each(|item| self.start(item)),
                count => {
                    let group = rest.by_ref().take(count).collect();
                    self.start_together(group);
                }
            }
        }
        self.submitted = Some(Instant::now());
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        self.make_current();
        let before = finished.len();
        self.collect(finished);
        if finished.len() > before || self.under_way() == 0 || wait_max.is_zero() {
            return self.under_way();
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
        self.under_way()
    }

    fn memory(&mut self) -> MemoryStats {
        self.make_current();
        self.context.memory_stats()
    }

    fn health(&mut self) -> Health {
        self.make_current();
        let mut health = self.context.driver.sensors().map(|sensors| sensors.health()).unwrap_or_default();
        health.fault = self.lost.clone().or(health.fault.take());
        if let Ok((free, total)) = self.context.driver.memory_info()
            && total > 0
        {
            health.memory_percent = Some((total - free) as f32 / total as f32 * 100.0);
        }
        health
    }

    fn pinned(&mut self, len_bytes: usize) -> Result<HostBufferMut> {
        self.make_current();
        match &self.lost {
            Some(error) => Err(error.clone()),
            None => self.context.pinned(len_bytes),
        }
    }

    fn trim(&mut self, keep_bytes: usize) {
        self.make_current();
        self.context.trim(keep_bytes);
    }

    fn warm_up(&mut self, op: &Op) {
        self.make_current();
        if self.lost.is_none() {
            // First request all kernels, so that they compile in parallel; then wait for each.
            self.rehearse(Mode::Request, op);
            self.rehearse(Mode::Load, op);
            self.warm.insert(op);
        }
    }
}

impl Drop for GpuEngine {
    fn drop(&mut self) {
        // The engine's resources are released on its own device.
        self.make_current();
    }
}
