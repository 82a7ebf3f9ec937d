//! A plugin's client: its devices, memory and compiler. Objects created by the plugin are owned
//! here and destroyed when dropped.

use std::ffi::c_int;
use std::sync::Arc;

use panoply_core::{DType, Tensor};

use crate::event::{Pending, WakeSignal};
use crate::plugin::{PjrtError, Plugin, code, text_of};
use crate::sys::{self, PaddedArgs};

/// A plugin's client. PJRT's clients may be used from any thread.
pub(crate) struct Client {
    pub(crate) plugin: Arc<Plugin>,
    raw: *mut sys::ClientObject,
    pub(crate) platform: String,
    pub(crate) version: String,
}

// SAFETY: PJRT's clients may be used from any thread.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

/// A device of a client. The address is valid as long as the client.
#[derive(Clone, Copy)]
pub(crate) struct Device(*mut sys::DeviceObject);

/// A device's description of itself.
pub(crate) struct Description {
    pub(crate) id: i32,
    pub(crate) kind: String,
}

/// A device's memory, as far as the plugin reports it.
#[derive(Clone, Copy, Default)]
pub(crate) struct Memory {
    pub(crate) used_bytes: u64,
    pub(crate) limit_bytes: Option<u64>,
}

impl Client {
    /// Opens the plugin's devices. GPU plugins are asked not to preallocate all memory.
    pub(crate) fn new(plugin: &Arc<Plugin>) -> Result<Arc<Client>, PjrtError> {
        let modest = [named_bool("preallocate", false)];
        let raw = match create(plugin, &modest) {
            // Plugins without this option return an error, so the client is created without it.
            Err(PjrtError::Call { code, .. }) if code != code::UNAVAILABLE => create(plugin, &[])?,
            other => other?,
        };
        let mut client = Client { plugin: Arc::clone(plugin), raw, platform: String::new(), version: String::new() };
        let mut name = PaddedArgs::<sys::ClientPlatformName>::new();
        name.args.client = raw;
        plugin.call(&mut name)?;
        // SAFETY: the client owns the text.
        client.platform = unsafe { text_of(name.args.text, name.args.text_size) };
        let mut version = PaddedArgs::<sys::ClientPlatformVersion>::new();
        version.args.client = raw;
        plugin.call(&mut version)?;
        // SAFETY: as above.
        client.version = unsafe { text_of(version.args.text, version.args.text_size) };
        Ok(Arc::new(client))
    }

    /// The devices that this process may use.
    pub(crate) fn devices(&self) -> Result<Vec<Device>, PjrtError> {
        let mut args = PaddedArgs::<sys::ClientAddressableDevices>::new();
        args.args.client = self.raw;
        self.plugin.call(&mut args)?;
        let (list, count) = (args.args.devices, args.args.num_devices);
        // SAFETY: the client owns the list, which has `count` entries.
        Ok((0..count).map(|index| Device(unsafe { *list.add(index) })).collect())
    }

    pub(crate) fn describe(&self, device: Device) -> Result<Description, PjrtError> {
        let mut args = PaddedArgs::<sys::DeviceGetDescription>::new();
        args.args.device = device.0;
        self.plugin.call(&mut args)?;
        describe(&self.plugin, args.args.description)
    }

    pub(crate) fn memory(&self, device: Device) -> Option<Memory> {
        let mut args = PaddedArgs::<sys::DeviceMemoryStats>::new();
        args.args.device = device.0;
        self.plugin.call(&mut args).ok()?;
        let stats = &args.args;
        let bytes = |value: i64| u64::try_from(value).unwrap_or(0);
        let limit_bytes = (stats.bytes_limit_is_set && stats.bytes_limit > 0).then(|| bytes(stats.bytes_limit));
        Some(Memory { used_bytes: bytes(stats.bytes_in_use), limit_bytes })
    }

