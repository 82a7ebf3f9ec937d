//! Selects which devices are used: devices by name, and discrete or integrated GPUs.
//!
//! Software implementations of GPU APIs (Mesa's Vulkan, OpenCL on a processor) are the CPU again,
//! only slower. They are used only if they or their API are named. The same holds for devices that
//! one API reaches through another API that has its own backend here.

use std::sync::Arc;

use panoply_core::{Absence, Api, Backend, DeviceId, DeviceInfo, DeviceKind, Engine, OpenOptions, Result};
use panoply_core::{Op, Support};

/// A choice of devices. The default has no preference.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Selection {
    /// Only these devices; all devices if empty.
    pub pick: Vec<Pick>,
    /// For an API with both kinds of GPUs: only the discrete ones, or only the integrated ones.
    pub power: Option<Power>,
    /// Also uses software implementations of GPU APIs that are not picked by name.
    pub software: bool,
    /// Also uses devices that one API reaches through another, even if the other API's own backend
    /// has them and they are not picked by name. Example: wgpu's adapters that run on Vulkan.
    pub doubles: bool,
}

/// A device by id, or several by name.
#[derive(Clone, Debug, PartialEq)]
pub enum Pick {
    /// By API and index, such as `wgpu:1`.
    Id(DeviceId),
    /// By a part of the name in any case, such as `radeon`.
    Named(String),
}

/// A preference between fast and frugal GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Power {
    /// Discrete GPUs rather than integrated ones.
    High,
    /// Integrated GPUs rather than discrete ones.
    Low,
}

impl Pick {
    /// Parses a device id; any other text is a part of a name.
    pub fn new(text: &str) -> Pick {
        let id = text.parse().ok().filter(|id: &DeviceId| crate::compiled::api_named(id.api.name()).is_some());
        id.map_or_else(|| Pick::Named(text.to_lowercase()), Pick::Id)
    }

    fn matches(&self, device: &DeviceInfo) -> bool {
        match self {
            Pick::Id(id) => device.id == *id,
            Pick::Named(part) => device.name.to_lowercase().contains(part),
        }
    }
}

impl Selection {
    /// Returns the selected devices of one API. `others` are the devices of all other APIs.
    fn of(&self, mut devices: Vec<DeviceInfo>, others: &[DeviceInfo]) -> Vec<DeviceInfo> {
        if self.pick.is_empty() {
            devices.retain(|device| self.software || device.kind != DeviceKind::SoftwareGpu);
            devices.retain(|device| self.doubles || !others.iter().any(|other| is_double(device, other)));
        } else {
            devices.retain(|device| self.pick.iter().any(|pick| pick.matches(device)));
        }
        let (preferred, other) = match self.power {
            None => return devices,
            Some(Power::High) => (DeviceKind::DiscreteGpu, DeviceKind::IntegratedGpu),
            Some(Power::Low) => (DeviceKind::IntegratedGpu, DeviceKind::DiscreteGpu),
        };
        if devices.iter().any(|device| device.kind == preferred) {
            devices.retain(|device| device.kind != other);
        }
        devices
    }

    /// Wraps the backend such that it shows the selected devices only.
    pub(crate) fn apply(&self, backend: &Arc<dyn Backend>, all: &[Arc<dyn Backend>]) -> Arc<dyn Backend> {
        let backend = Arc::clone(backend);
        if *self == (Selection { software: true, doubles: true, ..Selection::default() }) {
            return backend;
        }
        let others = all.iter().filter(|other| other.api() != backend.api()).cloned().collect();
        Arc::new(SelectedBackend { backend, selection: self.clone(), others })
    }
}

/// Whether `device` is the same hardware as `other`, reached through the API of `other`.
fn is_double(device: &DeviceInfo, other: &DeviceInfo) -> bool {
    device.through == Some(other.id.api) && device.is_same_hardware(other)
}

struct SelectedBackend {
    backend: Arc<dyn Backend>,
    selection: Selection,
    others: Vec<Arc<dyn Backend>>,
}

impl SelectedBackend {
    /// Returns the devices of the APIs that these devices are reached through.
    fn behind(&self, devices: &[DeviceInfo]) -> Vec<DeviceInfo> {
        let is_behind = |other: &&Arc<dyn Backend>| devices.iter().any(|device| device.through == Some(other.api()));
        self.others.iter().filter(is_behind).flat_map(|other| other.discover().unwrap_or_default()).collect()
    }
}

