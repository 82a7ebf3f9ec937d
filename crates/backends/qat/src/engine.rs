//! One opened device. Requests are distributed over its instances, as many as they accept, and
//! their answers are polled.
//!
//! Ops are returned in the order of their submission, but their requests do not wait for each
//! other. Sessions are shared by ops with the same key (see `sessions`). A device that restarts,
//! stops answering or breaks its contract is lost: every op fails with that error, and the worker
//! opens the device again.

use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use panoply_core::pool::Pool;
use panoply_core::{DeviceInfo, Engine, Error, FinishedOp, Health, Item, MemoryStats, Result};

use crate::instance::{Does, Mode, OpenInstance, Session, Setup};
use crate::library::QatError;
use crate::memory::DeviceMemory;
use crate::ops::{self, AnswerError, Continuation, MessageWork};
use crate::request::{Completion, Completions, Request, RequestAnswer, RequestParameters};
use crate::sessions::{SessionKind, Sessions};
use crate::zip::{ZipMessage, Zipper};

/// Maximum number of requests in flight. An instance accepts some hundreds.
const IN_FLIGHT_MAX: usize = 8192;
/// Maximum device memory of the requests in flight, unless a single request needs more.
const IN_FLIGHT_BYTES_MAX: usize = 256 << 20;
/// Maximum size of unused memory in the pool.
const CACHED_BYTES_MAX: usize = 64 << 20;
/// How long a dropped engine waits for its requests in flight.
const DRAIN_MAX: Duration = Duration::from_millis(100);
/// Interval between polls for device events.
const EVENTS_EVERY: Duration = Duration::from_millis(10);
/// How long to poll for answers without sleeping, and the sleep between polls after that.
const SPIN_MAX: Duration = Duration::from_micros(50);
const SLEEP: Duration = Duration::from_micros(20);

/// An op on the device.
struct RunningOp {
    item: Item,
    work: Option<Box<dyn MessageWork>>,
    /// The sessions that its requests use.
    sessions: Vec<(SessionKind, Rc<Session>)>,
    /// The next message to start, and messages to start again.
    next: usize,
    again: Vec<usize>,
    in_flight: usize,
    done: usize,
    /// The error of the first failed message, with the message's index.
    failure: Option<(usize, Error)>,
    bytes_moved: u64,
    began: Instant,
}

impl RunningOp {
    fn count(&self) -> usize {
        self.work.as_ref().map_or(0, |work| work.count())
    }

    fn is_over(&self) -> bool {
        self.in_flight == 0 && (self.failure.is_some() || self.done == self.count())
    }

    fn fail(&mut self, index: usize, error: Error) {
        if self.failure.as_ref().is_none_or(|(first, _)| index < *first) {
            self.failure = Some((index, error));
        }
    }

    /// The message to start next.
    fn next_message(&self) -> Option<usize> {
        let fresh = || (self.next < self.count()).then_some(self.next);
        self.again.last().copied().or_else(fresh).filter(|_| self.failure.is_none())
    }

    /// Records that the message was started, or needed no device.
    fn advance(&mut self) {
        if self.again.pop().is_none() {
            self.next += 1;
        }
    }

    fn finished(mut self) -> FinishedOp {
        let result = match (self.failure.take(), &mut self.work) {
            (Some((_, error)), _) => Err(error),
            (None, Some(work)) => work.value(),
            (None, None) => Err(Error::invalid("the engine's work", "some", "none")),
        };
        let (bytes_moved, device_time) = (self.bytes_moved, Some(self.began.elapsed()));
        FinishedOp { bytes_moved, device_time, ..FinishedOp::alone(self.item, result) }
    }
}

/// A message in flight.
enum MessageInFlight {
    /// As a request on an instance.
    Request(Request),
    /// As a message in QATzip.
    Zipped(ZipMessage),
}

impl MessageInFlight {
    /// The number of the op and the index of the message.
    fn place(&self) -> (u64, usize) {
        match self {
            MessageInFlight::Request(request) => (request.job, request.index),
            MessageInFlight::Zipped(zipped) => (zipped.job, zipped.index),
        }
    }

