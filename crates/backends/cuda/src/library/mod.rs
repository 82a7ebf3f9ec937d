//! The vendor's libraries of one device, each loaded when it is first asked for. A library that is missing is a reason, and
//! the op that asked takes its slower path.

use cudarc::driver::sys;
use panoply_core::{DeviceInfo, Health};

/// Handles to the libraries. Made on the engine's thread, with the device's context current.
pub(crate) struct Libraries {}

impl Libraries {
    /// Nothing is loaded yet.
    pub(crate) fn new(_info: &DeviceInfo, _stream: sys::CUstream) -> Libraries {
        Libraries {}
    }

    /// What NVML says of the device.
    pub(crate) fn health(&self) -> Health {
        Health::default()
    }
}
