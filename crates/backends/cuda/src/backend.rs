//! Finds CUDA devices and opens them.

use std::path::PathBuf;
use std::rc::Rc;

use panoply_core::{
    Absence, Api, Backend, Capabilities, Describe, DeviceId, DeviceInfo, DeviceKind, Domain, Engine, Error, Location,
    Op, OpenOptions, Result, Support,
};
use panoply_kernels::c::Dialect;

use crate::context::Context;
use crate::driver::Driver;
use crate::driver::cuda::{self, CudaDriver};
use crate::driver::emulated::EmulatedDriver;
use crate::engine::CudaEngine;
use crate::ops;

/// What the pool keeps for reuse where the caller does not say: this share of the device's memory.
const POOL_SHARE: f64 = 0.5;

/// The backend for NVIDIA GPUs: one device per GPU that the driver shows to this process.
pub struct CudaBackend {
    emulated: Option<PathBuf>,
}

impl CudaBackend {
    /// The backend for this machine's GPUs.
    pub fn new() -> CudaBackend {
        CudaBackend { emulated: None }
    }

    /// A backend without a GPU: one simulated device whose kernels this C++ compiler compiles for the host. It is slow, and
    /// there for tests of everything above the driver.
    pub fn emulated(compiler: impl Into<PathBuf>) -> CudaBackend {
        CudaBackend { emulated: Some(compiler.into()) }
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
        Ok(CudaEngine::new(device.clone(), context))
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

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        let mut elsewhere = None;
        op.for_each_input(&mut |tensor| match tensor.location() {
            Location::Device(other) if other != device.id => elsewhere = Some(other),
            _ => {}
        });
        match elsewhere {
            Some(other) => Support::No(format!("an input lives on {other}; transfer it to the host first")),
            None => ops::supports(op),
        }
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.open_engine(device, options)?))
    }
}

/// The error of a device that is not there any more.
pub(crate) fn unavailable(device: DeviceId, reason: impl Into<String>) -> Error {
    Error::DeviceUnavailable { device, reason: reason.into() }
}
