//! A bounded lock-free queue that can be closed: many producers, and a consumer that takes several
//! items at once.
//!
//! A ring of slots, each with a sequence number that shows whether a push or a pop comes next. The
//! rules, for a ring of `capacity` slots:
//!
//! 1. A slot whose sequence equals position `p` is free for the push that claims `p`; when the item
//!    is in, its sequence becomes `p + 1`. A slot with sequence `p + 1` is ready for the pop that
//!    claims `p`; when the item is out, its sequence becomes `p + capacity`, the position of the
//!    next push that will use it.
//! 2. `tail` and `head` are claimed by compare-and-swap; the winner owns the slots between the old
//!    and the new value. A consumer claims a whole run of ready slots with one swap. Several
//!    consumers are safe: a supervisor may empty the queue of a worker that hangs.
//! 3. Closing sets one bit of `tail`. A push that has not claimed its position by then fails and
//!    returns its item; a push that has claimed one will finish. So once the queue is closed,
//!    `head == tail` means that it is empty for ever: no item is stranded behind a consumer that
//!    has left. A closed queue that is empty and has no consumer may be opened again, by a caller
//!    that knows both facts. The bit of `tail` is then cleared first, so that a push that still
//!    sees the queue closed returns its item as before.
//! 4. No item is lost silently: dropping the queue drops the items in it. A consumer that panics
//!    while it receives a run has claimed all of the run: the rest is dropped, and every slot is
//!    free again.

use std::mem::MaybeUninit;

use crate::foreign::discard;
use crate::sync::{AtomicBool, AtomicUsize, CacheLine, Ordering, UnsafeCell, spin_loop};

/// The largest capacity of a queue. Options that ask for more are refused by the types that take
/// them.
pub const QUEUE_DEPTH_MAX: usize = 1 << 20;

const CLOSED: usize = 1 << (usize::BITS - 1);

/// The queue. See the module's rules.
pub struct Queue<T> {
    tail: CacheLine<AtomicUsize>,
    head: CacheLine<AtomicUsize>,
    /// A copy of the CLOSED bit of `tail`. Consumers read it here, on a cache line that is written
    /// once, since every push writes the line of `tail`.
    closing: CacheLine<AtomicBool>,
    slots: Box<[QueueSlot<T>]>,
    mask: usize,
}

struct QueueSlot<T> {
    sequence: AtomicUsize,
    item: UnsafeCell<MaybeUninit<T>>,
}

/// Why an item was not accepted; the item is returned.
#[derive(Debug, PartialEq, Eq)]
pub enum PushError<T> {
    /// Every slot is in use.
    Full(T),
    /// The queue accepts no more items.
    Closed(T),
}

// SAFETY: an item is written by the one push that claimed its slot and read by the one pop that
// claimed it, ordered by the slot's sequence number (release, then acquire).
unsafe impl<T: Send> Send for Queue<T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for Queue<T> {}

impl<T> Queue<T> {
    /// A queue for at least `depth` items: rounded up to a power of two, at least 2, at most
    /// [`QUEUE_DEPTH_MAX`].
    pub fn new(depth: usize) -> Queue<T> {
        let capacity = depth.clamp(2, QUEUE_DEPTH_MAX).next_power_of_two();
        let slot =
            |index| QueueSlot { sequence: AtomicUsize::new(index), item: UnsafeCell::new(MaybeUninit::uninit()) };
        Queue {
            tail: CacheLine(AtomicUsize::new(0)),
            head: CacheLine(AtomicUsize::new(0)),
            closing: CacheLine(AtomicBool::new(false)),
            slots: (0..capacity).map(slot).collect(),
            mask: capacity - 1,
        }
    }

    /// The size in bytes of a queue for `depth` items, without the data that items point to.
    pub fn bytes(depth: usize) -> u64 {
        let capacity = depth.clamp(2, QUEUE_DEPTH_MAX).next_power_of_two() as u64;
        capacity.saturating_mul(size_of::<QueueSlot<T>>() as u64)
    }

