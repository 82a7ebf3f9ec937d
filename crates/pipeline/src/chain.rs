//! A stage whose work is done elsewhere: ops on devices, requests to a program's workers.
//! Neighbouring op stages form one chain, so that the data between them stays where it is.
//!
//! 1. A chain has lanes. An item takes a lane, and a position in the ring behind the chain, and
//!    goes through every link of the chain. Several lanes are in flight at once, so uploads,
//!    kernels and downloads of different items overlap.
//! 2. The item that a lane took is kept until the lane's last link is done. If a device fails and
//!    its data is lost, the lane is restarted from that item, and the router sends it to another
//!    device. So no item is lost, and since only a finished lane fills its position, no item comes
//!    twice. A link that may not run twice is not restarted.
//! 3. The waker of an outcome sets its lane's bit and rings. One thread at a time goes through the
//!    bits. A thread that finds another inside leaves the bits to the thread inside, which looks at
//!    the count of changes before it sleeps.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use panoply_core::ErrorKind;
use panoply_runtime::WorkerError;
use panoply_runtime::time::{later, nanoseconds, sooner};

use super::control::{Control, Failure, Signals, Verdict, lock};
use super::error::Cause;
use super::link::{End, Head, Link, Order, Receipt};
use super::meter::{Idle, Meter, StageCounters};
use super::options::{LANES_MAX, StageOptions};
use super::report::StageReport;
use super::stage::{LONG, Stage, StageDemand, StepOutcome, summary};

/// How often an item is restarted because a device failed, beyond what its stage's policy allows.
const REPLACEMENTS_MAX: u32 = 12;
/// The wait before the first restart. It doubles each time, because reopening a device takes a
/// while: 1.5 s in all.
const REPLACE_WAIT_MIN: Duration = Duration::from_micros(500);
const REPLACE_WAIT_MAX: Duration = Duration::from_millis(500);
/// The wait before a worker whose queue was full is asked again.
const BUSY_WAIT: Duration = Duration::from_micros(200);

pub(crate) struct Chain {
    /// The stages of the chain. The first stage's name stands for the chain.
    stages: Vec<Segment>,
    head: Arc<dyn Head>,
    end: Arc<dyn End>,
    lanes_max: usize,
    core: Mutex<Core>,
    ready: Arc<Ready>,
    active: AtomicUsize,
    /// When the first lane must be looked at. The lock is held only for a moment.
    due: Mutex<Option<Instant>>,
    done: AtomicBool,
}

/// One link as a program sees it: a stage.
struct Segment {
    index: usize,
    is_request: bool,
    options: StageOptions,
    counts: StageCounters,
    meter: Mutex<Meter>,
}

struct Core {
    links: Vec<Box<dyn Link>>,
    lanes: Vec<Lane>,
    free: Vec<usize>,
    wakers: Vec<Waker>,
}

/// One item on its way through the chain.
#[derive(Clone, Copy)]
struct Lane {
    state: State,
    /// The item's number, and its position in the ring behind the chain.
    item: u64,
    place: u64,
    born: Instant,
    /// Attempts of the link that the item is in.
    attempts: u32,
    replacements: u32,
    since: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// In this link.
    In(usize),
    /// Waits to be restarted in this link, until this time.
    Rests(usize, Instant),
}

/// A bit for each lane whose outcome may have arrived.
struct Ready {
    lanes: AtomicU64,
    signals: Arc<Signals>,
}

struct LaneWaker {
    lane: usize,
    ready: Arc<Ready>,
}

impl Wake for LaneWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.ready.lanes.fetch_or(1 << self.lane, Ordering::SeqCst);
        self.ready.signals.bell.ring();
    }
}

/// The parts of a chain.
pub(crate) struct ChainParts {
    pub(crate) head: Arc<dyn Head>,
    /// The links with their stages' indices and choices.
    pub(crate) links: Vec<(usize, StageOptions, Box<dyn Link>)>,
}

impl ChainParts {
    /// How many items may be in flight at once.
    pub(crate) fn lanes(&self) -> usize {
        self.links.iter().map(|(_, options, _)| options.in_flight).sum::<usize>().clamp(1, LANES_MAX)
    }
}

