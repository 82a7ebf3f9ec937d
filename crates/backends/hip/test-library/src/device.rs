//! The interface between the exported C functions and the device that runs them.

use std::ffi::{c_int, c_void};
use std::sync::{Arc, OnceLock};

use crate::cuda::Cuda;
use crate::emulated::EmulatedDevices;

/// A handle to any object.
pub type Handle = *mut c_void;
/// A value or a `hipError_t`.
pub type HipResult<T = ()> = Result<T, c_int>;

pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const NO_DEVICE: c_int = 100;
pub const INVALID_DEVICE: c_int = 101;
pub const INVALID_IMAGE: c_int = 200;
pub const NOT_FOUND: c_int = 500;
pub const LAUNCH_FAILURE: c_int = 719;

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

/// A loop that one of the vendor's libraries queues on a stream.
pub type StreamWork = Arc<dyn Fn()>;

/// The direction of a copy.
#[derive(Clone, Copy)]
pub enum CopyDirection {
    ToDevice,
    ToHost,
    Within,
}

/// The size of a launch.
#[derive(Clone, Copy)]
pub struct Size {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    pub shared_bytes: u32,
}

/// An implementation of HIP. All handles that it receives were created by it.
pub trait Device: Send + Sync {
    fn count(&self) -> HipResult<c_int>;
    fn select(&self, device: c_int) -> HipResult;
    fn name(&self, device: c_int) -> HipResult<String>;
    fn architecture(&self, device: c_int) -> HipResult<String>;
    fn total_bytes(&self, device: c_int) -> HipResult<usize>;
    fn attribute(&self, device: c_int, which: c_int) -> HipResult<c_int>;
    /// A number that changes whenever compiled code may change. Caches of compiled kernels depend
    /// on it.
    fn revision(&self) -> u32;
    fn can_reach(&self, device: c_int, peer: c_int) -> HipResult<bool>;
    fn reach(&self, peer: c_int) -> HipResult;

    fn allocate(&self, bytes: usize) -> HipResult<Handle>;
    fn free(&self, address: Handle) -> HipResult;
    fn memory(&self) -> HipResult<(usize, usize)>;
    fn pin(&self, start: Handle, bytes: usize) -> HipResult;
    fn unpin(&self, start: Handle) -> HipResult;
    fn pinned_address(&self, host: Handle) -> HipResult<Handle>;
    unsafe fn copy(
        &self,
        way: CopyDirection,
        target: Handle,
        source: Handle,
        bytes: usize,
        stream: Handle,
    ) -> HipResult;
    unsafe fn fill(&self, target: Handle, byte: u8, bytes: usize, stream: Handle) -> HipResult;

    fn stream(&self) -> HipResult<Handle>;
    unsafe fn destroy_stream(&self, stream: Handle) -> HipResult;
    unsafe fn synchronize(&self, stream: Handle) -> HipResult;
    unsafe fn wait(&self, stream: Handle, event: Handle) -> HipResult;
    unsafe fn begin_capture(&self, stream: Handle) -> HipResult;
    unsafe fn end_capture(&self, stream: Handle) -> HipResult<Handle>;
    unsafe fn instantiate(&self, graph: Handle) -> HipResult<Handle>;
    unsafe fn destroy_graph(&self, graph: Handle) -> HipResult;
    unsafe fn replay(&self, made: Handle, stream: Handle) -> HipResult;
    unsafe fn release(&self, made: Handle) -> HipResult;

    fn event(&self) -> HipResult<Handle>;
    unsafe fn destroy_event(&self, event: Handle) -> HipResult;
    unsafe fn record(&self, event: Handle, stream: Handle) -> HipResult;
    unsafe fn query(&self, event: Handle) -> HipResult;
    unsafe fn elapsed_ms(&self, start: Handle, stop: Handle) -> HipResult<f32>;

    unsafe fn load(&self, image: *const c_void) -> HipResult<Handle>;
    unsafe fn unload(&self, module: Handle) -> HipResult;
    unsafe fn function(&self, module: Handle, name: &str) -> HipResult<Handle>;
    unsafe fn launch(&self, function: Handle, size: Size, arguments: *mut Handle, stream: Handle) -> HipResult;

    /// Compiles HIP source for an architecture. The error is the compiler's log.
    fn compile(&self, source: &str, architecture: &str) -> Result<Vec<u8>, String>;

    /// Whether the device's memory is the host's, so that the vendor's other libraries can be plain
    /// loops.
    fn is_host(&self) -> bool;
    /// Queues such a loop on a stream.
    unsafe fn queue(&self, stream: Handle, work: StreamWork) -> HipResult;
}

/// The device of this process: CUDA if `PANOPLY_HIP_TEST` is `cuda`, otherwise the emulated device.
pub fn device() -> &'static dyn Device {
    static DEVICE: OnceLock<Box<dyn Device>> = OnceLock::new();
    &**DEVICE.get_or_init(|| {
        let is_cuda = std::env::var("PANOPLY_HIP_TEST").is_ok_and(|wanted| wanted == "cuda");
        if is_cuda { Box::new(Cuda) } else { Box::new(EmulatedDevices::default()) }
    })
}
