//! Whole pages of host memory, with huge pages if the system has them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;
/// Blocks of at least this size ask for huge pages: the device's copies then touch fewer pages.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed pages.
pub struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: memory of its own; the owner of the pages decides who accesses them.
unsafe impl Send for Pages {}
// SAFETY: as above; sharing them shares the address only.
unsafe impl Sync for Pages {}

impl Pages {
    /// Pages for `bytes` bytes; `None` if memory is exhausted.
    pub fn new(bytes: usize) -> Option<Pages> {
        let align = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { PAGE_BYTES };
        let layout = Layout::from_size_align(bytes.max(1).checked_next_multiple_of(align)?, align).ok()?;
        // SAFETY: the layout's size is above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        #[cfg(target_os = "linux")]
        // SAFETY: whole pages of memory that was just allocated; the advice changes no contents.
        // Imported pages must stay at their physical addresses: a child of this process does not
        // inherit them, so no page is copied on a write.
        unsafe {
            if bytes >= HUGE_PAGE_BYTES {
                libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE);
            }
            libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_DONTFORK);
        }
        Some(Pages { start, layout })
    }

    /// The first byte.
    pub fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// Number of bytes, in whole pages.
    pub fn len_bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        // SAFETY: the same pages; the next user of the memory may need it in child processes.
        unsafe {
            libc::madvise(self.start.as_ptr().cast(), self.layout.size(), libc::MADV_DOFORK);
        }
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
