//! The engine: queues each item on the device and returns it when the device has passed it.
//!
//! Items that are in flight together are independent, since the inputs of each are complete. So
//! each goes to the lane with the least work, preferably to the lane that made its newest input: a
//! caller's chain of ops stays on one lane, and the chains of several callers overlap. Items of one
//! lane come back in the order of submission; a later item of another lane may overtake them.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::error::panic_message;
use panoply_core::{
    Buffer, DeviceInfo, Engine, Error, FinishedOp, Health, HostBufferMut, Item, Location, MemoryStats, MemoryUse, Op,
    Result, Tensor, Value,
};
use panoply_kernels::warm::GrowingSet;

use crate::context::{Context, Mode, OpResources};
use crate::driver::{Event, LANES_MAX, Stream};
use crate::memory::lane_of;
use crate::ops;
use crate::staging::SMALL_BYTES_MAX;

/// Time after a submission during which the device is polled without a pause: a pause would cost a
/// short op more than the op takes.
const EAGER_MAX: Duration = Duration::from_millis(2);
/// The pause between polls after that.
const PAUSE: Duration = Duration::from_micros(20);

/// Longest wait of a poll while a lane is idle: an op that another caller has just sent could run
/// there, and the worker takes it between two polls.
const IDLE_LANE_WAIT_MAX: Duration = Duration::from_micros(4);

/// One opened device.
pub struct GpuEngine {
    info: DeviceInfo,
    context: Context,
    warm: Arc<GrowingSet>,
    /// The items of each lane.
    lines: [Line; LANES_MAX],
    /// Number of items so far.
    started: u64,
    /// Items that the device has passed, before they are returned.
    landing: Vec<(usize, Flight)>,
    /// The events that a group of items shares, after the device has passed them, and the time
    /// between them. The driver is asked once for the whole group.
    passed: Option<(Marks, Option<Duration>)>,
    /// The last events that the device was found to have passed.
    seen: Option<Marks>,
    /// Time of the last submission.
    submitted: Option<Instant>,
    lost: Option<Error>,
}

/// The items of one lane.
#[derive(Default)]
struct Line {
    /// Items on the device, in the order in which it passes them.
    flights: VecDeque<Flight>,
    /// Items that only copy to the host, in order. They wait for no kernel, and may finish before
    /// items that do.
    downloads: VecDeque<Flight>,
}

impl Line {
    fn len(&self) -> usize {
        self.flights.len() + self.downloads.len()
    }
}

/// An item on the device.
struct Flight {
    item: Item,
    /// Its position in the order of submission.
    order: u64,
    /// The number of its work on its lane; `None` if it has no kernels there.
    work: Option<u64>,
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
    /// See [`Flight::work`].
    work: Option<u64>,
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
        GpuEngine {
            info,
            context,
            warm,
            lines: Default::default(),
            started: 0,
            landing: Vec::new(),
            passed: None,
            seen: None,
            submitted: None,
            lost: None,
        }
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

    /// The lane for an op.
    fn choose_lane(&self, op: &Op) -> usize {
        let lines = self.lines();
        let [_, _, ..] = lines else { return 0 };
        let mut newest = 0;
        op.for_each_tensor(&mut |tensor| {
            if let Buffer::Device(buffer) = tensor.buffer()
                && buffer.device() == self.info.id
            {
                newest = newest.max(buffer.token());
            }
        });
        let home = lane_of(newest).min(lines.len() - 1);
        let least = lines.iter().map(Line::len).min().unwrap_or(0);
        if lines[home].len() == least {
            return home;
        }
        lines.iter().position(|line| line.len() == least).unwrap_or(home)
    }

    /// Queues one item on the lane that suits it.
    fn start(&mut self, item: Item) {
        let lane = self.choose_lane(&item.op);
        self.start_on(lane, item);
    }

    /// Queues one item.
    fn start_on(&mut self, lane: usize, item: Item) {
        let first = ops::first_stream(&item.op, &self.context);
        match self.attempt(lane, first, |context| ops::run(&item.op, context)) {
            Err(error) => self.refuse(lane, item, &error),
            Ok(Attempt { result, marks, work, queued }) => {
                if result.is_ok() {
                    self.warm.insert(&item.op);
                }
                let order = self.next_order();
                let (marks, keeps_marks) = (Some(marks), false);
                let flight = Flight { item, order, work, result, marks, keeps_marks, queued, batch_size: 1 };
                let Line { flights, downloads } = &mut self.lines[lane];
                if first == Stream::Download { downloads } else { flights }.push_back(flight);
            }
        }
    }

    /// The lines of the device's lanes.
    fn lines(&self) -> &[Line] {
        &self.lines[..self.context.lane_count()]
    }

