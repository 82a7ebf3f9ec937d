//! ONNX Runtime, loaded at run time: checked calls, and owned handles of the objects that they
//! create.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use libloading::Library as Loaded;
use panoply_core::Bytes;

use crate::ops::{ModelArray, ModelSource};
use crate::sys::{self, ApiBase, Handle, Status, Table};

/// Maximum number of a model's inputs or outputs, and of an array's dimensions.
const PORTS_MAX: usize = 4096;
const RANK_MAX: usize = 64;
/// Maximum size of one output.
const OUTPUT_BYTES_MAX: usize = 1 << 34;

/// An error of ONNX Runtime or of its loading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OnnxRuntimeError(pub String);

impl OnnxRuntimeError {
    fn new(what: &str, reason: impl std::fmt::Display) -> OnnxRuntimeError {
        OnnxRuntimeError(format!("{what}: {reason}"))
    }
}

/// The library. Never unloaded, because it has threads of its own.
pub struct Library {
    table: Table,
    version: String,
    environment: Handle,
    memory: Handle,
    allocator: Handle,
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
    if !named.is_dir() {
        return vec![named.to_owned()];
    }
    let entries = std::fs::read_dir(named).into_iter().flatten().filter_map(|entry| Some(entry.ok()?.path()));
    let is_it = |path: &PathBuf| {
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        name.starts_with("libonnxruntime.") || name == "onnxruntime.dll"
    };
    let mut found: Vec<PathBuf> = entries.filter(is_it).collect();
    found.sort();
    if found.is_empty() { vec![named.join("libonnxruntime.so")] } else { found }
}

