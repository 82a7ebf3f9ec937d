//! Starts device workers' threads, replaces those that are stuck or have died, and ends them all.
//!
//! The supervisor is the control plane: it may take locks, since no op waits for it. One thread
//! looks at every worker a few times within the shortest time bound, and sleeps in between.
//!
//! 1. A thread that has been inside one call of foreign code for longer than `op_time_max` is
//!    stuck. A thread that has ended without having been stopped has died. Both are replaced, and
//!    the ops that their engines held are answered.
//! 2. A stuck thread is remembered until it ends, and its table of flights is emptied at each look.
//!    It counts as stuck for exactly that long.
//! 3. Ops are answered without holding the lock and without calling foreign code. Wakers,
//!    destructors and listeners are called afterwards, on separate threads (see `errands`): they
//!    may call back into the supervisor, or never return.
//! 4. A device that was given up keeps its old post when it is found again, so that its stuck
//!    threads still count. Starting it again and a look exclude each other, since a look may be
//!    about to end the lane's ops.
//! 5. The workers of pools on a device that was given up end with the device's own worker.
//! 6. Time in which the supervisor's own thread was held up counts against no worker: the whole
//!    process may have been stopped.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use panoply_core::Error;
use panoply_lockfree::foreign::contain;
use panoply_lockfree::slot::slot;
use panoply_placement::affinity::{give_way, sleep_precisely, take_short_slices};

use super::driver::{Driver, DriverStep, Opener};
use super::vigil::{DriverObservation, SupervisorLook};
use super::visit::Generation;
use crate::domain_pools::PoolName;
use crate::errands::{Errand, Errands};
use crate::lane::{Lane, OpTicket, WorkerState};
use crate::process::{self, Process};
use crate::threads::{self, Owner, Thread};

/// How long one poll of an engine may wait for the device before the worker looks at its queue
/// again.
const POLL_WAIT_MAX: Duration = Duration::from_micros(200);
/// The bounds of the interval between two looks at the workers.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(1);
const LOOK_EVERY_MAX: Duration = Duration::from_millis(250);
/// How long an aborted worker may take to end before its thread is left behind.
const ABORT_GRACE: Duration = Duration::from_millis(500);

/// Supervises every device worker of a runtime.
pub(crate) struct Supervisor {
    shared: Arc<SharedSupervisor>,
    watch: Option<Thread>,
}

struct SharedSupervisor {
    owner: Owner,
    process: Process,
    errands: Arc<Errands>,
    /// Held during a look, and while a lane is opened again.
    turn: Mutex<()>,
    posts: Mutex<Vec<Post>>,
    /// Other things to look at as often as at the workers.
    others: Mutex<Vec<LookCallback>>,
    stop: (Mutex<bool>, Condvar),
    epoch: Instant,
}

/// A callback that looks at something at a given time.
type LookCallback = Box<dyn Fn(Instant) + Send>;

/// One device worker as the supervisor sees it.
struct Post {
    lane: Arc<Lane>,
    opener: Opener,
    /// `None` once the device was given up.
    current: Option<WorkerThread>,
    /// Threads that are stuck, until they return.
    stuck: Vec<WorkerThread>,
    /// Replacements in a row without a completed op in between.
    strikes: u32,
    /// Ops completed at the last replacement.
    completed: u64,
}

/// A thread, and the shared state of its driver.
struct WorkerThread {
    generation: Arc<Generation>,
    thread: Thread,
    vigil: DriverObservation,
}

/// Why a lane was not opened again.
pub(crate) enum NotAgain {
    /// The worker has not left yet, or ops are left in its lane: the device needs a new lane.
    Busy,
    /// The device must be left alone, for this reason.
    Failed(Error),
}

/// The result of a shutdown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Whether every accepted op ran to its end. Otherwise the remaining ops were answered with an
    /// error.
    pub drained: bool,
    /// Threads that were stuck inside an engine and had to be left behind.
    pub threads_left: usize,
}

