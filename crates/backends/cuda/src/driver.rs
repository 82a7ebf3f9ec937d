//! The real driver, loaded at run time. Every call's result is checked and becomes a typed error.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_int, c_uint, c_void};
use std::path::Path;
use std::ptr::NonNull;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::result::DriverError;
use cudarc::driver::{result, sys};
use panoply_c_gpu::arguments::Arguments;
use panoply_c_gpu::compile::Compiler;
use panoply_c_gpu::devices::cache_feature;
use panoply_c_gpu::driver::{
    Address, Captures, ContextHandle, Driver, Event, Function, LANES_MAX, Launch, Properties, Stream,
};
use panoply_c_gpu::host_reads::HostReads;
use panoply_c_gpu::library::{Convolutions, Products, Sensors, Transforms};
use panoply_c_gpu::loading;
use panoply_core::{Absence, Api, Capabilities, DeviceId, DeviceInfo, DeviceKind, Error, PciAddress, Result, vendor};
use panoply_placement::{SYSTEM, locate};

use crate::backend::unavailable;
use crate::compiler::Nvrtc;
use crate::libraries::{CurrentStream, Libraries};
use crate::quirks;

mod captures;

/// The driver's library, by the name that its installers use.
const LIBRARY: &str = "libcuda.so.1";

/// The GPUs that the driver shows to this process, or the reason why there are none.
pub(crate) fn discover() -> Result<Vec<DeviceInfo>, Absence> {
    let absent = |error: DriverError| Absence::NoDevice { reason: describe(error) };
    (0..count()?).map(|index| info(index).map_err(absent)).collect()
}

/// Number of GPUs, at least one. Everything else is called after this.
fn count() -> Result<c_int, Absence> {
    vendor::load(load_and_count)
}

fn load_and_count() -> Result<c_int, Absence> {
    // SAFETY: looks for the driver's library by name, which only runs its initialisers.
    if !unsafe { sys::is_culib_present() } {
        // SAFETY: as above.
        let error = unsafe { libloading::Library::new(LIBRARY) }.err();
        return Err(match error.and_then(|error| loading::fault(LIBRARY, &error)) {
            Some(reason) => Absence::NoDevice { reason },
            None => Absence::LibraryMissing { tried: vec![LIBRARY.to_owned(), "nvcuda.dll".to_owned()] },
        });
    }
    // Calling a function that the library lacks would panic.
    for function in ["cuInit", "cuDeviceGetCount"] {
        // SAFETY: the library is loaded; the address is looked up and not called.
        if unsafe { sys::culib().get::<*const c_void>(function.as_bytes()) }.is_err() {
            let reason = format!("the library {LIBRARY} lacks {function}, so it is not the driver's");
            return Err(Absence::NoDevice { reason });
        }
    }
    let absent = |error: DriverError| Absence::NoDevice { reason: describe(error) };
    result::init().map_err(|error| match error.0 {
        sys::CUresult::CUDA_ERROR_NOT_PERMITTED | sys::CUresult::CUDA_ERROR_OPERATING_SYSTEM => {
            Absence::Denied { reason: describe(error) }
        }
        _ => absent(error),
    })?;
    let count = result::device::get_count().map_err(absent)?;
    if count > 0 {
        return Ok(count);
    }
    let reason = match std::env::var("CUDA_VISIBLE_DEVICES") {
        Ok(shown) => format!("the driver shows none; CUDA_VISIBLE_DEVICES is «{shown}»"),
        Err(_) => "the driver shows none".to_owned(),
    };
    Err(Absence::NoDevice { reason })
}