    /// Number of items that fit.
    pub fn capacity(&self) -> usize {
        self.slots.len()
    }

    /// Number of items in the queue or being pushed. It may have changed when this returns.
    #[allow(clippy::len_without_is_empty)] // The question is whether a pop would find an item: `has_news`.
    pub fn len(&self) -> usize {
        let head = self.head.load(Ordering::Acquire);
        (self.tail.load(Ordering::Acquire) & !CLOSED).wrapping_sub(head) & !CLOSED
    }

    /// Whether a pop would find an item, or the queue has been closed. Reads no cache line that
    /// every push writes, except the slot's.
    pub fn has_news(&self) -> bool {
        let head = self.head.load(Ordering::Relaxed);
        let sequence = self.slots[head & self.mask].sequence.load(Ordering::Acquire);
        sequence == head.wrapping_add(1) & !CLOSED || self.closing.load(Ordering::Acquire)
    }

    /// Whether a quarter of the queue is free, or it has been closed. A producer that met a full
    /// queue waits for this: pushing into each slot as soon as it is free would cost producer and
    /// consumer a cache miss for every item.
    pub fn has_room_for_a_run(&self) -> bool {
        self.len() <= self.capacity() - self.capacity().div_ceil(4) || self.closing.load(Ordering::Acquire)
    }

    /// True once the queue is closed and all its items have been claimed: no item will ever come
    /// out again.
    pub fn is_finished(&self) -> bool {
        if !self.closing.load(Ordering::Acquire) {
            return false;
        }
        let tail = self.tail.load(Ordering::Acquire);
        tail & CLOSED != 0 && self.head.load(Ordering::Acquire) == tail & !CLOSED
    }

    /// True once the queue accepts no more items.
    pub fn is_closed(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// Refuses items from now on. The items in the queue can still be popped.
    pub fn close(&self) {
        self.tail.fetch_or(CLOSED, Ordering::AcqRel);
        self.closing.store(true, Ordering::Release);
    }

    /// Accepts items again. Only for a queue that is finished, by the thread that closed it.
    pub fn open_again(&self) {
        self.tail.fetch_and(!CLOSED, Ordering::AcqRel);
        self.closing.store(false, Ordering::Release);
    }

    /// Puts an item in.
    pub fn push(&self, item: T) -> Result<(), PushError<T>> {
        let mut tail = self.tail.load(Ordering::Relaxed);
        loop {
            if tail & CLOSED != 0 {
                return Err(PushError::Closed(item));
            }
            let slot = &self.slots[tail & self.mask];
            let sequence = slot.sequence.load(Ordering::Acquire);
            if sequence == tail {
                let next = tail.wrapping_add(1) & !CLOSED;
                match self.tail.compare_exchange_weak(tail, next, Ordering::Relaxed, Ordering::Relaxed) {
                    Ok(_) => {
                        // SAFETY: this push claimed position `tail`, and the slot is free for it
                        // (rule 1).
                        slot.item.with_mut(|place| unsafe { (*place).write(item) });
                        slot.sequence.store(next, Ordering::Release);
                        return Ok(());
                    }
                    Err(current) => tail = current,
                }
            } else if self.distance(sequence, tail) > self.slots.len() {
                // The slot still holds the item of the previous lap.
                if self.tail.load(Ordering::Relaxed) == tail {
                    return Err(PushError::Full(item));
                }
                tail = self.tail.load(Ordering::Relaxed);
            } else {
                tail = self.tail.load(Ordering::Relaxed);
                spin_loop();
            }
        }
    }

    /// Takes up to `count_max` items that are ready, oldest first, and returns how many. An item
    /// whose push is not finished yet ends the run.
    pub fn pop_many(&self, count_max: usize, mut receive: impl FnMut(T)) -> usize {
        self.pop_numbered(count_max, |_, item| receive(item))
    }

    /// [`Queue::pop_many`] that also passes each item's position, counted from the queue's
    /// beginning.
    pub fn pop_numbered(&self, count_max: usize, mut receive: impl FnMut(usize, T)) -> usize {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            let mut ready = 0;
            while ready < count_max {
                let position = head.wrapping_add(ready) & !CLOSED;
                let sequence = self.slots[position & self.mask].sequence.load(Ordering::Acquire);
                if sequence != position.wrapping_add(1) & !CLOSED {
                    break;
                }
                ready += 1;
            }
            if ready == 0 {
                let current = self.head.load(Ordering::Relaxed);
                if current == head {
                    return 0;
                }
                head = current;
                continue;
            }
            let next = head.wrapping_add(ready) & !CLOSED;
            match self.head.compare_exchange_weak(head, next, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => {
                    self.take_claimed(head, ready, &mut receive);
                    return ready;
                }
                Err(current) => head = current,
            }
        }
    }

