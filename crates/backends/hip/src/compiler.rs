//! hiprtc, HIP's runtime compiler. It compiles each kernel for the device's own architecture.

use std::ffi::{CString, c_char, c_int};
use std::ptr::{null, null_mut};
use std::sync::{Mutex, PoisonError};

use libloading::Library;
use panoply_c_gpu::compile::Compiler;
use panoply_core::Absence;
use panoply_kernels::c::{Dialect, KernelTarget};

use crate::quirks;
use crate::runtime::{self, Runtime, first_whole, owned};
use crate::sys::{CompilerFunctions, Handle, SUCCESS, Status};

/// File names of the compiler: a library of its own, or the runtime's library up to HIP 6.
pub(crate) const LIBRARIES: &[&str] = &[
    "libhiprtc.so.7",
    "libhiprtc.so.6",
    "libamdhip64.so.6",
    "libamdhip64.so.5",
    "libhiprtc.so",
    "libamdhip64.so",
    "hiprtc0700.dll",
    "hiprtc0600.dll",
];
/// Maximum number of lines of the compiler's log in an error message.
const MESSAGE_LINES_MAX: usize = 12;
/// Only one thread compiles at a time: hiprtc 5.2 ends the process if two threads compile at once.
static COMPILING: Mutex<()> = Mutex::new(());
/// Compiler options of all kernels, for every architecture.
const OPTIONS: [&str; 3] = ["-std=c++17", "-O3", "-w"];

/// hiprtc for one architecture, used with one runtime.
pub struct Hiprtc {
    architecture: String,
    warp_lanes: u32,
    /// HIP's version as a number (502 for 5.2) and as text.
    version: (u32, String),
    loaded: Result<(Library, CompilerFunctions), Absence>,
}

impl Hiprtc {
    /// Loads the first usable library in `names`, to compile for `architecture`. `version` is the
    /// runtime's.
    pub(crate) fn new(names: &[String], architecture: String, warp_lanes: u32, version: (u32, String)) -> Hiprtc {
        let loaded = first_whole(names, "hiprtc", CompilerFunctions::find);
        Hiprtc { architecture, warp_lanes, version, loaded }
    }

    /// Returns this machine's hiprtc for `architecture`, whose warps have `warp_lanes` lanes.
    /// Compiling needs no device.
    pub fn for_architecture(architecture: &str, warp_lanes: u32) -> Result<Hiprtc, Absence> {
        let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let version = Runtime::version_of(&owned(runtime::LIBRARIES))?;
        let hiprtc = Hiprtc::new(&owned(LIBRARIES), architecture.to_owned(), warp_lanes, version);
        match (&hiprtc.loaded, quirks::refusal(architecture, hiprtc.version.0)) {
            (Err(absence), _) => Err(absence.clone()),
            (_, Some(reason)) => Err(Absence::NoDevice { reason }),
            _ => Ok(hiprtc),
        }
    }

    /// Whether `names` contains a usable compiler.
    pub(crate) fn is_present(names: &[String]) -> bool {
        first_whole(names, "hiprtc", CompilerFunctions::find).is_ok()
    }
}

impl Compiler for Hiprtc {
    fn target(&self) -> KernelTarget {
        KernelTarget { dialect: Dialect::Hip, warp_lanes: self.warp_lanes }
    }

    fn identity(&self) -> String {
        let (mut major, mut minor) = (0, 0);
        if let Ok((_, functions)) = &self.loaded {
            // SAFETY: the call writes two numbers.
            unsafe { (functions.hiprtcVersion)(&raw mut major, &raw mut minor) };
        }
        let (options, lanes) = (OPTIONS.join(" "), self.warp_lanes);
        format!("{}\0{} {lanes} hiprtc {major}.{minor} {options}", self.version.1, self.architecture)
    }

    fn compile(&self, source: &str) -> Result<Vec<u8>, String> {
        if let Some(reason) = quirks::refusal(&self.architecture, self.version.0) {
            return Err(reason);
        }
        let (_, functions) = self.loaded.as_ref().map_err(ToString::to_string)?;
        let _alone = COMPILING.lock().unwrap_or_else(PoisonError::into_inner);
        let program = Program::new(functions, source)?;
        let target = format!("--offload-arch={}", self.architecture);
        program.compile([target.as_str()].into_iter().chain(OPTIONS))?;
        program.code()
    }
}

/// A source text in compilation.
struct Program<'a> {
    functions: &'a CompilerFunctions,
    handle: Handle,
}

impl Program<'_> {
    fn new<'a>(functions: &'a CompilerFunctions, source: &str) -> Result<Program<'a>, String> {
        let text = CString::new(source).map_err(|_| "its text has a zero byte".to_owned())?;
        let mut program = Program { functions, handle: null_mut() };
        // SAFETY: the call writes one handle. The text ends with a zero byte, and there are no
        // headers.
        let created = unsafe {
            (functions.hiprtcCreateProgram)(&raw mut program.handle, text.as_ptr(), null(), 0, null(), null())
        };
        program.check(created)?;
        Ok(program)
    }

    /// Compiles the program. The error is the beginning of the compiler's log.
    fn compile<'a>(&self, options: impl Iterator<Item = &'a str>) -> Result<(), String> {
        let options: Vec<CString> = options.filter_map(|option| CString::new(option).ok()).collect();
        let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
        // SAFETY: the program is alive. The options end with zero bytes.
        let compiled =
            unsafe { (self.functions.hiprtcCompileProgram)(self.handle, pointers.len() as c_int, pointers.as_ptr()) };
        self.check(compiled).map_err(|error| Some(self.log()).filter(|log| !log.is_empty()).unwrap_or(error))
    }

    fn code(&self) -> Result<Vec<u8>, String> {
        let mut bytes = 0;
        // SAFETY: the program has been compiled. The call writes one number.
        self.check(unsafe { (self.functions.hiprtcGetCodeSize)(self.handle, &raw mut bytes) })?;
        let mut code = vec![0_u8; bytes];
        // SAFETY: the buffer has the size that the call above returned.
        self.check(unsafe { (self.functions.hiprtcGetCode)(self.handle, code.as_mut_ptr().cast()) })?;
        Ok(code)
    }

    /// The first lines of the log.
    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: the call writes one number.
        if unsafe { (self.functions.hiprtcGetProgramLogSize)(self.handle, &raw mut bytes) } != SUCCESS {
            return String::new();
        }
        let mut log = vec![0_u8; bytes + 1];
        // SAFETY: the buffer is one byte longer than the log, so a zero byte follows the text.
        let told = unsafe { (self.functions.hiprtcGetProgramLog)(self.handle, log.as_mut_ptr().cast()) };
        let text = if told == SUCCESS { owned(log.as_ptr().cast()) } else { String::new() };
        text.lines().take(MESSAGE_LINES_MAX).collect::<Vec<_>>().join("\n")
    }

    fn check(&self, status: Status) -> Result<(), String> {
        if status == SUCCESS {
            return Ok(());
        }
        // SAFETY: the call returns a text owned by the library for any status.
        Err(owned(unsafe { (self.functions.hiprtcGetErrorString)(status) }))
    }
}

impl Drop for Program<'_> {
    fn drop(&mut self) {
        // SAFETY: the program was created by `new` and is destroyed once.
        let _ = unsafe { (self.functions.hiprtcDestroyProgram)(&raw mut self.handle) };
    }
}

#[cfg(test)]
#[path = "compiler_tests.rs"]
mod tests;
