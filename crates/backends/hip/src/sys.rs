//! Raw declarations of HIP 5 to 7, and the tables of functions that are loaded from its libraries.

#![allow(non_snake_case)] // The functions keep their libraries' names.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// A handle to any object. The field or argument that holds it names the object's kind.
pub type Handle = *mut c_void;
/// `hipError_t` or `hiprtcResult`. Zero is success.
pub type Status = c_int;

pub const SUCCESS: Status = 0;
pub const OUT_OF_MEMORY: Status = 2;
pub const DEINITIALIZED: Status = 4;
pub const NO_DEVICE: Status = 100;
pub const INVALID_DEVICE: Status = 101;
pub const INVALID_CONTEXT: Status = 201;
pub const ECC_NOT_CORRECTABLE: Status = 214;
pub const OPERATING_SYSTEM: Status = 304;
pub const NOT_READY: Status = 600;
pub const ILLEGAL_ADDRESS: Status = 700;
pub const LAUNCH_TIME_OUT: Status = 702;
pub const PEER_ACCESS_ALREADY_ENABLED: Status = 704;
pub const CONTEXT_IS_DESTROYED: Status = 709;
pub const ASSERT: Status = 710;
pub const LAUNCH_FAILURE: Status = 719;
pub const UNKNOWN: Status = 999;

pub const ATTRIBUTE_CAN_MAP_HOST_MEMORY: c_int = 3;
pub const ATTRIBUTE_INTEGRATED: c_int = 16;
pub const ATTRIBUTE_MAX_THREADS_PER_BLOCK: c_int = 56;
pub const ATTRIBUTE_MULTIPROCESSOR_COUNT: c_int = 63;
pub const ATTRIBUTE_PAGEABLE_MEMORY_ACCESS: c_int = 65;
pub const ATTRIBUTE_PCI_BUS_ID: c_int = 67;
pub const ATTRIBUTE_PCI_DEVICE_ID: c_int = 68;
pub const ATTRIBUTE_PCI_DOMAIN_ID: c_int = 69;
pub const ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK: c_int = 74;
pub const ATTRIBUTE_WARP_SIZE: c_int = 87;

pub const HOST_REGISTER_PORTABLE: c_uint = 1;
pub const HOST_REGISTER_MAPPED: c_uint = 2;
pub const STREAM_NON_BLOCKING: c_uint = 1;
pub const STREAM_CAPTURE_MODE_RELAXED: c_int = 2;

/// Buffer size for `hipDeviceProp_t`, which has 792 bytes up to HIP 5 and 1472 from HIP 6 on.
pub const PROPERTIES_BYTES: usize = 4096;
/// Offset of the architecture's name in that structure: from HIP 6 on
/// (`hipGetDevicePropertiesR0600`), and before.
pub const ARCHITECTURE_AT_R0600: usize = 1160;
pub const ARCHITECTURE_AT: usize = 396;
/// Size of that name, with its closing zero byte.
pub const ARCHITECTURE_BYTES: usize = 256;

/// Declares a table of C functions of one library. Functions in `or none` may be missing.
macro_rules! functions {
    (
        $(#[$doc:meta])* $table:ident {
            $($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*
        }
        $(or none {
            $($optional:ident($($optional_argument:ident: $optional_type:ty),*) -> $optional_result:ty;)*
        })?
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub struct $table {
            $(pub $name: unsafe extern "C" fn($($argument: $type),*) -> $result,)*
            $($(pub $optional: Option<unsafe extern "C" fn($($optional_argument: $optional_type),*) -> $optional_result>,)*)?
        }

        impl $table {
            /// Every function with its argument types and whether it may be missing.
            #[cfg(test)]
            pub const DECLARED: &[(&str, &[&str], bool)] = &[
                $((stringify!($name), &[$(stringify!($type)),*], false),)*
                $($((stringify!($optional), &[$(stringify!($optional_type)),*], true),)*)?
            ];

            /// Finds every function. The error is the name of the first missing function.
            pub fn find(library: &libloading::Library) -> Result<$table, &'static str> {
                Ok($table {
                    $($name: {
                        // SAFETY: the name is a function of the library with the field's signature.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($type),*) -> $result>(concat!(stringify!($name), "\0"))
                        };
                        *symbol.map_err(|_| stringify!($name))?
                    },)*
                    $($($optional: {
                        // SAFETY: as above.
                        let symbol = unsafe {
                            library.get::<unsafe extern "C" fn($($optional_type),*) -> $optional_result>(concat!(
                                stringify!($optional),
                                "\0"
                            ))
                        };
                        symbol.ok().map(|symbol| *symbol)
                    },)*)?
                })
            }
        }
    };
}
pub(crate) use functions;

