//! Compares answers with those of other devices. See `verify` for which answers are compared and
//! how, and `lane::opinions` for the queue of held-back answers.
//!
//! 1. One thread takes one held-back answer after the other, runs its op on another device, and
//!    compares the answers. This thread waits, so that no worker does. Each answer is handed out
//!    when its time is over, compared or not.
//! 2. If two answers differ, the processor's is right. If neither is the processor's, a third
//!    device is asked: the processor if it can run the op, otherwise any device. Two answers that
//!    agree are right. If no two agree, the op fails.
//! 3. Only devices are asked that have a closed circuit, are not the same hardware as those asked
//!    before, and are not forbidden. An op that was begun on a device runs to its end there, and
//!    other ops wait for it. So no op is begun that is expected to take longer than the time left,
//!    or on a device that has spent its share of time on comparisons.
//! 4. The thread calls backends. Meanwhile its ticket lies in `current`: if a backend does not
//!    return, the supervisor's look hands out that answer and all that wait, until the thread is
//!    back.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use panoply_core::op::compute::Transfer;
use panoply_core::{
    DeviceId, Error, FirstGuess, Location, Op, Operation, Outcome, PartRef, Result, Value, Verification,
};
use panoply_lockfree::foreign::contain;

use crate::errands::Errands;
use crate::health::Circuit;
use crate::lane::Lane;
use crate::lane::opinions::{AnswerFollowUp, Opinions, PendingVerification};
use crate::options::{FallbackPolicy, Priority, Wishes};
use crate::pending::{Deadline, Pending};
use crate::router::Router;
use crate::router::dispatch::Dispatch;
use crate::threads::{Owner, Thread};
use crate::time::nanoseconds;
use crate::timers::Timers;
use crate::verify::difference;

/// How much later than its time an answer is handed out if a backend does not return.
const LATE_MAX: Duration = Duration::from_millis(200);

/// Compares answers on a thread of its own. See the module's rules.
pub(crate) struct Verifier {
    opinions: Arc<Opinions>,
    router: Arc<Router>,
    timers: Arc<Timers>,
    errands: Arc<Errands>,
    /// The job that is being compared. Locked only briefly, by the thread and by the supervisor's
    /// look.
    current: Mutex<Option<PendingVerification>>,
    /// Whether the answer that the thread compares was taken away.
    stuck: AtomicBool,
}

/// The handle of a running verifier. Dropping it closes the queue; the thread ends after it has
/// handed out the waiting answers.
pub(crate) struct VerifierThread {
    verifier: Arc<Verifier>,
    thread: Thread,
}

impl VerifierThread {
    /// Hands out every answer. If the thread does not end within `grace`, it is left behind inside
    /// a backend, and the answer that it compares is handed out too.
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn end(self, grace: Duration) -> Vec<AnswerFollowUp> {
        let mut remains = self.verifier.end();
        if !self.thread.ends_within(grace) {
            remains.extend(self.verifier.take_over(|_| true));
        }
        remains
    }
}

impl Drop for VerifierThread {
    fn drop(&mut self) {
        self.verifier.opinions.close();
    }
}

/// The op whose answer is compared, and its context.
struct Case {
    op: Op,
    value: Value,
    wishes: Wishes,
    lane: Arc<Lane>,
    until: Instant,
}

/// Why there is no second answer.
enum MissingAnswer {
    Failed(Error),
    /// No device was asked, for this reason.
    Skipped(String),
}

impl From<Error> for MissingAnswer {
    fn from(error: Error) -> MissingAnswer {
        MissingAnswer::Failed(error)
    }
}

impl fmt::Display for MissingAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MissingAnswer::Failed(error) => error.fmt(f),
            MissingAnswer::Skipped(reason) => f.write_str(reason),
        }
    }
}

/// The result of a comparison.
enum Judgement {
    Agreed {
        with: DeviceId,
    },
    /// The first answer is wrong.
    Wrong {
        right: Box<Outcome<Value>>,
        by: DeviceId,
        reason: String,
    },
    /// It is unknown which answer is right.
    Undecided {
        reason: String,
    },
    Skipped {
        reason: String,
    },
}

impl Verifier {
    pub(crate) fn new(
        opinions: Arc<Opinions>,
        router: Arc<Router>,
        timers: Arc<Timers>,
        errands: Arc<Errands>,
    ) -> Arc<Verifier> {
        let (current, stuck) = (Mutex::new(None), AtomicBool::new(false));
        Arc::new(Verifier { opinions, router, timers, errands, current, stuck })
    }

