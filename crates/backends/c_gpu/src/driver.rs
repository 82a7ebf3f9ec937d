//! The floor between the engine and an API: memory, streams, events and launches, with typed errors.
//!
//! An API of the C dialect (CUDA, HIP, OpenCL) implements [`Driver`] for one opened device, and [`Compiler`](crate::compile::Compiler)
//! for its kernels; the [emulated](crate::emulated) one runs the same kernels on the host. Nothing above this module knows which
//! of them it has. One thread owns a driver, so none of its methods takes a lock; a driver is a trait object, because a virtual
//! call is nothing beside a launch.

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

/// A place in a device's memory: 64 bits whose meaning is the driver's.
///
/// Where memory has addresses (CUDA, HIP, OpenCL with shared virtual memory) it is a pointer. A driver without them (OpenCL's
/// buffers) gives each allocation a number in the upper bits and counts bytes in the lower [`Address::OFFSET_BITS`]; it says so in
/// [`Properties::pointers`], and takes both apart in its calls. Either way allocations begin on multiples of 256 bytes, an address
/// moves on by adding bytes, and it is a multiple of whatever the place is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(transparent)]
pub struct Address(pub u64);

impl Address {
    /// No place: kernels get a null pointer.
    pub const NULL: Address = Address(0);
    /// Bits of the offset where an address is not a pointer: an allocation has at most a tebibyte.
    pub const OFFSET_BITS: u32 = 40;

    /// A place in an allocation that has a number instead of an address.
    pub const fn of_buffer(number: u32, offset: u64) -> Address {
        Address(((number as u64) << Address::OFFSET_BITS) | offset)
    }

    /// The number of the allocation, and the bytes from its beginning.
    pub const fn in_buffer(self) -> (u32, u64) {
        ((self.0 >> Address::OFFSET_BITS) as u32, self.0 & ((1 << Address::OFFSET_BITS) - 1))
    }

    /// Whether it is no place.
    pub const fn is_null(self) -> bool {
        self.0 == 0
    }

    /// Whether elements of this alignment can begin here.
    pub const fn is_multiple_of(self, bytes: u64) -> bool {
        self.0.is_multiple_of(bytes)
    }
}

/// So many bytes further on.
impl Add<usize> for Address {
    type Output = Address;

    fn add(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

/// What divides this divides both.
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

/// What the device can do, as far as launches depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Properties {
    /// Multiprocessors: how many blocks run at once depends on it.
    pub multiprocessors: u32,
    /// Bytes of block memory that a launch may ask for.
    pub shared_bytes_max: u32,
    /// Threads of a block, at most: 256 or more.
    pub block_threads_max: u32,
    /// Lanes of a warp: 32, or 64; 1 where threads do not see each other's values.
    pub warp_lanes: u32,
    /// Whether kernels may find addresses in memory: tables of pointers, for many ops in one launch, and those of a map that is
    /// interpreted. Without it ops run one by one, but for those that are in [`Driver::shared_buffer`].
    pub pointers: bool,
    /// Whether warps of 32 multiply tiles of 16 × 8, and copies to the block's memory go on by themselves: the prelude's `multiply_…`,
    /// `load_matrices`, `copy_async_16` and `gate`. Without it, kernels of plain arithmetic do the same.
    pub matrix_tiles: bool,
    /// Whether warps multiply tiles of 16 × 16 × 16 by an instruction: the prelude's `tile16`. Without it plain arithmetic is faster.
    pub tiles_of_16: bool,
    /// Whether four warps multiply together out of the block's memory: `group_multiply.h`.
    pub warp_groups: bool,
}

impl Properties {
    /// A small device without anything of its own, for tests of what depends on properties.
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

/// The three queues of a device. Work on one is done in order; work on different ones overlaps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    /// Host to device.
    Upload,
    /// Kernels and libraries.
    Compute,
    /// Device to host.
    Download,
}

/// A compiled kernel, loaded on the device; what it points to is the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Function(pub NonNull<c_void>);

/// A point in a stream. Made by [`Driver::event`], owned by the driver, and used again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event(pub NonNull<c_void>);

/// What was captured of the compute stream; what it points to is the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Captured(pub NonNull<c_void>);

/// Compute streams that can be captured: what is queued is recorded, and queued again and again as one.
pub trait Captures {
    /// From here on what is queued on the compute stream is recorded instead of run.
    fn begin(&self) -> Result<()>;

    /// Ends the recording. Where it fails nothing is recorded, and the stream works as before.
    fn end(&self) -> Result<Captured>;

    /// Queues what was recorded on the compute stream.
    ///
    /// # Safety
    /// Every address and every kernel that was recorded must be valid until it has run.
    unsafe fn replay(&self, captured: Captured) -> Result<()>;

    /// Lets a recording go. Nothing under way may use it.
    fn release(&self, captured: Captured);
}

/// Shared ownership of a device's context: device memory stays valid while a clone of it exists.
pub type ContextHandle = Arc<dyn Any + Send + Sync>;

/// The most blocks along the axes of a grid.
pub const GRID_MAX: [usize; 3] = [i32::MAX as usize, GRID_YZ_MAX, GRID_YZ_MAX];
/// The most blocks along the second and the third axis.
pub const GRID_YZ_MAX: usize = 65_535;

/// The size of a launch. Blocks are counted as they are wanted; what no grid holds is refused when it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along each axis.
    pub blocks: [usize; 3],
    /// Threads of a block along each axis.
    pub block: [u32; 3],
    /// Bytes of block memory beyond what the kernel declares.
    pub shared_bytes: u32,
}

