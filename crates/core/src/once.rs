//! A value that is made once, without a lock.
//!
//! `OnceLock` lets all other threads wait while one thread makes the value. A fork copies that
//! state but not the thread, so the child would wait for ever. With a [`OnceBox`] no thread waits:
//! threads that find no value each make one, the first is kept, and the others are dropped.

use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// A place for one value, which stays until the place is dropped.
pub struct OnceBox<T> {
    /// Null, or from `Box::into_raw`.
    value: AtomicPtr<T>,
    owns: PhantomData<Box<T>>,
}

// The bounds let one thread store a value that another drops, and all threads read it.
impl<T: Send + Sync> OnceBox<T> {
    /// An empty place.
    pub const fn new() -> OnceBox<T> {
        OnceBox { value: AtomicPtr::new(ptr::null_mut()), owns: PhantomData }
    }

    /// The value, if there is one.
    pub fn get(&self) -> Option<&T> {
        // SAFETY: the pointer is null or was stored by `set`. It is freed by `drop` alone, which
        // needs `&mut self`, and no `&mut T` is ever made.
        unsafe { self.value.load(Ordering::Acquire).as_ref() }
    }

    /// Stores a value. If there is one already, it stays, and the new one comes back.
    pub fn set(&self, value: T) -> Result<(), Box<T>> {
        let made = Box::into_raw(Box::new(value));
        match self.value.compare_exchange(ptr::null_mut(), made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => Ok(()),
            // SAFETY: `made` was allocated above and not stored, so nothing else has it.
            Err(_) => Err(unsafe { Box::from_raw(made) }),
        }
    }

    /// The value. `make` is called if there is none; its result is dropped if another thread is
    /// faster.
    pub fn get_or_make(&self, make: impl FnOnce() -> T) -> &T {
        let mut make = Some(make);
        loop {
            if let Some(value) = self.get() {
                return value;
            }
            // A value is found in the second turn: this one, or another thread's.
            if let Some(make) = make.take() {
                drop(self.set(make()));
            }
        }
    }
}

impl<T: Send + Sync> Default for OnceBox<T> {
    fn default() -> OnceBox<T> {
        OnceBox::new()
    }
}

impl<T: fmt::Debug + Send + Sync> fmt::Debug for OnceBox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnceBox").field(&self.get()).finish()
    }
}

impl<T> Drop for OnceBox<T> {
    fn drop(&mut self) {
        let value = *self.value.get_mut();
        if !value.is_null() {
            // SAFETY: `set` took the pointer from `Box::into_raw`; no reference to the value
            // outlives this place.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

#[cfg(all(test, not(loom)))]
#[allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
mod tests {
    use std::sync::{Arc, Barrier};

    use super::*;

    #[test]
    fn the_first_value_stays_and_every_value_is_dropped_once() {
        let counted = Arc::new(());
        let place = OnceBox::new();
        assert!(place.get().is_none());
        assert!(place.set((1, Arc::clone(&counted))).is_ok());
        assert_eq!(place.set((2, Arc::clone(&counted))).unwrap_err().0, 2);
        assert_eq!((place.get().unwrap().0, place.get_or_make(|| (3, Arc::clone(&counted))).0), (1, 1));
        assert_eq!(Arc::strong_count(&counted), 2);
        drop(place);
        assert_eq!(Arc::strong_count(&counted), 1);
    }

    #[test]
    fn all_threads_see_the_same_value() {
        let (place, start) = (OnceBox::new(), Barrier::new(4));
        let seen: Vec<usize> = std::thread::scope(|scope| {
            let look = |number: usize| {
                start.wait();
                *place.get_or_make(|| number)
            };
            let threads: Vec<_> = (0..4).map(|number| scope.spawn(move || look(number))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert!(seen.iter().all(|value| *value == seen[0]), "{seen:?}");
    }

    /// A child is forked while another thread makes the value: the child makes its own.
    #[cfg(unix)]
    #[test]
    fn a_fork_waits_for_no_thread_of_its_parent() {
        static PLACE: OnceBox<u8> = OnceBox::new();
        let (making, forked) = (Barrier::new(2), Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                PLACE.get_or_make(|| {
                    making.wait();
                    forked.wait();
                    1
                })
            });
            making.wait();
            // SAFETY: the child allocates one byte and calls `alarm` and `_exit`, which need no
            // lock of another thread but the allocator's, which `fork` keeps usable.
            let child = unsafe { libc::fork() };
            if child == 0 {
                // SAFETY: `alarm` changes no memory. If the child waits, the signal ends it.
                unsafe { libc::alarm(10) };
                let value = *PLACE.get_or_make(|| 2);
                // SAFETY: ends this process at once.
                unsafe { libc::_exit(i32::from(value != 2)) };
            }
            forked.wait();
            let mut status = -1;
            // SAFETY: `child` is the process forked above, and `status` is writable.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            assert_eq!(status, 0);
        });
        assert_eq!(PLACE.get(), Some(&1));
    }
}
