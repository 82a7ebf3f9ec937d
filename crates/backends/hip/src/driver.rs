//! One GPU. The status of every call is checked and becomes a typed error.
//!
//! HIP has one context for each GPU of a process, so an engine's objects must be released one by
//! one: streams, events and kernels with the driver, memory when its last reader is gone.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, HashSet};
use std::ffi::{CString, c_int, c_void};
use std::ptr::{NonNull, null_mut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use panoply_c_gpu::arguments::Arguments;
use panoply_c_gpu::compile::Compiler;
use panoply_c_gpu::driver::{
    Address, CapturedGraph, Captures, ContextHandle, Driver, Event, Function, LANES_MAX, Launch, Properties, Stream,
};
use panoply_c_gpu::host_reads::HostReads;
use panoply_c_gpu::library::{Convolutions, Products, Sensors, Transforms};
use panoply_core::{DeviceId, DeviceInfo, Error, Result};

use crate::backend::{Names, unavailable};
use crate::compiler::Hiprtc;
use crate::libraries::Libraries;
use crate::platform;
use crate::quirks;
use crate::runtime::{HipError, Runtime};
use crate::sys::{self, Functions, Handle, Status};

/// The GPU memory that one engine allocated. All of it is freed together when the last handle is
/// dropped.
struct DeviceMemory {
    runtime: Arc<Runtime>,
    index: c_int,
    addresses: Mutex<HashSet<u64>>,
}

impl DeviceMemory {
    fn addresses(&self) -> MutexGuard<'_, HashSet<u64>> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn free(&self, address: u64) {
        if self.addresses().remove(&address) {
            // SAFETY: this runtime allocated the address, and the address was just removed from the
            // table. A lost device returns an error.
            let _ = unsafe { (self.runtime.functions.hipFree)(address as *mut c_void) };
        }
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        // SAFETY: `hipSetDevice` may be called on any thread. It is needed because the last handle
        // may be dropped on a thread without a current device.
        let _ = unsafe { (self.runtime.functions.hipSetDevice)(self.index) };
        let addresses: Vec<u64> = self.addresses().iter().copied().collect();
        addresses.into_iter().for_each(|address| self.free(address));
    }
}

/// One GPU with its own streams.
pub(crate) struct HipDriver {
    device: DeviceId,
    index: c_int,
    properties: Properties,
    host_reads: HostReads,
    runtime: Arc<Runtime>,
    memory: Arc<DeviceMemory>,
    upload: Handle,
    /// The compute stream and the download stream of each lane.
    lanes: [[Handle; 2]; LANES_MAX],
    lane: Cell<usize>,
    events: RefCell<Vec<Handle>>,
    compiler: Arc<Hiprtc>,
    /// The module of each function.
    modules: RefCell<HashMap<NonNull<c_void>, Handle>>,
    /// Of each lane, because some libraries' handles have memory for the work of one stream.
    libraries: Vec<Libraries>,
}

impl HipDriver {
    /// Opens a GPU on the calling thread.
    pub(crate) fn open(info: &DeviceInfo, names: &Names) -> Result<HipDriver> {
        let runtime = Runtime::load(&names.runtime).map_err(|absence| unavailable(info.id, absence.to_string()))?;
        let count = runtime.count().map_err(|absence| unavailable(info.id, absence.to_string()))?;
        let index = c_int::try_from(info.id.index).ok().filter(|index| *index < count);
        let index = index.ok_or_else(|| unavailable(info.id, "no such device"))?;
        let failed = |error: HipError| unavailable(info.id, error.to_string());
        // SAFETY: the index is below the device count.
        runtime.check(unsafe { (runtime.functions.hipSetDevice)(index) }).map_err(failed)?;
        let properties = platform::properties(&runtime, index).map_err(failed)?;
        let architecture = platform::architecture(&runtime, index).map_err(failed)?;
        if let Some(reason) = platform::fault(&architecture, &properties) {
            return Err(unavailable(info.id, reason));
        }
        let compiler = Hiprtc::new(&names.compiler, architecture, properties.warp_lanes, runtime.version());
        let memory = DeviceMemory { runtime: Arc::clone(&runtime), index, addresses: Mutex::default() };
        let mut driver = HipDriver {
            device: info.id,
            index,
            properties,
            host_reads: platform::host_reads(&runtime, index),
            memory: Arc::new(memory),
            upload: null_mut(),
            lanes: [[null_mut(); 2]; LANES_MAX],
            lane: Cell::new(0),
            events: RefCell::default(),
            compiler: Arc::new(compiler),
            modules: RefCell::default(),
            libraries: Vec::new(),
            runtime,
        };
        driver.upload = driver.make_stream()?;
        for lane in 0..LANES_MAX {
            driver.lanes[lane][0] = driver.make_stream()?;
            driver.lanes[lane][1] = driver.make_stream()?;
            driver.libraries.push(Libraries::new(info, names, driver.lanes[lane][0]));
        }
        Ok(driver)
    }

