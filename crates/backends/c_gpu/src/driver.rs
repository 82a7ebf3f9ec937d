//! The layer between the engine and an API: memory, streams, events and launches, with typed
//! errors.
//!
//! An API of the C dialect (CUDA, HIP, OpenCL) implements [`Driver`] for one opened device, and
//! [`Compiler`](crate::compile::Compiler) for its kernels; the [emulated](crate::emulated) driver
//! runs the same kernels on the host. Code above this module does not know which driver it uses.
//! One thread owns a driver, so its methods take no lock. A driver is a trait object, because a
//! virtual call costs nothing compared with a launch.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ops::{Add, BitOr};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use panoply_core::Result;

use crate::arguments::Arguments;
use crate::compile::Compiler;
use crate::library::{Convolutions, Products, Sensors, Transforms};

/// A 64-bit address in device memory, interpreted by the driver.
///
/// If memory has addresses (CUDA, HIP, OpenCL with shared virtual memory), this is a pointer. A
/// driver without addresses (OpenCL buffers) gives each allocation a number in the upper bits and
/// counts bytes in the lower [`Address::OFFSET_BITS`]; the driver reports that in
/// [`Properties::pointers`] and separates the two parts in its calls. In both cases allocations
/// begin at multiples of 256 bytes, adding bytes advances the address, and the address has the same
/// alignment as the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// No memory: kernels get a null pointer.
    pub const NULL: Address = Address(0);
    /// Number of offset bits in an address that is not a pointer: an allocation has at most one
    /// tebibyte.
    pub const OFFSET_BITS: u32 = 40;

    /// The address of a byte in an allocation that has a number instead of an address.
    pub const fn of_buffer(number: u32, offset: u64) -> Address {
        Address(((number as u64) << Address::OFFSET_BITS) | offset)
    }

    /// The number of the allocation, and the byte offset in it.
    pub const fn in_buffer(self) -> (u32, u64) {
        ((self.0 >> Address::OFFSET_BITS) as u32, self.0 & ((1 << Address::OFFSET_BITS) - 1))
    }

    /// Whether the address is null.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Whether elements of this alignment can begin at the address.
    pub const fn is_multiple_of(self, bytes: u64) -> bool {
        self.0.is_multiple_of(bytes)
    }
}

/// Advances the address by bytes.
impl Add<usize> for Address {
    type Output = Address;

    fn add(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

/// Combines two addresses for alignment tests: a power of two divides the result only if it
/// divides both.
impl BitOr for Address {
    type Output = Address;

    fn bitor(self, other: Address) -> Address {
        Address(self.0 | other.0)
    }
}

impl fmt::LowerHex for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::LowerHex::fmt(&self.0, f)
    }
}

/// The device's properties that affect launches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Number of multiprocessors, which limits the number of concurrent blocks.
    pub multiprocessors: u32,
    /// Maximum bytes of block memory per launch.
    pub shared_bytes_max: u32,
    /// Maximum threads per block: 256 or more.
    pub block_threads_max: u32,
    /// Lanes per warp: 32 or 64; 1 if threads cannot see each other's values.
    pub warp_lanes: u32,
    /// Whether kernels may load addresses from memory: tables of pointers for many ops in one
    /// launch, and for an interpreted map. Otherwise ops run one by one, except ops whose memory is
    /// in [`Driver::shared_buffer`].
    pub pointers: bool,
    /// Whether warps of 32 multiply tiles of 16 × 8, and copies to block memory run asynchronously:
    /// the prelude's `multiply_…`, `load_matrices`, `copy_async_16` and `gate`. Otherwise kernels
    /// of plain arithmetic do the same.
    pub matrix_tiles: bool,
    /// Whether warps have an instruction that multiplies tiles of 16 × 16 × 16: the prelude's
    /// `tile16`. Otherwise plain arithmetic is faster.
    pub tiles_of_16: bool,
    /// Whether four warps multiply together from block memory: `group_multiply.h`.
    pub warp_groups: bool,
}

impl Properties {
    /// A small device without special features, for tests of code that depends on properties.
    #[cfg(test)]
    pub(crate) fn plain() -> Properties {
        Properties {
            multiprocessors: 1,
            shared_bytes_max: 64 << 10,
            block_threads_max: 1024,
            warp_lanes: 32,
            pointers: true,
            matrix_tiles: false,
            tiles_of_16: false,
            warp_groups: false,
        }
    }
}

