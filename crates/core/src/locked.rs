//! Memory for secrets, kept out of swap if the system permits it.
//!
//! The system locks whole pages, and unlocks a page at the first request, while the allocator puts
//! several secrets into one page. So the secrets of each page are counted here, and a page is
//! unlocked with its last secret. If the system refuses, for example beyond the limit of locked
//! memory (`ulimit -l`), the memory is still usable: nothing fails.
//!
//! Each locked page may split a mapping of the process in three, and the system limits the number
//! of mappings (`vm.max_map_count`). So at most [`LOCKED_PAGES_MAX`] pages are locked at a time;
//! further secrets are wiped as usual, but not locked.
//!
//! A program that locks all of its memory (`mlockall` with `MCL_FUTURE`) wants no page unlocked. On
//! Linux this is checked before a page is unlocked; if it is so, or cannot be determined, the page
//! stays locked.
//!
//! Concurrency: one lock guards the counts. It is tried a bounded number of times and never waited
//! for, since a fork may leave it locked forever in the child; a secret that does not get the lock
//! is not locked in memory. A forked process inherits no locked page, and begins with empty counts.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, TryLockError};

use crate::process::Process;

/// Maximal length of a locked secret. Longer ones are messages rather than keys, and would use up
/// the limit.
pub(crate) const LOCKED_BYTES_MAX: usize = 64 << 10;
/// Maximal number of locked pages: 4 MiB with pages of 4 KiB.
pub(crate) const LOCKED_PAGES_MAX: usize = 1024;
/// Maximal number of attempts to take the lock of the counts.
const TRIES_MAX: usize = 1000;

/// The locked pages, by number, with the number of secrets in each.
static COUNTS: Mutex<LockCounts> = Mutex::new(LockCounts { process: None, pages: BTreeMap::new() });

struct LockCounts {
    /// The process that locked the pages.
    process: Option<Process>,
    pages: BTreeMap<usize, usize>,
}

/// A secret in memory of its own, kept out of swap if the system permits it. Moving this value
/// leaves no copy behind. The content must wipe itself when dropped, which happens before the
/// memory is unlocked.
pub struct SecretBox<T> {
    value: Box<T>,
    #[allow(dead_code)] // Held only for its destructor, which runs last.
    locked: Option<LockedPages>,
}

impl<T> SecretBox<T> {
    /// Moves the secret into memory of its own.
    pub fn new(value: T) -> SecretBox<T> {
        let value = Box::new(value);
        let locked = LockedPages::new((&raw const *value).cast(), size_of::<T>());
        SecretBox { value, locked }
    }

    /// Whether its memory is kept out of swap.
    pub fn is_locked(&self) -> bool {
        self.locked.is_some()
    }
}

impl<T> Deref for SecretBox<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for SecretBox<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

/// Pages that stay locked until this is dropped.
pub(crate) struct LockedPages {
    first: usize,
    count: usize,
    process: Process,
}

impl LockedPages {
    /// Locks the pages of `bytes` bytes; `None` if the system refuses.
    pub(crate) fn new(start: *const u8, bytes: usize) -> Option<LockedPages> {
        let page_bytes = system::page_bytes().filter(|_| (1..=LOCKED_BYTES_MAX).contains(&bytes))?;
        let (first, last) = (start.addr() / page_bytes, (start.addr() + bytes - 1) / page_bytes);
        let (process, mut counts) = (Process::current(), counts()?);
        if counts.process != Some(process) {
            counts.pages.clear();
            counts.process = Some(process);
        }
        let mut locked = LockedPages { first, count: 0, process };
        for page in first..=last {
            let secrets = counts.pages.get(&page).copied().unwrap_or(0);
            let is_full = secrets == 0 && counts.pages.len() >= LOCKED_PAGES_MAX;
            if is_full || secrets == 0 && !system::lock(page * page_bytes, page_bytes) {
                break;
            }
            counts.pages.insert(page, secrets + 1);
            locked.count += 1;
        }
        // The destructor of `locked` takes the lock.
        drop(counts);
        (locked.count > 0).then_some(locked)
    }
}

impl Drop for LockedPages {
    fn drop(&mut self) {
        let Some(page_bytes) = system::page_bytes().filter(|_| self.count > 0) else { return };
        // A page that cannot be unlocked here stays locked until the process ends.
        let Some(mut counts) = counts().filter(|counts| counts.process == Some(self.process)) else { return };
        if !self.process.is_current() {
            return;
        }
        for page in self.first..self.first + self.count {
            match counts.pages.get_mut(&page) {
                Some(secrets) if *secrets > 1 => *secrets -= 1,
                Some(_) => {
                    counts.pages.remove(&page);
                    if !system::keeps_all(page_bytes) {
                        system::unlock(page * page_bytes, page_bytes);
                    }
                }
                None => {}
            }
        }
    }
}