impl Supervisor {
    pub(crate) fn new(owner: Owner, errands: Arc<Errands>) -> Supervisor {
        Supervisor { shared: Arc::new(SharedSupervisor::new(owner, errands)), watch: None }
    }

    /// Starts a worker for a lane and returns at once. The lane's state shows when the worker is
    /// ready.
    pub(crate) fn start(&mut self, lane: Arc<Lane>, opener: Opener) -> Result<(), Error> {
        if self.watch.is_none() {
            let shared = Arc::clone(&self.shared);
            let spawned = self.shared.owner.spawn("panoply-supervisor".to_owned(), move || shared.watch());
            self.watch = Some(spawned.map_err(|error| no_thread(&lane, &error))?);
        }
        let current = Some(self.shared.spawn(&lane, &opener)?);
        let (stuck, strikes, completed) = (Vec::new(), 0, lane.counts.completed.load(Ordering::Relaxed));
        let mut posts = self.shared.lock_posts();
        posts.retain(|post| !post.is_over());
        posts.push(Post { lane, opener, current, stuck, strikes, completed });
        Ok(())
    }

    /// Starts a worker again for the lane of a device that was given up.
    pub(crate) fn start_again(&self, lane: &Arc<Lane>) -> Result<(), NotAgain> {
        let shared = &self.shared;
        let _turn = shared.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut posts = shared.lock_posts();
        let post = posts.iter_mut().find(|post| Arc::ptr_eq(&post.lane, lane)).ok_or(NotAgain::Busy)?;
        let device = lane.info.id;
        if post.stuck.len() > lane.limits.stuck_threads_max as usize {
            let reason = format!("{} threads are still stuck inside its engine", post.stuck.len());
            return Err(NotAgain::Failed(Error::DeviceUnavailable { device, reason }));
        }
        if post.current.as_ref().is_some_and(|hand| !hand.has_left()) || !lane.open_again() {
            return Err(NotAgain::Busy);
        }
        (post.strikes, post.completed) = (0, lane.counts.completed.load(Ordering::Relaxed));
        match shared.spawn(lane, &post.opener) {
            Ok(hand) => post.current = Some(hand),
            Err(error) => {
                post.current = None;
                lane.put_state(WorkerState::Failed, Some(error.clone()));
                shared.errands.drop_all(lane.end_queued());
                return Err(NotAgain::Failed(error));
            }
        }
        Ok(())
    }

    /// Starts a worker again for a lane that was replaced and whose threads have left, so that the
    /// supervisor no longer has a post for it.
    pub(crate) fn start_replaced(&mut self, lane: &Arc<Lane>, opener: &Opener) -> Result<(), NotAgain> {
        {
            let mut posts = self.shared.lock_posts();
            posts.retain(|post| !post.is_over());
            if posts.iter().any(|post| Arc::ptr_eq(&post.lane, lane)) || !lane.open_again() {
                return Err(NotAgain::Busy);
            }
        }
        self.start(Arc::clone(lane), opener.clone()).map_err(|error| {
            lane.put_state(WorkerState::Failed, Some(error.clone()));
            self.shared.errands.drop_all(lane.end_queued());
            NotAgain::Failed(error)
        })
    }

    /// Adds a callback that is called as often as the workers are looked at.
    pub(crate) fn watch_too(&self, look: LookCallback) {
        self.shared.others.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(look);
    }

