//! Memory that a device can access: pinned, on the device's NUMA node, from `libusdm`.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use panoply_core::lease::Lease;
use panoply_core::pool::{BlockSource, PooledBlock};
use panoply_core::{Error, Result};
use zeroize::Zeroize;

use crate::library::LibraryHandle;

/// The alignment that the device needs.
pub(crate) const ALIGN: usize = 64;

/// A block of device memory. It is wiped when freed, because most of its contents are secret.
pub(crate) struct DmaBlock {
    started: Arc<LibraryHandle>,
    place: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the block owns its memory, and the library's allocator may be called from any thread.
unsafe impl Send for DmaBlock {}

/// A block that returns to its pool.
pub(crate) type LentBlock = Lease<PooledBlock<DmaBlock>>;

impl DmaBlock {
    /// Allocates memory on this node, or on any node if it is -1. `None` if there is none.
    pub(crate) fn new(started: &Arc<LibraryHandle>, bytes: usize, node: c_int) -> Option<DmaBlock> {
        // SAFETY: any size, node and alignment are valid arguments.
        let place = unsafe { (started.qat.memory_allocate)(bytes, node, ALIGN) };
        let place = NonNull::new(place.cast::<u8>())?;
        // SAFETY: the allocation has `bytes` bytes.
        unsafe { place.write_bytes(0, bytes) };
        Some(DmaBlock { started: started.clone(), place, bytes })
    }

    /// All bytes, writable.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: the allocation has this size and is initialised. A device writes to it only while
        // a request is in flight, and then this function is not called.
        unsafe { std::slice::from_raw_parts_mut(self.place.as_ptr(), self.bytes) }
    }

    /// All bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.place.as_ptr(), self.bytes) }
    }

    /// Size of the block.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// A pointer to `offset`, or to the end if the offset is larger.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: the offset is inside the block or one past its end.
        unsafe { self.place.as_ptr().add(offset.min(self.bytes)) }
    }
}

impl Drop for DmaBlock {
    fn drop(&mut self) {
        self.bytes_mut().zeroize();
        let mut place: *mut c_void = self.place.as_ptr().cast();
        // SAFETY: the library's allocator returned the address, and it is freed once.
        unsafe { (self.started.qat.memory_free)(&mut place) };
    }
}

/// The source of a pool's blocks.
pub(crate) struct DeviceMemory {
    pub(crate) started: Arc<LibraryHandle>,
    pub(crate) node: c_int,
}

impl BlockSource for DeviceMemory {
    type Block = DmaBlock;

    fn allocate(&mut self, bytes: usize) -> Result<DmaBlock> {
        let missing = || Error::OutOfMemory {
            place: "memory that the QAT device reaches".to_owned(),
            asked: bytes as u64,
            free: 0,
            largest: 0,
        };
        DmaBlock::new(&self.started, bytes, self.node).ok_or_else(missing)
    }

    fn wipe(block: &mut DmaBlock) -> bool {
        block.bytes_mut().zeroize();
        true
    }
}
