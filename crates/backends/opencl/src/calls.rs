//! Checked calls, and handles that release themselves. A call returns its error as a [`Code`],
//! which the caller interprets.
//!
//! Everything here may be used from any thread, as OpenCL promises, except a kernel's arguments,
//! which only its one owner sets.

use std::ffi::{CStr, CString, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use panoply_core::Absence;

pub(crate) use crate::code::Code;
use crate::sys::{self, Functions, Handle, Status};

/// The file names of OpenCL loaders.
#[cfg(target_os = "windows")]
pub(crate) const LOADERS: &[&str] = &["OpenCL.dll"];
#[cfg(target_os = "macos")]
pub(crate) const LOADERS: &[&str] = &["/System/Library/Frameworks/OpenCL.framework/OpenCL"];
#[cfg(not(any(target_os = "windows", target_os = "macos")))]
pub(crate) const LOADERS: &[&str] = &["libOpenCL.so.1", "libOpenCL.so"];

pub(crate) type ClResult<T> = Result<T, Code>;

/// The longest answer in bytes that is believed, and the most platforms, devices or sub-devices.
const ANSWER_BYTES_MAX: usize = 256 << 20;
const LISTED_MAX: u32 = 4096;

fn checked(status: Status) -> ClResult<()> {
    if status == sys::SUCCESS { Ok(()) } else { Err(Code(status)) }
}

/// Asks for the length of an answer, and then for the answer.
fn answer(mut ask: impl FnMut(usize, *mut c_void, *mut usize) -> Status) -> ClResult<Vec<u8>> {
    let mut bytes = 0;
    checked(ask(0, null_mut(), &raw mut bytes))?;
    let mut value = room(bytes)?;
    checked(ask(bytes, value.as_mut_ptr().cast(), null_mut()))?;
    Ok(value)
}

/// Memory for an answer of the length that a driver reports.
fn room(bytes: usize) -> ClResult<Vec<u8>> {
    if bytes <= ANSWER_BYTES_MAX { Ok(vec![0; bytes]) } else { Err(Code(sys::OUT_OF_HOST_MEMORY)) }
}

/// Memory for `count` handles.
fn handles(count: u32) -> ClResult<Vec<Handle>> {
    if count <= LISTED_MAX { Ok(vec![null_mut(); count as usize]) } else { Err(Code(sys::OUT_OF_HOST_MEMORY)) }
}

/// A number in the machine's byte order (little-endian), of 1 to 8 bytes.
pub(crate) fn number(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    let len = bytes.len().min(8);
    word[..len].copy_from_slice(&bytes[..len]);
    u64::from_le_bytes(word)
}

/// A text up to its closing zero.
fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).trim().to_owned()
}

/// The loader, and through it every driver of the machine.
pub(crate) struct Library {
    functions: Functions,
    /// Held so that the functions stay loaded; a driver's threads may outlive the program's use of
    /// it.
    _loaded: Option<libloading::Library>,
}

impl Library {
    /// Loads the first of these loaders that exists and has every function.
    pub(crate) fn load(names: &[&str]) -> Result<Arc<Library>, Absence> {
        let mut lacking = None;
        for name in names {
            // SAFETY: loading runs the loader's initialisers, which is its purpose.
            let loaded = match unsafe { libloading::Library::new(*name) } {
                Ok(loaded) => loaded,
                Err(error) => {
                    lacking = panoply_c_gpu::loading::fault(name, &error).or(lacking);
                    continue;
                }
            };
            match Functions::find(&loaded) {
                Ok(functions) => return Ok(Arc::new(Library { functions, _loaded: Some(loaded) })),
                Err(function) => lacking = Some(format!("{name} lacks {function}, so it is older than OpenCL 1.2")),
            }
        }
        Err(match lacking {
            Some(reason) => Absence::NoDevice { reason },
            None => Absence::LibraryMissing { tried: names.iter().map(|name| (*name).to_owned()).collect() },
        })
    }