    /// Takes one item, if one is ready.
    pub fn pop(&self) -> Option<T> {
        let mut item = None;
        self.pop_many(1, |popped| item = Some(popped));
        item
    }

    fn take_claimed(&self, head: usize, count: usize, receive: &mut impl FnMut(usize, T)) {
        let mut claimed = ClaimedRun { queue: self, next: head, left: count };
        while let Some((position, item)) = claimed.take() {
            receive(position, item);
        }
    }

    /// How far `sequence` is ahead of `tail` on the ring of positions; more than the capacity means
    /// behind.
    fn distance(&self, sequence: usize, tail: usize) -> usize {
        sequence.wrapping_sub(tail) & !CLOSED
    }
}

impl<T> Drop for Queue<T> {
    fn drop(&mut self) {
        while self.pop_many(usize::MAX, discard) > 0 {}
    }
}

/// The part of a claimed run that was not taken yet.
struct ClaimedRun<'a, T> {
    queue: &'a Queue<T>,
    next: usize,
    left: usize,
}

impl<T> ClaimedRun<'_, T> {
    fn take(&mut self) -> Option<(usize, T)> {
        self.left = self.left.checked_sub(1)?;
        let position = self.next;
        self.next = position.wrapping_add(1) & !CLOSED;
        let slot = &self.queue.slots[position & self.queue.mask];
        // SAFETY: this pop claimed `position`, which it takes once, and the slot was seen ready for
        // it with acquire ordering (rule 1).
        let item = slot.item.with(|place| unsafe { (*place).assume_init_read() });
        slot.sequence.store(position.wrapping_add(self.queue.slots.len()) & !CLOSED, Ordering::Release);
        Some((position, item))
    }
}