    fn next_order(&mut self) -> u64 {
        self.started += 1;
        self.started
    }

    /// Queues items as one launch. If that fails, queues each separately, so that no item fails
    /// because of its neighbours.
    fn start_together(&mut self, items: Vec<Item>) {
        let Some(first) = items.first() else { return };
        let lane = self.choose_lane(&first.op);
        match self.attempt(lane, Stream::Compute, |context| ops::together::run(&items, context)) {
            Err(error) => items.into_iter().for_each(|item| self.refuse(lane, item, &error)),
            Ok(Attempt { result: Ok(values), marks, work, queued }) if values.len() == items.len() => {
                self.take_off(lane, items, values, (marks, work), queued);
            }
            Ok(Attempt { marks, queued, .. }) => {
                self.context.give_back(marks.start);
                self.context.give_back(marks.stop);
                let first = self.lines[lane].flights.len();
                items.into_iter().for_each(|item| self.start_on(lane, item));
                // The work queued together before the failure precedes the first of the items on
                // their lane, and is complete when that one has landed.
                if let Some(flight) = self.lines[lane].flights.get_mut(first) {
                    flight.queued.absorb(queued);
                }
            }
        }
    }

    /// Adds items that were queued as one. They share their events, and the last item holds the
    /// resources.
    fn take_off(
        &mut self,
        lane: usize,
        items: Vec<Item>,
        values: Vec<Value>,
        (marks, work): (Marks, Option<u64>),
        mut queued: OpResources,
    ) {
        if let Some(first) = items.first() {
            self.warm.insert(&first.op);
        }
        let count = items.len();
        for (index, (item, value)) in items.into_iter().zip(values).enumerate() {
            let is_last = index + 1 == count;
            let order = self.next_order();
            self.lines[lane].flights.push_back(Flight {
                item,
                order,
                work: work.filter(|_| is_last),
                result: Ok(value),
                marks: Some(marks),
                keeps_marks: !is_last,
                queued: if is_last { std::mem::take(&mut queued) } else { OpResources::default() },
                batch_size: count as u32,
            });
        }
    }

    /// Lets `run` queue its work, which begins on the stream `first` of a lane, between two events.
    /// Fails if nothing can be queued at all.
    fn attempt<T>(
        &mut self,
        lane: usize,
        first: Stream,
        run: impl FnOnce(&mut Context) -> Result<T>,
    ) -> Result<Attempt<T>> {
        if let Some(error) = self.lost.clone() {
            return Err(error);
        }
        let entered = self.context.enter_lane(lane).and_then(|()| self.mark_start(first));
        let marks = entered.inspect_err(|error| self.notice_loss(error))?;
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
        let behind = if queued.is_behind_all { self.context.follow_all_on(stream) } else { Ok(()) };
        let result = self.context.driver.record(marks.stop, stream).and(behind).and(wiped).and(ran);
        let work = (first == Stream::Compute).then(|| self.context.number_work());
        if let Err(error) = &result {
            queued.held.extend(self.context.memory.tensors_since(first_token));
            self.notice_loss(error);
        }
        Ok(Attempt { result, marks, work, queued })
    }