impl Backend for SelectedBackend {
    fn api(&self) -> Api {
        self.backend.api()
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let devices = self.backend.discover()?;
        let there: Vec<&str> = devices.iter().map(|device| device.name.as_str()).collect();
        let there = there.join(", ");
        let behind = self.behind(&devices);
        let are_doubles = !devices.is_empty() && devices.iter().all(|one| behind.iter().any(|own| is_double(one, own)));
        let wanted = self.selection.of(devices, &behind);
        if !wanted.is_empty() {
            return Ok(wanted);
        }
        let reason = if self.selection.pick.is_empty() && are_doubles && !self.selection.doubles {
            format!(
                "only devices that are reached without it ({there}); PANOPLY_DEVICES_ONLY, or `only` in the settings, asks for it"
            )
        } else if self.selection.pick.is_empty() {
            format!(
                "only in software, which the CPU does better ({there}); PANOPLY_DEVICES_ONLY, or `only` in the settings, asks for it"
            )
        } else {
            format!("the settings pick none of its devices ({there})")
        };
        Err(Absence::NoDevice { reason })
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        self.backend.supports(device, op)
    }

    fn can_run(&self, device: &DeviceInfo, op: &Op) -> bool {
        self.backend.can_run(device, op)
    }

    fn inner(&self) -> Option<&dyn Backend> {
        Some(&*self.backend)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        self.backend.open(device, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn devices() -> Vec<DeviceInfo> {
        let device = |index, name: &str, kind| DeviceInfo::new(DeviceId { api: Api::WGPU, index }, name, kind);
        vec![
            device(0, "Example Radeon", DeviceKind::DiscreteGpu),
            device(1, "Example Iris", DeviceKind::IntegratedGpu),
            device(2, "Example Raster", DeviceKind::SoftwareGpu),
        ]
    }

    fn indices(selection: &Selection) -> Vec<u32> {
        selection.of(devices(), &[]).iter().map(|device| device.id.index).collect()
    }

    #[test]
    fn devices_are_picked_by_name_and_by_index() {
        let pick = |texts: &[&str]| Selection {
            pick: texts.iter().map(|text| Pick::new(text)).collect(),
            ..Selection::default()
        };
        assert_eq!(indices(&Selection::default()), [0, 1]);
        assert_eq!(indices(&Selection { software: true, ..Selection::default() }), [0, 1, 2]);
        assert_eq!(indices(&pick(&["radeon"])), [0]);
        assert_eq!(indices(&pick(&["wgpu:1", "RASTER"])), [1, 2]);
        assert_eq!(indices(&pick(&["cuda:0", "GeForce"])), [0; 0]);
    }

    #[test]
    fn what_another_api_reaches_by_itself_is_not_opened_twice() {
        let mut reached = devices();
        reached.iter_mut().zip(1..).for_each(|(device, number)| device.uuid = Some([number; 16]));
        reached.iter_mut().take(2).for_each(|device| device.through = Some(Api::VULKAN));
        let id = |index| DeviceId { api: Api::VULKAN, index };
        let own = |device: &DeviceInfo| DeviceInfo { id: id(device.id.index), through: None, ..device.clone() };
        // The first two are reached through Vulkan, and Vulkan's own backend has the first of them.
        // The third is reached in another way.
        let others = [own(&reached[0]), own(&reached[2])];
        let software = Selection { software: true, ..Selection::default() };
        let left = |selection: &Selection| {
            selection.of(reached.clone(), &others).iter().map(|device| device.id.index).collect::<Vec<_>>()
        };
        assert_eq!(left(&software), [1, 2]);
        assert_eq!(left(&Selection { doubles: true, ..software.clone() }), [0, 1, 2]);
        assert_eq!(left(&Selection { pick: vec![Pick::new("wgpu:0")], ..software }), [0]);
    }

    #[test]
    fn power_prefers_one_kind_where_there_are_both() {
        let power = |power, pick: &[&str]| {
            let pick = pick.iter().map(|text| Pick::new(text)).collect();
            indices(&Selection { pick, power: Some(power), ..Selection::default() })
        };
        assert_eq!(power(Power::High, &[]), [0]);
        assert_eq!(power(Power::Low, &[]), [1]);
        assert_eq!(power(Power::Low, &["radeon"]), [0]);
    }
}
