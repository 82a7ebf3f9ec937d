//! Whole pages of host memory, huge ones where the system has them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;
/// Blocks of at least this size ask for huge pages: the device's copies then touch fewer of them.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed pages.
pub struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: memory of its own; whoever has the pages decides who touches them.
unsafe impl Send for Pages {}
// SAFETY: as above; sharing them shares the address only.
unsafe impl Sync for Pages {}

impl Pages {
    /// Pages for so many bytes; nothing where there is no room.
    pub fn new(bytes: usize) -> Option<Pages> {
        let align = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { PAGE_BYTES };
        let layout = Layout::from_size_align(bytes.max(1).checked_next_multiple_of(align)?, align).ok()?;
        // SAFETY: the layout's size is above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        #[cfg(target_os = "linux")]
        // SAFETY: whole pages of memory that was just allocated; the advice changes no contents. A device that was given the
        // pages must find them where they are: a child of this process does not get them, so that none is copied on a write.
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

    /// How many bytes there are, in whole pages.
    pub fn len_bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        // SAFETY: the same pages; whoever gets the memory next may have children again.
        unsafe {
            libc::madvise(self.start.as_ptr().cast(), self.layout.size(), libc::MADV_DOFORK);
        }
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