    /// The same library with some functions changed, for tests of drivers that misbehave.
    #[cfg(test)]
    pub(crate) fn altered(self: &Arc<Library>, alter: impl FnOnce(&mut Functions)) -> Arc<Library> {
        let mut functions = self.functions;
        alter(&mut functions);
        // The caller's handle owns the library; tests never unload it.
        std::mem::forget(Arc::clone(self));
        Arc::new(Library { functions, _loaded: None })
    }

    /// Every platform.
    pub(crate) fn platforms(&self) -> ClResult<Vec<Handle>> {
        let mut count = 0;
        // SAFETY: writes one number.
        checked(unsafe { (self.functions.clGetPlatformIDs)(0, null_mut(), &raw mut count) })?;
        let mut platforms = handles(count)?;
        // SAFETY: writes at most `count` handles.
        checked(unsafe { (self.functions.clGetPlatformIDs)(count, platforms.as_mut_ptr(), null_mut()) })?;
        Ok(platforms)
    }

    /// A text that a platform reports about itself.
    pub(crate) fn platform_text(&self, platform: Handle, what: u32) -> String {
        // SAFETY: the loader gave the platform; the call writes at most `bytes` bytes.
        let told = answer(|bytes, value, needed| unsafe {
            (self.functions.clGetPlatformInfo)(platform, what, bytes, value, needed)
        });
        told.map(|told| text(&told)).unwrap_or_default()
    }

    /// A platform's devices of every kind; an empty list is no error.
    pub(crate) fn devices(&self, platform: Handle) -> ClResult<Vec<Handle>> {
        let mut count = 0;
        let ask = self.functions.clGetDeviceIDs;
        // SAFETY: the loader gave the platform; the call writes one number.
        match unsafe { ask(platform, sys::DEVICE_TYPE_ALL, 0, null_mut(), &raw mut count) } {
            sys::DEVICE_NOT_FOUND => return Ok(Vec::new()),
            status => checked(status)?,
        }
        let mut devices = handles(count)?;
        // SAFETY: writes at most `count` handles.
        checked(unsafe { ask(platform, sys::DEVICE_TYPE_ALL, count, devices.as_mut_ptr(), null_mut()) })?;
        Ok(devices)
    }

    /// Splits a device into sub-devices of `units` compute units each. They are never released: a
    /// process has only a few handles.
    pub(crate) fn parts(&self, device: Handle, units: u32) -> ClResult<Vec<Handle>> {
        let how = [sys::DEVICE_PARTITION_EQUALLY, units as isize, 0];
        let mut count = 0;
        let ask = self.functions.clCreateSubDevices;
        // SAFETY: a platform gave the device, and the list ends with zero; the call writes one
        // number.
        checked(unsafe { ask(device, how.as_ptr(), 0, null_mut(), &raw mut count) })?;
        let mut parts = handles(count)?;
        // SAFETY: writes at most `count` handles.
        checked(unsafe { ask(device, how.as_ptr(), count, parts.as_mut_ptr(), null_mut()) })?;
        Ok(parts)
    }

    /// A property that a device reports, as bytes.
    pub(crate) fn device_bytes(&self, device: Handle, what: u32) -> ClResult<Vec<u8>> {
        // SAFETY: a platform gave the device; the call writes at most `bytes` bytes.
        answer(|bytes, value, needed| unsafe { (self.functions.clGetDeviceInfo)(device, what, bytes, value, needed) })
    }

    /// A property as a text; empty if the device does not report it.
    pub(crate) fn device_text(&self, device: Handle, what: u32) -> String {
        self.device_bytes(device, what).map(|told| text(&told)).unwrap_or_default()
    }

    /// A property as a number; zero if the device does not report it.
    pub(crate) fn device_number(&self, device: Handle, what: u32) -> u64 {
        self.device_bytes(device, what).map_or(0, |told| number(&told))
    }
}

