//! Wakes many threads at once. Waking a thread is a system call, and a worker that made all of
//! these calls would leave its device idle meanwhile. So threads that were woken first wake the
//! others.
//!
//! 1. One [`Caller`], the worker, adds wakers at the end of a list of fixed length. Every thread
//!    that holds the list may take wakers out of it, each waker once.
//! 2. `added` is raised after a waker was put into its slot, and `taken` before it is taken out. A
//!    slot belongs to the caller until `added` has passed it, and from then on to the thread that
//!    raised `taken` past it.
//! 3. After it has added the last waker, the caller wakes all that are left, so no wake-up depends
//!    on the other threads.
//! 4. Only wakers that unpark a thread are put on the list. Any other waker is foreign code, which
//!    may not return: the caller calls it itself, after it has woken every thread on the list. A
//!    panic is contained.
//! 5. The caller may also get stuck in other foreign code while the list is not empty. So the list
//!    is on a [`Board`] meanwhile, where the supervisor finds it.

use std::task::Waker;

use crate::foreign::contain;
use crate::sync::{Arc, AtomicPtr, AtomicUsize, Ordering, UnsafeCell};

/// How many wakers a woken thread calls before it returns to its own caller.
const HELPED_MAX: usize = 8;
/// How many threads the worker wakes itself; these wake the others.
const HELPERS: usize = 2;

/// The list of wakers.
pub struct Wakes {
    places: Box<[UnsafeCell<Option<Waker>>]>,
    added: AtomicUsize,
    taken: AtomicUsize,
}

// SAFETY: a slot is accessed by one thread at a time; see the module's second rule.
unsafe impl Send for Wakes {}
// SAFETY: as above.
unsafe impl Sync for Wakes {}

/// The worker's end of the list.
pub struct Caller {
    wakes: Arc<Wakes>,
    called: usize,
    board: Arc<Board>,
}

/// Holds the list of a worker while the worker adds to it.
#[derive(Default)]
pub struct Board(AtomicPtr<Wakes>);

