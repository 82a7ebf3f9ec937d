//! The memory of an emulated device, which is the host's.

use std::alloc::{Layout, alloc, dealloc};
use std::collections::HashMap;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::driver::Address;

const ALIGN_BYTES: usize = 256;
/// Guard bytes after every allocation, which no kernel may touch.
const GUARD_BYTES: usize = 64;
const GUARD: u8 = 0xab;
/// Fills freed memory.
const SPOILED: u8 = 0xdd;

/// The device's memory. It is freed as a whole after its last user is gone.
#[derive(Default)]
pub(super) struct EmulatedMemory {
    blocks: Mutex<HashMap<Address, Layout>>,
    /// Freed memory that is not allocated again.
    freed: Mutex<Vec<(Address, Layout)>>,
    used_bytes: AtomicU64,
}

impl EmulatedMemory {
    fn blocks(&self) -> MutexGuard<'_, HashMap<Address, Layout>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Allocates memory; `None` if there is none.
    pub(super) fn allocate(&self, bytes: usize) -> Option<Address> {
        let layout = Layout::from_size_align(bytes + GUARD_BYTES, ALIGN_BYTES).ok()?;
        // SAFETY: the layout's size is above zero.
        let start = NonNull::new(unsafe { alloc(layout) })?;
        // SAFETY: the allocation has this size. The fill pattern exposes memory that no kernel has
        // written.
        unsafe { start.as_ptr().write_bytes(0xcd, bytes) };
        // SAFETY: the guard is the allocation's end.
        unsafe { start.as_ptr().add(bytes).write_bytes(GUARD, GUARD_BYTES) };
        self.used_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        let address = Address(start.as_ptr() as u64);
        self.blocks().insert(address, layout);
        Some(address)
    }

    /// Whether nothing was written past the end of an allocation.
    pub(super) fn are_guards_whole(&self) -> bool {
        self.blocks().iter().all(|(address, layout)| {
            let guard = (address.0 as usize + layout.size() - GUARD_BYTES) as *const u8;
            // SAFETY: the guard is the end of an allocation of this layout that is still alive.
            let bytes = unsafe { std::slice::from_raw_parts(guard, GUARD_BYTES) };
            bytes.iter().all(|byte| *byte == GUARD)
        })
    }

    /// Frees memory, but overwrites it instead of returning it, so that a use of it shows.
    pub(super) fn spoil(&self, address: Address) {
        if let Some(layout) = self.blocks().remove(&address) {
            self.used_bytes.fetch_sub((layout.size() - GUARD_BYTES) as u64, Ordering::Relaxed);
            // SAFETY: allocated with this layout, and not freed.
            unsafe { std::ptr::write_bytes(address.0 as *mut u8, SPOILED, layout.size()) };
            self.freed.lock().unwrap_or_else(PoisonError::into_inner).push((address, layout));
        }
    }

    pub(super) fn free(&self, address: Address) {
        if let Some(layout) = self.blocks().remove(&address) {
            self.used_bytes.fetch_sub((layout.size() - GUARD_BYTES) as u64, Ordering::Relaxed);
            // SAFETY: allocated with this layout, and removed from the table that held it.
            unsafe { dealloc(address.0 as *mut u8, layout) };
        }
    }
}

impl Drop for EmulatedMemory {
    fn drop(&mut self) {
        let addresses: Vec<Address> = self.blocks().keys().copied().collect();
        addresses.into_iter().for_each(|address| self.free(address));
        for (address, layout) in self.freed.get_mut().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // SAFETY: allocated with this layout, and removed from the table that held it.
            unsafe { dealloc(address.0 as *mut u8, layout) };
        }
    }
}