    fn make_stream(&self) -> Result<Handle> {
        // SAFETY: the call writes one handle.
        let make = |stream| unsafe { (self.functions().hipStreamCreateWithFlags)(stream, sys::STREAM_NON_BLOCKING) };
        self.made(make).map_err(|error| unavailable(self.device, error.to_string()))
    }

    /// The libraries of the lane in use.
    fn libraries(&self) -> Option<&Libraries> {
        self.libraries.get(self.lane.get())
    }

    fn functions(&self) -> &Functions {
        &self.runtime.functions
    }

    fn raw(&self, stream: Stream) -> Handle {
        let [compute, download] = self.lanes[self.lane.get()];
        match stream {
            Stream::Upload => self.upload,
            Stream::Compute => compute,
            Stream::Download => download,
        }
    }

    fn check(&self, status: Status) -> Result<()> {
        self.runtime.check(status).map_err(|error| self.error(error))
    }

    /// Calls `make` and returns the handle that it writes through its pointer.
    fn made(&self, make: impl FnOnce(*mut Handle) -> Status) -> Result<Handle> {
        let mut handle = null_mut();
        self.check(make(&raw mut handle))?;
        Ok(handle)
    }

    /// Converts an error of the runtime. Statuses after which a device only returns errors mean
    /// that the device is lost.
    fn error(&self, error: HipError) -> Error {
        let (device, reason) = (self.device, error.to_string());
        match error.status {
            sys::ILLEGAL_ADDRESS
            | sys::LAUNCH_FAILURE
            | sys::LAUNCH_TIME_OUT
            | sys::ASSERT
            | sys::ECC_NOT_CORRECTABLE
            | sys::CONTEXT_IS_DESTROYED
            | sys::INVALID_CONTEXT
            | sys::DEINITIALIZED
            | sys::NO_DEVICE
            | sys::UNKNOWN => Error::DeviceLost { device, reason },
            sys::OUT_OF_MEMORY => {
                let (free, _) = self.memory_info().unwrap_or((0, 0));
                Error::OutOfMemory { place: device.to_string(), asked: 0, free, largest: free }
            }
            _ => Error::DeviceFault { device, reason },
        }
    }
}

impl Driver for HipDriver {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn make_current(&self) -> Result<()> {
        // SAFETY: the index was checked when the driver was opened.
        self.check(unsafe { (self.functions().hipSetDevice)(self.index) })
    }

    fn lanes(&self) -> usize {
        LANES_MAX
    }

    fn use_lane(&self, lane: usize) {
        self.lane.set(lane);
    }

    fn context_handle(&self) -> ContextHandle {
        Arc::clone(&self.memory) as ContextHandle
    }

