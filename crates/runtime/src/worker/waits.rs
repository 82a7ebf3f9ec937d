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
//! 4. A wait that turns out not to be over, because another thread has taken the room, is checked
//!    again before the thread continues to wait: others may have begun to wait for it meanwhile.
//! 5. A wait with a time limit ends by itself and is not noted. Neither is the wait of an executor
//!    that a worker runs: a worker that blocks on a reply with its own executor instead of `wait`
//!    is not detected.
//! 6. Each process has its own table: in a fork the parent's may stay locked for ever.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

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
pub(crate) struct Wait(Option<WorkerKey>);

/// Notes that the calling thread waits for `target`, with a function that tells whether the wait is
/// over. Threads that run no worker may wait for any worker.
pub(crate) fn wait_for(target: WorkerKey, is_over: impl Fn() -> bool + Send + 'static) -> Result<Wait, Circle> {
    let Some(own) = CURRENT.try_with(Cell::get).ok().flatten() else { return Ok(Wait(None)) };
    let note = Note { target, is_over: Box::new(is_over) };
    let mut waits = table();
    // The other worker may have made room between the caller's look and this one.
    if leads_to(&waits, target, own) && !(note.is_over)() {
        return Err(Circle);
    }
    waits.insert(own, note);
    Ok(Wait(Some(own)))
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
            Some(note) if !(note.is_over)() => next = note.target,
            _ => return false,
        }
    }
    false
}

impl Wait {
    /// Checks again whether the wait can end. Called when the awaited room was there, but another
    /// thread has taken it.
    pub(crate) fn check(&self) -> Result<(), Circle> {
        let Some(own) = self.0 else { return Ok(()) };
        let waits = table();
        let closed = waits.get(&own).is_some_and(|note| !(note.is_over)() && leads_to(&waits, note.target, own));
        if closed { Err(Circle) } else { Ok(()) }
    }
}

impl Drop for Wait {
    fn drop(&mut self) {
        let note = self.0.and_then(|own| table().remove(&own));
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
        use std::sync::Arc;
        use std::sync::atomic::AtomicBool;
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
        assert_eq!((first.check(), second.check()), (Ok(()), Ok(())));
        // Another thread has taken the room: a check now finds that no worker can go on.
        room.store(false, Ordering::SeqCst);
        assert_eq!((first.check(), second.check()), (Err(Circle), Err(Circle)));
        drop(second);
        assert_eq!(first.check(), Ok(()));
    }
}
