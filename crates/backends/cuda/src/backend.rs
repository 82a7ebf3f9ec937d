//! Finds CUDA devices and opens them.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Domain, Engine, Error, Op, OpenOptions,
    Result, Support, Warmth,
};
use panoply_kernels::c::Dialect;
use panoply_kernels::warm::Warm;

use crate::context::Context;
use crate::driver::Driver;
use crate::driver::cuda::{self, CudaDriver};
use crate::driver::emulated::{self, EmulatedDriver};
use crate::engine::CudaEngine;
use crate::ops;
use crate::peers::Peers;

/// What the pool keeps for reuse where the caller does not say: this share of the device's memory.
const POOL_SHARE: f64 = 0.5;
/// GPUs whose compiled kernels are remembered apart, and that may read each other's memory.
pub(crate) const DEVICES_MAX: usize = 32;

/// The backend for NVIDIA GPUs: one device per GPU that the driver shows to this process.
#[derive(Clone)]
pub struct CudaBackend {
    emulated: Option<Emulated>,
    /// What each device has run, by its index.
    warm: [Arc<Warm>; DEVICES_MAX],
    peers: Arc<Peers>,
    /// For each device a bit for every other whose memory it reads by itself; found out when it is first asked.
    reach: Arc<OnceLock<[u64; DEVICES_MAX]>>,
}

/// Devices that are not there.
#[derive(Clone)]
struct Emulated {
    compiler: PathBuf,
    count: u32,
}

impl CudaBackend {
    /// The backend for this machine's GPUs.
    pub fn new() -> CudaBackend {
        CudaBackend::of(None)
    }

    /// A backend without a GPU: one simulated device whose kernels the system's C++ compiler compiles for the host. It is slow,
    /// and there for tests of everything above the driver. The compiler is `c++`, or what the variable `CXX` names.
    pub fn emulated() -> Result<CudaBackend, Absence> {
        CudaBackend::emulated_devices(1)
    }

    /// As [`CudaBackend::emulated`], with so many devices, which reach each other's memory.
    pub fn emulated_devices(count: u32) -> Result<CudaBackend, Absence> {
        let compiler = emulated::find_compiler()?;
        Ok(CudaBackend::of(Some(Emulated { compiler, count: count.clamp(1, DEVICES_MAX as u32) })))
    }

    fn of(emulated: Option<Emulated>) -> CudaBackend {
        CudaBackend { emulated, warm: Default::default(), peers: Arc::default(), reach: Arc::default() }
    }
}

impl CudaBackend {
    pub(crate) fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<CudaEngine> {
        let (driver, dialect): (Rc<dyn Driver>, Dialect) = match &self.emulated {
            Some(emulated) => (Rc::new(EmulatedDriver::new(device.id, emulated.compiler.clone())), Dialect::Host),
            None => (Rc::new(CudaDriver::open(device)?), Dialect::Cuda),
        };
        let (_, total) = driver.memory_info()?;
        let cached_bytes_max = options.pool_bytes_max.unwrap_or((total as f64 * POOL_SHARE) as usize);
        let has_peers = self.reach().iter().any(|others| *others != 0);
        let peers = has_peers.then(|| Arc::clone(&self.peers));
        let context = Context::new(driver, device.id, dialect, cached_bytes_max, peers);
        Ok(CudaEngine::new(device.clone(), context, Arc::clone(self.warm(device))))
    }

    fn reach(&self) -> &[u64; DEVICES_MAX] {
        self.reach.get_or_init(|| match &self.emulated {
            None => cuda::reach(),
            Some(emulated) => std::array::from_fn(|index| ((1 << emulated.count) - 1) & !(1 << index)),
        })
    }

    fn warm(&self, device: &DeviceInfo) -> &Arc<Warm> {
        &self.warm[device.id.index as usize % DEVICES_MAX]
    }
}

impl Default for CudaBackend {
    fn default() -> CudaBackend {
        CudaBackend::new()
    }
}

impl Backend for CudaBackend {
    fn api(&self) -> Api {
        if self.emulated.is_some() { Api::SIMULATED } else { Api::CUDA }
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        match &self.emulated {
            None => cuda::discover(),
            Some(Emulated { compiler, count }) => {
                let name = format!("simulated CUDA device (kernels compiled by {})", compiler.display());
                let info = |index| {
                    let id = DeviceId { api: Api::SIMULATED, index };
                    let mut info = DeviceInfo::new(id, name.clone(), DeviceKind::DiscreteGpu);
                    info.capabilities = Capabilities { domains: vec![Domain::Compute], features: Vec::new() };
                    info
                };
                Ok((0..*count).map(info).collect())
            }
        }
    }

    fn supports(&self, _device: &DeviceInfo, op: &Op) -> Support {
        ops::supports(op)
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        if self.warm(device).contains(op) { Warmth::Warm } else { Warmth::Cold }
    }

    fn reaches(&self, device: &DeviceInfo, owner: DeviceId) -> bool {
        let others = self.reach().get(device.id.index as usize).copied().unwrap_or(0);
        owner.api == self.api() && others.checked_shr(owner.index).unwrap_or(0) & 1 != 0
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.open_engine(device, options)?))
    }
}

/// The error of a device that is not there any more.
pub(crate) fn unavailable(device: DeviceId, reason: impl Into<String>) -> Error {
    Error::DeviceUnavailable { device, reason: reason.into() }
}
