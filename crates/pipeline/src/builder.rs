//! How a pipeline is built: a source, stages one after the other, and an end. Each step knows the
//! type of the items that it receives. Choices such as [`Builder::parallel`] apply to the stage
//! that was added last.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use panoply_core::Operation;
use panoply_lockfree::ring::Ring;
use panoply_runtime::worker::BoxError;
use panoply_runtime::{PendingTask, RunOptions, Runtime, TaskError, Worker, WorkerPool};

use super::chain::{Chain, ChainParts};
use super::error::Cause;
use super::fork::{ForkBody, JoinBody};
use super::link::{Link, OpLink, OwnFuture, RequestLink, RingEnd, RingHead, Runs, Slots, TaskLink, slots};
use super::options::{BATCH_MAX, ErrorPolicy, Parallelism, Sort, StageOptions};
use super::parallel::{ItemFn, Parallel};
use super::plan::RunPlan;
use super::serial::{RingPair, Serial};
use super::stage::Stage;
use super::transduce::{Batch, Spread, TransduceBody, Transducer, Window};

/// A pipeline under construction whose last stage outputs items of type `T`.
pub struct Builder<T: Send + 'static> {
    pub(crate) plan: RunPlan,
    open: OpenStage<T>,
    pub(crate) options: StageOptions,
}

/// The last stage, whose choices may still change.
enum OpenStage<T> {
    Stage(Finish<T>),
    /// The links so far, the slots in which the last link leaves its outputs, and their sort: ops,
    /// or requests.
    Chain(ChainParts, Slots<T>, Sort),
}

/// Creates a stage with its final choices.
type Finish<T> = Box<dyn FnOnce(&mut RunPlan, StageOptions) -> Arc<Ring<T>> + Send>;

