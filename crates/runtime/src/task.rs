//! Work of several steps that runs, is waited for and is cancelled like one op: a model with graphs
//! on devices and nodes on the host, a chain of models, a request to a server.
//!
//! 1. [`Runtime::task`](crate::Runtime::task) makes a task of an async block. The block runs at
//!    once, on the calling thread, up to its first wait, so its first op is under way before
//!    anybody waits for the task. It continues on the thread that polls or waits.
//! 2. Dropping the task drops the block: an op that has not been started never starts, and no
//!    further step begins.
//! 3. The deadline bounds the whole. When it passes, the block is dropped and the task ends with
//!    `DeadlineExceeded`. A step that computes on the host cannot be interrupted.
//! 4. The report lists the steps, with the report of each op. Its length is bounded.
//! 5. In a fork of the process the task ends with `Forked`.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use panoply_core::{DeviceId, Error, Fallback, Report};
use panoply_lockfree::blocking::{WaitError, block_until};

use crate::pending::Deadline;
use crate::process::Process;

/// The most steps of a report. Further steps are counted.
pub const TASK_STEPS_MAX: usize = 4096;

/// The name of the unusable object in a fork's error.
const TASK_RUNTIME: &str = "the task's runtime";

/// The output of a task with its report.
#[derive(Clone, Debug)]
pub struct TaskOutcome<T> {
    /// The output.
    pub output: T,
    /// The steps of the task.
    pub report: TaskReport,
}

/// The report of a task.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TaskReport {
    /// The steps in the order in which they ended.
    pub steps: Vec<TaskStep>,
    /// Number of steps that did not fit into the list, which has at most [`TASK_STEPS_MAX`].
    pub steps_left_out: u64,
    /// The time from the begin of the task to its end.
    pub took: Duration,
}

/// One step of a task.
#[derive(Clone, Debug, PartialEq)]
pub struct TaskStep {
    /// Its name.
    pub name: String,
    /// The time from its begin to its end.
    pub took: Duration,
    /// The report of its op. `None`: the step computed on the host, outside every device.
    pub op: Option<Report>,
}

impl TaskReport {
    /// Adds a step, or counts it if there are too many.
    pub fn add(&mut self, name: impl Into<String>, took: Duration, op: Option<Report>) {
        if self.steps.len() < TASK_STEPS_MAX {
            self.steps.push(TaskStep { name: name.into(), took, op });
        } else {
            self.steps_left_out = self.steps_left_out.saturating_add(1);
        }
    }

    /// Adds the steps of a part of the task, with the part's name before theirs.
    pub fn add_part(&mut self, name: &str, part: TaskReport) {
        self.steps_left_out = self.steps_left_out.saturating_add(part.steps_left_out);
        for TaskStep { name: step, took, op } in part.steps {
            self.add(format!("{name}: {step}"), took, op);
        }
    }

    /// Adds the steps of a part of the task.
    pub fn add_all(&mut self, part: TaskReport) {
        self.steps_left_out = self.steps_left_out.saturating_add(part.steps_left_out);
        part.steps.into_iter().for_each(|TaskStep { name, took, op }| self.add(name, took, op));
    }

    /// The devices that ran ops of the task, parts of cut graphs included, each once, in the order
    /// of their first op.
    pub fn devices(&self) -> Vec<DeviceId> {
        let mut devices = Vec::new();
        for report in self.ops() {
            for device in std::iter::once(report.device).chain(report.cuts.iter().map(|cut| cut.to)) {
                if !devices.contains(&device) {
                    devices.push(device);
                }
            }
        }
        devices
    }

    /// Bytes moved between host and devices.
    pub fn bytes_moved(&self) -> u64 {
        self.ops().map(|report| report.bytes_moved).sum()
    }

    /// The fallbacks that were taken.
    pub fn fallbacks(&self) -> impl Iterator<Item = &Fallback> {
        self.ops().filter_map(|report| report.fallback.as_ref())
    }

    /// The reports of the ops.
    pub fn ops(&self) -> impl Iterator<Item = &Report> {
        self.steps.iter().filter_map(|step| step.op.as_ref())
    }
}

/// One line for each step: its name, its device and its time.
impl std::fmt::Display for TaskReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for step in &self.steps {
            let device = step.op.as_ref().map_or("host".to_owned(), |report| report.device.to_string());
            writeln!(f, "{:<40} {device:<14} {:?}", step.name, step.took)?;
        }
        if self.steps_left_out > 0 {
            writeln!(f, "and {} more steps", self.steps_left_out)?;
        }
        write!(f, "{:<40} {:<14} {:?}", "all", "", self.took)
    }
}

/// The error of a task.
pub trait TaskError: std::error::Error + From<Error> + Send + Sync + 'static {
    /// The error of the op that ended the task, if an op did. A pipeline starts an item again if a
    /// device failed.
    fn of_op(&self) -> Option<&Error>;
}

