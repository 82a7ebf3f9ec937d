//! The futures that the runtime hands out. They need no executor: poll them anywhere, or block with `wait`.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use panoply_core::{DeviceKind, Error, ErrorKind, Outcome, Result, Value};

use crate::lane::{Lane, OpAnswer, OpReceiver, OpTicket, PlaceInLine};
use crate::sleeper::SPIN_US_MAX;
use crate::slot::TimedOut;
use crate::timers::{Alarm, Timers};

/// An op under way. Its output comes from `.await` or from [`Pending::wait`]; dropping it cancels the op if it has not
/// been started yet.
#[must_use = "dropping a pending op cancels it"]
pub struct Pending<T> {
    inner: PendingOutcome<T>,
}

/// An op under way whose report is wanted too; see [`Pending::with_report`].
#[must_use = "dropping a pending op cancels it"]
pub struct PendingOutcome<T> {
    state: State,
    convert: fn(Value) -> Result<T>,
}

enum State {
    /// Refused before it was accepted.
    Refused(Option<Error>),
    Sent(Sent),
}

struct Sent {
    receiver: OpReceiver,
    lane: Arc<Lane>,
    /// Where it waits for room, if it met a full queue.
    place: Option<PlaceInLine>,
    deadline: Option<Deadline>,
    /// For how long a caller spins for the outcome.
    spin_us_max: u64,
}

/// The inputs of an op that is done within a caller's spin.
const SMALL_OP_BYTES_MAX: usize = 32 << 10;
/// How long a caller spins for what a GPU with memory of its own computes: as long as a wake-up, which takes some tens of
/// microseconds, is a good part of it.
const GPU_SPIN_US_MAX: u64 = 1000;
/// One caller for so many CPUs may spin for that long at a time, and only while no more than those wait at all; the others spin
/// briefly and park.
const CPUS_PER_PATIENT: usize = 4;
/// How long every caller spins. Where more callers wait than there are CPUs they park then: those who spin would keep CPUs from
/// those who are woken and have the next op to send. (64 callers on 16 CPUs, batches by time or size: 1.6 times the throughput of
/// single ops where each spun for 100 µs, 2.2 for 50 µs.)
const FIRST_SPIN_US_MAX: u64 = 4;

/// For how long a caller spins for an op with so much input. The caller of a larger one on the CPU would only take a core from
/// those who compute it.
fn spin_us_max(kind: DeviceKind, input_bytes: usize) -> u64 {
    match kind {
        DeviceKind::DiscreteGpu => GPU_SPIN_US_MAX,
        DeviceKind::Cpu if input_bytes > SMALL_OP_BYTES_MAX => 0,
        _ => SPIN_US_MAX,
    }
}

/// A caller's own limit. A blocked caller keeps it by itself; an awaited op is woken by the runtime's timers.
pub(crate) struct Deadline {
    at: Instant,
    timers: Arc<Timers>,
    /// The waker that the timers will call, and their name for it where they are not stopped.
    armed: Option<(Waker, Option<Alarm>)>,
}

impl Deadline {
    pub(crate) fn new(at: Instant, timers: &Arc<Timers>) -> Deadline {
        Deadline { at, timers: Arc::clone(timers), armed: None }
    }

    /// Has this one woken when the time comes, and nobody else.
    fn arm(&mut self, waker: &Waker) {
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
        convert: fn(Value) -> Result<T>,
    ) -> Pending<T> {
        let spin_us_max = spin_us_max(lane.info.kind, input_bytes);
        let mut sent = Sent { receiver, lane, place: None, deadline, spin_us_max };
        if let Some(ticket) = unsent {
            sent.get_in_line(ticket);
        }
        Pending { inner: PendingOutcome { state: State::Sent(sent), convert } }
    }

    /// Blocks until the output is there.
    pub fn wait(self) -> Result<T> {
        self.inner.wait().map(|outcome| outcome.output)
    }

    /// The same op, giving its report together with its output.
    pub fn with_report(self) -> PendingOutcome<T> {
        self.inner
    }

    /// Whether the outcome is there, so that `wait` would return at once.
    pub fn is_done(&self) -> bool {
        match &self.inner.state {
            State::Refused(_) => true,
            State::Sent(sent) => sent.receiver.is_done(),
        }
    }
}

