//! HIP on CUDA's driver, nearly call by call: an NVIDIA GPU runs what an AMD GPU would, with warps
//! of 32 lanes. The errors have the same numbers in both APIs.

use std::cell::Cell;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::ptr::null_mut;

use cudarc::driver::sys;
use cudarc::nvrtc;

use crate::device::{
    ATTRIBUTE_CAN_MAP_HOST_MEMORY, ATTRIBUTE_INTEGRATED, ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK,
    ATTRIBUTE_MAX_THREADS_PER_BLOCK, ATTRIBUTE_MULTIPROCESSOR_COUNT, ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
    ATTRIBUTE_PCI_BUS_ID, ATTRIBUTE_PCI_DEVICE_ID, ATTRIBUTE_PCI_DOMAIN_ID, ATTRIBUTE_WARP_SIZE, CopyDirection, Device,
    Handle, HipResult, INVALID_VALUE, NO_DEVICE, Size, StreamWork,
};

const WORDS: &str = include_str!("cuda_words.h");

thread_local! {
    /// The current device of this thread.
    static CURRENT: Cell<c_int> = const { Cell::new(0) };
}

/// CUDA's driver.
pub struct Cuda;

fn check(status: sys::CUresult) -> HipResult {
    if status == sys::CUresult::CUDA_SUCCESS { Ok(()) } else { Err(status as c_int) }
}

/// Calls `call` and returns the value that it writes through its pointer.
fn made<T: Copy>(start: T, call: impl FnOnce(*mut T) -> sys::CUresult) -> HipResult<T> {
    let mut value = start;
    check(call(&raw mut value))?;
    Ok(value)
}

fn device(index: c_int) -> HipResult<sys::CUdevice> {
    // SAFETY: the call writes one number.
    made(0, |place| unsafe { sys::cuDeviceGet(place, index) })
}

fn number(index: c_int, which: sys::CUdevice_attribute) -> HipResult<c_int> {
    let device = device(index)?;
    // SAFETY: the driver returned the device. The call writes one number.
    made(0, |place| unsafe { sys::cuDeviceGetAttribute(place, which, device) })
}

/// The primary context of a device. It is never released, like HIP's.
fn context(index: c_int) -> HipResult<sys::CUcontext> {
    let device = device(index)?;
    // SAFETY: as above. The call writes one handle.
    made(null_mut(), |place| unsafe { sys::cuDevicePrimaryCtxRetain(place, device) })
}

