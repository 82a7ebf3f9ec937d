//! Serving: the requests of many callers, joined into batches.
//!
//! 1. A request waits in one bounded queue until an instance takes it. If the queue is full, it is
//!    refused at once with `Busy`.
//! 2. Requests are joined if their inputs differ only in the number of rows. An instance takes the
//!    oldest request of the highest priority, and with it all that join it, up to the maximal
//!    number of rows of a batch. It waits for more until the oldest has waited `wait_max`, or the
//!    batch is full. No priority starves: of eight batches two begin with a normal request and one
//!    with a patient one, if they wait (`waiting` has the rule).
//! 3. Rows are padded to the next preferred size, and sequences to the next bucket, so that only a
//!    few shapes are ever compiled. The padding is removed from the outputs.
//! 4. Each request has exactly one answer: its own rows, or the error of its batch. A batch that
//!    fails, or whose outputs cannot be split by rows, is run again request by request, so that no
//!    request fails because of another.
//! 5. A caller that drops its ticket, or whose deadline passes, is not waited for: its request does
//!    not begin, and a batch ends before its next step once no caller wants any of its answers.
//! 6. If a request makes a model panic, its caller and those of its batch get an error instead of
//!    an answer. The instance continues.
//! 7. A server that is dropped answers its accepted requests, then ends its instances. A server
//!    without instances answers everything with an error.
//! 8. A fork of the process has none of the instances. There a server refuses requests with
//!    `Forked`, takes no lock, waits for no thread, and leaves everything in memory when it is
//!    dropped: it belongs to the parent. A signal handler may fork while a thread waits for an
//!    answer; in the child this wait ends with `Forked` as well.

mod join;
mod queue;
mod room;
mod waiting;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use panoply_lockfree::slot::{Receiver, WaitError, slot};
use panoply_models::{Array, Model, ModelValue, Outputs, RunValue};
use panoply_runtime::process::Process;
use panoply_runtime::{PendingTask, Priority, RunOptions, TaskOutcome};

use crate::error::{Error, Result};
use join::RowAxes;
use queue::{Answer, Queue, Request};
use room::InstanceBuffers;

/// Maximal number of instances, and of waiting requests.
const INSTANCES_MAX: usize = 64;
const QUEUE_DEPTH_MAX: usize = 1 << 20;

/// Options of a server.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// Maximal number of rows of a batch.
    pub batch_max: usize,
    /// Sizes that batches are padded to, ascending; empty if every size is equally good.
    pub preferred: Vec<usize>,
    /// Maximal time that a request waits for others.
    pub wait_max: Duration,
    /// Number of batches that may run at a time.
    pub instances: usize,
    /// Maximal number of waiting requests.
    pub queue_depth_max: usize,
    /// Maximal number of bytes of waiting requests.
    pub queue_bytes_max: u64,
    /// For sequence models with a mask: the lengths that the second dimension is padded to with
    /// zeros, ascending.
    pub buckets: Vec<usize>,
    /// The devices that batches run on, also used by single requests that name none of their own,
    /// and the share of answers that is compared with another device's
    /// ([`RunOptions::verify_every`]). Priorities and deadlines are taken from the requests.
    pub run: RunOptions,
}

impl Default for ServeOptions {
    fn default() -> ServeOptions {
        ServeOptions {
            batch_max: 32,
            preferred: vec![1, 2, 4, 8, 16, 32],
            wait_max: Duration::from_millis(2),
            instances: 1,
            queue_depth_max: 4096,
            queue_bytes_max: 1 << 30,
            buckets: Vec::new(),
            run: RunOptions::default(),
        }
    }
}

/// A model that answers many callers. Share it by reference or in an `Arc`.
pub struct Server {
    model: Model,
    form: Arc<RowAxes>,
    queue: Arc<Queue>,
    instances: Mutex<Vec<JoinHandle<()>>>,
    process: Process,
}

/// An accepted request. Dropping it cancels the request.
pub struct Ticket {
    /// Not touched in a fork: the instance that holds the other end does not exist there.
    answer: Option<Receiver<(), Answer>>,
    deadline: Option<Instant>,
    process: Process,
}

