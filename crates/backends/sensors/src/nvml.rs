//! NVML: the health of an NVIDIA GPU. Loaded at run time.

use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};

use libloading::{Library, Symbol};
use panoply_core::{Absence, Health, MemoryUse, PciAddress, vendor};

/// The library's possible file names.
pub const NAMES: [&str; 3] = ["libnvidia-ml.so.1", "libnvidia-ml.so", "nvml.dll"];
const SENSOR_GPU: c_int = 0;
/// Reasons for which the device slows itself down: power cap, hardware and software slowdown, heat,
/// power brake.
const SLOWED: c_ulonglong = 0x4 | 0x8 | 0x20 | 0x40 | 0x80;
const ECC_UNCORRECTED: c_int = 1;
const ECC_SINCE_BOOT: c_int = 0;

type Device = *mut c_void;
type NvmlQuery = unsafe extern "C" fn(Device, *mut c_uint) -> c_int;

/// One GPU's handle in NVML.
pub struct Nvml {
    library: InitialisedLibrary,
    device: Device,
}

/// NVML between its initialisation and its end. It counts its users.
struct InitialisedLibrary(Library);

impl Drop for InitialisedLibrary {
    fn drop(&mut self) {
        // SAFETY: the signature is NVML's, and the library was initialised.
        if let Ok(end) = unsafe { symbol::<unsafe extern "C" fn() -> c_int>(&self.0, b"nvmlShutdown\0") } {
            // SAFETY: as above; the library is not used again.
            let _ = unsafe { end() };
        }
    }
}

impl Nvml {
    /// The GPU at this address, or the reason why it cannot be asked.
    pub fn open(names: &[impl AsRef<str>], address: PciAddress) -> Result<Nvml, String> {
        let library = vendor::load(|| load(names)).map_err(|absence| format!("NVML: {absence}"))?;
        // SAFETY: NVML's functions have these signatures.
        unsafe {
            let init: Symbol<'_, unsafe extern "C" fn() -> c_int> = symbol(&library, b"nvmlInit_v2\0")?;
            checked("nvmlInit_v2", init())?;
        }
        let library = InitialisedLibrary(library);
        let name = CString::new(address.to_string()).map_err(|error| error.to_string())?;
        let mut device = std::ptr::null_mut();
        // SAFETY: as above; the call reads one text and writes one handle.
        unsafe {
            type Find = unsafe extern "C" fn(*const c_char, *mut Device) -> c_int;
            let find: Symbol<'_, Find> = symbol(&library.0, b"nvmlDeviceGetHandleByPciBusId_v2\0")?;
            checked("nvmlDeviceGetHandleByPciBusId_v2", find(name.as_ptr(), &raw mut device))?;
        }
        Ok(Nvml { library, device })
    }

    /// The current values of the sensors.
    pub fn health(&self) -> Health {
        let temperature_celsius = self.temperature();
        let absent = || "NVML reports no temperature of this GPU".to_owned();
        Health {
            temperature_celsius,
            power_watts: self.number(b"nvmlDeviceGetPowerUsage\0").map(|milliwatts| milliwatts as f32 / 1e3),
            utilisation_percent: self.utilisation(),
            throttled: self.slowed(),
            memory: self.memory(),
            sensors_absent: temperature_celsius.is_none().then(absent),
            ..Health::default()
        }
    }

    /// Number of uncorrectable memory errors since the driver was loaded.
    pub fn uncorrected_errors(&self) -> Option<u64> {
        type Count = unsafe extern "C" fn(Device, c_int, c_int, *mut c_ulonglong) -> c_int;
        let mut errors = 0;
        // SAFETY: the signature is NVML's; the device came from it.
        let answer = unsafe {
            let ask: Symbol<'_, Count> = symbol(&self.library.0, b"nvmlDeviceGetTotalEccErrors\0").ok()?;
            ask(self.device, ECC_UNCORRECTED, ECC_SINCE_BOOT, &raw mut errors)
        };
        (answer == 0).then_some(errors)
    }

    fn number(&self, name: &[u8]) -> Option<c_uint> {
        let mut value = 0;
        // SAFETY: the functions that are called here take a device and write one number.
        let answer = unsafe {
            let ask: Symbol<'_, NvmlQuery> = symbol(&self.library.0, name).ok()?;
            ask(self.device, &raw mut value)
        };
        (answer == 0).then_some(value)
    }

    fn temperature(&self) -> Option<f32> {
        type Sensor = unsafe extern "C" fn(Device, c_int, *mut c_uint) -> c_int;
        let mut degrees = 0;
        // SAFETY: the signature is NVML's; the device came from it.
        let answer = unsafe {
            let ask: Symbol<'_, Sensor> = symbol(&self.library.0, b"nvmlDeviceGetTemperature\0").ok()?;
            ask(self.device, SENSOR_GPU, &raw mut degrees)
        };
        (answer == 0).then_some(degrees as f32)
    }

    fn utilisation(&self) -> Option<f32> {
        type Rates = unsafe extern "C" fn(Device, *mut [c_uint; 2]) -> c_int;
        let mut rates = [0; 2];
        // SAFETY: the structure is two numbers: for the cores and for the memory.
        let answer = unsafe {
            let ask: Symbol<'_, Rates> = symbol(&self.library.0, b"nvmlDeviceGetUtilizationRates\0").ok()?;
            ask(self.device, &raw mut rates)
        };
        (answer == 0).then_some(rates[0] as f32)
    }

    fn memory(&self) -> Option<MemoryUse> {
        type Memory = unsafe extern "C" fn(Device, *mut [c_ulonglong; 3]) -> c_int;
        let mut bytes = [0; 3];
        // SAFETY: the structure is three numbers: total, free and used bytes.
        let answer = unsafe {
            let ask: Symbol<'_, Memory> = symbol(&self.library.0, b"nvmlDeviceGetMemoryInfo\0").ok()?;
            ask(self.device, &raw mut bytes)
        };
        (answer == 0).then(|| MemoryUse::new(bytes[0], bytes[1]))
    }

    fn slowed(&self) -> Option<bool> {
        type Reasons = unsafe extern "C" fn(Device, *mut c_ulonglong) -> c_int;
        let mut reasons = 0;
        // SAFETY: the signature is NVML's; the device came from it.
        let answer = unsafe {
            let ask: Symbol<'_, Reasons> =
                symbol(&self.library.0, b"nvmlDeviceGetCurrentClocksThrottleReasons\0").ok()?;
            ask(self.device, &raw mut reasons)
        };
        (answer == 0).then_some(reasons & SLOWED != 0)
    }
}

/// Loads the first of these libraries that is there.
fn load(names: &[impl AsRef<str>]) -> Result<Library, Absence> {
    // SAFETY: loads NVIDIA's library by its name, which only runs its initialisers.
    let found = names.iter().find_map(|name| unsafe { Library::new(name.as_ref()) }.ok());
    found.ok_or_else(|| Absence::LibraryMissing { tried: names.iter().map(|name| name.as_ref().to_owned()).collect() })
}

/// # Safety
/// `T` must be the function's signature.
unsafe fn symbol<'a, T>(library: &'a Library, name: &[u8]) -> Result<Symbol<'a, T>, String> {
    // SAFETY: the caller vouches for the signature.
    unsafe { library.get(name) }.map_err(|error| error.to_string())
}

fn checked(name: &str, status: c_int) -> Result<(), String> {
    if status == 0 { Ok(()) } else { Err(format!("{name} answers {status}")) }
}
