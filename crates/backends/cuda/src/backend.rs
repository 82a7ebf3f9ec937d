//! Finds CUDA devices and opens them.

use std::rc::Rc;

use panoply_c_gpu::{Devices, GpuBackend, GpuEngine, ops};
use panoply_core::backend::FirstGuess;
use panoply_core::{
    Absence, Api, Backend, DeviceId, DeviceInfo, Engine, Error, Op, OpenOptions, Result, Support, Warmth,
};

use crate::driver::{self, CudaDriver};

/// The backend for NVIDIA GPUs: one device per GPU that the driver shows to this process.
#[derive(Clone, Default)]
pub struct CudaBackend {
    devices: Devices,
}

impl CudaBackend {
    /// The backend for this machine's GPUs.
    pub fn new() -> CudaBackend {
        CudaBackend::default()
    }
}

impl Backend for CudaBackend {
    fn api(&self) -> Api {
        Api::CUDA
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        driver::discover()
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        ops::supports_on(device, op)
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        self.devices.warmth(device, op)
    }

    fn first_guess(&self, device: &DeviceInfo, op: &Op) -> FirstGuess {
        ops::first_guess(device, op)
    }

    fn reaches(&self, device: &DeviceInfo, owner: DeviceId) -> bool {
        self.devices.reaches(device, owner, driver::reach)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.open_engine(device, options)?))
    }
}

impl GpuBackend for CudaBackend {
    fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<GpuEngine> {
        let driver = Rc::new(CudaDriver::open(device)?);
        self.devices.open(driver, None, device, options, driver::reach)
    }
}

/// The error of a device that is no longer available.
pub(crate) fn unavailable(device: DeviceId, reason: impl Into<String>) -> Error {
    Error::DeviceUnavailable { device, reason: reason.into() }
}
