//! The memory in which a device searches rows.

use panoply::vector::Residency;
use panoply::{DeviceInfo, DeviceKind};

/// Returns where rows must live to be searched on this device. A CPU reads them from host memory.
pub fn residency_on(device: &DeviceInfo) -> Residency {
    if device.kind == DeviceKind::Cpu { Residency::Host } else { Residency::Devices(vec![device.id]) }
}
