//! AMD's libraries of one device, each loaded when it is first asked for. A library that is missing is a reason, and the op that asked
//! takes its slower path.

use std::cell::{Cell, OnceCell};

use libloading::Library;
use panoply_c_gpu::library::Sensors;
use panoply_core::{DeviceId, DeviceInfo, Error, Health, PciAddress};

use crate::backend::Names;
use crate::sys::Handle;

mod hipfft;
mod miopen;
mod rocblas;
mod rocm_smi;

use hipfft::HipFft;
use miopen::MiOpen;
use rocblas::RocBlas;
use rocm_smi::RocmSmi;

/// Names of rocBLAS, of ROCm 7 to 5.
pub(crate) const ROCBLAS: &[&str] =
    &["librocblas.so.5", "librocblas.so.4", "librocblas.so.3", "librocblas.so.0", "librocblas.so", "rocblas.dll"];
/// Names of MIOpen.
pub(crate) const MIOPEN: &[&str] = &["libMIOpen.so.1", "libMIOpen.so", "MIOpen.dll"];
/// Names of hipFFT.
pub(crate) const HIPFFT: &[&str] = &["libhipfft.so.0", "libhipfft.so", "hipfft.dll"];
/// Names of ROCm SMI.
pub(crate) const ROCM_SMI: &[&str] =
    &["librocm_smi64.so.7", "librocm_smi64.so.6", "librocm_smi64.so.5", "librocm_smi64.so.1", "librocm_smi64.so"];

/// Whether a library has one of these names.
pub(crate) fn is_present(names: &[String]) -> bool {
    // SAFETY: loads a library of the vendor's by its name, which runs no more than its initialisers.
    names.iter().any(|name| unsafe { Library::new(name) }.is_ok())
}

/// Handles to the libraries. Made on the engine's thread, with the device current.
pub(crate) struct Libraries {
    device: DeviceId,
    names: Names,
    stream: Handle,
    rocblas: OnceCell<Result<RocBlas, String>>,
    hipfft: OnceCell<Result<HipFft, String>>,
    miopen: OnceCell<Result<MiOpen, String>>,
    rocm_smi: OnceCell<Result<RocmSmi, String>>,
    pci_address: Option<PciAddress>,
    uncorrected_errors: Cell<u64>,
    asked: Cell<bool>,
}

impl Libraries {
    /// Nothing is loaded yet. Everything will be queued on this stream.
    pub(crate) fn new(info: &DeviceInfo, names: &Names, stream: Handle) -> Libraries {
        Libraries {
            device: info.id,
            names: names.clone(),
            stream,
            rocblas: OnceCell::new(),
            hipfft: OnceCell::new(),
            miopen: OnceCell::new(),
            rocm_smi: OnceCell::new(),
            pci_address: info.pci_address,
            uncorrected_errors: Cell::new(0),
            asked: Cell::new(false),
        }
    }

    /// rocBLAS, where it is installed.
    pub(crate) fn rocblas(&self) -> Option<&RocBlas> {
        self.rocblas.get_or_init(|| RocBlas::open(&self.names.products, self.device, self.stream)).as_ref().ok()
    }

    /// MIOpen, where it is installed.
    pub(crate) fn miopen(&self) -> Option<&MiOpen> {
        self.miopen.get_or_init(|| MiOpen::open(&self.names.convolutions, self.stream)).as_ref().ok()
    }

    /// hipFFT, where it is installed.
    pub(crate) fn hipfft(&self) -> Option<&HipFft> {
        self.hipfft.get_or_init(|| HipFft::open(&self.names.transforms, self.device, self.stream)).as_ref().ok()
    }
}

/// ROCm SMI's.
impl Sensors for Libraries {
    fn health(&self) -> Health {
        let missing = || "the device has no PCI address".to_owned();
        let open = || RocmSmi::open(&self.names.sensors, self.pci_address.ok_or_else(missing)?);
        let Ok(rocm_smi) = self.rocm_smi.get_or_init(open) else { return Health::default() };
        let mut health = rocm_smi.health();
        // Errors from before the engine was opened are not its own.
        if let Some(errors) = rocm_smi.uncorrected_errors() {
            let before = self.uncorrected_errors.replace(errors);
            if self.asked.replace(true) && errors > before {
                let reason = format!("{} errors in memory that could not be corrected", errors - before);
                health.fault = Some(Error::DeviceFault { device: self.device, reason });
            }
        }
        health
    }
}