    /// Answers an item that cannot be queued.
    fn refuse(&mut self, lane: usize, item: Item, error: &Error) {
        let (result, queued, order) = (Err(error.clone()), OpResources::default(), self.next_order());
        let (marks, keeps_marks, work) = (None, false, None);
        let flight = Flight { item, order, work, result, marks, keeps_marks, queued, batch_size: 1 };
        self.lines[lane].flights.push_back(flight);
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

    /// Returns the items that the device has passed, in the order of submission.
    fn collect(&mut self, finished: &mut Vec<FinishedOp>) {
        let lines: [fn(&mut Line) -> &mut VecDeque<Flight>; 2] = [|line| &mut line.downloads, |line| &mut line.flights];
        for lane in 0..self.context.lane_count() {
            for line in lines {
                while let Some(flight) = line(&mut self.lines[lane]).front() {
                    let marks = flight.marks;
                    if !self.is_past(marks) {
                        break;
                    }
                    let flight = line(&mut self.lines[lane]).pop_front();
                    self.landing.extend(flight.map(|flight| (lane, flight)));
                }
            }
        }
        // The events may be used again from here on.
        self.seen = None;
        let mut landing = std::mem::take(&mut self.landing);
        landing.sort_unstable_by_key(|(_, flight)| flight.order);
        for (lane, flight) in landing.drain(..) {
            if let Some(work) = flight.work {
                self.context.lane_finished(lane, work);
            }
            finished.push(self.land(flight));
        }
        self.landing = landing;
    }

    /// Whether the device has passed these events. True for a lost device, which is not waited for.
    fn is_past(&mut self, marks: Option<Marks>) -> bool {
        let (Some(marks), None) = (marks, &self.lost) else { return true };
        if self.seen == Some(marks) {
            return true;
        }
        match self.context.driver.is_past(marks.stop) {
            Ok(passed) => {
                self.seen = passed.then_some(marks);
                passed
            }
            Err(error) => {
                self.lose(lost(&self.info, error));
                true
            }
        }
    }

    /// Number of items that have not been returned.
    fn under_way(&self) -> usize {
        self.lines.iter().map(Line::len).sum()
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
        let Flight { item, result, marks, keeps_marks, mut queued, batch_size, .. } = flight;
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
        let has_idle_lane = self.context.lane_count() > 1 && self.lines().iter().any(|line| line.len() == 0);
        let wait_max = if has_idle_lane { wait_max.min(IDLE_LANE_WAIT_MAX) } else { wait_max };
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
        let no_sensors = || Health { sensors_absent: Some("this API has no sensors".to_owned()), ..Health::default() };
        let mut health = self.context.driver.sensors().map_or_else(no_sensors, |sensors| sensors.health());
        health.fault = self.lost.clone().or(health.fault.take());
        if let Ok((free, total)) = self.context.driver.memory_info()
            && total > 0
        {
            // The driver may see its own process alone, and sensors the whole card.
            health.memory = Some(MemoryUse::new(total, free).at_most(health.memory));
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

#[cfg(test)]
mod tests {
    use panoply_core::op::compute::{Map, Transfer};
    use panoply_core::{Backend, OpenOptions, Operation};

    use super::*;
    use crate::{EmulatedBackend, GpuBackend};

    fn with_engine(test: impl FnOnce(&mut GpuEngine)) {
        let backend = match EmulatedBackend::new() {
            Ok(backend) => backend.shuffled_streams(7),
            Err(absence) => return println!("skipped: {absence}"),
        };
        let info = backend.discover().unwrap().remove(0);
        test(&mut backend.open_engine(&info, &OpenOptions::default()).unwrap());
    }

    /// Maps of different sizes, which are not joined.
    fn map(token: u64, x: &Tensor) -> Item {
        Item { token, op: Map::add(x, x).into_op().unwrap() }
    }

    fn ones(len: usize) -> Tensor {
        Tensor::from_vec(vec![1.0_f32; len], [len]).unwrap()
    }

    /// Ops in flight on each lane.
    fn lengths(engine: &GpuEngine) -> [usize; LANES_MAX] {
        std::array::from_fn(|lane| engine.lines[lane].len())
    }

    fn wait(engine: &mut GpuEngine) -> Vec<FinishedOp> {
        let mut finished = Vec::new();
        while engine.poll(&mut finished, Duration::from_millis(1)) > 0 {}
        finished
    }

    #[test]
    fn independent_ops_spread_over_the_lanes() {
        with_engine(|engine| {
            engine.submit(&mut (0..7).map(|token| map(token, &ones(token as usize + 1))).collect());
            assert_eq!(lengths(engine), [3, 2, 2]);
            let mut tokens: Vec<u64> = wait(engine).iter().map(|done| done.token).collect();
            tokens.sort_unstable();
            assert_eq!(tokens, [0, 1, 2, 3, 4, 5, 6]);
            assert_eq!(lengths(engine), [0; LANES_MAX]);
        });
    }

    #[test]
    fn a_chain_stays_on_the_lane_of_its_input() {
        with_engine(|engine| {
            engine.submit(&mut vec![map(0, &ones(1)), map(1, &ones(2))]);
            let mut done = wait(engine);
            done.sort_unstable_by_key(|done| done.token);
            // Made on the second lane.
            let mut x = done.remove(1).result.unwrap().into_tensor().unwrap();
            for _ in 0..3 {
                engine.submit(&mut vec![map(2, &x)]);
                assert_eq!(lengths(engine), [0, 1, 0]);
                x = wait(engine).remove(0).result.unwrap().into_tensor().unwrap();
            }
            // Its own lane is busy, so an op of another caller takes another lane.
            engine.submit(&mut vec![map(3, &x), map(4, &ones(3))]);
            assert_eq!(lengths(engine), [1, 1, 0]);
            wait(engine);
            engine.submit(&mut vec![Item { token: 5, op: Transfer::to_host(&x).into_op().unwrap() }]);
            assert_eq!(lengths(engine), [0, 1, 0]);
            let host = wait(engine).remove(0).result.unwrap().into_tensor().unwrap();
            assert_eq!(host.to_vec::<f32>().unwrap(), [16.0; 2]);
        });
    }
}
