//! The standard streams as the process found them.
//!
//! 1. If a standard stream is closed when a process starts, the standard library opens `/dev/null`
//!    in its place before `main`, and it ignores the error of a stream that is open in the other
//!    direction only. Output would be lost, and an input would be empty, without an error.
//! 2. So closed streams are noted before `main`, and commands refuse them: the output before they
//!    do anything, the input when it is read.
//! 3. A pipe whose reader has gone is open. It is not an error ([`Failure::ReaderGone`]).

use std::io;

use anyhow::anyhow;

use crate::failure::Failure;

/// Fails if nothing that is printed can arrive anywhere.
pub fn expect_output() -> Result<(), Failure> {
    match imp::has_output() {
        true => Ok(()),
        false => Err(anyhow!(
            "the standard output is closed or not open for writing, so nothing was done; redirect it to a file, or to \
             /dev/null if the output is not wanted"
        )
        .into()),
    }
}

/// The standard input. Fails if it is closed: that is not an empty input.
pub fn input() -> io::Result<io::Stdin> {
    match imp::has_input() {
        true => Ok(io::stdin()),
        false => Err(io::Error::new(
            io::ErrorKind::NotConnected,
            "the standard input is closed or not open for reading; redirect it from a file, or from /dev/null if it is \
             to be empty",
        )),
    }
}

#[cfg(unix)]
mod imp {
    use std::io;
    use std::os::fd::AsFd;
    use std::sync::atomic::{AtomicBool, Ordering};

    use rustix::fs::{OFlags, fcntl_getfl};

    static IS_INPUT_CLOSED: AtomicBool = AtomicBool::new(false);
    static IS_OUTPUT_CLOSED: AtomicBool = AtomicBool::new(false);

    /// The system calls the functions of this list before `main`, and so before the standard
    /// library opens `/dev/null`. Safe code cannot run there.
    #[used]
    #[allow(unsafe_code)]
    // SAFETY: the section is a list of functions without arguments, and `note` may run before
    // `main`: it calls the system and changes two atomics.
    #[cfg_attr(not(target_vendor = "apple"), unsafe(link_section = ".init_array"))]
    #[cfg_attr(target_vendor = "apple", unsafe(link_section = "__DATA,__mod_init_func"))]
    static BEFORE_MAIN: extern "C" fn() = note;

    extern "C" fn note() {
        IS_INPUT_CLOSED.store(is_closed(libc::STDIN_FILENO), Ordering::Release);
        IS_OUTPUT_CLOSED.store(is_closed(libc::STDOUT_FILENO), Ordering::Release);
    }

    #[allow(unsafe_code)] // The number of a closed stream is not a safe handle.
    fn is_closed(number: libc::c_int) -> bool {
        // SAFETY: `F_GETFD` reads the flags of the handle, and fails if there is none.
        unsafe { libc::fcntl(number, libc::F_GETFD) == -1 }
    }

    pub fn has_output() -> bool {
        !IS_OUTPUT_CLOSED.load(Ordering::Acquire) && !is_open_as(io::stdout(), OFlags::RDONLY)
    }

    pub fn has_input() -> bool {
        !IS_INPUT_CLOSED.load(Ordering::Acquire) && !is_open_as(io::stdin(), OFlags::WRONLY)
    }

    /// Whether the stream is open for this one direction.
    fn is_open_as(stream: impl AsFd, direction: OFlags) -> bool {
        fcntl_getfl(stream).is_ok_and(|flags| flags & OFlags::RWMODE == direction)
    }
}

#[cfg(windows)]
mod imp {
    use std::io;
    use std::os::windows::io::AsRawHandle;

    pub fn has_output() -> bool {
        !io::stdout().as_raw_handle().is_null()
    }

    pub fn has_input() -> bool {
        !io::stdin().as_raw_handle().is_null()
    }
}

#[cfg(not(any(unix, windows)))]
mod imp {
    pub fn has_output() -> bool {
        true
    }

    pub fn has_input() -> bool {
        true
    }
}