impl<T> Drop for ClaimedRun<'_, T> {
    fn drop(&mut self) {
        while let Some((_, item)) = self.take() {
            discard(item);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn items_come_out_in_order_and_the_bound_holds() {
        let queue = Queue::new(3);
        assert_eq!(queue.capacity(), 4);
        for lap in 0..10 {
            for item in 0..4 {
                queue.push(lap * 4 + item).unwrap();
            }
            assert_eq!(queue.push(99), Err(PushError::Full(99)));
            let mut out = Vec::new();
            assert_eq!(queue.pop_many(3, |item| out.push(item)), 3);
            assert_eq!(queue.pop(), Some(lap * 4 + 3));
            assert_eq!(out, [lap * 4, lap * 4 + 1, lap * 4 + 2]);
            assert_eq!((queue.pop(), queue.len()), (None, 0));
        }
    }

    #[test]
    fn absurd_depths_are_brought_into_range() {
        assert_eq!(Queue::<u8>::new(0).capacity(), 2);
        assert_eq!(Queue::<u8>::new(usize::MAX).capacity(), QUEUE_DEPTH_MAX);
    }

    #[test]
    fn a_closed_queue_gives_out_what_it_has_and_takes_nothing() {
        let queue = Queue::new(4);
        queue.push(1).unwrap();
        queue.close();
        assert_eq!(queue.push(2), Err(PushError::Closed(2)));
        assert!(!queue.is_finished() && queue.is_closed());
        assert_eq!((queue.pop(), queue.pop()), (Some(1), None));
        assert!(queue.is_finished());
        queue.open_again();
        assert!(!queue.is_closed() && !queue.is_finished());
        for item in 0..12 {
            assert_eq!((queue.push(item), queue.pop()), (Ok(()), Some(item)));
        }
        queue.close();
        assert!(queue.is_finished());
    }

    #[test]
    fn what_is_left_is_dropped_with_the_queue() {
        let item = Arc::new(());
        let queue = Queue::new(4);
        queue.push(item.clone()).unwrap();
        drop(queue);
        assert_eq!(Arc::strong_count(&item), 1);
    }

    #[test]
    fn a_consumer_that_panics_leaves_no_slot_behind() {
        let (queue, items) = (Queue::new(4), Arc::new(()));
        (0..4).for_each(|_| queue.push(Arc::clone(&items)).unwrap());
        let fails = std::panic::AssertUnwindSafe(|| queue.pop_many(3, |_| std::panic::resume_unwind(Box::new(()))));
        assert!(std::panic::catch_unwind(fails).is_err());
        assert_eq!((Arc::strong_count(&items), queue.len()), (2, 1), "what was claimed is dropped");
        (0..3).for_each(|_| queue.push(Arc::clone(&items)).unwrap());
        assert_eq!(queue.pop_many(8, drop), 4);
    }

    #[test]
    fn producers_and_consumers_lose_nothing() {
        const EACH: usize = 20_000;
        let queue = Arc::new(Queue::new(64));
        let producers: Vec<_> = (0..3)
            .map(|producer| {
                let queue = Arc::clone(&queue);
                std::thread::spawn(move || {
                    for number in 0..EACH {
                        let mut item = producer * EACH + number;
                        while let Err(PushError::Full(back)) = queue.push(item) {
                            item = back;
                            std::thread::yield_now();
                        }
                    }
                })
            })
            .collect();
        let mut seen = vec![false; 3 * EACH];
        let mut count = 0;
        let mut last = [None; 3];
        while count < 3 * EACH {
            let popped = queue.pop_many(16, |item| {
                assert!(!std::mem::replace(&mut seen[item], true));
                assert!(last[item / EACH].is_none_or(|last| last < item), "each producer's order is kept");
                last[item / EACH] = Some(item);
                count += 1;
            });
            if popped == 0 {
                std::thread::yield_now();
            }
        }
        producers.into_iter().for_each(|producer| producer.join().unwrap());
        assert!(seen.into_iter().all(|seen| seen));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{Arc, thread};

    #[test]
    fn loom_two_producers_one_consumer() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(2));
            let producers: Vec<_> = (0..2)
                .map(|item| {
                    let queue = queue.clone();
                    thread::spawn(move || queue.push(item).is_ok())
                })
                .collect();
            let mut taken = 0;
            queue.pop_many(2, |_| taken += 1);
            let pushed = producers.into_iter().filter(|_| true).map(|thread| thread.join().unwrap());
            let pushed = pushed.filter(|pushed| *pushed).count();
            while queue.pop().is_some() {
                taken += 1;
            }
            assert_eq!(pushed, taken);
        });
    }

    #[test]
    fn loom_close_strands_nothing() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(2));
            let producer = {
                let queue = queue.clone();
                thread::spawn(move || queue.push(1).is_ok())
            };
            queue.close();
            let mut taken = 0;
            while !queue.is_finished() {
                taken += queue.pop_many(2, |_| {});
                thread::yield_now();
            }
            let pushed = producer.join().unwrap();
            assert_eq!(usize::from(pushed), taken);
        });
    }

    #[test]
    fn loom_two_consumers_share_without_overlap() {
        loom::model(|| {
            let queue = Arc::new(Queue::new(2));
            queue.push(1).unwrap();
            queue.push(2).unwrap();
            let other = {
                let queue = queue.clone();
                thread::spawn(move || queue.pop_many(2, |_| {}))
            };
            let mine = queue.pop_many(2, |_| {});
            let theirs = other.join().unwrap();
            assert_eq!(mine + theirs, 2);
        });
    }
}
