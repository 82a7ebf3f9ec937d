//! Forks in a signal handler while a thread waits. Shared by the tests of several crates, each of
//! which allows unsafe code.

use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The time limit of a child, which otherwise would wait for ever.
const CHILD_TIME_MAX: Duration = Duration::from_secs(30);

/// The child that the handler has forked.
static CHILD: AtomicI32 = AtomicI32::new(0);
/// One test at a time has the handler.
static TURN: Mutex<()> = Mutex::new(());

extern "C" fn fork_here(_: libc::c_int) {
    // SAFETY: `fork` may be called here: the interrupted thread is outside the allocator. The child
    // goes on with what the signal has interrupted.
    let child = unsafe { libc::fork() };
    if child != 0 {
        CHILD.store(child, Ordering::SeqCst);
    }
}

/// How a wait ended.
#[derive(Debug, PartialEq)]
pub enum End {
    /// With the error for forks.
    Forked,
    Otherwise(String),
}

/// [`End::Forked`], or what it was otherwise.
pub fn end(is_forked: bool, otherwise: impl std::fmt::Debug) -> End {
    if is_forked { End::Forked } else { End::Otherwise(format!("{otherwise:?}")) }
}

/// Runs `wait` on a thread of its own, and forks inside it. Then calls `release`, which ends the
/// parent's wait. Returns whether the child's wait ended as it should, and the parent's end.
pub fn fork_inside(wait: impl FnOnce() -> End + Send, release: impl FnOnce()) -> (Option<bool>, End) {
    let _turn = TURN.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // SAFETY: a struct of numbers.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = fork_here as extern "C" fn(libc::c_int) as usize;
    action.sa_flags = libc::SA_RESTART;
    // SAFETY: the handler calls `fork` and writes an atomic number.
    assert_eq!(unsafe { libc::sigaction(libc::SIGUSR2, &action, std::ptr::null_mut()) }, 0);
    CHILD.store(0, Ordering::SeqCst);
    let (thread, parent) = (AtomicU64::new(0), std::process::id());
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| {
            // SAFETY: returns the calling thread's own handle.
            thread.store(unsafe { libc::pthread_self() }, Ordering::SeqCst);
            let end = wait();
            if std::process::id() != parent {
                // SAFETY: ends this process at once.
                unsafe { libc::_exit(if end == End::Forked { 7 } else { 8 }) };
            }
            // A wait that has ended before the signal: there is a thread for it all the same.
            while CHILD.load(Ordering::SeqCst) == 0 {
                if std::process::id() != parent {
                    // SAFETY: as above.
                    unsafe { libc::_exit(7) };
                }
                std::thread::yield_now();
            }
            end
        });
        while thread.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        // So that the thread is most probably parked. The test holds wherever the signal meets it.
        std::thread::sleep(Duration::from_millis(50));
        // SAFETY: the thread runs until `release` was called.
        assert_eq!(unsafe { libc::pthread_kill(thread.load(Ordering::SeqCst), libc::SIGUSR2) }, 0);
        while CHILD.load(Ordering::SeqCst) == 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
        let child = end_of(CHILD.load(Ordering::SeqCst));
        release();
        (child, waits.join().unwrap())
    })
}

/// Whether the child has ended as it should. `None` if it had to be ended.
fn end_of(child: libc::pid_t) -> Option<bool> {
    assert!(child > 0, "no fork");
    let (start, mut status) = (Instant::now(), 0);
    // SAFETY: `status` is a valid place for a number, and the child is this process's own.
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
