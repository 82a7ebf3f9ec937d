//! What an op has at hand while it is submitted. Everything is queued on the compute stream; nothing here waits for the device.
//!
//! * `inputs` brings tensors to the device, or finds them there.
//! * `outputs` takes memory for results and scratch, and brings results to the host.
//! * `launches` queues kernels, fills and copies.
//! * `recorded` has what is different while a graph is queued: the words of its kernels' complaints, and the memory that its steps share.
//!
//! This file holds what the engine does with a context: lend it to an op, take what the op left behind, rehearse.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Weak};

use panoply_core::{DeviceId, HostBufferMut, MemoryStats, Result, Tensor, Value};
use panoply_graph::Held;

use crate::compile::CompileQueue;
use crate::complaint::{Complaint, Complaints};
use crate::driver::{Address, Driver, Event, Function};
use crate::kernels::Kernels;
use crate::memory::{Block, DeviceMemory};
use crate::ops::compute::map::Maps;
use crate::ops::compute::row_map::RowMaps;
use crate::ops::compute::scan::ScanBoard;
use crate::ops::crypto::BaseTables;
use crate::ops::graph::{Graphs, Replay};
use crate::peers::{Peer, Peers};
use crate::staging::Staging;

mod inputs;
mod launches;
mod outputs;
mod recorded;
mod secrets;
mod tables;

pub use launches::COUNTERS;
pub use outputs::Output;
pub(crate) use outputs::{Planned, PlannedPlace};
use recorded::Workspaces;
pub(crate) use recorded::{Copies, Words};
pub(crate) use secrets::Wiped;
use tables::Tables;

/// Owned by the engine, lent to one op at a time.
pub struct Context {
    /// The device.
    pub driver: Rc<dyn Driver>,
    /// Which one it is.
    pub device: DeviceId,
    pub(crate) memory: DeviceMemory,
    /// Generated elementwise kernels.
    pub(crate) maps: Maps,
    /// Generated kernels of row functions.
    pub(crate) row_maps: RowMaps,
    /// Compiled graphs.
    pub(crate) graphs: Graphs,
    /// Where scans leave word from tile to tile.
    pub(crate) scans: ScanBoard,
    /// Small tables that stay on the device.
    tables: Tables,
    /// Multiples of the bases of curves.
    pub(crate) base_tables: BaseTables,
    staging: Staging,
    kernels: Kernels,
    complaints: Complaints,
    /// The other engines of the backend, where there are any, and those whose memory this one reads.
    peers: Option<Arc<Peers>>,
    reached: Vec<Weak<Peer>>,
    /// Where the outputs of a graph's step go, while one runs.
    pub(crate) planned: Planned,
    /// What the steps of a graph share, while one runs.
    workspaces: Option<Workspaces>,
    /// The words of a recording, while one is made.
    words: Option<Words>,
    /// Numbers that are zero whenever no kernel runs.
    counters: Option<Block>,
    /// Events that no op uses.
    events: Vec<Event>,
    /// What the op under way has queued so far.
    queued: Queued,
    mode: Mode,
    /// Whether what is queued is recorded, so that nothing can be waited for.
    pub(crate) is_recording: bool,
    launches: u64,
}

/// What becomes of an op's launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// They are queued.
    Run,
    /// Their kernels are loaded, and nothing is queued.
    Load,
    /// Their kernels are asked for, and nobody waits for them.
    Request,
}

/// The last step of an op, on the host.
pub(crate) type Finish = Box<dyn FnOnce(Value) -> Result<Value>>;