impl Launch {
    /// So many blocks of so many threads, all along the first axis.
    pub fn new(blocks: usize, threads: usize) -> Launch {
        Launch::grid([blocks, 1, 1], threads)
    }

    /// With this grid.
    pub fn grid(blocks: [usize; 3], threads: usize) -> Launch {
        Launch { blocks, block: [threads as u32, 1, 1], shared_bytes: 0 }
    }

    /// With block memory sized by the launch.
    pub fn shared(mut self, bytes: usize) -> Launch {
        self.shared_bytes = bytes as u32;
        self
    }

    /// The blocks as a driver takes them; what is too large was refused before.
    pub fn grid_u32(&self) -> [u32; 3] {
        self.blocks.map(|count| count as u32)
    }
}

/// What an engine asks of its device. One thread owns it.
pub trait Driver {
    /// What the device can do.
    fn properties(&self) -> &Properties;

    /// Makes this the device that the calling thread's calls are about. A driver that was just opened is; where a thread has
    /// several, each call below counts on it.
    fn make_current(&self) -> Result<()>;

    /// What compiles kernels for the device, on any thread.
    fn compiler(&self) -> Arc<dyn Compiler>;

    /// Loads what the compiler made; `entry` is the kernel's name in it.
    fn load(&self, name: &str, image: &[u8], entry: &str) -> Result<Function>;

    /// Lets a kernel go. Nothing under way may use it.
    fn unload(&self, function: Function);

    /// Starts a kernel.
    ///
    /// # Safety
    /// The arguments must be those of the kernel, in order, and every address among them must be valid for what the kernel does
    /// until it has run.
    unsafe fn launch(
        &self,
        function: Function,
        launch: &Launch,
        arguments: &mut Arguments,
        stream: Stream,
    ) -> Result<()>;

    /// Device memory. [`panoply_core::Error::OutOfMemory`] where there is none.
    fn allocate(&self, bytes: usize) -> Result<Address>;

    /// Gives device memory back. Nothing under way may use it.
    fn free(&self, address: Address);

    /// Bytes of device memory that are free, and in all.
    fn memory_info(&self) -> Result<(u64, u64)>;

    /// Pins host memory, so that the device reaches it by itself.
    ///
    /// # Safety
    /// The range must stay allocated until it is unpinned or the driver is dropped.
    unsafe fn pin(&self, start: NonNull<u8>, bytes: usize) -> Result<()>;

    /// Lets pinned memory go. Nothing under way may use it.
    fn unpin(&self, start: NonNull<u8>);

    /// Whether this host memory is pinned, by whomever.
    fn is_pinned(&self, start: *const u8) -> bool;

    /// Where kernels find a byte of pinned host memory.
    fn pinned_address(&self, byte: *const u8) -> Result<Address>;

    /// The buffer that small allocations share, on a device whose memory has no addresses: tables for kernels count bytes from its beginning.
    /// What is not in it can be in no table.
    fn shared_buffer(&self) -> Option<Address> {
        None
    }

    /// Where kernels read this host memory as it is, on a device that shares it and where that is worth it; `None` where it is to be
    /// copied. The address is given back by [`Driver::free`].
    ///
    /// # Safety
    /// The range must stay as it is until then.
    unsafe fn lend(&self, _start: *const u8, _bytes: usize) -> Option<Address> {
        None
    }

    /// Copies from the host. Pinned memory must stay as it is until the stream has passed this point; other memory has been read when
    /// this returns.
    ///
    /// # Safety
    /// Both ranges must be valid until then.
    unsafe fn upload(&self, target: Address, source: *const u8, bytes: usize, stream: Stream) -> Result<()>;

    /// Copies to the host.
    ///
    /// # Safety
    /// Both ranges must be valid, and nobody may read the target, until the stream has passed this point.
    unsafe fn download(&self, target: *mut u8, source: Address, bytes: usize, stream: Stream) -> Result<()>;

    /// Copies within the device, or from one that was [reached](Driver::reach).
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

    /// Shared ownership of the device's context.
    fn context_handle(&self) -> ContextHandle;

    /// Lets copies and kernels of this device read the memory of another, while that one's context handle exists.
    fn reach(&self, other: &ContextHandle) -> Result<()>;

    /// Recording and repeating what is queued, where the API can.
    fn captures(&self) -> Option<&dyn Captures> {
        None
    }

    /// The vendor's products of matrices, where the device has them.
    fn products(&self) -> Option<&dyn Products> {
        None
    }

    /// The vendor's convolutions.
    fn convolutions(&self) -> Option<&dyn Convolutions> {
        None
    }

    /// The vendor's Fourier transforms.
    fn transforms(&self) -> Option<&dyn Transforms> {
        None
    }

    /// The vendor's sensors.
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