    /// Copies a contiguous host tensor to a device. The tensor must stay alive until the copy is
    /// done.
    pub(crate) fn upload(
        self: &Arc<Client>,
        device: Device,
        tensor: &Tensor,
        bell: &Arc<WakeSignal>,
    ) -> panoply_core::Result<Result<(Buffer, Pending), PjrtError>> {
        let bytes = tensor.as_bytes()?;
        let dims: Vec<i64> = tensor.shape().iter().map(|dim| *dim as i64).collect();
        let mut args = PaddedArgs::<sys::BufferFromHost>::new();
        args.args.client = self.raw;
        args.args.data = bytes.as_ptr().cast();
        args.args.element_type = element_type(tensor.dtype());
        (args.args.dims, args.args.num_dims) = (dims.as_ptr(), dims.len());
        args.args.semantics = sys::UNTIL_TRANSFER_COMPLETES;
        args.args.device = device.0;
        Ok(self.plugin.call(&mut args).map(|()| {
            let buffer = Buffer { client: Arc::clone(self), raw: args.args.buffer };
            let name = "PJRT_Client_BufferFromHostBuffer";
            (buffer, Pending::watch(&self.plugin, name, args.args.done_with_host_buffer, bell))
        }))
    }

    /// Compiles StableHLO text.
    pub(crate) fn compile(self: &Arc<Client>, text: &str) -> Result<Executable, PjrtError> {
        let program = program(text);
        let options = compile_options();
        let mut args = PaddedArgs::<sys::ClientCompile>::new();
        args.args.client = self.raw;
        args.args.program = &raw const program.args;
        (args.args.compile_options, args.args.compile_options_size) = (options.as_ptr(), options.len());
        self.plugin.call(&mut args)?;
        Ok(Executable { client: Arc::clone(self), raw: args.args.executable })
    }

    /// Loads bytes from [`Executable::serialize`].
    pub(crate) fn load(self: &Arc<Client>, bytes: &[u8]) -> Result<Executable, PjrtError> {
        let mut args = PaddedArgs::<sys::DeserializeAndLoad>::new();
        args.args.client = self.raw;
        (args.args.bytes, args.args.bytes_size) = (bytes.as_ptr().cast(), bytes.len());
        self.plugin.call(&mut args)?;
        Ok(Executable { client: Arc::clone(self), raw: args.args.loaded })
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut args = PaddedArgs::<sys::ClientDestroy>::new();
        args.args.client = self.raw;
        let _ = self.plugin.call(&mut args);
    }
}

fn create(plugin: &Plugin, options: &[PaddedArgs<sys::NamedValue>]) -> Result<*mut sys::ClientObject, PjrtError> {
    let mut plain: Vec<sys::NamedValue> = options.iter().map(|option| option.args).collect();
    plain.iter_mut().for_each(|option| option.struct_size = size_of::<sys::NamedValue>());
    let mut args = PaddedArgs::<sys::ClientCreate>::new();
    (args.args.create_options, args.args.num_options) = (plain.as_ptr(), plain.len());
    plugin.call(&mut args)?;
    Ok(args.args.client)
}

fn named_bool(name: &'static str, value: bool) -> PaddedArgs<sys::NamedValue> {
    let mut named = PaddedArgs::<sys::NamedValue>::new();
    (named.args.name, named.args.name_size) = (name.as_ptr(), name.len());
    (named.args.kind, named.args.value, named.args.value_size) = (sys::NAMED_BOOL, u64::from(value), 1);
    named
}

/// Reads a device description.
pub(crate) fn describe(plugin: &Plugin, description: *mut sys::DescriptionObject) -> Result<Description, PjrtError> {
    let mut id = PaddedArgs::<sys::DescriptionId>::new();
    id.args.description = description;
    plugin.call(&mut id)?;
    let mut kind = PaddedArgs::<sys::DescriptionKind>::new();
    kind.args.description = description;
    plugin.call(&mut kind)?;
    // SAFETY: the description owns the text and is still alive.
    let text = unsafe { text_of(kind.args.text, kind.args.text_size) };
    Ok(Description { id: id.args.id, kind: text })
}

