//! One question, one answer: the record that a caller and a worker share.
//!
//! A slot is a single allocation that carries the question to the worker and, in the same place,
//! the answer back. So it stays small enough for the allocator's fast path, and its cache lines
//! cross between the two threads only once. Its two ends are a [`Ticket`] (the worker's duty to
//! answer) and a [`Receiver`] (the caller's right to one answer). The rules:
//!
//! 1. A ticket is answered once, by value. Dropping an unanswered ticket answers "abandoned", so a
//!    panic, a closed queue or a lost worker cannot leave a caller waiting.
//! 2. `state` has three bits. DONE is set by the ticket after the answer is written; WAITER by the
//!    receiver after its waker is written; CANCELLED when the receiver is dropped. Every change is
//!    one atomic read-modify-write, so each side sees the earlier changes of the other.
//! 3. The waker's cell belongs to the receiver while WAITER is clear. While WAITER is set, the
//!    ticket may read the cell, once, when it sets DONE. A receiver that wants to change the waker
//!    first clears WAITER. If DONE was set by then, the ticket may be reading, and the receiver
//!    leaves the cell alone: the answer is there anyway. A ticket that is answered together with
//!    others does not wake its receiver at once: it copies the waker to a list, and the first
//!    receivers that take an answer help with the list that came with it.
//! 4. The contents' cell belongs to the ticket until DONE is set, and to the receiver after that.
//!    Answering drops a question that was not taken.
//! 5. Questions, answers and wakers are foreign: their destructors and calls may panic, or not
//!    return. Answering never panics, and always sets DONE. A thread that answers on behalf of
//!    others uses `Ticket::answer_apart`: the foreign calls come back as [`Remains`], and are made
//!    after all the other ops have their answers.

use std::task::{Context, Poll, Waker};
#[cfg(not(loom))]
use std::time::Instant;

use crate::foreign::{contain, discard};
#[cfg(not(loom))]
use crate::process::Process;
use crate::sync::{Arc, AtomicU8, Ordering, UnsafeCell};
use crate::wakes::{Caller, Wakes, unparks};

const DONE: u8 = 1;
const WAITER: u8 = 2;
const CANCELLED: u8 = 4;

/// The state that a ticket and a receiver share.
struct AnswerSlot<Q, A> {
    state: AtomicU8,
    contents: UnsafeCell<Contents<Q, A>>,
    waker: UnsafeCell<Option<Waker>>,
}

/// The contents of a slot.
enum Contents<Q, A> {
    Question(Q),
    /// The question was taken and the answer is not there yet; or the answer was taken, or never
    /// came.
    Nothing,
    /// The answer, and the wake-ups of receivers that were answered at the same time.
    Answer(A, Option<Arc<Wakes>>),
}

impl<Q, A> Contents<Q, A> {
    fn take_question(&mut self) -> Option<Q> {
        match std::mem::replace(self, Contents::Nothing) {
            Contents::Question(question) => Some(question),
            other => {
                *self = other;
                None
            }
        }
    }

    fn take_answer(&mut self) -> Option<(A, Option<Arc<Wakes>>)> {
        match std::mem::replace(self, Contents::Nothing) {
            Contents::Answer(answer, others) => Some((answer, others)),
            Contents::Question(_) | Contents::Nothing => None,
        }
    }
}

// SAFETY: every cell is accessed by one side at a time; see the module's rules.
unsafe impl<Q: Send, A: Send> Send for AnswerSlot<Q, A> {}
// SAFETY: as above.
unsafe impl<Q: Send, A: Send> Sync for AnswerSlot<Q, A> {}

/// The duty to answer.
pub struct Ticket<Q, A> {
    slot: Option<Arc<AnswerSlot<Q, A>>>,
}

/// The right to one answer.
pub struct Receiver<Q, A> {
    slot: Arc<AnswerSlot<Q, A>>,
}

/// A new slot that holds a question.
pub fn slot<Q, A>(question: Q) -> (Ticket<Q, A>, Receiver<Q, A>) {
    let slot = Arc::new(AnswerSlot {
        state: AtomicU8::new(0),
        contents: UnsafeCell::new(Contents::Question(question)),
        waker: UnsafeCell::new(None),
    });
    (Ticket { slot: Some(slot.clone()) }, Receiver { slot })
}