fn architecture(index: c_int) -> HipResult<c_int> {
    use sys::CUdevice_attribute as A;
    let major = number(index, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    Ok(major * 10 + number(index, A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?)
}

impl Device for Cuda {
    fn count(&self) -> HipResult<c_int> {
        // SAFETY: loads the driver's library by name. `cuInit` takes no flags, and the last call
        // writes one number.
        unsafe {
            if !sys::is_culib_present() {
                return Err(NO_DEVICE);
            }
            check(sys::cuInit(0))?;
            made(0, |place| sys::cuDeviceGetCount(place))
        }
    }

    fn select(&self, device: c_int) -> HipResult {
        let context = context(device)?;
        CURRENT.set(device);
        // SAFETY: the driver returned the context.
        check(unsafe { sys::cuCtxSetCurrent(context) })
    }

    fn name(&self, index: c_int) -> HipResult<String> {
        let device = device(index)?;
        let mut name = [0_u8; 256];
        // SAFETY: the call writes at most 255 bytes to a buffer of 256.
        check(unsafe { sys::cuDeviceGetName(name.as_mut_ptr().cast::<c_char>(), 255, device) })?;
        let told: Vec<u8> = name.into_iter().take_while(|byte| *byte != 0).collect();
        Ok(format!("{} through HIP's test library", String::from_utf8_lossy(&told)))
    }

    fn architecture(&self, index: c_int) -> HipResult<String> {
        Ok(format!("sm_{}", architecture(index)?))
    }

    fn total_bytes(&self, index: c_int) -> HipResult<usize> {
        let device = device(index)?;
        // SAFETY: the call writes one number.
        made(0, |place| unsafe { sys::cuDeviceTotalMem_v2(place, device) })
    }

    fn attribute(&self, index: c_int, which: c_int) -> HipResult<c_int> {
        use sys::CUdevice_attribute as A;
        let which = match which {
            ATTRIBUTE_CAN_MAP_HOST_MEMORY => A::CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY,
            ATTRIBUTE_INTEGRATED => A::CU_DEVICE_ATTRIBUTE_INTEGRATED,
            ATTRIBUTE_PAGEABLE_MEMORY_ACCESS => A::CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS,
            ATTRIBUTE_MAX_THREADS_PER_BLOCK => A::CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK,
            ATTRIBUTE_MULTIPROCESSOR_COUNT => A::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT,
            ATTRIBUTE_PCI_BUS_ID => A::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID,
            ATTRIBUTE_PCI_DEVICE_ID => A::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID,
            ATTRIBUTE_PCI_DOMAIN_ID => A::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID,
            ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK => A::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
            ATTRIBUTE_WARP_SIZE => A::CU_DEVICE_ATTRIBUTE_WARP_SIZE,
            _ => return Err(INVALID_VALUE),
        };
        number(index, which)
    }

    fn revision(&self) -> u32 {
        WORDS.bytes().fold(7, |sum: u32, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte)))
    }

    fn can_reach(&self, index: c_int, peer: c_int) -> HipResult<bool> {
        let (reader, owner) = (device(index)?, device(peer)?);
        // SAFETY: the driver returned both devices. The call writes one number.
        Ok(made(0, |place| unsafe { sys::cuDeviceCanAccessPeer(place, reader, owner) })? != 0)
    }

    fn reach(&self, peer: c_int) -> HipResult {
        let context = context(peer)?;
        // SAFETY: the driver returned the context.
        check(unsafe { sys::cuCtxEnablePeerAccess(context, 0) })
    }

    fn allocate(&self, bytes: usize) -> HipResult<Handle> {
        // SAFETY: the call writes one address.
        made(0, |place| unsafe { sys::cuMemAlloc_v2(place, bytes) }).map(|address| address as Handle)
    }

    fn free(&self, address: Handle) -> HipResult {
        // SAFETY: the caller keeps HIP's contract, here and below.
        check(unsafe { sys::cuMemFree_v2(address as u64) })
    }

    fn memory(&self) -> HipResult<(usize, usize)> {
        let mut total = 0;
        // SAFETY: the call writes two numbers.
        let free = made(0, |free| unsafe { sys::cuMemGetInfo_v2(free, &raw mut total) })?;
        Ok((free, total))
    }

    fn pin(&self, start: Handle, bytes: usize) -> HipResult {
        let flags = sys::CU_MEMHOSTREGISTER_PORTABLE | sys::CU_MEMHOSTREGISTER_DEVICEMAP;
        // SAFETY: as above.
        check(unsafe { sys::cuMemHostRegister_v2(start, bytes, flags) })
    }

    fn unpin(&self, start: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuMemHostUnregister(start) })
    }

    fn pinned_address(&self, host: Handle) -> HipResult<Handle> {
        // SAFETY: the call writes one address.
        made(0, |place| unsafe { sys::cuMemHostGetDevicePointer_v2(place, host, 0) }).map(|address| address as Handle)
    }

    unsafe fn copy(
        &self,
        way: CopyDirection,
        target: Handle,
        source: Handle,
        bytes: usize,
        stream: Handle,
    ) -> HipResult {
        // SAFETY: as above.
        check(unsafe {
            match way {
                CopyDirection::ToDevice => sys::cuMemcpyHtoDAsync_v2(target as u64, source, bytes, stream.cast()),
                CopyDirection::ToHost => sys::cuMemcpyDtoHAsync_v2(target, source as u64, bytes, stream.cast()),
                CopyDirection::Within => sys::cuMemcpyDtoDAsync_v2(target as u64, source as u64, bytes, stream.cast()),
            }
        })
    }

    unsafe fn fill(&self, target: Handle, byte: u8, bytes: usize, stream: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuMemsetD8Async(target as u64, byte, bytes, stream.cast()) })
    }

    fn stream(&self) -> HipResult<Handle> {
        let flags = sys::CUstream_flags::CU_STREAM_NON_BLOCKING as c_uint;
        // SAFETY: the call writes one handle.
        made(null_mut(), |place| unsafe { sys::cuStreamCreate(place, flags) }).map(<*mut _>::cast)
    }

    unsafe fn destroy_stream(&self, stream: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuStreamDestroy_v2(stream.cast()) })
    }

    unsafe fn synchronize(&self, stream: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuStreamSynchronize(stream.cast()) })
    }

    unsafe fn wait(&self, stream: Handle, event: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuStreamWaitEvent(stream.cast(), event.cast(), 0) })
    }

    unsafe fn begin_capture(&self, stream: Handle) -> HipResult {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: as above.
        check(unsafe { sys::cuStreamBeginCapture_v2(stream.cast(), mode) })
    }

    unsafe fn end_capture(&self, stream: Handle) -> HipResult<Handle> {
        // SAFETY: as above. The call writes one handle.
        made(null_mut(), |place| unsafe { sys::cuStreamEndCapture(stream.cast(), place) }).map(<*mut _>::cast)
    }

    unsafe fn instantiate(&self, graph: Handle) -> HipResult<Handle> {
        // SAFETY: as above.
        made(null_mut(), |place| unsafe { sys::cuGraphInstantiateWithFlags(place, graph.cast(), 0) })
            .map(<*mut _>::cast)
    }

    unsafe fn destroy_graph(&self, graph: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuGraphDestroy(graph.cast()) })
    }

    unsafe fn replay(&self, made: Handle, stream: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuGraphLaunch(made.cast(), stream.cast()) })
    }

    unsafe fn release(&self, made: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuGraphExecDestroy(made.cast()) })
    }

    fn event(&self) -> HipResult<Handle> {
        // SAFETY: the call writes one handle. No flags are set.
        made(null_mut(), |place| unsafe { sys::cuEventCreate(place, 0) }).map(<*mut _>::cast)
    }

    unsafe fn destroy_event(&self, event: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuEventDestroy_v2(event.cast()) })
    }

    unsafe fn record(&self, event: Handle, stream: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuEventRecord(event.cast(), stream.cast()) })
    }

    unsafe fn query(&self, event: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuEventQuery(event.cast()) })
    }

    unsafe fn elapsed_ms(&self, start: Handle, stop: Handle) -> HipResult<f32> {
        // SAFETY: as above. The call writes one number.
        made(0.0, |place| unsafe { sys::cuEventElapsedTime_v2(place, start.cast(), stop.cast()) })
    }

    unsafe fn load(&self, image: *const c_void) -> HipResult<Handle> {
        // SAFETY: as above. The call writes one handle.
        made(null_mut(), |place| unsafe { sys::cuModuleLoadData(place, image) }).map(<*mut _>::cast)
    }

    unsafe fn unload(&self, module: Handle) -> HipResult {
        // SAFETY: as above.
        check(unsafe { sys::cuModuleUnload(module.cast()) })
    }

    /// Allows the function all shared memory of the device. CUDA requires an explicit request, HIP
    /// does not.
    unsafe fn function(&self, module: Handle, name: &str) -> HipResult<Handle> {
        let name = CString::new(name).map_err(|_| INVALID_VALUE)?;
        use sys::CUfunction_attribute as A;
        // SAFETY: as above. The calls write one handle and one number.
        unsafe {
            let function = made(null_mut(), |place| sys::cuModuleGetFunction(place, module.cast(), name.as_ptr()))?;
            let statically = A::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES;
            let used = made(0, |place| sys::cuFuncGetAttribute(place, statically, function))?;
            let most = self.attribute(CURRENT.get(), ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK)? - used;
            let dynamically = A::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            check(sys::cuFuncSetAttribute(function, dynamically, most))?;
            Ok(function.cast())
        }
    }

    unsafe fn launch(&self, function: Handle, size: Size, arguments: *mut Handle, stream: Handle) -> HipResult {
        let Size { grid: [gx, gy, gz], block: [bx, by, bz], shared_bytes } = size;
        // SAFETY: as above.
        check(unsafe {
            let stream = stream.cast();
            sys::cuLaunchKernel(function.cast(), gx, gy, gz, bx, by, bz, shared_bytes, stream, arguments, null_mut())
        })
    }

    fn compile(&self, source: &str, architecture: &str) -> Result<Vec<u8>, String> {
        // SAFETY: searches the library by name.
        if !unsafe { nvrtc::sys::is_culib_present() } {
            return Err("libnvrtc was not found".to_owned());
        }
        let text = CString::new(format!("{WORDS}\n#line 1 \"kernel\"\n{source}")).map_err(|error| error.to_string())?;
        let program = nvrtc::result::create_program(&text, None).map_err(|error| error.to_string())?;
        let target = format!("--gpu-architecture={architecture}");
        // `--fmad=false` is needed because HIP disables contraction with pragmas that NVRTC does
        // not know.
        let options = [target.as_str(), "--std=c++17", "--disable-warnings", "--fmad=false"].map(str::to_owned);
        // SAFETY: the program was just created, and is destroyed below.
        let compiled = unsafe { nvrtc::result::compile_program(program, &options) };
        let image = match compiled {
            Ok(()) => cubin(program),
            // SAFETY: as above.
            Err(error) => Err(unsafe { nvrtc::result::get_program_log(program) }.map_or_else(
                |_| error.to_string(),
                |log| log.iter().map(|byte| *byte as u8 as char).take_while(|letter| *letter != '\0').collect(),
            )),
        };
        // SAFETY: the program is not used again.
        let _ = unsafe { nvrtc::result::destroy_program(program) };
        image
    }

    fn is_host(&self) -> bool {
        false
    }

    unsafe fn queue(&self, _stream: Handle, _work: StreamWork) -> HipResult {
        Err(INVALID_VALUE)
    }
}

fn cubin(program: nvrtc::sys::nvrtcProgram) -> Result<Vec<u8>, String> {
    let mut bytes = 0;
    // SAFETY: the program has been compiled for a real architecture. The call writes one number.
    unsafe { nvrtc::sys::nvrtcGetCUBINSize(program, &raw mut bytes) }.result().map_err(|error| error.to_string())?;
    let mut image = vec![0_u8; bytes];
    // SAFETY: the buffer has the size that the call above returned.
    unsafe { nvrtc::sys::nvrtcGetCUBIN(program, image.as_mut_ptr().cast()) }.result().map_err(|e| e.to_string())?;
    Ok(image)
}
