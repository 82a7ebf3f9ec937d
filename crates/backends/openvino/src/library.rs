//! OpenVINO, loaded at run time: checked calls, and owned handles of the objects that they create.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::mem::ManuallyDrop;
use std::path::Path;
use std::sync::Arc;

use libloading::Library as Loaded;
use panoply_whole_model::files::load_failure;

use crate::sys::{Devices, ELEMENT_TYPES, Functions, Handle, Shape, Status, Version};

/// Maximum number of devices that the library may list.
const DEVICES_MAX: usize = 256;
/// The longest message that is kept of an error.
const MESSAGE_BYTES_MAX: usize = 2048;

/// An error of OpenVINO or of its loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenVinoError {
    /// Whether the model or its inputs are wrong.
    pub is_callers: bool,
    text: String,
}

impl OpenVinoError {
    pub(crate) fn new(what: &str, reason: impl fmt::Display) -> OpenVinoError {
        OpenVinoError { is_callers: false, text: format!("{what}: {reason}") }
    }

    /// The same error as the fault of the model or its inputs.
    pub(crate) fn callers(self) -> OpenVinoError {
        OpenVinoError { is_callers: true, ..self }
    }
}

impl fmt::Display for OpenVinoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The library and its core. Never unloaded, because it has threads of its own.
pub struct Library {
    pub(crate) functions: Functions,
    version: String,
    pub(crate) core: Handle,
    _loaded: ManuallyDrop<Loaded>,
}

// SAFETY: OpenVINO's core may be used from several threads at once, and lives as long as the
// library. Nothing else is kept here.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Loads the library from a file. `None` if there is no such file.
    pub fn load(file: &Path) -> Result<Option<Arc<Library>>, OpenVinoError> {
        // SAFETY: the user names this file as OpenVINO's library. Its initialisers may run.
        let loaded = match unsafe { Loaded::new(file) } {
            Ok(loaded) => loaded,
            Err(error) => {
                let failed = |words| OpenVinoError::new("OpenVINO", words);
                return load_failure(file, &error).map_or(Ok(None), |words| Err(failed(words)));
            }
        };
        // SAFETY: as above.
        let functions = unsafe { Functions::of(&loaded) }
            .map_err(|name| OpenVinoError::new("OpenVINO", format!("{} has no {name}", file.display())))?;
        let mut library = Library {
            functions,
            version: String::new(),
            core: std::ptr::null_mut(),
            _loaded: ManuallyDrop::new(loaded),
        };
        library.version = library.read_version()?;
        library.check_element_types()?;
        let mut core = std::ptr::null_mut();
        // SAFETY: the call writes the handle before it returns.
        library.checked("ov_core_create", unsafe { (library.functions.create_core)(&mut core) })?;
        library.core = core;
        Ok(Some(Arc::new(library)))
    }

    fn read_version(&self) -> Result<String, OpenVinoError> {
        let mut version = Version { number: std::ptr::null(), description: std::ptr::null() };
        // SAFETY: the call writes the texts before it returns.
        self.checked("ov_get_openvino_version", unsafe { (self.functions.version)(&mut version) })?;
        // SAFETY: the text is null, or ends with a zero byte.
        let text = unsafe { copied(version.number) };
        // SAFETY: the library made the texts, and they are released once.
        unsafe { (self.functions.free_version)(&mut version) };
        // The rest names a commit.
        Ok(text.split('-').next().unwrap_or_default().to_owned())
    }

    /// Refuses a library that numbers its element types differently, as old versions do.
    fn check_element_types(&self) -> Result<(), OpenVinoError> {
        for (number, onnx, eight_bytes) in ELEMENT_TYPES {
            let mut eight = [8_i64];
            let shape = Shape { rank: 1, dims: eight.as_mut_ptr() };
            let tensor = OwnedHandle::made(self, "ov_tensor_create", self.functions.free_tensor, |handle| {
                // SAFETY: the shape has one dimension, and the call writes the handle.
                unsafe { (self.functions.create_tensor)(number, shape, handle) }
            });
            let mut bytes = 0;
            let fits = tensor.is_ok_and(|tensor| {
                // SAFETY: the tensor is alive, and the call writes the number.
                let status = unsafe { (self.functions.tensor_bytes)(tensor.handle, &mut bytes) };
                status == 0 && bytes == eight_bytes
            });
            if !fits {
                let reason = format!(
                    "version {} has another number for ONNX's element type {onnx}: expected those of 2025.4",
                    self.version
                );
                return Err(OpenVinoError::new("OpenVINO", reason));
            }
        }
        Ok(())
    }

    /// The version that the library reports.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// The names of the devices that are there, such as `CPU`.
    pub fn devices(&self) -> Result<Vec<String>, OpenVinoError> {
        let mut devices = Devices { names: std::ptr::null_mut(), len: 0 };
        // SAFETY: the core is alive, and the call writes the list before it returns.
        let status = unsafe { (self.functions.devices)(self.core, &mut devices) };
        self.checked("ov_core_get_available_devices", status)?;
        let listed = match devices.names.is_null() {
            true => &[],
            // SAFETY: the library has written the array and its length.
            false => unsafe { std::slice::from_raw_parts(devices.names.cast_const(), devices.len.min(DEVICES_MAX)) },
        };
        // SAFETY: each text is null or ends with a zero byte, and is copied before the list is
        // released.
        let names = listed.iter().map(|name| unsafe { copied(*name) }).filter(|name| !name.is_empty()).collect();
        // SAFETY: the library made the list, and it is released once.
        unsafe { (self.functions.free_devices)(&mut devices) };
        Ok(names)
    }

    /// A property of a device as a text.
    pub fn property(&self, device: &str, key: &str) -> Result<String, OpenVinoError> {
        let (device, key) = (text_of(device)?, text_of(key)?);
        self.text("ov_core_get_property", |text| {
            // SAFETY: the core is alive, both texts end with a zero byte, and the call writes the
            // value before it returns.
            unsafe { (self.functions.property)(self.core, device.as_ptr(), key.as_ptr(), text) }
        })
    }

    /// Runs a call that writes a text, and copies the text.
    pub(crate) fn text(
        &self,
        what: &'static str,
        call: impl FnOnce(*mut *mut c_char) -> Status,
    ) -> Result<String, OpenVinoError> {
        let mut text = std::ptr::null_mut();
        self.checked(what, call(&mut text))?;
        // SAFETY: the text is null or ends with a zero byte.
        let copy = unsafe { copied(text) };
        if !text.is_null() {
            // SAFETY: the library made the text, and it is released once.
            unsafe { (self.functions.free_text)(text) };
        }
        Ok(copy)
    }

    pub(crate) fn checked(&self, what: &'static str, status: Status) -> Result<(), OpenVinoError> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: the library makes a copy of its message for the caller, or returns null.
        let last = unsafe { (self.functions.last_message)() };
        // SAFETY: the text is null or ends with a zero byte.
        let message = unsafe { copied(last) };
        if !last.is_null() {
            // SAFETY: the library made the copy, and it is released once.
            unsafe { (self.functions.free_text)(last) };
        }
        // SAFETY: any number is a valid argument, and the text is the library's own.
        let general = unsafe { copied((self.functions.error_text)(status)) };
        Err(OpenVinoError::new(what, format!("{general} ({})", shortened(&message))))
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        if !self.core.is_null() {
            // SAFETY: the library created the core, it is released once, and no model is left: each
            // model holds the library.
            unsafe { (self.functions.free_core)(self.core) };
        }
    }
}