    fn reach(&self, other: &ContextHandle) -> Result<()> {
        let Some(other) = other.downcast_ref::<DeviceMemory>() else {
            return Err(Error::DeviceFault { device: self.device, reason: "the other is no GPU of HIP's".to_owned() });
        };
        if other.index == self.index {
            return Ok(());
        }
        // SAFETY: both indices were checked when their drivers were opened, and this device is
        // current.
        match unsafe { (self.functions().hipDeviceEnablePeerAccess)(other.index, 0) } {
            sys::PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            told => self.check(told),
        }
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        // SAFETY: the memory is uninitialised. The pool's users write it before they read it.
        let made = self.made(|address| unsafe { (self.functions().hipMalloc)(address, bytes) });
        let address = made.map_err(|error| match error {
            Error::OutOfMemory { place, free, largest, .. } => {
                Error::OutOfMemory { place, asked: bytes as u64, free, largest }
            }
            other => other,
        })?;
        self.memory.addresses().insert(address as u64);
        Ok(Address(address as u64))
    }

    fn free(&self, address: Address) {
        self.memory.free(address.0);
    }

    unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Result<()> {
        // The range is mapped so that kernels can write to it directly.
        let flags = sys::HOST_REGISTER_PORTABLE | sys::HOST_REGISTER_MAPPED;
        // SAFETY: the caller vouches for the range.
        self.check(unsafe { (self.functions().hipHostRegister)(start.as_ptr().cast(), bytes, flags) })
    }

    fn unpin(&self, start: NonNull<u8>) {
        // SAFETY: unpinning a range that is not pinned returns an error and changes nothing.
        let _ = unsafe { (self.functions().hipHostUnregister)(start.as_ptr().cast()) };
    }

    fn is_pinned(&self, start: *const u8) -> bool {
        // The numbers of pointer attributes depend on HIP's version. The device address does not:
        // memory that is not pinned has none.
        self.pinned_address(start).is_ok()
    }

    fn pinned_address(&self, byte: *const u8) -> Result<Address> {
        let host = byte.cast_mut().cast();
        // SAFETY: the call writes one address. Memory that is not pinned returns an error.
        self.made(|address| unsafe { (self.functions().hipHostGetDevicePointer)(address, host, 0) })
            .map(|address| Address(address as u64))
    }

    unsafe fn lend(&self, start: *const u8, bytes: usize) -> Option<Address> {
        if !self.host_reads.include(start, bytes, || self.is_pinned(start)) {
            return None;
        }
        match self.host_reads {
            HostReads::Everything => Some(Address(start as u64)),
            HostReads::Nothing | HostReads::Pinned => self.pinned_address(start).ok(),
        }
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the call writes two numbers.
        let asked = unsafe { (self.functions().hipMemGetInfo)(&raw mut free, &raw mut total) };
        // `self.error` is not used here: for an out-of-memory error it would call `memory_info`
        // again.
        let failed = |error: HipError| Error::DeviceFault { device: self.device, reason: error.to_string() };
        self.runtime.check(asked).map_err(failed)?;
        Ok((free as u64, total as u64))
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        Arc::clone(&self.compiler) as Arc<dyn Compiler>
    }

    fn load(&self, _name: &str, image: &[u8], entry: &str) -> Result<Function> {
        // SAFETY: the image is a complete code object, which contains its own length.
        let module =
            self.made(|module| unsafe { (self.functions().hipModuleLoadData)(module, image.as_ptr().cast()) })?;
        let function = self.function(module, entry);
        match &function {
            Ok(function) => drop(self.modules.borrow_mut().insert(function.0, module)),
            // SAFETY: the module was just loaded, and no function of it was handed out.
            Err(_) => drop(unsafe { (self.functions().hipModuleUnload)(module) }),
        }
        function
    }

    fn unload(&self, function: Function) {
        if let Some(module) = self.modules.borrow_mut().remove(&function.0) {
            // SAFETY: the module was loaded with this function. The function is launched no more,
            // and no kernel in flight uses it.
            let _ = unsafe { (self.functions().hipModuleUnload)(module) };
        }
    }

