//! Forwards ops: those whose device failed, those that left a sick device's queue, those whose
//! inputs had to be brought to the host first, and graphs whose next part belongs to another
//! device.
//!
//! 1. Workers never wait for each other. A worker puts a ticket into the [`Inlet`], which is
//!    bounded. If the inlet is full, the op is answered with its error.
//! 2. One thread, the relay, takes tickets out, asks the router again if needed, and puts them into
//!    a lane's urgent queue. While a lane is full, the relay holds the ticket and tries again; it
//!    holds no more tickets than the inlet does.
//! 3. A ticket in the inlet or held by the relay is counted, so that a shutdown can wait for it.
//! 4. While some lane has a backlog, the relay also moves queued ops to idle lanes at intervals
//!    (see `balance`). Between two healthy lanes only the relay moves ops.
//! 5. The relay calls foreign code: wakers, destructors, extension ops, backends. A relay that does
//!    not return from such a call within the time limit of an op is replaced. It then holds one
//!    ticket; the others are in the inlet, in `WaitingTickets`, or among those of a lane that it
//!    looks at, where the next relay finds them. When the stuck relay returns, it sends that one
//!    ticket on, and ends.
//! 6. While [`STUCK_THREADS_MAX`] relays are stuck in foreign code, there is no relay until one of
//!    them returns. Meanwhile ops that come here are answered with the error that sent them here.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use panoply_core::clock::Clock;
use panoply_core::{Error, Result};
use panoply_lockfree::foreign::contain;
use panoply_lockfree::tenure::Tenure;

use crate::lane::inlet::RELAY_DEPTH_MAX;
use crate::lane::{InParts, Inlet, OpRemains, OpRequest, OpTicket};
use crate::options::FallbackPolicy;
use crate::router::{Router, balance};
use crate::threads::{Owner, STUCK_THREADS_MAX, Thread};
use crate::time::nanoseconds;

/// How soon the relay looks again for room in a full lane.
const ROOM_LOOK_EVERY: Duration = Duration::from_micros(200);

/// The shortest time between two looks for idle lanes while others have a backlog.
const BALANCE_EVERY: Duration = Duration::from_millis(1);
/// After each look that moved no op, the time between looks is doubled, up to this many times:
/// pinned ops cannot be moved.
const DOUBLINGS_MAX: u32 = 4;

/// When the relay wants its next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RelayStep {
    /// At once.
    Worked,
    /// When a ticket arrives.
    Idle,
    /// Soon: a lane is full.
    Held,
    /// At this time, or when a ticket arrives or a worker runs out of work.
    Until(Instant),
    /// Never: the inlet is closed and every ticket is answered.
    Exit,
}

/// The relay. See the module's rules.
pub(crate) struct Relay {
    inlet: Arc<Inlet>,
    router: Arc<Router>,
    clock: Arc<dyn Clock>,
    held: Arc<WaitingTickets>,
    tenure: Arc<Tenure>,
    /// The instant from which the tenure counts time.
    epoch: Instant,
    next_balance: Instant,
    /// Consecutive looks that moved no op.
    in_vain: u32,
}

/// Tickets whose lanes are full. A relay's successor finds them here. When the last owner is
/// dropped, the remaining tickets are answered.
struct WaitingTickets {
    inlet: Arc<Inlet>,
    /// Locked by the relay, by its successor, and by the thread that ends the waiting ops.
    tickets: Mutex<VecDeque<OpTicket>>,
}

impl WaitingTickets {
    fn lock(&self) -> MutexGuard<'_, VecDeque<OpTicket>> {
        self.tickets.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn pop(&self) -> Option<OpTicket> {
        self.lock().pop_front()
    }
}

impl Drop for WaitingTickets {
    fn drop(&mut self) {
        while let Some(ticket) = self.pop() {
            drop(end(&self.inlet, ticket, Error::ShuttingDown));
        }
    }
}

