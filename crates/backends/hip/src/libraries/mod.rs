//! AMD's libraries of one device, each loaded on first use. If a library is missing, the reason is
//! kept, and the op that needs it takes its slower path.

use std::cell::{Cell, OnceCell};

use std::rc::Rc;

use libloading::Library;
use panoply_c_gpu::library::{Epilogue, ProductPlan, ProductProblem, Products, Sensors};
use panoply_core::{DeviceId, DeviceInfo, Error, Health, PciAddress};

use crate::backend::Names;
use crate::sys::Handle;

mod amd_smi;
#[cfg(test)]
mod declaration_tests;
mod hipblaslt;
mod hipfft;
mod miopen;
mod rocblas;
mod rocm_smi;

use amd_smi::AmdSmi;
use hipblaslt::HipBlasLt;
use hipfft::HipFft;
use miopen::MiOpen;
use rocblas::RocBlas;
use rocm_smi::RocmSmi;

/// Names of hipBLASLt in ROCm 7 and 6.
pub(crate) const HIPBLASLT: &[&str] =
    &["libhipblaslt.so.1", "libhipblaslt.so.0", "libhipblaslt.so", "libhipblaslt.dll", "hipblaslt.dll"];
/// Names of rocBLAS in ROCm 7 to 5.
pub(crate) const ROCBLAS: &[&str] =
    &["librocblas.so.5", "librocblas.so.4", "librocblas.so.3", "librocblas.so.0", "librocblas.so", "rocblas.dll"];
/// Names of MIOpen.
pub(crate) const MIOPEN: &[&str] = &["libMIOpen.so.1", "libMIOpen.so", "MIOpen.dll"];
/// Names of hipFFT.
pub(crate) const HIPFFT: &[&str] = &["libhipfft.so.0", "libhipfft.so", "hipfft.dll"];
/// Names of AMD SMI, for the versions with known structures.
pub(crate) const AMD_SMI: &[&str] = &["libamd_smi.so.26"];
/// Names of ROCm SMI.
pub(crate) const ROCM_SMI: &[&str] =
    &["librocm_smi64.so.7", "librocm_smi64.so.6", "librocm_smi64.so.5", "librocm_smi64.so.1", "librocm_smi64.so"];

/// Whether one of these names can be loaded.
pub(crate) fn is_present(names: &[String]) -> bool {
    // SAFETY: loads a library of the vendor by name, which only runs its initialisers.
    names.iter().any(|name| unsafe { Library::new(name) }.is_ok())
}

/// Handles of the libraries. Created on the engine's thread, with the device current.
pub(crate) struct Libraries {
    device: DeviceId,
    names: Names,
    stream: Handle,
    hipblaslt: OnceCell<Result<HipBlasLt, String>>,
    rocblas: OnceCell<Result<RocBlas, String>>,
    hipfft: OnceCell<Result<HipFft, String>>,
    miopen: OnceCell<Result<MiOpen, String>>,
    monitor: OnceCell<Result<Monitor, String>>,
    pci_address: Option<PciAddress>,
    uncorrected_errors: Cell<u64>,
    asked: Cell<bool>,
}

impl Libraries {
    /// Creates the table without loading a library. All work will be queued on `stream`.
    pub(crate) fn new(info: &DeviceInfo, names: &Names, stream: Handle) -> Libraries {
        Libraries {
            device: info.id,
            names: names.clone(),
            stream,
            hipblaslt: OnceCell::new(),
            rocblas: OnceCell::new(),
            hipfft: OnceCell::new(),
            miopen: OnceCell::new(),
            monitor: OnceCell::new(),
            pci_address: info.pci_address,
            uncorrected_errors: Cell::new(0),
            asked: Cell::new(false),
        }
    }

    /// The libraries for products, if hipBLASLt or rocBLAS is installed.
    pub(crate) fn products(&self) -> Option<&dyn Products> {
        (self.hipblaslt().is_some() || self.rocblas().is_some()).then_some(self as &dyn Products)
    }

    fn hipblaslt(&self) -> Option<&HipBlasLt> {
        self.hipblaslt
            .get_or_init(|| HipBlasLt::open(&self.names.light_products, self.device, self.stream))
            .as_ref()
            .ok()
    }

    fn rocblas(&self) -> Option<&RocBlas> {
        self.rocblas.get_or_init(|| RocBlas::open(&self.names.products, self.device, self.stream)).as_ref().ok()
    }

    /// MIOpen, if installed.
    pub(crate) fn miopen(&self) -> Option<&MiOpen> {
        self.miopen.get_or_init(|| MiOpen::open(&self.names.convolutions, self.stream)).as_ref().ok()
    }

    /// hipFFT, if installed.
    pub(crate) fn hipfft(&self) -> Option<&HipFft> {
        self.hipfft.get_or_init(|| HipFft::open(&self.names.transforms, self.device, self.stream)).as_ref().ok()
    }
}

/// Plans of hipBLASLt, or of rocBLAS for products that hipBLASLt lacks.
impl Products for Libraries {
    fn plan(&self, problem: &ProductProblem, epilogue: Epilogue, has_c: bool) -> Option<Rc<dyn ProductPlan>> {
        let light = self.hipblaslt().and_then(|library| library.plan(problem, epilogue, has_c));
        light.or_else(|| self.rocblas()?.plan(problem, epilogue, has_c))
    }
}

/// The library that reads the GPU's sensors.
enum Monitor {
    AmdSmi(AmdSmi),
    RocmSmi(RocmSmi),
}

impl Monitor {
    /// Opens AMD SMI, or ROCm SMI if AMD SMI is not installed or does not know the GPU.
    fn open(names: &Names, address: PciAddress) -> Result<Monitor, String> {
        AmdSmi::open(&names.sensors, address).map(Monitor::AmdSmi).or_else(|newer| {
            let older = RocmSmi::open(&names.older_sensors, address).map(Monitor::RocmSmi);
            older.map_err(|older| format!("AMD SMI: {newer}; ROCm SMI: {older}"))
        })
    }

    fn health(&self) -> Health {
        match self {
            Monitor::AmdSmi(library) => library.health(),
            Monitor::RocmSmi(library) => library.health(),
        }
    }

    fn uncorrected_errors(&self) -> Option<u64> {
        match self {
            Monitor::AmdSmi(library) => library.uncorrected_errors(),
            Monitor::RocmSmi(library) => library.uncorrected_errors(),
        }
    }
}

impl Sensors for Libraries {
    fn health(&self) -> Health {
        let missing = || "the device has no PCI address".to_owned();
        let monitor = self.monitor.get_or_init(|| Monitor::open(&self.names, self.pci_address.ok_or_else(missing)?));
        let monitor = match monitor {
            Ok(monitor) => monitor,
            Err(reason) => return Health { sensors_absent: Some(reason.clone()), ..Health::default() },
        };
        let mut health = monitor.health();
        if health.temperature_celsius.is_none() {
            health.sensors_absent = Some("neither AMD SMI nor ROCm SMI reports a temperature of this GPU".to_owned());
        }
        // Errors that were counted before the first query are not reported.
        if let Some(errors) = monitor.uncorrected_errors() {
            let before = self.uncorrected_errors.replace(errors);
            if self.asked.replace(true) && errors > before {
                let reason = format!("{} errors in memory that could not be corrected", errors - before);
                health.fault = Some(Error::DeviceFault { device: self.device, reason });
            }
        }
        health
    }
}