    /// Drains every worker for at most `drain_time_max`, then aborts the rest. Returns when every
    /// accepted op is answered, or at once in a fork.
    pub(crate) fn shut_down(&mut self, drain_time_max: Duration) -> Shutdown {
        let lanes: Vec<Arc<Lane>> = self.shared.lock_posts().iter().map(|post| Arc::clone(&post.lane)).collect();
        let errands = Arc::clone(&self.shared.errands);
        lanes.iter().for_each(|lane| errands.drop_all(lane.drain()));
        let drained = self.shared.wait_for_threads(drain_time_max);
        if !self.shared.process.is_here() {
            return Shutdown { drained: false, threads_left: 0 };
        }
        if !drained {
            lanes.iter().for_each(|lane| errands.drop_all(lane.abort()));
            self.shared.wait_for_threads(ABORT_GRACE);
        }
        self.stop_watching();
        let posts = std::mem::take(&mut *self.shared.lock_posts());
        let left: Vec<(Shutdown, LeftoverOps)> = posts.into_iter().map(Post::leave).collect();
        let (left, found): (Vec<Shutdown>, Vec<LeftoverOps>) = left.into_iter().unzip();
        found.into_iter().for_each(|found| found.settle(&errands));
        left.into_iter().fold(Shutdown { drained, threads_left: 0 }, |sum, left| Shutdown {
            drained: sum.drained && left.drained,
            threads_left: sum.threads_left + left.threads_left,
        })
    }

    fn stop_watching(&mut self) {
        *self.shared.stop.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        self.shared.stop.1.notify_all();
        if let Some(watch) = self.watch.take() {
            // This may be called on the very thread that it stops.
            watch.ends_within(ABORT_GRACE);
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        if self.shared.process.is_here() {
            self.stop_watching();
        }
    }
}

impl SharedSupervisor {
    fn new(owner: Owner, errands: Arc<Errands>) -> SharedSupervisor {
        let stop = (Mutex::new(false), Condvar::new());
        let (posts, others) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        SharedSupervisor {
            owner,
            process: Process::current(),
            errands,
            turn: Mutex::new(()),
            posts,
            others,
            stop,
            epoch: Instant::now(),
        }
    }

    fn lock_posts(&self) -> MutexGuard<'_, Vec<Post>> {
        self.posts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn spawn(&self, lane: &Arc<Lane>, opener: &Opener) -> Result<WorkerThread, Error> {
        // The driver never leaves its thread; only the part that the supervisor may see is sent
        // back.
        let (ticket, mut receiver) = slot(());
        let (lane_there, opener, epoch) = (Arc::clone(lane), opener.clone(), self.epoch);
        let pool = lane.pool.map_or_else(String::new, |pool| format!("-{pool}"));
        let (is_patient, is_short) = (lane.is_patient(), lane.pool == Some(PoolName::Short));
        let spawned = self.owner.spawn(format!("panoply-{}{pool}", lane.info.id), move || {
            if is_patient {
                // Threads that the engine starts inherit it.
                let _ = give_way();
            } else if is_short {
                // Otherwise a short op sometimes waits for the end of a long op's slice.
                let _ = take_short_slices();
            }
            // Engines pause while their device works. If precise pauses are not available, the
            // pauses are slightly longer.
            let _ = sleep_precisely();
            let driver = Driver::new(lane_there, opener, epoch);
            ticket.answer(driver.generation());
            drive(driver);
        });
        let thread = spawned.map_err(|error| no_thread(lane, &error))?;
        let reason = "its thread ended at once".to_owned();
        let ended = Error::DeviceUnavailable { device: lane.info.id, reason };
        match receiver.wait_for(self.process, None, 0) {
            Ok(generation) => {
                Ok(WorkerThread { generation: generation.ok_or(ended)?, thread, vigil: DriverObservation::default() })
            }
            Err(_) => Err(self.process.refusal("the runtime")),
        }
    }

