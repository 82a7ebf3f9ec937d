//! Draws of random bytes that a fork interrupts. `crates/panoply/tests/forked.rs` has the forks of
//! whole programs.
#![cfg(unix)]
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(unsafe_code)] // The process forks.

use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Bytes of a draw.
const BYTES: usize = 600;

/// Number of forks in signal handlers.
const FORKS: usize = 200;
/// The time limit of a child, which otherwise might wait for ever.
const CHILD_TIME_MAX: Duration = Duration::from_secs(30);

/// The child that the handler has forked.
static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn fork_here(_: libc::c_int) {
    // SAFETY: `fork` may be called here: the interrupted thread is outside the allocator. The child
    // continues the interrupted code.
    let child = unsafe { libc::fork() };
    if child != 0 {
        CHILD.store(child, Ordering::SeqCst);
    }
}

/// A library's generator, interrupted in the middle of a draw, ends the child.
#[test]
fn a_fork_in_the_middle_of_a_draw_ends_no_process() {
    // SAFETY: a struct of numbers.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = fork_here as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler calls `fork` and writes an atomic number.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()) }, 0);
    let (thread, over, parent) = (AtomicU64::new(0), AtomicBool::new(false), std::process::id());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut bytes = [0; BYTES];
            // SAFETY: returns the calling thread's own handle.
            thread.store(unsafe { libc::pthread_self() } as u64, Ordering::SeqCst);
            while !over.load(Ordering::SeqCst) {
                let filled = panoply_cpu_crypto::fill_random_anew(&mut bytes);
                if std::process::id() != parent {
                    // SAFETY: ends this process at once.
                    unsafe { libc::_exit(if filled { 7 } else { 8 }) };
                }
            }
        });
        while thread.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let ends: Vec<libc::c_int> = (0..FORKS).map(|_| one_fork(thread.load(Ordering::SeqCst))).collect();
        over.store(true, Ordering::SeqCst);
        let wrong: Vec<_> = ends.iter().filter(|end| **end != 7).collect();
        assert!(wrong.is_empty(), "{} of {FORKS} children: {wrong:?}", wrong.len());
    });
}

/// Forks inside what a thread does, and returns the child's exit status; minus its signal if one
/// has ended it.
fn one_fork(thread: u64) -> libc::c_int {
    CHILD.store(0, Ordering::SeqCst);
    // SAFETY: the thread runs until the test is over.
    assert_eq!(unsafe { libc::pthread_kill(thread as libc::pthread_t, libc::SIGUSR2) }, 0);
    while CHILD.load(Ordering::SeqCst) == 0 {
        std::thread::yield_now();
    }
    let (child, start, mut status) = (CHILD.load(Ordering::SeqCst), Instant::now(), 0);
    assert!(child > 0, "no fork");
    // SAFETY: `status` is a valid place for a number, and the child is this process's own.
    while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } == 0 {
        if start.elapsed() > CHILD_TIME_MAX {
            // SAFETY: as above.
            unsafe { libc::kill(child, libc::SIGKILL) };
            // SAFETY: as above.
            unsafe { libc::waitpid(child, &raw mut status, 0) };
            break;
        }
        std::thread::yield_now();
    }
    if libc::WIFEXITED(status) { libc::WEXITSTATUS(status) } else { -libc::WTERMSIG(status) }
}
