//! Starts device workers' threads, replaces the ones that hang, and ends them all.
//!
//! The supervisor is the control plane: it may lock, since no op waits for it. One thread looks at every worker a few times
//! within the shortest time bound, and sleeps in between.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use panoply_core::Error;

use super::driver::{Driver, Generation, Opener, Step};
use super::{Lane, WorkerState};
use crate::placement::affinity::{pin_current, sleep_precisely};
use panoply_core::cpu_set::CpuSet;

/// How long one poll of an engine may wait for the device before the worker looks at its queue again.
const POLL_WAIT_MAX: Duration = Duration::from_micros(200);
/// How often workers are looked at, at the least and at the most.
const LOOK_EVERY_MIN: Duration = Duration::from_millis(1);
const LOOK_EVERY_MAX: Duration = Duration::from_millis(250);
/// How long an aborted worker may take to leave before its thread is left behind.
const ABORT_GRACE: Duration = Duration::from_millis(500);

/// One device worker as the supervisor holds it.
struct Post {
    lane: Arc<Lane>,
    opener: Opener,
    cpus: Option<CpuSet>,
    generation: Arc<Generation>,
    thread: Option<JoinHandle<()>>,
    stuck_threads: u32,
}

/// Every device worker of a runtime.
pub(crate) struct Supervisor {
    shared: Arc<Shared>,
    watch: Option<JoinHandle<()>>,
}

struct Shared {
    posts: Mutex<Vec<Post>>,
    stop: (Mutex<bool>, Condvar),
    epoch: Instant,
}

/// How a shutdown went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shutdown {
    /// Whether every accepted op ran to its end. Otherwise what was left was answered with an error.
    pub drained: bool,
    /// Threads that were stuck inside an engine and had to be left behind.
    pub threads_left: usize,
}

impl Supervisor {
    pub(crate) fn new() -> Supervisor {
        let stop = (Mutex::new(false), Condvar::new());
        let shared = Arc::new(Shared { posts: Mutex::new(Vec::new()), stop, epoch: Instant::now() });
        Supervisor { shared, watch: None }
    }

    /// Starts a worker for a lane, on these CPUs, and returns at once; the lane's state tells when it is ready.
    pub(crate) fn start(&mut self, lane: Arc<Lane>, opener: Opener, cpus: Option<CpuSet>) -> Result<(), Error> {
        let (generation, thread) = self.shared.spawn(&lane, &opener, &cpus)?;
        let post = Post { lane, opener, cpus, generation, thread: Some(thread), stuck_threads: 0 };
        self.shared.lock_posts().push(post);
        if self.watch.is_none() {
            let shared = Arc::clone(&self.shared);
            let name = "panoply-supervisor".to_owned();
            self.watch = std::thread::Builder::new().name(name).spawn(move || shared.watch()).ok();
        }
        Ok(())
    }

    /// Drains every worker for at most this long, then aborts what is left. Returns when every accepted op is answered.
    pub(crate) fn shut_down(&mut self, drain_time_max: Duration) -> Shutdown {
        self.shared.lock_posts().iter().for_each(|post| post.lane.drain());
        let drained = self.shared.wait_for_threads(drain_time_max);
        if !drained {
            self.shared.lock_posts().iter().for_each(|post| post.lane.abort());
            self.shared.wait_for_threads(ABORT_GRACE);
        }
        self.stop_watching();
        let mut threads_left = 0;
        for post in self.shared.lock_posts().drain(..) {
            threads_left += usize::from(post.leave()) + post.stuck_threads as usize;
        }
        Shutdown { drained, threads_left }
    }

    fn stop_watching(&mut self) {
        *self.shared.stop.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        self.shared.stop.1.notify_all();
        if let Some(watch) = self.watch.take() {
            // The watch thread runs no foreign code, so it cannot have panicked in a way that matters here.
            let _ = watch.join();
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.stop_watching();
    }
}

impl Shared {
    fn lock_posts(&self) -> MutexGuard<'_, Vec<Post>> {
        self.posts.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn spawn(
        &self,
        lane: &Arc<Lane>,
        opener: &Opener,
        cpus: &Option<CpuSet>,
    ) -> Result<(Arc<Generation>, JoinHandle<()>), Error> {
        // The driver never leaves its thread; only what the supervisor may see of it comes back.
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let (lane_there, opener, cpus, epoch) = (Arc::clone(lane), opener.clone(), cpus.clone(), self.epoch);
        let name = format!("panoply-{}", lane.info.id);
        let spawned = std::thread::Builder::new().name(name).spawn(move || {
            if let Some(cpus) = &cpus {
                // A worker that may not be pinned runs wherever the system puts it.
                let _ = pin_current(cpus);
            }
            // Engines pause while their device works; where pauses cannot be made precise they are a little longer.
            let _ = sleep_precisely();
            let driver = Driver::new(lane_there, opener, epoch);
            let _ = sender.send(driver.generation());
            drive(driver);
        });
        let refused = |reason: String| Error::DeviceUnavailable { device: lane.info.id, reason };
        let thread = spawned.map_err(|error| refused(format!("no thread could be started: {error}")))?;
        let generation = receiver.recv().map_err(|_| refused("its thread ended at once".to_owned()))?;
        Ok((generation, thread))
    }