    fn watch(&self) {
        let mut stopped = self.stop.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let mut last = Instant::now();
        while !*stopped {
            let wait = self.look_every();
            stopped = match self.stop.1.wait_timeout(stopped, wait) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
            if !*stopped {
                drop(stopped);
                // A panic in one look must not prevent the next.
                let look = SupervisorLook::new(last, Instant::now(), wait);
                let _ = contain(|| self.look(look));
                last = look.now;
                stopped = self.stop.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
    }

    fn look_every(&self) -> Duration {
        let posts = self.lock_posts();
        let shortest = posts.iter().map(|post| post.lane.limits.op_time_max).min().unwrap_or(LOOK_EVERY_MAX);
        (shortest / 4).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX)
    }

    /// Looks at every worker once.
    fn look(&self, look: SupervisorLook) {
        let _turn = self.turn.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let found: Vec<WorkerFault> =
            self.lock_posts().iter_mut().filter_map(|post| self.look_at(post, look)).collect();
        found.into_iter().for_each(|found| found.settle(&self.errands));
        let others = self.others.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        others.iter().for_each(|other| other(look.now));
    }

    fn look_at(&self, post: &mut Post, look: SupervisorLook) -> Option<WorkerFault> {
        let limit = post.lane.limits.op_time_max;
        let device = post.lane.info.id;
        let mut found = WorkerFault {
            lane: Arc::clone(&post.lane),
            error: Error::Timeout { device, after: limit },
            tickets: post.sweep(),
            state: None,
        };
        if post.current.as_mut().is_some_and(|hand| hand.vigil.replaces(&hand.generation, look, limit)) {
            found.take(&post.current);
            post.stuck.extend(post.current.take());
            self.replace(post, &mut found);
        } else if let Some(hand) = post.current.take_if(|hand| hand.has_died()) {
            found.error = Error::EnginePanicked { device, message: hand.bury(&mut found.tickets) };
            self.replace(post, &mut found);
        }
        if found.state.is_none()
            && let Some(trouble) = post.lane.leader_trouble()
        {
            // Its device was given up: its ops go elsewhere, and it ends after those in flight.
            (found.state, found.error) = (Some(WorkerState::Failed), trouble);
        }
        (found.state.is_some() || !found.tickets.is_empty()).then_some(found)
    }

    /// Replaces a driver that is gone by a new one, or gives the device up.
    fn replace(&self, post: &mut Post, found: &mut WorkerFault) {
        let limits = &post.lane.limits;
        let completed = post.lane.counts.completed.load(Ordering::Relaxed);
        post.strikes = if completed == post.completed { post.strikes.saturating_add(1) } else { 1 };
        post.completed = completed;
        post.lane.counts.replaced.fetch_add(1, Ordering::Relaxed);
        // A driver that got stuck while it gave the device up has already stored the reason.
        let given_up = post.lane.state() == WorkerState::Failed;
        let too_many = given_up
            || post.stuck.len() > limits.stuck_threads_max as usize
            || post.strikes > limits.reopen_attempts_max.max(limits.stuck_threads_max);
        found.state = Some(WorkerState::Failed);
        if !too_many {
            // No driver acts for the device now. The new driver will report its state.
            post.lane.put_state(WorkerState::Reopening, Some(found.error.clone()));
            match self.spawn(&post.lane, &post.opener) {
                Ok(hand) => {
                    post.current = Some(hand);
                    found.state = Some(WorkerState::Reopening);
                }
                Err(error) => found.error = error,
            }
        }
    }

    /// Waits until every worker's thread has ended, except the calling one. Returns false if
    /// `time_max` passes first. A thread that has died does not count as ended: it is still to be
    /// replaced. Returns at once in a fork, even one that happens meanwhile.
    fn wait_for_threads(&self, time_max: Duration) -> bool {
        let running = |post: &Post| {
            let busy = |hand: &WorkerThread| !hand.thread.is_current() && !hand.has_left();
            post.current.as_ref().is_some_and(busy)
        };
        let posts = || process::lock(&self.posts, self.process);
        threads::wait_until(time_max, || {
            !self.process.is_here() || posts().is_none_or(|posts| !posts.iter().any(running))
        })
    }
}

impl WorkerThread {
    /// Whether the thread has ended in good order.
    fn has_left(&self) -> bool {
        self.thread.is_finished() && self.generation.tenure.has_ended()
    }