fn info(index: c_int) -> Result<DeviceInfo, DriverError> {
    let device = result::device::get(index)?;
    let id = DeviceId { api: Api::CUDA, index: index as u32 };
    let mut info = DeviceInfo::new(id, result::device::get_name(device)?, DeviceKind::DiscreteGpu);
    use sys::CUdevice_attribute as A;
    // SAFETY: the driver gave the device.
    let attribute = |which: A| unsafe { result::device::get_attribute(device, which) };
    if attribute(A::CU_DEVICE_ATTRIBUTE_INTEGRATED)? != 0 {
        info.kind = DeviceKind::IntegratedGpu;
    }
    // SAFETY: as above.
    info.memory_total_bytes = Some(unsafe { result::device::total_mem(device) }? as u64);
    let mut version = 0;
    // SAFETY: writes one number.
    unsafe { sys::cuDriverGetVersion(&raw mut version) }.result()?;
    info.driver_version = Some(format!("CUDA {}.{}", version / 1000, version % 1000 / 10));
    let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    info.compute_capability = Some(format!("{major}.{minor}"));
    info.threads_per_block_max = u32::try_from(attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)?).ok();
    info.shared_memory_bytes_max =
        u64::try_from(attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?).ok();
    info.compute_units = u32::try_from(attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?).ok();
    let address = PciAddress {
        domain: attribute(A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)? as u32,
        bus: attribute(A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)? as u8,
        device: attribute(A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)? as u8,
        function: 0,
    };
    locate(&mut info, Path::new(SYSTEM), address);
    info.uuid = result::device::get_uuid(device).ok().map(|uuid| uuid.bytes.map(|byte| byte as u8));
    let mut features = library_features();
    features.push(cache_feature());
    features.push(Capabilities::KEEPS_CLOCKS.to_owned());
    if major >= 7 {
        features.push("tensor-cores".to_owned());
    }
    if major >= 8 {
        features.extend(["bf16".to_owned(), "tf32".to_owned()]);
    }
    info.capabilities = Capabilities { domains: panoply_c_gpu::ops::DOMAINS.to_vec(), features };
    Ok(info)
}

/// Features that say which of the vendor's libraries are present, and the consequence if one is
/// missing.
fn library_features() -> Vec<String> {
    // SAFETY: each call looks for a library by its names, which only runs its initialisers.
    let libraries = unsafe {
        [
            ("nvrtc", cudarc::nvrtc::sys::is_culib_present(), "no kernel can be compiled"),
            ("cublaslt", cudarc::cublaslt::sys::is_culib_present(), "products by our own kernel"),
            ("cudnn", cudarc::cudnn::sys::is_culib_present(), "convolutions by our own kernel"),
            ("cufft", cudarc::cufft::sys::is_culib_present(), "transforms by our own kernel"),
        ]
    };
    let told = |(name, present, instead): (&str, bool, &str)| {
        if present { name.to_owned() } else { format!("no-{name} ({instead})") }
    };
    libraries.map(told).to_vec()
}

/// The driver's name and text of an error.
pub(crate) fn describe(error: DriverError) -> String {
    let name = error.error_name().map(CStr::to_string_lossy);
    let text = error.error_string().map(CStr::to_string_lossy);
    match (name, text) {
        (Ok(name), Ok(text)) => format!("{name}: {text}"),
        _ => format!("{:?}", error.0),
    }
}

/// Which GPUs can read which other GPUs' memory directly: for each GPU a bit for every other.
pub(crate) fn reach<const COUNT: usize>() -> [u64; COUNT] {
    let count = count().map_or(0, |count| usize::try_from(count).unwrap_or(0).min(COUNT));
    let reads = |reader: usize, owner: usize| {
        let device = |index: usize| result::device::get(index as c_int).ok();
        let (Some(reader), Some(owner)) = (device(reader), device(owner)) else { return false };
        let mut can = 0;
        // SAFETY: writes one number; the driver gave the devices.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&raw mut can, reader, owner) };
        asked == sys::CUresult::CUDA_SUCCESS && can != 0
    };
    let mask = |reader: usize| {
        let others = (0..count).filter(|owner| *owner != reader && reads(reader, *owner));
        others.fold(0, |mask, owner| mask | 1 << owner)
    };
    std::array::from_fn(|reader| if reader < count { mask(reader) } else { 0 })
}

/// A context, and everything in it.
struct OwnedContext(sys::CUcontext);