    fn answer(&self, completion: Completion) -> Result<RequestAnswer<'_>, QatError> {
        match self {
            MessageInFlight::Request(request) => Ok(request.answer(completion)),
            MessageInFlight::Zipped(zipped) => zipped.answer(),
        }
    }

    fn finish(self) {
        if let MessageInFlight::Request(request) = self {
            request.finish();
        }
    }

    fn wipe(&mut self) {
        if let MessageInFlight::Request(request) = self {
            request.wipe();
        }
    }

    fn abandon(self) {
        if let MessageInFlight::Request(request) = self {
            request.abandon();
        }
    }
}

/// The result of trying to start a message.
enum StartOutcome {
    /// The message was started, or needed no device.
    Taken,
    /// The device accepts no more requests now.
    Full,
    /// The op has no more messages to start.
    Exhausted,
}

/// The engine of one device.
pub(crate) struct QatEngine {
    info: DeviceInfo,
    does: Does,
    jobs: VecDeque<RunningOp>,
    /// The number of the first op in `jobs`.
    first: u64,
    slots: Vec<Option<(MessageInFlight, usize)>>,
    free: Vec<usize>,
    in_flight_bytes: usize,
    completions: Arc<Completions>,
    pool: Pool<DeviceMemory>,
    sessions: Sessions,
    /// Sessions of abandoned ops whose requests are still in flight.
    orphans: Vec<Rc<Session>>,
    instances: Vec<Rc<OpenInstance>>,
    zipper: Option<Zipper>,
    turn: usize,
    lost: Option<QatError>,
    silence_max: Duration,
    /// Whether the ring accepts nothing although no request is in flight.
    held_up: bool,
    heard: Instant,
    looked: Instant,
}

impl QatEngine {
    pub(crate) fn new(
        info: DeviceInfo,
        instances: Vec<OpenInstance>,
        zipper: Option<Zipper>,
        silence_max: Duration,
    ) -> Result<QatEngine> {
        let Some(first) = instances.first() else {
            let reason = "it has no instance".to_owned();
            return Err(Error::DeviceUnavailable { device: info.id, reason });
        };
        let node = info.numa_node.map_or(first.node, |node| node as i32);
        let pool = Pool::new(DeviceMemory { started: first.started.clone(), node }, CACHED_BYTES_MAX);
        let mut does = instances.iter().fold(Does::default(), |all, instance| all.or(instance.does));
        does.zip = zipper.is_some();
        let now = Instant::now();
        Ok(QatEngine {
            info,
            does,
            jobs: VecDeque::new(),
            first: 0,
            slots: Vec::new(),
            free: Vec::new(),
            in_flight_bytes: 0,
            completions: Arc::default(),
            pool,
            sessions: Sessions::default(),
            orphans: Vec::new(),
            instances: instances.into_iter().map(Rc::new).collect(),
            zipper,
            turn: 0,
            lost: None,
            silence_max,
            held_up: false,
            heard: now,
            looked: now,
        })
    }

    fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts as many messages as the device accepts, those of the oldest ops first.
    fn start(&mut self) {
        let mut position = 0;
        while position < self.jobs.len() && self.lost.is_none() {
            match self.start_next(position) {
                Ok(StartOutcome::Taken) => {}
                Ok(StartOutcome::Exhausted) => position += 1,
                Ok(StartOutcome::Full) => return,
                Err((index, trouble)) => self.note(position, index, trouble),
            }
        }
    }

