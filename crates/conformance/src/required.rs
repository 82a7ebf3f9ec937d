//! The devices that a backend's tests run on: one rule for all backends.
//!
//! With `PANOPLY_DEVICE=required`, a missing backend, an empty list of devices and a list with only
//! software drivers are failures. Without it a test prints why it is skipped.

use panoply_core::{Absence, Backend, DeviceInfo, DeviceKind};

/// The backend's hardware; if it has none, its software drivers; empty if there are none either.
/// Panics if a device is required and there is no hardware.
pub fn devices(backend: &dyn Backend) -> Vec<DeviceInfo> {
    let mut found = discovered(backend);
    if found.iter().any(is_hardware) {
        found.retain(is_hardware);
    }
    found
}

/// All devices of a backend, including software drivers. Panics if a device is required and there
/// is no hardware.
pub fn discovered(backend: &dyn Backend) -> Vec<DeviceInfo> {
    let is_required = std::env::var("PANOPLY_DEVICE").is_ok_and(|word| word == "required");
    match judged(backend.discover(), is_required) {
        Ok(devices) => devices,
        Err(reason) if is_required => panic!("a device is required: {reason}"),
        Err(reason) => {
            println!("skipped: {reason}");
            Vec::new()
        }
    }
}

/// The devices that were found, or why they do not suffice.
fn judged(found: Result<Vec<DeviceInfo>, Absence>, is_required: bool) -> Result<Vec<DeviceInfo>, String> {
    let devices = found.map_err(|absence| absence.to_string())?;
    match devices.iter().any(is_hardware) {
        _ if devices.is_empty() => Err("no device: the backend's list is empty".to_owned()),
        false if is_required => Err(format!("there are only drivers in software: {devices:?}")),
        _ => Ok(devices),
    }
}

fn is_hardware(device: &DeviceInfo) -> bool {
    device.kind != DeviceKind::SoftwareGpu
}

#[cfg(test)]
mod tests {
    use super::*;
    use panoply_core::{Api, DeviceId};

    fn found(kinds: &[DeviceKind]) -> Result<Vec<DeviceInfo>, Absence> {
        let device = |(index, kind): (u32, &DeviceKind)| {
            DeviceInfo::new(DeviceId { api: Api::VULKAN, index }, "device".to_owned(), *kind)
        };
        Ok((0..).zip(kinds).map(device).collect())
    }

    #[test]
    fn nothing_and_software_alone_are_no_device_where_one_is_required() {
        let missing = || Err(Absence::NoDevice { reason: "none".to_owned() });
        for is_required in [false, true] {
            assert!(judged(missing(), is_required).is_err());
            assert!(judged(found(&[]), is_required).is_err());
            let software = judged(found(&[DeviceKind::SoftwareGpu]), is_required);
            assert_eq!(software.is_err(), is_required);
            let both = judged(found(&[DeviceKind::SoftwareGpu, DeviceKind::DiscreteGpu]), is_required);
            assert_eq!(both.unwrap().len(), 2);
        }
    }
}