impl<Q, A> Ticket<Q, A> {
    /// A ticket without a duty: nothing was asked. Used for messages that want no answer.
    pub fn none() -> Ticket<Q, A> {
        Ticket { slot: None }
    }

    /// Prefetches all cache lines of the slot at once, instead of one after the other as they are
    /// read.
    pub fn fetch(&self) {
        #[cfg(all(target_arch = "x86_64", not(loom)))]
        if let Some(slot) = &self.slot {
            use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
            const LINE_BYTES: usize = 64;
            let start = Arc::as_ptr(slot).cast::<i8>();
            for line in 0..size_of::<AnswerSlot<Q, A>>().div_ceil(LINE_BYTES) {
                // SAFETY: a prefetch reads nothing, at any address; SSE is part of the
                // architecture.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(start.wrapping_add(line * LINE_BYTES)) };
            }
        }
    }

    /// Takes the question. `None` once it was taken.
    pub fn take_question(&mut self) -> Option<Q> {
        let slot = self.slot.as_ref()?;
        // SAFETY: the ticket exists, so DONE is not set and the cell is its own (rule 4); there is
        // one ticket.
        slot.contents.with_mut(|contents| unsafe { (*contents).take_question() })
    }

    /// The question, to be read and changed. `None` once it was taken.
    pub fn question_mut(&mut self) -> Option<&mut Q> {
        let slot = self.slot.as_ref()?;
        // SAFETY: the cell is the ticket's (rule 4), there is one ticket, and it is borrowed for as
        // long as the question is.
        slot.contents.with_mut(|contents| match unsafe { &mut *contents } {
            Contents::Question(question) => Some(question),
            Contents::Nothing | Contents::Answer(..) => None,
        })
    }

    /// Whether the receiver was dropped, so that no caller waits for the answer.
    pub fn is_cancelled(&self) -> bool {
        self.slot.as_ref().is_some_and(|slot| slot.state.load(Ordering::Relaxed) & CANCELLED != 0)
    }

    /// Answers the question.
    pub fn answer(mut self, answer: A) {
        if let Some(slot) = self.slot.take() {
            finish(slot, Some(answer), None);
        }
    }

    /// Answers together with others: the receiver is woken by `caller`, or by another receiver that
    /// was woken before.
    pub fn answer_among(mut self, answer: A, caller: &mut Caller) {
        if let Some(slot) = self.slot.take() {
            finish(slot, Some(answer), Some(caller));
        }
    }

    /// Answers without calling foreign code. A receiver that blocks is woken; everything else is
    /// returned.
    pub fn answer_apart(mut self, answer: A) -> Remains<Q, A> {
        let question = self.take_question();
        let Some(slot) = self.slot.take() else { return Remains { question, slot: None, wakes: false } };
        // SAFETY: DONE is not set, so the cell is the ticket's (rule 4), and there is one ticket.
        // The question was taken, so the overwritten value has no destructor.
        slot.contents.with_mut(|place| unsafe { place.write(Contents::Answer(answer, None)) });
        let before = slot.state.fetch_or(DONE, Ordering::AcqRel);
        let wakes = before & WAITER != 0
            // SAFETY: WAITER was set when DONE was, so the receiver leaves the cell alone from now
            // on (rule 3).
            && slot.waker.with(|waker| match unsafe { &*waker } {
                Some(waker) if unparks(waker) => {
                    waker.wake_by_ref();
                    false
                }
                waker => waker.is_some(),
            });
        Remains { question, slot: Some(slot), wakes }
    }

    /// The ticket as a raw pointer, to be kept in an atomic; see [`Ticket::from_raw`].
    pub fn into_raw(mut self) -> *mut () {
        self.slot.take().map_or(std::ptr::null_mut(), |slot| Arc::into_raw(slot).cast_mut().cast())
    }

    /// Recreates the ticket from the pointer of [`Ticket::into_raw`].
    ///
    /// # Safety
    /// `raw` came from `into_raw` of a ticket of the same type, and no ticket was made from it
    /// since.
    pub unsafe fn from_raw(raw: *mut ()) -> Ticket<Q, A> {
        // SAFETY: the caller guarantees that the pointer is valid.
        Ticket { slot: (!raw.is_null()).then(|| unsafe { Arc::from_raw(raw.cast_const().cast()) }) }
    }
}

