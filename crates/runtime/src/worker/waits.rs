//! Records which worker waits for which other worker, so that no worker waits for itself.
//!
//! A worker's thread may block on a worker of a pool: for its reply, for room in its queue, or for
//! its thread to end. While the thread blocks, the other worker's thread may block on the first
//! one, directly or through others. Then none of them ever goes on. The rules:
//!
//! 1. A worker's thread notes the worker that it is about to wait for, and only then waits. One
//!    table holds the notes of every pool, under one lock, which is taken only by threads that
//!    block anyway.
//! 2. A wait that closes a circle is refused: the worker that would close it gets an error, and the
//!    others go on.
//! 3. A note includes a function that tells whether its wait is over. A thread that has its reply,
//!    or room, goes on as soon as it wakes, so its note no longer closes a circle, even though it
//!    is still in the table.
//! 4. A thread that looks for room does so in an attempt ([`Wait::attempt`]). Its note closes no
//!    circle while the attempt runs, nor after the attempt succeeded: the queue is full again once
//!    the thread's own message is in it, and the note is only removed a moment later. An attempt
//!    that fails, because another thread has taken the room, is followed by another check before
//!    the thread continues to wait: others may have begun to wait for it meanwhile.
//! 5. A wait with a time limit ends by itself and is not noted. Neither is the wait of an executor
//!    that a worker runs: a worker that blocks on a reply with its own executor instead of `wait`
//!    is not detected.
//! 6. Each process has its own table: in a fork the parent's may stay locked for ever.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::Poll;

use crate::process::PerProcess;

/// Identifies one worker among the workers of all pools.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct WorkerKey(u64);

/// The wait of one worker.
struct Note {
    target: WorkerKey,
    /// Whether the wait is over, even if its thread has not woken yet. Called with the table
    /// locked.
    is_over: Box<dyn Fn() -> bool + Send>,
    /// Whether an attempt runs or has succeeded (rule 4).
    attempts: Arc<AtomicBool>,
}

impl Note {
    /// Whether the worker waits, and nothing has happened so far that ends its wait.
    fn blocks(&self) -> bool {
        if (self.is_over)() {
            return false;
        }
        // If `is_over` saw the message of an attempt, the flag of that attempt is seen here: this
        // fence follows the look at the queue, and the fence in `attempt` precedes the message.
        fence(Ordering::SeqCst);
        !self.attempts.load(Ordering::Relaxed)
    }
}

type Table = BTreeMap<WorkerKey, Note>;

/// The wait of each waiting worker.
static WAITS: PerProcess<Mutex<Table>> = PerProcess::new();

thread_local! {
    /// The worker that this thread runs, if any.
    static CURRENT: Cell<Option<WorkerKey>> = const { Cell::new(None) };
}

