//! AMD SMI: how a GPU is, from ROCm 7 on. Structures of older versions lie otherwise, so they are not loaded: ROCm SMI is there beside them.

use std::ffi::c_int;

use libloading::Library;
use panoply_core::{Health, PciAddress};

use crate::runtime::first_whole;
use crate::sys::{Handle, functions};

/// Everything but AMD's GPUs is left alone.
const GPUS: u64 = 1 << 1;
/// The sensor at the hottest place, and the one at the edge.
const JUNCTION: c_int = 1;
const EDGE: c_int = 0;
const CURRENT: c_int = 0;
/// Numbers that no sensor gives: what is not known.
const UNKNOWN: [u32; 2] = [u32::MAX, 0xffff];

/// The numbers above by the names that the library's headers have for them.
#[cfg(test)]
pub(super) const ENUMERATORS: &[(&str, c_int)] = &[("AMDSMI_TEMP_CURRENT", CURRENT)];

/// What the library tells of power, in watts, with room for what newer versions may add.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Power {
    socket: u64,
    current: u32,
    average: u32,
    room: [u64; 32],
}

/// What the library tells of work, in percent, with room as above.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Work {
    graphics: u32,
    memory: u32,
    media: u32,
    room: [u32; 29],
}

/// Errors in memory, with room as above.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Errors {
    corrected: u64,
    uncorrected: u64,
    deferred: u64,
    room: [u64; 13],
}

functions! {
    /// What is asked of AMD SMI.
    Functions {
        amdsmi_init(flags: u64) -> c_int;
        amdsmi_shut_down() -> c_int;
        amdsmi_get_processor_handle_from_bdf(address: u64, device: *mut Handle) -> c_int;
        amdsmi_get_temp_metric(device: Handle, sensor: c_int, metric: c_int, degrees: *mut i64) -> c_int;
        amdsmi_get_power_info(device: Handle, power: *mut Power) -> c_int;
        amdsmi_get_gpu_activity(device: Handle, work: *mut Work) -> c_int;
        amdsmi_get_gpu_total_ecc_count(device: Handle, errors: *mut Errors) -> c_int;
    }
}

/// The library, initialised. It counts who uses it.
struct Opened {
    functions: Functions,
    /// Held so that the functions stay loaded.
    _library: Library,
}

impl Drop for Opened {
    fn drop(&mut self) {
        // SAFETY: initialised by `open`, and not used again.
        let _ = unsafe { (self.functions.amdsmi_shut_down)() };
    }
}

/// One GPU as AMD SMI knows it.
pub(crate) struct AmdSmi {
    opened: Opened,
    device: Handle,
}

impl AmdSmi {
    /// The GPU at this address, or why it cannot be asked.
    pub(crate) fn open(names: &[String], address: PciAddress) -> Result<AmdSmi, String> {
        let found = first_whole(names, "AMD SMI", Functions::find);
        let (library, functions) = found.map_err(|absence| absence.to_string())?;
        // SAFETY: the flags are the library's own.
        checked("amdsmi_init", unsafe { (functions.amdsmi_init)(GPUS) })?;
        let (opened, mut device) = (Opened { functions, _library: library }, std::ptr::null_mut());
        // SAFETY: the address is a union of 64 bits, passed as one number; writes one handle.
        let told = unsafe { (functions.amdsmi_get_processor_handle_from_bdf)(number(address), &raw mut device) };
        checked("amdsmi_get_processor_handle_from_bdf", told)?;
        Ok(AmdSmi { opened, device })
    }

    /// What the sensors say now.
    pub(crate) fn health(&self) -> Health {
        let (functions, device) = (&self.opened.functions, self.device);
        // SAFETY: the device is the library's; each writes one structure, for which there is more than enough room.
        let power: Option<Power> = asked(|power| unsafe { (functions.amdsmi_get_power_info)(device, power) });
        // SAFETY: as above.
        let work: Option<Work> = asked(|work| unsafe { (functions.amdsmi_get_gpu_activity)(device, work) });
        let known = |number: &u32| !UNKNOWN.contains(number);
        // Newer GPUs tell the first, older ones the second.
        let watts =
            power.and_then(|power| [power.current, power.average].into_iter().find(|watts| known(watts) && *watts > 0));
        Health {
            temperature_celsius: self.temperature(JUNCTION).or_else(|| self.temperature(EDGE)),
            power_watts: watts.map(|watts| watts as f32),
            utilisation_percent: work.map(|work| work.graphics).filter(known).map(|percent| percent as f32),
            ..Health::default()
        }
    }

    /// Errors in memory that could not be corrected, since the driver was loaded.
    pub(crate) fn uncorrected_errors(&self) -> Option<u64> {
        let (functions, device) = (&self.opened.functions, self.device);
        // SAFETY: as above.
        let errors: Option<Errors> =
            asked(|errors| unsafe { (functions.amdsmi_get_gpu_total_ecc_count)(device, errors) });
        errors.map(|errors| errors.uncorrected)
    }

    /// This library counts degrees, where ROCm SMI counts thousandths.
    fn temperature(&self, sensor: c_int) -> Option<f32> {
        let (functions, device) = (&self.opened.functions, self.device);
        // SAFETY: the device is the library's; writes one number.
        let told: Option<i64> =
            asked(|degrees| unsafe { (functions.amdsmi_get_temp_metric)(device, sensor, CURRENT, degrees) });
        told.map(|degrees| degrees as f32)
    }
}

/// How AMD SMI writes an address.
fn number(address: PciAddress) -> u64 {
    let PciAddress { domain, bus, device, function } = address;
    u64::from(domain) << 16 | u64::from(bus) << 8 | u64::from(device & 0x1f) << 3 | u64::from(function & 7)
}

/// What a function writes, where it succeeds.
fn asked<T: Default>(ask: impl FnOnce(*mut T) -> c_int) -> Option<T> {
    let mut value = T::default();
    (ask(&raw mut value) == 0).then_some(value)
}

fn checked(name: &str, status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{name} answers {status}")) }
}
