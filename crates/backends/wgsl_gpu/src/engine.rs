//! The engine: batches are recorded, submitted and waited for, several at a time.
//!
//! 1. `submit` records every item of a batch into commands, submits them and returns. While the
//!    device has work, small ops are not submitted at once: a submission costs more than recording,
//!    so they gather (see [`crate::gathering`]).
//! 2. A batch has landed when the queue has ended its work and all its downloads are mapped.
//!    Batches land in order.
//! 3. When the device is lost, everything in flight is answered with that error, and so is
//!    everything that follows.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::error::panic_message;
use panoply_core::{
    DeviceInfo, Engine, Error, FinishedOp, Health, HostBuffer, Item, MemoryLimits, MemoryStats, Op, Result, Tensor,
    Value,
};
use panoply_kernels::cache::Cache;
use panoply_kernels::warm::GrowingSet;
use panoply_sensors::CardSensors;

pub use crate::answer::Answer;
use crate::context::Context;
use crate::driver::{Driver, Fence};
use crate::gathering::{FLIGHTS_WANTED, Gathering};
use crate::ops;
use crate::profile::Profile;
use crate::readback::Download;

/// Sleep between two looks if the device does not support a wait with a timeout.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// For this time after a submission, `poll` looks once and returns, so that the worker records what
/// arrives meanwhile; later it sleeps. (Waking up takes longer than most ops.)
const EAGER_MAX: Duration = Duration::from_micros(300);

/// Time between two looks at the device while there are more ops to record: a look costs as much as
/// recording an op.
const LOOK_WHILE_BUSY: Duration = Duration::from_micros(30);

/// Time between two looks while there is nothing else to do. In between the core rests: the thread
/// that makes the next ops may share it.
const LOOK_WHILE_WAITING: Duration = Duration::from_micros(3);
/// Number of spin hints in one rest.
const REST_SPINS: u32 = 16;

/// The input size from which a batch of one op is timed; for smaller ops the stamps cost more than
/// they are worth.
const TIMED_BYTES_MIN: usize = 1 << 20;

/// The most emptied batches whose memory is kept.
const SPARE_MAX: usize = 2 * FLIGHTS_WANTED;

/// One opened device.
pub struct GpuEngine<D: Driver> {
    info: DeviceInfo,
    context: Context<D>,
    /// Ops that are recorded, but not submitted yet.
    gathered: Vec<RecordedOp>,
    /// Memory of batches that have landed, for the next ones: it is too large for an allocator's
    /// fast paths.
    spare: Vec<Vec<RecordedOp>>,
    flights: VecDeque<Flight<D>>,
    last_look: Instant,
    /// Decides when to submit.
    gathering: Gathering,
    warm: Arc<GrowingSet>,
    /// The sensors of the card: WGSL's APIs have none.
    sensors: CardSensors,
}

/// An op, its result, and the number of bytes that it moves.
type RecordedOp = (Item, Result<Answer>, u64);

/// A batch in flight.
struct Flight<D: Driver> {
    items: Vec<RecordedOp>,
    downloads: Vec<Option<Download<D>>>,
    /// `None` if nothing was recorded.
    fence: Option<Fence>,
    /// The number of the download with the time stamps.
    stamps: Option<usize>,
}

/// The parameters for opening an engine.
pub struct Opening {
    /// The device, as it was described.
    pub info: DeviceInfo,
    /// The facts about the device that ops need.
    pub profile: Profile,
    /// The ops whose kernels are compiled; shared with the backend, which answers questions about
    /// it.
    pub warm: Arc<GrowingSet>,
    /// Stores measurements; without it they are repeated each time.
    pub cache: Option<Arc<Cache>>,
    /// The sizes of the memory pools, as far as the caller sets limits.
    pub memory: MemoryLimits,
}

impl<D: Driver> GpuEngine<D> {
    /// The engine over a driver.
    pub fn new(driver: D, opening: Opening) -> GpuEngine<D> {
        let Opening { info, profile, warm, cache, memory } = opening;
        let (now, sensors) = (Instant::now(), CardSensors::of(&info));
        GpuEngine {
            info,
            context: Context::new(driver, profile, cache, &memory),
            gathered: Vec::new(),
            spare: Vec::new(),
            flights: VecDeque::new(),
            last_look: now,
            gathering: Gathering::new(now),
            warm,
            sensors,
        }
    }