/// Wraps StableHLO text for the plugin.
pub(crate) fn program(text: &str) -> PaddedArgs<sys::Program> {
    const FORMAT: &str = "mlir";
    let mut program = PaddedArgs::<sys::Program>::new();
    (program.args.code, program.args.code_size) = (text.as_ptr(), text.len());
    (program.args.format, program.args.format_size) = (FORMAT.as_ptr(), FORMAT.len());
    program
}

/// A serialised `CompileOptionsProto`: one replica and one partition, for any device. 16-bit floats
/// are rounded exactly where the program says so.
pub(crate) fn compile_options() -> Vec<u8> {
    const EXACT: &[u8] = b"xla_allow_excess_precision";
    // executable_build_options { device_ordinal: -1, num_replicas: 1, num_partitions: 1 }
    let build = [&[0x08][..], &[0xff; 9], &[0x01, 0x20, 0x01, 0x28, 0x01]].concat();
    // env_option_overrides { key: "xla_allow_excess_precision", value { bool_field: false } }
    let entry = [&[0x0a, EXACT.len() as u8][..], EXACT, &[0x12, 0x02, 0x10, 0x00]].concat();
    // compile_portable_executable: true
    [&[0x1a, build.len() as u8][..], &build, &[0x20, 0x01], &[0x3a, entry.len() as u8], &entry].concat()
}

/// PJRT's number for an element type.
fn element_type(dtype: DType) -> c_int {
    match dtype {
        DType::I8 => 2,
        DType::I32 => 4,
        DType::U8 => 6,
        DType::U32 => 8,
        DType::F16 => 10,
        DType::F32 => 11,
        DType::F64 => 12,
        DType::BF16 => 13,
        DType::Complex64 => 14,
    }
}

/// A buffer in a device's memory.
pub(crate) struct Buffer {
    client: Arc<Client>,
    raw: *mut sys::BufferObject,
}

impl Buffer {
    /// Copies the elements in row-major order to `target_size` bytes of host memory.
    ///
    /// # Safety
    /// The target has space for all elements, and stays valid until the copy is done.
    pub(crate) unsafe fn download(
        &self,
        rank: usize,
        target: *mut u8,
        target_size: usize,
        bell: &Arc<WakeSignal>,
    ) -> Result<Pending, PjrtError> {
        let order: Vec<i64> = (0..rank as i64).rev().collect();
        let mut layout = PaddedArgs::<sys::MemoryLayout>::new();
        layout.args.tiled.struct_size = size_of::<sys::TiledLayout>();
        layout.args.tiled.minor_to_major = order.as_ptr();
        layout.args.tiled.minor_to_major_size = order.len();
        let mut args = PaddedArgs::<sys::BufferToHost>::new();
        args.args.source = self.raw;
        args.args.host_layout = &raw mut layout.args;
        (args.args.target, args.args.target_size) = (target.cast(), target_size);
        self.client.plugin.call(&mut args)?;
        Ok(Pending::watch(&self.client.plugin, "PJRT_Buffer_ToHostBuffer", args.args.event, bell))
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut args = PaddedArgs::<sys::BufferDestroy>::new();
        args.args.buffer = self.raw;
        let _ = self.client.plugin.call(&mut args);
    }
}

/// A compiled program.
pub(crate) struct Executable {
    client: Arc<Client>,
    raw: *mut sys::LoadedObject,
}

