//! The NVRTC compiler. A kernel is compiled for the device's own architecture if NVRTC supports it,
//! otherwise to PTX, which the driver finishes.

use std::ffi::{CStr, CString, c_int};

use cudarc::nvrtc::{result, sys};
use panoply_c_gpu::compile::Compiler;
use panoply_kernels::c::KernelTarget;

use crate::quirks;

/// The most lines of a compiler's message that are repeated.
const MESSAGE_LINES_MAX: usize = 12;

/// The first version that is sure to accept `--minimal`.
const MINIMAL_SINCE: (c_int, c_int) = (13, 0);

/// NVRTC for one architecture and one driver version.
pub struct Nvrtc {
    capability: u32,
    driver_version: String,
}

impl Nvrtc {
    /// A compiler for devices of this compute capability (90 for 9.0) with this driver.
    pub(crate) fn new(driver_version: String, capability: u32) -> Nvrtc {
        Nvrtc { capability, driver_version }
    }

    /// NVRTC for this compute capability, if it is installed; compiling needs no driver.
    pub fn for_capability(capability: u32) -> Option<Nvrtc> {
        Nvrtc::is_present().then(|| Nvrtc::new(String::new(), capability))
    }

    /// Whether NVRTC is installed.
    pub fn is_present() -> bool {
        // SAFETY: looks for the library by name, which only runs its initialisers.
        unsafe { sys::is_culib_present() }
    }
}

impl Compiler for Nvrtc {
    fn target(&self) -> KernelTarget {
        KernelTarget::CUDA
    }

    fn identity(&self) -> String {
        let (major, minor) = if Nvrtc::is_present() { version() } else { (0, 0) };
        format!("{}\0{} {major}.{minor}", self.driver_version, self.capability)
    }

    fn compile(&self, source: &str) -> Result<Vec<u8>, String> {
        if !Nvrtc::is_present() {
            return Err("libnvrtc was not found; install CUDA's NVRTC library".to_owned());
        }
        let text = CString::new(source).map_err(|_| "its text has a zero byte".to_owned())?;
        let program = result::create_program(&text, None).map_err(|error| error.to_string())?;
        let (target, binary) = target(self.capability);
        let mut options = vec![target, "--std=c++17".to_owned(), "--disable-warnings".to_owned()];
        if version() >= MINIMAL_SINCE {
            // Generates the same code without reading declarations that no kernel uses: saves a
            // fifth of a short kernel's compile time.
            options.push("--minimal".to_owned());
        }
        // SAFETY: the program was just created and is destroyed below.
        let compiled = unsafe { result::compile_program(program, &options) };
        let image = match compiled {
            Ok(()) if binary => cubin(program),
            // SAFETY: as above.
            Ok(()) => unsafe { result::get_ptx(program) }
                .map(|ptx| ptx.into_iter().map(|byte| byte as u8).collect())
                .map_err(|error| error.to_string()),
            // SAFETY: as above.
            Err(error) => Err(unsafe { result::get_program_log(program) }
                .ok()
                .map_or_else(|| error.to_string(), |log| told(&log))),
        };
        // SAFETY: the program is not used after this.
        let _ = unsafe { result::destroy_program(program) };
        image
    }
}

/// The first lines of a log.
fn told(log: &[std::ffi::c_char]) -> String {
    let log: Vec<u8> = log.iter().map(|byte| *byte as u8).collect();
    let text = CStr::from_bytes_until_nul(&log).map(|text| text.to_string_lossy().into_owned());
    text.unwrap_or_default().lines().take(MESSAGE_LINES_MAX).collect::<Vec<_>>().join("\n")
}

/// NVRTC's version.
fn version() -> (c_int, c_int) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two numbers.
    unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    (major, minor)
}

/// The compiler's target for a device: its own architecture if NVRTC supports it, otherwise PTX for
/// the newest one that NVRTC supports and the device can run. The flag says whether the output is a
/// binary.
fn target(capability: u32) -> (String, bool) {
    let mut count = 0;
    // SAFETY: writes one number.
    unsafe { sys::nvrtcGetNumSupportedArchs(&raw mut count) };
    let mut known = vec![0; usize::try_from(count).unwrap_or(0)];
    if !known.is_empty() {
        // SAFETY: writes `count` numbers.
        unsafe { sys::nvrtcGetSupportedArchs(known.as_mut_ptr()) };
    }
    let wanted = capability as c_int;
    if known.contains(&wanted) {
        return (format!("--gpu-architecture=sm_{capability}{}", quirks::architecture_suffix(capability)), true);
    }
    let newest = known.into_iter().filter(|arch| *arch <= wanted).max().unwrap_or(wanted);
    (format!("--gpu-architecture=compute_{newest}"), false)
}

fn cubin(program: sys::nvrtcProgram) -> Result<Vec<u8>, String> {
    let mut bytes = 0;
    // SAFETY: the program has been compiled for a real architecture.
    unsafe { sys::nvrtcGetCUBINSize(program, &raw mut bytes) }.result().map_err(|error| error.to_string())?;
    let mut image = vec![0_u8; bytes];
    // SAFETY: the buffer has the size that was just asked for.
    unsafe { sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()) }.result().map_err(|error| error.to_string())?;
    Ok(image)
}

#[cfg(test)]
#[path = "compiler_tests.rs"]
mod tests;
