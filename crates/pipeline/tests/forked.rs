//! A fork of the process has none of a pipeline's threads: the run refuses to go on there, with a
//! reason.
#![cfg(unix)]
#![allow(unsafe_code)] // A real fork.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use panoply_pipeline::{Pipeline, PipelineError};

/// The time limit of a child. A child that waits for a thread that does not exist would wait for
/// ever.
const CHILD_TIME_MAX: Duration = Duration::from_secs(20);

/// Runs `body` in a fork and returns its result. `None` if the child does not end.
fn in_child(body: impl FnOnce() -> bool) -> Option<bool> {
    // SAFETY: the child runs `body` on its only thread, and leaves without running the parent's
    // destructors.
    match unsafe { libc::fork() } {
        0 => {
            let right = std::panic::catch_unwind(std::panic::AssertUnwindSafe(body)).unwrap_or(false);
            // SAFETY: the call ends the process, and does nothing else.
            unsafe { libc::_exit(if right { 7 } else { 8 }) }
        }
        child => {
            assert!(child > 0, "no fork");
            let start = Instant::now();
            let mut status = 0;
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
    }
}

#[test]
fn a_pipeline_ends_in_a_fork_with_the_reason() {
    let (sender, source) = Pipeline::builder().channel::<u64>(8);
    let slow = |value: u64| {
        std::thread::sleep(Duration::from_millis(20));
        value + 1
    };
    let running = source.map("slow", slow).collect().start().unwrap();
    (0..4).for_each(|value| sender.send(value).unwrap());
    let (mut running, mut sender) = (Some(running), Some(sender));
    let right = in_child(|| {
        let sender = sender.take().unwrap();
        let refused = sender.send(9).is_err();
        drop(sender);
        let running = running.take().unwrap();
        running.handle().cancel();
        matches!(running.wait().result, Err(PipelineError::Forked(_))) && refused
    });
    assert_eq!(right, Some(true));
    drop(sender.take());
    assert_eq!(running.unwrap().wait().result.unwrap(), [1, 2, 3, 4]);
}

#[test]
fn a_pipeline_that_was_built_before_a_fork_does_nothing_there() {
    let done = Arc::new(AtomicBool::new(false));
    let effect = Arc::clone(&done);
    let pipeline = Pipeline::builder().source(0..10_u64).map("effect", move |value| {
        effect.store(true, Ordering::SeqCst);
        value
    });
    let mut pipeline = Some(pipeline.collect());
    let right = in_child(|| {
        let started = pipeline.take().unwrap().start();
        std::thread::sleep(Duration::from_millis(100));
        matches!(started, Err(PipelineError::Forked(_))) && !done.load(Ordering::SeqCst)
    });
    assert_eq!(right, Some(true));
    let ended = pipeline.unwrap().start().unwrap().wait();
    assert_eq!(ended.result.unwrap().len(), 10, "the parent's own run");
}