// SAFETY: the driver accepts the handle from any thread.
unsafe impl Send for OwnedContext {}
// SAFETY: as above.
unsafe impl Sync for OwnedContext {}

impl Drop for OwnedContext {
    fn drop(&mut self) {
        // SAFETY: `open` created the context; destroying it frees its streams, events, modules and
        // memory.
        let _ = unsafe { sys::cuCtxDestroy_v2(self.0) };
    }
}

/// One GPU with a context of its own.
pub(crate) struct CudaDriver {
    device: DeviceId,
    properties: Properties,
    host_reads: HostReads,
    context: Arc<OwnedContext>,
    upload: sys::CUstream,
    /// The compute stream and the download stream of each lane.
    lanes: [[sys::CUstream; 2]; LANES_MAX],
    lane: Cell<usize>,
    /// The compute stream of the lane in use, for libraries.
    current: CurrentStream,
    compiler: Arc<Nvrtc>,
    /// The module of each function.
    modules: RefCell<HashMap<NonNull<c_void>, sys::CUmodule>>,
    libraries: Option<Libraries>,
}

impl CudaDriver {
    /// Opens a GPU on the calling thread.
    pub(crate) fn open(info: &DeviceInfo) -> Result<CudaDriver> {
        count().map_err(|absence| unavailable(info.id, absence.to_string()))?;
        let failed = |error: DriverError| unavailable(info.id, describe(error));
        let index = c_int::try_from(info.id.index).map_err(|_| unavailable(info.id, "no such device"))?;
        let device = result::device::get(index).map_err(failed)?;
        // A context of our own, so that a fault in another library's context does not destroy ours,
        // and the reverse.
        let mut context = std::ptr::null_mut();
        let flags = sys::CUctx_flags_enum::CU_CTX_SCHED_SPIN as c_uint;
        // SAFETY: writes one handle; no parameters are given.
        unsafe { sys::cuCtxCreate_v4(&raw mut context, std::ptr::null_mut(), flags, device) }
            .result()
            .map_err(failed)?;
        let context = Arc::new(OwnedContext(context));
        let (capability, properties) = properties(device).map_err(failed)?;
        let mut driver = CudaDriver {
            device: info.id,
            properties,
            host_reads: quirks::host_reads(device),
            context,
            upload: std::ptr::null_mut(),
            lanes: [[std::ptr::null_mut(); 2]; LANES_MAX],
            lane: Cell::new(0),
            current: Rc::new(Cell::new(std::ptr::null_mut())),
            compiler: Arc::new(Nvrtc::new(info.driver_version.clone().unwrap_or_default(), capability)),
            modules: RefCell::default(),
            libraries: None,
        };
        for stream in std::iter::once(&mut driver.upload).chain(driver.lanes.as_flattened_mut()) {
            *stream = result::stream::create(result::stream::StreamKind::NonBlocking).map_err(failed)?;
        }
        driver.use_lane(0);
        driver.libraries = Some(Libraries::new(info, Rc::clone(&driver.current)));
        Ok(driver)
    }

    fn raw(&self, stream: Stream) -> sys::CUstream {
        let [compute, download] = self.lanes[self.lane.get()];
        match stream {
            Stream::Upload => self.upload,
            Stream::Compute => compute,
            Stream::Download => download,
        }
    }

    fn check(&self, result: Result<(), DriverError>) -> Result<()> {
        result.map_err(|error| self.error(error))
    }

    /// Turns a driver error into a typed error. Errors after which a context returns nothing but
    /// errors mean that the device is lost.
    fn error(&self, error: DriverError) -> Error {
        use sys::CUresult::*;
        let (device, reason) = (self.device, describe(error));
        match error.0 {
            CUDA_ERROR_ILLEGAL_ADDRESS
            | CUDA_ERROR_MISALIGNED_ADDRESS
            | CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUDA_ERROR_INVALID_PC
            | CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUDA_ERROR_LAUNCH_FAILED
            | CUDA_ERROR_LAUNCH_TIMEOUT
            | CUDA_ERROR_ASSERT
            | CUDA_ERROR_ECC_UNCORRECTABLE
            | CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUDA_ERROR_DEINITIALIZED
            | CUDA_ERROR_UNKNOWN => Error::DeviceLost { device, reason },
            CUDA_ERROR_OUT_OF_MEMORY => {
                let (free, _) = self.memory_info().unwrap_or((0, 0));
                Error::OutOfMemory { place: device.to_string(), asked: 0, free, largest: free }
            }
            _ => Error::DeviceFault { device, reason },
        }
    }
}

