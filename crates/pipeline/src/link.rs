//! The links of a chain, and its two ends. Values between two links lie in slots, one for each
//! lane, so that they need no allocation, and each link knows the types of its own input and
//! output.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Instant;

use panoply_core::{Describe, Op, Operation, Outcome, Report, Value};
use panoply_lockfree::foreign::{contain, discard};
use panoply_lockfree::ring::{Item, Ring};
use panoply_runtime::pool::PendingReply;
use panoply_runtime::worker::BoxError;
use panoply_runtime::{
    PendingOutcome, PendingTask, PendingTaskOutcome, RunOptions, Runtime, TaskError, TaskOutcome, TaskReport, Worker,
};

use super::control::{Control, Failure, lock};
use super::error::Cause;
use super::meter::StageCounters;
use super::options::Finally;
use super::parallel::told;
use super::report::StageReport;

/// One value for each lane.
pub(crate) type Slots<T> = Arc<Mutex<Vec<Option<T>>>>;

pub(crate) fn slots<T>() -> Slots<T> {
    Arc::new(Mutex::new(Vec::new()))
}

fn put<T>(slots: &Slots<T>, lane: usize, value: Option<T>) -> Option<T> {
    lock(slots).get_mut(lane).and_then(|slot| std::mem::replace(slot, value))
}

/// The parameters with which a lane starts a link.
pub(crate) struct Order {
    pub(crate) lane: usize,
    pub(crate) deadline: Option<Instant>,
}

/// How a link was run.
#[expect(clippy::large_enum_variant, reason = "a box would be an allocation for each op")]
pub(crate) enum Receipt {
    None,
    Op(Report),
    Task(TaskReport),
}

/// One step of an item's way through a chain.
pub(crate) trait Link: Send {
    /// Makes room for `lanes` lanes.
    fn prepare(&mut self, lanes: usize);

    /// Makes this link copy its output to the host. Called for the last link of a chain.
    fn deliver(&mut self);

    /// Stores a program's wishes for its ops.
    fn wish(&mut self, _options: &RunOptions) {}

    /// Starts the link with the value in the lane's input slot.
    fn start(&mut self, order: &Order) -> Result<(), Cause>;

    /// Polls the link. When it is done, the output is in the lane's slot.
    fn poll(&mut self, lane: usize, context: &mut Context<'_>) -> Poll<Result<Receipt, Cause>>;

    /// Whether the lane's last start may be repeated.
    fn may_repeat(&self, lane: usize) -> bool;

    /// Whether the link waits for an answer that may never come. An op always has an outcome.
    fn is_request(&self) -> bool {
        false
    }

    /// Releases everything that the lane has here.
    fn clear(&mut self, lane: usize);
}

/// Runs ops: a runtime, or its substitute in a simulation.
pub(crate) trait Runs: Send + Sync {
    fn send(&self, op: Op, options: RunOptions) -> PendingOutcome<Value>;
}

/// An op that has been validated already.
struct ValidatedOp(Op);

impl Operation for ValidatedOp {
    type Output = Value;

    fn into_op(self) -> panoply_core::Result<Op> {
        Ok(self.0)
    }