    unsafe fn launch(
        &self,
        function: Function,
        launch: &Launch,
        arguments: &mut Arguments,
        stream: Stream,
    ) -> Result<()> {
        let ([gx, gy, gz], [bx, by, bz]) = (launch.grid_u32(), launch.block);
        let threads = u64::from(gx) * u64::from(bx);
        if threads >= quirks::GRID_THREADS_MAX {
            let (limit, got) = (quirks::GRID_THREADS_MAX as usize, threads as usize);
            return Err(Error::OutOfBounds { what: "the threads of a grid", limit, got });
        }
        let pointers = arguments.pointers().as_mut_ptr();
        // SAFETY: the caller vouches for the arguments. The launch passes nothing else.
        self.check(unsafe {
            (self.functions().hipModuleLaunchKernel)(
                function.0.as_ptr(),
                gx,
                gy,
                gz,
                bx,
                by,
                bz,
                launch.shared_bytes,
                self.raw(stream),
                pointers,
                null_mut(),
            )
        })
    }

    unsafe fn upload(&self, target: Address, source: *const u8, bytes: usize, stream: Stream) -> Result<()> {
        let (target, source) = (target.0 as *mut c_void, source.cast_mut().cast());
        // SAFETY: the caller vouches for both ranges.
        self.check(unsafe { (self.functions().hipMemcpyHtoDAsync)(target, source, bytes, self.raw(stream)) })
    }

    unsafe fn download(&self, target: *mut u8, source: Address, bytes: usize, stream: Stream) -> Result<()> {
        let (target, source) = (target.cast(), source.0 as *mut c_void);
        // SAFETY: the caller vouches for both ranges.
        self.check(unsafe { (self.functions().hipMemcpyDtoHAsync)(target, source, bytes, self.raw(stream)) })
    }

    fn copy(&self, target: Address, source: Address, bytes: usize, stream: Stream) -> Result<()> {
        let (target, source) = (target.0 as *mut c_void, source.0 as *mut c_void);
        // SAFETY: both addresses are allocations of this device or of a device that it can read.
        // The op in flight keeps them alive.
        self.check(unsafe { (self.functions().hipMemcpyDtoDAsync)(target, source, bytes, self.raw(stream)) })
    }

    fn fill(&self, target: Address, byte: u8, bytes: usize, stream: Stream) -> Result<()> {
        let target = target.0 as *mut c_void;
        // SAFETY: as above.
        self.check(unsafe { (self.functions().hipMemsetAsync)(target, c_int::from(byte), bytes, self.raw(stream)) })
    }

    fn event(&self) -> Result<Event> {
        // SAFETY: the call writes one handle. No flags are set.
        let event = self.made(|event| unsafe { (self.functions().hipEventCreateWithFlags)(event, 0) })?;
        self.events.borrow_mut().push(event);
        NonNull::new(event).map(Event).ok_or_else(|| unavailable(self.device, "an event without a handle"))
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        // SAFETY: events and streams live as long as the driver.
        self.check(unsafe { (self.functions().hipEventRecord)(event.0.as_ptr(), self.raw(stream)) })
    }

    fn is_past(&self, event: Event) -> Result<bool> {
        // SAFETY: as above.
        match unsafe { (self.functions().hipEventQuery)(event.0.as_ptr()) } {
            sys::NOT_READY => Ok(false),
            told => self.check(told).map(|()| true),
        }
    }

    fn wait_for(&self, stream: Stream, event: Event) -> Result<()> {
        // SAFETY: as above.
        self.check(unsafe { (self.functions().hipStreamWaitEvent)(self.raw(stream), event.0.as_ptr(), 0) })
    }

    fn between(&self, start: Event, stop: Event) -> Result<Duration> {
        let mut milliseconds = 0.0_f32;
        let (start, stop) = (start.0.as_ptr(), stop.0.as_ptr());
        // SAFETY: as above. The call writes one number.
        self.check(unsafe { (self.functions().hipEventElapsedTime)(&raw mut milliseconds, start, stop) })?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        self.check(unsafe { (self.functions().hipStreamSynchronize)(self.raw(stream)) })
    }

    fn products(&self) -> Option<&dyn Products> {
        self.libraries()?.products()
    }

    fn convolutions(&self) -> Option<&dyn Convolutions> {
        self.libraries()?.miopen().map(|library| library as &dyn Convolutions)
    }