impl TaskError for Error {
    fn of_op(&self) -> Option<&Error> {
        Some(self)
    }
}

/// The steps of a task that has begun.
type Work<T, E> = Pin<Box<dyn Future<Output = Result<TaskOutcome<T>, E>> + Send>>;

/// A task that has begun. Its output comes from `.await` or from [`PendingTask::wait`]. Dropping it
/// cancels the steps that have not begun.
#[must_use = "dropping a pending task cancels it"]
pub struct PendingTask<T, E = Error> {
    inner: PendingTaskOutcome<T, E>,
}

/// A task that has begun and whose report is wanted too; see [`PendingTask::with_report`].
#[must_use = "dropping a pending task cancels it"]
pub struct PendingTaskOutcome<T, E = Error> {
    state: State<T, E>,
    deadline: Option<Deadline>,
    process: Process,
}

enum State<T, E> {
    Working(Work<T, E>),
    /// The task ended before anybody asked for its answer.
    Ended(Result<TaskOutcome<T>, E>),
    /// The answer was taken.
    Taken,
}

impl<T, E: TaskError> PendingTask<T, E> {
    /// Begins the work.
    pub(crate) fn begin(
        deadline: Option<Deadline>,
        process: Process,
        work: impl Future<Output = Result<TaskOutcome<T>, E>> + Send + 'static,
    ) -> PendingTask<T, E> {
        let mut inner = PendingTaskOutcome { state: State::Working(Box::pin(work)), deadline, process };
        if let Poll::Ready(ended) = inner.poll_work(Waker::noop()) {
            inner.state = State::Ended(ended);
        }
        PendingTask { inner }
    }

    /// Blocks until the output is available.
    pub fn wait(self) -> Result<T, E> {
        self.inner.wait().map(|outcome| outcome.output)
    }

    /// The same task, returning its report together with its output.
    pub fn with_report(self) -> PendingTaskOutcome<T, E> {
        self.inner
    }
}

impl<T, E: TaskError> PendingTaskOutcome<T, E> {
    /// Blocks until the outcome is available.
    pub fn wait(mut self) -> Result<TaskOutcome<T>, E> {
        let limit = self.deadline.as_ref().map(Deadline::at);
        let process = self.process;
        let answer = block_until(process, limit, |context| self.poll_work(context.waker()));
        match answer {
            Ok(answer) => answer,
            Err(WaitError::TimedOut) => Err(self.too_late().into()),
            Err(WaitError::Forked) => Err(process.refusal(TASK_RUNTIME).into()),
        }
    }

    fn poll_work(&mut self, waker: &Waker) -> Poll<Result<TaskOutcome<T>, E>> {
        match std::mem::replace(&mut self.state, State::Taken) {
            State::Working(mut work) => match work.as_mut().poll(&mut Context::from_waker(waker)) {
                Poll::Ready(answer) => Poll::Ready(answer),
                Poll::Pending => {
                    self.state = State::Working(work);
                    Poll::Pending
                }
            },
            State::Ended(answer) => Poll::Ready(answer),
            State::Taken => Poll::Ready(Err(Error::Cancelled.into())),
        }
    }

    fn too_late(&self) -> Error {
        let late_by = self.deadline.as_ref().map_or(Duration::ZERO, |deadline| deadline.at().elapsed());
        Error::DeadlineExceeded { late_by }
    }

    fn poll_in_time(&mut self, waker: &Waker) -> Poll<Result<TaskOutcome<T>, E>> {
        if !self.process.is_here() && !matches!(self.state, State::Ended(_)) {
            return Poll::Ready(Err(self.process.refusal(TASK_RUNTIME).into()));
        }
        if let Poll::Ready(answer) = self.poll_work(waker) {
            self.deadline = None;
            return Poll::Ready(answer);
        }
        if let Some(deadline) = &mut self.deadline {
            if Instant::now() >= deadline.at() {
                let late = self.too_late();
                self.state = State::Taken;
                return Poll::Ready(Err(late.into()));
            }
            deadline.arm(waker);
        }
        Poll::Pending
    }
}

impl<T, E> Drop for PendingTaskOutcome<T, E> {
    fn drop(&mut self) {
        if !self.process.is_here() {
            // The work belongs to the parent process, and so does what its destructors would free.
            if let State::Working(work) = std::mem::replace(&mut self.state, State::Taken) {
                std::mem::forget(work);
            }
        }
    }
}

// The work is in a box of its own, and nothing else is ever pinned.
impl<T, E> Unpin for PendingTaskOutcome<T, E> {}

impl<T, E: TaskError> Future for PendingTask<T, E> {
    type Output = Result<T, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.inner.poll_in_time(context.waker()).map(|answer| answer.map(|outcome| outcome.output))
    }
}

impl<T, E: TaskError> Future for PendingTaskOutcome<T, E> {
    type Output = Result<TaskOutcome<T>, E>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_in_time(context.waker())
    }
}