/// The handle of the relay's thread.
pub(crate) struct RelayThread {
    inlet: Arc<Inlet>,
    router: Arc<Router>,
    clock: Arc<dyn Clock>,
    held: Arc<WaitingTickets>,
    owner: Owner,
    /// How long one call of foreign code may last.
    call_time_max: Duration,
    epoch: Instant,
    current: Mutex<Current>,
}

/// The active relay and the stuck ones.
#[derive(Default)]
struct Current {
    /// The active thread, and its tenure.
    acts: Option<(Thread, Arc<Tenure>)>,
    /// Threads that were replaced and have not returned.
    stuck: Vec<Thread>,
}

impl RelayThread {
    /// Replaces a relay that is stuck in foreign code. If too many relays are stuck, the ops that
    /// wait for one are answered.
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn look(&self, now: Instant) -> Vec<OpRemains> {
        let mut current = self.current();
        current.stuck.retain(|thread| !thread.is_finished());
        let inside_max = nanoseconds(self.call_time_max);
        let stuck = |(_, tenure): &(Thread, Arc<Tenure>)| {
            let entered = tenure.entered();
            let since_ns =
                |entered: u64| nanoseconds(now.saturating_duration_since(self.epoch)).saturating_sub(entered);
            entered.is_some_and(|entered| since_ns(entered) > inside_max && tenure.replace(entered))
        };
        if let Some((thread, _)) = current.acts.take_if(|acts| stuck(acts)) {
            current.stuck.push(thread);
        }
        if current.acts.is_some() || self.inlet.queue.is_finished() {
            return Vec::new();
        }
        if current.stuck.len() < STUCK_THREADS_MAX {
            // If no thread can be made, there is no relay until the next look.
            current.acts = self.spawn().ok();
            return Vec::new();
        }
        drop(current);
        self.router.lanes.all().for_each(|candidate| candidate.lane.end_look());
        self.end_waiting(|ticket| self.unrelayed(ticket))
    }

    /// Ends all ops that wait for a relay.
    fn end_waiting(&self, error: impl Fn(&mut OpTicket) -> Error) -> Vec<OpRemains> {
        let next = || self.held.pop().or_else(|| self.inlet.queue.pop());
        let end = |mut ticket| {
            let error = error(&mut ticket);
            end(&self.inlet, ticket, error)
        };
        std::iter::from_fn(next).map(end).collect()
    }

    /// The error of an op for which there is no relay: the error that sent it here, if there was
    /// one.
    fn unrelayed(&self, ticket: &mut OpTicket) -> Error {
        let Some(task) = ticket.question_mut() else { return Error::ShuttingDown };
        if let Some(failure) = task.history.as_mut().and_then(|history| history.failure.take()) {
            return failure;
        }
        let target = self.router.lanes.made(task.forecast.target);
        let reason = "callers' wakers do not return, and keep every thread that could bring the op there".to_owned();
        target.map_or(Error::ShuttingDown, |to| Error::DeviceUnavailable { device: to.lane.info.id, reason })
    }

    /// Waits for the relay to end after the inlet was closed. A relay that does not end is left
    /// behind with the ticket it holds, and all other tickets are answered here.
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn end(&self, time_max: Duration) -> Vec<OpRemains> {
        let acts = self.current().acts.take();
        if let Some((thread, tenure)) = acts
            && !thread.ends_within(time_max)
        {
            tenure.dismiss();
        }
        self.end_waiting(|_| Error::ShuttingDown)
    }

    fn spawn(&self) -> std::io::Result<(Thread, Arc<Tenure>)> {
        let tenure = Arc::new(Tenure::new());
        let relay = Relay {
            inlet: Arc::clone(&self.inlet),
            router: Arc::clone(&self.router),
            clock: Arc::clone(&self.clock),
            held: Arc::clone(&self.held),
            tenure: Arc::clone(&tenure),
            epoch: self.epoch,
            next_balance: self.clock.now(),
            in_vain: 0,
        };
        Ok((self.owner.spawn("panoply-relay".to_owned(), move || relay.run())?, tenure))
    }

