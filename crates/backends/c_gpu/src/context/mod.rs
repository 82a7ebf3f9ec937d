//! The context of an op while it is submitted. Everything is queued on the compute stream of the
//! op's lane; nothing here waits for the device.
//!
//! * `inputs` brings tensors to the device, or finds them there.
//! * `outputs` allocates memory for results and scratch, and brings results to the host.
//! * `launches` queues kernels, fills and copies.
//! * `lanes` lets independent ops overlap, and orders those that share memory.
//! * `recorded` has the specifics of queueing a graph: the error words of its kernels, the memory
//!   that its steps share, and its recordings.
//! * `states` keeps the ops' own state, by type: this module names no op.
//!
//! This file has the engine's operations on a context: lending it to an op, taking the op's queued
//! resources, rehearsing.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use panoply_core::{DeviceId, HostBufferMut, MemoryLimits, MemoryStats, Result, Tensor, Value};
use panoply_graph::ResidentPlan;

use crate::compile::CompileQueue;
use crate::complaint::{DeviceError, DeviceErrors};
use crate::driver::{Address, Driver, Event, Function, LANES_MAX};
use crate::kernels::Kernels;
use crate::memory::{DeviceMemory, LeasedBlock};
use crate::peers::{Peer, Peers};
use crate::staging::Staging;

mod inputs;
mod lanes;
mod launches;
mod outputs;
mod recorded;
mod secrets;
mod states;
mod tables;

use lanes::Lanes;
pub use launches::COUNTERS;
pub use outputs::Output;
pub(crate) use outputs::{PlannedOutput, PlannedOutputs, PlannedPlace};
use recorded::Workspaces;
pub(crate) use recorded::{Copies, Replay, Words};
pub(crate) use secrets::WipedBuffer;
pub(crate) use states::DeviceState;
use states::States;
use tables::Tables;

/// Owned by the engine, lent to one op at a time.
pub struct Context {
    /// The device.
    pub driver: Rc<dyn Driver>,
    /// Its id.
    pub device: DeviceId,
    pub(crate) memory: DeviceMemory,
    /// The ops' own state. It has recordings, so it is dropped before `kernels`.
    states: States,
    /// Small tables that stay on the device.
    tables: Tables,
    staging: Staging,
    kernels: Kernels,
    complaints: DeviceErrors,
    /// The other engines of the backend, if any, and those whose memory this engine reads.
    peers: Option<Arc<Peers>>,
    reached: Vec<Weak<Peer>>,
    /// Destinations of the outputs of a graph's step, while a graph runs.
    pub(crate) planned: PlannedOutputs,
    /// Workspaces shared by the steps of a graph, while a graph runs.
    workspaces: Option<Workspaces>,
    /// The error words of a recording, while one is made.
    words: Option<Words>,
    /// Counters of each lane, which are zero whenever none of its kernels runs.
    counters: [Option<LeasedBlock>; LANES_MAX],
    lanes: Lanes,
    /// Unused events.
    events: Vec<Event>,
    /// The resources queued by the current op so far.
    queued: OpResources,
    /// Pinned memory that lasting work of rehearsals reads, held until the next op has finished.
    rehearsed: Vec<HostBufferMut>,
    mode: Mode,
    /// Whether queued work is being recorded, so that nothing can be waited for.
    pub(crate) is_recording: bool,
    launches: u64,
}

/// The handling of an op's launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Kernels are queued.
    Run,
    /// Kernels are loaded, but nothing is queued.
    Load,
    /// Kernels are requested from the compiler, without waiting for them.
    Request,
}

/// The last step of an op, on the host.
pub(crate) type Finish = Box<dyn FnOnce(Value) -> Result<Value>>;