    fn start_next(&mut self, position: usize) -> Result<StartOutcome, (usize, AnswerError)> {
        let Some(index) = self.jobs[position].next_message() else { return Ok(StartOutcome::Exhausted) };
        let (under_way, count) = (self.in_flight(), self.instances.len());
        let was_held_up = std::mem::take(&mut self.held_up);
        if under_way >= IN_FLIGHT_MAX || (under_way > 0 && self.in_flight_bytes >= IN_FLIGHT_BYTES_MAX) {
            return Ok(StartOutcome::Full);
        }
        let mut passing = None;
        // QATzip is tried after the instances.
        for turn in 0..=count {
            let place = (self.turn + turn) % count;
            let tried =
                if turn < count { self.try_start(position, index, place) } else { self.try_zip(position, index) };
            match tried {
                Ok(false) => {}
                Ok(true) => {
                    self.jobs[position].advance();
                    self.turn = (place + 1) % count;
                    return Ok(StartOutcome::Taken);
                }
                Err(AnswerError::Device(error)) if error.is_passing() => passing = Some(error),
                Err(trouble) => return Err((index, trouble)),
            }
        }
        match passing {
            // No request is in flight that could free memory.
            Some(QatError::Memory { bytes }) if under_way == 0 => {
                let (place, asked) = ("memory that the QAT device reaches".to_owned(), bytes as u64);
                Err((index, AnswerError::Op(Error::OutOfMemory { place, asked, free: 0, largest: 0 })))
            }
            Some(_) => {
                self.held_up = under_way == 0;
                if self.held_up && !was_held_up {
                    self.heard = Instant::now();
                }
                Ok(StartOutcome::Full)
            }
            None => {
                let what = "no instance of the device does it".to_owned();
                Err((index, AnswerError::Op(Error::DeviceFault { device: self.info.id, reason: what })))
            }
        }
    }

    /// Starts a message on an instance. Returns false if the instance does not support it.
    fn try_start(&mut self, position: usize, index: usize, place: usize) -> Result<bool, AnswerError> {
        let (job, instance) = (&mut self.jobs[position], &self.instances[place]);
        let Some(work) = &job.work else { return Ok(false) };
        let Some(ask) = work.ask(index)? else {
            job.done += 1;
            return Ok(true);
        };
        if !serves(&instance.does, &ask) {
            return Ok(false);
        }
        let aad_len = if let RequestParameters::Symmetric(it) = &ask { it.aad.len() } else { 0 };
        let kind = SessionKind::new(place, aad_len, &work.setup(), work.key());
        let known = job.sessions.iter().find(|(known, _)| Some(*known) == kind).map(|(_, session)| session.place());
        let session = match (known, kind) {
            (Some(known), _) => known,
            (None, None) => std::ptr::null_mut(),
            (None, Some(kind)) => {
                let begun = self.sessions.get(kind, instance, work.setup(), work.key()).map_err(AnswerError::Device)?;
                let context = begun.as_ref().map_or(std::ptr::null_mut(), |session| session.place());
                job.sessions.extend(begun.map(|session| (kind, session)));
                context
            }
        };
        let bytes = Request::memory_bytes(&ask, instance);
        let memory = self.pool.lend(bytes).map_err(|_| AnswerError::Device(QatError::Memory { bytes }))?;
        let slot = self.free.pop().unwrap_or(self.slots.len());
        let number = self.first + position as u64;
        let to = (slot, &self.completions);
        let started = Request::start(&ask, instance, session, memory, to, (number, index));
        self.started(position, slot, bytes, started.map(MessageInFlight::Request))
    }

    /// Passes a message to QATzip. Returns false if QATzip does not support it or is not available.
    fn try_zip(&mut self, position: usize, index: usize) -> Result<bool, AnswerError> {
        let (Some(work), Some(zipper)) = (&self.jobs[position].work, &self.zipper) else { return Ok(false) };
        let (Some(RequestParameters::Pack { message, compresses: true, room }), Setup::Pack { level, checksum, .. }) =
            (work.ask(index)?, work.setup())
        else {
            return Ok(false);
        };
        let slot = self.free.pop().unwrap_or(self.slots.len());
        let (number, bytes) = (self.first + position as u64, message.len() + room);
        let to = (slot, &self.completions);
        let started = zipper.start((message, room), (level, checksum), to, (number, index));
        self.started(position, slot, bytes, started.map(MessageInFlight::Zipped))
    }

