//! Sends ops on: those whose device failed them, those that left a sick device's queue, and those whose inputs had to be
//! brought to the host first.
//!
//! 1. Workers never wait for each other. A worker puts a ticket into the [`Inlet`], which is bounded; where that is full the
//!    op is answered with its error.
//! 2. One thread, the relay, takes tickets out, asks the router again where needed, and puts them into a lane's urgent queue.
//!    While a lane is full the relay holds the ticket and tries again; it holds no more than the inlet does.
//! 3. A ticket in the inlet or in the relay's hands is counted, so that a shutdown can wait for it.
//! 4. While some lane has a backlog, the relay also moves queued ops to idle lanes at intervals (see `balance`). Between two
//!    healthy lanes only the relay moves ops.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use panoply_core::clock::Clock;
use panoply_core::{Error, Result};

use crate::foreign::{contain, discard};
use crate::lane::inlet::RELAY_DEPTH_MAX;
use crate::lane::{Inlet, OpTicket, Task};
use crate::options::FallbackPolicy;
use crate::router::{Router, balance};
use crate::threads::Owner;

/// How soon the relay looks again for room in a full lane.
const ROOM_LOOK_EVERY: Duration = Duration::from_micros(200);

/// The shortest time between two looks for idle lanes while others have a backlog.
const BALANCE_EVERY: Duration = Duration::from_millis(1);
/// After each look that moved no op the time is doubled, up to so many times: pinned ops cannot be moved.
const DOUBLINGS_MAX: u32 = 4;

/// What the relay wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayStep {
    /// Another step at once.
    Worked,
    /// Nothing to do until a ticket arrives.
    Idle,
    /// A lane is full; try again soon.
    Held,
    /// Nothing to do until a ticket arrives, a worker runs out of work, or this time.
    Until(Instant),
    /// The inlet is closed and everything is answered.
    Exit,
}

/// See the module's rules.
pub(crate) struct Relay {
    inlet: Arc<Inlet>,
    router: Arc<Router>,
    clock: Arc<dyn Clock>,
    held: VecDeque<OpTicket>,
    next_balance: Instant,
    /// Looks in a row that moved no op.
    in_vain: u32,
}

impl Relay {
    pub(crate) fn new(inlet: Arc<Inlet>, router: Arc<Router>, clock: Arc<dyn Clock>) -> Relay {
        let next_balance = clock.now();
        Relay { inlet, router, clock, held: VecDeque::new(), next_balance, in_vain: 0 }
    }

    /// Runs the relay on a thread of its own until the inlet is closed.
    pub(crate) fn start(mut self, owner: Owner) -> std::io::Result<JoinHandle<()>> {
        let inlet = Arc::clone(&self.inlet);
        owner.spawn("panoply-relay".to_owned(), move || {
            loop {
                // Foreign code is called with care everywhere below. Should anything panic all the same, the relay goes on.
                match contain(|| self.step()).unwrap_or(RelayStep::Worked) {
                    RelayStep::Worked => {}
                    RelayStep::Idle => inlet.sleeper.sleep(None, || inlet.has_news()),
                    RelayStep::Until(time) => inlet.sleeper.rest(Some(time), || inlet.is_asked()),
                    RelayStep::Held => {
                        inlet.sleeper.sleep(Some(Instant::now() + ROOM_LOOK_EVERY), || inlet.queue.has_news());
                    }
                    RelayStep::Exit => return,
                }
            }
        })
    }

    /// One round: tickets that were held, tickets that have arrived, then idle lanes.
    pub(crate) fn step(&mut self) -> RelayStep {
        let mut arrived = std::mem::take(&mut self.held);
        let before = arrived.len();
        let room = RELAY_DEPTH_MAX.saturating_sub(before).min(64);
        let popped = self.inlet.queue.pop_many(room, |ticket| arrived.push_back(ticket));
        for (position, ticket) in arrived.into_iter().enumerate() {
            if let Some(ticket) = self.send_on(ticket, position < before) {
                self.held.push_back(ticket);
            }
        }
        if popped > 0 {
            RelayStep::Worked
        } else if !self.held.is_empty() {
            RelayStep::Held
        } else if self.inlet.queue.is_finished() {
            RelayStep::Exit
        } else if self.balance() {
            RelayStep::Until(self.next_balance)
        } else {
            RelayStep::Idle
        }
    }

    /// Moves queued ops to idle lanes, where it is time to look; false where no lane has a backlog. A worker that has just become
    /// idle is served at once, unless the last look moved no op.
    fn balance(&mut self) -> bool {
        if !self.inlet.uneven.load(Ordering::Acquire) {
            return false;
        }
        let now = self.clock.now();
        let asked = self.inlet.idle.swap(false, Ordering::AcqRel) && self.in_vain == 0;
        if asked || now >= self.next_balance {
            // Cleared before the look, so that a backlog which grows during the look sets it again.
            self.inlet.uneven.swap(false, Ordering::SeqCst);
            let found = balance::round(&self.router, now);
            self.in_vain = if found.in_vain { (self.in_vain + 1).min(DOUBLINGS_MAX) } else { 0 };
            self.next_balance = now + BALANCE_EVERY * (1 << self.in_vain);
            if !found.uneven {
                return false;
            }
            self.inlet.uneven.store(true, Ordering::Release);
        }
        true
    }