impl<T: Send + 'static> Builder<T> {
    pub(crate) fn stage(
        plan: RunPlan,
        name: &str,
        finish: impl FnOnce(&mut RunPlan, StageOptions) -> Arc<Ring<T>> + Send + 'static,
    ) -> Builder<T> {
        Builder { plan, open: OpenStage::Stage(Box::new(finish)), options: StageOptions::named(name) }
    }

    /// Maps each item to another one.
    pub fn map<U, F>(self, name: &str, work: F) -> Builder<U>
    where
        U: Send + 'static,
        F: Fn(T) -> U + Send + Sync + 'static,
    {
        self.closure_stage(name, Sort::CLOSURE, move |item: &mut Option<T>| Ok(item.take().map(&work)))
    }

    /// Maps each item to another one, or fails. The item is borrowed, so that it can be tried again
    /// or put into the dead letters, according to [`Builder::on_error`].
    pub fn try_map<U, E, F>(self, name: &str, work: F) -> Builder<U>
    where
        U: Send + 'static,
        E: Into<BoxError>,
        F: Fn(&T) -> Result<U, E> + Send + Sync + 'static,
    {
        self.closure_stage(name, Sort::CLOSURE, move |item: &mut Option<T>| match item {
            Some(item) => work(item).map(Some).map_err(Into::into),
            None => Ok(None),
        })
    }

    /// Keeps only the items for which `wanted` is true.
    pub fn filter(self, name: &str, wanted: impl Fn(&T) -> bool + Send + Sync + 'static) -> Builder<T> {
        self.closure_stage(name, Sort::CLOSURE, move |item: &mut Option<T>| Ok(item.take().filter(&wanted)))
    }

    /// Maps each item with a closure that has a state: one thread at a time, in order.
    pub fn map_mut<U, F>(self, name: &str, work: F) -> Builder<U>
    where
        U: Send + 'static,
        F: FnMut(T) -> U + Send + 'static,
    {
        let work = std::sync::Mutex::new(work);
        self.closure_stage(name, Sort::STATE, move |item: &mut Option<T>| {
            let mut work = super::control::lock(&work);
            Ok(item.take().map(&mut *work))
        })
    }

    /// Runs an op for each item on the device that suits it. Graphs
    /// ([`RunGraph`](panoply_core::op::graph::RunGraph)) and the program's own kernels
    /// ([`Kernel`](panoply_core::op::compute::Kernel)) are ops too. Several ops are in flight at
    /// once ([`Builder::in_flight`]). The output of an op stage stays on its device if the next
    /// stage is an op stage, and otherwise comes to the host.
    ///
    /// An item whose device fails is restarted elsewhere from its data on the host, unless an op
    /// may not run twice.
    pub fn op<O, F>(self, name: &str, runtime: impl Into<Arc<Runtime>>, make: F) -> Builder<O::Output>
    where
        O: Operation,
        F: Fn(&T) -> O + Send + 'static,
    {
        self.op_link::<O, _>(name, runtime.into(), move |item| Ok(make(item)))
    }

    /// [`Builder::op`] with a closure that may fail.
    pub fn try_op<O, E, F>(self, name: &str, runtime: impl Into<Arc<Runtime>>, make: F) -> Builder<O::Output>
    where
        O: Operation,
        E: Into<BoxError>,
        F: Fn(&T) -> Result<O, E> + Send + 'static,
    {
        self.op_link::<O, _>(name, runtime.into(), move |item| make(item).map_err(Into::into))
    }

    /// Runs a task for each item: a model's run, an ensemble, a server's request, or a program's
    /// own ([`Runtime::task`]). The closure begins the task with the options that it is given,
    /// which carry the deadline and the wishes of the stage ([`Builder::wishes`]). A task is an op
    /// in everything else: several are in flight at once, and its output stays on its device if the
    /// next stage runs ops or tasks. Steps on the host are computed on the pipeline's threads, one
    /// at a time for each chain of such stages; work for several threads belongs into a stage of
    /// its own ([`Builder::try_map`]).
    ///
    /// An item whose device fails is restarted elsewhere from its data on the host, so a task may
    /// run more than once. A request that must not be repeated belongs into [`Builder::then`].
    pub fn task<U, E, F>(self, name: &str, begin: F) -> Builder<U>
    where
        U: Send + 'static,
        E: TaskError,
        F: Fn(&T, &RunOptions) -> PendingTask<U, E> + Send + 'static,
    {
        let (plan, mut parts, input) = self.into_chain();
        let output = slots();
        let (options, lanes) = (RunOptions::default(), Vec::new());
        let link = TaskLink { begin, input, output: Arc::clone(&output), options, lanes };
        parts.links.push((0, StageOptions::named(name), Box::new(link)));
        Builder { plan, open: OpenStage::Chain(parts, output, Sort::OPS), options: StageOptions::named(name) }
    }

    /// Sends a message for each item to one of a program's own workers, chosen by the pool's
    /// partitioner, and continues with its reply. While the worker's queue is full the item waits,
    /// and the message is made again for each attempt.
    pub fn worker<W, F>(self, name: &str, pool: Arc<WorkerPool<W>>, message: F) -> Builder<W::Reply>
    where
        W: Worker,
        F: Fn(&T) -> W::Message + Send + 'static,
    {
        self.request_stage(name, move |item: &T| pool.try_request_partitioned(message(item)).map_err(Cause::Worker))
    }

    /// Awaits a future for each item. Several are in flight at once; they need no executor.
    pub fn then<U, E, A, F>(self, name: &str, ask: F) -> Builder<U>
    where
        U: Send + 'static,
        E: Into<BoxError>,
        A: Future<Output = Result<U, E>> + Send + 'static,
        F: Fn(&T) -> A + Send + 'static,
    {
        self.request_stage(name, move |item: &T| {
            let answer = ask(item);
            let own: OwnFuture<U> = Box::pin(async move { answer.await.map_err(Into::into) });
            Ok(own)
        })
    }

    /// Joins `size` items into one, at most [`BATCH_MAX`]; fewer at the end. The outputs of ops are
    /// on the host by then. Ops that fit together are joined on their device without this, by the
    /// runtime's batcher.
    pub fn batch(self, size: usize) -> Builder<Vec<T>> {
        self.batch_stage(size, None)
    }

    /// Joins `size` items into one, or as many as have come when the oldest has waited for
    /// `wait_max`.
    pub fn batch_within(self, size: usize, wait_max: Duration) -> Builder<Vec<T>> {
        self.batch_stage(size, Some(wait_max))
    }

    /// Outputs the elements of each item, one by one.
    pub fn unbatch(self) -> Builder<T::Item>
    where
        T: IntoIterator,
        T::Item: Send + 'static,
        T::IntoIter: Send + 'static,
    {
        self.flat_map("unbatch", |item: T| item)
    }

    /// Maps each item to any number of items. The closure may have a state.
    pub fn flat_map<I, F>(self, name: &str, mut spread: F) -> Builder<I::Item>
    where
        I: IntoIterator,
        I::Item: Send + 'static,
        I::IntoIter: Send + 'static,
        F: FnMut(T) -> I + Send + 'static,
    {
        self.transduce(name, true, Spread::new(move |item| spread(item).into_iter()))
    }

    /// The last `size` items, after every `step` items. An incomplete window at the end is left
    /// out.
    pub fn window(mut self, size: usize, step: usize) -> Builder<Vec<T>>
    where
        T: Clone,
    {
        self.plan.expect_within("window", "size", BATCH_MAX, size);
        self.plan.expect_within("window", "step", usize::MAX, step);
        self.transduce("window", true, Window::new(size.clamp(1, BATCH_MAX), step.max(1)))
    }

    /// Sends each item into two branches, and joins their outputs into pairs. A branch outputs one
    /// item for each input, in order. If one branch leaves an item out, the pair is left out.
    ///
    /// The outputs of ops are on the host at the fork and at the join, so that a branch can restart
    /// an item when its device fails. To keep data of branches on a device, make the branches one
    /// graph, and so one op ([`RunGraph`](panoply_core::op::graph::RunGraph)).
    pub fn fork<A, B>(
        self,
        first: impl FnOnce(Builder<T>) -> Builder<A>,
        second: impl FnOnce(Builder<T>) -> Builder<B>,
    ) -> Builder<(A, B)>
    where
        T: Clone,
        A: Send + 'static,
        B: Send + 'static,
    {
        let (mut plan, input) = self.close();
        let depth = input.capacity();
        let outputs = (Arc::new(Ring::new(depth)), Arc::new(Ring::new(depth)));
        let options = StageOptions::named("fork");
        let index = plan.index(&options, Sort::JOIN);
        let rings = outputs.clone();
        plan.add(move |setting| {
            let body = ForkBody { input: Arc::clone(&input), outputs: rings.clone() };
            let glance = RingPair { input, output: rings };
            Box::new(Serial::new(index, &options, false, body, glance, setting.now))
        });
        plan.branches += 1;
        let branch = |plan, ring| {
            Builder::stage(plan, "fork", move |plan, options| {
                plan.check(&options, Sort::RING);
                ring
            })
        };
        let (plan, one) = first(branch(plan, outputs.0)).close();
        let (mut plan, other) = second(branch(plan, outputs.1)).close();
        plan.branches -= 1;
        Builder::stage(plan, "join", move |plan, options| {
            let (index, output) = (plan.index(&options, Sort::JOIN), Arc::new(Ring::new(options.ring)));
            let pairs = Arc::clone(&output);
            plan.add(move |setting| {
                let inputs = (one, other);
                let body = JoinBody { inputs: inputs.clone(), output: Arc::clone(&pairs) };
                let glance = RingPair { input: inputs, output: pairs };
                Box::new(Serial::new(index, &options, false, body, glance, setting.now))
            });
            output
        })
    }

    /// Lets up to `threads` threads work in this stage at the same time. Order is kept.
    pub fn parallel(mut self, threads: usize) -> Builder<T> {
        self.options.parallelism = Parallelism::Fixed(threads);
        self
    }

    /// Lets all of the pipeline's threads that have nothing to do further down work in this stage.
    /// Order is kept.
    pub fn adaptive(mut self) -> Builder<T> {
        self.options.parallelism = Parallelism::Adaptive;
        self
    }

    /// Lets up to `items` ops, or requests, of this stage be in flight at the same time.
    pub fn in_flight(mut self, items: usize) -> Builder<T> {
        self.options.in_flight = items;
        self
    }

    /// Sets how many items fit between this stage and the next, besides those that the stage works
    /// on.
    pub fn ring(mut self, items: usize) -> Builder<T> {
        self.options.ring = items;
        self
    }

    /// Sets what happens to items that fail in this stage. A source that fails is asked again as
    /// often as the policy retries; then its error is skipped, becomes a dead letter, or ends the
    /// run.
    pub fn on_error(mut self, policy: ErrorPolicy) -> Builder<T> {
        self.options.policy = policy;
        self
    }

    /// Lets items leave this stage in another order than they came.
    pub fn unordered(mut self) -> Builder<T> {
        self.options.ordered = false;
        self
    }

    /// Sets a time limit. A call of this stage's code that takes longer ends the run with an error.
    /// A request to a worker, or a future, that takes longer is given up, and its item is handled
    /// according to [`Builder::on_error`]. (Ops have their own limit:
    /// [`WorkerLimits::op_time_max`](panoply_runtime::WorkerLimits::op_time_max).)
    pub fn time_max(mut self, time: Duration) -> Builder<T> {
        self.options.time_max = Some(time);
        self
    }

    /// Sets the wishes for the ops of this stage. Their deadline is the pipeline's.
    pub fn wishes(mut self, options: RunOptions) -> Builder<T> {
        self.options.wishes = Some(options);
        self
    }

    /// Finishes the last stage, and returns its output ring.
    pub(crate) fn close(self) -> (RunPlan, Arc<Ring<T>>) {
        let Builder { mut plan, open, options } = self;
        if !options.ordered {
            plan.refuse_in_branch(&options.name, "order", "unordered");
        }
        let ring = match open {
            OpenStage::Stage(finish) => finish(&mut plan, options),
            OpenStage::Chain(parts, outputs, sort) => close_chain(&mut plan, parts, outputs, options, sort),
        };
        (plan, ring)
    }

    fn closure_stage<U, F>(self, name: &str, sort: Sort, work: F) -> Builder<U>
    where
        U: Send + 'static,
        F: ItemFn<T, U>,
    {
        let (plan, input) = self.close();
        Builder::stage(plan, name, move |plan, options| {
            // Items in flight have their positions in the ring in addition to those that wait.
            let depth = options.ring.saturating_add(options.lanes(plan.threads()) - 1);
            let (index, output) = (plan.index(&options, sort), Arc::new(Ring::new(depth)));
            let rings = (input, Arc::clone(&output));
            plan.add(move |setting| {
                let stage = Parallel::new(index, options, setting.threads, rings, work, setting.now);
                Box::new(stage) as Box<dyn Stage>
            });
            output
        })
    }

    fn batch_stage(mut self, size: usize, wait_max: Option<Duration>) -> Builder<Vec<T>> {
        self.plan.expect_within("batch", "size", BATCH_MAX, size);
        self.transduce("batch", false, Batch::new(size.clamp(1, BATCH_MAX), wait_max))
    }

    fn transduce<U, X>(self, name: &str, heavy: bool, transducer: X) -> Builder<U>
    where
        U: Send + 'static,
        X: Transducer<T, U>,
    {
        let (mut plan, input) = self.close();
        plan.refuse_in_branch(name, "stage", "another number of items");
        Builder::stage(plan, name, move |plan, options| {
            let (index, output) = (plan.index(&options, Sort::STATE), Arc::new(Ring::new(options.ring)));
            let to = Arc::clone(&output);
            plan.add(move |setting| {
                let glance = RingPair { input: Arc::clone(&input), output: Arc::clone(&to) };
                let body = TransduceBody::new(transducer, input, to, options.policy);
                Box::new(Serial::new(index, &options, heavy, body, glance, setting.now))
            });
            output
        })
    }

    pub(crate) fn op_link<O, F>(self, name: &str, runner: Arc<dyn Runs>, make: F) -> Builder<O::Output>
    where
        O: Operation,
        F: Fn(&T) -> Result<O, BoxError> + Send + 'static,
    {
        let (plan, parts, input) = self.into_chain();
        let output = slots();
        let link = OpLink::<T, O, F> {
            runner,
            make,
            input,
            output: Arc::clone(&output),
            options: RunOptions::default(),
            lanes: Vec::new(),
        };
        let mut parts = parts;
        parts.links.push((0, StageOptions::named(name), Box::new(link)));
        Builder { plan, open: OpenStage::Chain(parts, output, Sort::OPS), options: StageOptions::named(name) }
    }

    /// The next op link reuses outputs that earlier ops left on a device. Inputs from all other
    /// stages come from a ring.
    fn into_chain(self) -> (RunPlan, ChainParts, Slots<T>) {
        match self {
            Builder { mut plan, open: OpenStage::Chain(mut parts, outputs, Sort { wishes: true, .. }), options } => {
                settle(&mut plan, &mut parts, options, Sort::OPS);
                (plan, parts, outputs)
            }
            other => {
                let (plan, ring) = other.close();
                let slots = slots();
                let head = Arc::new(RingHead { ring, slots: Arc::clone(&slots) });
                (plan, ChainParts { head, links: Vec::new() }, slots)
            }
        }
    }

    /// Requests never join a chain of ops: a chain that is restarted would send them twice.
    fn request_stage<U, A, F>(self, name: &str, ask: F) -> Builder<U>
    where
        U: Send + 'static,
        A: super::link::Answers<U>,
        F: Fn(&T) -> Result<A, Cause> + Send + 'static,
    {
        let (plan, ring) = self.close();
        let (input, output) = (slots(), slots());
        let head = Arc::new(RingHead { ring, slots: Arc::clone(&input) });
        let link = RequestLink { ask, input, output: Arc::clone(&output), pending: Vec::new() };
        let links: Vec<(usize, StageOptions, Box<dyn Link>)> = vec![(0, StageOptions::named(name), Box::new(link))];
        let open = OpenStage::Chain(ChainParts { head, links }, output, Sort::REQUESTS);
        Builder { plan, open, options: StageOptions::named(name) }
    }
}

/// Applies the final choices to a chain's last link.
fn settle(plan: &mut RunPlan, parts: &mut ChainParts, options: StageOptions, sort: Sort) {
    let index = plan.index(&options, sort);
    if let Some((number, chosen, link)) = parts.links.last_mut() {
        *number = index;
        options.wishes.iter().for_each(|wishes| link.wish(wishes));
        *chosen = options;
    }
}

fn close_chain<T: Send + 'static>(
    plan: &mut RunPlan,
    mut parts: ChainParts,
    outputs: Slots<T>,
    options: StageOptions,
    sort: Sort,
) -> Arc<Ring<T>> {
    let (depth, ordered) = (options.ring, options.ordered);
    settle(plan, &mut parts, options, sort);
    // Items in flight have their positions in the ring in addition to those that wait.
    let ring = Arc::new(Ring::new(depth.saturating_add(parts.lanes() - 1)));
    if let Some((_, _, link)) = parts.links.last_mut() {
        link.deliver();
    }
    let end = Arc::new(RingEnd { ring: Arc::clone(&ring), slots: outputs, ordered });
    plan.add(move |setting| Box::new(Chain::new(parts, end, &setting.signals, setting.now)));
    ring
}
