//! AMD SMI and ROCm SMI for the emulated device, with constant values. AMD SMI knows the GPU only
//! if a test enables it with `panoply_test_amd_smi`.

use std::cell::Cell;
use std::ffi::{c_int, c_void};

use crate::device::Handle;
use crate::libraries::answer;
use crate::trouble::asked_for;

/// The address of the first emulated device in AMD SMI's encoding.
const FIRST: u64 = 3 << 8;
const NOT_FOUND: c_int = 31;
const NOT_SUPPORTED: c_int = 2;

thread_local! {
    static NEWER: Cell<bool> = const { Cell::new(false) };
    static USERS: Cell<i64> = const { Cell::new(0) };
}

/// Sets whether AMD SMI knows the GPU, for this thread.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_amd_smi(knows: bool) {
    NEWER.set(knows);
}

/// How often this thread has initialised AMD SMI or ROCm SMI without shutting it down.
#[unsafe(no_mangle)]
pub extern "C" fn panoply_test_monitors() -> i64 {
    USERS.get()
}

fn begin(name: &str) -> c_int {
    let status = answer(name);
    USERS.set(USERS.get() + i64::from(status == 0));
    status
}

fn end() -> c_int {
    USERS.set(USERS.get() - 1);
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn amdsmi_init(_flags: u64) -> c_int {
    begin("amdsmi_init")
}

#[unsafe(no_mangle)]
pub extern "C" fn amdsmi_shut_down() -> c_int {
    end()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn amdsmi_get_processor_handle_from_bdf(address: u64, device: *mut Handle) -> c_int {
    if address != FIRST || !NEWER.get() {
        return NOT_FOUND;
    }
    // SAFETY: the caller passes a valid pointer, here and below. The handle is a number that is
    // never dereferenced.
    unsafe { device.write(std::ptr::without_provenance_mut(1)) };
    answer("amdsmi_get_processor_handle_from_bdf")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn amdsmi_get_temp_metric(
    _device: Handle,
    sensor: c_int,
    _metric: c_int,
    degrees: *mut i64,
) -> c_int {
    // SAFETY: as above.
    unsafe { degrees.write(50 + i64::from(sensor)) };
    answer("amdsmi_get_temp_metric")
}

/// Lays out the power as AMD SMI 26 does: a 64-bit number of watts, then the current and the
/// average power. Unknown values are the largest number.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amdsmi_get_power_info(_device: Handle, power: *mut c_void) -> c_int {
    let current = if asked_for("current power").is_some() { u32::MAX } else { 210 };
    // SAFETY: as above, for 24 numbers of 64 bits.
    unsafe {
        power.cast::<u64>().write(u64::from(u32::MAX));
        power.cast::<u32>().add(2).write(current);
        power.cast::<u32>().add(3).write(190);
        power.cast::<u64>().add(2).write(850);
    }
    answer("amdsmi_get_power_info")
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn amdsmi_get_gpu_activity(_device: Handle, work: *mut [u32; 16]) -> c_int {
    // SAFETY: as above.
    unsafe { work.write([29; 16]) };
    answer("amdsmi_get_gpu_activity")
}

/// Reports four uncorrectable errors, plus the status that a test injected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn amdsmi_get_gpu_total_ecc_count(_device: Handle, counts: *mut [u64; 8]) -> c_int {
    let more = asked_for("amdsmi_get_gpu_total_ecc_count").unwrap_or(0);
    // SAFETY: as above.
    unsafe { counts.write([5, 4 + more as u64, 0, 0, 0, 0, 0, 0]) };
    0
}

#[unsafe(no_mangle)]
pub extern "C" fn rsmi_init(_flags: u64) -> c_int {
    begin("rsmi_init")
}

#[unsafe(no_mangle)]
pub extern "C" fn rsmi_shut_down() -> c_int {
    end()
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsmi_num_monitor_devices(count: *mut u32) -> c_int {
    // SAFETY: the caller passes a valid pointer, here and below.
    unsafe { count.write(2) };
    0
}

/// The second monitored device is partition 2 of the first emulated device.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsmi_dev_pci_id_get(device: u32, address: *mut u64) -> c_int {
    // SAFETY: as above.
    unsafe { address.write(if device == 1 { 2 << 28 | FIRST } else { 9 << 8 }) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsmi_dev_temp_metric_get(device: u32, sensor: u32, _metric: c_int, value: *mut i64) -> c_int {
    // SAFETY: as above.
    unsafe { value.write(40_000 + i64::from(device) * 1000 + i64::from(sensor) * 500) };
    answer("rsmi_dev_temp_metric_get")
}

/// The current power, which only newer GPUs report. This GPU is older unless a test injects a
/// status.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsmi_dev_power_get(_device: u32, microwatts: *mut u64, kind: *mut c_int) -> c_int {
    // SAFETY: as above.
    unsafe {
        microwatts.write(156_000_000);
        kind.write(1);
    }
    if asked_for("rsmi_dev_power_get").is_some() { 0 } else { NOT_SUPPORTED }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsmi_dev_power_ave_get(_device: u32, _sensor: u32, microwatts: *mut u64) -> c_int {
    // SAFETY: as above.
    unsafe { microwatts.write(123_000_000) };
    0
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsmi_dev_busy_percent_get(_device: u32, percent: *mut u32) -> c_int {
    // SAFETY: as above.
    unsafe { percent.write(17) };
    0
}

/// Reports two uncorrectable errors, plus the status that a test injected.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn rsmi_dev_ecc_count_get(_device: u32, _block: u64, counts: *mut [u64; 2]) -> c_int {
    let more = asked_for("rsmi_dev_ecc_count_get").unwrap_or(0);
    // SAFETY: as above.
    unsafe { counts.write([5, 2 + more as u64]) };
    0
}
