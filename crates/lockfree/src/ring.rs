//! The bounded ring between two stages, and the items in it.
//!
//! 1. Positions are given out before the work is done: a stage that takes an item from one ring
//!    reserves a position in the next one. So its output always has room, and items leave in the
//!    order in which they came, regardless of the order in which they are finished.
//! 2. A stage that need not keep order promises instead: room is set aside, and the position is
//!    taken when the item is there.
//! 3. An item that was left out is an item without a value. It still takes its position, so that
//!    the join of two branches sees the same items in both.
//! 4. The lock is held for a few instructions, never while foreign code runs. Any thread may read
//!    `ready`, `room` and `finished` without it.

use std::collections::VecDeque;
use std::task::Waker;
use std::time::Instant;

use crate::foreign::{contain, discard};
use crate::sync::{AtomicBool, AtomicUsize, Mutex, MutexGuard, Ordering};

/// The largest capacity of a ring.
pub const RING_DEPTH_MAX: usize = 1 << 20;
/// The capacity up to which memory is allocated at once. Larger rings allocate the rest when it is
/// first needed.
const DEPTH_AT_FIRST_MAX: usize = 1024;

/// An item on its way through a pipeline.
pub struct Item<T> {
    /// Its position among all items of its source.
    pub number: u64,
    /// When its source gave it.
    pub born: Instant,
    /// `None` if the item was left out on its way.
    pub value: Option<T>,
}

impl<T> Item<T> {
    /// The same item with the output of a stage.
    pub fn with<U>(&self, value: Option<U>) -> Item<U> {
        Item { number: self.number, born: self.born, value }
    }
}

/// A bounded ring between two stages. See the module's rules.
pub struct Ring<T> {
    state: Mutex<State<T>>,
    capacity: usize,
    ready: AtomicUsize,
    used: AtomicUsize,
    used_max: AtomicUsize,
    finished: AtomicBool,
}

struct State<T> {
    /// `None` is a reserved position whose item has not arrived yet.
    slots: VecDeque<Option<Item<T>>>,
    /// The position of the first slot.
    head: u64,
    /// How many slots at the front have their items.
    ready: usize,
    promised: usize,
    ended: bool,
    /// Wakers of threads outside the pipeline that wait for items, and for room.
    reader: Option<Waker>,
    writers: Vec<Waker>,
}

impl<T> Ring<T> {
    /// A ring for `capacity` items, clamped to the allowed range. A value out of range is reported
    /// by the check of the stage's options.
    pub fn new(capacity: usize) -> Ring<T> {
        let capacity = capacity.clamp(1, RING_DEPTH_MAX);
        let state = State {
            slots: VecDeque::with_capacity(capacity.min(DEPTH_AT_FIRST_MAX)),
            head: 0,
            ready: 0,
            promised: 0,
            ended: false,
            reader: None,
            writers: Vec::new(),
        };
        Ring {
            state: Mutex::new(state),
            capacity,
            ready: AtomicUsize::new(0),
            used: AtomicUsize::new(0),
            used_max: AtomicUsize::new(0),
            finished: AtomicBool::new(false),
        }
    }

    /// Number of items that fit.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Number of items that can be taken now.
    pub fn ready(&self) -> usize {
        self.ready.load(Ordering::Acquire)
    }

    /// Number of items, reserved positions and promises.
    pub fn used(&self) -> usize {
        self.used.load(Ordering::Acquire)
    }

    /// The largest number of items, reserved positions and promises at one time.
    pub fn used_max(&self) -> usize {
        self.used_max.load(Ordering::Relaxed)
    }

    /// Number of items for which there is room.
    pub fn room(&self) -> usize {
        self.capacity.saturating_sub(self.used())
    }

    /// Whether the ring is empty and no item will come.
    pub fn is_finished(&self) -> bool {
        self.finished.load(Ordering::Acquire)
    }

    /// Reserves positions for `count` items, in this order. The caller has seen that there is room,
    /// and no other thread reserves.
    pub fn reserve(&self, count: usize) -> u64 {
        let mut state = self.lock();
        let first = state.head + state.slots.len() as u64;
        state.slots.extend(std::iter::repeat_with(|| None).take(count));
        self.publish(state);
        first
    }

    /// Puts an item into its position.
    pub fn fill(&self, position: u64, item: Item<T>) {
        let mut state = self.lock();
        let index = usize::try_from(position.wrapping_sub(state.head)).unwrap_or(usize::MAX);
        match state.slots.get_mut(index) {
            Some(slot) => *slot = Some(item),
            // The ring was emptied meanwhile.
            None => {
                drop(state);
                return discard(item);
            }
        }
        while state.slots.get(state.ready).is_some_and(Option::is_some) {
            state.ready += 1;
        }
        self.publish(state);
    }