    /// Sends one ticket on; gives it back where its lane is full. `decided`: its lane has been chosen before.
    fn send_on(&mut self, mut ticket: OpTicket, decided: bool) -> Option<OpTicket> {
        if ticket.is_cancelled() {
            return self.end(ticket, Error::Cancelled);
        }
        let now = self.clock.now();
        let deadline = ticket.question_mut().and_then(|task| task.wishes.deadline);
        if let Some(deadline) = deadline.filter(|deadline| now > *deadline) {
            return self.end(ticket, Error::DeadlineExceeded { late_by: now - deadline });
        }
        // What an op says of itself may be foreign code, and its panic is the op's alone.
        let panicked = |panic| Error::invalid("op", "a description without a panic", panic);
        if !decided && let Err(error) = contain(|| self.decide(&mut ticket, now)).map_err(panicked).flatten() {
            return self.end(ticket, error);
        }
        let next = |task: &mut Task| contain(|| self.router.next_stop(task)).ok().flatten();
        let Some(lane) = ticket.question_mut().and_then(next) else {
            return self.end(ticket, Error::ShuttingDown);
        };
        match lane.try_relay(ticket) {
            Ok(()) => {
                self.inlet.count.fetch_sub(1, Ordering::AcqRel);
                None
            }
            Err((ticket, Error::Busy { .. })) => Some(ticket),
            Err((ticket, refusal)) => self.try_another(ticket, refusal, now),
        }
    }

    /// The lane was closed meanwhile: another one, or the end.
    fn try_another(&self, mut ticket: OpTicket, refusal: Error, now: Instant) -> Option<OpTicket> {
        let task = ticket.question_mut().filter(|task| may_leave(task.wishes.policy) && refusal != Error::ShuttingDown);
        let Some(task) = task else { return self.end(ticket, refusal) };
        let target = task.forecast.target;
        let device = self.router.lanes.get(usize::from(target)).map(|candidate| candidate.lane.info.id);
        if let Some(device) = device {
            task.note_failure(target, device, &refusal);
        }
        match self.decide(&mut ticket, now) {
            Ok(()) => Some(ticket),
            Err(error) => self.end(ticket, error),
        }
    }

    /// Chooses the lane anew for an op that failed or left its lane. The error is what its caller gets otherwise.
    fn decide(&self, ticket: &mut OpTicket, now: Instant) -> Result<()> {
        let Some(task) = ticket.question_mut() else { return Err(Error::ShuttingDown) };
        let Some(history) = task.history.as_mut() else { return Ok(()) };
        let (failure, evacuated) = (history.failure.take(), history.evacuated);
        let Some(failure) = failure else { return Ok(()) };
        let mut wishes = task.wishes;
        let here = 1_u64 << task.forecast.target;
        wishes.allowed &= match wishes.policy {
            FallbackPolicy::None if !evacuated => return Err(failure),
            FallbackPolicy::None | FallbackPolicy::Retry { .. } => {
                self.router.follow(task);
                return Ok(());
            }
            FallbackPolicy::Alternate => !(history.tried | here),
            FallbackPolicy::Cpu => self.router.cpu_mask() & !(history.tried | here),
        };
        let Some(op) = &task.op else { return Err(failure) };
        match self.router.choose(op, &wishes, now) {
            Ok(decision) => {
                task.forecast = decision.forecast;
                self.router.take_seat(task);
                Ok(())
            }
            // It was evacuated before it ran, and no other lane takes it: it goes back to its lane.
            Err(_) if evacuated && history.tried & here == 0 => {
                if history.failures == 0 {
                    history.fallback = None;
                }
                Ok(())
            }
            Err(_) => Err(failure),
        }
    }

    fn end(&self, mut ticket: OpTicket, error: Error) -> Option<OpTicket> {
        let question = ticket.take_question();
        // Before the answer: whoever gets it may shut the runtime down, which waits for the count.
        self.inlet.count.fetch_sub(1, Ordering::AcqRel);
        ticket.answer(Err(error));
        discard(question);
        None
    }
}

/// Whether a policy lets an op run on another device.
fn may_leave(policy: FallbackPolicy) -> bool {
    matches!(policy, FallbackPolicy::Alternate | FallbackPolicy::Cpu)
}

impl Drop for Relay {
    fn drop(&mut self) {
        for ticket in std::mem::take(&mut self.held) {
            self.end(ticket, Error::ShuttingDown);
        }
    }
}