impl<Q, A> Drop for Ticket<Q, A> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            finish(slot, None, None);
        }
    }
}

/// The remains of a ticket that was answered apart: its receiver's waker, to be called, and its
/// question and slot, to be dropped. All of this happens when this is dropped, and does not panic.
pub struct Remains<Q, A> {
    question: Option<Q>,
    slot: Option<Arc<AnswerSlot<Q, A>>>,
    wakes: bool,
}

impl<Q, A> Drop for Remains<Q, A> {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            if self.wakes {
                // SAFETY: DONE and WAITER are set, so the receiver leaves the cell alone (rule 3).
                slot.waker.with(|waker| _ = contain(|| unsafe { (*waker).as_ref() }.map(Waker::wake_by_ref)));
            }
            discard(slot);
        }
        discard(self.question.take());
    }
}

/// Answers, wakes the receiver, and releases the slot, which the receiver may have released before.
fn finish<Q, A>(slot: Arc<AnswerSlot<Q, A>>, answer: Option<A>, caller: Option<&mut Caller>) {
    let others = caller.as_ref().map(|caller| caller.wakes());
    let contents = answer.map_or(Contents::Nothing, |answer| Contents::Answer(answer, others));
    slot.contents.with_mut(|place| {
        // The question is dropped in place. A destructor that panics has dropped the rest all the
        // same.
        // SAFETY: DONE is not set, so the cell is the ticket's (rule 4), and there is one ticket.
        // The dropped value is overwritten by the next statement and never read in between, since
        // `contain` does not unwind.
        let _ = contain(|| unsafe { std::ptr::drop_in_place(place) });
        // SAFETY: as above.
        unsafe { place.write(contents) };
    });
    let before = slot.state.fetch_or(DONE, Ordering::AcqRel);
    if before & WAITER != 0 {
        // SAFETY: WAITER was set when DONE was, so the receiver leaves the cell alone from now on
        // (rule 3).
        slot.waker.with(|waker| match (unsafe { &*waker }, caller) {
            (Some(waker), Some(caller)) => caller.call(waker),
            // A waker that panics is its owner's fault, and only its owner loses the wake-up.
            (Some(waker), None) => _ = contain(|| waker.wake_by_ref()),
            (None, _) => {}
        });
    }
    discard(slot);
}

impl<Q, A> Receiver<Q, A> {
    /// Whether the answer has arrived.
    pub fn is_done(&self) -> bool {
        self.slot.state.load(Ordering::Acquire) & DONE != 0
    }

    /// The answer, if it has arrived; otherwise `context` is woken when it arrives. `Ready(None)`:
    /// the ticket was abandoned, or the answer was already taken.
    pub fn poll(&mut self, context: &Context<'_>) -> Poll<Option<A>> {
        let state = self.slot.state.load(Ordering::Acquire);
        if state & DONE != 0 {
            return Poll::Ready(self.take());
        }
        if state & WAITER != 0 {
            // SAFETY: both sides only read the waker while WAITER is set.
            let same = self
                .slot
                .waker
                .with(|waker| unsafe { (*waker).as_ref().is_some_and(|waker| waker.will_wake(context.waker())) });
            if same {
                return Poll::Pending;
            }
            let before = self.slot.state.fetch_and(!WAITER, Ordering::AcqRel);
            if before & DONE != 0 {
                return Poll::Ready(self.take());
            }
        }
        // SAFETY: WAITER is clear and DONE was not set when it was cleared, so the cell is the
        // receiver's (rule 3).
        self.slot.waker.with_mut(|waker| unsafe { *waker = Some(context.waker().clone()) });
        let before = self.slot.state.fetch_or(WAITER, Ordering::AcqRel);
        if before & DONE != 0 { Poll::Ready(self.take()) } else { Poll::Pending }
    }

    /// Waits for the answer: spins briefly, then parks. Fails if it did not arrive by the limit, or
    /// if the caller is in a fork of the process `made_in`, which has the ticket.
    #[cfg(not(loom))]
    pub fn wait(&mut self, made_in: Process, limit: Option<Instant>) -> Result<Option<A>, WaitError> {
        self.wait_for(made_in, limit, crate::sleeper::SPIN_US_MAX)
    }

