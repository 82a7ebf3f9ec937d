//! Who waits for room in a full queue. On the path of an op this is one fence and one load: the list is locked only while
//! somebody waits. A waiter registers, passes a sequentially consistent fence, and looks once more; a consumer takes an item
//! out, passes the same fence, and looks for waiters: one of them sees the other.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::task::Waker;

use crate::foreign::contain;

/// Callers that wait for room in a full queue. The list is locked only while somebody waits.
#[derive(Default)]
pub(crate) struct Room {
    waiting: AtomicUsize,
    wakers: Mutex<VecDeque<Waker>>,
}

impl Room {
    /// Has `waker` woken when somebody takes something out. Look once more after this.
    pub(crate) fn wait(&self, waker: &Waker) {
        let mut wakers = self.wakers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if !wakers.iter().any(|known| known.will_wake(waker)) {
            wakers.push_back(waker.clone());
        }
        self.waiting.store(wakers.len(), Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Called after something was taken out, or the queue was closed.
    pub(crate) fn wake_all(&self) {
        fence(Ordering::SeqCst);
        if self.waiting.load(Ordering::Relaxed) == 0 {
            return;
        }
        // Nobody is called with the lock held: whoever is woken may come back for it at once.
        let wakers = {
            let mut wakers = self.wakers.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            self.waiting.store(0, Ordering::Relaxed);
            std::mem::take(&mut *wakers)
        };
        wakers.into_iter().for_each(|waker| _ = contain(|| waker.wake()));
    }
}
