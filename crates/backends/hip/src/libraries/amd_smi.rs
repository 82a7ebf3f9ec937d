//! AMD SMI: a GPU's sensors, for ROCm 7 and newer. Older versions lay out their structures
//! differently, so they are not loaded: ROCm SMI is installed beside them.

use std::ffi::c_int;

use libloading::Library;
use panoply_core::{Health, PciAddress};

use crate::runtime::first_whole;
use crate::sys::{Handle, functions};

/// Initialisation flag: only AMD GPUs are monitored.
const GPUS: u64 = 1 << 1;
/// The junction sensor (the hottest spot) and the edge sensor.
const JUNCTION: c_int = 1;
const EDGE: c_int = 0;
const CURRENT: c_int = 0;
/// Values that mean "unknown".
const UNKNOWN: [u32; 2] = [u32::MAX, 0xffff];

/// The constants above under their names in the library's headers.
#[cfg(test)]
pub(super) const ENUMERATORS: &[(&str, c_int)] = &[("AMDSMI_TEMP_CURRENT", CURRENT)];

/// Power in watts, with space for fields that newer versions may add.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Power {
    socket: u64,
    current: u32,
    average: u32,
    room: [u64; 32],
}

/// Utilisation in percent, with space as above.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Utilisation {
    graphics: u32,
    memory: u32,
    media: u32,
    room: [u32; 29],
}

/// Memory error counts, with space as above.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Errors {
    corrected: u64,
    uncorrected: u64,
    deferred: u64,
    room: [u64; 13],
}

functions! {
    /// The functions of AMD SMI that this crate calls.
    Functions {
        amdsmi_init(flags: u64) -> c_int;
        amdsmi_shut_down() -> c_int;
        amdsmi_get_processor_handle_from_bdf(address: u64, device: *mut Handle) -> c_int;
        amdsmi_get_temp_metric(device: Handle, sensor: c_int, metric: c_int, degrees: *mut i64) -> c_int;
        amdsmi_get_power_info(device: Handle, power: *mut Power) -> c_int;
        amdsmi_get_gpu_activity(device: Handle, work: *mut Utilisation) -> c_int;
        amdsmi_get_gpu_total_ecc_count(device: Handle, errors: *mut Errors) -> c_int;
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
        let _ = unsafe { (self.functions.amdsmi_shut_down)() };
    }
}

/// One GPU as seen by AMD SMI.
pub(crate) struct AmdSmi {
    opened: LibraryHandle,
    device: Handle,
}

impl AmdSmi {
    /// Opens the GPU at `address`, or returns why it cannot be queried.
    pub(crate) fn open(names: &[String], address: PciAddress) -> Result<AmdSmi, String> {
        let found = first_whole(names, "AMD SMI", Functions::find);
        let (library, functions) = found.map_err(|absence| absence.to_string())?;
        // SAFETY: the flags are defined by the library.
        checked("amdsmi_init", unsafe { (functions.amdsmi_init)(GPUS) })?;
        let (opened, mut device) = (LibraryHandle { functions, _library: library }, std::ptr::null_mut());
        // SAFETY: the address is a union of 64 bits, passed as one number. The call writes one
        // handle.
        let told = unsafe { (functions.amdsmi_get_processor_handle_from_bdf)(number(address), &raw mut device) };
        checked("amdsmi_get_processor_handle_from_bdf", told)?;
        Ok(AmdSmi { opened, device })
    }

    /// The sensors' current values.
    pub(crate) fn health(&self) -> Health {
        let (functions, device) = (&self.opened.functions, self.device);
        // SAFETY: the library gave the device handle. Each call writes one structure, and `Power`
        // and `Utilisation` are larger than the library's.
        let power: Option<Power> = asked(|power| unsafe { (functions.amdsmi_get_power_info)(device, power) });
        // SAFETY: as above.
        let work: Option<Utilisation> = asked(|work| unsafe { (functions.amdsmi_get_gpu_activity)(device, work) });
        let known = |number: &u32| !UNKNOWN.contains(number);
        // Newer GPUs report the current power, older ones the average.
        let watts =
            power.and_then(|power| [power.current, power.average].into_iter().find(|watts| known(watts) && *watts > 0));
        Health {
            temperature_celsius: self.temperature(JUNCTION).or_else(|| self.temperature(EDGE)),
            power_watts: watts.map(|watts| watts as f32),
            utilisation_percent: work.map(|work| work.graphics).filter(known).map(|percent| percent as f32),
            ..Health::default()
        }
    }

    /// Number of uncorrectable memory errors since the driver was loaded.
    pub(crate) fn uncorrected_errors(&self) -> Option<u64> {
        let (functions, device) = (&self.opened.functions, self.device);
        // SAFETY: as above.
        let errors: Option<Errors> =
            asked(|errors| unsafe { (functions.amdsmi_get_gpu_total_ecc_count)(device, errors) });
        errors.map(|errors| errors.uncorrected)
    }

    /// This library reports degrees, ROCm SMI thousandths of a degree.
    fn temperature(&self, sensor: c_int) -> Option<f32> {
        let (functions, device) = (&self.opened.functions, self.device);
        // SAFETY: the library gave the device handle. The call writes one number.
        let told: Option<i64> =
            asked(|degrees| unsafe { (functions.amdsmi_get_temp_metric)(device, sensor, CURRENT, degrees) });
        told.map(|degrees| degrees as f32)
    }
}

/// Encodes a PCI address as AMD SMI does.
fn number(address: PciAddress) -> u64 {
    let PciAddress { domain, bus, device, function } = address;
    u64::from(domain) << 16 | u64::from(bus) << 8 | u64::from(device & 0x1f) << 3 | u64::from(function & 7)
}

/// Returns the value that `ask` writes, or `None` if it fails.
fn asked<T: Default>(ask: impl FnOnce(*mut T) -> c_int) -> Option<T> {
    let mut value = T::default();
    (ask(&raw mut value) == 0).then_some(value)
}

fn checked(name: &str, status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{name} answers {status}")) }
}
