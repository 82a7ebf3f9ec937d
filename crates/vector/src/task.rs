//! The futures that a collection returns. They need no executor: poll them anywhere, or block with
//! `wait`.
//!
//! A fork of the process does not have the threads that answer. There a task ends with `Forked`,
//! and its lock is not taken, since one of those threads may have held it.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use panoply_runtime::errands::{Errand, Errands};
use panoply_runtime::process::Process;

use crate::error::{Error, Result};
use crate::state::COLLECTION;

/// How long a child that was forked in the middle of a wait goes on waiting, at the longest.
pub(crate) const FORK_LOOK_EVERY: Duration = Duration::from_millis(200);

/// An operation that a collection has accepted. Its result comes from `.await` or from
/// [`Task::wait`]; dropping the task does not undo the operation.
#[must_use = "the work goes on, but nobody learns how it ended"]
pub struct Task<T> {
    cell: Arc<Cell<T>>,
}

/// The obligation to answer a task. If it is dropped without an answer, the answer is
/// `Error::Closed`.
pub(crate) struct Responder<T> {
    cell: Arc<Cell<T>>,
}

struct Cell<T> {
    process: Process,
    slot: Mutex<TaskState<T>>,
    arrived: Condvar,
}

struct TaskState<T> {
    result: Option<Result<T>>,
    waker: Option<Waker>,
}

/// Creates a task and the obligation to answer it.
pub(crate) fn task<T>() -> (Responder<T>, Task<T>) {
    let slot = Mutex::new(TaskState { result: None, waker: None });
    let cell = Arc::new(Cell { process: Process::current(), slot, arrived: Condvar::new() });
    (Responder { cell: Arc::clone(&cell) }, Task { cell })
}

impl<T> Task<T> {
    /// A completed task.
    pub(crate) fn done(result: Result<T>) -> Task<T> {
        let (answer, task) = task();
        answer.send(result);
        task
    }

    /// Blocks until the result is available. A child that a signal handler forks meanwhile gets an
    /// error.
    pub fn wait(self) -> Result<T> {
        loop {
            self.cell.process.check(COLLECTION)?;
            let mut slot = self.cell.slot.lock().unwrap_or_else(PoisonError::into_inner);
            if slot.result.is_none() {
                let waited = self.cell.arrived.wait_timeout(slot, FORK_LOOK_EVERY);
                slot = waited.unwrap_or_else(PoisonError::into_inner).0;
            }
            if let Some(result) = slot.result.take() {
                return result;
            }
        }
    }

    /// Whether the result is available, so that `wait` would return at once.
    pub fn is_done(&self) -> bool {
        !self.cell.process.is_here() || self.cell.slot.lock().unwrap_or_else(PoisonError::into_inner).result.is_some()
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        if let Err(forked) = self.cell.process.check(COLLECTION) {
            return Poll::Ready(Err(forked.into()));
        }
        let mut slot = self.cell.slot.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                // The waker is cloned and dropped outside of the lock, since both run foreign code.
                drop(slot);
                let waker = context.waker().clone();
                let mut slot = self.cell.slot.lock().unwrap_or_else(PoisonError::into_inner);
                if let Some(result) = slot.result.take() {
                    return Poll::Ready(result);
                }
                let before = slot.waker.replace(waker);
                drop(slot);
                drop(before);
                Poll::Pending
            }
        }
    }
}

impl<T> Responder<T> {
    /// Delivers the result.
    pub(crate) fn send(self, result: Result<T>) {
        self.put(result);
    }

    fn put(&self, result: Result<T>) {
        let mut slot = self.cell.slot.lock().unwrap_or_else(PoisonError::into_inner);
        if slot.result.is_none() {
            slot.result = Some(result);
        }
        let waker = slot.waker.take();
        drop(slot);
        self.cell.arrived.notify_one();
        // A waker is foreign code. It may panic, never return, or drop the last handle of the
        // collection, so it is called on a thread that no other thread waits for.
        if let Some(waker) = waker {
            Errands::shared().send([Box::new(move || waker.wake()) as Errand]);
        }
    }
}

impl<T> Drop for Responder<T> {
    fn drop(&mut self) {
        // After `send` the result is there, or it was taken and the task is gone.
        if Arc::strong_count(&self.cell) > 1 {
            self.put(Err(Error::Closed));
        }
    }
}

/// Runs work on its own thread.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Task<T> {
    let (answer, task) = task();
    // If the thread cannot be started, the closure and its answer are dropped, which answers the
    // task.
    let _ = std::thread::Builder::new().name("panoply-vectors".to_owned()).spawn(move || answer.send(work()));
    task
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_arrives_once_and_a_dropped_one_says_so() {
        let (answer, waiting) = task::<u32>();
        let thread = std::thread::spawn(move || waiting.wait());
        answer.send(Ok(7));
        assert!(matches!(thread.join().unwrap(), Ok(7)));
        let (answer, waiting) = task::<u32>();
        drop(answer);
        assert!(waiting.is_done());
        assert!(matches!(waiting.wait(), Err(Error::Closed)));
        assert!(matches!(spawn(|| Ok(3)).wait(), Ok(3)));
    }

    /// Regression: the panic passed through the answering thread, and met a second panic while
    /// unwinding.
    #[test]
    fn a_waker_that_panics_harms_nobody() {
        struct Bomb;
        impl Drop for Bomb {
            fn drop(&mut self) {
                panic!("dropped");
            }
        }
        struct Panics;
        impl std::task::Wake for Panics {
            fn wake(self: Arc<Self>) {
                std::panic::panic_any(Bomb);
            }
        }
        let waker = Waker::from(Arc::new(Panics));
        for answered in [true, false] {
            let (answer, mut waiting) = task::<u32>();
            assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
            match answered {
                true => answer.send(Ok(1)),
                false => drop(answer),
            }
            assert!(waiting.is_done());
            assert_eq!(waiting.wait().is_ok(), answered);
        }
    }

    #[test]
    fn a_polled_task_is_woken() {
        struct Flag(std::sync::atomic::AtomicBool);
        impl std::task::Wake for Flag {
            fn wake(self: Arc<Self>) {
                self.0.store(true, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let flag = Arc::new(Flag(false.into()));
        let waker = Waker::from(Arc::clone(&flag));
        let (answer, mut waiting) = task::<u32>();
        assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
        answer.send(Ok(1));
        let start = std::time::Instant::now();
        while !flag.0.load(std::sync::atomic::Ordering::SeqCst) {
            assert!(start.elapsed() < std::time::Duration::from_secs(10));
            std::thread::yield_now();
        }
        assert!(matches!(Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)), Poll::Ready(Ok(1))));
    }
}