/// A handle that is released with its owner.
pub(crate) struct OwnedHandle<'l> {
    pub(crate) handle: Handle,
    release: unsafe extern "C" fn(Handle),
    _library: &'l Library,
}

impl<'l> OwnedHandle<'l> {
    /// Runs a call that writes the handle.
    pub(crate) fn made(
        library: &'l Library,
        what: &'static str,
        release: unsafe extern "C" fn(Handle),
        call: impl FnOnce(*mut Handle) -> Status,
    ) -> Result<OwnedHandle<'l>, OpenVinoError> {
        let mut handle = std::ptr::null_mut();
        library.checked(what, call(&mut handle))?;
        if handle.is_null() {
            return Err(OpenVinoError::new(what, "it gives nothing"));
        }
        Ok(OwnedHandle { handle, release, _library: library })
    }

    /// The handle, which the caller releases.
    pub(crate) fn into_handle(self) -> Handle {
        ManuallyDrop::new(self).handle
    }
}

impl Drop for OwnedHandle<'_> {
    fn drop(&mut self) {
        // SAFETY: the library created the handle, and it is released once by the function for its
        // kind.
        unsafe { (self.release)(self.handle) };
    }
}

/// A text that ends with a zero byte.
pub(crate) fn text_of(text: &str) -> Result<CString, OpenVinoError> {
    CString::new(text).map_err(|error| OpenVinoError::new("a text for OpenVINO", error).callers())
}

/// Copies a text of the library. Empty if the text is null.
///
/// # Safety
/// The text must be null, or end with a zero byte.
pub(crate) unsafe fn copied(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: the caller guarantees the zero byte.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A message in one line of bounded length.
fn shortened(message: &str) -> String {
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match line.char_indices().find(|(at, _)| *at >= MESSAGE_BYTES_MAX) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line_of_bounded_length() {
        assert_eq!(shortened("Exception from a.cpp:84:\n  Check\tfailed\n"), "Exception from a.cpp:84: Check failed");
        assert!(shortened(&"é".repeat(4000)).len() <= MESSAGE_BYTES_MAX + 4);
    }
}
