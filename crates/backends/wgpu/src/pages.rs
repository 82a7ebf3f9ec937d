//! Whole pages of host memory, huge ones where the system has them.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

const PAGE_BYTES: usize = 4096;
/// Blocks of at least this size ask for huge pages: the device's copies then touch fewer of them.
const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Zeroed pages.
pub(crate) struct Pages {
    start: NonNull<u8>,
    layout: Layout,
}

impl Pages {
    /// Pages for so many bytes; nothing where there is no room.
    pub(crate) fn new(bytes: usize) -> Option<Pages> {
        let align = if bytes >= HUGE_PAGE_BYTES { HUGE_PAGE_BYTES } else { PAGE_BYTES };
        let layout = Layout::from_size_align(bytes.max(1).checked_next_multiple_of(align)?, align).ok()?;
        // SAFETY: the layout's size is above zero.
        let start = NonNull::new(unsafe { alloc_zeroed(layout) })?;
        #[cfg(target_os = "linux")]
        if bytes >= HUGE_PAGE_BYTES {
            // SAFETY: whole pages of memory that was just allocated; the advice changes no contents.
            unsafe { libc::madvise(start.as_ptr().cast(), layout.size(), libc::MADV_HUGEPAGE) };
        }
        Some(Pages { start, layout })
    }

    /// The first byte.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How many bytes there are, in whole pages.
    pub(crate) fn len_bytes(&self) -> usize {
        self.layout.size()
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this layout, freed once.
        unsafe { dealloc(self.start.as_ptr(), self.layout) };
    }
}