impl Chain {
    pub(crate) fn new(parts: ChainParts, end: Arc<dyn End>, signals: &Arc<Signals>, now: Instant) -> Chain {
        let lanes_max = parts.lanes();
        let ready = Arc::new(Ready { lanes: AtomicU64::new(0), signals: Arc::clone(signals) });
        let free = Lane { state: State::Free, item: 0, place: 0, born: now, attempts: 0, replacements: 0, since: now };
        let (mut stages, mut links) = (Vec::new(), Vec::new());
        for (index, options, mut link) in parts.links {
            link.prepare(lanes_max);
            let (is_request, counts, meter) =
                (link.is_request(), StageCounters::default(), Mutex::new(Meter::new(now)));
            stages.push(Segment { index, is_request, options, counts, meter });
            links.push(link);
        }
        parts.head.prepare(lanes_max);
        let wakers = (0..lanes_max).map(|lane| Waker::from(Arc::new(LaneWaker { lane, ready: Arc::clone(&ready) })));
        let core = Core {
            links,
            lanes: vec![free; lanes_max],
            free: (0..lanes_max).rev().collect(),
            wakers: wakers.collect(),
        };
        let (active, done) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (core, due) = (Mutex::new(core), Mutex::new(None));
        Chain { stages, head: parts.head, end, lanes_max, core, ready, active, due, done }
    }

    /// Starts the link that the lane is in, and the following links as long as each is done at
    /// once.
    fn start(&self, core: &mut Core, lane: usize, control: &Control) {
        while let State::In(at) = core.lanes[lane].state {
            let now = control.now();
            let record = &mut core.lanes[lane];
            record.attempts = record.attempts.saturating_add(1);
            record.since = now;
            lock(&self.stages[at].meter).begin(now);
            let late = control.lateness(record.born);
            let order = Order { lane, deadline: control.deadline_of(record.born) };
            let started = late.map_or_else(|| core.links[at].start(&order), Err);
            match started {
                Ok(()) if self.poll(core, lane, control) => {}
                Ok(()) => return,
                Err(cause) => return self.fail(core, lane, at, cause, control),
            }
        }
    }

    /// Polls the lane's link. Returns true if the lane has moved to its next link, which must now
    /// be started.
    fn poll(&self, core: &mut Core, lane: usize, control: &Control) -> bool {
        let State::In(at) = core.lanes[lane].state else { return false };
        let polled = core.links[at].poll(lane, &mut Context::from_waker(&core.wakers[lane]));
        let receipt = match polled {
            Poll::Pending => return false,
            Poll::Ready(Ok(receipt)) => receipt,
            Poll::Ready(Err(cause)) => {
                self.fail(core, lane, at, cause, control);
                return false;
            }
        };
        let (now, stage) = (control.now(), &self.stages[at]);
        let record = &mut core.lanes[lane];
        if let Some(tracer) = &control.tracer {
            match &receipt {
                Receipt::Op(report) => tracer.op(stage.index, record.item, (record.since, now), report),
                Receipt::Task(report) => tracer.task(stage.index, record.item, (record.since, now), report),
                Receipt::None => tracer.stage(stage.index, record.item, record.since, now),
            }
        }
        lock(&stage.meter).end(now);
        StageCounters::add(&stage.counts.taken, 1);
        StageCounters::add(&stage.counts.given, 1);
        record.attempts = 0;
        if at + 1 == core.links.len() {
            self.finish(core, lane, true);
            return false;
        }
        record.state = State::In(at + 1);
        true
    }

