//! The futures that the runtime returns. They need no executor: poll them anywhere, or block with
//! `wait`.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use panoply_core::once::OnceBox;
use panoply_core::{DeviceKind, Error, ErrorKind, Outcome, Result, Value};
use panoply_lockfree::sleeper::SPIN_US_MAX;
use panoply_lockfree::slot::WaitError;

use crate::claims::ClaimPermit;
use crate::lane::{Lane, OpAnswer, OpReceiver, OpTicket, PlaceInLine};
use crate::timers::{Alarm, Timers};

/// An op in flight. Its output comes from `.await` or from [`Pending::wait`]. Dropping it cancels
/// the op if it has not been started yet.
#[must_use = "dropping a pending op cancels it"]
pub struct Pending<T> {
    inner: PendingOutcome<T>,
}

/// An op in flight whose report is wanted too; see [`Pending::with_report`].
#[must_use = "dropping a pending op cancels it"]
pub struct PendingOutcome<T> {
    state: State,
    convert: fn(Value) -> Result<T>,
}

enum State {
    /// Refused before it was accepted.
    Refused(Option<Error>),
    Sent(SentOp),
}

struct SentOp {
    receiver: OpReceiver,
    lane: Arc<Lane>,
    /// Its position among the ops that wait for room, if the queue was full.
    place: Option<PlaceInLine>,
    deadline: Option<Deadline>,
    /// How long a caller spins for the outcome.
    spin_us_max: u64,
    /// Its place among the ops of its claim.
    _permit: Option<ClaimPermit>,
}

/// The largest inputs of an op that is expected to finish while its caller spins.
const SMALL_OP_BYTES_MAX: usize = 32 << 10;
/// How long a caller spins for an op on a discrete GPU: as long as a wake-up, which takes some tens
/// of microseconds, is a considerable part of that time.
const GPU_SPIN_US_MAX: u64 = 1000;
/// One caller per this number of CPUs may spin for that long, and only while no more callers than
/// that wait at all. The others spin briefly and park.
const CPUS_PER_PATIENT: usize = 4;
/// How long every caller spins. If more callers wait than there are CPUs, they park after this:
/// spinning callers would keep CPUs from woken callers that have the next op to send. (64 callers
/// on 16 CPUs, batches by time or size: 1.6 times the throughput of single ops where each spun for
/// 100 µs, 2.2 for 50 µs.)
const FIRST_SPIN_US_MAX: u64 = 4;

/// The name of the unusable object in a fork's error.
const OPS_RUNTIME: &str = "the op's runtime";

/// How long a caller spins for an op with this much input. The caller of a larger op on the CPU
/// does not spin: it would only take a core from the threads that compute the op.
fn spin_us_max(kind: DeviceKind, input_bytes: usize) -> u64 {
    match kind {
        DeviceKind::DiscreteGpu => GPU_SPIN_US_MAX,
        DeviceKind::Cpu if input_bytes > SMALL_OP_BYTES_MAX => 0,
        _ => SPIN_US_MAX,
    }
}

/// A caller's own time limit. A blocked caller measures it itself; an awaited op is woken by the
/// runtime's timers.
pub(crate) struct Deadline {
    at: Instant,
    timers: Arc<Timers>,
    /// The waker that the timers will call, and its alarm, unless the timers are stopped.
    armed: Option<(Waker, Option<Alarm>)>,
}

impl Deadline {
    pub(crate) fn new(at: Instant, timers: &Arc<Timers>) -> Deadline {
        Deadline { at, timers: Arc::clone(timers), armed: None }
    }

    /// When it passes.
    pub(crate) fn at(&self) -> Instant {
        self.at
    }

    /// Makes the timers wake this waker, and no earlier one, when the time comes.
    pub(crate) fn arm(&mut self, waker: &Waker) {
        if self.armed.as_ref().is_some_and(|(armed, _)| armed.will_wake(waker)) {
            return;
        }
        self.disarm();
        self.armed = Some((waker.clone(), None));
        let alarm = self.timers.wake_at(self.at, waker);
        if let Some((_, armed)) = &mut self.armed {
            *armed = alarm;
        }
    }

    fn disarm(&mut self) {
        if let Some((_, Some(alarm))) = self.armed.take() {
            self.timers.forget(alarm);
        }
    }
}

impl Drop for Deadline {
    fn drop(&mut self) {
        self.disarm();
    }
}

impl<T> Pending<T> {
    pub(crate) fn refused(error: Error, convert: fn(Value) -> Result<T>) -> Pending<T> {
        Pending { inner: PendingOutcome { state: State::Refused(Some(error)), convert } }
    }

