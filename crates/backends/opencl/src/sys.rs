//! Raw declarations of OpenCL 1.2, which every later version includes, and the table of functions
//! that are looked up in a loader.

#![allow(non_snake_case)] // The functions' own names.

use std::ffi::{c_char, c_void};

/// A handle to any object; the name of its owner says to which kind.
pub type Handle = *mut c_void;
/// A result, or the state of an event: negative is an error.
pub type Status = i32;

pub const SUCCESS: Status = 0;
pub const DEVICE_NOT_FOUND: Status = -1;
pub const DEVICE_NOT_AVAILABLE: Status = -2;
pub const MEM_OBJECT_ALLOCATION_FAILURE: Status = -4;
pub const OUT_OF_RESOURCES: Status = -5;
pub const OUT_OF_HOST_MEMORY: Status = -6;
pub const PROFILING_INFO_NOT_AVAILABLE: Status = -7;
pub const EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST: Status = -14;
pub const INVALID_CONTEXT: Status = -34;
pub const INVALID_COMMAND_QUEUE: Status = -36;
pub const INVALID_BUFFER_SIZE: Status = -61;
pub const PLATFORM_NOT_FOUND: Status = -1001;

pub const PLATFORM_VERSION: u32 = 0x0901;
pub const PLATFORM_NAME: u32 = 0x0902;

pub const DEVICE_TYPE_CPU: u64 = 1 << 1;
pub const DEVICE_TYPE_GPU: u64 = 1 << 2;
pub const DEVICE_TYPE_ALL: u64 = 0xffff_ffff;
pub const DEVICE_TYPE: u32 = 0x1000;
pub const DEVICE_MAX_COMPUTE_UNITS: u32 = 0x1002;
pub const DEVICE_MAX_WORK_GROUP_SIZE: u32 = 0x1004;
pub const DEVICE_MAX_WORK_ITEM_SIZES: u32 = 0x1005;
pub const DEVICE_MAX_MEM_ALLOC_SIZE: u32 = 0x1010;
pub const DEVICE_SINGLE_FP_CONFIG: u32 = 0x101B;
pub const DEVICE_GLOBAL_MEM_SIZE: u32 = 0x101F;
pub const DEVICE_LOCAL_MEM_SIZE: u32 = 0x1023;
pub const DEVICE_ENDIAN_LITTLE: u32 = 0x1026;
pub const DEVICE_AVAILABLE: u32 = 0x1027;
pub const DEVICE_COMPILER_AVAILABLE: u32 = 0x1028;
pub const DEVICE_QUEUE_PROPERTIES: u32 = 0x102A;
pub const DEVICE_NAME: u32 = 0x102B;
pub const DRIVER_VERSION: u32 = 0x102D;
pub const DEVICE_PROFILE: u32 = 0x102E;
pub const DEVICE_VERSION: u32 = 0x102F;
pub const DEVICE_EXTENSIONS: u32 = 0x1030;
pub const DEVICE_HOST_UNIFIED_MEMORY: u32 = 0x1035;
pub const DEVICE_PARTITION_MAX_SUB_DEVICES: u32 = 0x1043;
pub const DEVICE_UUID_KHR: u32 = 0x106A;
pub const DEVICE_OPENCL_C_ALL_VERSIONS: u32 = 0x1066;
pub const DEVICE_COMPUTE_CAPABILITY_MAJOR_NV: u32 = 0x4000;
pub const DEVICE_WARP_SIZE_NV: u32 = 0x4003;
pub const DEVICE_PCI_BUS_ID_NV: u32 = 0x4008;
pub const DEVICE_PCI_SLOT_ID_NV: u32 = 0x4009;
pub const DEVICE_PCI_DOMAIN_ID_NV: u32 = 0x400A;
pub const DEVICE_TOPOLOGY_AMD: u32 = 0x4037;
pub const DEVICE_GLOBAL_FREE_MEMORY_AMD: u32 = 0x4039;
pub const DEVICE_WAVEFRONT_WIDTH_AMD: u32 = 0x4043;
pub const DEVICE_SUB_GROUP_SIZES_INTEL: u32 = 0x4108;
pub const DEVICE_PCI_BUS_INFO_KHR: u32 = 0x410F;

/// Size of an OpenCL C version: its number and its name.
pub const NAME_VERSION_BYTES: usize = 68;
pub const FP_DENORM: u64 = 1 << 0;
pub const FP_CORRECTLY_ROUNDED_DIVIDE_SQRT: u64 = 1 << 7;
pub const DEVICE_PARTITION_EQUALLY: isize = 0x1086;

pub const QUEUE_PROFILING_ENABLE: u64 = 1 << 1;
pub const MEM_READ_WRITE: u64 = 1;
pub const MEM_READ_ONLY: u64 = 1 << 2;
pub const MEM_USE_HOST_PTR: u64 = 1 << 3;

pub const PROGRAM_BINARY_SIZES: u32 = 0x1165;
pub const PROGRAM_BINARIES: u32 = 0x1166;
pub const PROGRAM_KERNEL_NAMES: u32 = 0x1168;
pub const PROGRAM_BUILD_LOG: u32 = 0x1183;
pub const KERNEL_NUM_ARGS: u32 = 0x1191;
pub const KERNEL_WORK_GROUP_SIZE: u32 = 0x11B0;
pub const KERNEL_COMPILE_WORK_GROUP_SIZE: u32 = 0x11B1;
pub const KERNEL_LOCAL_MEM_SIZE: u32 = 0x11B2;
pub const EVENT_COMMAND_EXECUTION_STATUS: u32 = 0x11D3;
pub const PROFILING_COMMAND_START: u32 = 0x1282;
pub const PROFILING_COMMAND_END: u32 = 0x1283;