    fn has_died(&self) -> bool {
        self.thread.is_finished() && !self.generation.tenure.has_ended()
    }

    /// Takes the tickets that a thread left behind when it ended, and returns its panic message.
    /// All of its tickets are visible here, since the thread was seen to have ended.
    fn bury(self, tickets: &mut Vec<OpTicket>) -> String {
        self.generation.tenure.dismiss();
        self.generation.empty(tickets);
        self.thread.panic().unwrap_or("its thread has ended").to_owned()
    }
}

impl Post {
    /// Whether its lane was replaced and none of its threads is left.
    fn is_over(&self) -> bool {
        let left = self.current.as_ref().is_none_or(WorkerThread::has_left);
        self.lane.is_replaced() && left && self.stuck.is_empty()
    }

    /// Empties the tables of stuck threads, and forgets those that have returned and ended.
    fn sweep(&mut self) -> Vec<OpTicket> {
        let mut tickets = Vec::new();
        for hand in std::mem::take(&mut self.stuck) {
            if hand.thread.is_finished() {
                hand.bury(&mut tickets);
            } else {
                hand.generation.empty(&mut tickets);
                self.stuck.push(hand);
            }
        }
        tickets
    }

    /// Releases the threads. The caller must answer the ops that they left behind.
    fn leave(mut self) -> (Shutdown, LeftoverOps) {
        let mut tickets = self.sweep();
        let orphaned = self.current.as_ref().is_some_and(|hand| !hand.has_left());
        let running = self.current.as_ref().is_some_and(|hand| !hand.thread.is_finished());
        match self.current.take_if(|_| orphaned) {
            Some(hand) if !running => _ = hand.bury(&mut tickets),
            Some(hand) => {
                hand.generation.tenure.dismiss();
                hand.generation.empty(&mut tickets);
            }
            None => {}
        }
        let shutdown = Shutdown { drained: !orphaned, threads_left: usize::from(running) + self.stuck.len() };
        (shutdown, LeftoverOps { lane: self.lane, tickets, orphaned })
    }
}

/// The ops that an ended worker left behind.
struct LeftoverOps {
    lane: Arc<Lane>,
    tickets: Vec<OpTicket>,
    /// Whether no thread takes ops out of the lane any more.
    orphaned: bool,
}

impl LeftoverOps {
    fn settle(self, errands: &Errands) {
        let LeftoverOps { lane, tickets, orphaned } = self;
        errands.drop_all(tickets.into_iter().map(|ticket| lane.end(ticket, Error::ShuttingDown)));
        if orphaned {
            errands.drop_all(lane.end_queued());
            if lane.put_state(WorkerState::Stopped, None) {
                errands.send([Box::new(move || lane.tell_state(WorkerState::Stopped, None)) as Errand]);
            }
        }
    }
}

/// The result of a look at one worker. It is handled after the lock is released.
struct WorkerFault {
    lane: Arc<Lane>,
    error: Error,
    tickets: Vec<OpTicket>,
    /// The new state of the worker, if it has changed.
    state: Option<WorkerState>,
}

impl WorkerFault {
    fn take(&mut self, hand: &Option<WorkerThread>) {
        if let Some(hand) = hand {
            hand.generation.empty(&mut self.tickets);
        }
    }

