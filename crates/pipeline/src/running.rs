//! A running pipeline: how it is watched, paused, drained, cancelled and waited for.

use std::sync::Arc;
use std::time::Duration;

use panoply_lockfree::bell::Duty;
use panoply_lockfree::foreign::contain;
use panoply_runtime::threads::{self, Thread};

use super::error::{Cause, DeadLetter, PipelineError};
use super::machine::Machine;
use super::report::{Progress, Report};
use super::trace::Trace;

/// How long a stopped run waits for its threads to return from a program's code.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Watches and steers a run. Clones share it; it may outlive the run.
#[derive(Clone)]
pub struct Handle(Arc<Machine>);

impl Handle {
    /// Stops taking items until the run is resumed. Items in flight in a stage are finished.
    pub fn pause(&self) {
        if self.is_here() {
            self.0.control.signals.pause(true);
        }
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        if self.is_here() {
            self.0.control.signals.pause(false);
        }
    }

    /// Stops asking the source for items. The items inside go through, and the run ends
    /// successfully.
    pub fn drain(&self) {
        if self.is_here() {
            self.0.hooks.drain();
            self.0.control.signals.drain();
        }
    }

    /// Ends the run as soon as possible. The items inside are discarded and counted.
    pub fn cancel(&self) {
        if self.is_here() {
            self.0.control.signals.stop(PipelineError::Cancelled);
        }
    }

    /// Whether the run's threads are in this process. In a fork no handle steers the run, which
    /// belongs to the parent.
    fn is_here(&self) -> bool {
        self.0.control.signals.process.is_here()
    }

    /// The report of the run as it is now, or as it was when it ended.
    pub fn report(&self) -> Report {
        if self.is_here() { self.0.report() } else { unknown() }
    }

    /// The run's progress.
    pub fn progress(&self) -> Progress {
        if self.is_here() { (self.0.progress)() } else { Progress::default() }
    }

    /// Whether the run has ended, successfully or not.
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// How often a thread of the run was woken.
    #[cfg(test)]
    pub(crate) fn wakes(&self) -> usize {
        self.0.control.signals.bell.wakes()
    }

    /// Takes the items that failed, and are not tried again, since the last call.
    pub fn take_dead_letters(&self) -> Vec<DeadLetter> {
        if self.is_here() { self.0.control.take_dead_letters() } else { Vec::new() }
    }
}

/// A running pipeline. Dropping it cancels it and waits for its threads.
#[must_use = "dropping a run cancels it"]
pub struct Running<R> {
    handle: Handle,
    threads: Vec<Thread>,
    output: Box<dyn FnMut() -> Option<R> + Send>,
}

/// A run that has ended.
#[derive(Debug)]
pub struct RunOutcome<R> {
    /// The run's result, or why it ended early.
    pub result: Result<R, PipelineError>,
    /// The counts and times of each stage.
    pub report: Report,
    /// The items that failed finally in stages that keep such items, unless they were taken
    /// before.
    pub dead_letters: Vec<DeadLetter>,
    /// The trace, if one was requested.
    pub trace: Option<Trace>,
    /// Number of threads that were still inside a program's code when the run was given up. Each
    /// thread ends when it returns.
    pub threads_left: usize,
}

impl<R> Running<R> {
    pub(crate) fn start(
        machine: Machine,
        output: Box<dyn FnMut() -> Option<R> + Send>,
    ) -> Result<Running<R>, PipelineError> {
        let process = machine.control.signals.process;
        if !process.is_here() {
            // The run was built in the parent process, and no handle here could steer it. It is
            // leaked, because its stages may hold values of the parent, such as a runtime.
            std::mem::forget((machine, output));
            return Err(PipelineError::Forked(process.refusal("the pipeline")));
        }
        let machine = Arc::new(machine);
        let light = usize::from(machine.has_light_thread());
        let count = machine.threads + light;
        machine.enter(count);
        let mut running = Running { handle: Handle(Arc::clone(&machine)), threads: Vec::new(), output };
        for number in 0..count {
            let duty = if number < machine.threads { Duty::Every } else { Duty::Light };
            let own = Arc::clone(&machine);
            let body = move || {
                // Stages contain panics of foreign code. If anything panics all the same, the run
                // ends, so that no thread waits for it.
                if let Err(message) = contain(|| own.work(duty)) {
                    let (stage, cause) = ("the pipeline".to_owned(), Cause::Panicked(message));
                    own.control.signals.stop(PipelineError::Failed { stage, item: 0, attempts: 1, cause });
                }
                own.leave();
            };
            match threads::spawn(format!("pipeline-{number}"), body) {
                Ok(thread) => running.threads.push(thread),
                Err(error) => {
                    let error = PipelineError::NoThread { reason: error.to_string() };
                    machine.control.signals.stop(error.clone());
                    (number..count).for_each(|_| machine.leave());
                    return Err(error);
                }
            }
        }
        Ok(running)
    }

    /// Watches and steers the run.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Waits until the run has ended.
    pub fn wait(mut self) -> RunOutcome<R> {
        let machine = Arc::clone(&self.handle.0);
        if !self.handle.is_here() {
            return self.forked();
        }
        if self.is_on_own_thread() {
            // The run cannot end before the thread that waits for it.
            let cause = Cause::Error("a stage of the pipeline waited for the pipeline".to_owned());
            let stage = "the pipeline".to_owned();
            machine.control.signals.stop(PipelineError::Failed { stage, item: 0, attempts: 1, cause });
        }
        let threads_left = machine.wait(self.grace());
        if !self.handle.is_here() {
            // A signal handler has forked meanwhile.
            return self.forked();
        }
        self.join();
        let failure = machine.control.signals.failure();
        let result = match failure {
            Some(error) => Err(error),
            None => (self.output)().ok_or(PipelineError::Cancelled),
        };
        RunOutcome {
            result,
            report: machine.report(),
            dead_letters: machine.control.take_dead_letters(),
            trace: machine.control.tracer.as_ref().map(|tracer| tracer.finish(&machine.names)),
            threads_left,
        }
    }

    /// The end of a run of another process.
    fn forked(&self) -> RunOutcome<R> {
        let result = Err(PipelineError::Forked(self.handle.0.control.signals.process.refusal("the pipeline")));
        RunOutcome { result, report: unknown(), dead_letters: Vec::new(), trace: None, threads_left: 0 }
    }

    fn is_on_own_thread(&self) -> bool {
        self.threads.iter().any(Thread::is_current)
    }

    /// How long to wait for threads that are in a program's code. A thread of the run cannot wait
    /// for itself.
    fn grace(&self) -> Duration {
        if self.is_on_own_thread() { Duration::ZERO } else { STOP_GRACE }
    }

    /// Ends the threads' handles. Stuck threads are left behind.
    fn join(&mut self) {
        for thread in std::mem::take(&mut self.threads) {
            thread.ends_within(Duration::from_millis(50));
        }
    }
}

/// The report of a run that belongs to another process.
fn unknown() -> Report {
    Report { wall: Duration::ZERO, threads: 0, stages: Vec::new(), progress: Progress::default() }
}

impl<R> Drop for Running<R> {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        if self.handle.is_here() {
            self.handle.cancel();
            self.handle.0.wait(self.grace());
        }
        if !self.handle.is_here() {
            // The threads belong to the parent process, and so does the state they share: it is
            // leaked.
            return std::mem::forget((self.handle.clone(), std::mem::take(&mut self.threads)));
        }
        self.join();
    }
}

impl<R> std::fmt::Debug for Running<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Running({:?})", self.handle.progress())
    }
}
