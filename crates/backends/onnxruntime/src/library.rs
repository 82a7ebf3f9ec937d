//! ONNX Runtime, loaded at run time: checked calls, and owned handles of the objects that they
//! create.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use libloading::Library as Loaded;
use panoply_whole_model::files::{library_files, load_failure};

use crate::provider::{Adding, Provider};
use crate::sys::{self, ApiBase, Assignment, Handle, Status, Table};

/// Maximum number of providers that a library may list.
const PROVIDERS_MAX: usize = 256;
/// The most characters of a message that are kept.
const MESSAGE_CHARS_MAX: usize = 1024;

/// An error of ONNX Runtime or of its loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxRuntimeError {
    /// The library's number of the error, if the library reported it.
    code: Option<c_int>,
    text: String,
}

impl OnnxRuntimeError {
    pub(crate) fn new(what: &str, reason: impl fmt::Display) -> OnnxRuntimeError {
        OnnxRuntimeError { code: None, text: format!("{what}: {reason}") }
    }

    /// Whether the model or its inputs are wrong.
    pub fn is_callers(&self) -> bool {
        self.code.is_none_or(|code| sys::CALLERS_CODES.contains(&code))
    }
}

impl fmt::Display for OnnxRuntimeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The library. Never unloaded, because it has threads of its own.
pub struct Library {
    pub(crate) table: Table,
    /// Tells which provider runs which node, in new versions of the library.
    pub(crate) assignment: Option<Assignment>,
    version: String,
    pub(crate) environment: Handle,
    pub(crate) memory: Handle,
    pub(crate) allocator: Handle,
    _loaded: ManuallyDrop<Loaded>,
}

// SAFETY: ONNX Runtime's environment, memory descriptions and default allocator may be used from
// several threads at once. Nothing else is kept here, and all of it lives as long as the library.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

/// The files that a name may refer to: the file itself, or the libraries in the folder of that
/// name.
pub fn files(named: &Path) -> Vec<PathBuf> {
    let is_it = |name: &str| name.starts_with("libonnxruntime.") || name == "onnxruntime.dll";
    library_files(named, is_it, "libonnxruntime.so")
}

impl Library {
    /// Loads the library from a file. `None` if there is no such file.
    pub fn load(file: &Path) -> Result<Option<Arc<Library>>, OnnxRuntimeError> {
        // SAFETY: the user names this file as ONNX Runtime's library. Its initialisers may run.
        let loaded = match unsafe { Loaded::new(file) } {
            Ok(loaded) => loaded,
            Err(error) => {
                let failed = |words| OnnxRuntimeError::new("ONNX Runtime", words);
                return load_failure(file, &error).map_or(Ok(None), |words| Err(failed(words)));
            }
        };
        // SAFETY: the function has this type in every version of ONNX Runtime.
        let base = unsafe { loaded.get::<unsafe extern "C" fn() -> *const ApiBase>(b"OrtGetApiBase\0") };
        let base = base.map_err(|error| OnnxRuntimeError::new("OrtGetApiBase", error))?;
        // SAFETY: the function takes no arguments, and its result lives as long as the library.
        let base =
            unsafe { base().as_ref() }.ok_or_else(|| OnnxRuntimeError::new("OrtGetApiBase", "it gives nothing"))?;
        // SAFETY: the version is a text that ends with a zero byte and lives as long as the
        // library.
        let version = unsafe { CStr::from_ptr((base.get_version)()) }.to_string_lossy().into_owned();
        // SAFETY: this is ONNX Runtime's base.
        let (table, assignment) = unsafe { (Table::load(base), Assignment::load(base)) };
        let table = table.ok_or_else(|| {
            OnnxRuntimeError::new("ONNX Runtime", format!("version {version} has no API {}", sys::API_VERSION))
        })?;
        let mut library = Library {
            table,
            assignment,
            version,
            environment: std::ptr::null_mut(),
            memory: std::ptr::null_mut(),
            allocator: std::ptr::null_mut(),
            _loaded: ManuallyDrop::new(loaded),
        };
        library.prepare()?;
        Ok(Some(Arc::new(library)))
    }