/// Resources of a submitted op, held until it has finished.
#[derive(Default)]
pub(crate) struct OpResources {
    /// Memory used by its kernels.
    #[allow(dead_code)] // Held so that the pool does not lend it again.
    pub(crate) held: Vec<LeasedBlock>,
    /// Host memory that it uploads from.
    #[allow(dead_code)] // Held so that it is not overwritten.
    pinned: Vec<HostBufferMut>,
    /// Secrets that it uploads.
    #[allow(dead_code)] // Held until they are wiped.
    secret_pinned: Vec<WipedBuffer>,
    /// Memory that is wiped after all other work.
    secrets: Vec<(Address, usize)>,
    /// The host's final step, run once the device has finished the op.
    pub(crate) finish: Option<Finish>,
    /// Tensors between its kernels.
    #[allow(dead_code)] // Held so that the pool does not lend them again.
    pub(crate) between: Vec<Tensor>,
    /// Plans whose constants its kernels read.
    #[allow(dead_code)] // Held so that the pool does not lend the constants again.
    plans: Vec<Arc<ResidentPlan>>,
    /// Recordings to drop when it has finished.
    #[allow(dead_code)] // Held so that they stay alive.
    replays: Vec<Replay>,
    /// Host memory that its kernels read in place.
    lent: Vec<Address>,
    /// Engines whose memory its kernels read.
    #[allow(dead_code)] // Held so that their memory stays alive.
    peers: Vec<Arc<Peer>>,
    /// Kernels to unload when it has finished.
    retired: Vec<Function>,
    /// Bytes moved between host and device.
    pub(crate) bytes_moved: u64,
    /// Events around its large copies.
    pub(crate) copies: Option<(Event, Event)>,
    /// Whether it ends with a copy to the host.
    pub(crate) downloads: bool,
    /// The error words of its kernels.
    complaints: Vec<DeviceError>,
    /// Whether its end waits for all lanes, because ops there may use what it releases.
    pub(crate) is_behind_all: bool,
}

impl OpResources {
    /// Whether it consists only of kernels and copies within the device, which can be queued again
    /// unchanged.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.complaints.is_empty()
            && self.lent.is_empty()
            && self.copies.is_none()
            && !self.downloads
            && self.peers.is_empty()
            && self.secrets.is_empty()
            && self.finish.is_none()
    }

    /// Takes over the resources of earlier queued work that is not handed out. Such work has no
    /// error words.
    pub(crate) fn absorb(&mut self, before: OpResources) {
        self.held.extend(before.held);
        self.pinned.extend(before.pinned);
        self.secret_pinned.extend(before.secret_pinned);
        self.between.extend(before.between);
        self.plans.extend(before.plans);
        self.replays.extend(before.replays);
        self.peers.extend(before.peers);
        self.lent.extend(before.lent);
        self.retired.extend(before.retired);
        self.bytes_moved += before.bytes_moved;
        self.is_behind_all |= before.is_behind_all;
    }
}

impl Context {
    /// A context on an opened device, with pools of these sizes.
    pub fn new(
        driver: Rc<dyn Driver>,
        device: DeviceId,
        queue: Arc<CompileQueue>,
        limits: &MemoryLimits,
        peers: Option<Arc<Peers>>,
    ) -> Context {
        let peer = peers.as_ref().map(|peers| peers.join(device, driver.context_handle()));
        Context {
            memory: DeviceMemory::new(Rc::clone(&driver), device, limits, peer),
            staging: Staging::new(Rc::clone(&driver), limits.pinned_bytes_max),
            complaints: DeviceErrors::new(Rc::clone(&driver), device),
            kernels: Kernels::new(device, queue),
            states: States::default(),
            planned: PlannedOutputs::default(),
            tables: Tables::default(),
            lanes: Lanes::new(&*driver),
            driver,
            device,
            peers,
            reached: Vec::new(),
            workspaces: None,
            words: None,
            counters: [const { None }; LANES_MAX],
            events: Vec::new(),
            queued: OpResources::default(),
            rehearsed: Vec::new(),
            mode: Mode::Run,
            is_recording: false,
            launches: 0,
        }
    }

    /// Takes the resources of the op that was just submitted.
    pub(crate) fn take_queued(&mut self) -> OpResources {
        let mut queued = std::mem::take(&mut self.queued);
        // Reset even if a step of a graph has panicked.
        (self.workspaces, self.words) = (None, None);
        // The uploads of a rehearsal may be under way on its lane.
        queued.is_behind_all |= !self.rehearsed.is_empty();
        queued.pinned.append(&mut self.rehearsed);
        queued.retired = self.kernels.take_retired();
        if !queued.retired.is_empty() {
            queued.is_behind_all = true;
            // Recordings may use the retired kernels.
            queued.replays.extend(self.states.take_replays());
        }
        queued
    }

    /// Drops all recordings, once the current op has finished: they hold addresses that are about
    /// to be given back.
    pub(crate) fn drop_recordings(&mut self) {
        let replays = self.states.take_replays();
        self.queued.replays.extend(replays);
        self.queued.is_behind_all = true;
    }

    /// Begins a separate collection of queued resources, until `end_apart`. Returns the current
    /// op's resources so far.
    pub(crate) fn begin_apart(&mut self) -> OpResources {
        std::mem::take(&mut self.queued)
    }

    /// Returns the resources queued since `begin_apart`; the op continues with its earlier ones.
    pub(crate) fn end_apart(&mut self, before: OpResources) -> OpResources {
        std::mem::replace(&mut self.queued, before)
    }

