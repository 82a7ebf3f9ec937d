//! Which driver acts for a device: how a driver that is stuck in foreign code is replaced.
//!
//! Only the driver takes ops from its lane, opens the device and reports its state. When it does
//! not return from a call into foreign code (its engine, a waker, a destructor, an extension op),
//! another driver takes its place, and the first must not act again, whenever it returns. The
//! rules:
//!
//! 1. `word` is OUTSIDE, or the time at which the driver entered a call, or REPLACED. The driver
//!    stores its entry before a call and swaps it back to OUTSIDE after it; if the swap fails, it
//!    was replaced. Between two calls of one visit it swaps the entry for a later one, so that each
//!    call has the whole time limit. The later entry need not be the time: any larger value will
//!    do, since supervisors only compare it with what they saw before.
//! 2. A supervisor replaces a driver by swapping the very entry that it has seen. So a driver is
//!    replaced only while it is inside, and notices it before it does anything else. Outside of a
//!    call it acts alone.
//! 3. Inside, a driver touches only its engine, tickets that it has swapped out of its own table of
//!    flights, and counters that any thread may add to. Tickets that it puts into the table while
//!    it is being replaced are swept up: the supervisor keeps emptying the table until the thread
//!    has ended.
//! 4. `dismissed` ends a driver that has no replacement: the driver sees it before its next step.
//! 5. `ended` is set by a thread that leaves in good order. A thread that is gone without setting
//!    it has died, and is replaced as if it were stuck.

use crate::sync::{AtomicBool, AtomicU64, Ordering};

const OUTSIDE: u64 = 0;
const REPLACED: u64 = u64::MAX;

/// The right of one driver to act. See the module's rules.
#[derive(Default)]
pub struct Tenure {
    word: AtomicU64,
    dismissed: AtomicBool,
    ended: AtomicBool,
}

impl Tenure {
    /// The right of a driver that is outside of a call.
    pub fn new() -> Tenure {
        Tenure { word: AtomicU64::new(OUTSIDE), dismissed: AtomicBool::new(false), ended: AtomicBool::new(false) }
    }

    /// Notes that the driver enters a call at this time, in nanoseconds since some epoch.
    #[inline]
    pub fn enter(&self, now_ns: u64) {
        self.word.store(now_ns.clamp(OUTSIDE + 1, REPLACED - 1), Ordering::Release);
    }

    /// Notes that the driver is back from the call. Returns false if it was replaced meanwhile, or
    /// dismissed: then it must not act again.
    #[inline]
    pub fn leave(&self) -> bool {
        let entry = self.word.load(Ordering::Relaxed);
        let left = entry != REPLACED
            && self.word.compare_exchange(entry, OUTSIDE, Ordering::AcqRel, Ordering::Acquire).is_ok();
        left && !self.is_over()
    }

    /// Notes that the driver, which is inside, begins its next call at this time. Returns false if
    /// it was replaced meanwhile, or dismissed.
    #[inline]
    pub fn renew(&self, now_ns: u64) -> bool {
        let (entry, next) = (self.word.load(Ordering::Relaxed), now_ns.clamp(OUTSIDE + 1, REPLACED - 1));
        let renewed =
            entry != REPLACED && self.word.compare_exchange(entry, next, Ordering::AcqRel, Ordering::Acquire).is_ok();
        renewed && !self.is_over()
    }

    /// Notes that the driver, which is inside, begins its next call, without reading a clock.
    /// Returns false if it was replaced meanwhile, or dismissed.
    #[inline]
    pub fn go_on(&self) -> bool {
        self.renew(self.word.load(Ordering::Relaxed).saturating_add(1))
    }

    /// When the driver entered the call that it is inside. `None` if it is outside, or replaced.
    #[inline]
    pub fn entered(&self) -> Option<u64> {
        Some(self.word.load(Ordering::Acquire)).filter(|word| *word != OUTSIDE && *word != REPLACED)
    }

    /// Replaces a driver that is still inside the call that it entered then. Returns false if it is
    /// not.
    pub fn replace(&self, entered: u64) -> bool {
        let replaced = self.word.compare_exchange(entered, REPLACED, Ordering::AcqRel, Ordering::Acquire).is_ok();
        if replaced {
            self.dismissed.store(true, Ordering::Release);
        }
        replaced
    }

    /// Ends a driver wherever it is. No other driver may take its place before its thread has
    /// ended.
    pub fn dismiss(&self) {
        self.dismissed.store(true, Ordering::Release);
    }

    /// Whether the driver was replaced or dismissed.
    #[inline]
    pub fn is_over(&self) -> bool {
        self.dismissed.load(Ordering::Acquire)
    }

    /// Notes that the thread leaves in good order.
    #[inline]
    pub fn end(&self) {
        self.ended.store(true, Ordering::Release);
    }

