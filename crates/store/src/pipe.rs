//! Short texts that come through a pipe, such as a key from a password manager.
//!
//! 1. A pipe is opened non-blocking, and its bytes are awaited with a deadline: a writer that
//!    never comes cannot hang the reader.
//! 2. A named pipe without a writer reads like one that has ended. Until the first byte the reader
//!    waits for a writer; after it, an end is the end. A pipe without a name (`/dev/fd/63`) has
//!    its writers from the beginning: its end is always the end.

use std::fs::{File, Metadata};
use std::io;
use std::path::Path;

/// Whether this is a pipe.
#[cfg(unix)]
pub(crate) fn is_pipe(metadata: &Metadata) -> bool {
    std::os::unix::fs::FileTypeExt::is_fifo(&metadata.file_type())
}

#[cfg(not(unix))]
pub(crate) fn is_pipe(_: &Metadata) -> bool {
    false
}

/// Reads until the pipe ends or the buffer is full. Returns the number of bytes.
#[cfg(unix)]
pub(crate) fn read_up_to(path: &Path, mut pipe: &File, bytes: &mut [u8]) -> io::Result<usize> {
    use std::io::Read;
    use std::time::{Duration, Instant};

    /// How long a writer may take: people unlock password managers by hand.
    const WAIT_MAX: Duration = Duration::from_secs(120);
    /// Interval between two reads of a pipe that does not report its writers.
    const LOOK_EVERY: Duration = Duration::from_millis(200);
    // The target of `/dev/fd/63` has no path.
    let has_name = std::fs::canonicalize(path).is_ok();
    let (start, mut len) = (Instant::now(), 0);
    while len < bytes.len() {
        match pipe.read(&mut bytes[len..]) {
            Ok(0) if len == 0 && has_name => {}
            Ok(0) => break,
            Ok(read) => {
                len += read;
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        let left = WAIT_MAX.saturating_sub(start.elapsed());
        if left.is_zero() {
            let text = format!("its writer did not come to an end within {} seconds", WAIT_MAX.as_secs());
            return Err(io::Error::new(io::ErrorKind::TimedOut, text));
        }
        wait(pipe, left.min(LOOK_EVERY))?;
    }
    Ok(len)
}

/// Waits for up to `wait_max` until there is something to read.
#[cfg(unix)]
fn wait(pipe: &File, wait_max: std::time::Duration) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let mut polled = libc::pollfd { fd: pipe.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: `polled` is one valid `pollfd` that outlives the call, and the file behind it is
    // open.
    #[allow(unsafe_code)]
    let answer = unsafe { libc::poll(&raw mut polled, 1, wait_max.as_millis() as libc::c_int) };
    match answer {
        // A named pipe without writers reports that immediately, again and again.
        1.. if polled.revents & libc::POLLIN == 0 => std::thread::sleep(std::time::Duration::from_millis(5)),
        0.. => {}
        _ => {
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
    Ok(())
}

#[cfg(not(unix))]
pub(crate) fn read_up_to(_: &Path, _: &File, _: &mut [u8]) -> io::Result<usize> {
    Err(io::ErrorKind::Unsupported.into())
}