    /// Starts the verifier's thread.
    pub(crate) fn start(self: &Arc<Verifier>, owner: Owner) -> std::io::Result<VerifierThread> {
        let own = Arc::clone(self);
        let thread = owner.spawn("panoply-verifier".to_owned(), move || own.run())?;
        Ok(VerifierThread { verifier: Arc::clone(self), thread })
    }

    fn run(&self) {
        let opinions = &self.opinions;
        loop {
            match opinions.queue.pop() {
                Some(job) => self.judge(job),
                None if opinions.queue.is_finished() => return,
                None => opinions.sleeper.sleep(None, || opinions.queue.has_news()),
            }
        }
    }

    /// Refuses jobs from now on. Waiting answers are handed out uncompared.
    #[must_use = "what is foreign is called when this is dropped"]
    fn end(&self) -> Vec<AnswerFollowUp> {
        self.opinions.close();
        let waiting = std::iter::from_fn(|| self.opinions.queue.pop());
        waiting.map(|job| skip(job, "the runtime is shutting down")).collect()
    }

    /// Hands out the answers that a thread holds up because it does not return from a backend.
    #[must_use = "what is foreign is called when this is dropped"]
    pub(crate) fn look(&self, now: Instant) -> Vec<AnswerFollowUp> {
        self.take_over(|job| now.saturating_duration_since(job.until) > LATE_MAX)
    }

    /// Hands out the answer that the thread compares, if it is late, and then all answers that wait
    /// behind it.
    fn take_over(&self, is_late: impl FnOnce(&mut PendingVerification) -> bool) -> Vec<AnswerFollowUp> {
        let late = {
            let mut current = self.current();
            let late = current.take_if(is_late);
            // Written while `current` is locked, as in `take_back`, so a thread that is back is
            // never marked as stuck.
            self.stuck.fetch_or(late.is_some(), Ordering::AcqRel);
            late
        };
        let waiting = std::iter::from_fn(|| self.stuck.load(Ordering::Acquire).then(|| self.opinions.queue.pop())?);
        late.into_iter().chain(waiting).map(|job| skip(job, "no other device answered in time")).collect()
    }

    fn current(&self) -> MutexGuard<'_, Option<PendingVerification>> {
        self.current.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes back the answer that was compared. `None` if it was handed out meanwhile.
    fn take_back(&self) -> Option<PendingVerification> {
        let mut current = self.current();
        self.stuck.store(false, Ordering::Release);
        current.take()
    }

    fn judge(&self, mut job: PendingVerification) {
        if job.ticket.is_cancelled() {
            return self.errands.drop_all([skip(job, "nobody waits for its answer")]);
        }
        let Some(case) = Case::of(&mut job) else {
            return self.errands.drop_all([skip(job, "its op was not kept")]);
        };
        *self.current() = Some(job);
        let panicked = |message| Judgement::Skipped { reason: format!("a backend panicked: {message}") };
        let judgement = contain(|| self.compare(&case)).unwrap_or_else(panicked);
        // Destructors are foreign, and no supervisor watches this thread any more, so they are
        // called elsewhere.
        match self.take_back() {
            Some(job) => self.errands.drop_all([(self.conclude(job, &case, judgement), case)]),
            None => self.errands.drop_all([(judgement, case)]),
        }
    }

    /// Hands out the right answer, as far as it is known and the caller's policy allows.
    fn conclude(&self, job: PendingVerification, case: &Case, judgement: Judgement) -> AnswerFollowUp {
        match judgement {
            Judgement::Agreed { with } => job.confirm(Verification::Agreed { with }),
            Judgement::Skipped { reason } => job.confirm(Verification::Skipped { reason }),
            Judgement::Undecided { reason } => job.doubt(&reason),
            Judgement::Wrong { right, by, reason } => {
                case.lane.note_mismatch();
                let may_leave = match case.wishes.policy {
                    FallbackPolicy::Alternate => true,
                    FallbackPolicy::Cpu => self.is_processor(right.report.device),
                    FallbackPolicy::None | FallbackPolicy::Retry { .. } => false,
                };
                if !may_leave {
                    self.errands.drop_all([right]);
                    return job.overrule(None, &reason);
                }
                let verification = Verification::Overruled { wrong: case.lane.info.id, by };
                job.overrule(Some((*right, verification)), &reason)
            }
        }
    }