    fn output(value: Value) -> panoply_core::Result<Value> {
        Ok(value)
    }
}

impl Runs for Runtime {
    fn send(&self, op: Op, options: RunOptions) -> PendingOutcome<Value> {
        self.run_with(ValidatedOp(op), options).with_report()
    }
}

/// Runs an op that a closure makes from each item.
pub(crate) struct OpLink<T, O: Operation, F> {
    pub(crate) runner: Arc<dyn Runs>,
    pub(crate) make: F,
    pub(crate) input: Slots<T>,
    pub(crate) output: Slots<O::Output>,
    pub(crate) options: RunOptions,
    pub(crate) lanes: Vec<OpLane>,
}

/// The state of a lane in an op's link.
pub(crate) struct OpLane {
    pending: Option<PendingOutcome<Value>>,
    repeatable: bool,
}

impl<T, O, F> Link for OpLink<T, O, F>
where
    T: Send + 'static,
    O: Operation,
    F: Fn(&T) -> Result<O, BoxError> + Send + 'static,
{
    fn prepare(&mut self, lanes: usize) {
        self.lanes.resize_with(lanes, || OpLane { pending: None, repeatable: true });
        lock(&self.output).resize_with(lanes, || None);
    }

    fn deliver(&mut self) {
        self.options.to_host = true;
    }

    fn wish(&mut self, options: &RunOptions) {
        self.options = options.clone();
    }

    fn start(&mut self, order: &Order) -> Result<(), Cause> {
        let options = RunOptions { deadline: order.deadline, ..self.options.clone() };
        let sent = {
            let input = lock(&self.input);
            let Some(Some(item)) = input.get(order.lane) else { return Err(nothing_there()) };
            // Besides the closure, the op's own methods may be a program's code.
            contain(|| {
                let op = (self.make)(item).map_err(told)?.into_op().map_err(Cause::Op)?;
                let repeatable = op.is_repeatable();
                Ok(OpLane { pending: Some(self.runner.send(op, options)), repeatable })
            })
        };
        let sent = sent.map_err(Cause::Panicked).flatten()?;
        match self.lanes.get_mut(order.lane) {
            Some(lane) => *lane = sent,
            None => return Err(nothing_there()),
        }
        Ok(())
    }

    fn poll(&mut self, lane: usize, context: &mut Context<'_>) -> Poll<Result<Receipt, Cause>> {
        let Some(record) = self.lanes.get_mut(lane) else { return Poll::Pending };
        // A late wake-up, for a lane that has moved on.
        let Some(pending) = record.pending.as_mut() else { return Poll::Pending };
        let Poll::Ready(outcome) = Pin::new(pending).poll(context) else { return Poll::Pending };
        record.pending = None;
        let typed = |outcome: Outcome<Value>| O::output(outcome.output).map(|output| (output, outcome.report));
        let typed = contain(|| outcome.and_then(typed)).map_err(Cause::Panicked);
        Poll::Ready(typed.and_then(|typed| typed.map_err(Cause::Op)).map(|(output, report)| {
            put(&self.output, lane, Some(output));
            Receipt::Op(report)
        }))
    }

    fn may_repeat(&self, lane: usize) -> bool {
        self.lanes.get(lane).is_none_or(|lane| lane.repeatable)
    }

    fn clear(&mut self, lane: usize) {
        discard(self.lanes.get_mut(lane).and_then(|lane| lane.pending.take()));
        discard(put(&self.output, lane, None));
    }
}

/// Runs a task that a closure begins for each item.
pub(crate) struct TaskLink<T, U, E, F> {
    pub(crate) begin: F,
    pub(crate) input: Slots<T>,
    pub(crate) output: Slots<U>,
    pub(crate) options: RunOptions,
    pub(crate) lanes: Vec<Option<PendingTaskOutcome<U, E>>>,
}

impl<T, U, E, F> Link for TaskLink<T, U, E, F>
where
    T: Send + 'static,
    U: Send + 'static,
    E: TaskError,
    F: Fn(&T, &RunOptions) -> PendingTask<U, E> + Send + 'static,
{
    fn prepare(&mut self, lanes: usize) {
        self.lanes.resize_with(lanes, || None);
        lock(&self.output).resize_with(lanes, || None);
    }

    fn deliver(&mut self) {
        self.options.to_host = true;
    }

    fn wish(&mut self, options: &RunOptions) {
        self.options = options.clone();
    }

    fn start(&mut self, order: &Order) -> Result<(), Cause> {
        let options = RunOptions { deadline: order.deadline, ..self.options.clone() };
        let begun = {
            let input = lock(&self.input);
            let Some(Some(item)) = input.get(order.lane) else { return Err(nothing_there()) };
            contain(|| (self.begin)(item, &options).with_report())
        };
        let begun = begun.map_err(Cause::Panicked)?;
        match self.lanes.get_mut(order.lane) {
            Some(lane) => *lane = Some(begun),
            None => return Err(nothing_there()),
        }
        Ok(())
    }

    fn poll(&mut self, lane: usize, context: &mut Context<'_>) -> Poll<Result<Receipt, Cause>> {
        let Some(Some(pending)) = self.lanes.get_mut(lane) else { return Poll::Pending };
        // Steps on the host are a program's code, or a library's.
        let polled = match contain(|| Pin::new(pending).poll(context)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(Ok(outcome))) => Ok(outcome),
            Ok(Poll::Ready(Err(error))) => Err(match error.of_op() {
                Some(error) => Cause::Op(error.clone()),
                None => Cause::Error(error.to_string()),
            }),
            Err(message) => Err(Cause::Panicked(message)),
        };
        discard(self.lanes.get_mut(lane).and_then(Option::take));
        Poll::Ready(polled.map(|TaskOutcome { output, report }| {
            put(&self.output, lane, Some(output));
            Receipt::Task(report)
        }))
    }