    pub(crate) fn sent(
        receiver: OpReceiver,
        lane: Arc<Lane>,
        unsent: Option<OpTicket>,
        deadline: Option<Deadline>,
        input_bytes: usize,
        permit: Option<ClaimPermit>,
        convert: fn(Value) -> Result<T>,
    ) -> Pending<T> {
        let spin_us_max = spin_us_max(lane.info.kind, input_bytes);
        let mut sent = SentOp { receiver, lane, place: None, deadline, spin_us_max, _permit: permit };
        if let Some(ticket) = unsent {
            sent.get_in_line(ticket);
        }
        Pending { inner: PendingOutcome { state: State::Sent(sent), convert } }
    }

    /// Blocks until the output is available.
    pub fn wait(self) -> Result<T> {
        self.inner.wait().map(|outcome| outcome.output)
    }

    /// Blocks until the output is available, but not after `limit`.
    pub(crate) fn wait_until(mut self, limit: Instant) -> Result<T> {
        let answer = match &mut self.inner.state {
            State::Refused(error) => Err(error.take().unwrap_or(Error::Cancelled)),
            State::Sent(sent) => sent.wait_until(Some(limit)),
        };
        typed(answer, self.inner.convert).map(|outcome| outcome.output)
    }

    /// The same op, returning its report together with its output.
    pub fn with_report(self) -> PendingOutcome<T> {
        self.inner
    }

    /// Whether the outcome is available, so that `wait` would return at once.
    pub fn is_done(&self) -> bool {
        match &self.inner.state {
            State::Refused(_) => true,
            State::Sent(sent) => sent.receiver.is_done() || !sent.lane.process.is_here(),
        }
    }
}

impl<T> PendingOutcome<T> {
    /// Blocks until the outcome is available.
    pub fn wait(mut self) -> Result<Outcome<T>> {
        let answer = match &mut self.state {
            State::Refused(error) => Err(error.take().unwrap_or(Error::Cancelled)),
            State::Sent(sent) => sent.wait(),
        };
        typed(answer, self.convert)
    }
}

impl<T> Future for Pending<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<T>> {
        Pin::new(&mut self.inner).poll(context).map(|outcome| outcome.map(|outcome| outcome.output))
    }
}

impl<T> Future for PendingOutcome<T> {
    type Output = Result<Outcome<T>>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Outcome<T>>> {
        let convert = self.convert;
        let answer = match &mut self.state {
            State::Refused(error) => Poll::Ready(Err(error.take().unwrap_or(Error::Cancelled))),
            State::Sent(sent) => sent.poll(context),
        };
        answer.map(|answer| typed(answer, convert))
    }
}

impl SentOp {
    /// The error of an op that was sent before a fork, in the child process: its answer goes to the
    /// parent.
    fn lost_in_fork(&self) -> Option<Error> {
        let process = self.lane.process;
        (!process.is_here() && !self.receiver.is_done()).then(|| process.refusal(OPS_RUNTIME))
    }

    fn wait(&mut self) -> OpAnswer {
        self.wait_until(self.deadline.as_ref().map(|deadline| deadline.at))
    }

    fn wait_until(&mut self, limit: Option<Instant>) -> OpAnswer {
        if let Some(error) = self.lost_in_fork() {
            return Err(error);
        }
        let waiting = BlockedCaller::begin();
        if !self.receiver.spin(FIRST_SPIN_US_MAX.min(self.spin_us_max)) {
            self.spin_among(waiting.callers(), limit);
        }
        match self.receiver.wait_for(self.lane.process, limit, 0) {
            Ok(answer) => answer.unwrap_or(Err(Error::ShuttingDown)),
            Err(WaitError::TimedOut) => Err(self.too_late()),
            Err(WaitError::Forked) => Err(self.lane.process.refusal(OPS_RUNTIME)),
        }
    }

