//! A loaded model: its compiled form, one request, and the arrays that go in and come out.

use std::ffi::{CString, c_int, c_void};
use std::fs::File;
use std::io::{BufReader, Cursor};
use std::sync::Arc;

use panoply_core::Bytes;
use panoply_whole_model::{ModelArray, ModelOutputs, ModelShare, ModelSource};

use crate::library::{Library, OpenVinoError, OwnedHandle, text_of};
use crate::ports::PortNames;
use crate::sys::{ELEMENT_TYPES, Handle, Shape, Status};

/// Maximum number of a model's inputs or outputs, and of an array's dimensions.
const PORTS_MAX: usize = 4096;
const RANK_MAX: usize = 64;
/// Maximum size of one output.
const OUTPUT_BYTES_MAX: usize = 1 << 34;

/// A model that is compiled for a device.
pub struct Session {
    library: Arc<Library>,
    compiled: Handle,
    request: Handle,
    inputs: Vec<String>,
    input_ports: Vec<Handle>,
    outputs: Vec<(String, Handle)>,
    shares: Vec<ModelShare>,
}

impl Drop for Session {
    fn drop(&mut self) {
        let functions = &self.library.functions;
        let ports = self.input_ports.iter().chain(self.outputs.iter().map(|(_, port)| port));
        // SAFETY: the library created all handles, and each is released once; the compiled model
        // goes last.
        unsafe {
            ports.for_each(|port| (functions.free_port)(*port));
            if !self.request.is_null() {
                (functions.free_request)(self.request);
            }
            (functions.free_compiled)(self.compiled);
        }
    }
}

impl Session {
    /// Reads a model and compiles it for this device, where the processor uses `threads` threads.
    pub fn new(
        library: &Arc<Library>,
        device: &str,
        source: &ModelSource,
        threads: usize,
    ) -> Result<Session, OpenVinoError> {
        let model = read(library, source).map_err(OpenVinoError::callers)?;
        let compiled = compile(library, &model, device, threads)?.into_handle();
        let mut session = Session {
            library: Arc::clone(library),
            compiled,
            request: std::ptr::null_mut(),
            inputs: Vec::new(),
            input_ports: Vec::new(),
            outputs: Vec::new(),
            shares: Vec::new(),
        };
        session.find_ports(&names_of(source))?;
        let functions = &library.functions;
        let request =
            OwnedHandle::made(library, "ov_compiled_model_create_infer_request", functions.free_request, |handle| {
                // SAFETY: the compiled model is alive, and the call writes the handle.
                unsafe { (functions.create_request)(compiled, handle) }
            })?;
        session.request = request.into_handle();
        let by = library.text("ov_compiled_model_get_property", |text| {
            // SAFETY: as above. The key ends with a zero byte.
            unsafe { (functions.compiled_property)(compiled, c"EXECUTION_DEVICES".as_ptr(), text) }
        });
        // A list such as `(CPU)`, or `CPU NPU`.
        let by = by.unwrap_or_else(|_| device.to_owned());
        let by = by.split([' ', ',', '(', ')', '[', ']', '\'']).filter(|name| !name.is_empty());
        session.shares = by.map(|by| ModelShare { by: by.to_owned(), nodes: None }).collect();
        Ok(session)
    }

    /// Finds the ports by the names of the file. Without names, by their numbers.
    fn find_ports(&mut self, names: &PortNames) -> Result<(), OpenVinoError> {
        let functions = &self.library.functions;
        let (input_count, output_count) = (
            self.count("ov_compiled_model_inputs_size", functions.input_count)?,
            self.count("ov_compiled_model_outputs_size", functions.output_count)?,
        );
        let inputs = self.ports(&names.inputs, input_count, functions.input_named, functions.input_at)?;
        (self.inputs, self.input_ports) = inputs.into_iter().unzip();
        self.outputs = self.ports(&names.outputs, output_count, functions.output_named, functions.output_at)?;
        Ok(())
    }