    fn current(&self) -> MutexGuard<'_, Current> {
        self.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Relay {
    pub(crate) fn new(inlet: Arc<Inlet>, router: Arc<Router>, clock: Arc<dyn Clock>) -> Relay {
        let now = clock.now();
        let held = Arc::new(WaitingTickets { inlet: Arc::clone(&inlet), tickets: Mutex::default() });
        let tenure = Arc::new(Tenure::new());
        Relay { inlet, router, clock, held, tenure, epoch: now, next_balance: now, in_vain: 0 }
    }

    /// Runs the relay on a thread of its own until the inlet is closed.
    pub(crate) fn start(self, owner: Owner, call_time_max: Duration) -> std::io::Result<Arc<RelayThread>> {
        let Relay { inlet, router, clock, held, epoch, .. } = self;
        let thread = RelayThread { inlet, router, clock, held, owner, call_time_max, epoch, current: Mutex::default() };
        let acts = thread.spawn()?;
        thread.current().acts = Some(acts);
        Ok(Arc::new(thread))
    }

    fn run(mut self) {
        let inlet = Arc::clone(&self.inlet);
        // A previous relay may have been looking at a queue when it got stuck.
        self.router.lanes.all().for_each(|candidate| candidate.lane.end_look());
        loop {
            // All foreign calls below contain their panics. If anything panics all the same, the
            // relay goes on.
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
    }

    /// One round: first the held tickets, then the tickets that have arrived, then idle lanes.
    pub(crate) fn step(&mut self) -> RelayStep {
        let before = self.held.lock().len();
        for _ in 0..before {
            let Some(ticket) = self.held.pop() else { break };
            if !self.visit(ticket, true) {
                return RelayStep::Exit;
            }
        }
        let room = RELAY_DEPTH_MAX.saturating_sub(before).min(64);
        let mut popped = 0;
        while popped < room
            && let Some(ticket) = self.inlet.queue.pop()
        {
            popped += 1;
            if !self.visit(ticket, false) {
                return RelayStep::Exit;
            }
        }
        if popped > 0 {
            RelayStep::Worked
        } else if !self.held.lock().is_empty() {
            RelayStep::Held
        } else if self.inlet.queue.is_finished() {
            RelayStep::Exit
        } else if self.balance() {
            RelayStep::Until(self.next_balance)
        } else if self.tenure.is_over() {
            RelayStep::Exit
        } else {
            RelayStep::Idle
        }
    }

    /// Sends one ticket on, or holds it if its lane is full. Returns false if the relay was
    /// replaced meanwhile.
    fn visit(&mut self, ticket: OpTicket, decided: bool) -> bool {
        self.enter();
        if let Ok(Some(ticket)) = contain(|| self.send_on(ticket, decided)) {
            self.held.lock().push_back(ticket);
        }
        self.tenure.leave()
    }

    fn enter(&self) {
        self.tenure.enter(nanoseconds(self.clock.now().saturating_duration_since(self.epoch)));
    }

    /// Moves queued ops to idle lanes, if it is time to look. Returns false if no lane has a
    /// backlog. A worker that has just become idle is served at once, unless the last look moved no
    /// op.
    fn balance(&mut self) -> bool {
        if !self.inlet.uneven.load(Ordering::Acquire) {
            return false;
        }
        let now = self.clock.now();
        let asked = self.inlet.idle.swap(false, Ordering::AcqRel) && self.in_vain == 0;
        if asked || now >= self.next_balance {
            // Cleared before the look, so that a backlog that grows during the look sets it again.
            self.inlet.uneven.swap(false, Ordering::SeqCst);
            self.enter();
            let found = balance::round(&self.router, now, &|| !self.tenure.is_over());
            if !self.tenure.leave() {
                return false;
            }
            self.in_vain = if found.in_vain { (self.in_vain + 1).min(DOUBLINGS_MAX) } else { 0 };
            self.next_balance = now + BALANCE_EVERY * (1 << self.in_vain);
            if !found.uneven {
                return false;
            }
            self.inlet.uneven.store(true, Ordering::Release);
        }
        true
    }

    /// Sends one ticket on. Returns it if its lane is full. `decided`: its lane was chosen before.
    fn send_on(&mut self, mut ticket: OpTicket, decided: bool) -> Option<OpTicket> {
        if ticket.is_cancelled() {
            return self.end(ticket, Error::Cancelled);
        }
        let now = self.clock.now();
        let deadline = ticket.question_mut().and_then(|task| task.wishes.deadline);
        if let Some(deadline) = deadline.filter(|deadline| now > *deadline) {
            return self.end(ticket, Error::DeadlineExceeded { late_by: now - deadline });
        }
        // The op's description of itself may be foreign code, and a panic there affects this op
        // alone.
        let panicked = |panic| Error::invalid("op", "a description without a panic", panic);
        if !decided && let Err(error) = contain(|| self.decide(&mut ticket, now)).map_err(panicked).flatten() {
            return self.end(ticket, error);
        }
        let next = |task: &mut OpRequest| contain(|| self.router.next_stop(task)).ok().flatten();
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

    /// Handles a lane that was closed meanwhile: chooses another lane, or ends the op.
    fn try_another(&self, mut ticket: OpTicket, refusal: Error, now: Instant) -> Option<OpTicket> {
        let task = ticket.question_mut().filter(|task| may_leave(task.wishes.policy) && refusal != Error::ShuttingDown);
        let Some(task) = task else { return self.end(ticket, refusal) };
        if self.router.leave_pool(task) {
            return Some(ticket);
        }
        if let Some(target) = self.router.lanes.made(task.forecast.target) {
            task.note_failure(target.lane.number, target.lane.info.id, &refusal);
        }
        match self.decide(&mut ticket, now) {
            Ok(()) => Some(ticket),
            Err(error) => self.end(ticket, error),
        }
    }

    /// Chooses the lane again for an op that failed or left its lane. If there is none, the
    /// returned error is for its caller.
    fn decide(&self, ticket: &mut OpTicket, now: Instant) -> Result<()> {
        let Some(task) = ticket.question_mut() else { return Err(Error::ShuttingDown) };
        let Some(history) = task.history.as_mut() else { return Ok(()) };
        if history.parts.as_mut().is_some_and(InParts::wants_lane) {
            return self.router.route_part(task, now);
        }
        let (failure, evacuated) = (history.failure.take(), history.evacuated);
        let Some(failure) = failure else { return Ok(()) };
        if may_leave(task.wishes.policy) && task.op.is_some() && self.router.leave_pool(task) {
            return Ok(());
        }
        let Some(history) = task.history.as_mut() else { return Ok(()) };
        let mut wishes = task.wishes;
        let here = self.router.lanes.made(task.forecast.target).map_or(0, |target| 1_u64 << target.lane.number);
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
            // The op was evacuated before it ran, and no other lane takes it: it goes back to its
            // lane.
            Err(_) if evacuated && history.tried & here == 0 => {
                if history.failures == 0 {
                    history.fallback = None;
                }
                Ok(())
            }
            Err(_) => Err(failure),
        }
    }

    fn end(&self, ticket: OpTicket, error: Error) -> Option<OpTicket> {
        drop(end(&self.inlet, ticket, error));
        None
    }
}

/// Ends an op that was on its way, without calling foreign code.
fn end(inlet: &Inlet, ticket: OpTicket, error: Error) -> OpRemains {
    // Before the answer: the caller that receives it may shut the runtime down, which waits for the
    // count.
    inlet.count.fetch_sub(1, Ordering::AcqRel);
    ticket.answer_apart(Err(error))
}

/// Whether a policy lets an op run on another device.
fn may_leave(policy: FallbackPolicy) -> bool {
    matches!(policy, FallbackPolicy::Alternate | FallbackPolicy::Cpu)
}
