//! The vendor's libraries of one device, each loaded when it is first asked for. A library that is missing is a reason, and
//! the op that asked takes its slower path.

use std::cell::OnceCell;

use cudarc::driver::sys;
use panoply_core::{DeviceId, DeviceInfo, Health};

pub(crate) mod cublas;
pub(crate) mod cudnn;

use cublas::Cublas;
use cudnn::Cudnn;

/// Handles to the libraries. Made on the engine's thread, with the device's context current.
pub(crate) struct Libraries {
    device: DeviceId,
    stream: sys::CUstream,
    cublas: OnceCell<Result<Cublas, String>>,
    cudnn: OnceCell<Result<Cudnn, String>>,
}

impl Libraries {
    /// Nothing is loaded yet. Everything will be queued on this stream.
    pub(crate) fn new(info: &DeviceInfo, stream: sys::CUstream) -> Libraries {
        Libraries { device: info.id, stream, cublas: OnceCell::new(), cudnn: OnceCell::new() }
    }

    /// cuBLASLt, where it is installed.
    pub(crate) fn cublas(&self) -> Option<&Cublas> {
        self.cublas.get_or_init(|| Cublas::open(self.device, self.stream.cast())).as_ref().ok()
    }

    /// cuDNN, where it is installed.
    pub(crate) fn cudnn(&self) -> Option<&Cudnn> {
        self.cudnn.get_or_init(|| Cudnn::open(self.stream.cast())).as_ref().ok()
    }

    /// What NVML says of the device.
    pub(crate) fn health(&self) -> Health {
        Health::default()
    }
}