    /// Sets room aside for `count` items that may arrive in any order.
    pub fn promise(&self, count: usize) {
        let mut state = self.lock();
        state.promised += count;
        self.publish(state);
    }

    /// Puts in an item that was promised.
    pub fn fulfil(&self, item: Item<T>) {
        let mut state = self.lock();
        state.promised = state.promised.saturating_sub(1);
        state.slots.push_back(Some(item));
        state.ready += 1;
        self.publish(state);
    }

    /// Appends an item, if there is room and the ring has not ended.
    pub fn push(&self, item: Item<T>) -> Result<(), Item<T>> {
        self.insert(item, |item, _| item)
    }

    /// [`Ring::push`] for a value whose number is its position among all values that were pushed.
    pub fn push_next(&self, born: Instant, value: T) -> Result<(), T> {
        self.insert(value, |value, number| Item { number, born, value: Some(value) })
    }

    fn insert<V>(&self, value: V, item: impl FnOnce(V, u64) -> Item<T>) -> Result<(), V> {
        let mut state = self.lock();
        if state.ended || state.slots.len() + state.promised >= self.capacity {
            return Err(value);
        }
        let place = state.head + state.slots.len() as u64;
        state.slots.push_back(Some(item(value, place)));
        // A ring that is pushed to has no reservations, so no position before this one is empty.
        state.ready += 1;
        self.publish(state);
        Ok(())
    }

    /// Takes up to `count_max` items.
    pub fn pop_into(&self, count_max: usize, items: &mut Vec<Item<T>>) -> usize {
        let mut state = self.lock();
        let count = state.ready.min(count_max);
        for _ in 0..count {
            items.extend(state.slots.pop_front().flatten());
        }
        if count > 0 {
            state.ready -= count;
            state.head += count as u64;
            self.publish(state);
        }
        count
    }

    /// Takes one item.
    pub fn pop(&self) -> Option<Item<T>> {
        if self.ready() == 0 {
            return None;
        }
        let mut state = self.lock();
        if state.ready == 0 {
            return None;
        }
        let item = state.slots.pop_front().flatten();
        state.ready -= 1;
        state.head += 1;
        self.publish(state);
        item
    }

    /// Ends the ring: no item will come after those in it.
    pub fn end(&self) {
        let mut state = self.lock();
        state.ended = true;
        self.publish(state);
    }

    /// Ends the ring and discards everything in it. Returns how many items with a value there were.
    pub fn abandon(&self) -> u64 {
        let mut state = self.lock();
        state.ended = true;
        state.head += state.slots.len() as u64;
        let slots = std::mem::take(&mut state.slots);
        (state.ready, state.promised) = (0, 0);
        self.publish(state);
        let count = slots.iter().flatten().filter(|item| item.value.is_some()).count();
        slots.into_iter().for_each(discard);
        count as u64
    }

    /// Ends the ring and discards its reservations and every item that is not ready. Items that are
    /// ready can still be taken.
    pub fn cut(&self) {
        let mut state = self.lock();
        state.ended = true;
        let ready = state.ready;
        let late = state.slots.split_off(ready);
        state.promised = 0;
        self.publish(state);
        late.into_iter().for_each(discard);
    }

    /// Registers a waker outside the pipeline, called when there is an item, or at the end. The
    /// caller must look once more after this.
    pub fn wait_for_items(&self, waker: &Waker) {
        let waker = waker.clone();
        let before = self.lock().reader.replace(waker);
        discard(before);
    }

    /// Registers a waker outside the pipeline, called when there is room, or at the end. The caller
    /// must look once more after this.
    pub fn wait_for_room(&self, waker: &Waker) {
        let waker = waker.clone();
        let mut state = self.lock();
        if !state.writers.iter().any(|known| known.will_wake(&waker)) {
            state.writers.push(waker);
        }
    }

