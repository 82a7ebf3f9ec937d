//! PJRT's C interface as it is laid out in memory: one table of functions, and one struct of
//! arguments for each function.
//!
//! New versions append to the table and to the structs. A plugin states the length of its table,
//! and every call states the length of its struct. A newer plugin expects longer structs, so each
//! struct is passed with a tail of zeros. Zero is the value of a field that was not set.

use std::ffi::{c_char, c_int, c_void};

/// The major version. Other major versions are incompatible.
pub(crate) const MAJOR: c_int = 0;
/// The first minor version whose structs begin with those below.
pub(crate) const MINOR_MIN: c_int = 54;

/// The function that every plugin exports.
pub(crate) const ENTRY_POINT: &[u8] = b"GetPjrtApi\0";

/// The type of the exported function.
pub(crate) type GetApi = unsafe extern "C" fn() -> *const Api;

/// The type of all functions of the table: each takes a pointer to its own struct and returns an
/// error or null.
pub(crate) type Function = unsafe extern "C" fn(*mut c_void) -> *mut ErrorObject;

/// Called by a plugin when work has completed, with an error or null and the user's argument.
pub(crate) type Callback = unsafe extern "C" fn(*mut ErrorObject, *mut c_void);

/// Declares opaque types of the plugin.
macro_rules! opaque {
    ($($name:ident)*) => {
        $(#[repr(C)]
        pub(crate) struct $name {
            _private: [u8; 0],
        })*
    };
}
opaque!(ErrorObject EventObject ClientObject DeviceObject DescriptionObject MemoryObject ExecutableObject LoadedObject BufferObject TopologyObject SerializedObject);

/// The header of the table. The functions follow.
#[repr(C)]
pub(crate) struct Api {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) version: Version,
}

#[repr(C)]
pub(crate) struct Version {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) major: c_int,
    pub(crate) minor: c_int,
}

/// A struct of arguments.
///
/// # Safety
/// The struct is laid out as PJRT's of that name, begins with its size and the address of
/// extensions, and the function takes it.
pub(crate) unsafe trait Arguments {
    /// The function's index in the table.
    const INDEX: usize;
    /// The function's name in PJRT's header.
    const NAME: &'static str;
}

/// Declares structs of arguments: `Struct = index in the table, name { fields }`.
macro_rules! arguments {
    ($($name:ident = $index:literal, $function:literal { $($field:ident: $type:ty,)* })*) => {
        $(
            #[repr(C)]
            #[derive(Clone, Copy)]
            pub(crate) struct $name {
                pub(crate) struct_size: usize,
                pub(crate) extension_start: *mut c_void,
                $(pub(crate) $field: $type,)*
            }

            // SAFETY: the fields are those of PJRT's header, in its order.
            unsafe impl Arguments for $name {
                const INDEX: usize = $index;
                const NAME: &'static str = $function;
            }

            // SAFETY: the size comes first, and the other fields are integers, addresses, bools and
            // optional functions.
            unsafe impl Blank for $name {}
        )*

        /// Every declared function with its index in the table.
        #[cfg(test)]
        pub(crate) const DECLARED: &[(&str, usize)] = &[$(($function, $index),)*];
    };
}