    /// The context of ops, for tests that break it.
    #[doc(hidden)]
    pub fn context(&mut self) -> &mut Context<D> {
        &mut self.context
    }

    fn record(&mut self, item: &Item) -> Result<Answer> {
        if let Some(lost) = self.context.driver.faults().lost() {
            return Err(lost);
        }
        let recorded = catch_unwind(AssertUnwindSafe(|| ops::run(&item.op, &mut self.context)));
        recorded.unwrap_or_else(|panic| {
            let message = panic_message(panic.as_ref());
            Err(Error::EnginePanicked { device: self.info.id, message })
        })
    }

    /// Submits everything recorded to the device.
    fn launch(&mut self) {
        if self.gathered.is_empty() {
            return;
        }
        let mut items = std::mem::replace(&mut self.gathered, self.spare.pop().unwrap_or_default());
        self.gathering.launched(Instant::now(), items.len());
        let stamps = self.context.end_timing();
        let fence = self.context.submit();
        let mut downloads: Vec<_> = self.context.take_downloads().into_iter().map(Some).collect();
        if let Some(error) = self.context.take_error() {
            // An error that belongs to no call belongs to the whole submission; its downloads are
            // not waited for.
            for (_, answer, _) in items.iter_mut().filter(|(_, answer, _)| answer.is_ok()) {
                *answer = Err(error.clone());
            }
            downloads.clear();
        }
        self.flights.push_back(Flight { items, downloads, fence, stamps });
    }

    /// Whether the gathered ops should be submitted now.
    fn is_due(&self, now: Instant) -> bool {
        self.gathering.is_due(now, self.gathered.len(), self.flights.len())
    }

    /// Lets the device's callbacks run, and waits for the oldest batch if there is time.
    fn wait(&self, wait_max: Duration) {
        let driver = &self.context.driver;
        match self.flights.front() {
            Some(Flight { fence: Some(fence), .. }) if !wait_max.is_zero() => driver.wait(*fence, wait_max),
            Some(_) => driver.look(),
            None => {}
        }
    }

    fn land(&mut self, finished: &mut Vec<FinishedOp>) {
        let lost = self.context.driver.faults().lost();
        if lost.is_some() {
            self.launch();
        }
        while self.flights.front().is_some_and(|flight| lost.is_some() || flight.has_landed(&self.context.driver)) {
            let Some(mut flight) = self.flights.pop_front() else { return };
            self.gathering.landed(flight.items.len(), self.gathered.len(), self.flights.len());
            let batch_size = u32::try_from(flight.items.len()).unwrap_or(u32::MAX);
            let mut downloads = flight.downloads;
            let stamps = flight.stamps.and_then(|number| downloads.get_mut(number)?.take());
            let device_time = stamps.filter(|_| lost.is_none()).and_then(|stamps| self.elapsed(stamps));
            for (item, answer, bytes_moved) in flight.items.drain(..) {
                let result = match &lost {
                    Some(lost) => Err(lost.clone()),
                    None => answer.and_then(|answer| self.settle(answer, &mut downloads)),
                };
                let Item { token, op } = item;
                finished.push(FinishedOp {
                    token,
                    op,
                    result,
                    batch_size,
                    bytes_moved,
                    transferred: None,
                    device_time,
                });
            }
            if self.spare.len() < SPARE_MAX {
                self.spare.push(flight.items);
            }
        }
    }

    /// The sum of the times between the first and second stamp of each pass.
    fn elapsed(&mut self, stamps: Download<D>) -> Option<Duration> {
        let bytes = self.context.downloaded(stamps).ok()?;
        let (stamps, _) = bytes.bytes().as_chunks::<8>();
        let (passes, _) = stamps.as_chunks::<2>();
        let ticks =
            passes.iter().map(|[start, end]| u64::from_le_bytes(*end).saturating_sub(u64::from_le_bytes(*start)));
        let ticks = ticks.fold(0, u64::saturating_add);
        let nanoseconds = ticks as f64 * self.context.stamp_nanoseconds();
        Some(Duration::from_nanos(nanoseconds as u64))
    }