    /// Records whether a message was started in this slot.
    fn started(
        &mut self,
        position: usize,
        slot: usize,
        bytes: usize,
        started: Result<MessageInFlight, QatError>,
    ) -> Result<bool, AnswerError> {
        if slot == self.slots.len() {
            self.slots.push(None);
        }
        match started {
            Ok(under_way) => {
                if self.slots.len() - self.free.len() == 1 {
                    self.heard = Instant::now();
                }
                let job = &mut self.jobs[position];
                (job.in_flight, job.bytes_moved) = (job.in_flight + 1, job.bytes_moved + bytes as u64);
                self.in_flight_bytes += bytes;
                self.slots[slot] = Some((under_way, bytes));
                Ok(true)
            }
            Err(error) => {
                self.free.push(slot);
                Err(AnswerError::Device(error))
            }
        }
    }

    /// Collects the available answers.
    fn collect(&mut self) {
        if self.in_flight() > 0 || self.held_up {
            for instance in &self.instances {
                if let Err(error) = instance.poll() {
                    self.lost.get_or_insert(error);
                }
            }
        }
        for completion in self.completions.take() {
            self.heard = Instant::now();
            self.answered(completion);
        }
    }

    fn answered(&mut self, completion: Completion) {
        let Some((under_way, bytes)) = self.slots.get_mut(completion.slot).and_then(Option::take) else {
            let what = "the device answered a request that is not under way".to_owned();
            self.lost.get_or_insert(QatError::Broken { what });
            return;
        };
        self.free.push(completion.slot);
        self.in_flight_bytes -= bytes;
        let (number, index) = under_way.place();
        let position = number.checked_sub(self.first).map(|position| position as usize);
        let position = position.filter(|position| *position < self.jobs.len());
        if let Some(position) = position {
            let job = &mut self.jobs[position];
            job.in_flight -= 1;
            let taken = match &mut job.work {
                Some(work) => match under_way.answer(completion) {
                    Ok(answer) => work.take(index, &answer),
                    Err(error) => Err(AnswerError::Device(error)),
                },
                None => Ok(Continuation::Done),
            };
            match taken {
                Ok(Continuation::Done) => job.done += 1,
                Ok(Continuation::Again) => job.again.push(index),
                Err(trouble) => self.note(position, index, trouble),
            }
        }
        under_way.finish();
    }

    /// Records an error of a message.
    fn note(&mut self, position: usize, index: usize, trouble: AnswerError) {
        let error = match trouble {
            AnswerError::Op(error) => error,
            // The op fails together with all others.
            AnswerError::Device(error) if error.is_loss() => {
                self.lost.get_or_insert(error);
                return;
            }
            AnswerError::Device(error) => Error::DeviceFault { device: self.info.id, reason: error.to_string() },
        };
        self.jobs[position].fail(index, error);
    }

    /// Checks that the device has not been restarted or stopped answering.
    fn look(&mut self) {
        if self.looked.elapsed() >= EVENTS_EVERY {
            self.looked = Instant::now();
            if let Some(instance) = self.instances.first() {
                // SAFETY: the function takes no arguments. Its callbacks write to the news of the
                // instances.
                unsafe { (instance.started.qat.poll_events)() };
            }
        }
        let trouble = self.instances.iter().find_map(|instance| instance.trouble());
        let oldest = self.heard.elapsed();
        let is_silent = (self.in_flight() > 0 || self.held_up) && oldest > self.silence_max;
        let silent = || QatError::Broken { what: format!("the device has not answered for {:?}", self.silence_max) };
        if let Some(error) = trouble.or_else(|| is_silent.then(silent)) {
            self.lost.get_or_insert(error);
        }
    }

    /// Fails all ops with the loss of the device. Wipes the requests in flight, as far as the
    /// device has not read them.
    fn give_up(&mut self, finished: &mut Vec<FinishedOp>) {
        let Some(error) = &self.lost else { return };
        let (device, reason) = (self.info.id, error.to_string());
        self.slots.iter_mut().flatten().for_each(|(under_way, _)| under_way.wipe());
        let kept = self.sessions.take();
        self.first += self.jobs.len() as u64;
        for mut job in self.jobs.drain(..) {
            let orphans = job.sessions.drain(..).filter(|_| job.in_flight > 0).map(|(_, session)| session);
            self.orphans.extend(orphans);
            let error = Error::DeviceLost { device, reason: reason.clone() };
            finished.push(FinishedOp::alone(job.item, Err(error)));
        }
        // Sessions that no request uses end here.
        drop(kept);
    }