arguments! {
    ErrorDestroy = 0, "PJRT_Error_Destroy" { error: *mut ErrorObject, }
    ErrorMessage = 1, "PJRT_Error_Message" { error: *const ErrorObject, message: *const c_char, message_size: usize, }
    ErrorGetCode = 2, "PJRT_Error_GetCode" { error: *const ErrorObject, code: c_int, }
    PluginInitialize = 3, "PJRT_Plugin_Initialize" { }
    EventDestroy = 5, "PJRT_Event_Destroy" { event: *mut EventObject, }
    EventAwait = 8, "PJRT_Event_Await" { event: *mut EventObject, }
    EventOnReady = 9, "PJRT_Event_OnReady" { event: *mut EventObject, callback: Option<Callback>, user_arg: *mut c_void, }
    ClientCreate = 10, "PJRT_Client_Create" {
        create_options: *const NamedValue,
        num_options: usize,
        kv_get_callback: *mut c_void,
        kv_get_user_arg: *mut c_void,
        kv_put_callback: *mut c_void,
        kv_put_user_arg: *mut c_void,
        client: *mut ClientObject,
        kv_try_get_callback: *mut c_void,
        kv_try_get_user_arg: *mut c_void,
    }
    ClientDestroy = 11, "PJRT_Client_Destroy" { client: *mut ClientObject, }
    ClientPlatformName = 12, "PJRT_Client_PlatformName" { client: *mut ClientObject, text: *const c_char, text_size: usize, }
    ClientPlatformVersion = 14, "PJRT_Client_PlatformVersion" { client: *mut ClientObject, text: *const c_char, text_size: usize, }
    ClientAddressableDevices = 16, "PJRT_Client_AddressableDevices" {
        client: *mut ClientObject,
        devices: *const *mut DeviceObject,
        num_devices: usize,
    }
    ClientCompile = 20, "PJRT_Client_Compile" {
        client: *mut ClientObject,
        program: *const Program,
        compile_options: *const u8,
        compile_options_size: usize,
        executable: *mut LoadedObject,
    }
    BufferFromHost = 22, "PJRT_Client_BufferFromHostBuffer" {
        client: *mut ClientObject,
        data: *const c_void,
        element_type: c_int,
        dims: *const i64,
        num_dims: usize,
        byte_strides: *const i64,
        num_byte_strides: usize,
        semantics: c_int,
        device: *mut DeviceObject,
        memory: *mut MemoryObject,
        device_layout: *mut MemoryLayout,
        done_with_host_buffer: *mut EventObject,
        buffer: *mut BufferObject,
    }
    DescriptionId = 23, "PJRT_DeviceDescription_Id" { description: *mut DescriptionObject, id: c_int, }
    DescriptionKind = 26, "PJRT_DeviceDescription_Kind" { description: *mut DescriptionObject, text: *const c_char, text_size: usize, }
    DeviceGetDescription = 29, "PJRT_Device_GetDescription" { device: *mut DeviceObject, description: *mut DescriptionObject, }
    DeviceMemoryStats = 34, "PJRT_Device_MemoryStats" {
        device: *mut DeviceObject,
        bytes_in_use: i64,
        peak_bytes_in_use: i64,
        peak_bytes_in_use_is_set: bool,
        num_allocs: i64,
        num_allocs_is_set: bool,
        largest_alloc_size: i64,
        largest_alloc_size_is_set: bool,
        bytes_limit: i64,
        bytes_limit_is_set: bool,
        further: [i64; 12],
    }
    ExecutableDestroy = 40, "PJRT_Executable_Destroy" { executable: *mut ExecutableObject, }
    ExecutableNumOutputs = 44, "PJRT_Executable_NumOutputs" { executable: *mut ExecutableObject, num_outputs: usize, }
    ExecutableCodeSize = 45, "PJRT_Executable_SizeOfGeneratedCodeInBytes" { executable: *mut ExecutableObject, size_in_bytes: i64, }
    ExecutableSerialize = 49, "PJRT_Executable_Serialize" {
        executable: *const ExecutableObject,
        bytes: *const c_char,
        bytes_size: usize,
        serialized: *mut SerializedObject,
        deleter: Option<unsafe extern "C" fn(*mut SerializedObject)>,
    }
    LoadedDestroy = 50, "PJRT_LoadedExecutable_Destroy" { executable: *mut LoadedObject, }
    LoadedGetExecutable = 51, "PJRT_LoadedExecutable_GetExecutable" { loaded: *mut LoadedObject, executable: *mut ExecutableObject, }
    LoadedExecute = 55, "PJRT_LoadedExecutable_Execute" {
        executable: *mut LoadedObject,
        options: *mut ExecuteOptions,
        argument_lists: *const *const *mut BufferObject,
        num_devices: usize,
        num_args: usize,
        output_lists: *const *mut *mut BufferObject,
        device_complete_events: *mut *mut EventObject,
        execute_device: *mut DeviceObject,
    }
    DeserializeAndLoad = 56, "PJRT_Executable_DeserializeAndLoad" {
        client: *mut ClientObject,
        bytes: *const c_char,
        bytes_size: usize,
        loaded: *mut LoadedObject,
        compile_options: *const u8,
        compile_options_size: usize,
    }
    BufferDestroy = 58, "PJRT_Buffer_Destroy" { buffer: *mut BufferObject, }
    BufferToHost = 70, "PJRT_Buffer_ToHostBuffer" {
        source: *mut BufferObject,
        host_layout: *mut MemoryLayout,
        target: *mut c_void,
        target_size: usize,
        event: *mut EventObject,
    }
    TopologyCreate = 82, "PJRT_TopologyDescription_Create" {
        name: *const c_char,
        name_size: usize,
        create_options: *const NamedValue,
        num_options: usize,
        topology: *mut TopologyObject,
    }
    TopologyDestroy = 83, "PJRT_TopologyDescription_Destroy" { topology: *mut TopologyObject, }
    TopologyDescriptions = 86, "PJRT_TopologyDescription_GetDeviceDescriptions" {
        topology: *const TopologyObject,
        descriptions: *const *mut DescriptionObject,
        num_descriptions: usize,
    }
    Compile = 89, "PJRT_Compile" {
        topology: *const TopologyObject,
        program: *const Program,
        compile_options: *const u8,
        compile_options_size: usize,
        client: *mut ClientObject,
        executable: *mut ExecutableObject,
    }
}

