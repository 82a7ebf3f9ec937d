//! The machine: all stages of a run, which take one step at a time, and the threads that take the
//! steps.
//!
//! A thread first looks at the stages that take little time, from the sink to the source, then at
//! those that run a program's code, in the same order. So items close to the end are finished
//! first, few items are in flight, and no thread enters a program's code while an op could be
//! begun. A thread that has moved something checks whether there is more to do than it will do
//! itself, and wakes another thread if that is worth it: by the expected time of the waiting work,
//! not by the number of items. If little work waits, a single thread goes on and the others stay
//! away (see the rules of `bell`). A simulation takes the steps itself instead, in any order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use panoply_lockfree::bell::Duty;
use panoply_lockfree::blocking::{WaitError, block_until};
use panoply_lockfree::process;
use panoply_runtime::time::sooner;

use super::control::{Control, lock};
use super::error::PipelineError;
use super::report::{Progress, Report};
use super::stage::{Stage, StageDemand, StepOutcome};

/// All stages of one run.
pub(crate) struct Machine {
    pub(crate) stages: Vec<Box<dyn Stage>>,
    pub(crate) control: Control,
    /// The order in which threads look at the stages, and how many at its front are light.
    order: Vec<usize>,
    light: usize,
    pub(crate) threads: usize,
    done: Vec<AtomicBool>,
    left: AtomicUsize,
    pub(crate) progress: Box<dyn Fn() -> Progress + Send + Sync>,
    pub(crate) hooks: Hooks,
    pub(crate) names: Vec<String>,
}

/// Callbacks for channels, which are not stages.
#[derive(Default)]
pub(crate) struct Hooks {
    /// Ends the receiver's ring when the run ends early.
    pub(crate) close: Option<Hook>,
    /// Ends the sender's ring when the source must give no more items.
    pub(crate) drain: Option<Hook>,
}

pub(crate) type Hook = Box<dyn Fn() + Send + Sync>;

impl Hooks {
    pub(crate) fn close(&self) {
        self.close.iter().for_each(|close| close());
    }

    pub(crate) fn drain(&self) {
        self.drain.iter().for_each(|drain| drain());
    }
}

/// Releases threads that wait on the channels of a pipeline that is gone, started or not.
impl Drop for Hooks {
    fn drop(&mut self) {
        self.drain();
        self.close();
    }
}

impl Machine {
    pub(crate) fn new(
        stages: Vec<Box<dyn Stage>>,
        names: Vec<String>,
        control: Control,
        progress: Box<dyn Fn() -> Progress + Send + Sync>,
        hooks: Hooks,
    ) -> Machine {
        let by_weight = |heavy: bool| {
            let stages = &stages;
            (0..stages.len()).rev().filter(move |index| stages[*index].is_heavy() == heavy)
        };
        let light = by_weight(false).count();
        let order = by_weight(false).chain(by_weight(true)).collect();
        let threads = thread_count(&stages, control.choices.threads);
        let done = stages.iter().map(|_| AtomicBool::new(false)).collect();
        let left = AtomicUsize::new(stages.len());
        Machine { stages, control, order, light, threads, done, left, progress, hooks, names }
    }

    /// Makes a stage take a step.
    pub(crate) fn step(&self, index: usize) -> StepOutcome {
        if self.done[index].load(Ordering::Acquire) {
            return StepOutcome::Done;
        }
        let step = self.stages[index].step(&self.control);
        if step == StepOutcome::Done && !self.done[index].swap(true, Ordering::AcqRel) {
            self.left.fetch_sub(1, Ordering::AcqRel);
            // Wakes threads that wait for the end, and the next stage, which must learn that no
            // more items come.
            self.control.signals.bell.ring_all();
            return StepOutcome::Moved;
        }
        step
    }

    /// Whether no stage will do anything more.
    pub(crate) fn is_over(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0 || self.control.is_stopped()
    }

    /// Whether a thread for light work alone is needed: to begin and end ops, and to watch the
    /// time, while all the others are in a program's code.
    pub(crate) fn has_light_thread(&self) -> bool {
        let now = self.control.now();
        self.light > 0
            || self.control.deadline.is_some()
            || self.stages.iter().any(|stage| stage.alarm(&self.control, now).is_some())
    }

    /// The main loop of a thread.
    pub(crate) fn work(&self, duty: Duty) {
        let bell = &self.control.signals.bell;
        let mut stalled = false;
        while !self.is_over() {
            if duty == Duty::Every && !self.join(stalled) {
                stalled = bell.stay_away(self.watch());
                continue;
            }
            stalled = false;
            let idle_since = match duty {
                Duty::Every => self.work_in_crew(),
                Duty::Light => self.work_beside_crew(),
            };
            if let Some(seen) = idle_since
                && !self.is_over()
            {
                let limit = self.watch();
                bell.sleep(duty, seen, limit);
            }
        }
    }

