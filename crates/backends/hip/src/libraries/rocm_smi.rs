//! ROCm SMI: how a GPU is. Loaded at run time; where it is missing, nothing is known.

use std::ffi::c_int;

use libloading::Library;
use panoply_core::{Health, PciAddress};

use crate::runtime::first_whole;
use crate::sys::functions;

/// The sensor at the hottest place, and the one at the edge.
const JUNCTION: u32 = 1;
const EDGE: u32 = 0;
const CURRENT: c_int = 0;
/// The block of a GPU that holds its memory.
const MEMORY_BLOCK: u64 = 1;

functions! {
    /// What is asked of ROCm SMI.
    Functions {
        rsmi_init(flags: u64) -> c_int;
        rsmi_num_monitor_devices(count: *mut u32) -> c_int;
        rsmi_dev_pci_id_get(device: u32, address: *mut u64) -> c_int;
        rsmi_dev_temp_metric_get(device: u32, sensor: u32, metric: c_int, millidegrees: *mut i64) -> c_int;
        rsmi_dev_power_ave_get(device: u32, sensor: u32, microwatts: *mut u64) -> c_int;
        rsmi_dev_busy_percent_get(device: u32, percent: *mut u32) -> c_int;
        rsmi_dev_ecc_count_get(device: u32, block: u64, counts: *mut [u64; 2]) -> c_int;
    }
}

/// One GPU as ROCm SMI knows it.
pub(crate) struct RocmSmi {
    functions: Functions,
    device: u32,
    /// Held so that the functions stay loaded.
    _library: Library,
}

impl RocmSmi {
    /// The GPU at this address, or why it cannot be asked.
    pub(crate) fn open(names: &[String], address: PciAddress) -> Result<RocmSmi, String> {
        let found = first_whole(names, "ROCm SMI", Functions::find);
        let (library, functions) = found.map_err(|absence| absence.to_string())?;
        // SAFETY: no flags are set.
        checked("rsmi_init", unsafe { (functions.rsmi_init)(0) })?;
        let mut count = 0;
        // SAFETY: writes one number.
        checked("rsmi_num_monitor_devices", unsafe { (functions.rsmi_num_monitor_devices)(&raw mut count) })?;
        let is_it = |device: &u32| {
            let mut told = 0;
            // SAFETY: as above; the device is one of those that were counted.
            unsafe { (functions.rsmi_dev_pci_id_get)(*device, &raw mut told) == 0 && told == number(address) }
        };
        let device = (0..count).find(is_it).ok_or_else(|| format!("ROCm SMI knows no device at {address}"))?;
        Ok(RocmSmi { functions, device, _library: library })
    }

    /// What the sensors say now.
    pub(crate) fn health(&self) -> Health {
        // SAFETY: the device is the library's; each writes one number.
        let power = asked(|value| unsafe { (self.functions.rsmi_dev_power_ave_get)(self.device, 0, value) });
        // SAFETY: as above.
        let busy = asked(|value| unsafe { (self.functions.rsmi_dev_busy_percent_get)(self.device, value) });
        Health {
            temperature_celsius: self.temperature(JUNCTION).or_else(|| self.temperature(EDGE)),
            power_watts: power.map(|microwatts: u64| microwatts as f32 / 1e6),
            utilisation_percent: busy.map(|percent: u32| percent as f32),
            ..Health::default()
        }
    }

    /// Errors in memory that could not be corrected, since the driver was loaded.
    pub(crate) fn uncorrected_errors(&self) -> Option<u64> {
        // SAFETY: the structure is two numbers: errors that were corrected, and others.
        let counts =
            asked(|counts| unsafe { (self.functions.rsmi_dev_ecc_count_get)(self.device, MEMORY_BLOCK, counts) });
        counts.map(|[_, uncorrected]: [u64; 2]| uncorrected)
    }

    fn temperature(&self, sensor: u32) -> Option<f32> {
        // SAFETY: the device is the library's; writes one number.
        let told =
            asked(|value| unsafe { (self.functions.rsmi_dev_temp_metric_get)(self.device, sensor, CURRENT, value) });
        told.map(|millidegrees: i64| millidegrees as f32 / 1e3)
    }
}

/// How ROCm SMI writes an address.
fn number(address: PciAddress) -> u64 {
    let PciAddress { domain, bus, device, function } = address;
    u64::from(domain) << 32 | u64::from(bus) << 8 | u64::from(device & 0x1f) << 3 | u64::from(function & 7)
}

/// What a function writes, where it succeeds.
fn asked<T: Default>(ask: impl FnOnce(*mut T) -> c_int) -> Option<T> {
    let mut value = T::default();
    (ask(&raw mut value) == 0).then_some(value)
}

fn checked(name: &str, status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{name} answers {status}")) }
}
