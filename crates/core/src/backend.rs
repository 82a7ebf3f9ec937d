//! The two traits that connect an API to Panoply.
//!
//! A [`Backend`] is shared by all threads. It finds devices, answers which ops each device can run,
//! and opens devices. An [`Engine`] is one opened device. It is created on the worker thread that
//! owns it and never leaves that thread, so it needs to be neither `Send` nor `Sync`. Every method
//! takes `&mut self`.
//!
//! The contract of an engine:
//!
//! 1. `submit` takes every item out of the batch. It returns without waiting for the device if the
//!    device can work by itself. (The CPU engine computes in `submit`: its device is the calling
//!    thread.)
//! 2. Each submitted item comes out of `poll` exactly once, with its own result, in the order of
//!    submission. Where a device runs independent ops at the same time, a later one may come first.
//!    One bad item never fails its neighbours. The worker compares each answer with the
//!    op ([`Op::check_answer`]). A wrong answer counts as a fault of the device. An answer that is
//!    overdue beyond the time limit counts as a hung device, even if other answers arrive
//!    meanwhile.
//! 3. A lost device answers [`Error::DeviceLost`] for every item. The worker then drops the engine
//!    and opens a new one.
//! 4. State that an op leaves on the device for later ops is a [device object](crate::object). An
//!    engine with objects keeps their states in an [`ObjectTable`](crate::ObjectTable), and answers
//!    [`Error::ObjectLost`] for objects of an earlier engine.
//! 5. An op that answers more than once carries a [`Sink`](crate::sink::Sink). The engine sends
//!    values to the sink while the op runs. The op still comes out of `poll` exactly once, at its
//!    end. Such a session delays no other op: it may come out of turn.
//! 6. The engine wipes every copy that it made of a secret part (see
//!    [`PartRef::is_secret`](crate::PartRef::is_secret)) before the op comes out of `poll`.
//! 7. No input of a caller and no answer of a device makes a method panic. A worker catches panics
//!    nevertheless, and treats the engine as lost.

use std::fmt;
use std::time::Duration;

use crate::buffer::HostBufferMut;
use crate::device::{Api, DeviceId, DeviceInfo, MemoryUse};
use crate::error::{Error, Result};
use crate::op::{Describe, Domain, Op};
use crate::part::Value;

/// The implementation of one API.
pub trait Backend: Send + Sync {
    /// The API of this backend.
    fn api(&self) -> Api;

    /// The devices that are present now, or the reason why there are none. Never panics, and keeps
    /// no device open. A backend that loads a vendor's library does so through [`crate::vendor`],
    /// here and in [`Backend::open`]: in a forked process the library may be half loaded.
    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence>;

    /// Whether this device runs this op, with these element types and shapes. Called on the thread
    /// of the caller that submits the op, so it must be quick and must not touch the device. The
    /// location of the inputs does not matter here: before submission the runtime copies inputs on
    /// another device to the host, unless [`Backend::reaches`] says that this device reads them
    /// directly.
    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support;

    /// The answer of [`Backend::supports`] without the reason. It is called for every op, so a
    /// backend that often refuses should override it to avoid formatting a message.
    fn can_run(&self, device: &DeviceInfo, op: &Op) -> bool {
        self.supports(device, op).is_yes()
    }

    /// The wrapped backend, if this backend wraps another one. The default methods of this trait
    /// forward to the wrapped backend, so a wrapper cannot forget a method that is added later.
    fn inner(&self) -> Option<&dyn Backend> {
        None
    }

    /// Whether the op could start at once, or a kernel must be compiled for it first. Called on the
    /// caller's thread, like [`Backend::supports`]. While this device is cold, the router uses
    /// another one and asks the engine to [`Engine::warm_up`].
    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        self.inner().map_or(Warmth::Warm, |inner| inner.warmth(device, op))
    }

    /// Whether `device` reads tensors in the memory of `owner` directly, faster than by way of the
    /// host. If so, its engine receives ops with such inputs unchanged. Called on the caller's
    /// thread, and only for inputs on another device.
    fn reaches(&self, device: &DeviceInfo, owner: DeviceId) -> bool {
        self.inner().is_some_and(|inner| inner.reaches(device, owner))
    }

    /// The cost that is assumed for an op while no similar op has run on the device. Guess rather
    /// too low than too high, so that the device is tried. Called on the caller's thread.
    fn first_guess(&self, device: &DeviceInfo, op: &Op) -> FirstGuess {
        self.inner().map_or_else(|| FirstGuess::of(device), |inner| inner.first_guess(device, op))
    }

    /// Opens a device. Called on the worker thread that will own the engine.
    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>>;
}