    /// Joins the crew if it is empty, needs help, or has stalled. Returns whether the thread
    /// joined.
    fn join(&self, stalled: bool) -> bool {
        let bell = &self.control.signals.bell;
        if bell.join_alone() {
            return true;
        }
        if !stalled && self.wanted().time_ns < JOIN_NS_MIN {
            return false;
        }
        bell.join();
        if stalled {
            // The next call may block this thread too, so another thread must become the lookout.
            bell.wake_any();
        }
        true
    }

    /// Takes steps as a member of the crew. Returns the count of changes before the look that found
    /// nothing. `None` if the rest of the crew goes on without this thread.
    fn work_in_crew(&self) -> Option<usize> {
        let bell = &self.control.signals.bell;
        loop {
            let seen = bell.changes();
            if self.is_over() || !self.round(Duty::Every) {
                bell.leave();
                return Some(seen);
            }
            bell.count_step();
            if !self.share() {
                return None;
            }
        }
    }

    /// Takes the steps of light stages. Returns the count of changes before the look that found
    /// nothing.
    fn work_beside_crew(&self) -> Option<usize> {
        let bell = &self.control.signals.bell;
        loop {
            let seen = bell.changes();
            if self.is_over() || !self.round(Duty::Light) {
                return Some(seen);
            }
            bell.count();
            let is_looked_after = bell.crew() > 0 && bell.has_lookout();
            if !is_looked_after && self.wanted().threads > 0 {
                bell.wake_one(Duty::Every);
            }
        }
    }

    /// Sets how many threads will work.
    pub(crate) fn enter(&self, threads: usize) {
        lock(&self.control.signals.ending).threads = threads;
    }

    /// Notes that a thread has ended. The last one cleans up.
    pub(crate) fn leave(&self) {
        // The last member of the crew wakes one thread that stays away, which ends as well. So each
        // thread that ends wakes the others, or one that has come too late for the end's ring would
        // sleep for ever.
        self.control.signals.bell.ring_all();
        let last = {
            let mut ending = lock(&self.control.signals.ending);
            ending.threads = ending.threads.saturating_sub(1);
            ending.threads == 0
        };
        if last {
            self.finish();
        }
    }

    /// Waits until every thread has ended, for `grace` after the end of the run at the longest.
    /// Returns how many threads have not ended; in a fork, at once.
    pub(crate) fn wait(&self, grace: Duration) -> usize {
        let mut over_since: Option<Instant> = None;
        loop {
            let was_over = self.is_over();
            let limit = if was_over {
                let left = grace.saturating_sub(over_since.get_or_insert_with(Instant::now).elapsed());
                if left.is_zero() {
                    break;
                }
                Some(left)
            } else {
                // All threads may be inside a program's code, so the waiting thread watches the
                // time too.
                let limit = self.watch().map(|limit| limit.saturating_duration_since(self.control.now()));
                limit.map(|limit| limit.max(WATCH_EVERY_MIN))
            };
            let limit = limit.and_then(|limit| Instant::now().checked_add(limit));
            match self.wait_for_news(was_over, limit) {
                Ok(true) => break,
                Ok(false) | Err(WaitError::TimedOut) => {}
                Err(WaitError::Forked) => return 0,
            }
        }
        let (left, given_up) = {
            let ending = lock(&self.control.signals.ending);
            (ending.threads, ending.report.is_none())
        };
        if given_up {
            self.finish();
        }
        left
    }

    /// Waits until the report is available, and returns true; or until the run is over although it
    /// was not, and returns false.
    fn wait_for_news(&self, was_over: bool, limit: Option<Instant>) -> Result<bool, WaitError> {
        let signals = &self.control.signals;
        block_until(signals.process, limit, |context| {
            signals.ended.wait(signals.process, context.waker());
            let has_report = process::lock(&signals.ending, signals.process).is_some_and(|it| it.report.is_some());
            if has_report || (!was_over && self.is_over()) { Poll::Ready(has_report) } else { Poll::Pending }
        })
    }

    /// The report of the run as it is now, or as it was when it ended.
    pub(crate) fn report(&self) -> Report {
        let noted = lock(&self.control.signals.ending).report.clone();
        // A receiver may still take items from the last ring, so the progress is read again.
        noted.map(|report| Report { progress: (self.progress)(), ..report }).unwrap_or_else(|| self.read())
    }