macro_rules! owned {
    ($(#[$doc:meta])* $name:ident by $release:ident) => {
        $(#[$doc])*
        pub(crate) struct $name {
            pub(crate) library: Arc<Library>,
            handle: Handle,
        }

        // SAFETY: the driver accepts the handle from any thread.
        unsafe impl Send for $name {}
        // SAFETY: as above.
        unsafe impl Sync for $name {}

        impl Drop for $name {
            fn drop(&mut self) {
                // SAFETY: the handle was made for this value, and is released once.
                unsafe { (self.library.functions.$release)(self.handle) };
            }
        }

        impl $name {
            fn made(library: &Arc<Library>, make: impl FnOnce(*mut Status) -> Handle) -> ClResult<$name> {
                let mut status = sys::SUCCESS;
                let handle = make(&raw mut status);
                checked(status)?;
                // A driver that reports success and returns null lacks some resource.
                if handle.is_null() { Err(Code(sys::OUT_OF_RESOURCES)) } else { Ok($name { library: Arc::clone(library), handle }) }
            }
        }
    };
}

owned!(
    /// A device with memory, programs and queues.
    Context by clReleaseContext
);
owned!(
    /// Work for a device, done in order.
    Queue by clReleaseCommandQueue
);
owned!(
    /// Memory of a device.
    Buffer by clReleaseMemObject
);
owned!(
    /// Kernels, as text or compiled.
    Program by clReleaseProgram
);
owned!(
    /// One kernel with its arguments.
    Kernel by clReleaseKernel
);
owned!(
    /// A point in a queue.
    Event by clReleaseEvent
);

impl Context {
    /// A context of one device.
    pub(crate) fn new(library: &Arc<Library>, device: Handle) -> ClResult<Context> {
        // SAFETY: one device that a platform gave; there is no callback for errors.
        Context::made(library, |status| unsafe {
            (library.functions.clCreateContext)(null(), 1, &raw const device, None, null_mut(), status)
        })
    }

    /// A queue with these properties, such as profiling.
    pub(crate) fn queue(&self, device: Handle, properties: u64) -> ClResult<Queue> {
        // SAFETY: the device is the context's.
        Queue::made(&self.library, |status| unsafe {
            (self.library.functions.clCreateCommandQueue)(self.handle, device, properties, status)
        })
    }

    /// Allocates memory of the device.
    pub(crate) fn buffer(&self, bytes: usize) -> ClResult<Buffer> {
        // SAFETY: the call names no host memory.
        Buffer::made(&self.library, |status| unsafe {
            (self.library.functions.clCreateBuffer)(self.handle, sys::MEM_READ_WRITE, bytes, null_mut(), status)
        })
    }

    /// Pins host memory for a device with memory of its own: copies from and to it need no staging
    /// memory.
    ///
    /// # Safety
    /// The range must stay allocated for as long as the buffer exists.
    pub(crate) unsafe fn kept_in_place(&self, start: *mut u8, bytes: usize) -> ClResult<Buffer> {
        let flags = sys::MEM_READ_WRITE | sys::MEM_USE_HOST_PTR;
        // SAFETY: the caller vouches for the range; no kernel gets the buffer.
        Buffer::made(&self.library, |status| unsafe {
            (self.library.functions.clCreateBuffer)(self.handle, flags, bytes, start.cast(), status)
        })
    }

    /// A buffer in host memory, which kernels only read.
    ///
    /// # Safety
    /// The range must stay unchanged for as long as the buffer exists.
    pub(crate) unsafe fn host_buffer(&self, start: *const u8, bytes: usize) -> ClResult<Buffer> {
        let flags = sys::MEM_READ_ONLY | sys::MEM_USE_HOST_PTR;
        // SAFETY: the caller vouches for the range, which kernels do not write.
        Buffer::made(&self.library, |status| unsafe {
            (self.library.functions.clCreateBuffer)(self.handle, flags, bytes, start.cast_mut().cast(), status)
        })
    }

    /// A program from its text.
    pub(crate) fn program_of_text(&self, source: &str) -> ClResult<Program> {
        let (start, len) = (source.as_ptr().cast(), source.len());
        // SAFETY: one text with its length, which is read during the call.
        Program::made(&self.library, |status| unsafe {
            (self.library.functions.clCreateProgramWithSource)(self.handle, 1, &raw const start, &raw const len, status)
        })
    }

    /// A program from a driver's binary.
    pub(crate) fn program_of_binary(&self, device: Handle, binary: &[u8]) -> ClResult<Program> {
        let (start, len, mut own) = (binary.as_ptr(), binary.len(), sys::SUCCESS);
        // SAFETY: one device of the context, and one binary with its length, which is read during
        // the call.
        let program = Program::made(&self.library, |status| unsafe {
            (self.library.functions.clCreateProgramWithBinary)(
                self.handle,
                1,
                &raw const device,
                &raw const len,
                &raw const start,
                &raw mut own,
                status,
            )
        })?;
        checked(own).map(|()| program)
    }
}

impl Program {
    /// Builds the program for a device. The error contains the compiler's log.
    pub(crate) fn build(&self, device: Handle, options: &str) -> Result<(), String> {
        let options = CString::new(options).map_err(|_| "an option with a zero byte".to_owned())?;
        // SAFETY: the device is the program's; the call returns when the build is over.
        let built = checked(unsafe {
            (self.library.functions.clBuildProgram)(
                self.handle,
                1,
                &raw const device,
                options.as_ptr(),
                None,
                null_mut(),
            )
        });
        built.map_err(|code| {
            // SAFETY: as above; the call writes at most `bytes` bytes.
            let log = answer(|bytes, value, needed| unsafe {
                let ask = self.library.functions.clGetProgramBuildInfo;
                ask(self.handle, device, sys::PROGRAM_BUILD_LOG, bytes, value, needed)
            });
            match log.map(|log| text(&log)) {
                Ok(log) if !log.is_empty() => log,
                _ => code.to_string(),
            }
        })
    }

    /// The compiled form, if the driver gives it.
    pub(crate) fn binary(&self) -> Option<Vec<u8>> {
        let ask = self.library.functions.clGetProgramInfo;
        let mut bytes: usize = 0;
        // SAFETY: the program has one device, so the answer is one number.
        let sized = checked(unsafe {
            ask(self.handle, sys::PROGRAM_BINARY_SIZES, size_of::<usize>(), (&raw mut bytes).cast(), null_mut())
        });
        sized.ok().filter(|()| bytes > 0)?;
        let mut binary = room(bytes).ok()?;
        let mut start = binary.as_mut_ptr();
        // SAFETY: one pointer to as many bytes as the driver just asked for.
        let told = checked(unsafe {
            ask(self.handle, sys::PROGRAM_BINARIES, size_of::<*mut u8>(), (&raw mut start).cast(), null_mut())
        });
        told.ok().map(|()| binary)
    }

    /// The names of the program's kernels.
    pub(crate) fn kernel_names(&self) -> Vec<CString> {
        // SAFETY: writes at most `bytes` bytes.
        let told = answer(|bytes, value, needed| unsafe {
            (self.library.functions.clGetProgramInfo)(self.handle, sys::PROGRAM_KERNEL_NAMES, bytes, value, needed)
        });
        let names = told.map(|told| text(&told)).unwrap_or_default();
        names.split(';').filter(|name| !name.is_empty()).filter_map(|name| CString::new(name).ok()).collect()
    }

    /// One of the program's kernels.
    pub(crate) fn kernel(&self, name: &CStr) -> ClResult<Kernel> {
        // SAFETY: the name ends with zero.
        Kernel::made(&self.library, |status| unsafe {
            (self.library.functions.clCreateKernel)(self.handle, name.as_ptr(), status)
        })
    }
}

impl Kernel {
    /// Number of the kernel's arguments.
    pub(crate) fn arguments(&self) -> ClResult<usize> {
        let mut count = 0_u32;
        // SAFETY: writes one number.
        checked(unsafe {
            let value = (&raw mut count).cast();
            (self.library.functions.clGetKernelInfo)(self.handle, sys::KERNEL_NUM_ARGS, 4, value, null_mut())
        })?;
        Ok(count as usize)
    }

    /// A property of the kernel on a device: `KERNEL_WORK_GROUP_SIZE`, `KERNEL_LOCAL_MEM_SIZE`, or
    /// `KERNEL_COMPILE_WORK_GROUP_SIZE` along the first axis.
    pub(crate) fn on_device(&self, device: Handle, what: u32) -> ClResult<u64> {
        // SAFETY: writes at most `bytes` bytes.
        let told = answer(|bytes, value, needed| unsafe {
            (self.library.functions.clGetKernelWorkGroupInfo)(self.handle, device, what, bytes, value, needed)
        });
        told.map(|told| number(&told))
    }

    fn set(&self, index: usize, bytes: usize, value: *const c_void) -> ClResult<()> {
        // SAFETY: the value has `bytes` bytes, or is block memory, of which only the size is given;
        // the driver compares the size with the kernel's.
        checked(unsafe { (self.library.functions.clSetKernelArg)(self.handle, index as u32, bytes, value) })
    }

    /// Sets an argument to a buffer, or to null.
    pub(crate) fn set_buffer(&self, index: usize, buffer: Option<&Buffer>) -> ClResult<()> {
        let handle = buffer.map_or(null_mut(), |buffer| buffer.handle);
        self.set(index, size_of::<Handle>(), (&raw const handle).cast())
    }

    /// Sets an argument to a value, in whole words.
    pub(crate) fn set_words(&self, index: usize, words: &[u64]) -> ClResult<()> {
        self.set(index, size_of_val(words), words.as_ptr().cast())
    }

    /// Sets an argument to block memory of this size.
    pub(crate) fn set_shared(&self, index: usize, bytes: usize) -> ClResult<()> {
        self.set(index, bytes, null())
    }
}

/// A part of a buffer.
#[derive(Clone, Copy)]
pub(crate) struct Range<'a> {
    pub(crate) buffer: &'a Buffer,
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
}

impl Queue {
    /// Submits the queued commands, so that they begin.
    pub(crate) fn flush(&self) -> ClResult<()> {
        // SAFETY: the queue exists.
        checked(unsafe { (self.library.functions.clFlush)(self.handle) })
    }

    /// Waits for all queued commands. If the wait fails, for example for lack of memory, it is
    /// repeated once, because commands in flight should end before their memory is reused. The
    /// error is returned all the same.
    pub(crate) fn finish(&self) -> ClResult<()> {
        // SAFETY: the queue exists.
        let wait = || checked(unsafe { (self.library.functions.clFinish)(self.handle) });
        wait().inspect_err(|_| {
            let _ = wait();
        })
    }

    /// Queues a command and returns its event.
    fn command(&self, queue: impl FnOnce(*mut Handle) -> Status) -> ClResult<Event> {
        let mut handle = null_mut();
        checked(queue(&raw mut handle))?;
        Event::made(&self.library, |_| handle).inspect_err(|_| {
            // A command without an event is in flight all the same, and its memory must not be
            // freed before it has ended.
            let _ = self.finish();
        })
    }

    /// Queues a kernel with its current arguments.
    ///
    /// # Safety
    /// Its buffers must stay valid for its reads and writes until it has run.
    pub(crate) unsafe fn launch(&self, kernel: &Kernel, global: [usize; 3], local: [usize; 3]) -> ClResult<Event> {
        let call = self.library.functions.clEnqueueNDRangeKernel;
        let (global, local) = (global.as_ptr(), local.as_ptr());
        // SAFETY: three axes, as the call says; the caller vouches for the rest.
        self.command(|event| unsafe { call(self.handle, kernel.handle, 3, null(), global, local, 0, null(), event) })
    }

    /// Queues a copy to the host.
    ///
    /// # Safety
    /// The target must have room, and must not be read, until the queue has passed this point.
    pub(crate) unsafe fn read(&self, target: *mut u8, from: Range<'_>) -> ClResult<Event> {
        let Range { buffer, offset, bytes } = from;
        // SAFETY: the driver checks the range of the buffer; the caller vouches for the host's.
        self.command(|event| unsafe {
            let call = self.library.functions.clEnqueueReadBuffer;
            call(self.handle, buffer.handle, 0, offset, bytes, target.cast(), 0, null(), event)
        })
    }

    /// Queues a copy from the host.
    ///
    /// # Safety
    /// The source must stay unchanged until the queue has passed this point.
    pub(crate) unsafe fn write(&self, to: Range<'_>, source: *const u8) -> ClResult<Event> {
        let Range { buffer, offset, bytes } = to;
        // SAFETY: as above.
        self.command(|event| unsafe {
            let call = self.library.functions.clEnqueueWriteBuffer;
            call(self.handle, buffer.handle, 0, offset, bytes, source.cast(), 0, null(), event)
        })
    }

    /// Queues a copy within the device.
    pub(crate) fn copy(&self, to: Range<'_>, from: Range<'_>) -> ClResult<Event> {
        // SAFETY: the driver checks both ranges.
        self.command(|event| unsafe {
            let call = self.library.functions.clEnqueueCopyBuffer;
            let (source, target) = (from.buffer.handle, to.buffer.handle);
            call(self.handle, source, target, from.offset, to.offset, to.bytes, 0, null(), event)
        })
    }

    /// Queues a fill of memory with one byte.
    pub(crate) fn fill(&self, to: Range<'_>, byte: u8) -> ClResult<Event> {
        let Range { buffer, offset, bytes } = to;
        // SAFETY: a pattern of one byte, which is read during the call; the driver checks the
        // range.
        self.command(|event| unsafe {
            let call = self.library.functions.clEnqueueFillBuffer;
            call(self.handle, buffer.handle, (&raw const byte).cast(), 1, offset, bytes, 0, null(), event)
        })
    }

    /// Makes later commands of this queue wait for a command of another queue.
    pub(crate) fn wait_for(&self, other: &Event) -> ClResult<Event> {
        let handle = other.handle;
        // SAFETY: one event, which the driver retains itself.
        self.command(|event| unsafe {
            let wait = self.library.functions.clEnqueueBarrierWithWaitList;
            wait(self.handle, 1, &raw const handle, event)
        })
    }
}

impl Event {
    /// Whether the command has ended. The error belongs to this command, or to an earlier one.
    pub(crate) fn is_past(&self) -> ClResult<bool> {
        let mut state: Status = 0;
        // SAFETY: writes one number.
        checked(unsafe {
            let value = (&raw mut state).cast();
            let ask = self.library.functions.clGetEventInfo;
            ask(self.handle, sys::EVENT_COMMAND_EXECUTION_STATUS, 4, value, null_mut())
        })?;
        if state < 0 { Err(Code(state)) } else { Ok(state == 0) }
    }

    /// The start of the command, in nanoseconds of the device's clock.
    pub(crate) fn began_at(&self) -> ClResult<u64> {
        self.time(sys::PROFILING_COMMAND_START)
    }

    /// The end of the command, in nanoseconds of the device's clock.
    pub(crate) fn ended_at(&self) -> ClResult<u64> {
        self.time(sys::PROFILING_COMMAND_END)
    }

    fn time(&self, what: u32) -> ClResult<u64> {
        let mut time = 0_u64;
        // SAFETY: writes one number.
        checked(unsafe {
            let value = (&raw mut time).cast();
            (self.library.functions.clGetEventProfilingInfo)(self.handle, what, 8, value, null_mut())
        })?;
        Ok(time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loader_that_is_not_there_is_told_by_name() {
        let Err(absence) = Library::load(&["libNoSuchLoader.so.9"]) else { panic!("it is there") };
        assert_eq!(absence, Absence::LibraryMissing { tried: vec!["libNoSuchLoader.so.9".to_owned()] });
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_library_that_is_no_loader_says_what_it_lacks() {
        let Err(absence) = Library::load(&["libc.so.6"]) else { panic!("it is a loader") };
        assert!(absence.to_string().contains("clGetPlatformIDs"), "{absence}");
    }

    #[test]
    fn numbers_are_as_long_as_the_answer() {
        assert_eq!((number(&[1, 2]), number(&[])), (513, 0));
    }
}
