//! The two traits that connect an API to Panoply.
//!
//! A [`Backend`] is shared by all threads: it finds devices, says what each of them can run, and opens them. An
//! [`Engine`] is one opened device. It is made on the worker thread that owns it, never leaves that thread, and needs
//! to be neither `Send` nor `Sync`; every method takes `&mut self`.
//!
//! The contract of an engine:
//!
//! 1. `submit` takes every item out of the batch and returns without waiting for the device where the device can work
//!    by itself. (The CPU engine computes in `submit`: its device is the thread that calls it.)
//! 2. Each submitted item comes out of `poll` exactly once, with its own result, in the order of submission. One bad
//!    item never fails its neighbours. The worker compares what comes out with the op ([`Op::check_answer`]): a wrong answer counts as
//!    a fault of the device, and one that is owed for longer than the time limit as a hung device, whatever comes out meanwhile.
//! 3. A device that is gone answers [`Error::DeviceLost`] for every item; the worker then drops the engine and opens a
//!    new one.
//! 4. What an op leaves on the device for later ops is a [device object](crate::object). An engine that has any keeps their
//!    states in an [`ObjectTable`](crate::ObjectTable) and answers [`Error::ObjectLost`] for those of an engine before it.
//! 5. An op that answers more than once carries a [`Sink`](crate::sink::Sink): values go there while the op is under way, and
//!    it still comes out of `poll` exactly once, at its end. Such a session holds up no other op: it comes out of turn.
//! 6. A secret part (see [`PartRef::is_secret`](crate::PartRef::is_secret)) is wiped from whatever the engine copied it to, before
//!    the op comes out of `poll`.
//! 7. Nothing here panics on what a caller or a device says. A worker catches panics nevertheless, and treats the engine
//!    as lost.

use std::fmt;
use std::time::Duration;

use crate::device::{Api, DeviceId, DeviceInfo};
use crate::error::{Error, Result};
use crate::op::{Describe, Domain, Op};
use crate::part::Value;

/// The code for one API.
pub trait Backend: Send + Sync {
    /// Which API this is.
    fn api(&self) -> Api;

    /// The devices that are there now, or why there are none. Never panics, and does not keep devices open.
    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence>;

    /// Whether this device runs this op, with these element types and shapes. Called by whoever submits an op, on the
    /// caller's thread, so it must be quick and must not touch the device. Where the inputs live is not its business: the
    /// runtime brings inputs that live on another device to the host before it submits the op, unless the device reaches them.
    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support;

    /// The same answer without its reason, for the path of every op: a backend whose refusals are frequent says no here
    /// without writing a sentence about it.
    fn can_run(&self, device: &DeviceInfo, op: &Op) -> bool {
        self.supports(device, op).is_yes()
    }

    /// The backend that this one wraps, where it wraps one: it then answers for whatever is not answered here, so that
    /// nothing that is added to this trait can be forgotten.
    fn inner(&self) -> Option<&dyn Backend> {
        None
    }

    /// Whether the op could start at once, or a kernel would have to be compiled for it first. Called on the caller's
    /// thread, like [`Backend::supports`]. The router lets another device serve while this one is cold, and asks the
    /// engine to [`Engine::warm_up`].
    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        self.inner().map_or(Warmth::Warm, |inner| inner.warmth(device, op))
    }

    /// Whether the device reads tensors that live on that other one by itself, faster than by way of the host. Its engine then
    /// gets ops with such inputs as they are. Called on the caller's thread, and only for inputs that live elsewhere.
    fn reaches(&self, device: &DeviceInfo, owner: DeviceId) -> bool {
        self.inner().is_some_and(|inner| inner.reaches(device, owner))
    }

    /// What is assumed of an op where none like it has run on the device yet: better too little than too much, so that the
    /// device is tried. Called on the caller's thread.
    fn first_guess(&self, device: &DeviceInfo, op: &Op) -> FirstGuess {
        self.inner().map_or_else(|| FirstGuess::of(device), |inner| inner.first_guess(device, op))
    }

    /// Opens a device. Called on the worker thread that will own the engine.
    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>>;
}

/// One opened device, owned by one thread.
pub trait Engine {
    /// What the device is.
    fn info(&self) -> &DeviceInfo;

    /// Takes all items out of `batch` and starts them.
    fn submit(&mut self, batch: &mut Vec<Item>);

    /// Appends what has finished to `finished`, in the order of submission, and returns how many items are still under
    /// way. Where nothing has finished it may wait, at most `wait_max`.
    fn poll(&mut self, finished: &mut Vec<Finished>, wait_max: Duration) -> usize;

    /// What the engine's memory pools hold.
    fn memory(&mut self) -> MemoryStats;

    /// How the device is. The worker asks about once a second, between batches.
    fn health(&mut self) -> Health;

    /// Compiles and loads what the op needs, without running it, so that [`Backend::warmth`] answers
    /// [`Warmth::Warm`] from then on. Called between batches. An engine without kernels to compile has nothing to do; a
    /// failure shows when the op is run.
    fn warm_up(&mut self, _op: &Op) {}
}