/// Maximum number of lanes: pairs of a compute and a download stream on which independent ops
/// overlap. NVIDIA's driver gives a process eight queues to the device, and streams beyond that
/// number wait for each other: three lanes and the upload stream take seven.
pub const LANES_MAX: usize = 3;

/// The queues of a device. Work on one stream runs in order; work on different streams overlaps.
/// Each lane has its own compute stream and its own download stream; [`Driver::use_lane`] chooses
/// the lane whose streams are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Host to device; one for all lanes.
    Upload,
    /// Kernels and libraries, on the lane in use.
    Compute,
    /// Device to host, on the lane in use.
    Download,
}

/// A compiled kernel, loaded on the device. The driver owns the memory behind the pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(pub NonNull<c_void>);

/// A point in a stream. Created by [`Driver::event`], owned by the driver, and reusable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub NonNull<c_void>);

/// A captured sequence of work of the compute stream. The driver owns the memory behind the
/// pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapturedGraph(pub NonNull<c_void>);

/// Capturing of the compute stream: queued work is recorded, and can then be queued repeatedly as
/// one unit.
pub trait Captures {
    /// Starts a recording: from now on, work queued on the compute stream is recorded instead of
    /// run.
    fn begin(&self) -> Result<()>;

    /// Ends the recording. After an error nothing is recorded, and the stream works as before.
    fn end(&self) -> Result<CapturedGraph>;

    /// Queues the recorded work on the compute stream.
    ///
    /// # Safety
    /// All recorded addresses and kernels must be valid until the work has run.
    unsafe fn replay(&self, captured: CapturedGraph) -> Result<()>;

    /// Releases a recording. No work in flight may use it.
    fn release(&self, captured: CapturedGraph);
}

/// Shared ownership of a device's context: device memory stays valid while a clone of the handle
/// exists.
pub type ContextHandle = Arc<dyn Any + Send + Sync>;

/// Maximum number of blocks along each axis of a grid.
pub const GRID_MAX: [usize; 3] = [i32::MAX as usize, GRID_YZ_MAX, GRID_YZ_MAX];
/// Maximum number of blocks along the second and the third axis.
pub const GRID_YZ_MAX: usize = 65_535;

/// The size of a launch. The number of blocks is unlimited here; a grid that is too large is
/// refused at launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along each axis.
    pub blocks: [usize; 3],
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// Bytes of block memory in addition to those that the kernel declares.
    pub shared_bytes: u32,
}

impl Launch {
    /// A launch of `blocks` blocks of `threads` threads, all along the first axis.
    pub fn new(blocks: usize, threads: usize) -> Launch {
        Launch::grid([blocks, 1, 1], threads)
    }

    /// A launch with this grid.
    pub fn grid(blocks: [usize; 3], threads: usize) -> Launch {
        Launch { blocks, block: [threads as u32, 1, 1], shared_bytes: 0 }
    }

    /// Sets the bytes of dynamic block memory.
    pub fn shared(mut self, bytes: usize) -> Launch {
        self.shared_bytes = bytes as u32;
        self
    }

    /// The grid in the form that drivers take. Larger grids were refused before.
    pub fn grid_u32(&self) -> [u32; 3] {
        self.blocks.map(|count| count as u32)
    }
}

/// The operations that an engine needs from its device. One thread owns the driver.
pub trait Driver {
    /// The device's properties.
    fn properties(&self) -> &Properties;

    /// Makes this device the current one of the calling thread. A driver that was just opened is
    /// current. If a thread has several devices, every call below requires its device to be
    /// current.
    fn make_current(&self) -> Result<()>;

    /// Number of lanes, at most [`LANES_MAX`].
    fn lanes(&self) -> usize {
        1
    }

    /// From now on [`Stream::Compute`] and [`Stream::Download`] mean the streams of this lane, also
    /// for captures and libraries. The first lane is in use at the beginning. Queues nothing.
    fn use_lane(&self, _lane: usize) {}

    /// The compiler of the device's kernels, usable on any thread.
    fn compiler(&self) -> Arc<dyn Compiler>;

    /// Loads a compiled image; `entry` is the kernel's name in it.
    fn load(&self, name: &str, image: &[u8], entry: &str) -> Result<Function>;

    /// Unloads a kernel. No work in flight may use it.
    fn unload(&self, function: Function);

    /// Starts a kernel.
    ///
    /// # Safety
    /// The arguments must match the kernel's parameters in order. Every address among them must be
    /// valid for the kernel's accesses until the kernel has run.
    unsafe fn launch(
        &self,
        function: Function,
        launch: &Launch,
        arguments: &mut Arguments,
        stream: Stream,
    ) -> Result<()>;

