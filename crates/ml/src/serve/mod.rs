//! Serving: the requests of many callers joined into batches.
//!
//! 1. A request waits in one bounded queue until an instance takes it. What does not fit is refused at once with `Busy`; nothing
//!    grows.
//! 2. Requests join where their inputs differ in the number of rows alone. An instance takes the oldest request of the highest
//!    priority, and with it all that join it, up to the most rows of a batch. It waits for more until the oldest has waited
//!    `wait_max`, or the batch is full.
//! 3. Rows are filled up to the next preferred size, and sequences to the next bucket, so that few shapes are ever compiled. What
//!    was filled up is cut off again before anybody sees it.
//! 4. Each request has exactly one answer: its own rows, or the error of its batch. A batch that fails, or whose outputs cannot be
//!    told apart by rows, is run again request by request, so that nobody pays for a neighbour.
//! 5. A request that makes a model panic has no answer, which its caller is told, as those of its batch are. The instance goes on.
//! 6. A server that is dropped answers what it has taken, then ends its instances. One whose instances are gone answers everything
//!    with an error.

mod join;
mod queue;
mod room;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use panoply_runtime::{Priority, RunOptions};

use crate::array::Array;
use crate::error::{Error, Result};
use crate::model::{Model, Outputs};
use join::Form;
use queue::{Queue, Request};
use room::Room;

/// The most instances, and the most requests that may wait.
const INSTANCES_MAX: usize = 64;
const QUEUE_DEPTH_MAX: usize = 1 << 20;

/// How a model is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The most rows of a batch.
    pub batch_max: usize,
    /// Sizes that batches are filled up to, increasing; none where any size is as good as another.
    pub preferred: Vec<usize>,
    /// How long a request waits for others at most.
    pub wait_max: Duration,
    /// How many batches may run at a time.
    pub instances: usize,
    /// The most requests that wait.
    pub queue_depth_max: usize,
    /// The most bytes that waiting requests hold.
    pub queue_bytes_max: u64,
    /// For models of sequences that have a mask: the lengths that the second dimension is filled up to with zeros, increasing.
    pub buckets: Vec<usize>,
    /// On which devices batches run, and requests alone that wish none of their own. Priorities and deadlines are the requests'.
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
    form: Form,
    queue: Arc<Queue>,
    instances: Mutex<Vec<JoinHandle<()>>>,
}

/// A request that was taken.
pub struct Ticket(Receiver<Result<Outputs>>);

impl Ticket {
    /// Waits for the answer.
    pub fn wait(self) -> Result<Outputs> {
        self.0.recv().unwrap_or_else(|_| Err(stopped()))
    }

    /// The answer, where it is there by now. That there will be none is an answer too.
    pub fn poll(&self) -> Option<Result<Outputs>> {
        match self.0.try_recv() {
            Ok(answer) => Some(answer),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => Some(Err(stopped())),
        }
    }
}

fn stopped() -> Error {
    Error::Run(panoply_core::Error::ShuttingDown)
}

impl Server {
    /// Starts a model's instances.
    pub fn start(model: &Model, options: ServeOptions) -> Result<Server> {
        check(&options)?;
        let form = Form::of(model);
        let queue = Arc::new(Queue::new(options.clone()));
        let mut instances = Vec::with_capacity(options.instances);
        for number in 0..options.instances {
            let (model, form, own) = (model.clone(), form.clone(), Arc::clone(&queue));
            let thread = std::thread::Builder::new().name(format!("model-{number}"));
            let guard = own.open();
            let spawned = thread.spawn(move || {
                let (_guard, mut room) = (guard, Room::default());
                while let Some(batch) = own.take() {
                    // A panic ends its batch, whose callers are told that they get no answer, and not the instance.
                    let run = || join::answer(&model, &form, batch, &own.options, &mut room);
                    drop(catch_unwind(AssertUnwindSafe(run)));
                }
            });
            match spawned {
                Ok(thread) => instances.push(thread),
                Err(cause) => {
                    // Those that were started end.
                    queue.close();
                    return Err(Error::file(std::path::Path::new("a thread"), cause));
                }
            }
        }
        Ok(Server { model: model.clone(), form, queue, instances: Mutex::new(instances) })
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// Takes a request, or refuses it where too many wait. The deadline and the priority among the options count.
    pub fn submit(&self, inputs: &[(&str, Array)], options: &RunOptions) -> Result<Ticket> {
        let (answer, ticket): (SyncSender<Result<Outputs>>, _) = sync_channel(1);
        let inputs: Vec<(String, Array)> =
            inputs.iter().map(|(name, array)| ((*name).to_owned(), array.clone())).collect();
        let (key, rows) = join::key(&self.form, &inputs, &self.queue.options.buckets);
        let bytes = inputs.iter().map(|(_, array)| array.size_bytes()).sum();
        let (arrived, run) = (Instant::now(), options.clone());
        self.queue.put(Request { inputs, key, rows, bytes, arrived, run, answer })?;
        Ok(Ticket(ticket))
    }

    /// Takes a request and waits for its answer.
    pub fn infer(&self, inputs: &[(&str, Array)]) -> Result<Outputs> {
        self.submit(inputs, &RunOptions::default())?.wait()
    }

    /// How many requests wait.
    pub fn waiting(&self) -> usize {
        self.queue.len()
    }

    /// How many batches ran, and how many rows of callers were in them.
    pub fn batches(&self) -> (u64, u64) {
        self.queue.batches()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.queue.close();
        let instances = std::mem::take(&mut *self.instances.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        let here = std::thread::current().id();
        instances.into_iter().filter(|thread| thread.thread().id() != here).for_each(|thread| drop(thread.join()));
    }
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

    /// Who asked again and again for an answer that a panic had ended was told to ask again.
    #[test]
    fn a_request_without_an_answer_is_told() {
        let (answer, ticket) = sync_channel(1);
        let ticket = Ticket(ticket);
        assert!(ticket.poll().is_none());
        drop(answer);
        assert!(matches!(ticket.poll(), Some(Err(Error::Run(panoply_core::Error::ShuttingDown)))));
        assert!(ticket.wait().is_err());
    }
}