    fn settle(&mut self, answer: Answer, downloads: &mut [Option<Download<D>>]) -> Result<Value> {
        let (device, context) = (self.info.id, &mut self.context);
        let mut bytes = |number: usize| -> Result<HostBuffer> {
            let missing = || Error::DeviceFault { device, reason: "a download is missing".to_owned() };
            context.downloaded(downloads.get_mut(number).and_then(Option::take).ok_or_else(missing)?)
        };
        match answer {
            Answer::Value(value) => Ok(value),
            Answer::Host { download, dtype, shape } => {
                Tensor::from_host(dtype, shape, bytes(download)?).map(Value::Tensor)
            }
            Answer::Checked { value, checks } => {
                for (download, len) in checks {
                    let status = bytes(download)?;
                    if status.bytes().iter().any(|byte| *byte != 0) {
                        let expected = format!("an index into {len}");
                        return Err(Error::invalid("gather: index", expected, "one out of range"));
                    }
                }
                Ok(value)
            }
        }
    }
}

impl<D: Driver> Flight<D> {
    fn has_landed(&self, driver: &D) -> bool {
        self.fence.is_none_or(|fence| driver.is_past(fence)) && self.downloads.iter().flatten().all(Download::is_over)
    }
}

impl<D: Driver> Engine for GpuEngine<D> {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        let is_small = |item: &Item| item.op.input_bytes() < TIMED_BYTES_MIN;
        let small = batch.iter().all(is_small);
        if !small && batch.len() == 1 {
            self.launch();
            self.context.start_timing();
        }
        for item in batch.drain(..) {
            self.context.moved_bytes = 0;
            let answer = self.record(&item);
            if answer.is_ok() && !self.warm.contains(&item.op) {
                self.warm.insert(&item.op);
            }
            self.gathered.push((item, answer, self.context.moved_bytes));
        }
        let now = Instant::now();
        self.gathering.arrived(now);
        if !small || self.is_due(now) {
            self.launch();
        }
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        let before = finished.len();
        let now = Instant::now();
        let waits = !wait_max.is_zero();
        // A software device needs this core itself.
        let is_software = self.context.profile.is_software;
        let look_after = match waits {
            true if is_software => Duration::ZERO,
            true => LOOK_WHILE_WAITING,
            false => LOOK_WHILE_BUSY,
        };
        if now.saturating_duration_since(self.last_look) >= look_after {
            self.wait(Duration::ZERO);
            self.land(finished);
            self.last_look = Instant::now();
        } else if waits {
            (0..REST_SPINS).for_each(|_| std::hint::spin_loop());
        }
        if self.is_due(now) || (waits && is_software) {
            self.launch();
        }
        let eager = !is_software && self.gathering.since_launch(Instant::now()) < EAGER_MAX;
        while waits && !eager && finished.len() == before && !self.flights.is_empty() {
            let started = Instant::now();
            let left = (now + wait_max).saturating_duration_since(started);
            if left.is_zero() {
                break;
            }
            self.wait(left);
            self.land(finished);
            if finished.len() == before && started.elapsed() < LOOK_AGAIN {
                std::thread::sleep(LOOK_AGAIN.min(left));
            }
        }
        self.gathered.len() + self.flights.iter().map(|flight| flight.items.len()).sum::<usize>()
    }

    fn memory(&mut self) -> MemoryStats {
        self.context.memory_stats()
    }

    fn health(&mut self) -> Health {
        let card = self.sensors.read();
        // The card's figure includes memory that this process' driver does not know of.
        let memory = self.context.driver.memory().map(|memory| memory.at_most(card.memory)).or(card.memory);
        Health { fault: self.context.driver.faults().lost(), memory, ..card }
    }

    fn trim(&mut self, keep_bytes: usize) {
        self.context.trim(keep_bytes);
    }

    fn warm_up(&mut self, op: &Op) {
        if self.context.driver.faults().lost().is_some() {
            return;
        }
        // Recorded ops are submitted first: a rehearsal must neither find nor leave recorded
        // commands.
        self.launch();
        self.context.rehearse(|context| drop(ops::run(op, context)));
        // An error of the rehearsal is dropped: the op itself will report it.
        let _ = self.context.take_error();
        self.warm.insert(op);
    }
}

impl<D: Driver> Drop for GpuEngine<D> {
    /// Work in flight may still write to memory that is dropped with the engine: the driver frees
    /// it when the work has ended.
    fn drop(&mut self) {
        self.context.driver.look();
    }
}