    fn prepare(&mut self) -> Result<(), OnnxRuntimeError> {
        let name = c"panoply";
        let (mut environment, mut memory, mut allocator) =
            (std::ptr::null_mut(), std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: the name ends with a zero byte, the function takes any argument and lives for
        // ever, and the call writes the handle before it returns.
        let status = unsafe {
            let argument = std::ptr::null_mut();
            (self.table.create_environment)(keep_message, argument, sys::LOG_ERRORS, name.as_ptr(), &mut environment)
        };
        self.checked("CreateEnv", status)?;
        self.environment = environment;
        // SAFETY: as above.
        let status = unsafe { (self.table.create_memory)(sys::DEVICE_ALLOCATOR, sys::MEMORY_DEFAULT, &mut memory) };
        self.checked("CreateCpuMemoryInfo", status)?;
        self.memory = memory;
        // SAFETY: as above. The library owns the allocator, which is not released.
        let status = unsafe { (self.table.allocator)(&mut allocator) };
        self.checked("GetAllocatorWithDefaultOptions", status)?;
        self.allocator = allocator;
        Ok(())
    }

    /// The version that the library reports.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The providers that the library was built with, by its own names.
    pub fn providers(&self) -> Result<Vec<String>, OnnxRuntimeError> {
        let (mut names, mut count) = (std::ptr::null_mut(), 0);
        // SAFETY: the call writes both before it returns.
        let status = unsafe { (self.table.providers)(&mut names, &mut count) };
        self.checked("GetAvailableProviders", status)?;
        let len = usize::try_from(count).unwrap_or(0).min(PROVIDERS_MAX);
        let listed = match names.is_null() {
            true => &[],
            // SAFETY: the library has written the array and its length.
            false => unsafe { std::slice::from_raw_parts(names.cast_const(), len) },
        };
        // SAFETY: each text ends with a zero byte, and is copied before the array is released.
        let text = |name: &*mut c_char| unsafe { CStr::from_ptr(*name) }.to_string_lossy().into_owned();
        let listed = listed.iter().filter(|name| !name.is_null()).map(text).collect();
        if !names.is_null() {
            // SAFETY: the library made the array, and it is released once.
            self.checked("ReleaseAvailableProviders", unsafe { (self.table.release_providers)(names, count) })?;
        }
        Ok(listed)
    }

    /// Whether a provider can be used. The library says the reason only in its log.
    pub fn check(&self, provider: &Provider) -> Result<(), OnnxRuntimeError> {
        last_message().clear();
        let with_log = |mut error: OnnxRuntimeError| {
            let message = last_message();
            if !message.is_empty() && !error.text.contains(&*message) {
                error.text = format!("{} ({message})", error.text);
            }
            error
        };
        self.options(provider, 1).map(drop).map_err(with_log)
    }

    /// The options of a session on `threads` threads, with this provider. The library loads the
    /// provider's own library here.
    pub(crate) fn options(&self, provider: &Provider, threads: usize) -> Result<OwnedHandle<'_>, OnnxRuntimeError> {
        let table = &self.table;
        let options = OwnedHandle::new(self, table.release_options).made("CreateSessionOptions", |table, handle| {
            // SAFETY: the call writes the handle before it returns.
            unsafe { (table.create_options)(handle) }
        })?;
        let threads = c_int::try_from(threads).unwrap_or(1).max(1);
        // SAFETY: the options are alive.
        self.checked("SetIntraOpNumThreads", unsafe { (table.set_threads)(options.handle, threads) })?;
        // SAFETY: as above.
        let status = unsafe { (table.set_optimisation)(options.handle, sys::OPTIMISE_ALL) };
        self.checked("SetSessionGraphOptimizationLevel", status)?;
        let records = self.assignment.is_some().then_some((sys::RECORD_ASSIGNMENT, "1"));
        let own = provider.session_options.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        for (key, value) in own.chain(records) {
            let (key, value) = (text_of(key)?, text_of(value)?);
            // SAFETY: as above. Both texts end with a zero byte and are copied.
            let status = unsafe { (table.add_config)(options.handle, key.as_ptr(), value.as_ptr()) };
            self.checked("AddSessionConfigEntry", status)?;
        }
        self.add(provider, &options)?;
        Ok(options)
    }

