//! NVRTC, and the compiled kernels that it leaves on disk.
//!
//! A kernel is compiled for the device's own architecture where NVRTC knows it, else to PTX that the driver finishes. The
//! result is kept under the user's cache folder, named by a hash of the text, the architecture, NVRTC and the driver; a
//! file that was damaged does not match the checksum in its header and is compiled anew.

use std::ffi::{CStr, CString, c_int};
use std::path::PathBuf;

use cudarc::nvrtc::{result, sys};
use panoply_core::{DeviceId, Error, Result};

/// The first bytes of a file in the cache.
const MAGIC: &[u8; 8] = b"panoply1";
/// The most bytes that a cached kernel may have.
const IMAGE_BYTES_MAX: u64 = 64 << 20;

pub(crate) struct Compiler {
    capability: u32,
    driver_version: String,
    cache: Option<PathBuf>,
}

impl Compiler {
    /// A compiler for a device of this compute capability (90 for 9.0) behind this driver.
    pub(crate) fn new(driver_version: String, capability: u32) -> Compiler {
        Compiler { capability, driver_version, cache: cache_folder() }
    }

    /// Whether NVRTC is installed.
    pub(crate) fn is_present() -> bool {
        // SAFETY: looks for the library by name, which runs no more than its initialisers.
        unsafe { sys::is_culib_present() }
    }

    /// The compiled image of a complete source text.
    pub(crate) fn compile(&self, device: DeviceId, name: &str, source: &str) -> Result<Vec<u8>> {
        if !Compiler::is_present() {
            let reason = format!("{name} cannot be compiled: libnvrtc was not found; install CUDA's NVRTC library");
            return Err(Error::DeviceFault { device, reason });
        }
        let (major, minor) = version();
        let key = [source, &self.driver_version, &format!("{} {major}.{minor}", self.capability)].join("\0");
        let file = self.cache.as_ref().map(|cache| cache.join(format!("{:016x}.kernel", hash(key.as_bytes()))));
        if let Some(image) = file.as_ref().and_then(read) {
            return Ok(image);
        }
        let image = self
            .compile_now(source)
            .map_err(|reason| Error::DeviceFault { device, reason: format!("{name} does not compile: {reason}") })?;
        if let Some(file) = &file {
            write(file, &image);
        }
        Ok(image)
    }

    fn compile_now(&self, source: &str) -> Result<Vec<u8>, String> {
        let text = CString::new(source).map_err(|_| "its text has a zero byte".to_owned())?;
        let program = result::create_program(&text, None).map_err(|error| error.to_string())?;
        let (target, binary) = target(self.capability);
        let options = [target, "--std=c++17".to_owned(), "--disable-warnings".to_owned()];
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
                .map(|log| {
                    let log: Vec<u8> = log.into_iter().map(|byte| byte as u8).collect();
                    let text = CStr::from_bytes_until_nul(&log).map(|text| text.to_string_lossy().into_owned());
                    text.unwrap_or_default().lines().take(12).collect::<Vec<_>>().join("\n")
                })
                .unwrap_or_else(|| error.to_string())),
        };
        // SAFETY: the program is not used after this.
        let _ = unsafe { result::destroy_program(program) };
        image
    }
}

/// NVRTC's version.
fn version() -> (c_int, c_int) {
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two numbers.
    unsafe { sys::nvrtcVersion(&raw mut major, &raw mut minor) };
    (major, minor)
}

/// The compiler's target for a device: its own architecture where NVRTC knows it, else the newest that it does, as PTX.
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
        // Hopper's own instructions need the architecture's full name.
        let suffix = if capability == 90 { "a" } else { "" };
        return (format!("--gpu-architecture=sm_{capability}{suffix}"), true);
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

fn cache_folder() -> Option<PathBuf> {
    let base = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let base = base.or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))?;
    Some(base.join("panoply").join("kernels"))
}

/// A cached image whose checksum is right.
fn read(file: &PathBuf) -> Option<Vec<u8>> {
    if std::fs::metadata(file).ok()?.len() > IMAGE_BYTES_MAX {
        return None;
    }
    let bytes = std::fs::read(file).ok()?;
    let (header, image) = bytes.split_at_checked(16)?;
    let checksum = u64::from_le_bytes(header[8..].try_into().ok()?);
    (&header[..8] == MAGIC && checksum == hash(image)).then(|| image.to_vec())
}

/// Leaves an image in the cache, whole or not at all. A cache that cannot be written is only slower.
fn write(file: &PathBuf, image: &[u8]) {
    let Some(folder) = file.parent() else { return };
    let fresh = file.with_extension(format!("{}.tmp", std::process::id()));
    let bytes = [&MAGIC[..], &hash(image).to_le_bytes(), image].concat();
    let written = std::fs::create_dir_all(folder).and_then(|()| std::fs::write(&fresh, bytes));
    if written.and_then(|()| std::fs::rename(&fresh, file)).is_err() {
        let _ = std::fs::remove_file(&fresh);
    }
}

/// FNV-1a over 64 bits, stable from build to build.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