    fn compare(&self, case: &Case) -> Judgement {
        let skipped = |reason: &dyn fmt::Display| Judgement::Skipped { reason: reason.to_string() };
        let first = match self.on_host(case) {
            Ok(first) => first,
            Err(error) => return skipped(&error),
        };
        let allowed = case.wishes.elsewhere & self.sound() & !self.hardware(&case.lane);
        let second = match self.ask(case, allowed) {
            Ok(second) => second,
            Err(MissingAnswer::Failed(error @ Error::Rejected { .. })) => {
                return self.ask_about_rejection(case, allowed, &first, &error);
            }
            Err(unanswered) => return skipped(&unanswered),
        };
        let other = second.report.device;
        let how = match difference(&case.op, &first, &second.output) {
            Ok(None) => return Judgement::Agreed { with: other },
            Ok(Some(how)) => how,
            Err(error) => return skipped(&error),
        };
        let reason = format!("it differs from that of {other}: {how}");
        if self.is_processor(other) {
            return Judgement::Wrong { right: Box::new(second), by: other, reason };
        }
        self.ask_a_third(case, allowed, &first, second, reason)
    }

    /// Handles a rejection: another device says that a message is forged, while the first device
    /// accepted it. The processor decides. If it cannot, the op fails, so that no part of a
    /// possibly forged message is handed out.
    fn ask_about_rejection(&self, case: &Case, allowed: u64, first: &Value, rejection: &Error) -> Judgement {
        let reason = format!("another device says: {rejection}");
        let Ok(decisive) = self.ask(case, allowed & self.router.cpu_mask()) else {
            return Judgement::Undecided { reason };
        };
        let by = decisive.report.device;
        match difference(&case.op, first, &decisive.output) {
            Ok(None) => Judgement::Agreed { with: by },
            Ok(Some(how)) => {
                let reason = format!("it differs from that of {by}: {how}");
                Judgement::Wrong { right: Box::new(decisive), by, reason }
            }
            Err(error) => Judgement::Undecided { reason: format!("{reason}; {error}") },
        }
    }

    /// Handles two devices that disagree, when neither is the processor.
    fn ask_a_third(
        &self,
        case: &Case,
        allowed: u64,
        first: &Value,
        second: Outcome<Value>,
        reason: String,
    ) -> Judgement {
        let Some(other) = self.router.lanes.serving(second.report.device) else {
            return Judgement::Undecided { reason };
        };
        let allowed = allowed & !self.hardware(&other.lane);
        let processor = self.ask(case, allowed & self.router.cpu_mask());
        let third = match processor.or_else(|_| self.ask(case, allowed)) {
            Ok(third) => third,
            Err(unanswered) => {
                // One of the two devices is wrong and the other is right, so neither loses its
                // queued ops over this.
                other.lane.note_doubt();
                return Judgement::Undecided { reason: format!("{reason}; there is no third device: {unanswered}") };
            }
        };
        let by = third.report.device;
        let agrees = |value: &Value| difference(&case.op, value, &third.output).map(|how| how.is_none());
        match (agrees(first), agrees(&second.output)) {
            (Ok(true), _) => {
                other.lane.note_mismatch();
                Judgement::Agreed { with: by }
            }
            (Ok(false), Ok(true)) => Judgement::Wrong { right: Box::new(second), by, reason },
            (Ok(false), Ok(false)) if self.is_processor(by) => {
                other.lane.note_mismatch();
                Judgement::Wrong { right: Box::new(third), by, reason }
            }
            (Ok(false), Ok(false)) => {
                other.lane.note_doubt();
                Judgement::Undecided { reason: format!("{reason}; {by} agrees with neither") }
            }
            (Err(error), _) | (_, Err(error)) => Judgement::Undecided { reason: format!("{reason}; {error}") },
        }
    }

