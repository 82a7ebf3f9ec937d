//! Callers that wait for room in a full queue, or for the end of a pipeline. On the path of an op
//! this costs one fence and one load: the list is locked only while a caller waits. A waiter
//! registers, passes a sequentially consistent fence, and looks once more. A consumer takes an item
//! out, passes the same fence, and looks for waiters. So one of them sees the other.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::task::Waker;

use crate::foreign::contain;
use crate::process::{self, Process};

/// The wakers of callers that wait for room in a full queue.
#[derive(Default)]
pub struct Room {
    waiting: AtomicUsize,
    wakers: Mutex<VecDeque<Waker>>,
}

impl Room {
    /// Registers `waker` to be woken when an item is taken out. The caller must look once more
    /// after this. Does nothing in a fork of the process `made_in`, where no thread wakes it.
    pub fn wait(&self, made_in: Process, waker: &Waker) {
        let Some(mut wakers) = process::lock(&self.wakers, made_in) else { return };
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push_back(waker.clone());
        }
        self.waiting.store(wakers.len(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Wakes all waiters. Called after an item was taken out, or the queue was closed.
    pub fn wake_all(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        // No waker is called with the lock held: a woken caller may take the lock at once.
        let wakers = {
            let mut wakers = self.wakers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.waiting.store(0, Ordering::Relaxed);
            std::mem::take(&mut *wakers)
        };
        wakers.into_iter().for_each(|waker| _ = contain(|| waker.wake()));
    }
}
