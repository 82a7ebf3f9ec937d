//! The engine: batches are recorded, submitted and waited for, several at a time.
//!
//! 1. `submit` records every item of a batch into commands, hands them to the queue and returns. Small ops are not handed
//!    over at once while the device has work: handing over costs more than recording, so they gather (see [`crate::gathering`]).
//! 2. A batch has landed when the queue says that its work is done and all its downloads are mapped. Batches land in order.
//! 3. When the device is lost, everything under way is answered with that, and so is everything that follows.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::error::panic_message;
use panoply_core::{
    DType, DeviceInfo, Engine, Error, Finished, Health, HostBuffer, Item, MemoryStats, Op, Result, Shape, Tensor, Value,
};
use panoply_kernels::cache::Cache;
use panoply_kernels::warm::Warm;

use crate::context::Context;
use crate::driver::{Driver, Fence};
use crate::gathering::{FLIGHTS_WANTED, Gathering};
use crate::ops;
use crate::profile::Profile;
use crate::readback::Download;

/// How long to sleep between two looks while a bounded wait is not supported by the device.
const LOOK_AGAIN: Duration = Duration::from_micros(50);
/// For how long after a submission `poll` looks once and returns, so that the worker records what arrives meanwhile; after
/// that it sleeps. (Waking up takes longer than most ops.)
const EAGER_MAX: Duration = Duration::from_micros(300);

/// How often to look at the device while there are more ops to record: a look costs as much as recording one.
const LOOK_WHILE_BUSY: Duration = Duration::from_micros(30);

/// How often to look while there is nothing else to do. In between the core rests: the thread that makes the next ops may
/// share it.
const LOOK_WHILE_WAITING: Duration = Duration::from_micros(3);
/// How many times a rest tells the core that this thread only waits.
const REST_SPINS: u32 = 16;

/// A batch of one op with at least so much input is timed; for less the stamps cost more than they tell.
const TIMED_BYTES_MIN: usize = 1 << 20;

/// Batches whose memory is kept.
const SPARE_MAX: usize = 2 * FLIGHTS_WANTED;

/// What an op has recorded comes to.
pub enum Answer {
    /// This, when the work is done.
    Value(Value),
    /// A tensor on the host, made of a download.
    Host {
        /// Its number in the batch.
        download: usize,
        /// The type of its elements.
        dtype: DType,
        /// Its shape.
        shape: Shape,
    },
    /// This, unless a word of a download is not zero: then an index was out of range.
    Checked {
        /// The value.
        value: Value,
        /// The downloads' numbers in the batch, each with how many could be picked from.
        checks: Vec<(usize, usize)>,
    },
}

/// One device, opened.
pub struct GpuEngine<D: Driver> {
    info: DeviceInfo,
    context: Context<D>,
    /// Recorded, and not handed over yet.
    gathered: Vec<Recorded>,
    /// Memory of batches that have landed, for the next ones: it is too large for an allocator's quick paths.
    spare: Vec<Vec<Recorded>>,
    flights: VecDeque<Flight<D>>,
    last_look: Instant,
    /// When to hand over.
    gathering: Gathering,
    warm: Arc<Warm>,
}

/// An op, what it comes to, and how many bytes it moves.
type Recorded = (Item, Result<Answer>, u64);

/// A batch under way.
struct Flight<D: Driver> {
    items: Vec<Recorded>,
    downloads: Vec<Option<Download<D>>>,
    /// Nothing where nothing was recorded.
    fence: Option<Fence>,
    /// The number of the download with the time stamps.
    stamps: Option<usize>,
}

/// What an engine is opened with.
pub struct Opening {
    /// The device, as it was described.
    pub info: DeviceInfo,
    /// What ops need to know about it.
    pub profile: Profile,
    /// Which ops have their kernels; shared with the backend, which is asked by others.
    pub warm: Arc<Warm>,
    /// Keeps what was measured; nothing where it is measured each time.
    pub cache: Option<Arc<Cache>>,
    /// The most bytes of device memory that are kept for reuse, where the caller says.
    pub pool_bytes_max: Option<usize>,
}

impl<D: Driver> GpuEngine<D> {
    /// The engine over a driver.
    pub fn new(driver: D, opening: Opening) -> GpuEngine<D> {
        let Opening { info, profile, warm, cache, pool_bytes_max } = opening;
        let now = Instant::now();
        GpuEngine {
            info,
            context: Context::new(driver, profile, cache, pool_bytes_max),
            gathered: Vec::new(),
            spare: Vec::new(),
            flights: VecDeque::new(),
            last_look: now,
            gathering: Gathering::new(now),
            warm,
        }
    }

    /// What ops have at hand, for tests that break it.
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

    /// Hands everything recorded over to the device.
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
            // An error that belongs to no call belongs to the whole submission, and what it brings is not waited for.
            for (_, answer, _) in items.iter_mut().filter(|(_, answer, _)| answer.is_ok()) {
                *answer = Err(error.clone());
            }
            downloads.clear();
        }
        self.flights.push_back(Flight { items, downloads, fence, stamps });
    }

    /// Whether what was gathered should be handed over now.
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

    fn land(&mut self, finished: &mut Vec<Finished>) {
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
                finished.push(Finished { token, op, result, batch_size, bytes_moved, transferred: None, device_time });
            }
            if self.spare.len() < SPARE_MAX {
                self.spare.push(flight.items);
            }
        }
    }

    /// The time between every first and second stamp, added up.
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

    fn poll(&mut self, finished: &mut Vec<Finished>, wait_max: Duration) -> usize {
        let before = finished.len();
        let now = Instant::now();
        let waits = !wait_max.is_zero();
        // A device in software needs this core itself.
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
        self.context.memory.stats()
    }

    fn health(&mut self) -> Health {
        Health { fault: self.context.driver.faults().lost(), ..Health::default() }
    }

    fn warm_up(&mut self, op: &Op) {
        if self.context.driver.faults().lost().is_some() {
            return;
        }
        // What was recorded goes to the device first: a rehearsal leaves nothing behind, and so must find nothing.
        self.launch();
        self.context.rehearse(|context| drop(ops::run(op, context)));
        // A rehearsal that failed is over all the same: the op itself will show why.
        let _ = self.context.take_error();
        self.warm.insert(op);
    }
}

impl<D: Driver> Drop for GpuEngine<D> {
    /// Work under way may still write to memory that goes with the engine: the device frees it when it is done.
    fn drop(&mut self) {
        self.context.driver.look();
    }
}
