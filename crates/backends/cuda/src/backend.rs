//! Finds CUDA devices and opens them.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Domain, Engine, Error, Op, OpenOptions,
    Result, Support, Warmth,
};
use panoply_kernels::c::Dialect;

use crate::context::Context;
use crate::driver::Driver;
use crate::driver::cuda::{self, CudaDriver};
use crate::driver::emulated::EmulatedDriver;
use crate::engine::CudaEngine;
use crate::ops;
use crate::warm::Warm;

/// What the pool keeps for reuse where the caller does not say: this share of the device's memory.
const POOL_SHARE: f64 = 0.5;
/// GPUs whose compiled kernels are remembered apart.
const DEVICES_MAX: usize = 32;

/// The backend for NVIDIA GPUs: one device per GPU that the driver shows to this process.
pub struct CudaBackend {
    emulated: Option<PathBuf>,
    /// What each device has run, by its index.
    warm: [Arc<Warm>; DEVICES_MAX],
}

impl CudaBackend {
    /// The backend for this machine's GPUs.
    pub fn new() -> CudaBackend {
        CudaBackend { emulated: None, warm: Default::default() }
    }

    /// A backend without a GPU: one simulated device whose kernels this C++ compiler compiles for the host. It is slow, and
    /// there for tests of everything above the driver.
    pub fn emulated(compiler: impl Into<PathBuf>) -> CudaBackend {
        CudaBackend { emulated: Some(compiler.into()), warm: Default::default() }
    }
}

impl CudaBackend {
    pub(crate) fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<CudaEngine> {
        let (driver, dialect): (Rc<dyn Driver>, Dialect) = match &self.emulated {
            Some(compiler) => (Rc::new(EmulatedDriver::new(device.id, compiler.clone())), Dialect::Host),
            None => (Rc::new(CudaDriver::open(device)?), Dialect::Cuda),
        };
        let (_, total) = driver.memory_info()?;
        let cached_bytes_max = options.pool_bytes_max.unwrap_or((total as f64 * POOL_SHARE) as usize);
        let context = Context::new(driver, device.id, dialect, cached_bytes_max);
        Ok(CudaEngine::new(device.clone(), context, Arc::clone(self.warm(device))))
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
        if self.emulated.is_some() { Api::Simulated } else { Api::Cuda }
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        match &self.emulated {
            None => cuda::discover(),
            Some(compiler) => {
                let id = DeviceId { api: Api::Simulated, index: 0 };
                let name = format!("simulated CUDA device (kernels compiled by {})", compiler.display());
                let mut info = DeviceInfo::new(id, name, DeviceKind::DiscreteGpu);
                info.capabilities = Capabilities { domains: vec![Domain::Compute], features: Vec::new() };
                Ok(vec![info])
            }
        }
    }

    fn supports(&self, _device: &DeviceInfo, op: &Op) -> Support {
        ops::supports(op)
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        if self.warm(device).contains(op) { Warmth::Warm } else { Warmth::Cold }
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.open_engine(device, options)?))
    }
}

/// The error of a device that is not there any more.
pub(crate) fn unavailable(device: DeviceId, reason: impl Into<String>) -> Error {
    Error::DeviceUnavailable { device, reason: reason.into() }
}
