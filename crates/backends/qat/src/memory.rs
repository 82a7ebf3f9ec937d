//! Memory that a device reaches: pinned, on the device's own NUMA node, from `libusdm`.

use std::ffi::{c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use panoply_core::lease::Lease;
use panoply_core::pool::{Pooled, Source};
use panoply_core::{Error, Result};
use zeroize::Zeroize;

use crate::library::Started;

/// What the device's engines are aligned to.
pub(crate) const ALIGN: usize = 64;

/// A piece of such memory. Wiped when it is freed: most of what lies here is secret.
pub(crate) struct Block {
    started: Arc<Started>,
    place: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the memory is the block's alone, and the library's allocator may be called from any thread.
unsafe impl Send for Block {}

/// A block that goes back to its pool.
pub(crate) type Lent = Lease<Pooled<Block>>;

impl Block {
    /// Memory on this node; on any where it is not known. `None` where there is none.
    pub(crate) fn new(started: &Arc<Started>, bytes: usize, node: c_int) -> Option<Block> {
        // SAFETY: any size, node and alignment may be asked for.
        let place = unsafe { (started.qat.memory_allocate)(bytes, node, ALIGN) };
        let place = NonNull::new(place.cast::<u8>())?;
        // SAFETY: so many bytes were given out.
        unsafe { place.write_bytes(0, bytes) };
        Some(Block { started: started.clone(), place, bytes })
    }

    /// The whole of it.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes were given out and written; a device writes to them only while a request is under way, during which
        // nobody calls this.
        unsafe { std::slice::from_raw_parts_mut(self.place.as_ptr(), self.bytes) }
    }

    /// The whole of it, to be read.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.place.as_ptr(), self.bytes) }
    }

    /// How long it is.
    pub(crate) fn len(&self) -> usize {
        self.bytes
    }

    /// A place in it; its end where it has no such place.
    pub(crate) fn at(&self, offset: usize) -> *mut u8 {
        // SAFETY: the offset is inside, or one past the end.
        unsafe { self.place.as_ptr().add(offset.min(self.bytes)) }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.bytes_mut().zeroize();
        let mut place: *mut c_void = self.place.as_ptr().cast();
        // SAFETY: it came from the library's allocator, and is freed once.
        unsafe { (self.started.qat.memory_free)(&mut place) };
    }
}

/// Where a pool's blocks come from.
pub(crate) struct DeviceMemory {
    pub(crate) started: Arc<Started>,
    pub(crate) node: c_int,
}

impl Source for DeviceMemory {
    type Block = Block;

    fn allocate(&mut self, bytes: usize) -> Result<Block> {
        let missing = || Error::OutOfMemory {
            place: "memory that the QAT device reaches".to_owned(),
            asked: bytes as u64,
            free: 0,
            largest: 0,
        };
        Block::new(&self.started, bytes, self.node).ok_or_else(missing)
    }

    fn wipe(block: &mut Block) -> bool {
        block.bytes_mut().zeroize();
        true
    }
}
