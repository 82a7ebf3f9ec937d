//! Whether the process may have more memory: asked before a large allocation and before a thread is
//! started, because the standard library ends the process when either finds none.
//!
//! The answer holds for the moment of the question. Other threads may take the memory meanwhile.

use std::io;

/// The memory that a new thread may take before its first call: its stack, the allocator's arena
/// for it, and its signal stack. It is reserved, not used.
const THREAD_BYTES: u64 = 96 << 20;

/// Fails if the process may not have this much more memory, with a thread's need in reserve. A
/// limit of the process, such as `ulimit -v`, and a system that does not overcommit both count.
pub(crate) fn check_room(bytes: u64) -> io::Result<()> {
    let refused = || io::Error::from(io::ErrorKind::OutOfMemory);
    let bytes = usize::try_from(bytes.saturating_add(THREAD_BYTES)).map_err(|_| refused())?;
    reserve(bytes)
}

/// Fails if there is no memory for one more thread.
pub(crate) fn check_room_for_thread() -> io::Result<()> {
    check_room(0)
}

#[cfg(unix)]
fn reserve(bytes: usize) -> io::Result<()> {
    let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANON);
    // SAFETY: a new mapping at an address of the system's choice touches no memory in use.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, flags, -1, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: these are the start and the length of the mapping above, which no other code knows.
    unsafe { libc::munmap(start, bytes) };
    Ok(())
}

#[cfg(not(unix))]
fn reserve(_bytes: usize) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_a_thread_and_not_for_the_whole_address_space() {
        assert!(check_room_for_thread().is_ok());
        assert!(!cfg!(unix) || check_room(1 << 60).is_err());
        assert!(!cfg!(unix) || check_room(u64::MAX).is_err());
    }
}