    /// Returns completed ops, in order.
    fn hand_out(&mut self, finished: &mut Vec<FinishedOp>) {
        while self.jobs.front().is_some_and(RunningOp::is_over)
            && let Some(job) = self.jobs.pop_front()
        {
            self.first += 1;
            finished.push(job.finished());
        }
        self.sessions.trim();
    }

    /// Number of messages that are in flight or waiting.
    fn queue_depth(&self) -> u32 {
        let waiting: usize = self.jobs.iter().map(|job| job.count().saturating_sub(job.done)).sum();
        u32::try_from(waiting).unwrap_or(u32::MAX)
    }
}

/// Whether an instance with these abilities accepts the request.
fn serves(does: &Does, ask: &RequestParameters<'_>) -> bool {
    match ask {
        RequestParameters::Symmetric(it) => match it.mode {
            Mode::Seal | Mode::Open => does.gcm,
            Mode::CbcEncrypt | Mode::CbcDecrypt => does.cbc,
            Mode::Ctr => does.ctr,
            Mode::Hash(hash) | Mode::Hmac(hash) => does.hash(hash),
        },
        RequestParameters::RsaPublic { .. } | RequestParameters::RsaPrivate { .. } => does.rsa,
        RequestParameters::EcdsaSign { .. } | RequestParameters::EcdsaVerify { .. } => does.ecdsa,
        RequestParameters::Pack { .. } => does.deflate,
    }
}

impl Engine for QatEngine {
    fn info(&self) -> &DeviceInfo {
        &self.info
    }

    fn submit(&mut self, batch: &mut Vec<Item>) {
        self.sessions.trim();
        for item in batch.drain(..) {
            let (work, failure) = match ops::work(&self.does, &item.op) {
                Ok(work) => (Some(work), None),
                Err(error) => (None, Some((0, error))),
            };
            let (sessions, again, began) = (Vec::new(), Vec::new(), Instant::now());
            let (next, in_flight, done, bytes_moved) = (0, 0, 0, 0);
            self.jobs.push_back(RunningOp {
                item,
                work,
                sessions,
                next,
                again,
                in_flight,
                done,
                failure,
                bytes_moved,
                began,
            });
        }
        self.start();
    }

    fn poll(&mut self, finished: &mut Vec<FinishedOp>, wait_max: Duration) -> usize {
        let (began, before) = (Instant::now(), finished.len());
        loop {
            self.collect();
            self.start();
            self.look();
            self.hand_out(finished);
            if self.lost.is_some() {
                self.give_up(finished);
            }
            let waited = began.elapsed();
            if finished.len() > before || self.jobs.is_empty() || waited >= wait_max {
                return self.jobs.len();
            }
            if waited < SPIN_MAX { std::hint::spin_loop() } else { std::thread::sleep(SLEEP.min(wait_max - waited)) }
        }
    }

    fn memory(&mut self) -> MemoryStats {
        self.pool.stats()
    }

    fn health(&mut self) -> Health {
        self.collect();
        self.look();
        self.sessions.look();
        let lost = |error: &QatError| Error::DeviceLost { device: self.info.id, reason: error.to_string() };
        Health { queue_depth: Some(self.queue_depth()), fault: self.lost.as_ref().map(lost), ..Health::default() }
    }
}

impl Drop for QatEngine {
    fn drop(&mut self) {
        let began = Instant::now();
        self.jobs.iter_mut().for_each(|job| job.fail(0, Error::Cancelled));
        while self.in_flight() > 0 && began.elapsed() < DRAIN_MAX {
            self.collect();
            std::thread::yield_now();
        }
        if self.in_flight() == 0 {
            return;
        }
        // The device may still write to its requests, and the library may still read the sessions:
        // both are leaked.
        self.slots.drain(..).flatten().for_each(|(under_way, _)| under_way.abandon());
        let sessions = self.jobs.drain(..).flat_map(|job| job.sessions.into_iter().map(|(_, session)| session));
        sessions.chain(self.orphans.drain(..)).for_each(std::mem::forget);
    }
}