/// The compute capability (90 for 9.0), and the properties that launches depend on.
fn properties(device: sys::CUdevice) -> Result<(u32, Properties), DriverError> {
    use sys::CUdevice_attribute as A;
    // SAFETY: the driver gave the device.
    let attribute = |which: A| unsafe { result::device::get_attribute(device, which) };
    let major = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)? as u32;
    let minor = attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)? as u32;
    let capability = major * 10 + minor;
    let properties = Properties {
        multiprocessors: attribute(A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)? as u32,
        shared_bytes_max: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)? as u32,
        block_threads_max: attribute(A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK)? as u32,
        warp_lanes: attribute(A::CU_DEVICE_ATTRIBUTE_WARP_SIZE)? as u32,
        pointers: true,
        matrix_tiles: quirks::matrix_tiles(capability),
        tiles_of_16: false,
        warp_groups: quirks::warp_groups(capability),
    };
    Ok((capability, properties))
}

impl Driver for CudaDriver {
    fn properties(&self) -> &Properties {
        &self.properties
    }

    fn make_current(&self) -> Result<()> {
        if result::ctx::get_current().is_ok_and(|current| current == Some(self.context.0)) {
            return Ok(());
        }
        // SAFETY: the context exists as long as the driver.
        self.check(unsafe { result::ctx::set_current(self.context.0) })
    }

    fn lanes(&self) -> usize {
        LANES_MAX
    }

    fn use_lane(&self, lane: usize) {
        self.lane.set(lane);
        self.current.set(self.lanes[lane][0]);
    }

    fn context_handle(&self) -> ContextHandle {
        Arc::clone(&self.context) as ContextHandle
    }

    fn reach(&self, other: &ContextHandle) -> Result<()> {
        let Some(other) = other.downcast_ref::<OwnedContext>() else {
            return Err(Error::DeviceFault { device: self.device, reason: "the other is no GPU".to_owned() });
        };
        // SAFETY: both contexts exist, and this one is current.
        match unsafe { sys::cuCtxEnablePeerAccess(other.0, 0) } {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(()),
            told => self.check(told.result()),
        }
    }

    fn allocate(&self, bytes: usize) -> Result<Address> {
        // SAFETY: the memory is uninitialised; the pool's users write it before they read it.
        unsafe { result::malloc_sync(bytes) }.map(Address).map_err(|error| match self.error(error) {
            Error::OutOfMemory { place, free, largest, .. } => {
                Error::OutOfMemory { place, asked: bytes as u64, free, largest }
            }
            other => other,
        })
    }

    fn free(&self, address: Address) {
        // SAFETY: the pool returns each address that `allocate` gave once. A lost context frees its
        // memory as a whole.
        let _ = unsafe { result::free_sync(address.0) };
    }

    unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Result<()> {
        // Mapped, so that kernels can write words to it.
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: the caller vouches for the range.
        self.check(unsafe { sys::cuMemHostRegister_v2(start.as_ptr().cast(), bytes, flags) }.result())
    }

    fn unpin(&self, start: NonNull<u8>) {
        // SAFETY: a range that is not pinned causes an error and changes nothing.
        let _ = unsafe { sys::cuMemHostUnregister(start.as_ptr().cast()) };
    }