    /// Whether the ring accepts no more items.
    pub fn is_ended(&self) -> bool {
        self.lock().ended
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Publishes the new state, and wakes the threads outside that wait for it.
    fn publish(&self, mut state: MutexGuard<'_, State<T>>) {
        let used = state.slots.len() + state.promised;
        self.ready.store(state.ready, Ordering::Release);
        self.used.store(used, Ordering::Release);
        if used > self.used_max.load(Ordering::Relaxed) {
            self.used_max.store(used, Ordering::Relaxed);
        }
        if state.ended && used == 0 {
            self.finished.store(true, Ordering::Release);
        }
        let reader = if state.ready > 0 || (state.ended && used == 0) { state.reader.take() } else { None };
        let has_writers = !state.writers.is_empty() && (used < self.capacity || state.ended);
        let writers = if has_writers { std::mem::take(&mut state.writers) } else { Vec::new() };
        drop(state);
        for waker in reader.into_iter().chain(writers) {
            // A panic in a foreign waker stays with its owner.
            let _ = contain(|| waker.wake());
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn item(number: u64) -> Item<u64> {
        Item { number, born: Instant::now(), value: Some(number) }
    }

    #[test]
    fn items_leave_in_the_order_of_their_places() {
        let ring = Ring::new(4);
        let first = ring.reserve(3);
        ring.fill(first + 2, item(2));
        ring.fill(first + 1, item(1));
        assert_eq!((ring.ready(), ring.room()), (0, 1));
        ring.fill(first, item(0));
        assert_eq!(ring.ready(), 3);
        let taken: Vec<u64> = std::iter::from_fn(|| ring.pop()).map(|item| item.number).collect();
        assert_eq!((taken, ring.room(), ring.used_max()), (vec![0, 1, 2], 4, 3));
    }

    #[test]
    fn promised_items_leave_in_the_order_in_which_they_come() {
        let ring = Ring::new(2);
        ring.promise(2);
        assert!(ring.push(item(9)).is_err(), "promised room is not free");
        ring.fulfil(item(5));
        ring.fulfil(item(4));
        let mut taken = Vec::new();
        ring.pop_into(8, &mut taken);
        assert_eq!(taken.iter().map(|item| item.number).collect::<Vec<_>>(), [5, 4]);
    }

    #[test]
    fn a_ring_is_finished_when_it_has_ended_and_is_empty() {
        let ring = Ring::new(2);
        assert!(ring.push(item(0)).is_ok());
        let late = ring.reserve(1);
        ring.end();
        assert!(!ring.is_finished() && ring.push(item(1)).is_err());
        assert_eq!(ring.abandon(), 1);
        assert!(ring.is_finished());
        ring.fill(late, item(1));
        assert_eq!((ring.used(), ring.ready()), (0, 0), "what comes after is let go");
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, thread};

    fn item(number: u64) -> Item<u64> {
        Item { number, born: Instant::now(), value: Some(number) }
    }

    /// A thread outside the pipeline that waits.
    struct Outside(loom::sync::Notify);

    impl std::task::Wake for Outside {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.notify();
        }
    }

    fn outside() -> (std::sync::Arc<Outside>, Waker) {
        let outside = std::sync::Arc::new(Outside(loom::sync::Notify::new()));
        (outside.clone(), Waker::from(outside))
    }

    /// Takes the next item as a receiver does: it looks, registers its waker, looks again, and
    /// waits.
    fn receive(ring: &Ring<u64>, (outside, waker): &(std::sync::Arc<Outside>, Waker)) -> Option<u64> {
        loop {
            for look_again in [true, false] {
                if let Some(item) = ring.pop() {
                    return item.value;
                }
                if ring.is_finished() {
                    return None;
                }
                if look_again {
                    ring.wait_for_items(waker);
                }
            }
            outside.0.wait();
        }
    }

    #[test]
    fn loom_a_receiver_is_woken_for_items_and_for_the_end() {
        loom::model(|| {
            let ring = Arc::new(Ring::new(2));
            let gives = {
                let ring = ring.clone();
                thread::spawn(move || {
                    assert!(ring.push(item(7)).is_ok());
                    ring.end();
                })
            };
            let outside = outside();
            assert_eq!((receive(&ring, &outside), receive(&ring, &outside)), (Some(7), None));
            gives.join().unwrap();
        });
    }

    #[test]
    fn loom_a_sender_is_woken_for_room() {
        loom::model(|| {
            let ring = Arc::new(Ring::new(1));
            assert!(ring.push(item(0)).is_ok());
            let takes = {
                let ring = ring.clone();
                thread::spawn(move || assert!(ring.pop().is_some()))
            };
            let (outside, waker) = outside();
            loop {
                ring.wait_for_room(&waker);
                if ring.push_next(Instant::now(), 1).is_ok() {
                    break;
                }
                outside.0.wait();
            }
            takes.join().unwrap();
            assert_eq!(ring.pop().map(|item| item.number), Some(1));
        });
    }

    #[test]
    fn loom_places_that_are_filled_by_several_leave_in_order() {
        loom::model(|| {
            let ring = Arc::new(Ring::new(2));
            let first = ring.reserve(2);
            let fills = {
                let ring = ring.clone();
                thread::spawn(move || ring.fill(first + 1, item(1)))
            };
            ring.fill(first, item(0));
            assert_eq!(ring.pop().map(|item| item.number), Some(0));
            fills.join().unwrap();
            assert_eq!((ring.ready(), ring.pop().map(|item| item.number)), (1, Some(1)));
        });
    }
}