/// What an op that was submitted leaves behind until it has finished.
#[derive(Default)]
pub(crate) struct Queued {
    /// Memory that its kernels use.
    #[allow(dead_code)] // Held so that the pool does not lend it again.
    pub(crate) held: Vec<Block>,
    /// Host memory that it uploads from.
    #[allow(dead_code)] // Held so that nobody writes to it.
    pinned: Vec<HostBufferMut>,
    /// Secrets that it uploads.
    #[allow(dead_code)] // Held until they are wiped.
    secret_pinned: Vec<Wiped>,
    /// Memory that is overwritten behind everything else.
    secrets: Vec<(Address, usize)>,
    /// What the host makes of the answer, once the device has passed the op.
    pub(crate) finish: Option<Finish>,
    /// Tensors between its kernels.
    #[allow(dead_code)] // Held so that the pool does not lend them again.
    pub(crate) between: Vec<Tensor>,
    /// Plans whose constants its kernels read.
    #[allow(dead_code)] // Held so that the pool does not lend those.
    plans: Vec<Arc<Held>>,
    /// Recordings that can go when it has finished.
    #[allow(dead_code)] // Held so that they last.
    replays: Vec<Replay>,
    /// Host memory that its kernels read where it is.
    lent: Vec<Address>,
    /// Engines whose memory its kernels read.
    #[allow(dead_code)] // Held so that their memory stands.
    peers: Vec<Arc<Peer>>,
    /// Kernels that can go when it has finished.
    retired: Vec<Function>,
    /// Bytes between host and device.
    pub(crate) bytes_moved: u64,
    /// Around its large copies.
    pub(crate) copies: Option<(Event, Event)>,
    /// Whether it ends with a copy to the host.
    pub(crate) downloads: bool,
    /// What its kernels may have found wrong with its input.
    complaints: Vec<Complaint>,
}

impl Queued {
    /// Whether it is nothing but kernels and copies within the device, which can be queued again as they are.
    pub(crate) fn is_repeatable(&self) -> bool {
        self.complaints.is_empty()
            && self.lent.is_empty()
            && self.copies.is_none()
            && !self.downloads
            && self.peers.is_empty()
            && self.secrets.is_empty()
            && self.finish.is_none()
    }

    /// Takes over what was queued before and will not be handed out. What can be queued so has no complaints.
    pub(crate) fn absorb(&mut self, before: Queued) {
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
    }
}

impl Context {
    /// A context on an opened device, whose pool keeps at most so many bytes for reuse.
    pub fn new(
        driver: Rc<dyn Driver>,
        device: DeviceId,
        queue: Arc<CompileQueue>,
        cached_bytes_max: usize,
        peers: Option<Arc<Peers>>,
    ) -> Context {
        let peer = peers.as_ref().map(|peers| peers.join(device, driver.context_handle()));
        Context {
            memory: DeviceMemory::new(Rc::clone(&driver), device, cached_bytes_max, peer),
            staging: Staging::new(Rc::clone(&driver)),
            complaints: Complaints::new(Rc::clone(&driver), device),
            kernels: Kernels::new(device, queue),
            maps: Maps::default(),
            row_maps: RowMaps::default(),
            graphs: Graphs::default(),
            planned: Planned::default(),
            scans: ScanBoard::default(),
            tables: Tables::default(),
            base_tables: BaseTables::default(),
            driver,
            device,
            peers,
            reached: Vec::new(),
            workspaces: None,
            words: None,
            counters: None,
            events: Vec::new(),
            queued: Queued::default(),
            mode: Mode::Run,
            is_recording: false,
            launches: 0,
        }
    }

    /// What the op that was just submitted leaves behind.
    pub(crate) fn take_queued(&mut self) -> Queued {
        let mut queued = std::mem::take(&mut self.queued);
        // Also where a step of a graph has panicked.
        (self.workspaces, self.words) = (None, None);
        queued.retired = self.kernels.take_retired();
        if !queued.retired.is_empty() {
            // Recordings may use the kernels that go.
            queued.replays.extend(self.graphs.take_replays());
        }
        queued
    }

    /// What is queued until `end_apart`, kept apart from what the op under way has queued so far, which is returned.
    pub(crate) fn begin_apart(&mut self) -> Queued {
        std::mem::take(&mut self.queued)
    }