    /// [`Receiver::wait`] that spins for `spin_us_max` before it parks: spinning pays only for an
    /// answer that comes soon.
    #[cfg(not(loom))]
    pub fn wait_for(
        &mut self,
        made_in: Process,
        limit: Option<Instant>,
        spin_us_max: u64,
    ) -> Result<Option<A>, WaitError> {
        if self.spin(spin_us_max) {
            return Ok(self.take());
        }
        let answer = crate::blocking::block_until(made_in, limit, |context| self.poll(context));
        // An answer that came before the fork belongs to the child too.
        if answer.is_err() && self.is_done() { Ok(self.take()) } else { answer }
    }

    /// Looks for the answer repeatedly for `spin_us_max`, and returns whether it has arrived.
    #[cfg(not(loom))]
    pub fn spin(&self, spin_us_max: u64) -> bool {
        self.spin_after(0, spin_us_max)
    }

    /// [`Receiver::spin`] for a caller that has already spun for `spun_us`.
    #[cfg(not(loom))]
    pub fn spin_after(&self, spun_us: u64, spin_us_max: u64) -> bool {
        crate::sleeper::spin_after(spun_us, spin_us_max, &mut || self.is_done())
    }

    /// A function that returns, on any thread, whether the answer has arrived.
    #[cfg(not(loom))]
    pub fn probe(&self) -> impl Fn() -> bool + Send + use<Q, A>
    where
        Q: Send,
        A: Send,
    {
        let slot = self.slot.clone();
        move || slot.state.load(Ordering::Acquire) & DONE != 0
    }

    fn take(&self) -> Option<A> {
        // SAFETY: DONE was seen with acquire ordering, so the cell is the receiver's (rule 4).
        let (answer, others) = self.slot.contents.with_mut(|contents| unsafe { (*contents).take_answer() })?;
        if let Some(others) = others {
            others.help();
        }
        Some(answer)
    }
}

#[cfg(not(loom))]
pub use crate::blocking::WaitError;

