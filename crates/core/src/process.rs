//! Identifies the current process, and distinguishes it from its forks.
//!
//! `fork` copies memory, and with it nonce counters and random numbers that must be used once. The
//! process id does not identify a copy: ids are reused, and a child in a new pid namespace may have
//! its parent's. So each process has a generation, which is determined in one of two ways:
//!
//! 1. On Linux, from a page of memory that the system wipes in every forked process
//!    (`MADV_WIPEONFORK`, Linux 4.14). A process made by a raw system call is detected too.
//! 2. On other Unix systems, and on older Linux, from a count of forks kept by a `pthread_atfork`
//!    handler. A process made without the C library's `fork` is not detected.
//!
//! If the system has neither, process ids are compared. Windows has no fork.
//!
//! A virtual machine that is resumed from a snapshot is not detected, and neither is a process that
//! is restored from a checkpoint (CRIU): nothing in them changes.
//!
//! Concurrency: the first thread makes the page; a second page that was made meanwhile is unmapped.
//! A handler that two threads register counts each fork twice, which is harmless. No lock is taken,
//! so a fork at any moment leaves none locked.

use std::sync::atomic::{AtomicU64, Ordering};

/// Identifies a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Process {
    id: u32,
    /// Above that of every ancestor; zero if the system cannot detect forks.
    generation: u64,
}

/// The generation of the next process that finds its page wiped. Forks copy it, so it is always
/// above those of the ancestors.
static NEXT: AtomicU64 = AtomicU64::new(1);

impl Process {
    /// The calling process.
    pub fn current() -> Process {
        Process { id: std::process::id(), generation: generation() }
    }

    /// Whether this is the calling process, and not one that it was forked from. The check reads
    /// memory twice that is seldom written. It makes a system call only if the system has no other
    /// way to detect forks.
    pub fn is_current(self) -> bool {
        match self.generation {
            0 => self.id == std::process::id(),
            own => own == generation(),
        }
    }

    /// The process id.
    pub fn id(self) -> u32 {
        self.id
    }

    /// A number that no ancestor has, as far as the system detects forks; never zero in practice.
    pub(crate) fn tag(self) -> u32 {
        match self.generation {
            0 => self.id,
            own => own as u32,
        }
    }
}

fn generation() -> u64 {
    let Some(cell) = wiped::cell() else { return counted::generation() };
    match cell.load(Ordering::Acquire) {
        0 => {
            let own = NEXT.fetch_add(1, Ordering::Relaxed);
            // Another thread of this process may have been faster.
            cell.compare_exchange(0, own, Ordering::AcqRel, Ordering::Acquire).map_or_else(|other| other, |_| own)
        }
        known => known,
    }
}

#[cfg(target_os = "linux")]
mod wiped {
    use std::ptr;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

    /// The page, once it exists. It is never unmapped.
    static CELL: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());
    /// Whether the system has refused a page.
    static REFUSED: AtomicBool = AtomicBool::new(false);
    /// Requested size in bytes; the system gives whole pages.
    const BYTES: usize = size_of::<AtomicU64>();

    /// A number that is zero in every forked process; `None` if the system has none.
    pub(super) fn cell() -> Option<&'static AtomicU64> {
        let known = CELL.load(Ordering::Acquire);
        if !known.is_null() {
            // SAFETY: `mapped` made the mapping; since then it was only zeroed or written
            // atomically, and it is never unmapped.
            return Some(unsafe { &*known });
        }
        if REFUSED.load(Ordering::Relaxed) {
            return None;
        }
        let Some(made) = mapped() else {
            REFUSED.store(true, Ordering::Relaxed);
            return None;
        };
        match CELL.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: as above.
            Ok(_) => Some(unsafe { &*made }),
            Err(other) => {
                // SAFETY: this thread mapped the page, and no other thread has its address.
                unsafe { libc::munmap(made.cast(), BYTES) };
                // SAFETY: as above.
                Some(unsafe { &*other })
            }
        }
    }

    fn mapped() -> Option<*mut AtomicU64> {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the system's choice.
        let page = unsafe { libc::mmap(ptr::null_mut(), BYTES, access, kind, -1, 0) };
        if page == libc::MAP_FAILED {
            return None;
        }
        // SAFETY: the mapping is new, and only this thread knows it.
        if unsafe { libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) } != 0 {
            // SAFETY: as above.
            unsafe { libc::munmap(page, BYTES) };
            return None;
        }
        Some(page.cast())
    }
}

#[cfg(not(target_os = "linux"))]
mod wiped {
    use std::sync::atomic::AtomicU64;

    /// This system has none.
    pub(super) fn cell() -> Option<&'static AtomicU64> {
        None
    }
}

#[cfg(unix)]
mod counted {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

    /// One plus the number of forks counted on the way to this process.
    static GENERATION: AtomicU64 = AtomicU64::new(1);
    /// Whether the handler is registered.
    static REGISTERED: AtomicBool = AtomicBool::new(false);

    extern "C" fn in_child() {
        GENERATION.fetch_add(1, Ordering::Relaxed);
    }

    /// The generation by the count of forks; zero if the system accepts no handler.
    pub(super) fn generation() -> u64 {
        if !REGISTERED.load(Ordering::Acquire) {
            // SAFETY: the handler only increments an atomic number, which is permitted after a fork
            // of a multi-threaded process, and it lives as long as the program.
            if unsafe { libc::pthread_atfork(None, None, Some(in_child)) } != 0 {
                return 0;
            }
            REGISTERED.store(true, Ordering::Release);
        }
        GENERATION.load(Ordering::Relaxed)
    }
}

#[cfg(not(unix))]
mod counted {
    /// This system has no fork.
    pub(super) fn generation() -> u64 {
        0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn one_process_is_one_process_in_every_thread() {
        let threads: Vec<_> = (0..8).map(|_| std::thread::spawn(Process::current)).collect();
        let here = Process::current();
        assert!(threads.into_iter().all(|thread| thread.join().unwrap() == here) && here.is_current());
        assert_eq!(here.id(), std::process::id());
    }

    /// This holds even if a child has its parent's id, as in a new pid namespace.
    #[cfg(target_os = "linux")]
    #[test]
    fn a_forked_process_is_another_by_more_than_its_number() {
        let here = Process::current();
        // SAFETY: the child calls nothing that may need a lock of another thread, and ends without
        // destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let forked = Process::current();
            let differs = forked.generation > here.generation && !here.is_current() && forked.is_current();
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(if differs { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: `child` is the process forked above, and `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!(status, 0);
        assert!(here.is_current(), "the parent stays the same process");
    }

    /// The fallback for systems without memory that is wiped on fork.
    #[cfg(unix)]
    #[test]
    fn forks_are_counted_too() {
        let before = counted::generation();
        assert!(before > 0);
        // SAFETY: the child only reads and writes atomic numbers, and ends without destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_later = counted::generation() > before;
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(if is_later { 0 } else { 1 }) };
        }
        let mut status = -1;
        // SAFETY: `child` is the process forked above, and `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((status, counted::generation()), (0, before));
    }
}