    /// Adds a provider with its options to the options of a session.
    fn add(&self, provider: &Provider, options: &OwnedHandle<'_>) -> Result<(), OnnxRuntimeError> {
        let texts = provider.options.iter().map(|(key, value)| Ok((text_of(key)?, text_of(value)?)));
        let texts = texts.collect::<Result<Vec<(CString, CString)>, OnnxRuntimeError>>()?;
        let keys: Vec<*const c_char> = texts.iter().map(|(key, _)| key.as_ptr()).collect();
        let values: Vec<*const c_char> = texts.iter().map(|(_, value)| value.as_ptr()).collect();
        let table = &self.table;
        let (create, update, release, append) = match provider.adding() {
            Adding::Always => return Ok(()),
            Adding::Cuda => (table.create_cuda, table.update_cuda, table.release_cuda, table.append_cuda),
            Adding::TensorRt => {
                (table.create_tensorrt, table.update_tensorrt, table.release_tensorrt, table.append_tensorrt)
            }
            Adding::Named(name) => {
                let name = text_of(name)?;
                // SAFETY: the options are alive. There are as many values as keys, and each text
                // ends with a zero byte and is copied.
                let status = unsafe {
                    (table.append_named)(options.handle, name.as_ptr(), keys.as_ptr(), values.as_ptr(), texts.len())
                };
                return self.checked("SessionOptionsAppendExecutionProvider", status);
            }
        };
        let own = OwnedHandle::new(self, release).made("the provider's options", |_, handle| {
            // SAFETY: the call writes the handle before it returns.
            unsafe { create(handle) }
        })?;
        if !texts.is_empty() {
            // SAFETY: both handles are alive, and the rest is as above.
            let status = unsafe { update(own.handle, keys.as_ptr(), values.as_ptr(), texts.len()) };
            self.checked("the provider's options", status)?;
        }
        // SAFETY: as above. The library copies the provider's options.
        self.checked("SessionOptionsAppendExecutionProvider", unsafe { append(options.handle, own.handle) })
    }

    pub(crate) fn checked(&self, what: &'static str, status: Status) -> Result<(), OnnxRuntimeError> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: a call returned the status.
        let code = unsafe { (self.table.error_code)(status) };
        // SAFETY: a call returned the status. Its message ends with a zero byte and lives until the
        // status is released.
        let text = unsafe { CStr::from_ptr((self.table.message)(status)) }.to_string_lossy().into_owned();
        // SAFETY: as above. The status is released once.
        unsafe { (self.table.release_status)(status) };
        Err(OnnxRuntimeError { code: Some(code), text: format!("{what}: {}", text.trim()) })
    }
}

/// The last message in the library's log. It is one for all, as the library's environment is.
/// Locked for a moment, never around a call of the library.
static LAST_MESSAGE: Mutex<String> = Mutex::new(String::new());

fn last_message() -> MutexGuard<'static, String> {
    LAST_MESSAGE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps a message of the library instead of printing it.
unsafe extern "C" fn keep_message(
    _argument: *mut c_void,
    _level: c_int,
    _category: *const c_char,
    _name: *const c_char,
    _place: *const c_char,
    message: *const c_char,
) {
    if message.is_null() {
        return;
    }
    // SAFETY: the library's message ends with a zero byte, and lives until this function returns.
    let message = unsafe { CStr::from_ptr(message) }.to_string_lossy();
    let start: String = message.chars().take(MESSAGE_CHARS_MAX).collect();
    *last_message() = start.split_whitespace().collect::<Vec<_>>().join(" ");
}

/// A text that ends with a zero byte.
fn text_of(text: &str) -> Result<CString, OnnxRuntimeError> {
    CString::new(text).map_err(|error| OnnxRuntimeError::new("an option", error))
}

impl Drop for Library {
    fn drop(&mut self) {
        // SAFETY: the library created both, they are released once, and no session is left: each
        // session holds the library.
        unsafe {
            (self.table.release_memory)(self.memory);
            (self.table.release_environment)(self.environment);
        }
    }
}

/// A handle that is released with its owner.
pub(crate) struct OwnedHandle<'l> {
    pub(crate) library: &'l Library,
    pub(crate) handle: Handle,
    pub(crate) release: unsafe extern "C" fn(Handle),
}

impl<'l> OwnedHandle<'l> {
    pub(crate) fn new(library: &'l Library, release: unsafe extern "C" fn(Handle)) -> OwnedHandle<'l> {
        OwnedHandle { library, handle: std::ptr::null_mut(), release }
    }

    /// Runs a call that writes the handle.
    pub(crate) fn made(
        mut self,
        what: &'static str,
        call: impl FnOnce(&Table, *mut Handle) -> Status,
    ) -> Result<OwnedHandle<'l>, OnnxRuntimeError> {
        let status = call(&self.library.table, &mut self.handle);
        self.library.checked(what, status)?;
        match self.handle.is_null() {
            true => Err(OnnxRuntimeError::new(what, "it gives nothing")),
            false => Ok(self),
        }
    }
}

impl Drop for OwnedHandle<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the library created the handle, and it is released once by the function for
            // its kind.
            unsafe { (self.release)(self.handle) };
        }
    }
}