fn counts() -> Option<MutexGuard<'static, LockCounts>> {
    for _ in 0..TRIES_MAX {
        match COUNTS.try_lock() {
            Ok(counts) => return Some(counts),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => std::thread::yield_now(),
        }
    }
    None
}

#[cfg(unix)]
mod system {
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Length of a page, cached.
    static PAGE_BYTES: AtomicUsize = AtomicUsize::new(0);

    pub(super) fn page_bytes() -> Option<usize> {
        match PAGE_BYTES.load(Ordering::Relaxed) {
            0 => {
                // SAFETY: the call reads a system constant.
                let bytes = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).ok()?;
                PAGE_BYTES.store(bytes, Ordering::Relaxed);
                (bytes > 0).then_some(bytes)
            }
            bytes => Some(bytes),
        }
    }

    pub(super) fn lock(start: usize, bytes: usize) -> bool {
        // SAFETY: the call changes no memory; an unmapped address yields an error.
        unsafe { libc::mlock(start as *const libc::c_void, bytes) == 0 }
    }

    pub(super) fn unlock(start: usize, bytes: usize) {
        // SAFETY: as above.
        unsafe { libc::munlock(start as *const libc::c_void, bytes) };
    }

    /// Whether new memory of this process is locked automatically, or this cannot be determined.
    #[cfg(target_os = "linux")]
    pub(super) fn keeps_all(page_bytes: usize) -> bool {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the system's choice.
        let page = unsafe { libc::mmap(std::ptr::null_mut(), page_bytes, access, kind, -1, 0) };
        if page == libc::MAP_FAILED {
            return true;
        }
        // Locked memory refuses this advice.
        // SAFETY: the mapping is new, and only this thread knows it.
        let is_locked = unsafe { libc::madvise(page, page_bytes, libc::MADV_DONTNEED) } != 0;
        // SAFETY: as above.
        unsafe { libc::munmap(page, page_bytes) };
        is_locked
    }

    /// Other systems are not asked.
    #[cfg(not(target_os = "linux"))]
    pub(super) fn keeps_all(_: usize) -> bool {
        false
    }
}

#[cfg(not(unix))]
mod system {
    /// Nothing is locked here.
    pub(super) fn page_bytes() -> Option<usize> {
        None
    }

    pub(super) fn lock(_: usize, _: usize) -> bool {
        false
    }

    pub(super) fn unlock(_: usize, _: usize) {}

    pub(super) fn keeps_all(_: usize) -> bool {
        false
    }
}

#[cfg(all(test, not(loom), target_os = "linux"))]
mod tests {
    #![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

    use super::*;

    /// Whether the system reports this page as locked: `LockedPages` of its mapping in `smaps`.
    fn is_locked(address: usize) -> bool {
        let maps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let mut inside = false;
        for line in maps.lines() {
            let range = line.split(' ').next().and_then(|range| range.split_once('-'));
            if let Some((start, end)) = range
                && let (Ok(start), Ok(end)) = (usize::from_str_radix(start, 16), usize::from_str_radix(end, 16))
            {
                inside = (start..end).contains(&address);
            } else if inside && let Some(flags) = line.strip_prefix("VmFlags:") {
                return flags.split(' ').any(|flag| flag == "lo");
            }
        }
        false
    }

    #[test]
    fn a_page_is_unlocked_with_its_last_secret_and_limits_fail_nothing() {
        let page_bytes = system::page_bytes().unwrap();
        let memory = vec![1_u8; 8 * page_bytes];
        let start = memory.as_ptr().wrapping_add(memory.as_ptr().align_offset(page_bytes));
        let (address, second) = (start.addr(), start.wrapping_add(100));
        let Some(one) = LockedPages::new(start, 64) else {
            println!("skipped: the system locks no memory here");
            return;
        };
        let two = LockedPages::new(second, 2 * page_bytes).unwrap();
        assert!(is_locked(address) && is_locked(address + page_bytes));
        drop(one);
        assert!(is_locked(address), "another secret is there");
        drop(two);
        assert!(!is_locked(address) && !is_locked(address + page_bytes));
        assert!(LockedPages::new(start, 0).is_none() && LockedPages::new(start, LOCKED_BYTES_MAX + 1).is_none());
        // An unmapped address is refused by the system without other effects.
        assert!(LockedPages::new(std::ptr::without_provenance(page_bytes), 8).is_none());
    }