    fn may_repeat(&self, _lane: usize) -> bool {
        true
    }

    fn clear(&mut self, lane: usize) {
        discard(self.lanes.get_mut(lane).and_then(Option::take));
        discard(put(&self.output, lane, None));
    }
}

/// A pending answer.
pub(crate) trait Answers<U>: Send + 'static {
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Result<U, Cause>>;
}

impl<W: Worker> Answers<W::Reply> for PendingReply<W> {
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Result<W::Reply, Cause>> {
        Pin::new(self).poll(context).map(|reply| reply.map_err(Cause::Worker))
    }
}

/// A program's own future.
pub(crate) type OwnFuture<U> = Pin<Box<dyn Future<Output = Result<U, BoxError>> + Send>>;

impl<U: 'static> Answers<U> for OwnFuture<U> {
    fn poll_answer(&mut self, context: &mut Context<'_>) -> Poll<Result<U, Cause>> {
        self.as_mut().poll(context).map(|answer| answer.map_err(told))
    }
}

/// Makes a request for each item with a closure, and waits for its answer.
pub(crate) struct RequestLink<T, U, A, F> {
    pub(crate) ask: F,
    pub(crate) input: Slots<T>,
    pub(crate) output: Slots<U>,
    pub(crate) pending: Vec<Option<A>>,
}

impl<T, U, A, F> Link for RequestLink<T, U, A, F>
where
    T: Send + 'static,
    U: Send + 'static,
    A: Answers<U>,
    F: Fn(&T) -> Result<A, Cause> + Send + 'static,
{
    fn prepare(&mut self, lanes: usize) {
        self.pending.resize_with(lanes, || None);
        lock(&self.output).resize_with(lanes, || None);
    }

    fn deliver(&mut self) {}

    fn start(&mut self, order: &Order) -> Result<(), Cause> {
        let asked = {
            let input = lock(&self.input);
            let Some(Some(item)) = input.get(order.lane) else { return Err(nothing_there()) };
            contain(|| (self.ask)(item))
        };
        let answer = asked.map_err(Cause::Panicked).flatten()?;
        match self.pending.get_mut(order.lane) {
            Some(slot) => *slot = Some(answer),
            None => return Err(nothing_there()),
        }
        Ok(())
    }

    fn poll(&mut self, lane: usize, context: &mut Context<'_>) -> Poll<Result<Receipt, Cause>> {
        let Some(Some(pending)) = self.pending.get_mut(lane) else { return Poll::Pending };
        let polled = match contain(|| pending.poll_answer(context)) {
            Ok(Poll::Pending) => return Poll::Pending,
            Ok(Poll::Ready(answer)) => answer,
            Err(message) => Err(Cause::Panicked(message)),
        };
        discard(self.pending.get_mut(lane).and_then(Option::take));
        Poll::Ready(polled.map(|answer| {
            put(&self.output, lane, Some(answer));
            Receipt::None
        }))
    }

    fn may_repeat(&self, _lane: usize) -> bool {
        true
    }

    fn is_request(&self) -> bool {
        true
    }

    fn clear(&mut self, lane: usize) {
        discard(self.pending.get_mut(lane).and_then(Option::take));
        discard(put(&self.output, lane, None));
    }
}