    /// Checks deadlines and hung calls. Returns when to check again.
    pub(crate) fn watch(&self) -> Option<Instant> {
        let now = self.control.now();
        let mut next = self.control.deadline;
        if let (Some(deadline), Some(after)) = (self.control.deadline, self.control.choices.time_max)
            && now >= deadline
        {
            self.control.signals.stop(self.too_late(after));
        }
        for stage in &self.stages {
            if let Some((item, after)) = stage.hung(now) {
                self.control.signals.stop(PipelineError::Hung { stage: stage.name().to_owned(), item, after });
            }
            next = sooner(next, stage.alarm(&self.control, now));
        }
        next
    }

    /// Releases everything that a run that ended early left behind, and stores its report.
    pub(crate) fn finish(&self) {
        if self.control.is_stopped() {
            self.stages.iter().for_each(|stage| stage.abandon());
            self.hooks.close();
        }
        let report = self.read();
        lock(&self.control.signals.ending).report.get_or_insert(report);
        self.control.signals.ended.wake_all();
    }

    fn too_late(&self, after: Duration) -> PipelineError {
        let holds = || self.stages.iter().map(|stage| (stage.holds(), stage.name()));
        let (_, stage) = holds().max_by_key(|(count, _)| *count).unwrap_or((0, "none"));
        PipelineError::DeadlineExceeded {
            stage: stage.to_owned(),
            inside: holds().map(|(count, _)| count).sum(),
            after,
        }
    }

    fn read(&self) -> Report {
        let now = self.control.now();
        let mut stages = Vec::new();
        self.stages.iter().for_each(|stage| stage.report(now, &mut stages));
        let wall = now.saturating_duration_since(self.control.started);
        Report { wall, threads: self.threads, stages, progress: (self.progress)() }
    }

    /// Looks for a stage that can move something, and makes it take a step. Returns whether there
    /// was one.
    fn round(&self, duty: Duty) -> bool {
        let bell = &self.control.signals.bell;
        let stages = if duty == Duty::Light { &self.order[..self.light] } else { &self.order[..] };
        for index in stages {
            // The crew does not count on a thread that will probably be away for long.
            let is_away = duty == Duty::Every && self.stages[*index].is_slow(&self.control);
            if is_away {
                bell.leave();
            }
            let step = self.step(*index);
            if is_away {
                bell.join();
            }
            if step == StepOutcome::Moved {
                return true;
            }
        }
        false
    }

    /// Wakes another thread if there is more to do than the crew will do next. Returns false if
    /// there is less, and the calling thread has left the rest to the other members of the crew.
    fn share(&self) -> bool {
        let bell = &self.control.signals.bell;
        let (has_sleeper, has_others) = (bell.has_sleeper(Duty::Every), bell.crew() > 1);
        if !has_sleeper && !has_others {
            return true;
        }
        let wanted = self.wanted();
        if has_others && wanted.time_ns < STAY_NS_MIN && bell.leave_to_others() {
            return false;
        }
        if has_sleeper && wanted.threads > 1 && (wanted.time_ns >= JOIN_NS_MIN || !bell.has_lookout()) {
            bell.wake_one(Duty::Every);
        }
        true
    }

    /// The sum of the work that all stages could do now.
    fn wanted(&self) -> StageDemand {
        self.stages.iter().fold(StageDemand::NOTHING, |sum, stage| sum.and(stage.wanted(&self.control)))
    }
}

/// The waiting work from which another thread joins the crew. Below this, joining would cost more
/// than it gains: waking a thread takes some microseconds, and so does moving the items between two
/// caches.
const JOIN_NS_MIN: u64 = 10_000;
/// A thread in the crew stays while this much work waits for it and for the others.
const STAY_NS_MIN: u64 = JOIN_NS_MIN / 2;

/// The least time between two checks of a thread that waits for a run's end.
const WATCH_EVERY_MIN: Duration = Duration::from_micros(100);

/// How many threads run every stage: as many as may be inside a program's code at the same time,
/// but at most one more than the number of CPUs, because a source may block. The limit is raised
/// for the stage with the most threads, because its code may block too.
fn thread_count(stages: &[Box<dyn Stage>], wish: Option<usize>) -> usize {
    let heavy = || stages.iter().filter(|stage| stage.is_heavy()).map(|stage| stage.threads_max());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let enough = cpus.max(heavy().max().unwrap_or(0)).max(2) + 1;
    wish.unwrap_or_else(|| heavy().sum::<usize>().min(enough)).max(1)
}

#[cfg(test)]
#[path = "cost_tests.rs"]
mod tests;
