//! The functions of HIP's runtime.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

use crate::device::{CopyDirection, Device, Handle, HipResult, INVALID_VALUE, Size, device};
use crate::trouble::{asked_for, count};

/// The reported version. Its structure of properties is that of HIP 6 and later.
const VERSION: c_int = 60_200_000;
/// Offset of the architecture's name in the structure of properties, and the structure's size.
const ARCHITECTURE_AT: usize = 1160;
const PROPERTIES_BYTES: usize = 1472;

/// Runs a call, unless a test injected a failure.
fn answer(name: &str, call: impl FnOnce(&dyn Device) -> HipResult) -> c_int {
    match asked_for(name) {
        Some(status) => status,
        None => call(device()).err().unwrap_or(0),
    }
}

/// Runs a call that returns a value through `place`.
unsafe fn hand_out<T>(name: &str, place: *mut T, call: impl FnOnce(&dyn Device) -> HipResult<T>) -> c_int {
    answer(name, |device| {
        let made = call(device)?;
        if place.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller passed a valid pointer for the result.
        unsafe { place.write(made) };
        Ok(())
    })
}

/// Runs a call that creates an object, and counts the object.
unsafe fn make(name: &str, place: *mut Handle, call: impl FnOnce(&dyn Device) -> HipResult<Handle>) -> c_int {
    // SAFETY: as above.
    let status = unsafe { hand_out(name, place, call) };
    count(i64::from(status == 0));
    status
}

/// Runs a call that destroys an object, and counts it down.
fn give_back(name: &str, call: impl FnOnce(&dyn Device) -> HipResult) -> c_int {
    let status = answer(name, call);
    count(-i64::from(status == 0));
    status
}

/// Declares functions that pass their arguments on through one of the functions above.
macro_rules! calls {
    ($answer:ident: $($name:ident($($argument:ident: $type:ty),*) => |$device:ident| $body:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                // SAFETY: the caller keeps HIP's contract.
                $answer(stringify!($name), |$device| unsafe { $body })
            }
        )*
    };
}

/// The same for functions that return a value through a pointer.
macro_rules! results {
    ($answer:ident: $($name:ident($($argument:ident: $type:ty),*) to $place:ident => |$device:ident| $body:expr;)*) => {
        $(
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                // SAFETY: the caller keeps HIP's contract.
                unsafe { $answer(stringify!($name), $place, |$device| $body) }
            }
        )*
    };
}

#[allow(unused_unsafe)] // Some of the device's functions are safe.
mod functions {
    use super::*;

    calls! {
        answer:
        hipSetDevice(index: c_int) => |device| device.select(index);
        hipDeviceEnablePeerAccess(peer: c_int, _flags: c_uint) => |device| device.reach(peer);
        hipHostRegister(start: Handle, bytes: usize, _flags: c_uint) => |device| device.pin(start, bytes);
        hipHostUnregister(start: Handle) => |device| device.unpin(start);
        hipMemcpyHtoDAsync(target: Handle, source: Handle, bytes: usize, stream: Handle) => |device| device.copy(CopyDirection::ToDevice, target, source, bytes, stream);
        hipMemcpyDtoHAsync(target: Handle, source: Handle, bytes: usize, stream: Handle) => |device| device.copy(CopyDirection::ToHost, target, source, bytes, stream);
        hipMemcpyDtoDAsync(target: Handle, source: Handle, bytes: usize, stream: Handle) => |device| device.copy(CopyDirection::Within, target, source, bytes, stream);
        hipMemsetAsync(target: Handle, byte: c_int, bytes: usize, stream: Handle) => |device| device.fill(target, byte as u8, bytes, stream);
        hipStreamSynchronize(stream: Handle) => |device| device.synchronize(stream);
        hipStreamWaitEvent(stream: Handle, event: Handle, _flags: c_uint) => |device| device.wait(stream, event);
        hipStreamBeginCapture(stream: Handle, _mode: c_int) => |device| device.begin_capture(stream);
        hipGraphLaunch(made: Handle, stream: Handle) => |device| device.replay(made, stream);
        hipEventRecord(event: Handle, stream: Handle) => |device| device.record(event, stream);
        hipEventQuery(event: Handle) => |device| device.query(event);
        hipModuleLaunchKernel(function: Handle, gx: c_uint, gy: c_uint, gz: c_uint, bx: c_uint, by: c_uint, bz: c_uint, shared_bytes: c_uint, stream: Handle, arguments: *mut Handle, _extra: *mut Handle) => |device| {
            device.launch(function, Size { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes }, arguments, stream)
        };
    }

    calls! {
        give_back:
        hipFree(address: Handle) => |device| device.free(address);
        hipStreamDestroy(stream: Handle) => |device| device.destroy_stream(stream);
        hipGraphDestroy(graph: Handle) => |device| device.destroy_graph(graph);
        hipGraphExecDestroy(made: Handle) => |device| device.release(made);
        hipEventDestroy(event: Handle) => |device| device.destroy_event(event);
        hipModuleUnload(module: Handle) => |device| device.unload(module);
    }

