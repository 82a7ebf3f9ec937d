//! An allocator for tests that counts the allocations of its process, the bytes in use, and the
//! most bytes that were in use at once. A test program of its own names it as
//! `#[global_allocator]`.
#![allow(unsafe_code)] // An allocator is an unsafe trait.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);
static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

/// Number of allocations by all threads.
pub fn allocations() -> usize {
    ALLOCATIONS.load(Ordering::SeqCst)
}

/// Bytes in use now, by all threads.
pub fn live_bytes() -> usize {
    LIVE.load(Ordering::SeqCst)
}

/// The most bytes in use at once since the last [`forget_peak`], by all threads.
pub fn peak_bytes() -> usize {
    PEAK.load(Ordering::SeqCst)
}

/// Starts a new measurement of [`peak_bytes`].
pub fn forget_peak() {
    PEAK.store(live_bytes(), Ordering::SeqCst);
}

/// The system's allocator, with counters.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counting;

/// Counts one allocation. `realloc` counts the new block before it frees the old one, because both
/// may exist at once.
fn count(bytes: usize) {
    ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
    let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(live, Ordering::Relaxed);
}

// SAFETY: passes every call to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract is the system allocator's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size);
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