    /// Keeps a plan's constants until the current op has finished.
    pub(crate) fn hold_plan(&mut self, plan: &Arc<ResidentPlan>) {
        self.queued.plans.push(Arc::clone(plan));
    }

    /// Keeps recordings until the current op, and all before it on its lane, have finished.
    pub(crate) fn hold_replays(&mut self, replays: impl IntoIterator<Item = Replay>) {
        self.queued.replays.extend(replays);
    }

    /// Drops the queued resources without a result. The device must have finished the work.
    pub fn forget_queued(&mut self) {
        let mut queued = self.take_queued();
        drop(self.settle(&mut queued));
    }

    /// Finishes an op: evaluates its error words and releases its resources.
    pub(crate) fn settle(&mut self, queued: &mut OpResources) -> Result<()> {
        queued.retired.drain(..).for_each(|function| self.driver.unload(function));
        queued.lent.drain(..).for_each(|address| self.driver.take_back(address));
        let settled: Vec<Result<()>> =
            queued.complaints.drain(..).map(|complaint| self.complaints.settle(complaint)).collect();
        settled.into_iter().collect()
    }

    /// Runs `run` in a rehearsal mode, which prepares its kernels without queueing anything.
    pub(crate) fn rehearse(&mut self, mode: Mode, run: impl FnOnce(&mut Context)) {
        self.mode = mode;
        // A panic is caught, so that the next op is not a rehearsal.
        drop(catch_unwind(AssertUnwindSafe(|| run(self))));
        self.mode = Mode::Run;
        (self.workspaces, self.words) = (None, None);
        // Retired kernels are kept for the next op: work in flight may use them.
        let mut queued = std::mem::take(&mut self.queued);
        // No kernel ran, so no error word was written.
        drop(self.settle(&mut queued));
    }

    /// Whether nothing may be queued now: ops that call a library then only plan.
    pub(crate) fn is_rehearsal(&self) -> bool {
        self.mode != Mode::Run
    }

    /// Whether kernels are only requested.
    pub(crate) fn is_request(&self) -> bool {
        self.mode == Mode::Request
    }

    /// Queues work that later ops rely on, even in a rehearsal.
    pub(crate) fn lasting<T>(&mut self, queue: impl FnOnce(&mut Context) -> T) -> T {
        let mode = std::mem::replace(&mut self.mode, Mode::Run);
        let pinned = self.queued.pinned.len();
        let queued = queue(self);
        self.publish();
        self.mode = mode;
        if self.is_rehearsal() {
            self.rehearsed.extend(self.queued.pinned.drain(pinned..));
        }
        queued
    }

    /// An unused event.
    pub(crate) fn event(&mut self) -> Result<Event> {
        self.events.pop().map_or_else(|| self.driver.event(), Ok)
    }

    /// Returns an event that no op waits for any more.
    pub(crate) fn give_back(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Number of lanes of a warp.
    pub(crate) fn warp_lanes(&self) -> usize {
        self.driver.properties().warp_lanes as usize
    }

    /// Number of multiprocessors.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.driver.properties().multiprocessors as usize
    }

    /// Number of started kernels, for tests.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// Number of loaded kernels.
    pub fn kernels_loaded(&self) -> usize {
        self.kernels.count()
    }

    /// The queue of the compiler.
    pub fn compile_queue(&self) -> &CompileQueue {
        self.kernels.queue()
    }

    /// Limits the number of loaded kernels.
    #[cfg(test)]
    pub(crate) fn limit_kernels(&mut self, loaded_max: usize) {
        self.kernels.limit(loaded_max);
    }

    /// Pinned host memory, with arbitrary contents.
    pub(crate) fn pinned(&mut self, len_bytes: usize) -> Result<HostBufferMut> {
        self.staging.target(len_bytes)
    }

    /// Frees memory that the pools cache, until at most `keep_bytes` are cached in each.
    pub(crate) fn trim(&mut self, keep_bytes: usize) {
        self.memory.trim(keep_bytes);
        self.staging.trim(keep_bytes);
    }

    /// Statistics of the pools of device memory and of pinned host memory.
    pub(crate) fn memory_stats(&mut self) -> MemoryStats {
        let (device, pinned) = (self.memory.stats(), self.staging.stats());
        MemoryStats {
            lent_bytes: device.lent_bytes + pinned.lent_bytes,
            cached_bytes: device.cached_bytes + pinned.cached_bytes,
            peak_bytes: device.peak_bytes + pinned.peak_bytes,
            hits: device.hits + pinned.hits,
            misses: device.misses + pinned.misses,
        }
    }
}