    fn count(
        &self,
        what: &'static str,
        count: unsafe extern "C" fn(Handle, *mut usize) -> Status,
    ) -> Result<usize, OpenVinoError> {
        let mut number = 0;
        // SAFETY: the compiled model is alive, and the call writes the number.
        self.library.checked(what, unsafe { count(self.compiled, &mut number) })?;
        match number <= PORTS_MAX {
            true => Ok(number),
            false => Err(OpenVinoError::new(what, format!("expected at most {PORTS_MAX}, got {number}"))),
        }
    }

    fn ports(
        &self,
        names: &[String],
        count: usize,
        named: unsafe extern "C" fn(Handle, *const std::ffi::c_char, *mut Handle) -> Status,
        at: unsafe extern "C" fn(Handle, usize, *mut Handle) -> Status,
    ) -> Result<Vec<(String, Handle)>, OpenVinoError> {
        let (library, free) = (&*self.library, self.library.functions.free_port);
        let found = names.iter().filter_map(|name| {
            let text = text_of(name).ok()?;
            let port = OwnedHandle::made(library, "a port", free, |handle| {
                // SAFETY: the compiled model is alive, the name ends with a zero byte, and the call
                // writes the handle.
                unsafe { named(self.compiled, text.as_ptr(), handle) }
            });
            Some((name.clone(), port.ok()?))
        });
        let mut ports: Vec<(String, OwnedHandle<'_>)> = found.collect();
        // A file that is no ONNX file, or that lists its weights as inputs.
        if ports.len() != count {
            ports = (0..count).map(|place| self.port_at(place, at)).collect::<Result<_, _>>()?;
        }
        Ok(ports.into_iter().map(|(name, port)| (name, port.into_handle())).collect())
    }

    fn port_at(
        &self,
        place: usize,
        at: unsafe extern "C" fn(Handle, usize, *mut Handle) -> Status,
    ) -> Result<(String, OwnedHandle<'_>), OpenVinoError> {
        let (library, functions) = (&*self.library, &self.library.functions);
        let port = OwnedHandle::made(library, "a port", functions.free_port, |handle| {
            // SAFETY: the compiled model is alive, and the call writes the handle.
            unsafe { at(self.compiled, place, handle) }
        })?;
        let name = library.text("ov_port_get_any_name", |text| {
            // SAFETY: the port is alive, and the call writes the text.
            unsafe { (functions.port_name)(port.handle, text) }
        });
        // Ports of other formats may have no name.
        Ok((name.unwrap_or_else(|_| place.to_string()), port))
    }

    /// The names of the model's inputs, in its order.
    pub fn inputs(&self) -> &[String] {
        &self.inputs
    }

    /// The devices that run the model.
    pub fn shares(&self) -> &[ModelShare] {
        &self.shares
    }

    /// Runs the model on named inputs. The outputs are returned with their names, in the model's
    /// order.
    pub fn run(&mut self, inputs: &[(String, ModelArray)]) -> Result<ModelOutputs, OpenVinoError> {
        let library = &*self.library;
        // A request keeps the tensors of the run before, so each must be replaced.
        if let Some(missing) = self.inputs.iter().find(|name| !inputs.iter().any(|(given, _)| given == *name)) {
            return Err(OpenVinoError::new("inputs of a model", format!("{missing:?} is missing")).callers());
        }
        for (name, array) in inputs {
            let place = self.inputs.iter().position(|known| known == name);
            let port = place.and_then(|place| self.input_ports.get(place)).copied();
            let port = port.ok_or_else(|| OpenVinoError::new("an input", format!("{name:?} is unknown")).callers())?;
            let tensor = self.tensor(name, port, array).map_err(OpenVinoError::callers)?;
            // SAFETY: the request, the port and the tensor are alive. The request shares the
            // tensor, whose memory is the library's.
            let status = unsafe { (library.functions.set_tensor)(self.request, port, tensor.handle) };
            library.checked("ov_infer_request_set_tensor", status).map_err(OpenVinoError::callers)?;
        }
        // SAFETY: the request is alive, and no other thread uses it.
        library.checked("ov_infer_request_infer", unsafe { (library.functions.infer)(self.request) })?;
        self.outputs.iter().map(|(name, port)| Ok((name.clone(), self.output(*port)?))).collect()
    }

    /// Copies an array into a new tensor. OpenVINO takes any type, so it is compared here.
    fn tensor(&self, name: &str, port: Handle, array: &ModelArray) -> Result<OwnedHandle<'_>, OpenVinoError> {
        let (library, functions) = (&*self.library, &self.library.functions);
        let mut wanted = 0;
        // SAFETY: the port is alive, and the call writes the number.
        library.checked("ov_port_get_element_type", unsafe { (functions.port_type)(port, &mut wanted) })?;
        let known = ELEMENT_TYPES.iter().find(|(_, onnx, _)| *onnx == array.element_type);
        let Some((number, ..)) = known.filter(|(number, ..)| *number == wanted) else {
            let onnx = ELEMENT_TYPES.iter().find(|(number, ..)| *number == wanted).map(|(_, onnx, _)| onnx);
            let expected = onnx.map_or_else(|| "another".to_owned(), ToString::to_string);
            let reason = format!("{name:?}: expected ONNX's element type {expected}, got {}", array.element_type);
            return Err(OpenVinoError::new("an input", reason));
        };
        let bytes = array.bytes.as_slice().map_err(|error| OpenVinoError::new("an input", error))?;
        let mut dims: Vec<i64> = array.dims.iter().map(|dim| i64::try_from(*dim).unwrap_or(i64::MAX)).collect();
        let shape = Shape { rank: dims.len() as i64, dims: dims.as_mut_ptr() };
        let tensor = OwnedHandle::made(library, "ov_tensor_create", functions.free_tensor, |handle| {
            // SAFETY: the shape has as many dimensions as it says, and the call writes the handle.
            unsafe { (functions.create_tensor)(*number, shape, handle) }
        })?;
        let (len, data) = memory(library, &tensor)?;
        if len != bytes.len() {
            return Err(OpenVinoError::new("an input", format!("{name:?}: expected {len} bytes, got {}", bytes.len())));
        }
        if len > 0 {
            // SAFETY: the tensor has `len` bytes at `data`, and nothing else uses the new tensor.
            unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), data.cast::<u8>(), len) };
        }
        Ok(tensor)
    }

    /// Copies an output.
    fn output(&self, port: Handle) -> Result<ModelArray, OpenVinoError> {
        let (library, functions) = (&*self.library, &self.library.functions);
        let tensor = OwnedHandle::made(library, "ov_infer_request_get_tensor", functions.free_tensor, |handle| {
            // SAFETY: the request and the port are alive, and the call writes the handle.
            unsafe { (functions.get_tensor)(self.request, port, handle) }
        })?;
        let mut number: c_int = 0;
        // SAFETY: the tensor is alive, and the call writes the number.
        let status = unsafe { (functions.tensor_type)(tensor.handle, &mut number) };
        library.checked("ov_tensor_get_element_type", status)?;
        let unknown = || OpenVinoError::new("an output", format!("its elements have OpenVINO's type {number}"));
        let (_, element_type, _) = ELEMENT_TYPES.iter().find(|(known, ..)| *known == number).ok_or_else(unknown)?;
        let dims = dims(library, &tensor)?;
        let (len, data) = memory(library, &tensor)?;
        if ModelArray::size_bytes(*element_type, &dims) != Some(len) || len > OUTPUT_BYTES_MAX {
            return Err(OpenVinoError::new("an output", format!("{len} bytes for {dims:?}")));
        }
        let bytes = match len {
            0 => Vec::new(),
            // SAFETY: the tensor has `len` bytes at `data`, and nothing writes there between runs.
            _ => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), len) }.to_vec(),
        };
        Ok(ModelArray { element_type: *element_type, dims, bytes: Bytes::from_vec(bytes) })
    }
}

