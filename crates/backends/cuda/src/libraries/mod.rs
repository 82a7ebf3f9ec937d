//! NVIDIA's libraries of one device, each loaded on first use. If a library is missing, the reason
//! is kept, and ops take their slower path.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use cudarc::driver::sys;
use panoply_c_gpu::library::Sensors;
use panoply_core::{DeviceId, DeviceInfo, Error, Health, PciAddress};
use panoply_sensors::{Nvml, nvml};

mod cublas;
mod cudnn;
mod cufft;

use cublas::Cublas;
use cudnn::Cudnn;
use cufft::Cufft;

/// The stream on which libraries queue their work: the compute stream of the lane in use.
pub(crate) type CurrentStream = Rc<Cell<sys::CUstream>>;

/// Handles to the libraries. They are made on the engine's thread, with the device's context
/// current.
pub(crate) struct Libraries {
    device: DeviceId,
    stream: CurrentStream,
    cublas: OnceCell<Result<Cublas, String>>,
    cudnn: OnceCell<Result<Cudnn, String>>,
    cufft: OnceCell<Result<Cufft, String>>,
    nvml: OnceCell<Result<Nvml, String>>,
    pci_address: Option<PciAddress>,
    uncorrected_errors: Cell<u64>,
    asked: Cell<bool>,
}

impl Libraries {
    /// Starts without any library loaded.
    pub(crate) fn new(info: &DeviceInfo, stream: CurrentStream) -> Libraries {
        Libraries {
            device: info.id,
            stream,
            cublas: OnceCell::new(),
            cudnn: OnceCell::new(),
            cufft: OnceCell::new(),
            nvml: OnceCell::new(),
            pci_address: info.pci_address,
            uncorrected_errors: Cell::new(0),
            asked: Cell::new(false),
        }
    }

    /// cuBLASLt, if it is installed.
    pub(crate) fn cublas(&self) -> Option<&Cublas> {
        self.cublas.get_or_init(|| Cublas::open(self.device, Rc::clone(&self.stream))).as_ref().ok()
    }

    /// cuDNN, if it is installed.
    pub(crate) fn cudnn(&self) -> Option<&Cudnn> {
        self.cudnn.get_or_init(|| Cudnn::open(Rc::clone(&self.stream))).as_ref().ok()
    }

    /// cuFFT, if it is installed.
    pub(crate) fn cufft(&self) -> Option<&Cufft> {
        self.cufft.get_or_init(|| Cufft::open(self.device, Rc::clone(&self.stream))).as_ref().ok()
    }
}

/// The sensors of NVML.
impl Sensors for Libraries {
    fn health(&self) -> Health {
        let missing = || "the device has no PCI address".to_owned();
        let nvml = self.nvml.get_or_init(|| Nvml::open(&nvml::NAMES, self.pci_address.ok_or_else(missing)?));
        let nvml = match nvml {
            Ok(nvml) => nvml,
            Err(reason) => return Health { sensors_absent: Some(reason.clone()), ..Health::default() },
        };
        let mut health = nvml.health();
        // Memory errors from before the first question are not this engine's.
        if let Some(errors) = nvml.uncorrected_errors() {
            let before = self.uncorrected_errors.replace(errors);
            if self.asked.replace(true) && errors > before {
                let reason = format!("{} errors in memory that could not be corrected", errors - before);
                health.fault = Some(Error::DeviceFault { device: self.device, reason });
            }
        }
        health
    }
}
