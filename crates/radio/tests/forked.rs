//! A forked process has no thread that receives. A source of datagrams returns an error there, and
//! can be dropped without a wait.
#![cfg(unix)]
#![allow(unsafe_code)] // A real fork.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use panoply_core::Error;
use panoply_core::op::signal::SampleFormat;
use panoply_radio::datagrams::Datagrams;

/// The longest that a child may take. A wait for a thread that does not exist never ends.
const CHILD_TIME_MAX: Duration = Duration::from_secs(20);

/// Runs `body` in a fork and returns its answer; `None` where it does not end.
fn in_child(body: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: the child runs `body` on its only thread, and leaves without running the parent's
    // destructors.
    match unsafe { libc::fork() } {
        0 => {
            let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: it ends the process, and does nothing else.
            unsafe { libc::_exit(if right { 7 } else { 8 }) }
        }
        child => {
            assert!(child > 0, "no fork");
            let start = Instant::now();
            let mut status = 0;
            // SAFETY: `status` is a place for a number, and the child is this process's own.
            while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
                if start.elapsed() > CHILD_TIME_MAX {
                    // SAFETY: as above.
                    unsafe { libc::kill(child, libc::SIGKILL) };
                    // SAFETY: as above.
                    unsafe { libc::waitpid(child, &raw mut status, 0) };
                    return None;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Some(libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 7)
        }
    }
}

#[test]
fn a_source_of_datagrams_says_so_in_a_fork_and_is_dropped_at_once() {
    let silence_max = Duration::from_secs(60);
    let source = Datagrams::receive("127.0.0.1:0", SampleFormat::I16, 16, silence_max).unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    sender.connect(source.address()).unwrap();
    let mut source = Some(source);
    let right = in_child(|| {
        let mut source = source.take().unwrap();
        let start = Instant::now();
        let told = matches!(source.next(), Some(Err(Error::Forked { made_in, called_in, .. })) if made_in != called_in);
        let ends = source.next().is_none() && source.next().is_none();
        drop(source);
        told && ends && start.elapsed() < Duration::from_secs(5)
    });
    assert_eq!(right, Some(true));
    let mut source = source.unwrap();
    sender.send(&[0; 8]).unwrap();
    assert_eq!(source.next().unwrap().unwrap().shape().elements(), 2, "the parent goes on");
}