/// One opened device, owned by one thread.
pub trait Engine {
    /// Description of the device.
    fn info(&self) -> &DeviceInfo;

    /// Takes all items out of `batch` and starts them.
    fn submit(&mut self, batch: &mut Vec<Item>);

    /// Appends the ops that have finished since the last poll to `finished`, in the order of
    /// submission, and returns the number of items in flight. If nothing has finished it may wait,
    /// for at most `wait_max`.
    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize;

    /// The current state of the engine's memory pools.
    fn memory(&mut self) -> MemoryStats;

    /// The current health of the device. The worker asks about once a second, between batches.
    fn health(&mut self) -> Health;

    /// Compiles and loads the kernels of the op without running it. From then on
    /// [`Backend::warmth`] answers [`Warmth::Warm`]. Called between batches. An engine without
    /// kernels to compile does nothing. A failure shows when the op runs.
    fn warm_up(&mut self, _op: &Op) {}

    /// Host memory that the device's transfers reach directly: pinned memory. An engine without
    /// pinned memory returns ordinary memory. The contents may be those of an earlier user, which
    /// the runtime overwrites. Called between batches.
    fn pinned(&mut self, len_bytes: usize) -> Result<HostBufferMut> {
        HostBufferMut::zeroed(len_bytes)
    }

    /// Frees memory that the pools cache, until at most `keep_bytes` are cached in each. Called
    /// between batches.
    fn trim(&mut self, _keep_bytes: usize) {}
}

/// Options for opening a device.
#[derive(Clone, Debug, Default)]
pub struct OpenOptions {
    /// Number of threads that an engine on the CPU may use, including the worker's own. `None`: all
    /// CPUs that the worker thread may run on.
    pub threads: Option<usize>,
    /// The sizes of the engine's memory pools.
    pub memory: MemoryLimits,
    /// The implementation of keys, hashes and signatures.
    pub crypto_provider: CryptoProvider,
}

/// The sizes of one engine's memory pools. `None`: the engine decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryLimits {
    /// The most bytes of device memory that the pools take, lent and cached. Beyond that, an op
    /// fails with [`Error::OutOfMemory`]. `None`: as much as the device has.
    pub device_bytes_max: Option<usize>,
    /// The most bytes of device memory that the pools cache for reuse.
    pub pool_bytes_max: Option<usize>,
    /// The most bytes of host memory for transfers (pinned, or staging memory) that are cached for
    /// reuse.
    pub pinned_bytes_max: Option<usize>,
}

impl MemoryLimits {
    /// These limits, with those of `other` where these have none.
    pub fn or(self, other: MemoryLimits) -> MemoryLimits {
        MemoryLimits {
            device_bytes_max: self.device_bytes_max.or(other.device_bytes_max),
            pool_bytes_max: self.pool_bytes_max.or(other.pool_bytes_max),
            pinned_bytes_max: self.pinned_bytes_max.or(other.pinned_bytes_max),
        }
    }
}

/// The implementation that runs the ops of the crypto domain, except compression. `docs/crypto.md`
/// describes how each implementation is checked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CryptoProvider {
    /// The fastest implementation of each device: AWS-LC, or this project's own code for vector
    /// registers and accelerators. No one outside the project has audited the project's own code.
    #[default]
    Fastest,
    /// Only AWS-LC, on the CPU. Every other device refuses the ops of the domain.
    AwsLc,
}

impl CryptoProvider {
    /// Every provider.
    pub const ALL: [CryptoProvider; 2] = [CryptoProvider::Fastest, CryptoProvider::AwsLc];

    /// The name in settings.
    pub const fn name(self) -> &'static str {
        match self {
            CryptoProvider::Fastest => "fastest",
            CryptoProvider::AwsLc => "aws-lc",
        }
    }

    /// The provider with this name in settings.
    pub fn named(name: &str) -> Option<CryptoProvider> {
        CryptoProvider::ALL.into_iter().find(|provider| provider.name() == name)
    }

    /// The reason why a device other than the CPU must not run this op, or `None` if it may run.
    /// Compression uses no keys and is always allowed.
    pub fn refusal(self, op: &Op) -> Option<String> {
        use crate::op::crypto::CryptoOp;
        let is_open = match op {
            Op::Crypto(CryptoOp::Compress(_) | CryptoOp::Decompress(_)) => true,
            Op::Crypto(_) => self == CryptoProvider::Fastest,
            _ => true,
        };
        (!is_open).then(|| "the setting crypto.provider is aws-lc, and AWS-LC runs on the CPU alone".to_owned())
    }
}

/// One op to be run by an engine.
#[derive(Debug)]
pub struct Item {
    /// The worker's id of the op, returned in [`FinishedOp`].
    pub token: u64,
    /// The op. It has been validated.
    pub op: Op,
}