    fn watch(&self) {
        let mut stopped = self.stop.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while !*stopped {
            let wait = self.look_every();
            stopped = match self.stop.1.wait_timeout(stopped, wait) {
                Ok((guard, _)) => guard,
                Err(poisoned) => poisoned.into_inner().0,
            };
            if !*stopped {
                drop(stopped);
                self.replace_stuck(Instant::now());
                stopped = self.stop.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            }
        }
    }

    fn look_every(&self) -> Duration {
        let posts = self.lock_posts();
        let shortest = posts.iter().map(|post| post.lane.limits.op_time_max).min().unwrap_or(LOOK_EVERY_MAX);
        (shortest / 4).clamp(LOOK_EVERY_MIN, LOOK_EVERY_MAX)
    }

    fn replace_stuck(&self, now: Instant) {
        for post in self.lock_posts().iter_mut() {
            let limit = post.lane.limits.op_time_max;
            if post.generation.inside_for(now).is_some_and(|inside| inside > limit) {
                self.replace(post, limit);
            }
        }
    }

    fn replace(&self, post: &mut Post, after: Duration) {
        let device = post.lane.info.id;
        let error = Error::Timeout { device, after };
        post.supersede(&error);
        post.stuck_threads += 1;
        post.lane.counts.replaced.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let replacement = if post.stuck_threads > post.lane.limits.stuck_threads_max {
            Err(error)
        } else {
            post.lane.set_state(WorkerState::Reopening, Some(error));
            self.spawn(&post.lane, &post.opener, &post.cpus)
        };
        match replacement {
            Ok((generation, thread)) => {
                post.generation = generation;
                // The stuck thread is left to end by itself.
                post.thread = Some(thread);
            }
            Err(error) => {
                post.thread = None;
                post.lane.set_state(WorkerState::Failed, Some(error));
                post.lane.close();
                post.lane.refuse_queued();
            }
        }
    }

    /// Waits until every worker's thread has ended; false when the time is over first.
    fn wait_for_threads(&self, time_max: Duration) -> bool {
        let start = Instant::now();
        let mut pause = Duration::from_micros(20);
        loop {
            let running = |post: &Post| post.thread.as_ref().is_some_and(|thread| !thread.is_finished());
            if !self.lock_posts().iter().any(running) {
                return true;
            }
            if start.elapsed() >= time_max {
                return false;
            }
            std::thread::sleep(pause);
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }
}

impl Post {
    /// Gives the current driver up and answers what its engine held.
    fn supersede(&self, error: &Error) {
        self.generation.superseded.store(true, std::sync::atomic::Ordering::Release);
        self.generation.flights.take_all(|ticket| self.lane.fail(ticket, error.clone()));
    }

    /// Joins the thread if it has ended; otherwise answers what it holds and leaves it behind.
    fn leave(&self) -> bool {
        let left = self.thread.as_ref().is_some_and(|thread| !thread.is_finished());
        if left {
            self.supersede(&Error::ShuttingDown);
            self.lane.close();
            self.lane.refuse_queued();
            self.lane.set_state(WorkerState::Stopped, None);
        }
        left
    }
}

/// The worker's thread.
fn drive(mut driver: Driver) {
    let lane = driver.lane();
    loop {
        match driver.step(POLL_WAIT_MAX) {
            Step::Worked => {}
            Step::InFlight => std::hint::spin_loop(),
            Step::Idle => lane.sleeper.sleep(None, || lane.has_news()),
            Step::IdleUntil(time) => lane.sleeper.sleep(Some(time), || lane.has_news()),
            Step::Until(time) => lane.sleeper.sleep(Some(time), || lane.is_aborting() || lane.is_finished()),
            Step::Exit => return,
        }
    }
}
