//! Finds HIP devices and opens them.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use panoply_c_gpu::{Devices, GpuBackend, GpuEngine, ops};
use panoply_core::backend::FirstGuess;
use panoply_core::{
    Absence, Api, Backend, DeviceId, DeviceInfo, Engine, Error, Op, OpenOptions, Result, Support, Warmth,
};
use panoply_placement::SYSTEM;

use crate::driver::HipDriver;
use crate::{compiler, libraries, platform, runtime};

/// The backend for AMD GPUs: one device per GPU that the runtime shows to this process.
#[derive(Clone, Default)]
pub struct HipBackend {
    names: Arc<Names>,
    devices: Devices,
}

/// The file names under which each of the vendor's libraries is searched, and where the kernel
/// describes the hardware.
#[derive(Clone)]
pub(crate) struct Names {
    pub(crate) runtime: Vec<String>,
    pub(crate) compiler: Vec<String>,
    pub(crate) light_products: Vec<String>,
    pub(crate) products: Vec<String>,
    pub(crate) convolutions: Vec<String>,
    pub(crate) transforms: Vec<String>,
    pub(crate) sensors: Vec<String>,
    pub(crate) older_sensors: Vec<String>,
    /// A folder laid out like `/sys`.
    pub(crate) system: PathBuf,
}

impl Default for Names {
    fn default() -> Names {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        Names {
            runtime: owned(runtime::LIBRARIES),
            compiler: owned(compiler::LIBRARIES),
            light_products: owned(libraries::HIPBLASLT),
            products: owned(libraries::ROCBLAS),
            convolutions: owned(libraries::MIOPEN),
            transforms: owned(libraries::HIPFFT),
            sensors: owned(libraries::AMD_SMI),
            older_sensors: owned(libraries::ROCM_SMI),
            system: PathBuf::from(SYSTEM),
        }
    }
}

impl HipBackend {
    /// Creates the backend for this machine's GPUs.
    pub fn new() -> HipBackend {
        HipBackend::default()
    }

    /// Loads `library` in place of the runtime and of every other library of the vendor.
    pub fn through(self, library: &str) -> HipBackend {
        let one = || vec![library.to_owned()];
        let names = Names {
            runtime: one(),
            compiler: one(),
            light_products: one(),
            products: one(),
            convolutions: one(),
            transforms: one(),
            sensors: one(),
            older_sensors: one(),
            system: self.names.system.clone(),
        };
        HipBackend { names: Arc::new(names), ..self }
    }

    /// Looks for the place of each GPU in a folder laid out like `/sys`, for tests.
    pub fn in_system(self, system: &Path) -> HipBackend {
        let names = Names { system: system.to_owned(), ..(*self.names).clone() };
        HipBackend { names: Arc::new(names), ..self }
    }

    /// Uses this machine's compiler and the configured runtime, and no other library of the vendor.
    pub fn compiled_here(self) -> HipBackend {
        let none = Vec::new;
        let names = Names {
            runtime: self.names.runtime.clone(),
            compiler: Names::default().compiler,
            light_products: none(),
            products: none(),
            convolutions: none(),
            transforms: none(),
            sensors: none(),
            older_sensors: none(),
            system: self.names.system.clone(),
        };
        HipBackend { names: Arc::new(names), ..self }
    }
}

impl Backend for HipBackend {
    fn api(&self) -> Api {
        Api::ROCM
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        platform::discover(&self.names)
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
        self.devices.reaches(device, owner, || platform::reach(&self.names))
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.open_engine(device, options)?))
    }
}

impl GpuBackend for HipBackend {
    fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<GpuEngine> {
        let driver = Rc::new(HipDriver::open(device, &self.names)?);
        self.devices.open(driver, None, device, options, || platform::reach(&self.names))
    }
}

/// The error for a device that can no longer be reached.
pub(crate) fn unavailable(device: DeviceId, reason: impl Into<String>) -> Error {
    Error::DeviceUnavailable { device, reason: reason.into() }
}