    results! {
        hand_out:
        hipGetDeviceCount(number: *mut c_int) to number => |device| device.count();
        hipRuntimeGetVersion(version: *mut c_int) to version => |device| Ok(VERSION + (device.revision() % 100_000) as c_int);
        hipDeviceTotalMem(bytes: *mut usize, index: c_int) to bytes => |device| device.total_bytes(index);
        hipDeviceGetAttribute(value: *mut c_int, which: c_int, index: c_int) to value => |device| device.attribute(index, which);
        hipDeviceCanAccessPeer(can: *mut c_int, index: c_int, peer: c_int) to can => |device| device.can_reach(index, peer).map(c_int::from);
        hipHostGetDevicePointer(address: *mut Handle, host: Handle, _flags: c_uint) to address => |device| device.pinned_address(host);
        hipEventElapsedTime(milliseconds: *mut f32, start: Handle, stop: Handle) to milliseconds => |device| device.elapsed_ms(start, stop);
    }

    results! {
        make:
        hipMalloc(address: *mut Handle, bytes: usize) to address => |device| device.allocate(bytes);
        hipStreamCreateWithFlags(stream: *mut Handle, _flags: c_uint) to stream => |device| device.stream();
        hipStreamEndCapture(stream: Handle, graph: *mut Handle) to graph => |device| device.end_capture(stream);
        hipGraphInstantiate(made: *mut Handle, graph: Handle, _node: *mut Handle, _log: *mut c_char, _bytes: usize) to made => |device| device.instantiate(graph);
        hipEventCreateWithFlags(event: *mut Handle, _flags: c_uint) to event => |device| device.event();
        hipModuleLoadData(module: *mut Handle, image: *const c_void) to module => |device| device.load(image);
    }
}
pub use functions::*;

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipInit(_flags: c_uint) -> c_int {
    answer("hipInit", |_| Ok(()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipMemGetInfo(free: *mut usize, total: *mut usize) -> c_int {
    answer("hipMemGetInfo", |device| {
        let (free_bytes, total_bytes) = device.memory()?;
        // SAFETY: the caller passes two valid pointers.
        unsafe {
            free.write(free_bytes);
            total.write(total_bytes);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipModuleGetFunction(function: *mut Handle, module: Handle, name: *const c_char) -> c_int {
    // SAFETY: the caller passes a valid pointer, a module and a text that ends with a zero byte.
    unsafe {
        hand_out("hipModuleGetFunction", function, |device| {
            device.function(module, &CStr::from_ptr(name).to_string_lossy())
        })
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetName(name: *mut c_char, bytes: c_int, index: c_int) -> c_int {
    answer("hipDeviceGetName", |device| {
        let told = device.name(index)?;
        // SAFETY: the caller's buffer has `bytes` bytes.
        unsafe { write_text(name.cast(), bytes as usize, &told) };
        Ok(())
    })
}

/// Fills HIP 6's structure with zeros and the architecture's name.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipGetDevicePropertiesR0600(properties: *mut u8, index: c_int) -> c_int {
    answer("hipGetDevicePropertiesR0600", |device| {
        let told = device.architecture(index)?;
        // SAFETY: the caller's buffer has the structure's size.
        unsafe {
            properties.write_bytes(0, PROPERTIES_BYTES);
            write_text(properties.add(ARCHITECTURE_AT), 256, &told);
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn hipDeviceGetUuid(bytes: *mut [u8; 16], index: c_int) -> c_int {
    // SAFETY: the caller's buffer has sixteen bytes.
    unsafe {
        hand_out("hipDeviceGetUuid", bytes, |_| Ok([b'p', index as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]))
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorName(error: c_int) -> *const c_char {
    let name = match error {
        1 => c"hipErrorInvalidValue",
        2 => c"hipErrorOutOfMemory",
        100 => c"hipErrorNoDevice",
        101 => c"hipErrorInvalidDevice",
        200 => c"hipErrorInvalidImage",
        500 => c"hipErrorNotFound",
        600 => c"hipErrorNotReady",
        700 => c"hipErrorIllegalAddress",
        719 => c"hipErrorLaunchFailure",
        _ => c"hipErrorUnknown",
    };
    name.as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn hipGetErrorString(_error: c_int) -> *const c_char {
    c"told by the test library".as_ptr()
}

/// # Safety
/// `place` must point to `bytes` writable bytes.
unsafe fn write_text(place: *mut u8, bytes: usize, text: &str) {
    let used = text.len().min(bytes.saturating_sub(1));
    // SAFETY: the caller vouches for the buffer. A zero byte ends the text.
    unsafe {
        place.copy_from_nonoverlapping(text.as_ptr(), used);
        place.add(used).write(0);
    }
}