    /// Handles a failed link: the item is tried again, is restarted elsewhere, or is given up.
    fn fail(&self, core: &mut Core, lane: usize, at: usize, cause: Cause, control: &Control) {
        let (now, stage) = (control.now(), &self.stages[at]);
        lock(&stage.meter).end(now);
        let may_repeat = core.links[at].may_repeat(lane);
        let so_far = core.links[..at].iter().all(|link| link.may_repeat(lane));
        let record = &mut core.lanes[lane];
        if matches!(cause, Cause::Worker(WorkerError::Busy { .. })) && !control.is_stopped() {
            // The worker was not even asked, so this is no attempt.
            record.attempts = record.attempts.saturating_sub(1);
            record.state = State::Rests(at, later(now, BUSY_WAIT));
            return;
        }
        let lost = matches!(&cause, Cause::Op(error) if error.kind() == ErrorKind::Device
            || matches!(error, panoply_core::Error::OutOfMemory { .. }));
        if lost && may_repeat && so_far && record.replacements < REPLACEMENTS_MAX && !control.is_stopped() {
            // The outputs of earlier links may have been lost with the device, so everything is
            // restarted from the item on the host.
            let wait = REPLACE_WAIT_MIN.saturating_mul(1 << record.replacements).min(REPLACE_WAIT_MAX);
            record.replacements += 1;
            record.attempts = 0;
            record.state = State::Rests(0, later(now, wait));
            core.links.iter_mut().for_each(|link| link.clear(lane));
            return StageCounters::add(&stage.counts.replaced, 1);
        }
        match control.judge(&stage.options.policy, record.attempts, &cause, may_repeat) {
            Verdict::Again(wait) => {
                StageCounters::add(&stage.counts.retried, 1);
                record.state = State::Rests(at, later(now, wait));
            }
            Verdict::Over(finally) => {
                StageCounters::add(&stage.counts.taken, 1);
                let failure = Failure { stage: &stage.options.name, item: record.item, attempts: record.attempts };
                self.head.give_up(lane, failure, cause, finally, control, &stage.counts);
                self.finish(core, lane, false);
            }
        }
    }

    /// Ends the lane's item: fills its position, with a value or without, and frees the lane.
    fn finish(&self, core: &mut Core, lane: usize, with_value: bool) {
        let Lane { item, born, place, .. } = core.lanes[lane];
        self.end.fill(lane, place, item, born, with_value);
        self.head.clear(lane);
        core.links.iter_mut().for_each(|link| link.clear(lane));
        core.lanes[lane].state = State::Free;
        core.free.push(lane);
        self.active.fetch_sub(1, Ordering::AcqRel);
    }

    /// Takes as many items as there are lanes and room.
    fn take(&self, core: &mut Core, control: &Control) -> bool {
        let mut moved = false;
        while self.end.room() > 0 && !control.is_stopped() {
            let Some(lane) = core.free.pop() else { break };
            let Some((item, born, has_value)) = self.head.take(lane) else {
                core.free.push(lane);
                break;
            };
            let place = self.end.reserve();
            self.active.fetch_add(1, Ordering::AcqRel);
            let (state, since) = (State::In(0), control.now());
            core.lanes[lane] = Lane { state, item, place, born, attempts: 0, replacements: 0, since };
            moved = true;
            if has_value { self.start(core, lane, control) } else { self.finish(core, lane, false) }
        }
        moved
    }

    /// Restarts lanes whose wait is over, and gives up requests whose time limit has passed.
    fn wake_due(&self, core: &mut Core, control: &Control) -> bool {
        let mut moved = false;
        for lane in 0..core.lanes.len() {
            let Some((due, after)) = self.due(&core.lanes[lane], control) else { continue };
            let stopped = control.is_stopped();
            match core.lanes[lane].state {
                State::Rests(at, _) if stopped || control.now() >= due => {
                    core.lanes[lane].state = State::In(at);
                    self.start(core, lane, control);
                    moved = true;
                }
                State::In(at) if control.now() >= due => {
                    core.links[at].clear(lane);
                    self.fail(core, lane, at, Cause::Unanswered { after }, control);
                    moved = true;
                }
                _ => {}
            }
        }
        moved
    }

    /// When a lane must be handled even if nothing else happens, and how long it has waited by
    /// then.
    fn due(&self, lane: &Lane, control: &Control) -> Option<(Instant, Duration)> {
        match lane.state {
            State::Free => None,
            State::Rests(_, until) => Some((until, Duration::ZERO)),
            // Ops carry their deadline with them.
            State::In(at) if !self.stages[at].is_request => None,
            State::In(at) => {
                let own = self.stages[at].options.time_max.map(|time| later(lane.since, time));
                let due = sooner(own, control.item_deadline_of(lane.born))?;
                Some((due, due.saturating_duration_since(lane.since)))
            }
        }
    }

    /// Notes when the first lane must be looked at. The calling thread may go on into a program's
    /// code, so another thread must know this time.
    fn note_due(&self, core: &Core, control: &Control) {
        let first = core.lanes.iter().filter_map(|lane| self.due(lane, control)).map(|(due, _)| due).min();
        let before = std::mem::replace(&mut *lock(&self.due), first);
        if first.is_some_and(|first| before.is_none_or(|before| first < before)) {
            control.signals.bell.ring_for_time();
        }
    }