/// How to open a device.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// How many threads an engine that computes on the CPU may use, the worker's own included. `None`: all CPUs that
    /// the worker thread may run on.
    pub threads: Option<usize>,
    /// The most bytes that the engine's pools may keep for reuse. `None`: the engine's own choice.
    pub pool_bytes_max: Option<usize>,
}

/// One op on its way through an engine.
#[derive(Debug)]
pub struct Item {
    /// The worker's name for it; comes back in [`Finished`].
    pub token: u64,
    /// What to do. The engine may assume that it was validated.
    pub op: Op,
}

/// One op that an engine is done with.
#[derive(Debug)]
pub struct Finished {
    /// The worker's name for it.
    pub token: u64,
    /// The op as it was submitted, handed back so that it can be tried elsewhere.
    pub op: Op,
    /// What came of it.
    pub result: Result<Value>,
    /// How many ops ran together with it, itself included.
    pub batch_size: u32,
    /// Bytes that crossed between host and device for it.
    pub bytes_moved: u64,
    /// Time spent moving them, where the engine can tell.
    pub transferred: Option<Duration>,
    /// Time that the device itself worked on it, where the engine can tell.
    pub device_time: Option<Duration>,
}

impl Finished {
    /// An item that ran alone, with nothing moved.
    pub fn alone(item: Item, result: Result<Value>) -> Finished {
        Finished {
            token: item.token,
            op: item.op,
            result,
            batch_size: 1,
            bytes_moved: 0,
            transferred: None,
            device_time: None,
        }
    }
}

/// Why an API has no device here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Absence {
    /// The backend was left out of this build.
    #[error("not compiled in: build with the feature `{feature}`")]
    NotCompiled {
        /// The feature that brings it.
        feature: &'static str,
    },
    /// The vendor's library is not installed.
    #[error("library not found (tried {})", tried.join(", "))]
    LibraryMissing {
        /// The names that were tried.
        tried: Vec<String>,
    },
    /// The library is there, but it sees no device.
    #[error("no device: {reason}")]
    NoDevice {
        /// What was looked for, or what the driver said.
        reason: String,
    },
    /// A device is there, but this process may not use it.
    #[error("not permitted: {reason}")]
    Denied {
        /// What is missing.
        reason: String,
    },
}

/// Whether a device runs an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// It does.
    Yes,
    /// It does not, for this reason.
    No(String),
}

impl Support {
    /// The answer of a backend that knows nothing of an op's domain.
    pub fn unknown(op: &Op) -> Support {
        match op.domain() {
            Domain::Extension => Support::No(format!("it does not know the op {}", op.name())),
            domain => Support::No(format!("it runs no op of the domain {domain}")),
        }
    }

    /// True for [`Support::Yes`].
    pub fn is_yes(&self) -> bool {
        *self == Support::Yes
    }

    /// The error of an op that reached an engine although its backend says no.
    pub fn refusal(self, op: &Op) -> Error {
        let reason = match self {
            Support::Yes => "the engine lacks it".to_owned(),
            Support::No(reason) => reason,
        };
        Error::Unsupported { op: op.name(), reason }
    }
}

/// What is assumed of an op that has not run yet: an overhead and a speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstGuess {
    /// What every op takes, however small.
    pub overhead_ns: f32,
    /// What each unit of the op's [work](Describe::work) adds.
    pub work_unit_ns: f32,
}

impl FirstGuess {
    /// What suits a device of this sort.
    pub fn of(device: &DeviceInfo) -> FirstGuess {
        let (overhead_ns, work_unit_ns) = match (device.shares_host_memory, device.runs_on_cores) {
            (true, _) => (2_000.0, 0.5),
            (false, true) => (50_000.0, 0.5),
            (false, false) => (20_000.0, 0.02),
        };
        FirstGuess { overhead_ns, work_unit_ns }
    }
}

/// Whether an op's kernel is ready to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Warmth {
    /// It starts at once.
    #[default]
    Warm,
    /// Something must be compiled first.
    Cold,
}

/// What an engine's memory pools hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes lent out now.
    pub lent_bytes: u64,
    /// Bytes kept for reuse.
    pub cached_bytes: u64,
    /// The most bytes that were lent and cached at once.
    pub peak_bytes: u64,
    /// Allocations served from the cache.
    pub hits: u64,
    /// Allocations that went to the system or the driver.
    pub misses: u64,
}

/// How a device is. What it does not tell is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// The hottest sensor.
    pub temperature_celsius: Option<f32>,
    /// Power drawn.
    pub power_watts: Option<f32>,
    /// Share of time in use, 0 to 100.
    pub utilisation_percent: Option<f32>,
    /// Share of memory in use, 0 to 100.
    pub memory_percent: Option<f32>,
    /// True while the device slows itself down.
    pub throttled: Option<bool>,
    /// Requests that the engine holds, under way or waiting, where it counts them: an op may be thousands.
    pub queue_depth: Option<u32>,
    /// The fault that makes the engine unusable, if there is one.
    pub fault: Option<Error>,
}

impl fmt::Debug for dyn Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.info().id)
    }
}
