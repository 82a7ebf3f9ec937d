//! Sends ops on: those whose device failed them, those that left a sick device's queue, those whose inputs had to be brought to the host
//! first, and graphs whose next part belongs to another device.
//!
//! 1. Workers never wait for each other. A worker puts a ticket into the [`Inlet`], which is bounded; where that is full the
//!    op is answered with its error.
//! 2. One thread, the relay, takes tickets out, asks the router again where needed, and puts them into a lane's urgent queue.
//!    While a lane is full the relay holds the ticket and tries again; it holds no more than the inlet does.
//! 3. A ticket in the inlet or held by the relay is counted, so that a shutdown can wait for it.
//! 4. While some lane has a backlog, the relay also moves queued ops to idle lanes at intervals (see `balance`). Between two
//!    healthy lanes only the relay moves ops.
//! 5. The relay calls foreign code: wakers, destructors, ops of somebody else's type, backends. A relay that does not return from
//!    it within the time limit of an op is replaced. It has one ticket in its hands then; the others are in the inlet, in `Held`,
//!    or among those of a lane that it looks at, where the next relay finds them. When it comes back it sends that one ticket
//!    on, and ends.
//! 6. Where [`STUCK_THREADS_MAX`] relays are kept by foreign code there is none until one comes back. Meanwhile ops that come here are
//!    answered with what sent them here.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use panoply_core::clock::Clock;
use panoply_core::{Error, Result};

use crate::foreign::contain;
use crate::lane::inlet::RELAY_DEPTH_MAX;
use crate::lane::{InParts, Inlet, OpRemains, OpTicket, Task};
use crate::options::FallbackPolicy;
use crate::router::{Router, balance};
use crate::tenure::Tenure;
use crate::threads::{Owner, STUCK_THREADS_MAX, Thread};
use crate::time::nanoseconds;

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
    held: Arc<Held>,
    tenure: Arc<Tenure>,
    /// What the tenure counts time from.
    epoch: Instant,
    next_balance: Instant,
    /// Looks in a row that moved no op.
    in_vain: u32,
}

/// Tickets whose lanes are full. A relay's successor finds them here; the last one who has it answers what is left.
struct Held {
    inlet: Arc<Inlet>,
    /// Locked by the relay alone, and by its successor.
    tickets: Mutex<VecDeque<OpTicket>>,
}

impl Held {
    fn lock(&self) -> MutexGuard<'_, VecDeque<OpTicket>> {
        self.tickets.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn pop(&self) -> Option<OpTicket> {
        self.lock().pop_front()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        while let Some(ticket) = self.pop() {
            drop(end(&self.inlet, ticket, Error::ShuttingDown));
        }
    }
}

/// The relay's thread, as whoever started it holds it.
pub(crate) struct RelayThread {
    inlet: Arc<Inlet>,
    router: Arc<Router>,
    clock: Arc<dyn Clock>,
    held: Arc<Held>,
    owner: Owner,
    /// How long one call of foreign code may last.
    call_time_max: Duration,
    epoch: Instant,
    current: Mutex<Current>,
}

/// Who acts.
#[derive(Default)]
struct Current {
    /// The thread that acts, and its tenure.
    acts: Option<(Thread, Arc<Tenure>)>,
    /// Those that were replaced and have not come back.
    stuck: Vec<Thread>,
}

impl RelayThread {
    /// Replaces a relay that is stuck in foreign code. Where too many are stuck, ops that wait for one are answered.
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
            // Without a thread there is no relay until the next look.
            current.acts = self.spawn().ok();
            return Vec::new();
        }
        drop(current);
        self.router.lanes.iter().for_each(|candidate| candidate.lane.end_look());
        self.end_waiting(|ticket| self.unrelayed(ticket))
    }

    /// Ends everything that waits for a relay.
    fn end_waiting(&self, error: impl Fn(&mut OpTicket) -> Error) -> Vec<OpRemains> {
        let next = || self.held.pop().or_else(|| self.inlet.queue.pop());
        let end = |mut ticket| {
            let error = error(&mut ticket);
            end(&self.inlet, ticket, error)
        };
        std::iter::from_fn(next).map(end).collect()
    }

    /// The error of an op for which there is no relay: what sent it here, if that was an error.
    fn unrelayed(&self, ticket: &mut OpTicket) -> Error {
        let Some(task) = ticket.question_mut() else { return Error::ShuttingDown };
        if let Some(failure) = task.history.as_mut().and_then(|history| history.failure.take()) {
            return failure;
        }
        let target = self.router.lanes.get(usize::from(task.forecast.target));
        let reason = "callers' wakers do not return, and keep every thread that could bring the op there".to_owned();
        target.map_or(Error::ShuttingDown, |to| Error::DeviceUnavailable { device: to.lane.info.id, reason })
    }

    /// Waits for the relay to end after the inlet was closed. One that does not is left behind with the ticket in its hands, and
    /// all the others are answered here.
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
        let held = Arc::new(Held { inlet: Arc::clone(&inlet), tickets: Mutex::default() });
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
        // A relay before this one may have been looking at a queue when it got stuck.
        self.router.lanes.iter().for_each(|candidate| candidate.lane.end_look());
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
    }

    /// One round: tickets that were held, tickets that have arrived, then idle lanes.
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

    /// Sends one ticket on, or holds it where its lane is full. False where the relay was replaced meanwhile.
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
        if history.parts.as_mut().is_some_and(InParts::wants_lane) {
            return self.router.route_part(task, now);
        }
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

    fn end(&self, ticket: OpTicket, error: Error) -> Option<OpTicket> {
        drop(end(&self.inlet, ticket, error));
        None
    }
}

/// Ends an op that was on its way, and calls no foreign code.
fn end(inlet: &Inlet, ticket: OpTicket, error: Error) -> OpRemains {
    // Before the answer: whoever gets it may shut the runtime down, which waits for the count.
    inlet.count.fetch_sub(1, Ordering::AcqRel);
    ticket.answer_apart(Err(error))
}

/// Whether a policy lets an op run on another device.
fn may_leave(policy: FallbackPolicy) -> bool {
    matches!(policy, FallbackPolicy::Alternate | FallbackPolicy::Cpu)
}