impl Library {
    /// Loads the library from a file. `None` if the file cannot be loaded.
    pub fn load(file: &Path) -> Result<Option<Arc<Library>>, OnnxRuntimeError> {
        // SAFETY: the user names this file as ONNX Runtime's library. Its initialisers may run.
        let Ok(loaded) = (unsafe { Loaded::new(file) }) else { return Ok(None) };
        // SAFETY: the function has this type in every version of ONNX Runtime.
        let base = unsafe { loaded.get::<unsafe extern "C" fn() -> *const ApiBase>(b"OrtGetApiBase\0") };
        let base = base.map_err(|error| OnnxRuntimeError::new("OrtGetApiBase", error))?;
        // SAFETY: the function takes no arguments, and its result lives as long as the library.
        let base =
            unsafe { base().as_ref() }.ok_or_else(|| OnnxRuntimeError::new("OrtGetApiBase", "it gives nothing"))?;
        // SAFETY: the version is a text that ends with a zero byte and lives as long as the
        // library.
        let version = unsafe { CStr::from_ptr((base.get_version)()) }.to_string_lossy().into_owned();
        // SAFETY: any version is a valid argument. An unknown version returns null.
        let places = unsafe { (base.get_api)(sys::API_VERSION).as_ref() };
        let places = places.ok_or_else(|| {
            OnnxRuntimeError::new("ONNX Runtime", format!("version {version} has no API {}", sys::API_VERSION))
        })?;
        // SAFETY: this is ONNX Runtime's table of the requested version.
        let table = unsafe { Table::of(places) };
        let table = table.ok_or_else(|| OnnxRuntimeError::new("ONNX Runtime", "its table has empty places"))?;
        let mut library = Library {
            table,
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
        // SAFETY: the name ends with a zero byte, and the call writes the handle before it returns.
        let status = unsafe { (self.table.create_environment)(sys::LOG_ERRORS, name.as_ptr(), &mut environment) };
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

    fn checked(&self, what: &'static str, status: Status) -> Result<(), OnnxRuntimeError> {
        if status.is_null() {
            return Ok(());
        }
        // SAFETY: a call returned the status. Its message ends with a zero byte and lives until the
        // status is released.
        let text = unsafe { CStr::from_ptr((self.table.message)(status)) }.to_string_lossy().into_owned();
        // SAFETY: as above. The status is released once.
        unsafe { (self.table.release_status)(status) };
        Err(OnnxRuntimeError::new(what, text))
    }
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
struct OwnedHandle<'l> {
    library: &'l Library,
    handle: Handle,
    release: unsafe extern "C" fn(Handle),
}

impl<'l> OwnedHandle<'l> {
    fn new(library: &'l Library, release: unsafe extern "C" fn(Handle)) -> OwnedHandle<'l> {
        OwnedHandle { library, handle: std::ptr::null_mut(), release }
    }

    /// Runs a call that writes the handle.
    fn made(
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

/// A loaded model.
pub struct Session {
    library: Arc<Library>,
    handle: Handle,
    inputs: Vec<CString>,
    outputs: Vec<CString>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the library created the handle, and it is released once.
        unsafe { (self.library.table.release_session)(self.handle) };
    }
}

impl Session {
    /// Loads a model, which may use `threads` threads.
    pub fn new(library: &Arc<Library>, source: &ModelSource, threads: usize) -> Result<Session, OnnxRuntimeError> {
        let table = &library.table;
        let options =
            OwnedHandle::new(library, table.release_options).made("CreateSessionOptions", |table, handle| {
                // SAFETY: the call writes the handle before it returns.
                unsafe { (table.create_options)(handle) }
            })?;
        let threads = c_int::try_from(threads).unwrap_or(1).max(1);
        // SAFETY: the options are alive.
        library.checked("SetIntraOpNumThreads", unsafe { (table.set_threads)(options.handle, threads) })?;
        // SAFETY: as above.
        let status = unsafe { (table.set_optimisation)(options.handle, sys::OPTIMISE_ALL) };
        library.checked("SetSessionGraphOptimizationLevel", status)?;
        let mut handle = std::ptr::null_mut();
        let status = match source {
            ModelSource::File(path) => {
                #[cfg(windows)]
                let path: Vec<u16> =
                    std::os::windows::ffi::OsStrExt::encode_wide(path.as_os_str()).chain([0]).collect();
                #[cfg(not(windows))]
                let path = CString::new(path.as_os_str().as_encoded_bytes())
                    .map_err(|error| OnnxRuntimeError::new("CreateSession", error))?;
                // SAFETY: environment and options are alive, and the path ends with a zero.
                unsafe {
                    (table.create_session)(library.environment, path.as_ptr().cast(), options.handle, &mut handle)
                }
            }
            ModelSource::Bytes(bytes) => {
                let bytes = bytes.as_slice().map_err(|error| OnnxRuntimeError::new("CreateSessionFromArray", error))?;
                let (data, len) = (bytes.as_ptr().cast(), bytes.len());
                // SAFETY: as above. The library copies the bytes that it keeps before it returns.
                unsafe { (table.create_session_of_bytes)(library.environment, data, len, options.handle, &mut handle) }
            }
        };
        library.checked("CreateSession", status)?;
        let mut session = Session { library: Arc::clone(library), handle, inputs: Vec::new(), outputs: Vec::new() };
        session.inputs = session.names("inputs", table.input_count, table.input_name)?;
        session.outputs = session.names("outputs", table.output_count, table.output_name)?;
        Ok(session)
    }

    fn names(
        &self,
        what: &'static str,
        count: unsafe extern "C" fn(Handle, *mut usize) -> Status,
        name: unsafe extern "C" fn(Handle, usize, Handle, *mut *mut c_char) -> Status,
    ) -> Result<Vec<CString>, OnnxRuntimeError> {
        let library = &self.library;
        let mut number = 0;
        // SAFETY: the session is alive, and the call writes the number before it returns.
        library.checked("SessionGetInputCount", unsafe { count(self.handle, &mut number) })?;
        if number > PORTS_MAX {
            return Err(OnnxRuntimeError::new(what, format!("at most {PORTS_MAX}, got {number}")));
        }
        let mut names = Vec::with_capacity(number);
        for place in 0..number {
            let mut text = std::ptr::null_mut();
            // SAFETY: as above. The index is below the count.
            let status = unsafe { name(self.handle, place, library.allocator, &mut text) };
            library.checked("SessionGetInputName", status)?;
            if text.is_null() {
                return Err(OnnxRuntimeError::new("SessionGetInputName", "a name is missing"));
            }
            // SAFETY: the text ends with a zero byte. It is copied, then freed by the allocator
            // that created it.
            names.push(unsafe { CStr::from_ptr(text) }.to_owned());
            // SAFETY: as above.
            library.checked("AllocatorFree", unsafe { (library.table.free)(library.allocator, text.cast()) })?;
        }
        Ok(names)
    }

    /// The names of the model's inputs, in its order.
    pub fn inputs(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().filter_map(|name| name.to_str().ok())
    }

    /// Runs the model on named inputs. The outputs are returned with their names, in the model's
    /// order.
    pub fn run(&self, inputs: &[(String, ModelArray)]) -> Result<Vec<(String, ModelArray)>, OnnxRuntimeError> {
        let library = &*self.library;
        let values = inputs.iter().map(|(_, array)| tensor(library, array)).collect::<Result<Vec<_>, _>>()?;
        let names = inputs.iter().map(|(name, _)| CString::new(name.as_str()));
        let names = names
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| OnnxRuntimeError::new("the name of an input", error))?;
        let given: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
        let wanted: Vec<*const c_char> = self.outputs.iter().map(|name| name.as_ptr()).collect();
        let handles: Vec<Handle> = values.iter().map(|value| value.handle).collect();
        let options = OwnedHandle::new(library, library.table.release_run_options).made(
            "CreateRunOptions",
            |table, handle| {
                // SAFETY: the call writes the handle before it returns.
                unsafe { (table.create_run_options)(handle) }
            },
        )?;
        let mut made: Vec<Handle> = vec![std::ptr::null_mut(); wanted.len()];
        // SAFETY: the session, the options and all values are alive. There are as many names as
        // values. There are as many output handles as output names, all null, so that the library
        // creates the outputs.
        let status = unsafe {
            (library.table.run)(
                self.handle,
                options.handle,
                given.as_ptr(),
                handles.as_ptr(),
                handles.len(),
                wanted.as_ptr(),
                wanted.len(),
                made.as_mut_ptr(),
            )
        };
        let release = library.table.release_value;
        let made: Vec<OwnedHandle<'_>> =
            made.into_iter().map(|handle| OwnedHandle { library, handle, release }).collect();
        library.checked("Run", status)?;
        let named = self.outputs.iter().zip(&made);
        named.map(|(name, value)| Ok((name.to_string_lossy().into_owned(), array(library, value)?))).collect()
    }
}

/// Wraps an array as an input value of the library. The value borrows the array's bytes and must
/// not outlive them.
fn tensor<'a>(library: &'a Library, array: &'a ModelArray) -> Result<OwnedHandle<'a>, OnnxRuntimeError> {
    let bytes = array.bytes.as_slice().map_err(|error| OnnxRuntimeError::new("an input", error))?;
    let dims: Vec<i64> = array.dims.iter().map(|dim| i64::try_from(*dim).unwrap_or(i64::MAX)).collect();
    OwnedHandle::new(library, library.table.release_value).made("CreateTensorWithDataAsOrtValue", |table, handle| {
        // SAFETY: the library only reads inputs and checks the size against the dimensions. The
        // value is dropped before the bytes.
        unsafe {
            (table.create_tensor)(
                library.memory,
                bytes.as_ptr().cast_mut().cast(),
                bytes.len(),
                dims.as_ptr(),
                dims.len(),
                array.element_type,
                handle,
            )
        }
    })
}

/// Copies an output.
fn array(library: &Library, value: &OwnedHandle<'_>) -> Result<ModelArray, OnnxRuntimeError> {
    let table = &library.table;
    if value.handle.is_null() {
        return Err(OnnxRuntimeError::new("an output", "the library made none"));
    }
    let mut kind = 0;
    // SAFETY: the value is alive, and the call writes the number before it returns.
    library.checked("GetValueType", unsafe { (table.value_kind)(value.handle, &mut kind) })?;
    if kind != sys::TENSOR {
        return Err(OnnxRuntimeError::new("an output", "lists, maps and sparse tensors are not handed on"));
    }
    let form = OwnedHandle::new(library, table.release_form).made("GetTensorTypeAndShape", |table, handle| {
        // SAFETY: as above.
        unsafe { (table.tensor_form)(value.handle, handle) }
    })?;
    let (mut element_type, mut rank) = (0, 0);
    // SAFETY: as above.
    library.checked("GetTensorElementType", unsafe { (table.element_type)(form.handle, &mut element_type) })?;
    // SAFETY: as above.
    library.checked("GetDimensionsCount", unsafe { (table.rank)(form.handle, &mut rank) })?;
    if rank > RANK_MAX {
        return Err(OnnxRuntimeError::new("an output", format!("at most {RANK_MAX} dimensions, got {rank}")));
    }
    let mut dims = vec![0_i64; rank];
    // SAFETY: as above. There is space for `rank` numbers.
    library.checked("GetDimensions", unsafe { (table.dims)(form.handle, dims.as_mut_ptr(), rank) })?;
    let dims = dims.iter().map(|dim| usize::try_from(*dim)).collect::<Result<Vec<usize>, _>>();
    let dims = dims.map_err(|error| OnnxRuntimeError::new("the dimensions of an output", error))?;
    let size = ModelArray::size_bytes(element_type, &dims);
    let size = size.filter(|size| *size <= OUTPUT_BYTES_MAX && element_type != sys::TEXT);
    let size = size
        .ok_or_else(|| OnnxRuntimeError::new("an output", format!("elements of the type {element_type}, {dims:?}")))?;
    let mut data: *mut c_void = std::ptr::null_mut();
    // SAFETY: as above.
    library.checked("GetTensorMutableData", unsafe { (table.tensor_data)(value.handle, &mut data) })?;
    let bytes = match size {
        0 => Vec::new(),
        _ if data.is_null() => return Err(OnnxRuntimeError::new("an output", "its elements are missing")),
        // SAFETY: a tensor with these dimensions and this element type has `size` bytes there, and
        // nothing else writes to them.
        _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }.to_vec(),
    };
    Ok(ModelArray { element_type, dims, bytes: Bytes::from_vec(bytes) })
}
