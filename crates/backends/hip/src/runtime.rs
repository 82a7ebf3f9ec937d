//! HIP's runtime, loaded by name: each call's answer is checked, and has the runtime's own words.

use std::ffi::{CStr, c_char, c_int};
use std::fmt;
use std::sync::Arc;

use libloading::Library;
use panoply_c_gpu::loading;
use panoply_core::Absence;

use crate::sys::{self, Functions, Status};

/// Names of the runtime's library: those of ROCm 7, 6 and 5, the one of a development package, and Windows'.
pub(crate) const LIBRARIES: &[&str] = &[
    "libamdhip64.so.7",
    "libamdhip64.so.6",
    "libamdhip64.so.5",
    "libamdhip64.so",
    "amdhip64_7.dll",
    "amdhip64_6.dll",
    "amdhip64.dll",
];

/// An error as the runtime numbers it, with its words.
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
    /// The first of these libraries that is there and whole, initialised.
    pub(crate) fn load(names: &[String]) -> Result<Arc<Runtime>, Absence> {
        let (library, functions) = first_whole(names, "HIP's runtime", Functions::find)?;
        let runtime = Runtime { functions, _library: library };
        // SAFETY: the runtime takes no flags.
        runtime.check(unsafe { (functions.hipInit)(0) }).map_err(|error| runtime.absence(error))?;
        Ok(Arc::new(runtime))
    }

    /// How many devices there are: at least one.
    pub(crate) fn count(&self) -> Result<c_int, Absence> {
        let mut count = 0;
        // SAFETY: writes one number.
        self.check(unsafe { (self.functions.hipGetDeviceCount)(&raw mut count) })
            .map_err(|error| self.absence(error))?;
        if count > 0 { Ok(count) } else { Err(Absence::NoDevice { reason: none_is_shown() }) }
    }

    /// What no device means.
    fn absence(&self, error: HipError) -> Absence {
        match error.status {
            sys::NO_DEVICE | sys::INVALID_DEVICE => {
                Absence::NoDevice { reason: format!("{}; {error}", none_is_shown()) }
            }
            sys::OPERATING_SYSTEM => Absence::Denied { reason: error.to_string() },
            _ => Absence::NoDevice { reason: error.to_string() },
        }
    }

    /// An answer of the runtime's.
    pub(crate) fn check(&self, status: Status) -> Result<(), HipError> {
        if status == sys::SUCCESS {
            return Ok(());
        }
        // SAFETY: both give a text of the library's own for any number.
        let words = unsafe { [(self.functions.hipGetErrorName)(status), (self.functions.hipGetErrorString)(status)] };
        let [name, text] = words.map(owned);
        // Some errors have no words but their names.
        let words = if text.is_empty() || text == name { name } else { format!("{name}: {text}") };
        Err(HipError { status, words })
    }

    /// The version of the first of these libraries, without opening anything.
    pub(crate) fn version_of(names: &[String]) -> Result<(u32, String), Absence> {
        let (library, functions) = first_whole(names, "HIP's runtime", Functions::find)?;
        Ok(Runtime { functions, _library: library }.version())
    }

    /// The runtime's version, 502 for HIP 5.2, and what it is called.
    pub(crate) fn version(&self) -> (u32, String) {
        let mut version = 0;
        // SAFETY: writes one number.
        let told = unsafe { (self.functions.hipRuntimeGetVersion)(&raw mut version) };
        let version = if told == sys::SUCCESS { u32::try_from(version).unwrap_or(0) } else { 0 };
        let (major, minor, patch) = (version / 10_000_000, version / 100_000 % 100, version % 100_000);
        (major * 100 + minor, format!("HIP {major}.{minor}.{patch}"))
    }
}

/// Why the runtime shows nothing.
fn none_is_shown() -> String {
    let hidden = ["HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"];
    let told = hidden.iter().find_map(|name| std::env::var(name).ok().map(|value| format!("; {name} is «{value}»")));
    format!("the runtime shows none{}", told.unwrap_or_default())
}

/// The first of these libraries that is there and has every function.
pub(crate) fn first_whole<T>(
    names: &[String],
    what: &str,
    find: impl Fn(&Library) -> Result<T, &'static str>,
) -> Result<(Library, T), Absence> {
    let mut lacking = None;
    for name in names {
        // SAFETY: loading runs the library's initialisers, which is what it is there for.
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

/// A text of a library's own; empty where there is none.
pub(crate) fn owned(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the library's texts end with a zero, and stay.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}