impl Board {
    /// A board without a list.
    pub fn new() -> Board {
        Board(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// Wakes every thread on the list of a stuck worker, if there is a list.
    pub fn wake_all(&self) {
        if let Some(wakes) = self.put(std::ptr::null_mut()) {
            while wakes.wake_one() {}
        }
    }

    /// Stores a list (or null) and returns the previous one.
    fn put(&self, wakes: *mut Wakes) -> Option<Arc<Wakes>> {
        let before = self.0.swap(wakes, Ordering::AcqRel);
        // SAFETY: a non-null pointer came from `Arc::into_raw` in `Caller::new`, and the swap
        // removed it permanently.
        (!before.is_null()).then(|| unsafe { Arc::from_raw(before.cast_const()) })
    }
}

impl Drop for Board {
    fn drop(&mut self) {
        self.put(std::ptr::null_mut());
    }
}

impl Caller {
    /// Creates a list for `count_max` wakers, and puts it on a board.
    pub fn new(count_max: usize, board: &Arc<Board>) -> Caller {
        let places = (0..count_max).map(|_| UnsafeCell::new(None)).collect();
        let wakes = Arc::new(Wakes { places, added: AtomicUsize::new(0), taken: AtomicUsize::new(0) });
        board.put(Arc::into_raw(wakes.clone()).cast_mut());
        Caller { wakes, called: 0, board: board.clone() }
    }

    /// The list, for a thread that is about to be woken.
    #[inline]
    pub fn wakes(&self) -> Arc<Wakes> {
        self.wakes.clone()
    }

    /// Calls this waker, or adds it to the list.
    #[inline]
    pub fn call(&mut self, waker: &Waker) {
        if unparks(waker) {
            return self.add(waker);
        }
        while self.wakes.wake_one() {}
        let _ = contain(|| waker.wake_by_ref());
    }

    /// Calls a waker that unparks a thread, or adds it to the list.
    fn add(&mut self, waker: &Waker) {
        self.called += 1;
        let end = self.wakes.added.load(Ordering::Relaxed);
        let at_once = self.called <= HELPERS || end >= self.wakes.places.len();
        let copy = if at_once { None } else { contain(|| waker.clone()).ok() };
        let Some(copy) = copy else {
            let _ = contain(|| waker.wake_by_ref());
            return;
        };
        // SAFETY: `added` has not passed this slot, so it is the caller's (rule 2), and there is
        // one caller.
        self.wakes.places[end].with_mut(|place| unsafe { *place = Some(copy) });
        self.wakes.added.store(end + 1, Ordering::Release);
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        while self.wakes.wake_one() {}
        self.board.put(std::ptr::null_mut());
    }
}

/// Whether this waker unparks a thread, so that it is not foreign code.
#[cfg(not(loom))]
#[inline]
pub fn unparks(waker: &Waker) -> bool {
    crate::blocking::unparks(waker)
}

/// In the model no thread blocks.
#[cfg(loom)]
pub fn unparks(_: &Waker) -> bool {
    false
}

impl Wakes {
    /// Calls up to [`HELPED_MAX`] of the remaining wakers.
    #[inline]
    pub fn help(&self) {
        for _ in 0..HELPED_MAX {
            if !self.wake_one() {
                return;
            }
        }
    }

    fn wake_one(&self) -> bool {
        let mut next = self.taken.load(Ordering::Relaxed);
        loop {
            if next >= self.added.load(Ordering::Acquire) {
                return false;
            }
            match self.taken.compare_exchange_weak(next, next + 1, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(found) => next = found,
            }
        }
        // SAFETY: `added` has passed this slot and this thread raised `taken` past it, so the slot
        // is this thread's (rule 2).
        if let Some(waker) = self.places[next].with_mut(|place| unsafe { (*place).take() }) {
            let _ = contain(|| waker.wake());
        }
        true
    }
}

#[cfg(test)]
mod tests {
    #[cfg(not(loom))]
    use super::*;
    use std::sync::Arc as StdArc;
    use std::sync::atomic::AtomicUsize as StdAtomicUsize;
    use std::task::Wake;

    pub(super) struct CountWakes(pub(super) StdAtomicUsize);

    impl Wake for CountWakes {
        fn wake(self: StdArc<Self>) {
            self.0.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        }
    }

    pub(super) fn sleepers(count: usize) -> Vec<StdArc<CountWakes>> {
        (0..count).map(|_| StdArc::new(CountWakes(StdAtomicUsize::new(0)))).collect()
    }

    pub(super) fn counts(sleepers: &[StdArc<CountWakes>]) -> Vec<usize> {
        sleepers.iter().map(|sleeper| sleeper.0.load(std::sync::atomic::Ordering::SeqCst)).collect()
    }

    #[cfg(not(loom))]
    #[test]
    fn everybody_is_woken_once_with_help_and_without() {
        for help in [0, 1, 5] {
            let sleepers = sleepers(40);
            let mut caller = Caller::new(30, &Arc::new(Board::new()));
            for (number, sleeper) in sleepers.iter().enumerate() {
                caller.add(&Waker::from(sleeper.clone()));
                if number > 0 && help > 0 && number % help == 0 {
                    caller.wakes().help();
                }
            }
            drop(caller);
            assert_eq!(counts(&sleepers), [1; 40], "with help every {help}, and more of them than the list has places");
        }
    }

    #[cfg(not(loom))]
    #[test]
    fn the_first_ones_are_woken_at_once_and_a_helper_wakes_a_few() {
        let sleepers = sleepers(40);
        let mut caller = Caller::new(40, &Arc::new(Board::new()));
        sleepers.iter().for_each(|sleeper| caller.add(&Waker::from(sleeper.clone())));
        assert_eq!(counts(&sleepers).iter().sum::<usize>(), HELPERS);
        caller.wakes().help();
        assert_eq!(counts(&sleepers).iter().sum::<usize>(), HELPERS + HELPED_MAX);
    }

    #[cfg(not(loom))]
    #[test]
    fn foreign_wakers_are_called_at_once_and_nobody_on_the_list_waits_for_them() {
        struct Looks(Vec<StdArc<CountWakes>>, StdAtomicUsize);
        impl Wake for Looks {
            fn wake(self: StdArc<Self>) {
                self.1.store(counts(&self.0).iter().sum(), std::sync::atomic::Ordering::SeqCst);
            }
        }
        let sleepers = sleepers(20);
        let looks = StdArc::new(Looks(sleepers.clone(), StdAtomicUsize::new(0)));
        let mut caller = Caller::new(40, &Arc::new(Board::new()));
        sleepers[..10].iter().for_each(|sleeper| caller.add(&Waker::from(sleeper.clone())));
        caller.call(&Waker::from(looks.clone()));
        assert_eq!(looks.1.load(std::sync::atomic::Ordering::SeqCst), 10, "everybody before it was woken first");
        sleepers[10..].iter().for_each(|sleeper| caller.call(&Waker::from(sleeper.clone())));
        assert_eq!(counts(&sleepers), [1; 20], "no foreign waker is left to somebody else");
    }

    #[cfg(not(loom))]
    #[test]
    fn whoever_finds_the_board_of_a_stuck_worker_wakes_those_on_its_list() {
        let (sleepers, board) = (sleepers(20), Arc::new(Board::new()));
        let mut caller = Caller::new(20, &board);
        sleepers.iter().for_each(|sleeper| caller.add(&Waker::from(sleeper.clone())));
        assert_eq!(counts(&sleepers).iter().sum::<usize>(), HELPERS);
        board.wake_all();
        assert_eq!(counts(&sleepers), [1; 20]);
        board.wake_all();
        drop(caller);
        assert_eq!(counts(&sleepers), [1; 20], "each once");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::tests::{counts, sleepers};
    use super::*;
    use crate::sync::thread;

    #[test]
    fn loom_each_is_woken_once_whoever_helps() {
        loom::model(|| {
            let sleepers = sleepers(HELPERS + 2);
            let mut caller = Caller::new(HELPERS + 2, &Arc::new(Board::new()));
            let wakes = caller.wakes();
            let helper = thread::spawn(move || wakes.help());
            sleepers.iter().for_each(|sleeper| caller.add(&Waker::from(sleeper.clone())));
            drop(caller);
            helper.join().unwrap();
            assert_eq!(counts(&sleepers), [1; HELPERS + 2]);
        });
    }
}