/// An internal error of the chain: the lane has no item.
fn nothing_there() -> Cause {
    Cause::Error("the lane has no item".to_owned())
}

/// The input end of a chain.
pub(crate) trait Head: Send + Sync {
    /// Puts the next item into the lane's slot. Returns its number, when it was born, and whether
    /// it has a value.
    fn take(&self, lane: usize) -> Option<(u64, Instant, bool)>;
    fn clear(&self, lane: usize);
    /// Handles the lane's item, which failed and is not tried again.
    fn give_up(
        &self,
        lane: usize,
        failure: Failure<'_>,
        cause: Cause,
        finally: Finally,
        control: &Control,
        counts: &StageCounters,
    );
    fn ready(&self) -> usize;
    fn used(&self) -> usize;
    fn is_finished(&self) -> bool;
    fn abandon(&self) -> u64;
    fn queue(&self, report: &mut StageReport);
    fn prepare(&self, lanes: usize);
}

pub(crate) struct RingHead<T> {
    pub(crate) ring: Arc<Ring<T>>,
    pub(crate) slots: Slots<T>,
}

impl<T: Send + 'static> Head for RingHead<T> {
    fn take(&self, lane: usize) -> Option<(u64, Instant, bool)> {
        let Item { number, born, value } = self.ring.pop()?;
        let has_value = value.is_some();
        put(&self.slots, lane, value);
        Some((number, born, has_value))
    }

    fn clear(&self, lane: usize) {
        discard(put(&self.slots, lane, None));
    }

    fn give_up(
        &self,
        lane: usize,
        failure: Failure<'_>,
        cause: Cause,
        finally: Finally,
        control: &Control,
        counts: &StageCounters,
    ) {
        control.give_up(failure, cause, finally, put(&self.slots, lane, None), counts);
    }

    fn ready(&self) -> usize {
        self.ring.ready()
    }

    fn used(&self) -> usize {
        self.ring.used()
    }

    fn is_finished(&self) -> bool {
        self.ring.is_finished()
    }

    fn abandon(&self) -> u64 {
        self.ring.abandon()
    }

    fn queue(&self, report: &mut StageReport) {
        report.queue(&self.ring);
    }

    fn prepare(&self, lanes: usize) {
        lock(&self.slots).resize_with(lanes, || None);
    }
}

/// The output end of a chain.
pub(crate) trait End: Send + Sync {
    fn room(&self) -> usize;
    /// Reserves a position.
    fn reserve(&self) -> u64;
    /// Fills a position with the output of the lane's last link, or with an item without a value.
    fn fill(&self, lane: usize, place: u64, number: u64, born: Instant, with_value: bool);
    fn end(&self);
}

pub(crate) struct RingEnd<T> {
    pub(crate) ring: Arc<Ring<T>>,
    pub(crate) slots: Slots<T>,
    pub(crate) ordered: bool,
}

impl<T: Send + 'static> End for RingEnd<T> {
    fn room(&self) -> usize {
        self.ring.room()
    }

    fn reserve(&self) -> u64 {
        if self.ordered {
            return self.ring.reserve(1);
        }
        self.ring.promise(1);
        0
    }

    fn fill(&self, lane: usize, place: u64, number: u64, born: Instant, with_value: bool) {
        let value = if with_value { put(&self.slots, lane, None) } else { None };
        let item = Item { number, born, value };
        if self.ordered { self.ring.fill(place, item) } else { self.ring.fulfil(item) }
    }

    fn end(&self) {
        self.ring.end();
    }
}
