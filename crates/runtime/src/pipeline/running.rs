//! A pipeline that runs: how it is watched, paused, drained, cancelled and waited for.

use std::sync::Arc;
use std::time::Duration;

use super::bell::Duty;
use super::error::{Cause, DeadLetter, PipelineError};
use super::machine::Machine;
use super::report::{Progress, Report};
use super::trace::Trace;
use crate::threads::{self, Thread};

/// How long a run that was stopped waits for its threads to come back from a program's code.
const STOP_GRACE: Duration = Duration::from_secs(2);

/// Watches and steers a run. Cloning shares it; it may outlive the run.
#[derive(Clone)]
pub struct Handle(Arc<Machine>);

impl Handle {
    /// Takes up no more items until it is resumed. What is under way is finished, stage by stage.
    pub fn pause(&self) {
        self.0.control.signals.pause(true);
    }

    /// Goes on after a pause.
    pub fn resume(&self) {
        self.0.control.signals.pause(false);
    }

    /// Asks the source for nothing more. What is inside goes through, and the run ends well.
    pub fn drain(&self) {
        self.0.hooks.drain();
        self.0.control.signals.drain();
    }

    /// Ends the run as soon as possible. What is inside is let go and counted.
    pub fn cancel(&self) {
        self.0.control.signals.stop(PipelineError::Cancelled);
    }

    /// How the run is now, or was when it ended.
    pub fn report(&self) -> Report {
        self.0.report()
    }

    /// How far it has come.
    pub fn progress(&self) -> Progress {
        (self.0.progress)()
    }

    /// Whether it has ended, well or not.
    pub fn is_over(&self) -> bool {
        self.0.is_over()
    }

    /// The items that failed for good since they were last taken from here.
    pub fn take_dead_letters(&self) -> Vec<DeadLetter> {
        self.0.control.take_dead_letters()
    }
}

/// A run under way. Dropping it cancels it and waits for its threads.
#[must_use = "dropping a run cancels it"]
pub struct Running<R> {
    handle: Handle,
    threads: Vec<Thread>,
    output: Box<dyn FnMut() -> Option<R> + Send>,
}

/// A run that has ended.
#[derive(Debug)]
pub struct Ended<R> {
    /// What came of it, or why it ended early.
    pub result: Result<R, PipelineError>,
    /// What each stage did.
    pub report: Report,
    /// The items that failed for good in stages that lay such items aside, unless they were taken before.
    pub dead_letters: Vec<DeadLetter>,
    /// The trace, where one was asked for.
    pub trace: Option<Trace>,
    /// Threads that were still inside a program's code when the run was given up. Each ends when it comes back.
    pub threads_left: usize,
}

impl<R> Running<R> {
    pub(crate) fn start(
        machine: Machine,
        output: Box<dyn FnMut() -> Option<R> + Send>,
    ) -> Result<Running<R>, PipelineError> {
        let machine = Arc::new(machine);
        let light = usize::from(machine.has_light_thread());
        let count = machine.threads + light;
        machine.enter(count);
        let mut running = Running { handle: Handle(Arc::clone(&machine)), threads: Vec::new(), output };
        for number in 0..count {
            let duty = if number < machine.threads { Duty::Every } else { Duty::Light };
            let own = Arc::clone(&machine);
            let body = move || {
                // Stages contain what is foreign. Should anything panic all the same, the run ends and nobody waits for it.
                if let Err(message) = crate::foreign::contain(|| own.work(duty)) {
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
    pub fn wait(mut self) -> Ended<R> {
        let machine = Arc::clone(&self.handle.0);
        if self.is_on_own_thread() {
            // The run cannot end before the thread that waits for it.
            let cause = Cause::Error("a stage of the pipeline waited for the pipeline".to_owned());
            let stage = "the pipeline".to_owned();
            machine.control.signals.stop(PipelineError::Failed { stage, item: 0, attempts: 1, cause });
        }
        let threads_left = machine.wait(self.grace());
        self.join();
        let failure = machine.control.signals.failure();
        let result = match failure {
            Some(error) => Err(error),
            None => (self.output)().ok_or(PipelineError::Cancelled),
        };
        Ended {
            result,
            report: machine.report(),
            dead_letters: machine.control.take_dead_letters(),
            trace: machine.control.tracer.as_ref().map(|tracer| tracer.finish(&machine.names)),
            threads_left,
        }
    }

    fn is_on_own_thread(&self) -> bool {
        self.threads.iter().any(Thread::is_current)
    }

    /// How long to wait for threads that are in a program's code. A thread of the run cannot wait for itself.
    fn grace(&self) -> Duration {
        if self.is_on_own_thread() { Duration::ZERO } else { STOP_GRACE }
    }

    /// Ends the threads' handles; those that are stuck are left behind.
    fn join(&mut self) {
        for thread in std::mem::take(&mut self.threads) {
            thread.ends_within(Duration::from_millis(50));
        }
    }
}

impl<R> Drop for Running<R> {
    fn drop(&mut self) {
        if self.threads.is_empty() {
            return;
        }
        self.handle.cancel();
        self.handle.0.wait(self.grace());
        self.join();
    }
}

impl<R> std::fmt::Debug for Running<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Running({:?})", self.handle.progress())
    }
}
