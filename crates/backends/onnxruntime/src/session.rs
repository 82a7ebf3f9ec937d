//! A loaded model: its session, and the arrays that go in and come out.

use std::ffi::{CStr, CString, c_char, c_void};
use std::sync::Arc;

use panoply_core::Bytes;
use panoply_whole_model::{ModelArray, ModelOutputs, ModelShare, ModelSource};

use crate::library::{Library, OnnxRuntimeError, OwnedHandle};
use crate::provider::Provider;
use crate::sys::{self, Assignment, Handle, Status};

/// Maximum number of a model's inputs or outputs, and of an array's dimensions.
const PORTS_MAX: usize = 4096;
const RANK_MAX: usize = 64;
/// Maximum size of one output.
const OUTPUT_BYTES_MAX: usize = 1 << 34;
/// Maximum number of groups of nodes that the library may list.
const SHARES_MAX: usize = 1 << 20;

/// A loaded model.
pub struct Session {
    library: Arc<Library>,
    handle: Handle,
    inputs: Vec<String>,
    outputs: Vec<CString>,
    shares: Vec<ModelShare>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // SAFETY: the library created the handle, and it is released once.
        unsafe { (self.library.table.release_session)(self.handle) };
    }
}

impl Session {
    /// Loads a model for a provider. It may use `threads` threads.
    pub fn new(
        library: &Arc<Library>,
        provider: &Provider,
        source: &ModelSource,
        threads: usize,
    ) -> Result<Session, OnnxRuntimeError> {
        let table = &library.table;
        let options = library.options(provider, threads)?;
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
        let mut session = Session {
            library: Arc::clone(library),
            handle,
            inputs: Vec::new(),
            outputs: Vec::new(),
            shares: Vec::new(),
        };
        let inputs = session.names("inputs", table.input_count, table.input_name)?;
        session.inputs = inputs.iter().map(|name| name.to_string_lossy().into_owned()).collect();
        session.outputs = session.names("outputs", table.output_count, table.output_name)?;
        session.shares = match &library.assignment {
            Some(assignment) => session.assigned(assignment)?,
            None => vec![ModelShare { by: provider.full_name().to_owned(), nodes: None }],
        };
        Ok(session)
    }

    /// The providers that run the model's nodes, with the number of nodes of each.
    fn assigned(&self, assignment: &Assignment) -> Result<Vec<ModelShare>, OnnxRuntimeError> {
        const WHAT: &str = "Session_GetEpGraphAssignmentInfo";
        let library = &self.library;
        let mut shares: Vec<ModelShare> = Vec::new();
        let (mut groups, mut count) = (std::ptr::null(), 0);
        // SAFETY: the session is alive, and the call writes both before it returns.
        library.checked(WHAT, unsafe { (assignment.shares)(self.handle, &mut groups, &mut count) })?;
        if count > SHARES_MAX {
            return Err(OnnxRuntimeError::new(WHAT, format!("at most {SHARES_MAX} groups, got {count}")));
        }
        for place in 0..if groups.is_null() { 0 } else { count } {
            // SAFETY: the library lists so many groups, which live as long as the session.
            let group = unsafe { *groups.add(place) };
            let (mut name, mut nodes, mut node_count) = (std::ptr::null(), std::ptr::null(), 0);
            // SAFETY: the group is alive, and the call writes the name before it returns.
            library.checked(WHAT, unsafe { (assignment.provider)(group, &mut name) })?;
            // SAFETY: as above.
            library.checked(WHAT, unsafe { (assignment.nodes)(group, &mut nodes, &mut node_count) })?;
            if name.is_null() {
                return Err(OnnxRuntimeError::new(WHAT, "a name is missing"));
            }
            // SAFETY: the text ends with a zero byte, and is copied.
            let by = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
            match shares.iter_mut().find(|share| share.by == by) {
                Some(share) => share.nodes = share.nodes.map(|nodes| nodes.saturating_add(node_count)),
                None => shares.push(ModelShare { by, nodes: Some(node_count) }),
            }
        }
        Ok(shares)
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
    pub fn inputs(&self) -> &[String] {
        &self.inputs
    }

    /// The providers that run the model.
    pub fn shares(&self) -> &[ModelShare] {
        &self.shares
    }

    /// Runs the model on named inputs. The outputs are returned with their names, in the model's
    /// order.
    pub fn run(&self, inputs: &[(String, ModelArray)]) -> Result<ModelOutputs, OnnxRuntimeError> {
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