impl<Q, A> Drop for Receiver<Q, A> {
    fn drop(&mut self) {
        self.slot.state.fetch_or(CANCELLED, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_answer_arrives_once() {
        let (mut ticket, mut receiver) = slot::<u32, u32>(20);
        let worker = std::thread::spawn(move || {
            let question = ticket.take_question().unwrap();
            std::thread::sleep(Duration::from_millis(2));
            ticket.answer(question + 1);
        });
        assert_eq!(receiver.wait(Process::current(), None), Ok(Some(21)));
        assert_eq!(receiver.wait(Process::current(), None), Ok(None));
        worker.join().unwrap();
    }

    #[test]
    fn an_abandoned_ticket_answers_too() {
        let (ticket, mut receiver) = slot::<(), u32>(());
        drop(ticket);
        assert_eq!(receiver.wait(Process::current(), None), Ok(None));
    }

    #[test]
    fn a_limit_ends_the_wait_and_a_dropped_receiver_is_seen() {
        let (ticket, mut receiver) = slot::<(), u32>(());
        assert_eq!(
            receiver.wait(Process::current(), Some(Instant::now() + Duration::from_millis(2))),
            Err(WaitError::TimedOut)
        );
        assert!(!ticket.is_cancelled());
        drop(receiver);
        assert!(ticket.is_cancelled());
        ticket.answer(1);
    }

    #[test]
    fn an_answer_apart_is_there_before_any_foreign_code_is_called() {
        struct Notes(std::sync::Arc<std::sync::Mutex<Vec<&'static str>>>, &'static str);
        impl std::task::Wake for Notes {
            fn wake(self: std::sync::Arc<Self>) {
                self.0.lock().unwrap().push("woken");
            }
        }
        impl Drop for Notes {
            fn drop(&mut self) {
                self.0.lock().unwrap().push(self.1);
                if self.1 == "question dropped" {
                    std::panic::resume_unwind(Box::new("a destructor that panics"));
                }
            }
        }
        let notes = std::sync::Arc::new(std::sync::Mutex::default());
        let (ticket, mut receiver) = slot::<Notes, u32>(Notes(std::sync::Arc::clone(&notes), "question dropped"));
        let waker = Waker::from(std::sync::Arc::new(Notes(std::sync::Arc::clone(&notes), "waker dropped")));
        assert!(receiver.poll(&Context::from_waker(&waker)).is_pending());
        let remains = ticket.answer_apart(5);
        assert!(receiver.is_done() && notes.lock().unwrap().is_empty());
        drop(remains);
        assert_eq!(*notes.lock().unwrap(), ["woken", "question dropped"]);
        assert_eq!(receiver.wait(Process::current(), None), Ok(Some(5)));
        // A receiver that blocks is woken at once, and a receiver that is gone does no harm.
        let (ticket, mut receiver) = slot::<(), u32>(());
        let blocked = std::thread::spawn(move || receiver.wait_for(Process::current(), None, 0));
        while ticket.slot.as_ref().is_some_and(|slot| slot.state.load(Ordering::SeqCst) & WAITER == 0) {
            std::thread::yield_now();
        }
        let remains = ticket.answer_apart(6);
        assert_eq!(blocked.join().unwrap(), Ok(Some(6)));
        drop(remains);
        let (ticket, receiver) = slot::<(), u32>(());
        drop(receiver);
        drop(ticket.answer_apart(7));
    }

    #[test]
    fn a_raw_ticket_keeps_its_duty() {
        let (ticket, mut receiver) = slot::<(), u32>(());
        let raw = ticket.into_raw();
        // SAFETY: `raw` was made above and is used once.
        unsafe { Ticket::<(), u32>::from_raw(raw) }.answer(5);
        assert_eq!(receiver.wait(Process::current(), None), Ok(Some(5)));
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::sync::{AtomicUsize, thread};
    use std::task::Wake;

    struct CountWakes(AtomicUsize);

    impl Wake for CountWakes {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn loom_an_answer_wakes_or_is_seen() {
        loom::model(|| {
            let (ticket, mut receiver) = slot::<(), u32>(());
            let worker = thread::spawn(move || ticket.answer(7));
            let first = std::sync::Arc::new(CountWakes(AtomicUsize::new(0)));
            let second = std::sync::Arc::new(CountWakes(AtomicUsize::new(0)));
            let wakers = [Waker::from(first.clone()), Waker::from(second.clone())];
            let mut answer = receiver.poll(&Context::from_waker(&wakers[0]));
            if answer.is_pending() {
                answer = receiver.poll(&Context::from_waker(&wakers[1]));
            }
            worker.join().unwrap();
            match answer {
                Poll::Ready(answer) => assert_eq!(answer, Some(7)),
                Poll::Pending => {
                    assert_eq!(second.0.load(Ordering::SeqCst), 1, "the last waker is woken");
                    assert_eq!(receiver.poll(&Context::from_waker(&wakers[1])), Poll::Ready(Some(7)));
                }
            }
        });
    }

    #[test]
    fn loom_an_answer_apart_wakes_or_is_seen() {
        loom::model(|| {
            let (ticket, mut receiver) = slot::<(), u32>(());
            let worker = thread::spawn(move || drop(ticket.answer_apart(7)));
            let counts = std::sync::Arc::new(CountWakes(AtomicUsize::new(0)));
            let waker = Waker::from(counts.clone());
            let answer = receiver.poll(&Context::from_waker(&waker));
            worker.join().unwrap();
            if answer.is_pending() {
                assert_eq!(counts.0.load(Ordering::SeqCst), 1);
                assert_eq!(receiver.poll(&Context::from_waker(&waker)), Poll::Ready(Some(7)));
            } else {
                assert_eq!(answer, Poll::Ready(Some(7)));
            }
        });
    }

    #[test]
    fn loom_a_dropped_ticket_is_an_answer() {
        loom::model(|| {
            let (ticket, mut receiver) = slot::<(), u32>(());
            let worker = thread::spawn(move || drop(ticket));
            worker.join().unwrap();
            assert!(receiver.is_done());
            let waker = Waker::noop();
            assert_eq!(receiver.poll(&Context::from_waker(waker)), Poll::Ready(None));
        });
    }

    #[test]
    fn loom_a_cancelled_slot_is_freed_by_the_last_end() {
        loom::model(|| {
            let (ticket, receiver) = slot::<Arc<()>, u32>(Arc::new(()));
            let worker = thread::spawn(move || {
                let cancelled = ticket.is_cancelled();
                ticket.answer(1);
                cancelled
            });
            drop(receiver);
            worker.join().unwrap();
        });
    }
}