    fn is_pinned(&self, start: *const u8) -> bool {
        let mut kind: c_uint = 0;
        let mut which = [sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_MEMORY_TYPE];
        let mut targets = [(&raw mut kind).cast::<c_void>()];
        // SAFETY: writes one number, which stays zero for an address that the driver does not know.
        let asked = unsafe { sys::cuPointerGetAttributes(1, which.as_mut_ptr(), targets.as_mut_ptr(), start as u64) };
        asked == sys::CUresult::CUDA_SUCCESS && kind == sys::CUmemorytype::CU_MEMORYTYPE_HOST as c_uint
    }

    fn pinned_address(&self, byte: *const u8) -> Result<Address> {
        // Pinned memory has one address for host and device.
        Ok(Address(byte as u64))
    }

    unsafe fn lend(&self, start: *const u8, bytes: usize) -> Option<Address> {
        // All host memory that kernels read has one address for host and device.
        self.host_reads.include(start, bytes, || self.is_pinned(start)).then_some(Address(start as u64))
    }

    fn memory_info(&self) -> Result<(u64, u64)> {
        let (free, total) = result::mem_get_info().map_err(|error| self.error_without_memory(error))?;
        Ok((free as u64, total as u64))
    }

    fn compiler(&self) -> Arc<dyn Compiler> {
        Arc::clone(&self.compiler) as Arc<dyn Compiler>
    }

    fn load(&self, _name: &str, image: &[u8], entry: &str) -> Result<Function> {
        self.load_image(image, entry)
    }

    fn unload(&self, function: Function) {
        if let Some(module) = self.modules.borrow_mut().remove(&function.0) {
            // SAFETY: the module was loaded with the function, which is not launched any more and
            // not used by kernels in flight.
            let _ = unsafe { result::module::unload(module) };
        }
    }

    unsafe fn launch(
        &self,
        function: Function,
        launch: &Launch,
        arguments: &mut Arguments,
        stream: Stream,
    ) -> Result<()> {
        let [gx, gy, gz] = launch.grid_u32();
        let function = function.0.as_ptr().cast();
        // SAFETY: the caller vouches for the arguments.
        self.check(unsafe {
            result::launch_kernel(
                function,
                (gx, gy, gz),
                launch.block.into(),
                launch.shared_bytes,
                self.raw(stream),
                arguments.pointers(),
            )
        })
    }

    unsafe fn upload(&self, target: Address, source: *const u8, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: the caller vouches for both ranges.
        self.check(unsafe { sys::cuMemcpyHtoDAsync_v2(target.0, source.cast(), bytes, self.raw(stream)) }.result())
    }

    unsafe fn download(&self, target: *mut u8, source: Address, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: the caller vouches for both ranges.
        self.check(unsafe { sys::cuMemcpyDtoHAsync_v2(target.cast(), source.0, bytes, self.raw(stream)) }.result())
    }

    fn copy(&self, target: Address, source: Address, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: both addresses are allocations of this context, kept by the op in flight.
        self.check(unsafe { result::memcpy_dtod_async(target.0, source.0, bytes, self.raw(stream)) })
    }

    fn fill(&self, target: Address, byte: u8, bytes: usize, stream: Stream) -> Result<()> {
        // SAFETY: as above.
        self.check(unsafe { result::memset_d8_async(target.0, byte, bytes, self.raw(stream)) })
    }

    fn event(&self) -> Result<Event> {
        let event = result::event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(|error| self.error(error))?;
        NonNull::new(event.cast()).map(Event).ok_or_else(|| unavailable(self.device, "an event without a handle"))
    }

    fn record(&self, event: Event, stream: Stream) -> Result<()> {
        // SAFETY: events live as long as the context.
        self.check(unsafe { result::event::record(event.0.as_ptr().cast(), self.raw(stream)) })
    }

    fn is_past(&self, event: Event) -> Result<bool> {
        // SAFETY: as above.
        match unsafe { result::event::query(event.0.as_ptr().cast()) } {
            Ok(()) => Ok(true),
            Err(DriverError(sys::CUresult::CUDA_ERROR_NOT_READY)) => Ok(false),
            Err(error) => Err(self.error(error)),
        }
    }

    fn wait_for(&self, stream: Stream, event: Event) -> Result<()> {
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        self.check(unsafe { result::stream::wait_event(self.raw(stream), event.0.as_ptr().cast(), flags) })
    }