functions! {
    /// The functions of the runtime that this crate calls.
    Functions {
        hipInit(flags: c_uint) -> Status;
        hipRuntimeGetVersion(version: *mut c_int) -> Status;
        hipGetErrorName(error: Status) -> *const c_char;
        hipGetErrorString(error: Status) -> *const c_char;
        hipGetDeviceCount(count: *mut c_int) -> Status;
        hipSetDevice(device: c_int) -> Status;
        hipDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int) -> Status;
        hipDeviceTotalMem(bytes: *mut usize, device: c_int) -> Status;
        hipDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> Status;
        hipDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) -> Status;
        hipDeviceEnablePeerAccess(peer: c_int, flags: c_uint) -> Status;
        hipMalloc(address: *mut *mut c_void, bytes: usize) -> Status;
        hipFree(address: *mut c_void) -> Status;
        hipMemGetInfo(free: *mut usize, total: *mut usize) -> Status;
        hipHostRegister(start: *mut c_void, bytes: usize, flags: c_uint) -> Status;
        hipHostUnregister(start: *mut c_void) -> Status;
        hipHostGetDevicePointer(address: *mut *mut c_void, host: *mut c_void, flags: c_uint) -> Status;
        hipMemcpyHtoDAsync(target: *mut c_void, source: *mut c_void, bytes: usize, stream: Handle) -> Status;
        hipMemcpyDtoHAsync(target: *mut c_void, source: *mut c_void, bytes: usize, stream: Handle) -> Status;
        hipMemcpyDtoDAsync(target: *mut c_void, source: *mut c_void, bytes: usize, stream: Handle) -> Status;
        hipMemsetAsync(target: *mut c_void, byte: c_int, bytes: usize, stream: Handle) -> Status;
        hipStreamCreateWithFlags(stream: *mut Handle, flags: c_uint) -> Status;
        hipStreamDestroy(stream: Handle) -> Status;
        hipStreamSynchronize(stream: Handle) -> Status;
        hipStreamWaitEvent(stream: Handle, event: Handle, flags: c_uint) -> Status;
        hipStreamBeginCapture(stream: Handle, mode: c_int) -> Status;
        hipStreamEndCapture(stream: Handle, graph: *mut Handle) -> Status;
        hipEventCreateWithFlags(event: *mut Handle, flags: c_uint) -> Status;
        hipEventDestroy(event: Handle) -> Status;
        hipEventRecord(event: Handle, stream: Handle) -> Status;
        hipEventQuery(event: Handle) -> Status;
        hipEventElapsedTime(milliseconds: *mut f32, start: Handle, stop: Handle) -> Status;
        hipModuleLoadData(module: *mut Handle, image: *const c_void) -> Status;
        hipModuleUnload(module: Handle) -> Status;
        hipModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> Status;
        hipModuleLaunchKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared_bytes: c_uint, stream: Handle, arguments: *mut *mut c_void, extra: *mut *mut c_void) -> Status;
        hipGraphInstantiate(made: *mut Handle, graph: Handle, node: *mut Handle, log: *mut c_char, log_bytes: usize) -> Status;
        hipGraphDestroy(graph: Handle) -> Status;
        hipGraphLaunch(made: Handle, stream: Handle) -> Status;
        hipGraphExecDestroy(made: Handle) -> Status;
    } or none {
        hipGetDevicePropertiesR0600(properties: *mut c_void, device: c_int) -> Status;
        hipGetDeviceProperties(properties: *mut c_void, device: c_int) -> Status;
        hipDeviceGetUuid(bytes: *mut [u8; 16], device: c_int) -> Status;
    }
}

functions! {
    /// The functions of the compiler that this crate calls.
    CompilerFunctions {
        hiprtcVersion(major: *mut c_int, minor: *mut c_int) -> Status;
        hiprtcGetErrorString(error: Status) -> *const c_char;
        hiprtcCreateProgram(program: *mut Handle, source: *const c_char, name: *const c_char, headers: c_int, texts: *const *const c_char, names: *const *const c_char) -> Status;
        hiprtcCompileProgram(program: Handle, count: c_int, options: *const *const c_char) -> Status;
        hiprtcGetCodeSize(program: Handle, bytes: *mut usize) -> Status;
        hiprtcGetCode(program: Handle, code: *mut c_char) -> Status;
        hiprtcGetProgramLogSize(program: Handle, bytes: *mut usize) -> Status;
        hiprtcGetProgramLog(program: Handle, log: *mut c_char) -> Status;
        hiprtcDestroyProgram(program: *mut Handle) -> Status;
    }
}