impl<T> PendingOutcome<T> {
    /// Blocks until the outcome is there.
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

impl Sent {
    fn wait(&mut self) -> OpAnswer {
        let limit = self.deadline.as_ref().map(|deadline| deadline.at);
        let waiting = Waiting::begin();
        if !self.receiver.spin(FIRST_SPIN_US_MAX.min(self.spin_us_max)) {
            self.spin_among(waiting.callers(), limit);
        }
        match self.receiver.wait_for(limit, 0) {
            Ok(answer) => answer.unwrap_or(Err(Error::ShuttingDown)),
            Err(TimedOut) => Err(self.too_late()),
        }
    }

    /// Spins on, as long as pays among so many callers.
    fn spin_among(&self, callers: usize, limit: Option<Instant>) {
        if callers > cpus() {
            return;
        }
        let few = callers <= Patience::places() && self.spin_us_max > SPIN_US_MAX;
        let patience = if few { Patience::take() } else { None };
        let longest_us = if patience.is_some() { self.spin_us_max } else { self.spin_us_max.min(SPIN_US_MAX) };
        let left = limit.map(|limit| limit.saturating_duration_since(Instant::now()).as_micros() as u64);
        self.receiver.spin_after(FIRST_SPIN_US_MAX, left.map_or(longest_us, |left_us| left_us.min(longest_us)));
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<OpAnswer> {
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

    /// Has an op that met a full queue wait for room behind those that came before it. From then on it gets in, and is answered,
    /// whether anybody polls or not.
    #[cold]
    fn get_in_line(&mut self, ticket: OpTicket) {
        match self.lane.wait_in_line(ticket) {
            Ok(place) => self.place = Some(place),
            // The lane is gone: the op goes elsewhere, or its error comes as its answer.
            Err((ticket, error)) => self.lane.refuse(ticket, error),
        }
    }

    fn too_late(&self) -> Error {
        let late_by = self.deadline.as_ref().map_or_else(Default::default, |deadline| deadline.at.elapsed());
        Error::DeadlineExceeded { late_by }
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        // An op that nobody waits for shall not wait for room: there may be more of them than memory.
        if let Some(place) = self.place.take().filter(|_| !self.receiver.is_done()) {
            self.lane.leave_line(place);
        }
    }
}

/// How many CPUs this process has.
fn cpus() -> usize {
    static CPUS: OnceLock<usize> = OnceLock::new();
    *CPUS.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// One caller that blocks until its op is done, among all of this process.
struct Waiting;

static WAITING: AtomicUsize = AtomicUsize::new(0);

impl Waiting {
    fn begin() -> Waiting {
        WAITING.fetch_add(1, Ordering::Relaxed);
        Waiting
    }

    /// How many there are now.
    fn callers(&self) -> usize {
        WAITING.load(Ordering::Relaxed)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A place among the callers that spin for long, each of whom keeps a CPU busy.
struct Patience {
    /// How many places are taken.
    taken: &'static AtomicUsize,
}

impl Patience {
    fn take() -> Option<Patience> {
        static TAKEN: AtomicUsize = AtomicUsize::new(0);
        Patience::take_one_of(&TAKEN, Patience::places())
    }

    /// How many there are.
    fn places() -> usize {
        static PLACES: OnceLock<usize> = OnceLock::new();
        *PLACES.get_or_init(|| (cpus() / CPUS_PER_PATIENT).max(1))
    }

    fn take_one_of(taken: &'static AtomicUsize, most: usize) -> Option<Patience> {
        let one_more = |taken: usize| (taken < most).then_some(taken + 1);
        taken.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).ok().map(|_| Patience { taken })
    }
}

impl Drop for Patience {
    fn drop(&mut self) {
        self.taken.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The outcome with its typed output. An answer that is no such output is the device's fault, not the caller's.
fn typed<T>(answer: OpAnswer, convert: fn(Value) -> Result<T>) -> Result<Outcome<T>> {
    let Outcome { output, report } = answer?;
    let fault = |error: Error| match error.kind() {
        ErrorKind::Caller => Error::DeviceFault { device: report.device, reason: error.to_string() },
        ErrorKind::Device | ErrorKind::Capacity => error,
    };
    Ok(Outcome { output: convert(output).map_err(fault)?, report })
}

#[cfg(all(test, not(loom)))]
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
        let take = || Patience::take_one_of(&TAKEN, 3);
        let places = [take(), take(), take()];
        assert!(places.iter().all(Option::is_some) && take().is_none());
        drop(places);
        assert!(take().is_some());
    }
}