    /// Notes in the links' meters why they are idle.
    fn note_idle(&self, control: &Control) {
        let idle = if control.signals.is_paused() {
            Idle::Held
        } else if self.end.room() == 0 {
            Idle::Blocked
        } else {
            Idle::Starved
        };
        for stage in &self.stages {
            let mut meter = lock(&stage.meter);
            if meter.differs(idle) {
                meter.idle(idle, control.now());
            }
        }
    }
}

impl Chain {
    /// Whether there is something to do. This check takes no lock.
    fn wants(&self, control: &Control) -> bool {
        if self.done.load(Ordering::Acquire) {
            return false;
        }
        let active = self.active.load(Ordering::Acquire);
        let takes = self.head.ready() > 0 && self.end.room() > 0 && active < self.lanes_max;
        let ends = active == 0 && self.head.is_finished();
        let news = self.ready.lanes.load(Ordering::SeqCst) != 0;
        news || (!control.signals.is_paused() && takes) || ends
    }
}

impl Stage for Chain {
    fn step(&self, control: &Control) -> StepOutcome {
        if self.done.load(Ordering::Acquire) {
            return StepOutcome::Done;
        }
        let Ok(mut core) = self.core.try_lock() else { return StepOutcome::Nothing };
        let mut ready = self.ready.lanes.swap(0, Ordering::SeqCst);
        let mut moved = ready != 0;
        while ready != 0 {
            let lane = ready.trailing_zeros() as usize;
            ready &= ready - 1;
            if self.poll(&mut core, lane, control) {
                self.start(&mut core, lane, control);
            }
        }
        moved |= self.wake_due(&mut core, control);
        if !control.signals.is_paused() {
            moved |= self.take(&mut core, control);
        }
        self.note_idle(control);
        self.note_due(&core, control);
        if self.active.load(Ordering::Acquire) == 0 && self.head.is_finished() {
            self.end.end();
            self.done.store(true, Ordering::Release);
            return StepOutcome::Done;
        }
        drop(core);
        // Threads that came while this thread was inside rely on it.
        if moved || self.wants(control) { StepOutcome::Moved } else { StepOutcome::Nothing }
    }

    fn wanted(&self, control: &Control) -> StageDemand {
        // An op in flight keeps a device busy, so beginning and ending ops is worth a thread.
        if self.wants(control) { StageDemand { threads: 1, time_ns: nanoseconds(LONG) } } else { StageDemand::NOTHING }
    }

    fn is_slow(&self, _control: &Control) -> bool {
        false
    }

    fn is_heavy(&self) -> bool {
        false
    }

    fn threads_max(&self) -> usize {
        0
    }

    fn alarm(&self, _control: &Control, _now: Instant) -> Option<Instant> {
        *lock(&self.due)
    }

    fn abandon(&self) {
        let Ok(mut core) = self.core.try_lock() else { return };
        for lane in 0..core.lanes.len() {
            if core.lanes[lane].state != State::Free {
                core.links.iter_mut().for_each(|link| link.clear(lane));
                self.head.clear(lane);
                core.lanes[lane].state = State::Free;
                StageCounters::add(&self.stages[0].counts.dropped, 1);
            }
        }
        self.active.store(0, Ordering::Release);
        StageCounters::add(&self.stages[0].counts.dropped, self.head.abandon());
    }

    fn holds(&self) -> u64 {
        (self.head.used() + self.active.load(Ordering::Acquire)) as u64
    }

    fn report(&self, now: Instant, reports: &mut Vec<StageReport>) {
        let times: Vec<_> = self.stages.iter().map(|stage| lock(&stage.meter).read(now)).collect();
        let all = times.iter().map(|times| times.work).sum();
        let most = times.iter().map(|times| times.work).max().unwrap_or_default();
        for (position, (stage, times)) in self.stages.iter().zip(times).enumerate() {
            let mut report = summary(&stage.options.name, &stage.counts, times, stage.options.in_flight);
            report.chain = Some((self.lanes_max, all, most));
            if position == 0 {
                self.head.queue(&mut report);
            }
            reports.push(report);
        }
    }

