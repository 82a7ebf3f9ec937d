//! Values on loan. Dropping a lease returns the value to its owner, without a lock and without
//! allocating.
//!
//! Device memory and pooled host memory belong to one worker, but handles to them travel to any
//! thread. The rules:
//!
//! 1. A [`Lease`] owns a node that was allocated when the value was lent. Dropping the lease pushes
//!    the node onto its owner's list of returns: one compare-and-swap, no allocation, never
//!    blocking. So the list is never longer than the number of values lent.
//! 2. Only the owner takes nodes off the list, and always the whole list with one swap. So there is
//!    no ABA problem.
//! 3. Dropping the owner ([`Home`]) closes the list. A lease that is dropped later drops its value
//!    itself. A node that is pushed while the list is being closed is dropped with the list, by the
//!    last lease.

use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};

use crate::sync::{Arc, AtomicBool, AtomicPtr, Ordering};

/// The owner's side: lends values and takes back returned ones. Dropping it closes the list of
/// returns.
pub struct Home<T: Send> {
    returns: Arc<Returns<T>>,
}

/// A value on loan. Dropping it returns the value to its owner.
pub struct Lease<T: Send> {
    node: ManuallyDrop<Box<Node<T>>>,
    returns: Arc<Returns<T>>,
}

struct Returns<T> {
    head: AtomicPtr<Node<T>>,
    closed: AtomicBool,
}

struct Node<T> {
    value: T,
    next: *mut Node<T>,
}

impl<T: Send> Home<T> {
    /// An owner that has lent nothing yet.
    pub fn new() -> Home<T> {
        let head = AtomicPtr::new(std::ptr::null_mut());
        Home { returns: Arc::new(Returns { head, closed: AtomicBool::new(false) }) }
    }

    /// An owner that takes nothing back: a dropped lease drops its value.
    pub(crate) fn closed() -> Home<T> {
        let home = Home::new();
        home.returns.closed.store(true, Ordering::Release);
        home
    }

    /// Lends a value.
    pub fn lend(&self, value: T) -> Lease<T> {
        let node = ManuallyDrop::new(Box::new(Node { value, next: std::ptr::null_mut() }));
        Lease { node, returns: self.returns.clone() }
    }

    /// Passes every returned value to `receive`, the last returned first.
    pub fn take_back(&self, mut receive: impl FnMut(T)) {
        if self.returns.head.load(Ordering::Relaxed).is_null() {
            return;
        }
        self.returns.drain(&mut receive);
    }
}

impl<T: Send> Default for Home<T> {
    fn default() -> Home<T> {
        Home::new()
    }
}

impl<T: Send> Drop for Home<T> {
    fn drop(&mut self) {
        self.returns.closed.store(true, Ordering::Release);
        self.returns.drain(&mut drop);
    }
}

impl<T: Send> Deref for Lease<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.node.value
    }
}

impl<T: Send> DerefMut for Lease<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.node.value
    }
}

impl<T: Send> Drop for Lease<T> {
    fn drop(&mut self) {
        // SAFETY: the node is taken only here, and the lease is not used again.
        let node = unsafe { ManuallyDrop::take(&mut self.node) };
        if !self.returns.closed.load(Ordering::Acquire) {
            self.returns.push(node);
        }
    }
}

// SAFETY: a lease gives `&T` to the threads that share it, and moves the `T` to the thread that
// drops it. Only the list's protocol touches the raw `next` pointer.
unsafe impl<T: Send> Send for Lease<T> {}
// SAFETY: a shared lease only gives `&T`.
unsafe impl<T: Send + Sync> Sync for Lease<T> {}

impl<T> Returns<T> {
    fn push(&self, node: Box<Node<T>>) {
        let node = Box::into_raw(node);
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            // SAFETY: until the exchange below succeeds, only this thread owns the node.
            unsafe { (*node).next = head };
            match self.head.compare_exchange_weak(head, node, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return,
                Err(current) => head = current,
            }
        }
    }

    fn drain(&self, receive: &mut impl FnMut(T)) {
        let mut next = self.head.swap(std::ptr::null_mut(), Ordering::Acquire);
        while !next.is_null() {
            // SAFETY: the swap made this thread the only owner of the whole chain, and each node
            // came from `Box::into_raw`.
            let node = unsafe { Box::from_raw(next) };
            next = node.next;
            receive(node.value);
        }
    }
}

impl<T> Drop for Returns<T> {
    fn drop(&mut self) {
        self.drain(&mut drop);
    }
}

// SAFETY: nodes change their owner by atomic operations with release and acquire ordering. See the
// rules above.
unsafe impl<T: Send> Send for Returns<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Send> Sync for Returns<T> {}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    struct DropCounter(std::sync::Arc<AtomicUsize>);

    impl Drop for DropCounter {
        fn drop(&mut self) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }
    }

    #[test]
    fn values_come_home_and_late_ones_are_dropped() {
        let dropped = std::sync::Arc::new(AtomicUsize::new(0));
        let home = Home::new();
        let early = home.lend(DropCounter(dropped.clone()));
        let late = home.lend(DropCounter(dropped.clone()));
        drop(early);
        let mut returned = Vec::new();
        home.take_back(|value| returned.push(value));
        assert_eq!(returned.len(), 1);
        assert_eq!(dropped.load(std::sync::atomic::Ordering::Relaxed), 0);
        drop(home);
        drop(late);
        drop(returned);
        assert_eq!(dropped.load(std::sync::atomic::Ordering::Relaxed), 2);
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;

    #[test]
    fn loom_every_value_is_received_or_dropped_exactly_once() {
        loom::model(|| {
            let dropped = loom::sync::Arc::new(loom::sync::atomic::AtomicUsize::new(0));
            let home = Home::new();
            let leases: Vec<_> = (0..2).map(|_| home.lend(DropCounter(dropped.clone()))).collect();
            let threads: Vec<_> = leases.into_iter().map(|lease| loom::thread::spawn(move || drop(lease))).collect();
            let mut received = 0;
            home.take_back(|value| {
                received += 1;
                drop(value);
            });
            drop(home);
            for thread in threads {
                thread.join().unwrap();
            }
            assert!(received <= 2);
            assert_eq!(dropped.load(Ordering::SeqCst), 2);
        });
    }

    struct DropCounter(loom::sync::Arc<loom::sync::atomic::AtomicUsize>);

    impl Drop for DropCounter {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }
}