    /// Allocates device memory. [`panoply_core::Error::OutOfMemory`] if there is not enough.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Frees device memory. No work in flight may use it.
    fn free(&self, address: Address);

    /// Free and total bytes of device memory.
    fn memory_info(&self) -> Result<(u64, u64)>;

    /// Pins host memory, so that the device can access it directly.
    ///
    /// # Safety
    /// The range must stay allocated until it is unpinned or the driver is dropped.
    unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Result<()>;

    /// Unpins host memory. No work in flight may use it.
    fn unpin(&self, start: NonNull<u8>);

    /// Whether this host memory is pinned, by any owner.
    fn is_pinned(&self, start: *const u8) -> bool;

    /// The device address of a byte of pinned host memory.
    fn pinned_address(&self, byte: *const u8) -> Result<Address>;

    /// The buffer that small allocations share, on a device whose memory has no addresses. Tables
    /// for kernels hold offsets from the beginning of this buffer, so only allocations in this
    /// buffer may be referenced from tables.
    fn shared_buffer(&self) -> Option<Address> {
        None
    }

    /// Lends host memory to kernels in place, on a device that shares memory with the host and if
    /// that is worthwhile. `None` if the memory must be copied. [`Driver::take_back`] ends the
    /// loan.
    ///
    /// # Safety
    /// The range must not change until then.
    unsafe fn lend(&self, _start: *const u8, _bytes: usize) -> Option<Address> {
        None
    }

    /// Ends a loan of [`Driver::lend`]. No work in flight may read the memory.
    fn take_back(&self, _address: Address) {}

    /// Copies from the host. Pinned memory must not change until the stream has passed this point;
    /// other memory has been read when this returns.
    ///
    /// # Safety
    /// Both ranges must be valid until then.
    unsafe fn upload(&self, target: Address, source: *const u8, bytes: usize, stream: Stream) -> Result<()>;

    /// Copies to the host.
    ///
    /// # Safety
    /// Both ranges must be valid, and the target must not be read, until the stream has passed this
    /// point.
    unsafe fn download(&self, target: *mut u8, source: Address, bytes: usize, stream: Stream) -> Result<()>;

    /// Copies within the device, or from a device that was [reached](Driver::reach).
    fn copy(&self, target: Address, source: Address, bytes: usize, stream: Stream) -> Result<()>;

    /// Fills memory with one byte.
    fn fill(&self, target: Address, byte: u8, bytes: usize, stream: Stream) -> Result<()>;

    /// Creates an event, which lives as long as the driver.
    fn event(&self) -> Result<Event>;

    /// Records the present end of a stream in the event.
    fn record(&self, event: Event, stream: Stream) -> Result<()>;

    /// Whether the stream has passed the event.
    fn is_past(&self, event: Event) -> Result<bool>;

    /// Makes a stream wait for an event of another stream.
    fn wait_for(&self, stream: Stream, event: Event) -> Result<()>;

    /// The time between two events that have been passed.
    fn between(&self, start: Event, stop: Event) -> Result<Duration>;

    /// Waits for everything on a stream.
    fn synchronize(&self, stream: Stream) -> Result<()>;

    /// Shared ownership of the device's context.
    fn context_handle(&self) -> ContextHandle;

    /// Lets copies and kernels of this device read the memory of another device, while the other's
    /// context handle exists.
    fn reach(&self, other: &ContextHandle) -> Result<()>;

    /// Capturing of queued work, if the API supports it.
    fn captures(&self) -> Option<&dyn Captures> {
        None
    }

    /// The vendor's matrix products, if available.
    fn products(&self) -> Option<&dyn Products> {
        None
    }

    /// The vendor's convolutions, if available.
    fn convolutions(&self) -> Option<&dyn Convolutions> {
        None
    }

    /// The vendor's Fourier transforms, if available.
    fn transforms(&self) -> Option<&dyn Transforms> {
        None
    }

    /// The vendor's sensors, if available.
    fn sensors(&self) -> Option<&dyn Sensors> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_without_an_address_is_a_number_and_an_offset() {
        let place = Address::of_buffer(7, 512) + 48;
        assert_eq!(place.in_buffer(), (7, 560));
        assert!(place.is_multiple_of(16) && !place.is_multiple_of(256));
        assert!(Address::NULL.is_null() && !place.is_null());
    }
}
