//! A loaded plugin: its checked table of functions, and its errors as values.

use std::ffi::{c_char, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use libloading::Library;

use crate::sys::{self, Arguments, PaddedArgs};

/// An error of a plugin or of its loading.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PjrtError {
    /// The file does not exist, or is not a library for this machine.
    #[error("{path} cannot be loaded: {reason}", path = path.display())]
    Load {
        /// The file.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
    /// The library is not a PJRT plugin.
    #[error("{path} has no GetPjrtApi: it is no PJRT plugin", path = path.display())]
    NoPlugin {
        /// The file.
        path: PathBuf,
    },
    /// The plugin implements an incompatible version of the interface.
    #[error("the plugin speaks PJRT {got_major}.{got_minor}; expected {expected_major}.{expected_minor} or later")]
    Version {
        /// The required major version.
        expected_major: i32,
        /// The lowest supported minor version.
        expected_minor: i32,
        /// The plugin's major version.
        got_major: i32,
        /// The plugin's minor version.
        got_minor: i32,
    },
    /// The plugin's table of functions is too short for this function, or its entry is empty.
    #[error("the plugin has no {function}")]
    Missing {
        /// The function's name.
        function: &'static str,
    },
    /// A function failed.
    #[error("{function}: {message} (code {code})")]
    Call {
        /// The function's name.
        function: &'static str,
        /// The gRPC code.
        code: i32,
        /// The plugin's message.
        message: String,
    },
}

/// The gRPC codes with a special meaning here.
pub(crate) mod code {
    pub(crate) const PERMISSION_DENIED: i32 = 7;
    pub(crate) const RESOURCE_EXHAUSTED: i32 = 8;
    pub(crate) const UNIMPLEMENTED: i32 = 12;
    pub(crate) const UNAVAILABLE: i32 = 14;
    pub(crate) const DATA_LOSS: i32 = 15;
}

/// A loaded plugin. It stays loaded until the process ends: plugins have threads of their own and
/// cannot be unloaded.
pub struct Plugin {
    path: PathBuf,
    api: *const sys::Api,
}

// SAFETY: the table is constant, and PJRT's functions may be called from any thread.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

/// The plugins of this process, by file.
static LOADED: Mutex<Vec<Arc<Plugin>>> = Mutex::new(Vec::new());

impl Plugin {
    /// Loads a plugin, or returns it if it is already loaded.
    pub fn load(path: &Path) -> Result<Arc<Plugin>, PjrtError> {
        let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(plugin) = loaded.iter().find(|plugin| plugin.path == path) {
            return Ok(Arc::clone(plugin));
        }
        let api = entry(&path)?;
        // SAFETY: the table is the plugin's, and lives as long as its library.
        let plugin = Plugin { api: unsafe { checked(api)? }, path };
        plugin.call(&mut PaddedArgs::<sys::PluginInitialize>::new())?;
        let plugin = Arc::new(plugin);
        loaded.push(Arc::clone(&plugin));
        Ok(plugin)
    }

    /// Wraps a table that does not come from a file.
    ///
    /// # Safety
    /// The table is laid out as PJRT's, and lives as long as the process.
    #[cfg(test)]
    pub(crate) unsafe fn over(api: *const sys::Api) -> Result<Arc<Plugin>, PjrtError> {
        // SAFETY: the caller's promise.
        Ok(Arc::new(Plugin { path: PathBuf::from("a table"), api: unsafe { checked(api)? } }))
    }

    /// The plugin's file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The version of the interface that the plugin implements.
    pub fn version(&self) -> (i32, i32) {
        // SAFETY: the table was checked when it was loaded, and is constant.
        let version = unsafe { &(*self.api).version };
        (version.major, version.minor)
    }

    /// Calls the function that takes these arguments.
    pub(crate) fn call<A: Arguments>(&self, args: &mut PaddedArgs<A>) -> Result<(), PjrtError> {
        let function = self.function::<A>()?;
        // SAFETY: `Arguments` guarantees that this function takes this struct. Callers fill its
        // addresses from objects that they own.
        let error = unsafe { function((&raw mut *args).cast()) };
        self.check(A::NAME, error)
    }

    /// Converts an error of the plugin to a value, and destroys the original.
    pub(crate) fn check(&self, function: &'static str, error: *mut sys::ErrorObject) -> Result<(), PjrtError> {
        if error.is_null() {
            return Ok(());
        }
        let mut text = PaddedArgs::<sys::ErrorMessage>::new();
        text.args.error = error;
        self.tell(&mut text);
        // SAFETY: the error owns the text and is still alive.
        let message = unsafe { text_of(text.args.message, text.args.message_size) };
        let mut number = PaddedArgs::<sys::ErrorGetCode>::new();
        number.args.error = error;
        self.tell(&mut number);
        let mut end = PaddedArgs::<sys::ErrorDestroy>::new();
        end.args.error = error;
        self.tell(&mut end);
        Err(PjrtError::Call { function, code: number.args.code, message })
    }

    /// Calls one of the functions that handle errors. They report no errors themselves, and two of
    /// them return nothing.
    fn tell<A: Arguments>(&self, args: &mut PaddedArgs<A>) {
        if let Ok(function) = self.function::<A>() {
            // SAFETY: as in `call`. The return value is ignored.
            let _ = unsafe { function((&raw mut *args).cast()) };
        }
    }

    fn function<A: Arguments>(&self) -> Result<sys::Function, PjrtError> {
        let missing = PjrtError::Missing { function: A::NAME };
        let offset = size_of::<sys::Api>() + A::INDEX * size_of::<*const c_void>();
        // SAFETY: the table was checked when it was loaded, and is constant.
        let size = unsafe { (*self.api).struct_size };
        if offset + size_of::<*const c_void>() > size {
            return Err(missing);
        }
        // SAFETY: the table is at least this long, and each entry is an optional function.
        let function = unsafe { self.api.cast::<u8>().add(offset).cast::<Option<sys::Function>>().read() };
        function.ok_or(missing)
    }
}

/// Loads a library and returns its table. The library stays loaded.
fn entry(path: &Path) -> Result<*const sys::Api, PjrtError> {
    // SAFETY: plugins may be loaded at any time. The user named this file or installed it as a
    // plugin.
    let library = unsafe { Library::new(path) };
    let library = library.map_err(|error| PjrtError::Load { path: path.to_owned(), reason: words_of(&error) })?;
    let no_plugin = |_| PjrtError::NoPlugin { path: path.to_owned() };
    // SAFETY: the function of this name has this type in every plugin.
    let api = unsafe { library.get::<sys::GetApi>(sys::ENTRY_POINT).map(|get| get()) }.map_err(no_plugin);
    if api.is_ok() {
        std::mem::forget(library);
    }
    api
}

/// Returns the table if its size and version allow the calls of this module.
///
/// # Safety
/// The address is null or that of a plugin's table.
unsafe fn checked(api: *const sys::Api) -> Result<*const sys::Api, PjrtError> {
    // SAFETY: the caller guarantees the address, and every table begins with its size.
    let known = !api.is_null() && unsafe { (*api).struct_size } >= size_of::<sys::Api>();
    // SAFETY: the table is long enough to contain its version.
    let (got_major, got_minor) = if known { unsafe { ((*api).version.major, (*api).version.minor) } } else { (-1, -1) };
    match got_major == sys::MAJOR && got_minor >= sys::MINOR_MIN {
        true => Ok(api),
        false => {
            Err(PjrtError::Version { expected_major: sys::MAJOR, expected_minor: sys::MINOR_MIN, got_major, got_minor })
        }
    }
}

/// The loader's own message, which names the library that is missing.
fn words_of(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Copies a text of the plugin.
///
/// # Safety
/// The address is null, or points to `size` readable bytes.
pub(crate) unsafe fn text_of(text: *const c_char, size: usize) -> String {
    if text.is_null() || size == 0 {
        return String::new();
    }
    // SAFETY: the caller guarantees `size` readable bytes.
    String::from_utf8_lossy(unsafe { std::slice::from_raw_parts(text.cast::<u8>(), size) }).into_owned()
}