    fn name(&self) -> &str {
        self.stages.first().map_or("chain", |stage| &stage.options.name)
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::{RingEnd, RingHead, slots};
    use super::super::options::{ErrorPolicy, RunChoices};
    use super::*;
    use panoply_core::clock::{Clock, VirtualClock};
    use panoply_core::{Api, DeviceId, Error};
    use panoply_lockfree::ring::{Item, Ring};

    /// A link that fails `failures` times with a lost device, and counts how often it was started.
    struct Fails {
        starts: Arc<AtomicUsize>,
        failures: usize,
        repeatable: bool,
        slots: [super::super::link::Slots<u32>; 2],
    }

    impl Link for Fails {
        fn prepare(&mut self, lanes: usize) {
            lock(&self.slots[1]).resize(lanes, None);
        }

        fn deliver(&mut self) {}

        fn start(&mut self, order: &Order) -> Result<(), Cause> {
            let value = lock(&self.slots[0])[order.lane];
            lock(&self.slots[1])[order.lane] = value;
            self.starts.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }

        fn poll(&mut self, _lane: usize, _context: &mut Context<'_>) -> Poll<Result<Receipt, Cause>> {
            if self.failures == 0 {
                return Poll::Ready(Ok(Receipt::None));
            }
            self.failures -= 1;
            let device = DeviceId { api: Api::SIMULATED, index: 0 };
            Poll::Ready(Err(Cause::Op(Error::DeviceLost { device, reason: "gone".to_owned() })))
        }

        fn may_repeat(&self, _lane: usize) -> bool {
            self.repeatable
        }

        fn clear(&mut self, lane: usize) {
            lock(&self.slots[1])[lane] = None;
        }
    }

    /// Runs two links, of which the second fails `failures` times. Returns how often each was
    /// started, and whether the item came through.
    fn run(failures: usize, repeatable: [bool; 2]) -> ([usize; 2], bool) {
        let clock = Arc::new(VirtualClock::new());
        let (signals, rings) = (Arc::new(Signals::default()), [Ring::new(4), Ring::new(4)].map(Arc::new));
        let control = Control::new(Arc::clone(&signals), Arc::clone(&clock) as Arc<dyn Clock>, RunChoices::default());
        assert!(rings[0].push(Item { number: 0, born: clock.now(), value: Some(7) }).is_ok());
        rings[0].end();
        let (between, starts) = ([slots(), slots(), slots()], [Arc::default(), Arc::default()]);
        let link = |index: usize| {
            let slots = [Arc::clone(&between[index]), Arc::clone(&between[index + 1])];
            let (starts, failures) = (Arc::clone(&starts[index]), if index == 1 { failures } else { 0 });
            let options = StageOptions { policy: ErrorPolicy::skip(), ..StageOptions::named("link") };
            let link: Box<dyn Link> = Box::new(Fails { starts, failures, repeatable: repeatable[index], slots });
            (index, options, link)
        };
        let head = Arc::new(RingHead { ring: Arc::clone(&rings[0]), slots: Arc::clone(&between[0]) });
        let end = Arc::new(RingEnd { ring: Arc::clone(&rings[1]), slots: Arc::clone(&between[2]), ordered: true });
        let parts = ChainParts { head, links: vec![link(0), link(1)] };
        let chain = Chain::new(parts, end, &signals, clock.now());
        while chain.step(&control) != StepOutcome::Done {
            clock.advance(Duration::from_millis(1));
        }
        let came = rings[1].pop().is_some_and(|item| item.value == Some(7));
        assert!(rings[1].pop().is_none(), "once");
        (starts.map(|starts: Arc<AtomicUsize>| starts.load(Ordering::SeqCst)), came)
    }

    #[test]
    fn a_lost_device_begins_an_item_again_from_the_host() {
        assert_eq!(run(0, [true, true]), ([1, 1], true));
        assert_eq!(run(3, [true, true]), ([4, 4], true));
        let most = 1 + REPLACEMENTS_MAX as usize;
        assert_eq!(run(100, [true, true]), ([most, most], false), "not for ever");
    }

    #[test]
    fn what_may_not_run_twice_does_not() {
        assert_eq!(run(1, [true, false]), ([1, 1], false));
        assert_eq!(run(1, [false, true]), ([1, 1], false));
    }
}
