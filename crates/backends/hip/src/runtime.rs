//! HIP's runtime, loaded by name. The status of each call is checked and converted to an error with
//! the runtime's own text.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::Arc;

use libloading::Library;
use panoply_c_gpu::loading;
use panoply_core::{Absence, vendor};

use crate::sys::{self, Functions, Status};

/// Names of the runtime's library: in ROCm 7, 6 and 5, in a development package, and on Windows.
pub(crate) const LIBRARIES: &[&str] = &[
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so.5",
    "libamdhip64.so",
    "amdhip64_7.dll",
    "amdhip64_6.dll",
    "amdhip64.dll",
];

/// A status of the runtime with its text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HipError {
    pub(crate) status: Status,
    words: String,
}

impl fmt::Display for HipError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words)
    }
}

/// The runtime's library and its functions.
pub(crate) struct Runtime {
    pub(crate) functions: Functions,
    /// Held so that the functions stay loaded.
    _library: Library,
}

impl Runtime {
    /// Loads and initialises the first of these libraries that exists and has every function.
    pub(crate) fn load(names: &[String]) -> Result<Arc<Runtime>, Absence> {
        let (library, functions) = first_whole(names, "HIP's runtime", Functions::find)?;
        let runtime = Runtime { functions, _library: library };
        // SAFETY: `hipInit` takes no flags.
        runtime.check(unsafe { (functions.hipInit)(0) }).map_err(|error| runtime.absence(error))?;
        Ok(Arc::new(runtime))
    }

    /// Number of devices, at least one.
    pub(crate) fn count(&self) -> Result<c_int, Absence> {
        let mut count = 0;
        // SAFETY: the call writes one number.
        self.check(unsafe { (self.functions.hipGetDeviceCount)(&raw mut count) })
            .map_err(|error| self.absence(error))?;
        if count > 0 { Ok(count) } else { Err(Absence::NoDevice { reason: none_is_shown() }) }
    }

    /// Converts an error of discovery to the reason why there is no device.
    fn absence(&self, error: HipError) -> Absence {
        match error.status {
            sys::NO_DEVICE | sys::INVALID_DEVICE => {
                Absence::NoDevice { reason: format!("{}; {error}", none_is_shown()) }
            }
            sys::OPERATING_SYSTEM => Absence::Denied { reason: error.to_string() },
            _ => Absence::NoDevice { reason: error.to_string() },
        }
    }

    /// Converts the status of a call to a result.
    pub(crate) fn check(&self, status: Status) -> Result<(), HipError> {
        if status == sys::SUCCESS {
            return Ok(());
        }
        // SAFETY: both calls return a text owned by the library for any status.
        let words = unsafe { [(self.functions.hipGetErrorName)(status), (self.functions.hipGetErrorString)(status)] };
        let [name, text] = words.map(owned);
        // Some errors have no text besides their name.
        let words = if text.is_empty() || text == name { name } else { format!("{name}: {text}") };
        Err(HipError { status, words })
    }

    /// The version of the first usable library, without initialising it.
    pub(crate) fn version_of(names: &[String]) -> Result<(u32, String), Absence> {
        let (library, functions) = first_whole(names, "HIP's runtime", Functions::find)?;
        Ok(Runtime { functions, _library: library }.version())
    }

    /// The runtime's version as a number (502 for HIP 5.2) and as text.
    pub(crate) fn version(&self) -> (u32, String) {
        let mut version = 0;
        // SAFETY: the call writes one number.
        let told = unsafe { (self.functions.hipRuntimeGetVersion)(&raw mut version) };
        let version = if told == sys::SUCCESS { u32::try_from(version).unwrap_or(0) } else { 0 };
        let (major, minor, patch) = (version / 10_000_000, version / 100_000 % 100, version % 100_000);
        (major * 100 + minor, format!("HIP {major}.{minor}.{patch}"))
    }
}

/// Why the runtime lists no device. Names the environment variables that may hide devices.
fn none_is_shown() -> String {
    let hidden = ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];
    let told = hidden.iter().find_map(|name| std::env::var(name).ok().map(|value| format!("; {name} is «{value}»")));
    format!("the runtime shows none{}", told.unwrap_or_default())
}

/// Loads the first of these libraries that exists and has every function.
pub(crate) fn first_whole<T>(
    names: &[String],
    what: &str,
    find: impl Fn(&Library) -> Result<T, &'static str>,
) -> Result<(Library, T), Absence> {
    vendor::load(|| load_first_whole(names, what, find))
}

fn load_first_whole<T>(
    names: &[String],
    what: &str,
    find: impl Fn(&Library) -> Result<T, &'static str>,
) -> Result<(Library, T), Absence> {
    let mut lacking = None;
    for name in names {
        // SAFETY: loading runs only the library's initialisers.
        let library = match unsafe { Library::new(name) } {
            Ok(library) => library,
            Err(error) => {
                lacking = lacking.or(loading::fault(name, &error));
                continue;
            }
        };
        match find(&library) {
            Ok(functions) => return Ok((library, functions)),
            Err(function) => lacking = Some(format!("the library {name} lacks {function}, so it is not {what}")),
        }
    }
    Err(match lacking {
        Some(reason) => Absence::NoDevice { reason },
        None => Absence::LibraryMissing { tried: names.to_vec() },
    })
}

/// Copies a text owned by a library. Empty for a null pointer.
pub(crate) fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the library's texts end with a zero byte and stay valid.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