    fn between(&self, start: Event, stop: Event) -> Result<Duration> {
        // SAFETY: as above.
        let elapsed = unsafe { result::event::elapsed(start.0.as_ptr().cast(), stop.0.as_ptr().cast()) };
        let milliseconds = elapsed.map_err(|error| self.error(error))?;
        Ok(Duration::from_secs_f64(f64::from(milliseconds.max(0.0)) / 1e3))
    }

    fn synchronize(&self, stream: Stream) -> Result<()> {
        // SAFETY: the stream lives as long as the driver.
        self.check(unsafe { result::stream::synchronize(self.raw(stream)) })
    }

    fn products(&self) -> Option<&dyn Products> {
        self.libraries.as_ref()?.cublas().map(|library| library as &dyn Products)
    }

    fn convolutions(&self) -> Option<&dyn Convolutions> {
        self.libraries.as_ref()?.cudnn().map(|library| library as &dyn Convolutions)
    }

    fn transforms(&self) -> Option<&dyn Transforms> {
        self.libraries.as_ref()?.cufft().map(|library| library as &dyn Transforms)
    }

    fn sensors(&self) -> Option<&dyn Sensors> {
        self.libraries.as_ref().map(|libraries| libraries as &dyn Sensors)
    }

    fn captures(&self) -> Option<&dyn Captures> {
        Some(self)
    }
}

impl CudaDriver {
    /// Loads compiled code: a cubin, or PTX text with its closing zero, which the driver compiles
    /// further. Code that is newer than the driver supports is a typed error.
    fn load_image(&self, image: &[u8], entry: &str) -> Result<Function> {
        // SAFETY: the image is a complete cubin or PTX text with its closing zero.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }.map_err(|error| self.error(error))?;
        let function = self.function(module, entry);
        match &function {
            Ok(function) => drop(self.modules.borrow_mut().insert(function.0, module)),
            // SAFETY: the module was just loaded, and no function of it is in use.
            Err(_) => drop(unsafe { result::module::unload(module) }),
        }
        function
    }

    /// A function of a module, allowed to use all the block memory of the device.
    fn function(&self, module: sys::CUmodule, entry: &str) -> Result<Function> {
        let entry = CString::new(entry).map_err(|_| unavailable(self.device, "a kernel's name with a zero in it"))?;
        // SAFETY: the module was just loaded and lives as long as its function.
        let function = unsafe { result::module::get_function(module, entry) }.map_err(|error| self.error(error))?;
        let attribute = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
        let statically = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
        let mut used = 0;
        // SAFETY: the function belongs to the module above.
        unsafe { sys::cuFuncGetAttribute(&raw mut used, statically, function) };
        let most = self.properties.shared_bytes_max as c_int - used;
        // SAFETY: as above.
        self.check(unsafe { result::function::set_function_attribute(function, attribute, most) })?;
        NonNull::new(function.cast()).map(Function).ok_or_else(|| unavailable(self.device, "a kernel without a handle"))
    }

    /// Makes an error without asking for the free memory, for use in `memory_info` itself.
    fn error_without_memory(&self, error: DriverError) -> Error {
        Error::DeviceFault { device: self.device, reason: describe(error) }
    }
}

impl Drop for CudaDriver {
    fn drop(&mut self) {
        // Libraries release their handles while the context still exists.
        self.libraries = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code that is newer than the driver is a typed error, and the driver continues to work.
    #[test]
    fn code_that_is_newer_than_the_driver_is_refused() {
        let devices = match discover() {
            Ok(devices) => devices,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let driver = CudaDriver::open(&devices[0]).unwrap();
        for image in [&b".version 99.9\n.target sm_90\n.address_size 64\n\0"[..], b"neither cubin nor PTX\0"] {
            let error = driver.load_image(image, "nothing").unwrap_err();
            assert!(matches!(error, Error::DeviceFault { .. }), "{error}");
        }
        assert!(driver.memory_info().is_ok());
    }
}
