//! qatlib's functions, loaded at run time.

use std::ffi::{c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use libloading::Library;

use crate::sys::*;
use crate::zip_sys::{QZ_FAIL, QZ_NO_HW, QZ_NOSW_NO_HW, QZ_TIMEOUT};

/// Names of the two libraries, in the order in which they are tried.
pub(crate) const LIBRARIES: [&[&str]; 2] = [&["libqat.so.4", "libqat.so"], &["libusdm.so.0", "libusdm.so"]];
/// The section of the device's configuration with our instances. It is the section that other
/// programs use, too.
const SECTION: &std::ffi::CStr = c"SSL";

/// Errors of the library.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum QatError {
    /// A function is missing.
    #[error("{name}: the library does not have it")]
    Symbol {
        /// The function's name.
        name: &'static str,
    },
    /// A call failed.
    #[error("{call}: {}", status_text(*status))]
    Status {
        /// The function's name.
        call: &'static str,
        /// The returned status.
        status: Status,
    },
    /// A call of QATzip failed.
    #[error("{call}: {}", zip_text(*code))]
    Zip {
        /// The function's name.
        call: &'static str,
        /// The returned code.
        code: c_int,
    },
    /// No device memory is available.
    #[error("there is no device memory for {bytes} bytes")]
    Memory {
        /// Number of requested bytes.
        bytes: usize,
    },
    /// The device broke its contract.
    #[error("{what}")]
    Broken {
        /// The violation.
        what: String,
    },
}

impl QatError {
    /// Whether the call may succeed after the device has answered other requests.
    pub(crate) fn is_passing(&self) -> bool {
        matches!(self, QatError::Status { status: RETRY, .. } | QatError::Memory { .. })
    }

    /// Whether the device is unusable until it is opened again.
    pub(crate) fn is_loss(&self) -> bool {
        matches!(self, QatError::Status { status: FATAL | RESTARTING, .. } | QatError::Broken { .. })
    }
}

fn status_text(status: Status) -> String {
    match status {
        FAIL => "it failed".to_owned(),
        RETRY => "its ring is full".to_owned(),
        RESOURCE => "a resource is missing".to_owned(),
        INVALID_PARAM => "a parameter is not valid".to_owned(),
        FATAL => "a fatal error".to_owned(),
        UNSUPPORTED => "not supported".to_owned(),
        RESTARTING => "the device is restarting".to_owned(),
        other => format!("status {other}"),
    }
}

fn zip_text(code: c_int) -> String {
    match code {
        QZ_FAIL => "it failed".to_owned(),
        QZ_TIMEOUT => "it timed out".to_owned(),
        QZ_NO_HW | QZ_NOSW_NO_HW => "no hardware".to_owned(),
        other => format!("code {other}"),
    }
}

macro_rules! table {
    ($($field:ident: $name:literal ($($argument:ty),*) -> $result:ty;)*) => {
        /// The functions of qatlib.
        pub(crate) struct Qat {
            $(pub(crate) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            /// Keeps the functions loaded. Never unloaded, because the library has threads of its
            /// own.
            _libraries: ManuallyDrop<Vec<Library>>,
        }

        impl Qat {
            fn of(libraries: Vec<Library>) -> Result<Qat, QatError> {
                // SAFETY: the types are those of qatlib's headers, and the libraries stay loaded.
                $(let $field = unsafe { symbol(&libraries, $name) }?;)*
                Ok(Qat { $($field,)* _libraries: ManuallyDrop::new(libraries) })
            }
        }
    };
}

qat_functions!(table);

/// Finds a function by name in the first library that has it.
///
/// # Safety
/// `T` must be the type of the function.
unsafe fn symbol<T: Copy>(libraries: &[Library], name: &'static str) -> Result<T, QatError> {
    // SAFETY: the caller guarantees the type. The copy lives only as long as the libraries.
    let found = libraries.iter().find_map(|library| unsafe { library.get::<T>(name.as_bytes()) }.ok().map(|it| *it));
    found.ok_or(QatError::Symbol { name })
}

/// Converts a status other than success to an error.
pub(crate) fn checked(call: &'static str, status: Status) -> Result<(), QatError> {
    if status == SUCCESS { Ok(()) } else { Err(QatError::Status { call, status }) }
}

/// A kind of instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Service {
    /// Ciphers, hashes and signatures.
    Crypto,
    /// DEFLATE.
    Compression,
}

impl Qat {
    /// Loads the libraries, each by the first of its names that exists. The outer error lists the
    /// names that were tried for a missing library.
    pub(crate) fn load(names: &[Vec<String>]) -> Result<Result<Arc<Qat>, QatError>, Vec<String>> {
        let mut libraries = Vec::new();
        for names in names {
            // SAFETY: these are qatlib's own libraries, or libraries that a test names. Their
            // initialisers may run.
            let found = names.iter().find_map(|name| unsafe { Library::new(name) }.ok());
            libraries.push(found.ok_or_else(|| names.clone())?);
        }
        Ok(Qat::of(libraries).map(Arc::new))
    }

    /// The handles of all instances of a kind. The library returns an error if there are none.
    pub(crate) fn instances(&self, service: Service) -> Result<Vec<Instance>, QatError> {
        let (count_of, list, calls) = match service {
            Service::Crypto => (self.cy_count, self.cy_instances, ["cpaCyGetNumInstances", "cpaCyGetInstances"]),
            Service::Compression => (self.dc_count, self.dc_instances, ["cpaDcGetNumInstances", "cpaDcGetInstances"]),
        };
        let mut count = 0;
        // SAFETY: the call writes the number before it returns.
        checked(calls[0], unsafe { count_of(&mut count) })?;
        let mut handles = vec![std::ptr::null_mut(); usize::from(count)];
        if count > 0 {
            // SAFETY: the buffer has space for `count` handles.
            checked(calls[1], unsafe { list(count, handles.as_mut_ptr()) })?;
        }
        handles.retain(|handle| !handle.is_null());
        Ok(handles)
    }

    /// Queries an instance's properties.
    pub(crate) fn info(&self, service: Service, instance: Instance) -> Result<InstanceInfo, QatError> {
        let mut info = InstanceInfo::zeroed();
        let (ask, call) = match service {
            Service::Crypto => (self.cy_info, "cpaCyInstanceGetInfo2"),
            Service::Compression => (self.dc_info, "cpaDcInstanceGetInfo2"),
        };
        // SAFETY: the library returned the handle, and the call writes the structure before it
        // returns.
        checked(call, unsafe { ask(instance, &mut info) })?;
        Ok(info)
    }
}

/// Keeps the library started. The library stops when the last handle is dropped.
pub(crate) struct LibraryHandle {
    pub(crate) qat: Arc<Qat>,
}

/// The started library, shared by engines and discovery. A process starts the library once.
#[derive(Default)]
pub(crate) struct Start(Mutex<Weak<LibraryHandle>>);

impl Start {
    /// Returns the started library, and starts it first if necessary.
    pub(crate) fn get(&self, qat: &Arc<Qat>) -> Result<Arc<LibraryHandle>, QatError> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(started) = held.upgrade() {
            return Ok(started);
        }
        // SAFETY: the name ends with a zero byte.
        checked("icp_sal_userStart", unsafe { (qat.user_start)(SECTION.as_ptr()) })?;
        let started = Arc::new(LibraryHandle { qat: qat.clone() });
        *held = Arc::downgrade(&started);
        Ok(started)
    }
}

impl Drop for LibraryHandle {
    fn drop(&mut self) {
        // SAFETY: the library was started, and every user holds a `LibraryHandle`.
        unsafe { (self.qat.user_stop)() };
    }
}