/// The size and the address of a tensor's memory. The address may be null only without bytes.
fn memory(library: &Library, tensor: &OwnedHandle<'_>) -> Result<(usize, *mut c_void), OpenVinoError> {
    let (mut len, mut data) = (0, std::ptr::null_mut());
    // SAFETY: the tensor is alive, and the call writes the number.
    library.checked("ov_tensor_get_byte_size", unsafe { (library.functions.tensor_bytes)(tensor.handle, &mut len) })?;
    if len > 0 {
        // SAFETY: as above.
        library.checked("ov_tensor_data", unsafe { (library.functions.tensor_data)(tensor.handle, &mut data) })?;
        if data.is_null() {
            return Err(OpenVinoError::new("ov_tensor_data", "its elements are missing"));
        }
    }
    Ok((len, data))
}

fn dims(library: &Library, tensor: &OwnedHandle<'_>) -> Result<Vec<usize>, OpenVinoError> {
    const WHAT: &str = "ov_tensor_get_shape";
    let mut shape = Shape::EMPTY;
    // SAFETY: the tensor is alive, and the call writes the shape.
    library.checked(WHAT, unsafe { (library.functions.tensor_shape)(tensor.handle, &mut shape) })?;
    let rank = usize::try_from(shape.rank).unwrap_or(usize::MAX);
    let dims = match shape.dims.is_null() || rank > RANK_MAX {
        true => Vec::new(),
        // SAFETY: the library has written `rank` dimensions.
        false => unsafe { std::slice::from_raw_parts(shape.dims.cast_const(), rank) }.to_vec(),
    };
    // SAFETY: the library made the shape, and it is released once.
    library.checked("ov_shape_free", unsafe { (library.functions.free_shape)(&mut shape) })?;
    let dims = dims.into_iter().map(usize::try_from).collect::<Result<Vec<usize>, _>>();
    let dims = dims.map_err(|error| OpenVinoError::new(WHAT, error))?;
    match dims.len() == rank {
        true => Ok(dims),
        false => Err(OpenVinoError::new(WHAT, format!("expected at most {RANK_MAX} dimensions, got {rank}"))),
    }
}

