//! ROCm SMI: a GPU's sensors, used if AMD SMI is not available. Loaded at run time. If both are
//! missing, no sensor values are known.

use std::ffi::c_int;

use libloading::Library;
use panoply_core::{Health, PciAddress};

use crate::runtime::first_whole;
use crate::sys::functions;

/// The junction sensor (the hottest spot) and the edge sensor.
const JUNCTION: u32 = 1;
const EDGE: u32 = 0;
const CURRENT: c_int = 0;
/// The GPU block that contains the memory.
const MEMORY_BLOCK: u64 = 1;
/// The bits of the library's address that number the partition of a GPU. HIP's addresses do not
/// contain them.
const PART: u64 = 0xf << 28;

/// The constants above under their names in the library's headers.
#[cfg(test)]
pub(super) const ENUMERATORS: &[(&str, c_int)] = &[
    ("RSMI_TEMP_TYPE_FIRST", EDGE as c_int),
    ("RSMI_TEMP_CURRENT", CURRENT),
    ("RSMI_GPU_BLOCK_FIRST", MEMORY_BLOCK as c_int),
];

functions! {
    /// The functions of ROCm SMI that this crate calls.
    Functions {
        rsmi_init(flags: u64) -> c_int;
        rsmi_shut_down() -> c_int;
        rsmi_num_monitor_devices(count: *mut u32) -> c_int;
        rsmi_dev_pci_id_get(device: u32, address: *mut u64) -> c_int;
        rsmi_dev_temp_metric_get(device: u32, sensor: u32, metric: c_int, millidegrees: *mut i64) -> c_int;
        rsmi_dev_power_ave_get(device: u32, sensor: u32, microwatts: *mut u64) -> c_int;
        rsmi_dev_busy_percent_get(device: u32, percent: *mut u32) -> c_int;
        rsmi_dev_ecc_count_get(device: u32, block: u64, counts: *mut [u64; 2]) -> c_int;
    } or none {
        rsmi_dev_power_get(device: u32, microwatts: *mut u64, kind: *mut c_int) -> c_int;
    }
}

/// The initialised library. It counts its users.
struct LibraryHandle {
    functions: Functions,
    /// Held so that the functions stay loaded.
    _library: Library,
}

impl Drop for LibraryHandle {
    fn drop(&mut self) {
        // SAFETY: `open` initialised the library, and it is not used again.
        let _ = unsafe { (self.functions.rsmi_shut_down)() };
    }
}

/// One GPU as seen by ROCm SMI.
pub(crate) struct RocmSmi {
    opened: LibraryHandle,
    device: u32,
}

impl RocmSmi {
    /// Opens the GPU at `address`, or returns why it cannot be queried.
    pub(crate) fn open(names: &[String], address: PciAddress) -> Result<RocmSmi, String> {
        let found = first_whole(names, "ROCm SMI", Functions::find);
        let (library, functions) = found.map_err(|absence| absence.to_string())?;
        // SAFETY: no flags are set.
        checked("rsmi_init", unsafe { (functions.rsmi_init)(0) })?;
        let (opened, mut count) = (LibraryHandle { functions, _library: library }, 0);
        // SAFETY: the call writes one number.
        checked("rsmi_num_monitor_devices", unsafe { (functions.rsmi_num_monitor_devices)(&raw mut count) })?;
        let is_it = |device: &u32| {
            let mut told = 0;
            // SAFETY: as above. The index is below the device count.
            unsafe { (functions.rsmi_dev_pci_id_get)(*device, &raw mut told) == 0 && told & !PART == number(address) }
        };
        let device = (0..count).find(is_it).ok_or_else(|| format!("ROCm SMI knows no device at {address}"))?;
        Ok(RocmSmi { opened, device })
    }

    /// The sensors' current values.
    pub(crate) fn health(&self) -> Health {
        let (functions, device) = (&self.opened.functions, self.device);
        // SAFETY: the device index is the library's. Each call writes one number.
        let busy = asked(|value| unsafe { (functions.rsmi_dev_busy_percent_get)(device, value) });
        Health {
            temperature_celsius: self.temperature(JUNCTION).or_else(|| self.temperature(EDGE)),
            power_watts: self.microwatts().map(|microwatts| microwatts as f32 / 1e6),
            utilisation_percent: busy.map(|percent: u32| percent as f32),
            ..Health::default()
        }
    }

    /// The current power, or the average on older GPUs. Newer GPUs report no average.
    fn microwatts(&self) -> Option<u64> {
        let (functions, device, mut kind) = (&self.opened.functions, self.device, 0);
        // SAFETY: the device index is the library's. Each number has its own destination.
        let now =
            functions.rsmi_dev_power_get.and_then(|ask| asked(|value| unsafe { ask(device, value, &raw mut kind) }));
        // SAFETY: as above.
        now.or_else(|| asked(|value| unsafe { (functions.rsmi_dev_power_ave_get)(device, 0, value) }))
    }

    /// Number of uncorrectable memory errors since the driver was loaded.
    pub(crate) fn uncorrected_errors(&self) -> Option<u64> {
        // SAFETY: the structure consists of two numbers: corrected and uncorrectable errors.
        let counts = asked(|counts| unsafe {
            (self.opened.functions.rsmi_dev_ecc_count_get)(self.device, MEMORY_BLOCK, counts)
        });
        counts.map(|[_, uncorrected]: [u64; 2]| uncorrected)
    }

    fn temperature(&self, sensor: u32) -> Option<f32> {
        // SAFETY: the device index is the library's. The call writes one number.
        let told = asked(|value| unsafe {
            (self.opened.functions.rsmi_dev_temp_metric_get)(self.device, sensor, CURRENT, value)
        });
        told.map(|millidegrees: i64| millidegrees as f32 / 1e3)
    }
}

/// Encodes a PCI address as ROCm SMI does.
fn number(address: PciAddress) -> u64 {
    let PciAddress { domain, bus, device, function } = address;
    u64::from(domain) << 32 | u64::from(bus) << 8 | u64::from(device & 0x1f) << 3 | u64::from(function & 7)
}

/// Returns the value that `ask` writes, or `None` if it fails.
fn asked<T: Default>(ask: impl FnOnce(*mut T) -> c_int) -> Option<T> {
    let mut value = T::default();
    (ask(&raw mut value) == 0).then_some(value)
}

fn checked(name: &str, status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{name} answers {status}")) }
}