    /// Runs the op again on one of these lanes, with its output on the host, if there is time for
    /// it.
    fn ask(&self, case: &Case, allowed: u64) -> Result<Outcome<Value>, MissingAnswer> {
        let now = Instant::now();
        let in_budget = self.slots(|lane| lane.may_compare(now));
        if allowed != 0 && allowed & in_budget == 0 {
            return Err(MissingAnswer::Skipped(
                "comparisons have had their share of the other devices' time".to_owned(),
            ));
        }
        let allowed = allowed & in_budget;
        let forecast = self.router.choose(&case.op, &Verifier::wishes(case, allowed), now)?.forecast;
        let Some(target) = self.router.lanes.made(forecast.target) else { return Err(Error::ShuttingDown.into()) };
        let lane = Arc::clone(&target.lane);
        // If little was measured, the backend's guess from the op's work counts as well:
        // measurements of small ops say nothing about large ones.
        let guess = if forecast.settled { 0.0 } else { guessed_ns(target.first_guess(&case.op), forecast.work_log2) };
        let expected_ns = forecast.queue_ns + forecast.transfer_ns + forecast.run_ns.max(guess);
        let left = case.until.saturating_duration_since(now).min(lane.limits.op_time_max / 2);
        if expected_ns > nanoseconds(left) as f32 {
            let (device, expected) = (lane.info.id, Duration::from_nanos(expected_ns as u64));
            let reason = format!("a comparison on {device} would take about {expected:.1?}, longer than {left:.1?}");
            return Err(MissingAnswer::Skipped(reason));
        }
        let answer = self.send(case.op.clone(), case, allowed & (1 << lane.number));
        match &answer {
            Ok(outcome) => lane.note_compared(outcome.report.ran),
            // The op may still be running.
            Err(_) => lane.note_compared(now.elapsed()),
        }
        Ok(answer?)
    }

    /// The wishes of a second run.
    fn wishes(case: &Case, allowed: u64) -> Wishes {
        Wishes {
            allowed,
            // A device that the caller forbids may have come back in another slot since.
            any_lane: case.wishes.any_lane,
            lanes_known: case.wishes.lanes_known,
            priority: Priority::Patient,
            to_host: true,
            deadline: Some(case.until),
            is_second: true,
            ..Wishes::none(FallbackPolicy::None)
        }
    }

    fn send(&self, op: Op, case: &Case, allowed: u64) -> Result<Outcome<Value>> {
        let bytes = op.input_bytes();
        let deadline = Some(Deadline::new(case.until, &self.timers));
        let wishes = Verifier::wishes(case, allowed);
        let Dispatch { receiver, lane, unsent } = self.router.send(op, wishes, Instant::now(), true)?;
        Pending::sent(receiver, lane, unsent, deadline, bytes, None, Ok).with_report().wait()
    }

    /// The first answer, copied to the host.
    fn on_host(&self, case: &Case) -> Result<Value> {
        let is_away = |part: PartRef<'_>| part.object().is_none() && part.location() != Location::Host;
        if !case.value.parts().any(is_away) {
            return Ok(case.value.clone());
        }
        let own = 1_u64 << case.lane.number;
        case.value.clone().try_map(|tensor| match tensor.location() {
            Location::Host => Ok(tensor),
            Location::Device(_) => self.send(Transfer::to_host(&tensor).into_op()?, case, own)?.output.into_tensor(),
        })
    }

    /// The slots of lanes whose circuit is closed.
    fn sound(&self) -> u64 {
        self.slots(|lane| lane.gate.breaker.circuit() == Circuit::Closed)
    }

    /// The slots of living lanes for which `is_so` is true.
    fn slots(&self, is_so: impl Fn(&Lane) -> bool) -> u64 {
        let lanes = self.router.lanes.iter().filter(|candidate| candidate.is_alive() && is_so(&candidate.lane));
        lanes.fold(0, |mask, candidate| mask | (1 << candidate.lane.number))
    }

    /// The slots of lanes that reach the same hardware as this one.
    fn hardware(&self, lane: &Lane) -> u64 {
        // A worker of a pool reaches what its device's own worker reaches.
        let one = self.router.lanes.serving(lane.info.id).or_else(|| self.router.lanes.made(lane.id));
        let siblings = one.map(|one| one.same_hardware.load(Ordering::Relaxed));
        siblings.unwrap_or(0) | (1 << lane.number)
    }

    fn is_processor(&self, device: DeviceId) -> bool {
        self.router.lanes.serving(device).is_some_and(|candidate| candidate.lane.info.is_processor())
    }
}

impl Case {
    fn of(job: &mut PendingVerification) -> Option<Case> {
        let (value, lane, until) = (job.value.clone(), Arc::clone(&job.lane), job.until);
        let task = job.ticket.question_mut()?;
        Some(Case { op: task.op.clone()?, value, wishes: task.wishes, lane, until })
    }
}

/// The time that an op takes by a backend's guess. A guess that is not finite counts as zero.
fn guessed_ns(guess: FirstGuess, work_log2: f32) -> f32 {
    let guessed = guess.overhead_ns + work_log2.exp2() * guess.work_unit_ns;
    if guessed.is_finite() { guessed.max(0.0) } else { 0.0 }
}

fn skip(job: PendingVerification, reason: &str) -> AnswerFollowUp {
    job.confirm(Verification::Skipped { reason: reason.to_owned() })
}