/// The names of a model's ports, if it is an ONNX file.
fn names_of(source: &ModelSource) -> PortNames {
    let read = match source {
        ModelSource::File(path) => File::open(path).and_then(|file| PortNames::read(&mut BufReader::new(file))),
        ModelSource::Bytes(bytes) => PortNames::read(&mut Cursor::new(bytes.as_slice().unwrap_or_default())),
    };
    read.unwrap_or_default()
}

fn read<'l>(library: &'l Library, source: &ModelSource) -> Result<OwnedHandle<'l>, OpenVinoError> {
    let functions = &library.functions;
    match source {
        ModelSource::File(path) => {
            let path = CString::new(path.as_os_str().as_encoded_bytes())
                .map_err(|error| OpenVinoError::new("the path of a model", error))?;
            OwnedHandle::made(library, "ov_core_read_model", functions.free_model, |handle| {
                // SAFETY: the core is alive, the path ends with a zero byte, weights are found
                // without a path, and the call writes the handle.
                unsafe { (functions.read_file)(library.core, path.as_ptr(), std::ptr::null(), handle) }
            })
        }
        ModelSource::Bytes(bytes) => {
            let bytes = bytes.as_slice().map_err(|error| OpenVinoError::new("a model", error))?;
            OwnedHandle::made(library, "ov_core_read_model_from_memory_buffer", functions.free_model, |handle| {
                // SAFETY: the core is alive. The library copies the bytes that it keeps, and takes
                // no weights beside them. The call writes the handle.
                unsafe {
                    (functions.read_bytes)(
                        library.core,
                        bytes.as_ptr().cast(),
                        bytes.len(),
                        std::ptr::null_mut(),
                        handle,
                    )
                }
            })
        }
    }
}

fn compile<'l>(
    library: &'l Library,
    model: &OwnedHandle<'_>,
    device: &str,
    threads: usize,
) -> Result<OwnedHandle<'l>, OpenVinoError> {
    let functions = &library.functions;
    let (name, threads) = (text_of(device)?, text_of(&threads.clamp(1, 4096).to_string())?);
    OwnedHandle::made(library, "ov_core_compile_model", functions.free_compiled, |handle| match device {
        // SAFETY: core and model are alive, all texts end with a zero byte, and there are as many
        // behind the handle as the number says. The call writes the handle.
        "CPU" => unsafe {
            let key = c"INFERENCE_NUM_THREADS".as_ptr();
            (functions.compile)(library.core, model.handle, name.as_ptr(), 2, handle, key, threads.as_ptr())
        },
        // SAFETY: as above.
        _ => unsafe { (functions.compile)(library.core, model.handle, name.as_ptr(), 0, handle) },
    })
}
