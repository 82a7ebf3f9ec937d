//! The futures that a collection hands out. They need no executor: poll them anywhere, or block with `wait`.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use panoply_runtime::errands::{Errand, Errands};

use crate::error::{Error, Result};

/// Work that a collection has taken on. Its result comes from `.await` or from [`Task::wait`]; dropping the task does not
/// undo the work.
#[must_use = "the work goes on, but nobody learns how it ended"]
pub struct Task<T> {
    cell: Arc<Cell<T>>,
}

/// The duty to answer a task. Dropped without an answer, it answers that the collection is closed.
pub(crate) struct Answer<T> {
    cell: Arc<Cell<T>>,
}

struct Cell<T> {
    slot: Mutex<Slot<T>>,
    arrived: Condvar,
}

struct Slot<T> {
    result: Option<Result<T>>,
    waker: Option<Waker>,
}

/// A task, and the duty to answer it.
pub(crate) fn task<T>() -> (Answer<T>, Task<T>) {
    let cell = Arc::new(Cell { slot: Mutex::new(Slot { result: None, waker: None }), arrived: Condvar::new() });
    (Answer { cell: Arc::clone(&cell) }, Task { cell })
}

impl<T> Task<T> {
    /// A task that is done.
    pub(crate) fn done(result: Result<T>) -> Task<T> {
        let (answer, task) = task();
        answer.send(result);
        task
    }

    /// Blocks until the result is there.
    pub fn wait(self) -> Result<T> {
        let mut slot = self.cell.slot.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            match slot.result.take() {
                Some(result) => return result,
                None => slot = self.cell.arrived.wait(slot).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    /// Whether the result is there, so that `wait` would return at once.
    pub fn is_done(&self) -> bool {
        self.cell.slot.lock().unwrap_or_else(PoisonError::into_inner).result.is_some()
    }
}

impl<T> Future for Task<T> {
    type Output = Result<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        let mut slot = self.cell.slot.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                // Cloned and dropped outside of the lock: both are somebody else's code.
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

impl<T> Answer<T> {
    /// Answers.
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
        // A waker is somebody else's code. It may panic, not return, or drop the last handle of the collection: it is called on a
        // thread that nobody waits for.
        if let Some(waker) = waker {
            Errands::shared().send([Box::new(move || waker.wake()) as Errand]);
        }
    }
}

impl<T> Drop for Answer<T> {
    fn drop(&mut self) {
        // After `send` there is a result, or it has been taken and nobody waits any more.
        if Arc::strong_count(&self.cell) > 1 {
            self.put(Err(Error::Closed));
        }
    }
}

/// Runs work on a thread of its own.
pub(crate) fn spawn<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Task<T> {
    let (answer, task) = task();
    // Where no thread can be had, the answer is dropped with the closure, which answers.
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

    /// The panic left through the thread that answers, and met another on its way out.
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