/// A program in a language that the plugin supports.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Program {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) code: *const u8,
    pub(crate) code_size: usize,
    pub(crate) format: *const u8,
    pub(crate) format_size: usize,
}

/// A named option.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct NamedValue {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) name: *const u8,
    pub(crate) name_size: usize,
    pub(crate) kind: c_int,
    /// A bool is stored in the first byte.
    pub(crate) value: u64,
    pub(crate) value_size: usize,
}

/// The kind of a [`NamedValue`] that is a bool.
pub(crate) const NAMED_BOOL: c_int = 4;

/// The options of a program's execution.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct ExecuteOptions {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) send_callbacks: *mut c_void,
    pub(crate) recv_callbacks: *mut c_void,
    pub(crate) num_send_ops: usize,
    pub(crate) num_recv_ops: usize,
    pub(crate) launch_id: c_int,
    pub(crate) non_donatable: *const i64,
    pub(crate) num_non_donatable: usize,
    pub(crate) context: *mut c_void,
    pub(crate) call_location: *const c_char,
    pub(crate) num_tasks: usize,
    pub(crate) task_ids: *mut c_int,
    pub(crate) incarnation_ids: *mut i64,
}

/// The layout of elements in memory: tiles, or the order of the axes if there are no tiles.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryLayout {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) tiled: TiledLayout,
    pub(crate) kind: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct TiledLayout {
    pub(crate) struct_size: usize,
    pub(crate) extension_start: *mut c_void,
    pub(crate) minor_to_major: *const i64,
    pub(crate) minor_to_major_size: usize,
    pub(crate) tile_dims: *const i64,
    pub(crate) tile_dim_sizes: *const usize,
    pub(crate) num_tiles: usize,
}

/// The host memory must not change until the copy is done.
pub(crate) const UNTIL_TRANSFER_COMPLETES: c_int = 1;

/// Number of zero words behind a struct, for the fields of newer plugins.
const TAIL_WORDS: usize = 16;

/// A struct followed by zeros.
#[repr(C)]
pub(crate) struct PaddedArgs<A> {
    pub(crate) args: A,
    tail: [u64; TAIL_WORDS],
}

/// Structs that are initialised with zeros and begin with their size.
///
/// # Safety
/// All zeros are a valid value of the type, and its first field is a `usize` for its size.
pub(crate) unsafe trait Blank: Copy {
    /// The size including the zeros behind the struct.
    const PADDED_BYTES: usize = size_of::<PaddedArgs<Self>>();
}

// SAFETY: the size comes first, and the other fields are integers and addresses.
unsafe impl Blank for Program {}
// SAFETY: as above.
unsafe impl Blank for NamedValue {}
// SAFETY: as above.
unsafe impl Blank for ExecuteOptions {}
// SAFETY: as above.
unsafe impl Blank for MemoryLayout {}

impl<A: Blank> PaddedArgs<A> {
    /// A struct of zeros with its size filled in.
    pub(crate) fn new() -> PaddedArgs<A> {
        // SAFETY: `Blank` guarantees that all zeros are valid.
        let mut padded: PaddedArgs<A> = unsafe { std::mem::zeroed() };
        // SAFETY: `Blank` guarantees that the size comes first.
        unsafe { (&raw mut padded.args).cast::<usize>().write(A::PADDED_BYTES) };
        padded
    }
}