/// An absent callback, for the end of a build and for errors of a context.
pub type NoCallback = Option<unsafe extern "system" fn()>;

macro_rules! functions {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        /// The functions of the loader that this crate calls.
        #[derive(Clone, Copy)]
        pub struct Functions {
            $(pub $name: unsafe extern "system" fn($($argument: $type),*) -> $result,)*
        }

        impl Functions {
            /// Finds every function. The error is the name of the first missing one.
            pub fn find(library: &libloading::Library) -> Result<Functions, &'static str> {
                Ok(Functions {
                    $($name: {
                        // SAFETY: the name is a function of OpenCL 1.2, whose signature is the
                        // field's.
                        let symbol = unsafe {
                            library.get::<unsafe extern "system" fn($($type),*) -> $result>(concat!(stringify!($name), "\0"))
                        };
                        *symbol.map_err(|_| stringify!($name))?
                    },)*
                })
            }
        }
    };
}

/// Passes every function with its types to another macro.
macro_rules! each_function {
    ($make:ident) => {
        $make! {
            clGetPlatformIDs(entries: u32, platforms: *mut Handle, count: *mut u32) -> Status;
            clGetPlatformInfo(platform: Handle, what: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> Status;
            clGetDeviceIDs(platform: Handle, kind: u64, entries: u32, devices: *mut Handle, count: *mut u32) -> Status;
            clGetDeviceInfo(device: Handle, what: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> Status;
            clCreateSubDevices(device: Handle, how: *const isize, entries: u32, devices: *mut Handle, count: *mut u32) -> Status;
            clCreateContext(properties: *const isize, count: u32, devices: *const Handle, notify: NoCallback, data: *mut c_void, status: *mut Status) -> Handle;
            clReleaseContext(context: Handle) -> Status;
            clCreateCommandQueue(context: Handle, device: Handle, properties: u64, status: *mut Status) -> Handle;
            clReleaseCommandQueue(queue: Handle) -> Status;
            clFlush(queue: Handle) -> Status;
            clFinish(queue: Handle) -> Status;
            clCreateBuffer(context: Handle, flags: u64, bytes: usize, host: *mut c_void, status: *mut Status) -> Handle;
            clReleaseMemObject(memory: Handle) -> Status;
            clCreateProgramWithSource(context: Handle, count: u32, texts: *const *const c_char, lengths: *const usize, status: *mut Status) -> Handle;
            clCreateProgramWithBinary(context: Handle, count: u32, devices: *const Handle, lengths: *const usize, binaries: *const *const u8, each: *mut Status, status: *mut Status) -> Handle;
            clBuildProgram(program: Handle, count: u32, devices: *const Handle, options: *const c_char, notify: NoCallback, data: *mut c_void) -> Status;
            clGetProgramInfo(program: Handle, what: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> Status;
            clGetProgramBuildInfo(program: Handle, device: Handle, what: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> Status;
            clReleaseProgram(program: Handle) -> Status;
            clCreateKernel(program: Handle, name: *const c_char, status: *mut Status) -> Handle;
            clReleaseKernel(kernel: Handle) -> Status;
            clSetKernelArg(kernel: Handle, index: u32, bytes: usize, value: *const c_void) -> Status;
            clGetKernelInfo(kernel: Handle, what: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> Status;
            clGetKernelWorkGroupInfo(kernel: Handle, device: Handle, what: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> Status;
            clEnqueueNDRangeKernel(queue: Handle, kernel: Handle, axes: u32, offset: *const usize, global: *const usize, local: *const usize, waits: u32, wait: *const Handle, event: *mut Handle) -> Status;
            clEnqueueReadBuffer(queue: Handle, memory: Handle, blocking: u32, offset: usize, bytes: usize, target: *mut c_void, waits: u32, wait: *const Handle, event: *mut Handle) -> Status;
            clEnqueueWriteBuffer(queue: Handle, memory: Handle, blocking: u32, offset: usize, bytes: usize, source: *const c_void, waits: u32, wait: *const Handle, event: *mut Handle) -> Status;
            clEnqueueCopyBuffer(queue: Handle, source: Handle, target: Handle, from: usize, to: usize, bytes: usize, waits: u32, wait: *const Handle, event: *mut Handle) -> Status;
            clEnqueueFillBuffer(queue: Handle, memory: Handle, pattern: *const c_void, pattern_bytes: usize, offset: usize, bytes: usize, waits: u32, wait: *const Handle, event: *mut Handle) -> Status;
            clEnqueueBarrierWithWaitList(queue: Handle, waits: u32, wait: *const Handle, event: *mut Handle) -> Status;
            clGetEventInfo(event: Handle, what: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> Status;
            clGetEventProfilingInfo(event: Handle, what: u32, bytes: usize, value: *mut c_void, needed: *mut usize) -> Status;
            clReleaseEvent(event: Handle) -> Status;
        }
    };
}
#[cfg(test)]
pub(crate) use each_function;

each_function!(functions);