    /// Whether the thread has left in good order.
    #[inline]
    pub fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_inside_can_be_replaced() {
        let tenure = Tenure::new();
        assert!(tenure.entered().is_none() && !tenure.replace(5));
        tenure.enter(0);
        assert_eq!(tenure.entered(), Some(1), "time zero is inside too");
        assert!(tenure.leave() && !tenure.replace(1), "it came back first");
        tenure.enter(u64::MAX);
        let entered = tenure.entered().unwrap();
        assert!(!tenure.replace(7) && tenure.replace(entered));
        assert!(tenure.is_over() && !tenure.leave() && tenure.entered().is_none());
        assert!(!tenure.renew(9), "it was replaced");
        let renewed = Tenure::new();
        renewed.enter(3);
        assert!(
            renewed.renew(9) && renewed.entered() == Some(9) && !renewed.replace(3),
            "another call than the one seen"
        );
        assert!(renewed.go_on() && renewed.entered() == Some(10) && !renewed.replace(9));
        assert!(renewed.leave());
        let dismissed = Tenure::new();
        dismissed.enter(3);
        dismissed.dismiss();
        assert!(!dismissed.leave() && dismissed.is_over());
    }
}

#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use crate::flight_table::FlightTable;
    use crate::slot::{Ticket, slot};
    use crate::sync::{Arc, AtomicUsize, thread};
    use std::task::{Context, Poll, Waker};

    type Table = FlightTable<(), u32>;

    fn answer_all(table: &Table, with: u32) {
        table.take_all(|ticket: Ticket<(), u32>| ticket.answer(with));
    }

    #[test]
    fn loom_of_a_driver_and_its_replacement_one_acts() {
        loom::model(|| {
            let (tenure, acting) = (Arc::new(Tenure::new()), Arc::new(AtomicUsize::new(0)));
            tenure.enter(1);
            let supervisor = {
                let (tenure, acting) = (tenure.clone(), acting.clone());
                thread::spawn(move || {
                    let replaced = tenure.entered().is_some_and(|entered| tenure.replace(entered));
                    if replaced {
                        acting.fetch_add(1, Ordering::Relaxed);
                    }
                    replaced
                })
            };
            let back = tenure.leave();
            if back {
                acting.fetch_add(1, Ordering::Relaxed);
                // A visit of two calls. The driver may be replaced in each of them.
                tenure.enter(1);
                if !(tenure.renew(2) && tenure.leave()) {
                    acting.fetch_sub(1, Ordering::Relaxed);
                }
            }
            supervisor.join().unwrap();
            assert_eq!(acting.load(Ordering::Relaxed), 1, "the device has one driver, whoever it is");
        });
    }

    #[test]
    fn loom_an_op_inside_an_engine_whose_driver_is_replaced_is_answered_once() {
        loom::model(|| {
            let (tenure, table) = (Arc::new(Tenure::new()), Arc::new(Table::new(1)));
            let (ticket, mut receiver) = slot::<(), u32>(());
            table.put(0, ticket);
            tenure.enter(1);
            let supervisor = {
                let (tenure, table) = (tenure.clone(), table.clone());
                thread::spawn(move || {
                    let replaced = tenure.entered().is_some_and(|entered| tenure.replace(entered));
                    if replaced {
                        answer_all(&table, 2);
                    }
                    replaced
                })
            };
            // The engine has finished the op, and the driver delivers it inside the call.
            if let Some(ticket) = table.take(0) {
                ticket.answer(1);
            }
            let stays = tenure.leave();
            let replaced = supervisor.join().unwrap();
            assert_ne!(stays, replaced);
            let answer = receiver.poll(&Context::from_waker(Waker::noop()));
            assert!(matches!(answer, Poll::Ready(Some(1 | 2))), "{answer:?}");
        });
    }

    #[test]
    fn loom_what_a_replaced_driver_puts_into_its_table_is_swept_up() {
        loom::model(|| {
            let (tenure, table) = (Arc::new(Tenure::new()), Arc::new(Table::new(1)));
            tenure.enter(1);
            let driver = {
                let (tenure, table) = (tenure.clone(), table.clone());
                thread::spawn(move || {
                    // An op that goes on at the same engine: its ticket goes back into the table
                    // inside the call.
                    let (ticket, receiver) = slot::<(), u32>(());
                    table.put(0, ticket);
                    if tenure.leave()
                        && let Some(ticket) = table.take(0)
                    {
                        ticket.answer(1);
                    }
                    tenure.end();
                    receiver
                })
            };
            if tenure.entered().is_some_and(|entered| tenure.replace(entered)) {
                answer_all(&table, 2);
            }
            let mut receiver = driver.join().unwrap();
            assert!(tenure.has_ended());
            // The look after the thread has ended.
            answer_all(&table, 3);
            let answer = receiver.poll(&Context::from_waker(Waker::noop()));
            assert!(matches!(answer, Poll::Ready(Some(1 | 2 | 3))), "{answer:?}");
        });
    }
}
