//! The machine: every stage of a run, one step at a time, and the threads that take the steps.
//!
//! A thread looks at the stages that take little time first, from the sink to the source, then at those that run a program's
//! code, in the same order: what is nearly done is done first, so little is under way, and nobody enters a program's code
//! while an op could be begun. Whoever has moved something looks whether there is more to do than it will do itself, and
//! wakes somebody where there is. A simulation takes the steps by itself instead, in any order.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use super::bell::Duty;
use super::control::{Control, lock};
use super::error::PipelineError;
use super::report::{Progress, Report};
use super::stage::{Stage, Step};
use crate::time::sooner;

/// Every stage of one run.
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

/// What is done for channels, which are no stages.
#[derive(Default)]
pub(crate) struct Hooks {
    /// Ends the receiver's ring, when the run ends early.
    pub(crate) close: Option<Hook>,
    /// Ends the sender's ring, when the source shall give nothing more.
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

/// Nobody waits for a pipeline that is gone, whether it was ever started or not.
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

    /// Has a stage take a step.
    pub(crate) fn step(&self, index: usize) -> Step {
        if self.done[index].load(Ordering::Acquire) {
            return Step::Done;
        }
        let step = self.stages[index].step(&self.control);
        if step == Step::Done && !self.done[index].swap(true, Ordering::AcqRel) {
            self.left.fetch_sub(1, Ordering::AcqRel);
            // Who waits for the end, and the stage behind, which learns that nothing more comes.
            self.control.signals.bell.ring_all();
            return Step::Moved;
        }
        step
    }

    /// Whether no stage will do anything any more.
    pub(crate) fn is_over(&self) -> bool {
        self.left.load(Ordering::Acquire) == 0 || self.control.is_stopped()
    }

    /// Whether a thread for light work alone is needed: to begin and end ops, and to watch the time, while all the others are
    /// in a program's code.
    pub(crate) fn has_light_thread(&self) -> bool {
        let now = self.control.now();
        self.light > 0
            || self.control.deadline.is_some()
            || self.stages.iter().any(|stage| stage.alarm(&self.control, now).is_some())
    }

    /// A thread's whole life.
    pub(crate) fn work(&self, duty: Duty) {
        let bell = &self.control.signals.bell;
        while !self.is_over() {
            let seen = bell.changes();
            if self.round(duty) {
                self.share(duty);
            } else if !self.is_over() {
                let limit = self.watch();
                bell.sleep(duty, seen, limit);
            }
        }
    }

    /// So many threads will work.
    pub(crate) fn enter(&self, threads: usize) {
        lock(&self.control.signals.ending).threads = threads;
    }

    /// A thread has ended. The last one clears up.
    pub(crate) fn leave(&self) {
        let last = {
            let mut ending = lock(&self.control.signals.ending);
            ending.threads = ending.threads.saturating_sub(1);
            ending.threads == 0
        };
        if last {
            self.finish();
        }
    }

    /// Waits until every thread has ended, at the longest `grace` after the run is over. Returns how many have not.
    pub(crate) fn wait(&self, grace: Duration) -> usize {
        let signals = &self.control.signals;
        let mut over_since: Option<Instant> = None;
        let mut ending = lock(&signals.ending);
        while ending.report.is_none() {
            let limit = if self.is_over() {
                let left = grace.saturating_sub(over_since.get_or_insert_with(Instant::now).elapsed());
                if left.is_zero() {
                    break;
                }
                Some(left)
            } else {
                // All threads may be inside a program's code, so whoever waits watches the time too.
                drop(ending);
                let limit = self.watch().map(|limit| limit.saturating_duration_since(self.control.now()));
                ending = lock(&signals.ending);
                if ending.report.is_some() || self.is_over() {
                    continue;
                }
                limit.map(|limit| limit.max(WATCH_EVERY_MIN))
            };
            ending = match limit {
                Some(limit) => signals.ended.wait_timeout(ending, limit).unwrap_or_else(|p| p.into_inner()).0,
                None => signals.ended.wait(ending).unwrap_or_else(|p| p.into_inner()),
            };
        }
        let (left, given_up) = (ending.threads, ending.report.is_none());
        drop(ending);
        if given_up {
            self.finish();
        }
        left
    }

    /// How the run is, or was when it ended.
    pub(crate) fn report(&self) -> Report {
        let noted = lock(&self.control.signals.ending).report.clone();
        // A receiver may still take what the last ring holds.
        noted.map(|report| Report { progress: (self.progress)(), ..report }).unwrap_or_else(|| self.read())
    }

    /// Checks deadlines and hung calls. Returns when to look again.
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

    /// Lets go of everything that a run which ended early left behind, and notes how it was.
    pub(crate) fn finish(&self) {
        if self.control.is_stopped() {
            self.stages.iter().for_each(|stage| stage.abandon());
            self.hooks.close();
        }
        let report = self.read();
        lock(&self.control.signals.ending).report.get_or_insert(report);
        self.control.signals.ended.notify_all();
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

    /// Looks for a stage that can move something, and has it do so.
    fn round(&self, duty: Duty) -> bool {
        let stages = if duty == Duty::Light { &self.order[..self.light] } else { &self.order[..] };
        for index in stages {
            if self.step(*index) == Step::Moved {
                return true;
            }
        }
        false
    }

    /// Wakes somebody where there is more to do than the calling thread will do next.
    fn share(&self, duty: Duty) {
        let bell = &self.control.signals.bell;
        bell.count();
        if !bell.has_sleeper(Duty::Every) {
            return;
        }
        let own = usize::from(duty == Duty::Every);
        let wanted: usize = self.stages.iter().map(|stage| stage.wants(&self.control)).sum();
        if wanted > own {
            bell.wake_one(Duty::Every);
        }
    }
}

/// The least time between two looks of whoever waits for a run's end.
const WATCH_EVERY_MIN: Duration = Duration::from_micros(100);

/// How many threads run every stage: as many as may be inside a program's code at the same time, as far as there are CPUs, and
/// one more, as a source may block; but enough for the stage that was given the most, since its code may block too.
fn thread_count(stages: &[Box<dyn Stage>], wish: Option<usize>) -> usize {
    let heavy = || stages.iter().filter(|stage| stage.is_heavy()).map(|stage| stage.threads_max());
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let enough = cpus.max(heavy().max().unwrap_or(0)).max(2) + 1;
    wish.unwrap_or_else(|| heavy().sum::<usize>().min(enough)).max(1)
}