    fn transforms(&self) -> Option<&dyn Transforms> {
        self.libraries()?.hipfft().map(|library| library as &dyn Transforms)
    }

    fn sensors(&self) -> Option<&dyn Sensors> {
        self.libraries.first().map(|libraries| libraries as &dyn Sensors)
    }

    fn captures(&self) -> Option<&dyn Captures> {
        Some(self)
    }
}

/// Captures work as HIP graphs.
impl Captures for HipDriver {
    fn begin(&self) -> Result<()> {
        // The relaxed mode allows allocations during the capture. The other modes forbid them.
        let mode = sys::STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: the driver owns the stream.
        self.check(unsafe { (self.functions().hipStreamBeginCapture)(self.raw(Stream::Compute), mode) })
    }

    fn end(&self) -> Result<CapturedGraph> {
        let stream = self.raw(Stream::Compute);
        // SAFETY: the driver owns the stream. The call writes one handle.
        let graph = self.made(|graph| unsafe { (self.functions().hipStreamEndCapture)(stream, graph) })?;
        let invalid = || Error::DeviceFault { device: self.device, reason: "the capture was invalidated".to_owned() };
        if graph.is_null() {
            return Err(invalid());
        }
        // SAFETY: the runtime just created the graph. The error node and log pointers may be null.
        let made =
            self.made(|made| unsafe { (self.functions().hipGraphInstantiate)(made, graph, null_mut(), null_mut(), 0) });
        // SAFETY: the instantiated graph does not need the original.
        let _ = unsafe { (self.functions().hipGraphDestroy)(graph) };
        NonNull::new(made?).map(CapturedGraph).ok_or_else(invalid)
    }

    unsafe fn replay(&self, captured: CapturedGraph) -> Result<()> {
        // SAFETY: `end` created the handle. The caller vouches for the recorded work.
        self.check(unsafe { (self.functions().hipGraphLaunch)(captured.0.as_ptr(), self.raw(Stream::Compute)) })
    }

    fn release(&self, captured: CapturedGraph) {
        // SAFETY: `end` created the handle. It is released once, and no work in flight uses it.
        let _ = unsafe { (self.functions().hipGraphExecDestroy)(captured.0.as_ptr()) };
    }
}

impl HipDriver {
    fn function(&self, module: Handle, entry: &str) -> Result<Function> {
        let entry = CString::new(entry).map_err(|_| unavailable(self.device, "a kernel's name with a zero in it"))?;
        // SAFETY: the module was just loaded and lives as long as its function. The call writes one
        // handle.
        let function =
            self.made(|function| unsafe { (self.functions().hipModuleGetFunction)(function, module, entry.as_ptr()) })?;
        NonNull::new(function).map(Function).ok_or_else(|| unavailable(self.device, "a kernel without a handle"))
    }
}

impl Drop for HipDriver {
    /// Waits for all queued work first. A lost device only returns errors, which are ignored.
    fn drop(&mut self) {
        let _ = self.make_current();
        let functions = &self.runtime.functions;
        let streams = std::iter::once(self.upload).chain(self.lanes.into_iter().flatten());
        let streams: Vec<Handle> = streams.filter(|stream| !stream.is_null()).collect();
        for stream in &streams {
            // SAFETY: this driver created the stream.
            let _ = unsafe { (functions.hipStreamSynchronize)(*stream) };
        }
        // The libraries release their handles before their stream is destroyed.
        self.libraries.clear();
        for module in self.modules.get_mut().drain().map(|(_, module)| module) {
            // SAFETY: this driver loaded the module, and no work in flight uses it.
            let _ = unsafe { (functions.hipModuleUnload)(module) };
        }
        for event in self.events.get_mut().drain(..) {
            // SAFETY: this driver created the event and destroys it once.
            let _ = unsafe { (functions.hipEventDestroy)(event) };
        }
        for stream in streams {
            // SAFETY: as above.
            let _ = unsafe { (functions.hipStreamDestroy)(stream) };
        }
    }
}