    /// What was queued since `begin_apart`; the op goes on with what it had before.
    pub(crate) fn end_apart(&mut self, before: Queued) -> Queued {
        std::mem::replace(&mut self.queued, before)
    }

    /// Keeps a plan's constants until the op under way has finished.
    pub(crate) fn hold_plan(&mut self, plan: &Arc<Held>) {
        self.queued.plans.push(Arc::clone(plan));
    }

    /// Keeps recordings until the op under way, and all before it, have finished.
    pub(crate) fn hold_replays(&mut self, replays: impl IntoIterator<Item = Replay>) {
        self.queued.replays.extend(replays);
    }

    /// Ends what was queued, without an answer to anybody. The device must have passed it.
    pub fn forget_queued(&mut self) {
        let mut queued = self.take_queued();
        drop(self.settle(&mut queued));
    }

    /// The op has finished: its kernels' complaint, and the end of what only it still used.
    pub(crate) fn settle(&mut self, queued: &mut Queued) -> Result<()> {
        queued.retired.drain(..).for_each(|function| self.driver.unload(function));
        queued.lent.drain(..).for_each(|address| self.driver.free(address));
        let settled: Vec<Result<()>> =
            queued.complaints.drain(..).map(|complaint| self.complaints.settle(complaint)).collect();
        settled.into_iter().collect()
    }

    /// Lets `run` find what it needs without queueing anything.
    pub(crate) fn rehearse(&mut self, mode: Mode, run: impl FnOnce(&mut Context)) {
        self.mode = mode;
        // Whatever becomes of it, the next op is no rehearsal.
        drop(catch_unwind(AssertUnwindSafe(|| run(self))));
        self.mode = Mode::Run;
        (self.workspaces, self.words) = (None, None);
        // Kernels that made room stay for the next op: those under way may use them.
        let mut queued = std::mem::take(&mut self.queued);
        // No kernel ran, so none has complained.
        drop(self.settle(&mut queued));
    }

    /// Whether nothing must be queued now: ops that call a library leave it at having planned.
    pub(crate) fn is_rehearsal(&self) -> bool {
        self.mode != Mode::Run
    }

    /// Whether kernels are only asked for.
    pub(crate) fn is_request(&self) -> bool {
        self.mode == Mode::Request
    }

    /// Queues what later ops count on, in a rehearsal too.
    pub(crate) fn lasting<T>(&mut self, queue: impl FnOnce(&mut Context) -> T) -> T {
        let mode = std::mem::replace(&mut self.mode, Mode::Run);
        let queued = queue(self);
        self.mode = mode;
        queued
    }

    /// An event that nobody uses.
    pub(crate) fn event(&mut self) -> Result<Event> {
        self.events.pop().map_or_else(|| self.driver.event(), Ok)
    }

    /// Gives an event back that no op waits for any more.
    pub(crate) fn give_back(&mut self, event: Event) {
        self.events.push(event);
    }

    /// Lanes of a warp.
    pub(crate) fn warp_lanes(&self) -> usize {
        self.driver.properties().warp_lanes as usize
    }

    /// Multiprocessors.
    pub(crate) fn multiprocessors(&self) -> usize {
        self.driver.properties().multiprocessors as usize
    }

    /// Kernels that were started, for tests that count them.
    pub fn launches(&self) -> u64 {
        self.launches
    }

    /// Kernels that are loaded.
    pub fn kernels_loaded(&self) -> usize {
        self.kernels.count()
    }

    /// Where kernels are compiled.
    pub fn compile_queue(&self) -> &CompileQueue {
        self.kernels.queue()
    }

    /// With room for so many loaded kernels.
    #[cfg(test)]
    pub(crate) fn limit_kernels(&mut self, loaded_max: usize) {
        self.kernels.limit(loaded_max);
    }

    /// What the pools of device memory and of pinned host memory hold.
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
