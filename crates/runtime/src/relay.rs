//! Sends ops on: those whose device failed them, those that left a sick device's queue, and those whose inputs had to be
//! brought to the host first.
//!
//! 1. Workers never wait for each other. A worker puts a ticket into the [`Inlet`], which is bounded; where that is full the
//!    op is answered with its error.
//! 2. One thread, the relay, takes tickets out, asks the router again where needed, and puts them into a lane's urgent queue.
//!    While a lane is full the relay holds the ticket and tries again; it holds no more than the inlet does.
//! 3. A ticket in the inlet or in the relay's hands is counted, so that a shutdown can wait for it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use panoply_core::clock::Clock;
use panoply_core::{DeviceId, Error, Result};

use crate::device_worker::OpTicket;
use crate::options::FallbackPolicy;
use crate::queue::{PushError, Queue};
use crate::router::Router;
use crate::sleeper::Sleeper;

/// How many tickets may wait for the relay, and as many again in its hands.
pub(crate) const RELAY_DEPTH_MAX: usize = 8192;
/// How soon the relay looks again for room in a full lane.
const ROOM_LOOK_EVERY: Duration = Duration::from_micros(200);

/// Where workers put ops that go elsewhere.
pub(crate) struct Inlet {
    queue: Queue<OpTicket>,
    sleeper: Sleeper,
    count: AtomicUsize,
}

/// What the relay wants next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayStep {
    /// Another step at once.
    Worked,
    /// Nothing to do until a ticket arrives.
    Idle,
    /// A lane is full; try again soon.
    Held,
    /// The inlet is closed and everything is answered.
    Exit,
}

/// See the module's rules.
pub(crate) struct Relay {
    inlet: Arc<Inlet>,
    router: Arc<Router>,
    clock: Arc<dyn Clock>,
    held: VecDeque<OpTicket>,
}

impl Inlet {
    pub(crate) fn new() -> Inlet {
        Inlet { queue: Queue::new(RELAY_DEPTH_MAX), sleeper: Sleeper::new(), count: AtomicUsize::new(0) }
    }

    /// Takes a ticket from the lane of a device, or hands it back with the reason.
    pub(crate) fn take(&self, ticket: OpTicket, device: DeviceId) -> Result<(), (OpTicket, Error)> {
        self.count.fetch_add(1, Ordering::AcqRel);
        let refused = match self.queue.push(ticket) {
            Ok(()) => {
                self.sleeper.wake();
                return Ok(());
            }
            Err(PushError::Full(ticket)) => (ticket, Error::Busy { device, queue_depth_max: RELAY_DEPTH_MAX }),
            Err(PushError::Closed(ticket)) => (ticket, Error::ShuttingDown),
        };
        self.count.fetch_sub(1, Ordering::AcqRel);
        Err(refused)
    }

    /// Tickets on their way.
    pub(crate) fn count(&self) -> usize {
        self.count.load(Ordering::Acquire)
    }

    /// Takes nothing from now on.
    pub(crate) fn close(&self) {
        self.queue.close();
        self.sleeper.wake();
    }
}

impl Relay {
    pub(crate) fn new(inlet: Arc<Inlet>, router: Arc<Router>, clock: Arc<dyn Clock>) -> Relay {
        Relay { inlet, router, clock, held: VecDeque::new() }
    }

    /// Runs the relay on a thread of its own until the inlet is closed.
    pub(crate) fn start(mut self) -> std::io::Result<JoinHandle<()>> {
        let inlet = Arc::clone(&self.inlet);
        std::thread::Builder::new().name("panoply-relay".to_owned()).spawn(move || {
            loop {
                match self.step() {
                    RelayStep::Worked => {}
                    RelayStep::Idle => inlet.sleeper.sleep(None, || inlet.queue.has_news()),
                    RelayStep::Held => {
                        inlet.sleeper.sleep(Some(Instant::now() + ROOM_LOOK_EVERY), || inlet.queue.has_news());
                    }
                    RelayStep::Exit => return,
                }
            }
        })
    }

    /// One round: what was held, then what has arrived.
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
        } else {
            RelayStep::Idle
        }
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
        if !decided && let Err(error) = self.decide(&mut ticket, now) {
            return self.end(ticket, error);
        }
        let Some(lane) = ticket.question_mut().and_then(|task| self.router.next_stop(task)) else {
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
            FallbackPolicy::None | FallbackPolicy::Retry { .. } => return Ok(()),
            FallbackPolicy::Alternate => !(history.tried | here),
            FallbackPolicy::Cpu => self.router.cpu_mask() & !(history.tried | here),
        };
        let Some(op) = &task.op else { return Err(failure) };
        match self.router.choose(op, &wishes, now) {
            Ok(decision) => {
                task.forecast = decision.forecast;
                self.router.take_places(task);
                Ok(())
            }
            // It left its lane unharmed and nobody else takes it: back to where it was.
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
        drop(ticket.take_question());
        ticket.answer(Err(error));
        self.inlet.count.fetch_sub(1, Ordering::AcqRel);
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