impl Executable {
    /// Starts the program on a device. Returns its output buffers, which are filled asynchronously,
    /// and an event for their completion.
    pub(crate) fn run(
        &self,
        device: Device,
        inputs: &[&Buffer],
        outputs: usize,
        bell: &Arc<WakeSignal>,
    ) -> Result<(Vec<Buffer>, Pending), PjrtError> {
        let inputs: Vec<*mut sys::BufferObject> = inputs.iter().map(|buffer| buffer.raw).collect();
        // No input is donated, because other ops may read the same inputs.
        let kept: Vec<i64> = (0..inputs.len() as i64).collect();
        let mut options = PaddedArgs::<sys::ExecuteOptions>::new();
        (options.args.non_donatable, options.args.num_non_donatable) = (kept.as_ptr(), kept.len());
        let mut made = vec![std::ptr::null_mut(); outputs];
        let (input_list, output_list) = (inputs.as_ptr(), made.as_mut_ptr());
        let mut event = std::ptr::null_mut();
        let mut args = PaddedArgs::<sys::LoadedExecute>::new();
        args.args.executable = self.raw;
        args.args.options = &raw mut options.args;
        args.args.argument_lists = &raw const input_list;
        (args.args.num_devices, args.args.num_args) = (1, inputs.len());
        args.args.output_lists = &raw const output_list;
        args.args.device_complete_events = &raw mut event;
        args.args.execute_device = device.0;
        self.client.plugin.call(&mut args)?;
        let made = made.into_iter().map(|raw| Buffer { client: Arc::clone(&self.client), raw }).collect();
        Ok((made, Pending::watch(&self.client.plugin, "PJRT_LoadedExecutable_Execute", event, bell)))
    }

    /// Number of the program's outputs.
    pub(crate) fn outputs(&self) -> Result<usize, PjrtError> {
        let unloaded = UnloadedProgram::of(self)?;
        let mut args = PaddedArgs::<sys::ExecutableNumOutputs>::new();
        args.args.executable = unloaded.raw;
        self.client.plugin.call(&mut args)?;
        Ok(args.args.num_outputs)
    }

    /// Serialises the program for [`Client::load`], on this machine and with this version of the
    /// plugin.
    pub(crate) fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        UnloadedProgram::of(self)?.serialize()
    }
}

impl Drop for Executable {
    fn drop(&mut self) {
        let mut args = PaddedArgs::<sys::LoadedDestroy>::new();
        args.args.executable = self.raw;
        let _ = self.client.plugin.call(&mut args);
    }
}

/// A compiled program that is not loaded on a device.
pub(crate) struct UnloadedProgram {
    pub(crate) plugin: Arc<Plugin>,
    pub(crate) raw: *mut sys::ExecutableObject,
}

impl UnloadedProgram {
    fn of(executable: &Executable) -> Result<UnloadedProgram, PjrtError> {
        let mut args = PaddedArgs::<sys::LoadedGetExecutable>::new();
        args.args.loaded = executable.raw;
        executable.client.plugin.call(&mut args)?;
        Ok(UnloadedProgram { plugin: Arc::clone(&executable.client.plugin), raw: args.args.executable })
    }

    pub(crate) fn serialize(&self) -> Result<Vec<u8>, PjrtError> {
        let mut args = PaddedArgs::<sys::ExecutableSerialize>::new();
        args.args.executable = self.raw;
        self.plugin.call(&mut args)?;
        let (bytes, size) = (args.args.bytes.cast::<u8>(), args.args.bytes_size);
        let copy = match bytes.is_null() {
            true => Vec::new(),
            // SAFETY: the plugin keeps `size` bytes valid until `deleter` is called below.
            false => unsafe { std::slice::from_raw_parts(bytes, size) }.to_vec(),
        };
        if let Some(deleter) = args.args.deleter {
            // SAFETY: `deleter` is the plugin's function for this object, and is called once.
            unsafe { deleter(args.args.serialized) };
        }
        Ok(copy)
    }

    /// Size of the machine code, if the plugin reports it.
    pub(crate) fn code_bytes(&self) -> Option<u64> {
        let mut args = PaddedArgs::<sys::ExecutableCodeSize>::new();
        args.args.executable = self.raw;
        self.plugin.call(&mut args).ok()?;
        u64::try_from(args.args.size_in_bytes).ok()
    }
}

impl Drop for UnloadedProgram {
    fn drop(&mut self) {
        let mut args = PaddedArgs::<sys::ExecutableDestroy>::new();
        args.args.executable = self.raw;
        let _ = self.plugin.call(&mut args);
    }
}