    /// Runs a check in a forked process, since it concerns all memory of a process. Returns 0 on
    /// success, 2 if the system does not permit it.
    fn in_fork(check: impl FnOnce() -> i32) -> i32 {
        // SAFETY: the child uses only its own data, and ends without destructors.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let code = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_or(1);
            // SAFETY: ends this process at once.
            unsafe { libc::_exit(code) };
        }
        let mut status = -1;
        // SAFETY: `child` is the process forked above, and `status` is writable.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert!(libc::WIFEXITED(status), "status {status}");
        libc::WEXITSTATUS(status)
    }

    #[test]
    fn a_program_that_keeps_all_of_its_memory_in_place_keeps_the_pages_of_secrets() {
        let page_bytes = system::page_bytes().unwrap();
        let memory = vec![1_u8; 4 * page_bytes];
        let start = memory.as_ptr().wrapping_add(memory.as_ptr().align_offset(page_bytes));
        let code = in_fork(|| {
            let Some(secret) = LockedPages::new(start, 64) else { return 2 };
            // SAFETY: the call takes no pointer, and only affects where pages lie.
            if unsafe { libc::mlockall(libc::MCL_CURRENT | libc::MCL_FUTURE) } != 0 {
                return 2;
            }
            drop(secret);
            i32::from(!is_locked(start.addr()))
        });
        assert_ne!(code, 1, "a page was unlocked");
        if code == 2 {
            println!("skipped: the system does not lock all memory here");
        }
    }

    #[test]
    fn the_number_of_locked_pages_is_bounded() {
        let page_bytes = system::page_bytes().unwrap();
        let memory = vec![1_u8; (LOCKED_PAGES_MAX + 10) * page_bytes];
        let start = memory.as_ptr().wrapping_add(memory.as_ptr().align_offset(page_bytes));
        let code = in_fork(|| {
            let page = |index: usize| LockedPages::new(start.wrapping_add(index * page_bytes), 1);
            let mut all: Vec<Option<LockedPages>> = (0..LOCKED_PAGES_MAX + 5).map(page).collect();
            let count = all.iter().flatten().count();
            if count < LOCKED_PAGES_MAX && all[..LOCKED_PAGES_MAX].iter().any(Option::is_none) {
                // The system's limit is lower.
                return 2;
            }
            let shares = LockedPages::new(start.wrapping_add(64), 1).is_some();
            all.truncate(1);
            i32::from(!(count == LOCKED_PAGES_MAX && shares && page(LOCKED_PAGES_MAX + 1).is_some()))
        });
        assert_ne!(code, 1, "more pages than that were locked, or fewer");
        if code == 2 {
            println!("skipped: the system locks fewer pages here");
        }
    }

    #[test]
    fn a_secret_is_wiped_while_its_page_is_still_locked() {
        use crate::op::crypto::{AeadAlgorithm, Key};
        use std::sync::atomic::{AtomicUsize, Ordering};
        /// Records whether its page was locked when it was dropped: 1 (no) or 2 (yes).
        struct Witness(&'static AtomicUsize);
        impl Drop for Witness {
            fn drop(&mut self) {
                self.0.store(1 + usize::from(is_locked((&raw const *self).addr())), Ordering::Relaxed);
            }
        }
        static SEEN: [AtomicUsize; 2] = [const { AtomicUsize::new(0) }; 2];
        let boxed = SecretBox::new(Witness(&SEEN[0]));
        if !boxed.is_locked() {
            println!("skipped: the system locks no memory here");
            return;
        }
        drop(boxed);
        let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap();
        key.expanded(|| Ok(Witness(&SEEN[1]))).unwrap();
        drop(key);
        assert_eq!(SEEN.each_ref().map(|seen| seen.load(Ordering::Relaxed)), [2, 2]);
    }

    #[test]
    fn the_material_of_a_key_is_locked_where_that_is_permitted() {
        use crate::op::crypto::{AeadAlgorithm, Key};
        let page_bytes = system::page_bytes().unwrap();
        let probe = vec![0_u8; page_bytes];
        if LockedPages::new(probe.as_ptr(), 1).is_none() {
            println!("skipped: the system locks no memory here");
            return;
        }
        let key = Key::seal(AeadAlgorithm::Aes256Gcm, &[7; 32]).unwrap();
        assert!(is_locked(key.material().as_slice().unwrap().as_ptr().addr()));
    }
}