impl Ticket {
    fn new(answer: Receiver<(), Answer>, deadline: Option<Instant>) -> Ticket {
        Ticket { answer: Some(answer), deadline, process: Process::current() }
    }

    /// Waits for the answer, until the deadline at the longest. A child that a signal handler forks
    /// meanwhile gets an error.
    pub fn wait(mut self) -> Result<Outputs> {
        self.process.check(SERVER)?;
        let (process, limit) = (self.process, self.deadline);
        let Some(answer) = &mut self.answer else { return Err(stopped()) };
        match answer.wait_for(process, limit, 0) {
            Ok(answer) => answer.unwrap_or_else(|| Err(stopped())).map(|outcome| outcome.output),
            Err(WaitError::Forked) => Err(Error::Run(process.refusal(SERVER))),
            Err(WaitError::TimedOut) => {
                let late_by = limit.map_or(Duration::ZERO, |limit| limit.elapsed());
                Err(Error::Run(panoply_core::Error::DeadlineExceeded { late_by }))
            }
        }
    }

    /// The answer, if it is available. If there will be none, the error is returned.
    pub fn poll(&mut self) -> Option<Result<Outputs>> {
        match self.poll_answer(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(answer) => Some(answer.map(|outcome| outcome.output)),
            Poll::Pending => None,
        }
    }

    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Answer> {
        if let Err(forked) = self.process.check(SERVER) {
            return Poll::Ready(Err(Error::Run(forked)));
        }
        match &mut self.answer {
            Some(answer) => answer.poll(context).map(|answer| answer.unwrap_or_else(|| Err(stopped()))),
            None => Poll::Ready(Err(stopped())),
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.process.is_here() {
            std::mem::forget(self.answer.take());
        }
    }
}

/// Name of a server in errors.
const SERVER: &str = "the model server";

fn stopped() -> Error {
    Error::Run(panoply_core::Error::ShuttingDown)
}

impl Server {
    /// Starts a model's instances.
    pub fn start(model: &Model, options: ServeOptions) -> Result<Server> {
        check(&options)?;
        let form = Arc::new(RowAxes::of(model));
        let queue = Arc::new(Queue::new(options.clone()));
        let mut instances = Vec::with_capacity(options.instances);
        for number in 0..options.instances {
            let (model, form, own) = (model.clone(), Arc::clone(&form), Arc::clone(&queue));
            let thread = std::thread::Builder::new().name(format!("model-{number}"));
            let guard = own.open();
            let spawned = thread.spawn(move || {
                let (_guard, mut room) = (guard, InstanceBuffers::default());
                while let Some(batch) = own.take() {
                    // A panic ends its batch, whose callers get an error, but not the instance.
                    let run = || join::answer(&model, &form, batch, &own.options, &mut room);
                    drop(catch_unwind(AssertUnwindSafe(run)));
                }
            });
            match spawned {
                Ok(thread) => instances.push(thread),
                Err(cause) => {
                    // The instances that were started end.
                    queue.close();
                    return Err(Error::file(std::path::Path::new("a thread"), cause));
                }
            }
        }
        let (model, instances) = (model.clone(), Mutex::new(instances));
        Ok(Server { model, form, queue, instances, process: Process::current() })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Accepts a request, or refuses it if too many wait. Of the options, the deadline and the
    /// priority are used.
    pub fn submit(&self, inputs: &[(&str, Array)], options: &RunOptions) -> Result<Ticket> {
        let inputs = inputs.iter().map(|(name, array)| ((*name).to_owned(), array.clone())).collect();
        submit(&self.queue, &self.form, self.process, inputs, options)
    }

    /// Makes a request as one task: a future that also blocks (`wait`), can be cancelled by
    /// dropping it, and reports its steps. The deadline bounds the whole request. Requests are
    /// joined on the host, so inputs in a device's memory are copied there first, and outputs are
    /// on the host.
    pub fn request(&self, inputs: &[(&str, ModelValue)], options: &RunOptions) -> PendingTask<Outputs, Error> {
        let own = |(name, value): &(&str, ModelValue)| ((*name).to_owned(), RunValue::from(value));
        let given: Vec<(String, RunValue)> = inputs.iter().map(own).collect();
        let (model, queue, form) = (self.model.clone(), Arc::clone(&self.queue), Arc::clone(&self.form));
        let (process, run) = (self.process, options.clone());
        self.model.runtime().task(options, async move {
            let begun = Instant::now();
            process.check(SERVER)?;
            let context = panoply_models::Context::awaiting(model.runtime(), run.clone());
            let mut arrays = Vec::with_capacity(given.len());
            for (name, value) in given {
                arrays.push((name, context.fetch(&value).await?.array()?.clone()));
            }
            let mut ticket = submit(&queue, &form, process, arrays, &run)?;
            let answer = std::future::poll_fn(|context| ticket.poll_answer(context)).await?;
            let mut report = context.into_report(begun);
            report.add_all(answer.report);
            report.took = begun.elapsed();
            Ok(TaskOutcome { output: answer.output, report })
        })
    }

    /// Submits a request and waits for its answer.
    pub fn infer(&self, inputs: &[(&str, Array)]) -> Result<Outputs> {
        self.submit(inputs, &RunOptions::default())?.wait()
    }

    /// Number of waiting requests; zero in a fork.
    pub fn waiting(&self) -> usize {
        if self.process.is_here() { self.queue.len() } else { 0 }
    }

    /// Number of batches that ran, and of callers' rows in them.
    pub fn batches(&self) -> (u64, u64) {
        self.queue.batches()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.process.is_here() {
            let instances = self.instances.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
            let shared = (self.model.clone(), Arc::clone(&self.queue), Arc::clone(&self.form));
            std::mem::forget((shared, std::mem::take(instances)));
            return;
        }
        self.queue.close();
        let instances = std::mem::take(&mut *self.instances.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let here = std::thread::current().id();
        instances.into_iter().filter(|thread| thread.thread().id() != here).for_each(|thread| drop(thread.join()));
    }
}

/// Puts a request into the queue.
fn submit(
    queue: &Queue,
    form: &RowAxes,
    process: Process,
    inputs: Vec<(String, Array)>,
    options: &RunOptions,
) -> Result<Ticket> {
    process.check(SERVER)?;
    let (answer, ticket) = slot(());
    let (key, rows) = join::key(form, &inputs, &queue.options.buckets);
    let (key, bytes) = (key.map(Arc::from), inputs.iter().map(|(_, array)| array.size_bytes()).sum());
    let (arrived, run) = (Instant::now(), options.clone());
    queue.put(Request { inputs, key, rows, bytes, arrived, run, answer })?;
    Ok(Ticket::new(ticket, options.deadline))
}

fn check(options: &ServeOptions) -> Result<()> {
    let increasing = |list: &[usize]| list.windows(2).all(|pair| pair[0] < pair[1]) && list.first() != Some(&0);
    let fits = (1..=1 << 16).contains(&options.batch_max)
        && increasing(&options.preferred)
        && increasing(&options.buckets)
        && options.preferred.last().is_none_or(|last| *last <= options.batch_max)
        && (1..=INSTANCES_MAX).contains(&options.instances)
        && (1..=QUEUE_DEPTH_MAX).contains(&options.queue_depth_max)
        && options.wait_max <= Duration::from_secs(60);
    let expected = "sizes that increase and a batch, instances, a queue and a wait within their bounds";
    if fits { Ok(()) } else { Err(Error::invalid("how a model is served", expected, format!("{options:?}"))) }
}

/// The order in which priorities are served.
fn rank(priority: Priority) -> u8 {
    match priority {
        Priority::Urgent => 0,
        Priority::Normal => 1,
        Priority::Patient => 2,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: a caller whose answer had been ended by a panic was asked to try again, again
    /// and again.
    #[test]
    fn a_request_without_an_answer_is_told() {
        let (answer, ticket) = slot::<(), Answer>(());
        let mut ticket = Ticket::new(ticket, None);
        assert!(ticket.poll().is_none());
        drop(answer);
        assert!(matches!(ticket.poll(), Some(Err(Error::Run(panoply_core::Error::ShuttingDown)))));
        assert!(ticket.wait().is_err(), "an answer comes once");
    }
}