/// One op that an engine has finished.
#[derive(Debug)]
pub struct FinishedOp {
    /// The worker's id of the op, from [`Item`].
    pub token: u64,
    /// The op as it was submitted, handed back so that it can be retried elsewhere.
    pub op: Op,
    /// The value, or the error.
    pub result: Result<Value>,
    /// Number of ops in the same batch, including this one.
    pub batch_size: u32,
    /// Bytes moved between host and device for this op.
    pub bytes_moved: u64,
    /// Time spent moving data, if the engine measures it.
    pub transferred: Option<Duration>,
    /// Time that the device itself worked on the op, if the engine measures it.
    pub device_time: Option<Duration>,
}

impl FinishedOp {
    /// A result of an item that ran alone, with no data moved.
    pub fn alone(item: Item, result: Result<Value>) -> FinishedOp {
        FinishedOp {
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

/// Why an API has no device on this machine.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Absence {
    /// The backend was left out of this build.
    #[error("not compiled in: build with the feature `{feature}`")]
    NotCompiled {
        /// The feature that includes it.
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
        /// The missing thing, or the message of the driver.
        reason: String,
    },
    /// A device is there, but this process may not use it.
    #[error("not permitted: {reason}")]
    Denied {
        /// The missing permission.
        reason: String,
    },
    /// This process was forked from one that had loaded vendors' libraries, or was loading some on
    /// another thread. They do not work in a copy of a process.
    #[error(
        "this process was forked from one that had loaded drivers, or was loading some: \
         fork before the first driver is loaded, or start a program (exec) in the child"
    )]
    Forked,
    /// The API has devices that the runtime does not serve.
    #[error("left out: {devices}: {reason}")]
    LeftOut {
        /// The devices' ids, such as `cuda:7, cuda:8`.
        devices: String,
        /// Why they are left out.
        reason: String,
    },
}

/// Whether a device runs an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Support {
    /// The device runs the op.
    Yes,
    /// The device does not run the op, for this reason.
    No(String),
}

impl Support {
    /// The refusal of a backend that implements nothing of the op's domain, or does not know the
    /// extension op.
    pub fn unknown(op: &Op) -> Support {
        match op.domain() {
            Domain::Extension | Domain::Outside(_) => Support::No(format!("it does not know the op {}", op.name())),
            domain => Support::No(format!("it runs no op of the domain {domain}")),
        }
    }

    /// True for [`Support::Yes`].
    pub fn is_yes(&self) -> bool {
        *self == Support::Yes
    }

    /// The error for an op that reached an engine although the engine cannot run it.
    pub fn refusal(self, op: &Op) -> Error {
        let reason = match self {
            Support::Yes => "the engine lacks it".to_owned(),
            Support::No(reason) => reason,
        };
        Error::Unsupported { op: op.name(), reason }
    }
}

/// The assumed cost of an op that has not run yet: a fixed overhead and a speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FirstGuess {
    /// Fixed time of every op, however small.
    pub overhead_ns: f32,
    /// Time of each unit of the op's [work](Describe::work).
    pub work_unit_ns: f32,
}

impl FirstGuess {
    /// A guess for this sort of device.
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
    /// The op starts at once.
    #[default]
    Warm,
    /// A kernel must be compiled first.
    Cold,
}

/// Statistics of an engine's memory pools.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryStats {
    /// Bytes lent out now.
    pub lent_bytes: u64,
    /// Bytes cached for reuse.
    pub cached_bytes: u64,
    /// The highest sum of lent and cached bytes so far.
    pub peak_bytes: u64,
    /// Allocations served from the cache.
    pub hits: u64,
    /// Allocations that went to the system or the driver.
    pub misses: u64,
}

/// Health of a device. Values that the device does not report are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Health {
    /// Temperature of the hottest sensor.
    pub temperature_celsius: Option<f32>,
    /// Power drawn.
    pub power_watts: Option<f32>,
    /// Share of time in use, 0 to 100.
    pub utilisation_percent: Option<f32>,
    /// The device's memory, of which other programs may use a part.
    pub memory: Option<MemoryUse>,
    /// True while the device slows itself down.
    pub throttled: Option<bool>,
    /// Requests in the engine, running or waiting, if the engine counts them. One op may consist of
    /// thousands.
    pub queue_depth: Option<u32>,
    /// The fault that makes the engine unusable, if any.
    pub fault: Option<Error>,
    /// Why the device has no sensors, or which of its sensors are missing.
    pub sensors_absent: Option<String>,
}

impl fmt::Debug for dyn Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Engine({})", self.info().id)
    }
}
