//! The state shared by the engines of one backend: warm ops, access to peers' memory, and compiled
//! kernels.

use std::rc::Rc;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use panoply_core::{Backend, DeviceId, DeviceInfo, MemoryLimits, Op, OpenOptions, Result, Warmth};
use panoply_kernels::cache::Cache;
use panoply_kernels::warm::GrowingSet;

use crate::compile::{CompileQueue, Compiler};
use crate::context::Context;
use crate::driver::Driver;
use crate::engine::GpuEngine;
pub use crate::peers::DEVICES_MAX;
use crate::peers::Peers;

/// Share of the device's memory that the pool keeps for reuse, unless the caller sets a limit.
const POOL_SHARE: f64 = 0.5;
/// The folder of compiled kernels within the user's cache folder.
const CACHE_NAME: &str = "kernels";

/// A backend whose engines are `GpuEngine`s.
pub trait GpuBackend: Backend {
    /// [`Backend::open`] with the engine's own type.
    fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<GpuEngine>;

    /// Compiles the kernels of these ops in parallel, without running anything. Reports the number
    /// done and the total. Engines opened later find the compiled kernels.
    fn compile_ahead(
        &self,
        device: &DeviceInfo,
        ops: &mut dyn Iterator<Item = &Op>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<()> {
        self.open_engine(device, &OpenOptions::default())?.compile_ahead(ops, progress);
        Ok(())
    }
}

/// The devices of one backend.
#[derive(Clone)]
pub struct Devices {
    /// The ops that each device has run, by the device's index.
    warm: [Arc<GrowingSet>; DEVICES_MAX],
    peers: Arc<Peers>,
    /// For each device, one bit per other device whose memory it can read directly. Determined on
    /// first use.
    reach: Arc<OnceLock<Reach>>,
    queues: Arc<Mutex<Vec<KindOfDevice>>>,
}

/// The compile queue of one kind of device.
struct KindOfDevice {
    /// The identity of its compiler.
    identity: String,
    queue: Arc<CompileQueue>,
}

impl Default for Devices {
    fn default() -> Devices {
        Devices {
            warm: std::array::from_fn(|_| Arc::new(GrowingSet::default())),
            peers: Arc::default(),
            reach: Arc::default(),
            queues: Arc::default(),
        }
    }
}

/// For each device, one bit per other device whose memory it can read directly.
pub type Reach = [u64; DEVICES_MAX];

impl Devices {
    /// Makes an engine on a driver that was just opened on the calling thread. `reach` is called at
    /// most once.
    pub fn open(
        &self,
        driver: Rc<dyn Driver>,
        checker: Option<Arc<dyn Compiler>>,
        device: &DeviceInfo,
        options: &OpenOptions,
        reach: impl FnOnce() -> Reach,
    ) -> Result<GpuEngine> {
        let (_, total) = driver.memory_info()?;
        let pool_bytes_max = Some((total as f64 * POOL_SHARE) as usize);
        let limits = options.memory.or(MemoryLimits { pool_bytes_max, ..MemoryLimits::default() });
        let has_peers = self.reach.get_or_init(reach).iter().any(|others| *others != 0);
        let peers = has_peers.then(|| Arc::clone(&self.peers));
        let queue = self.queue(driver.compiler(), checker);
        let context = Context::new(driver, device.id, queue, &limits, peers);
        Ok(GpuEngine::new(device.clone(), context, Arc::clone(self.warm(device))))
    }

    /// Whether an op's kernels are loaded on a device.
    pub fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        if self.warm(device).contains(op) { Warmth::Warm } else { Warmth::Cold }
    }

    /// Whether a device can read the memory of another device of this backend.
    pub fn reaches(&self, device: &DeviceInfo, owner: DeviceId, reach: impl FnOnce() -> Reach) -> bool {
        let others = self.reach.get_or_init(reach).get(device.id.index as usize).copied().unwrap_or(0);
        owner.api == device.id.api && others.checked_shr(owner.index).unwrap_or(0) & 1 != 0
    }

    fn queue(&self, compiler: Arc<dyn Compiler>, checker: Option<Arc<dyn Compiler>>) -> Arc<CompileQueue> {
        let mut queues = self.queues.lock().unwrap_or_else(PoisonError::into_inner);
        let identity = compiler.identity();
        if let Some(known) = queues.iter().find(|known| known.identity == identity) {
            return Arc::clone(&known.queue);
        }
        let queue = Arc::new(CompileQueue::new(compiler, checker, Cache::open(CACHE_NAME).ok()));
        queues.push(KindOfDevice { identity, queue: Arc::clone(&queue) });
        queue
    }

    fn warm(&self, device: &DeviceInfo) -> &Arc<GrowingSet> {
        &self.warm[device.id.index as usize % DEVICES_MAX]
    }
}

/// The feature string of a device for the cache of compiled kernels: available, or the reason why
/// not.
pub fn cache_feature() -> String {
    match Cache::open(CACHE_NAME) {
        Ok(_) => "kernel-cache".to_owned(),
        Err(error) => format!("no-kernel-cache ({error})"),
    }
}