impl WorkerKey {
    pub(crate) fn new() -> WorkerKey {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        WorkerKey(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Makes the calling thread the thread of this worker.
    pub(crate) fn settle(self) {
        CURRENT.set(Some(self));
    }
}

/// The wait would never end: the worker waits for itself, directly or through others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Circle;

/// A noted wait. It ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Wait(Option<WaitNote>);

/// The key of a note in the table, and its flag.
#[derive(Debug)]
struct WaitNote {
    own: WorkerKey,
    attempts: Arc<AtomicBool>,
}

/// Notes that the calling thread waits for `target`, with a function that tells whether the wait is
/// over. Threads that run no worker may wait for any worker.
pub(crate) fn wait_for(target: WorkerKey, is_over: impl Fn() -> bool + Send + 'static) -> Result<Wait, Circle> {
    let Some(own) = CURRENT.try_with(Cell::get).ok().flatten() else { return Ok(Wait(None)) };
    let attempts = Arc::new(AtomicBool::new(false));
    let note = Note { target, is_over: Box::new(is_over), attempts: Arc::clone(&attempts) };
    let mut waits = table();
    // The other worker may have made room between the caller's look and this one.
    if leads_to(&waits, target, own) && note.blocks() {
        return Err(Circle);
    }
    waits.insert(own, note);
    Ok(Wait(Some(WaitNote { own, attempts })))
}

/// Whether the chain of waits from `next` leads to this worker.
fn leads_to(waits: &Table, mut next: WorkerKey, own: WorkerKey) -> bool {
    // Waits that are over make no circle. But a wait that was over for a while may have allowed a
    // circle that the next check finds, so a walk is limited to one more step than there are notes.
    for _ in 0..=waits.len() {
        if next == own {
            return true;
        }
        match waits.get(&next) {
            Some(note) if note.blocks() => next = note.target,
            _ => return false,
        }
    }
    false
}

impl Wait {
    /// Attempts to end the wait (rule 4). An attempt that is not ready is followed by a check
    /// whether the wait can still end.
    pub(crate) fn attempt<T>(&self, attempt: impl FnOnce() -> Poll<T>) -> Poll<Result<T, Circle>> {
        let Some(WaitNote { own, attempts }) = &self.0 else { return attempt().map(Ok) };
        attempts.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if let Poll::Ready(done) = attempt() {
            return Poll::Ready(Ok(done));
        }
        attempts.store(false, Ordering::Relaxed);
        let waits = table();
        let closed = waits.get(own).is_some_and(|note| note.blocks() && leads_to(&waits, note.target, *own));
        if closed { Poll::Ready(Err(Circle)) } else { Poll::Pending }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let note = self.0.as_ref().and_then(|noted| table().remove(&noted.own));
        // The note is dropped without the lock.
        drop(note);
    }
}

fn table() -> MutexGuard<'static, Table> {
    WAITS.get().lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a thread of `own` wait for `target`, and returns the wait.
    fn begin(own: WorkerKey, target: WorkerKey) -> Result<Wait, Circle> {
        std::thread::spawn(move || {
            own.settle();
            wait_for(target, || false)
        })
        .join()
        .unwrap()
    }

    #[test]
    fn a_circle_is_refused_and_a_chain_is_not() {
        let [a, b, c] = [WorkerKey::new(), WorkerKey::new(), WorkerKey::new()];
        assert!(matches!(begin(a, a), Err(Circle)));
        let first = begin(a, b).unwrap();
        let second = begin(b, c).unwrap();
        assert!(matches!(begin(c, a), Err(Circle)) && matches!(begin(c, b), Err(Circle)));
        drop(first);
        let third = begin(c, a).unwrap();
        assert!(matches!(begin(a, b), Err(Circle)));
        drop((second, third));
        assert!(wait_for(a, || false).is_ok_and(|wait| wait.0.is_none()), "this thread runs no worker");
    }

    #[test]
    fn a_wait_that_is_over_closes_no_circle_until_it_is_not() {
        let [a, b] = [WorkerKey::new(), WorkerKey::new()];
        let room = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&room);
        let first = std::thread::spawn(move || {
            a.settle();
            wait_for(b, move || seen.load(Ordering::SeqCst))
        });
        let first = first.join().unwrap().unwrap();
        assert!(matches!(begin(b, a), Err(Circle)));
        room.store(true, Ordering::SeqCst);
        let second = begin(b, a).unwrap();
        let fails = || Poll::<()>::Pending;
        assert_eq!((first.attempt(fails), second.attempt(fails)), (Poll::Pending, Poll::Pending));
        // Another thread has taken the room: a check now finds that no worker can go on.
        room.store(false, Ordering::SeqCst);
        let refused = Poll::Ready(Err(Circle));
        assert_eq!((first.attempt(fails), second.attempt(fails)), (refused, refused));
        drop(second);
        assert_eq!(first.attempt(fails), Poll::Pending);
    }

    #[test]
    fn an_attempt_that_succeeds_closes_no_circle_though_it_takes_the_room() {
        let [a, b] = [WorkerKey::new(), WorkerKey::new()];
        let first = begin(a, b).unwrap();
        // `begin` waits for something that is never over, like room that the attempt itself takes.
        let during = first.attempt(|| Poll::Ready(begin(b, a)));
        let Poll::Ready(Ok(Ok(second))) = during else { panic!("refused during the attempt: {during:?}") };
        drop(second);
        assert!(begin(b, a).is_ok(), "the note of the first wait is still in the table");
        assert_eq!(first.attempt(|| Poll::<()>::Pending), Poll::Pending);
        assert!(matches!(begin(b, a), Err(Circle)));
    }
}