    fn settle(self, errands: &Errands) {
        let WorkerFault { lane, error, tickets, state } = self;
        let news = match state {
            // A driver that gave the device up has already stored the reason.
            Some(WorkerState::Failed) if lane.state() == WorkerState::Failed => false,
            Some(WorkerState::Failed) => lane.put_state(WorkerState::Failed, Some(error.clone())),
            Some(_) => true,
            None => false,
        };
        errands.drop_all(tickets.into_iter().map(|ticket| lane.end(ticket, error.clone())));
        if state == Some(WorkerState::Failed) {
            errands.drop_all(lane.end_queued());
        }
        if let Some(state) = state.filter(|_| news) {
            errands.send([Box::new(move || lane.tell_state(state, Some(&error))) as Errand]);
        }
    }
}

fn no_thread(lane: &Lane, error: &std::io::Error) -> Error {
    Error::DeviceUnavailable { device: lane.info.id, reason: format!("no thread could be started: {error}") }
}

/// The main function of the worker's thread.
fn drive(mut driver: Driver) {
    let (lane, generation) = (driver.lane(), driver.generation());
    loop {
        match driver.step(POLL_WAIT_MAX) {
            DriverStep::Worked => {}
            DriverStep::InFlight => std::hint::spin_loop(),
            DriverStep::Idle => lane.sleeper.sleep(None, || lane.has_news()),
            DriverStep::IdleUntil(time) => lane.sleeper.sleep(Some(time), || lane.has_news()),
            DriverStep::Until(time) => lane.sleeper.sleep(Some(time), || lane.is_aborting() || lane.is_finished()),
            DriverStep::Exit => break,
        }
    }
    drop(driver);
    generation.tenure.end();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::tests::{lane, ticket};
    use panoply_core::Backend;
    use panoply_core::clock::SystemClock;
    use panoply_placement::WorkerPlace;
    use std::task::{Context, Poll, Waker};

    #[test]
    fn a_thread_that_died_is_replaced_and_what_it_held_is_answered() {
        let backend: Arc<dyn Backend> = Arc::new(panoply_cpu::CpuBackend::new());
        let lane = Arc::new(lane(backend.discover().unwrap().remove(0)));
        let (options, clock) = (panoply_core::OpenOptions::default(), Arc::new(SystemClock));
        let owner = Owner::new();
        let shared = SharedSupervisor::new(owner, Arc::new(Errands::new(owner)));
        let opener = Opener { backend, options, clock, place: WorkerPlace::default() };
        // A driver whose thread ended without notice, with one op inside its engine and another in
        // its queue.
        let generation = Driver::new(Arc::clone(&lane), opener.clone(), shared.epoch).generation();
        let (inside, mut first) = ticket();
        generation.flights.put(3, inside);
        let (queued, mut second) = ticket();
        assert!(lane.try_send(queued).is_ok());
        lane.put_state(WorkerState::Ready, None);
        let thread = threads::spawn("dies".to_owned(), || std::panic::resume_unwind(Box::new("it died"))).unwrap();
        assert!(thread.ends_within(Duration::from_secs(10)));
        let current = Some(WorkerThread { generation, thread, vigil: DriverObservation::default() });
        let (stuck, strikes, completed) = (Vec::new(), 0, 0);
        let post = Post { lane: Arc::clone(&lane), opener, current, stuck, strikes, completed };
        shared.lock_posts().push(post);
        assert!(!shared.wait_for_threads(Duration::from_millis(1)), "a dead thread has drained nothing");
        shared.look(SupervisorLook::new(shared.epoch, Instant::now(), LOOK_EVERY_MAX));
        let answer = first.poll(&Context::from_waker(Waker::noop()));
        let panicked = |error: &Error| matches!(error, Error::EnginePanicked { message, .. } if message == "it died");
        assert!(matches!(&answer, Poll::Ready(Some(Err(error))) if panicked(error)), "{answer:?}");
        assert!(matches!(
            second.wait(Process::current(), Some(Instant::now() + Duration::from_secs(10))),
            Ok(Some(Ok(_)))
        ));
        assert_eq!(lane.report().counters.replaced, 1);
        drop(lane.drain());
        assert!(shared.wait_for_threads(Duration::from_secs(10)));
        let posts = std::mem::take(&mut *shared.lock_posts());
        let left: Vec<Shutdown> = posts.into_iter().map(|post| post.leave().0).collect();
        assert_eq!(left, [Shutdown { drained: true, threads_left: 0 }]);
    }
}