    /// Spins on, for as long as that pays among this many callers.
    fn spin_among(&self, callers: usize, limit: Option<Instant>) {
        if callers > cpus() {
            return;
        }
        let few = callers <= SpinPermits::places() && self.spin_us_max > SPIN_US_MAX;
        let patience = if few { SpinPermits::take() } else { None };
        let longest_us = if patience.is_some() { self.spin_us_max } else { self.spin_us_max.min(SPIN_US_MAX) };
        let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()).as_micros() as u64);
        self.receiver.spin_after(FIRST_SPIN_US_MAX, left.map_or(longest_us, |left_us| left_us.min(longest_us)));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<OpAnswer> {
        if let Some(error) = self.lost_in_fork() {
            return Poll::Ready(Err(error));
        }
        if let Poll::Ready(answer) = self.receiver.poll(context) {
            self.deadline = None;
            return Poll::Ready(answer.unwrap_or(Err(Error::ShuttingDown)));
        }
        if let Some(deadline) = &mut self.deadline {
            if Instant::now() >= deadline.at {
                return Poll::Ready(Err(self.too_late()));
            }
            deadline.arm(context.waker());
        }
        Poll::Pending
    }

    /// Makes an op that met a full queue wait for room behind those that came before it. From then
    /// on it gets in, and is answered, whether or not it is polled.
    #[cold]
    fn get_in_line(&mut self, ticket: OpTicket) {
        match self.lane.wait_in_line(ticket) {
            Ok(place) => self.place = Some(place),
            // The lane is closed: the op goes to another device, or its error comes as its answer.
            Err((ticket, error)) => self.lane.refuse(ticket, error),
        }
    }

    fn too_late(&self) -> Error {
        let late_by = self.deadline.as_ref().map_or_else(Default::default, |deadline| deadline.at.elapsed());
        Error::DeadlineExceeded { late_by }
    }
}

impl Drop for SentOp {
    fn drop(&mut self) {
        if !self.lane.process.is_here() {
            // The op belongs to the parent process, and a thread that does not exist here may hold
            // the lock of its line.
            return;
        }
        // An abandoned op must not wait for room: there may be more such ops than memory.
        if let Some(place) = self.place.take().filter(|_| !self.receiver.is_done()) {
            self.lane.leave_line(place);
        }
    }
}

/// Number of CPUs of this process.
fn cpus() -> usize {
    static CPUS: OnceBox<usize> = OnceBox::new();
    *CPUS.get_or_make(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// One caller that blocks until its op is done. All callers of this process are counted.
struct BlockedCaller;

static WAITING: AtomicUsize = AtomicUsize::new(0);

impl BlockedCaller {
    fn begin() -> BlockedCaller {
        WAITING.fetch_add(1, Ordering::Relaxed);
        BlockedCaller
    }

    /// Number of blocked callers now.
    fn callers(&self) -> usize {
        WAITING.load(Ordering::Relaxed)
    }
}

impl Drop for BlockedCaller {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The permission to spin for long. Each holder keeps a CPU busy.
struct SpinPermits {
    /// How many permissions are taken.
    taken: &'static AtomicUsize,
}

impl SpinPermits {
    fn take() -> Option<SpinPermits> {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        SpinPermits::take_one_of(&TAKEN, SpinPermits::places())
    }

    /// The number of permissions.
    fn places() -> usize {
        static PLACES: OnceBox<usize> = OnceBox::new();
        *PLACES.get_or_make(|| (cpus() / CPUS_PER_PATIENT).max(1))
    }

    fn take_one_of(taken: &'static AtomicUsize, most: usize) -> Option<SpinPermits> {
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| SpinPermits { taken })
    }
}

impl Drop for SpinPermits {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The outcome with its typed output. An output of another type is the device's fault, not the
/// caller's.
fn typed<T>(answer: OpAnswer, convert: fn(Value) -> Result<T>) -> Result<Outcome<T>> {
    let Outcome { output, report } = answer?;
    let fault = |error: Error| match error.kind() {
        ErrorKind::Caller => Error::DeviceFault { device: report.device, reason: error.to_string() },
        ErrorKind::Device | ErrorKind::Capacity => error,
    };
    Ok(Outcome { output: convert(output).map_err(fault)?, report })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_spin_where_the_outcome_comes_soon() {
        assert_eq!(spin_us_max(DeviceKind::Cpu, SMALL_OP_BYTES_MAX), SPIN_US_MAX);
        assert_eq!(spin_us_max(DeviceKind::Cpu, SMALL_OP_BYTES_MAX + 1), 0);
        assert_eq!(spin_us_max(DeviceKind::SoftwareGpu, usize::MAX), SPIN_US_MAX);
        assert_eq!(spin_us_max(DeviceKind::DiscreteGpu, usize::MAX), GPU_SPIN_US_MAX);
    }

    #[test]
    fn few_callers_spin_for_long() {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        let take = || SpinPermits::take_one_of(&TAKEN, 3);
        let places = [take(), take(), take()];
        assert!(places.iter().all(Option::is_some) && take().is_none());
        drop(places);
        assert!(take().is_some());
    }
}
