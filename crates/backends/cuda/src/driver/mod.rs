//! The floor between the engine and a driver: memory, streams, events and launches, with typed errors.
//!
//! [`cuda`] is the real one. [`emulated`] runs the same kernels on the host, so that every op's path from tensors to
//! launches is tested on machines without a GPU. Nothing above this module knows which of the two it has.

use std::any::Any;
use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use panoply_core::Result;

use crate::library::Libraries;

pub(crate) mod compiler;
pub(crate) mod cuda;
pub(crate) mod emulated;

/// An address in the device's memory.
pub(crate) type Address = u64;

/// What the device can do, as far as launches depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Properties {
    /// Streaming multiprocessors.
    pub(crate) multiprocessors: u32,
    /// Bytes of block memory that a launch may ask for.
    pub(crate) shared_bytes_max: u32,
    /// The compute capability, 90 for 9.0. The emulated device has 0.
    pub(crate) capability: u32,
}

/// The three queues of a device. Work on one is done in order; work on different ones overlaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stream {
    /// Host to device.
    Upload,
    /// Kernels and libraries.
    Compute,
    /// Device to host.
    Download,
}

/// A compiled kernel, loaded on the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Function(pub(crate) NonNull<c_void>);

/// A point in a stream. Made by [`Driver::event`], owned by the driver, and used again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Event(pub(crate) NonNull<c_void>);

/// What a device's memory stands on: it lasts while anybody holds this.
pub(crate) type Foundation = Arc<dyn Any + Send + Sync>;

/// The size of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    /// Bytes of block memory beyond what the kernel declares.
    pub(crate) shared_bytes: u32,
}

impl Launch {
    /// So many blocks of so many threads.
    pub(crate) fn new(blocks: u32, threads: u32) -> Launch {
        Launch { grid: [blocks, 1, 1], block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// With this grid.
    pub(crate) fn grid(blocks: [u32; 3], threads: u32) -> Launch {
        Launch { grid: blocks, block: [threads, 1, 1], shared_bytes: 0 }
    }

    /// With block memory sized by the launch.
    pub(crate) fn shared(mut self, bytes: u32) -> Launch {
        self.shared_bytes = bytes;
        self
    }
}

/// What an engine asks of its device. One thread owns it.
pub(crate) trait Driver {
    /// What the device can do.
    fn properties(&self) -> &Properties;

    /// Makes this the device that the calling thread's calls are about. A driver that was just opened is; where a thread has
    /// several, each call below counts on it.
    fn make_current(&self) -> Result<()>;

    /// What the device's memory stands on.
    fn foundation(&self) -> Foundation;

    /// Lets copies and kernels of this device read the memory of another, until that one's foundation is gone.
    fn reach(&self, other: &Foundation) -> Result<()>;

    /// Device memory. [`panoply_core::Error::OutOfMemory`] where there is none.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Gives device memory back. Nothing under way may use it.
    fn free(&self, address: Address);

    /// Pins host memory, so that the device reaches it by itself.
    ///
    /// # Safety
    /// The range must stay allocated until it is unpinned or the driver is dropped.
    unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Result<()>;

    /// Lets pinned memory go. Nothing under way may use it.
    fn unpin(&self, start: NonNull<u8>);

    /// Whether this host memory is pinned, by whomever.
    fn is_pinned(&self, start: *const u8) -> bool;

    /// Bytes of device memory that are free, and in all.
    fn memory_info(&self) -> Result<(u64, u64)>;

    /// Compiles a kernel's complete source and loads it; `entry` is the function's name in it.
    fn load(&self, name: &str, source: &str, entry: &str) -> Result<Function>;

    /// Starts a kernel.
    ///
    /// # Safety
    /// `arguments` must point to values of the kernel's parameter types, in order, and every address among them must be
    /// valid for what the kernel does until it has run.
    unsafe fn launch(
        &self,
        function: Function,
        launch: &Launch,
        arguments: &mut [*mut c_void],
        stream: Stream,
    ) -> Result<()>;

    /// Copies from the host. The host memory must stay as it is until the stream has passed this point.
    ///
    /// # Safety
    /// Both ranges must be valid until then.
    unsafe fn upload(&self, target: Address, source: *const u8, bytes: usize, stream: Stream) -> Result<()>;

    /// Copies to the host.
    ///
    /// # Safety
    /// Both ranges must be valid, and nobody may read the target, until the stream has passed this point.
    unsafe fn download(&self, target: *mut u8, source: Address, bytes: usize, stream: Stream) -> Result<()>;

    /// Copies within the device.
    fn copy(&self, target: Address, source: Address, bytes: usize, stream: Stream) -> Result<()>;

    /// Fills memory with one byte.
    fn fill(&self, target: Address, byte: u8, bytes: usize, stream: Stream) -> Result<()>;

    /// A new event. It lives as long as the driver.
    fn event(&self) -> Result<Event>;

    /// Marks where a stream is now.
    fn record(&self, event: Event, stream: Stream) -> Result<()>;

    /// Whether the stream has passed the mark.
    fn is_past(&self, event: Event) -> Result<bool>;

    /// Lets a stream wait for a mark of another.
    fn wait_for(&self, stream: Stream, event: Event) -> Result<()>;

    /// The time between two marks that have been passed.
    fn between(&self, start: Event, stop: Event) -> Result<Duration>;

    /// Waits for everything on a stream.
    fn synchronize(&self, stream: Stream) -> Result<()>;

    /// The vendor's libraries, each loaded when it is first asked for.
    fn libraries(&self) -> Option<&Libraries>;
}
