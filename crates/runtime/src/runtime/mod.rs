//! The program's entry point: finds devices, starts a worker for each, and accepts ops.
//!
//! ```
//! # use panoply_runtime::Runtime;
//! # use panoply_core::{Tensor, op::compute::Transpose};
//! # use std::sync::Arc;
//! let runtime = Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build()?;
//! let matrix = Tensor::from_vec(vec![1.0_f32, 2.0, 3.0, 4.0], [2, 2])?;
//! let turned = runtime.run(Transpose::new(&matrix)).wait()?;
//! assert_eq!(turned.as_slice::<f32>()?, [1.0, 3.0, 2.0, 4.0]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use panoply_core::op::compute::{ComputeOp, Transfer};
use panoply_core::{
    Absence, Alternative, Api, Backend, DeviceId, DeviceInfo, Error, Location, MemoryLimits, Op, OpenOptions,
    Operation, Result,
};

use crate::claims::{Claim, Share};
use panoply_placement::{DevicePlan, Interrupts};

use crate::device_worker::supervisor::{Shutdown, Supervisor};
use crate::errands::{Errand, Errands};
use crate::lane::{Inlet, LaneSetup, WorkerReport, WorkerState};
use crate::metrics::{Histogram, LaneMetrics};
use crate::options::{FallbackPolicy, Priority, RunOptions};
use crate::pending::{Deadline, Pending};
use crate::pending_many::PendingMany;
use crate::process::{self, Process};
use crate::relay::RelayThread;
use crate::router::dispatch::Dispatch;
use crate::router::profile::{Identity, Profile};
use crate::router::{Candidate, DegradedMode, Router, SystemCapacity};
use crate::task::{PendingTask, TaskError, TaskOutcome};
use crate::telemetry::{DeviceFigures, Snapshot};
use crate::threads::Owner;
use crate::timers::Timers;
use crate::verifier::VerifierThread;

mod builder;
mod discovery;
mod memory;
mod places;

pub use builder::{BuildError, Builder};
use discovery::Search;
pub use discovery::{DeviceChange, Rediscovery};
use places::WorkerPlaces;

/// How long a caller's waker may hold up the end of the relay before its thread is left behind.
const RELAY_GRACE: Duration = Duration::from_secs(2);
/// How long a backend may hold up the end of the verifier before its thread is left behind.
const VERIFIER_GRACE: Duration = Duration::from_secs(2);
/// How long a shutdown waits for the wakers and destructors of the ops that it has answered.
const ERRANDS_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long dropping a runtime waits for its ops before it gives them up.
const DROP_DRAIN_MAX: Duration = Duration::from_secs(30);
/// How often [`Runtime::examine`] checks whether the workers have looked at their devices.
const EXAMINED_EVERY: Duration = Duration::from_micros(200);

/// The result of ending a runtime of another process.
const FORKED: Shutdown = Shutdown { drained: false, threads_left: 0 };

/// The devices of this machine, each behind one worker. Share it by reference or in an `Arc`.
/// Dropping it drains it.
///
/// A fork of the process has none of its threads: there the runtime refuses ops with
/// [`Error::Forked`], and dropping it does nothing. A child process that needs devices must make a
/// runtime of its own.
pub struct Runtime {
    router: Arc<Router>,
    inlet: Arc<Inlet>,
    policy: FallbackPolicy,
    degraded: Arc<DegradedMode>,
    timers: Arc<Timers>,
    errands: Arc<Errands>,
    closing: AtomicBool,
    control: Mutex<Control>,
    /// Held by the thread that ends the runtime, until it has ended.
    ending: Mutex<()>,
    search: Search,
    /// Whether answers are compared at all.
    verifies: bool,
    /// Identifies the runtime's own threads.
    owner: Owner,
    /// The process that its threads run in.
    process: Process,
}

/// The state that changes when devices come and go, or when the runtime ends. Never locked on an
/// op's path, and never while foreign code is called: a waker or a backend may call back into the
/// runtime.
struct Control {
    supervisor: Option<Supervisor>,
    relay: Option<Arc<RelayThread>>,
    /// Compares answers, if any are compared.
    verifier: Option<VerifierThread>,
    backends: Vec<Arc<dyn Backend>>,
    reports: Vec<BackendReport>,
    setup: LaneSetup,
    open: OpenOptions,
    places: WorkerPlaces,
    /// Sizes of memory pools that differ from `open`.
    memory: Vec<(DeviceId, MemoryLimits)>,
}

/// The devices that one backend found.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendReport {
    /// The API.
    pub api: Api,
    /// Its devices, or why there are none.
    pub devices: Result<Vec<DeviceInfo>, Absence>,
}

impl Runtime {
    /// Starts building a runtime.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Runs an op on the device that suits it. The op is accepted at once if there is room.
    /// Otherwise it waits for room behind earlier ops, for as long as the result is wanted. A graph
    /// that no device runs whole is cut, and runs in parts on several devices; its report names
    /// each cut. The output stays in the memory of the device that ran the op, unless
    /// [`RunOptions::to_host`] brings it to the host.
    pub fn run<O: Operation>(&self, op: O) -> Pending<O::Output> {
        self.run_with(op, RunOptions::default())
    }

    /// Runs an op with the caller's options.
    pub fn run_with<O: Operation>(&self, op: O, options: RunOptions) -> Pending<O::Output> {
        match self.send(op, &options, true) {
            Ok(pending) => pending,
            Err(error) => Pending::refused(error, O::output),
        }
    }

    /// Runs an op if there is room for it now, otherwise returns [`Error::Busy`].
    pub fn try_run<O: Operation>(&self, op: O) -> Result<Pending<O::Output>> {
        self.try_run_with(op, RunOptions::default())
    }

    /// Runs an op with the caller's options, if there is room for it now.
    pub fn try_run_with<O: Operation>(&self, op: O, options: RunOptions) -> Result<Pending<O::Output>> {
        self.send(op, &options, false)
    }

    /// Runs a list of ops. Each is routed by itself and has its own outcome; ops that can run as
    /// one are joined on their device, because all of them are sent before any is waited for.
    ///
    /// ```
    /// # use panoply_runtime::Runtime;
    /// # use panoply_core::{Tensor, op::compute::Reduce};
    /// # use std::sync::Arc;
    /// # let runtime = Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build()?;
    /// let rows = [vec![1.0_f32, 2.0], vec![3.0, 4.0]].map(|row| Tensor::from_vec(row, [2]));
    /// let rows = rows.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// let sums = runtime.run_many(rows.iter().map(Reduce::sum)).wait();
    /// let sums = sums.into_iter().collect::<Result<Vec<_>, _>>()?;
    /// assert_eq!((sums[0].as_slice::<f32>()?, sums[1].as_slice::<f32>()?), (&[3.0][..], &[7.0][..]));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn run_many<O: Operation>(&self, ops: impl IntoIterator<Item = O>) -> PendingMany<O::Output> {
        self.run_many_with(ops, &RunOptions::default())
    }

    /// Runs a list of ops, each with these options.
    pub fn run_many_with<O: Operation>(
        &self,
        ops: impl IntoIterator<Item = O>,
        options: &RunOptions,
    ) -> PendingMany<O::Output> {
        let refused = |error| Pending::refused(error, O::output);
        let send = |op| self.send(op, options, true).unwrap_or_else(refused).with_report();
        PendingMany::new(ops.into_iter().map(send).collect())
    }

    /// Makes one task of an async block with several steps. It begins at once; see [`crate::task`].
    /// Of the options the deadline is used; the block passes the options to its ops.
    ///
    /// ```
    /// # use panoply_runtime::{Runtime, RunOptions, TaskOutcome, TaskReport};
    /// # use panoply_core::{Error, Outcome, Tensor, op::compute::{Map, Reduce}};
    /// # use std::sync::Arc;
    /// # let runtime = Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build()?;
    /// let runtime = Arc::new(runtime);
    /// let (of_task, options) = (Arc::clone(&runtime), RunOptions::default());
    /// let row = Tensor::from_vec(vec![1.0_f32, 2.0], [2])?;
    /// let task = runtime.task(&options.clone(), async move {
    ///     let doubled = of_task.run_with(Map::add(&row, &row), options.clone()).with_report().await?;
    ///     let sum = of_task.run_with(Reduce::sum(&doubled.output), options).with_report().await?;
    ///     let mut report = TaskReport::default();
    ///     report.add("double", doubled.report.ran, Some(doubled.report));
    ///     report.add("sum", sum.report.ran, Some(sum.report));
    ///     Ok::<_, Error>(TaskOutcome { output: sum.output, report })
    /// });
    /// assert_eq!(task.wait()?.as_slice::<f32>()?, [6.0]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn task<T, E: TaskError>(
        &self,
        options: &RunOptions,
        work: impl Future<Output = Result<TaskOutcome<T>, E>> + Send + 'static,
    ) -> PendingTask<T, E> {
        PendingTask::begin(self.deadline(options), self.process, work)
    }

    /// The devices that each backend found. The memory of opened devices is as in
    /// [`Runtime::devices`].
    pub fn backends(&self) -> Vec<BackendReport> {
        let reports = process::lock(&self.control, self.process).map(|control| control.reports.clone());
        let mut reports = reports.unwrap_or_default();
        for info in reports.iter_mut().filter_map(|report| report.devices.as_mut().ok()).flatten() {
            if let Some(candidate) = self.router.lanes.serving(info.id) {
                let lane = &candidate.lane;
                lane.ask_look_if_old();
                lane.gate.memory(lane.process).into_iter().for_each(|memory| info.set_memory(memory));
            }
        }
        reports
    }

    /// Every device that ops can be sent to. The memory is as the device's worker found it last; if
    /// that was longer ago than [`HealthRules::look_every`](crate::HealthRules::look_every), the
    /// worker is asked to look again, for the next call. [`Runtime::examine`] waits for it.
    pub fn devices(&self) -> impl Iterator<Item = DeviceInfo> {
        self.router.lanes.iter().map(|candidate| candidate.lane.described())
    }

    /// The state and counters of each device: of its own worker and those of its pools together.
    /// Health and memory are as in [`Runtime::devices`].
    pub fn workers(&self) -> Vec<WorkerReport> {
        let look = |device: &Candidate| {
            device.lane.ask_look_if_old();
            self.router.report(device)
        };
        self.router.lanes.iter().map(look).collect()
    }

    /// Where the workers of the devices run, as planned. [`Runtime::workers`] says where they do
    /// run. In a fork: nothing.
    pub fn plan(&self) -> DevicePlan {
        process::lock(&self.control, self.process).map(|control| control.places.plan.clone()).unwrap_or_default()
    }

    /// Has every worker ask its device for health and memory, and waits for the answers, at most
    /// `wait_max`. Returns whether all of them have come. Workers that are not ready are not waited
    /// for. A worker looks at its device between two batches, and at most every 20 milliseconds.
    ///
    /// A thread of the runtime itself, such as one that calls a waker, does not wait.
    pub fn examine(&self, wait_max: Duration) -> bool {
        if !self.process.is_here() || self.owner.is_here() {
            return false;
        }
        let is_ready = |lane: &crate::lane::Lane| lane.state() == WorkerState::Ready;
        let lanes = self.router.lanes.iter().map(|candidate| &candidate.lane).filter(|lane| is_ready(lane));
        let asked: Vec<_> = lanes.map(|lane| (lane, lane.ask_look())).collect();
        let is_done = || asked.iter().all(|(lane, time)| lane.has_looked_since(*time) || !is_ready(lane));
        let start = Instant::now();
        while !is_done() {
            if start.elapsed() >= wait_max || !self.process.is_here() {
                return false;
            }
            std::thread::sleep(EXAMINED_EVERY);
        }
        true
    }

    /// How much of all devices' capacity is fit for work, and whether that is enough.
    pub fn capacity(&self) -> SystemCapacity {
        self.degraded.capacity(&self.router.lanes)
    }

    /// Every device as the router sees it for this op now, with its predicted time and its verdict.
    /// Nothing is run.
    pub fn explain<O: Operation>(&self, op: O, options: &RunOptions) -> Result<Vec<Alternative>> {
        let (op, now) = (op.into_op()?, Instant::now());
        let wishes = self.router.lanes.wishes(options, self.policy, now)?;
        Ok(self.router.alternatives(&op, &wishes, now, None))
    }

    /// The device that an op would be sent to now. For a graph that must be cut: the device of the
    /// first part. Nothing is run.
    pub fn decide(&self, op: &Op, options: &RunOptions) -> Result<DeviceId> {
        let now = Instant::now();
        let wishes = self.router.lanes.wishes(options, self.policy, now)?;
        if let Some(parts) = self.router.cut(op, &wishes)? {
            return parts.device();
        }
        let target = self.router.choose(op, &wishes, now)?.forecast.target;
        let candidate = self.router.lanes.made(target);
        candidate.map(|candidate| candidate.lane.info.id).ok_or(Error::ShuttingDown)
    }

    /// All metrics of the runtime at this moment.
    pub fn metrics(&self) -> Snapshot {
        let (routed, explored) = self.router.counts();
        let figures = |device: &Candidate| {
            device.lane.ask_look_if_old();
            self.figures(device)
        };
        let devices = self.router.lanes.iter().map(figures).collect();
        Snapshot { devices, system: self.capacity(), relayed_now: self.inlet.count(), routed, explored }
    }

    fn figures(&self, device: &Candidate) -> DeviceFigures {
        let lanes = || self.router.lanes.group(device).map(|worker| &worker.lane);
        let read = |histogram: fn(&LaneMetrics) -> &Histogram| {
            let first = histogram(&device.lane.metrics).read();
            lanes().skip(1).fold(first, |sum, lane| sum.joined(&histogram(&lane.metrics).read()))
        };
        let mut memory = device.lane.metrics.memory();
        for other in lanes().skip(1).map(|lane| lane.metrics.memory()) {
            memory.lent_bytes += other.lent_bytes;
            memory.cached_bytes += other.cached_bytes;
            memory.peak_bytes += other.peak_bytes;
            memory.hits += other.hits;
            memory.misses += other.misses;
        }
        DeviceFigures {
            device: device.lane.info.id,
            worker: self.router.report(device),
            wait_ns: read(|metrics| &metrics.wait),
            run_ns: read(|metrics| &metrics.run),
            transfer_ns: read(|metrics| &metrics.transfer),
            batch_size: read(|metrics| &metrics.batch),
            bytes_moved: lanes().map(|lane| lane.metrics.bytes_moved.load(Ordering::Relaxed)).sum(),
            backlog_ns: lanes().map(|lane| lane.backlog_ns()).sum(),
            memory,
        }
    }

    /// The measurements that the router has learned about each device. In a fork: those learned
    /// until the fork.
    pub fn profile(&self) -> Profile {
        Profile { devices: self.router.lanes.iter().map(|candidate| Profile::of(&candidate.lane)).collect() }
    }

    /// Initialises the router with a saved profile. Returns the devices of this runtime that the
    /// profile knows. Measurements of other devices, drivers and versions are not used. In a fork,
    /// none are used.
    pub fn use_profile(&self, profile: &Profile) -> Vec<DeviceId> {
        let mut known = Vec::new();
        if !self.process.is_here() {
            // The model is written under locks that a thread of the parent may hold.
            return known;
        }
        for candidate in self.router.lanes.iter() {
            let identity = Identity::of(&candidate.lane.info);
            if let Some(device) = profile.devices.iter().find(|device| device.identity == identity) {
                device.seed(&candidate.lane);
                known.push(candidate.lane.info.id);
            }
        }
        known
    }

    /// Refuses further ops, finishes the present ones, and ends every worker. Ops that are not
    /// finished within `drain_time_max` are answered with [`Error::ShuttingDown`]. A second call
    /// finds nothing to do.
    ///
    /// A thread of the runtime itself, such as one that calls a waker, cannot wait for the ops:
    /// there this call aborts.
    pub fn shutdown(&self, drain_time_max: Duration) -> Shutdown {
        if !self.process.is_here() {
            return FORKED;
        }
        self.closing.store(true, Ordering::SeqCst);
        if !self.owner.is_here() {
            let Some(_ending) = process::lock(&self.ending, self.process) else { return FORKED };
            return self.parts_to_end().end(drain_time_max);
        }
        match self.ending.try_lock() {
            Ok(_ending) => self.parts_to_end().end(Duration::ZERO),
            // Another thread ends the runtime, and may be waiting for this very thread.
            Err(_) => Shutdown { drained: false, threads_left: 0 },
        }
    }

    /// Refuses further ops and answers the present ones with [`Error::ShuttingDown`], except those
    /// that finish first.
    pub fn abort(&self) -> Shutdown {
        if !self.process.is_here() {
            return FORKED;
        }
        self.closing.store(true, Ordering::SeqCst);
        for candidate in self.router.lanes.all() {
            self.errands.drop_all(candidate.lane.abort());
        }
        self.shutdown(Duration::ZERO)
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Takes the parts that are still to be ended.
    fn parts_to_end(&self) -> RuntimeParts {
        let mut control = self.control();
        RuntimeParts {
            router: Arc::clone(&self.router),
            inlet: Arc::clone(&self.inlet),
            timers: Arc::clone(&self.timers),
            errands: Arc::clone(&self.errands),
            supervisor: control.supervisor.take(),
            relay: control.relay.take(),
            verifier: control.verifier.take(),
            interrupts: control.places.take_interrupts(),
            process: self.process,
        }
    }

    fn send<O: Operation>(&self, op: O, options: &RunOptions, may_wait: bool) -> Result<Pending<O::Output>> {
        self.process.check("the runtime")?;
        self.router.expect_op();
        let op = op.into_op()?;
        let accepted = Instant::now();
        if self.closing.load(Ordering::Relaxed) {
            return Err(Error::ShuttingDown);
        }
        if options.verify_every.is_some() && !self.verifies {
            let expected = "a runtime that compares answers: it is built with `verify`";
            return Err(Error::invalid("verify_every", expected, "one that does not"));
        }
        if options.priority == Priority::Patient {
            self.degraded.admit_patient(&self.router.lanes)?;
        }
        let mut wishes = self.router.lanes.wishes(options, self.policy, accepted)?;
        let may_read = |owner: &DeviceId| options.device.is_none() && !options.forbid.contains(owner);
        if let Some(owner) = read_from(&op).filter(may_read) {
            // A caller that has an answer may read it, also from a device that another claim has.
            wishes.allowed |= self.router.lanes.mask_of(owner).unwrap_or(0);
        }
        let permit = options.claim.as_ref().map(Claim::permit).transpose()?;
        let (input_bytes, deadline) = (op.input_bytes(), self.deadline(options));
        let Dispatch { receiver, lane, unsent } = self.router.send(op, wishes, accepted, may_wait)?;
        Ok(Pending::sent(receiver, lane, unsent, deadline, input_bytes, permit, O::output))
    }

    fn deadline(&self, options: &RunOptions) -> Option<Deadline> {
        options.deadline.map(|at| Deadline::new(at, &self.timers))
    }

    /// Claims a share of a device.
    pub(crate) fn claim_of(&self, device: DeviceId, share: Share) -> Result<Claim> {
        self.process.check("the runtime")?;
        self.router.lanes.claim(device, share)
    }
}

impl Runtime {
    /// Leaks everything, because it belongs to the parent of this fork: no destructor may release
    /// device memory, or wait for a lock that a thread of the parent held.
    fn leave_to_parent(&mut self) {
        let control = self.control.get_mut().unwrap_or_else(|poisoned| poisoned.into_inner());
        std::mem::forget((control.supervisor.take(), control.relay.take(), control.verifier.take()));
        std::mem::forget(control.places.take_interrupts());
        std::mem::forget(std::mem::take(&mut control.backends));
        let shared = (Arc::clone(&self.router), Arc::clone(&self.inlet));
        std::mem::forget((shared, Arc::clone(&self.timers), Arc::clone(&self.errands)));
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.process.is_here() {
            return self.leave_to_parent();
        }
        if !self.owner.is_here() {
            self.shutdown(DROP_DRAIN_MAX);
            if !self.process.is_here() {
                // A signal handler has forked meanwhile.
                self.leave_to_parent();
            }
            return;
        }
        // A waker has dropped the last handle, on a thread that the draining needs. So another
        // thread drains.
        self.closing.store(true, Ordering::SeqCst);
        let ending = self.parts_to_end();
        let drains = std::thread::Builder::new().name("panoply-ending".to_owned());
        if drains.spawn(move || ending.end(DROP_DRAIN_MAX)).is_err() {
            // Without a thread no wait is possible: the parts that were moved there were dropped,
            // and workers end with their lanes.
            self.router.lanes.all().for_each(|candidate| self.errands.drop_all(candidate.lane.abort()));
            self.inlet.close();
            self.errands.send(alarms(&self.timers));
        }
    }
}

/// The device from which an op copies a tensor to the host, if that is what it does.
fn read_from(op: &Op) -> Option<DeviceId> {
    match op {
        Op::Compute(ComputeOp::Transfer(Transfer { input, to: Location::Host })) => match input.location() {
            Location::Device(owner) => Some(owner),
            Location::Host => None,
        },
        _ => None,
    }
}

/// The parts of a runtime that end with it.
struct RuntimeParts {
    router: Arc<Router>,
    inlet: Arc<Inlet>,
    timers: Arc<Timers>,
    errands: Arc<Errands>,
    supervisor: Option<Supervisor>,
    relay: Option<Arc<RelayThread>>,
    verifier: Option<VerifierThread>,
    /// Dropped, and so put back, when the workers have ended.
    interrupts: Interrupts,
    process: Process,
}

impl RuntimeParts {
    /// Ends everything. No foreign code is called on this thread: ending a runtime must not wait
    /// for ever for a foreign waker. A fork in the middle of it leaves everything to the parent.
    fn end(mut self, drain_time_max: Duration) -> Shutdown {
        if self.supervisor.is_none() && self.relay.is_none() {
            // It was ended before. Threads that are still stuck from then are not waited for.
            return Shutdown { drained: true, threads_left: 0 };
        }
        let start = Instant::now();
        let quiet = || self.inlet.count() == 0 && self.router.lanes.all().all(|candidate| candidate.lane.is_quiet());
        // Ops that go from one device to another must find the second one open.
        while !quiet() && start.elapsed() < drain_time_max && self.process.is_here() {
            std::thread::sleep(Duration::from_micros(50));
        }
        if !self.process.is_here() {
            std::mem::forget(self);
            return FORKED;
        }
        self.inlet.close();
        let left = drain_time_max.saturating_sub(start.elapsed());
        let shutdown = match self.supervisor.take() {
            Some(mut supervisor) => supervisor.shut_down(left),
            None => Shutdown { drained: true, threads_left: 0 },
        };
        if !self.process.is_here() {
            std::mem::forget(self);
            return FORKED;
        }
        let RuntimeParts { router, timers, errands, relay, verifier, interrupts, .. } = self;
        drop(interrupts);
        if let Some(verifier) = verifier {
            // Devices no longer answer, so none of the verifier's waits takes long. But a backend
            // may hold it up.
            errands.drop_all(verifier.end(VERIFIER_GRACE));
        }
        if let Some(relay) = relay {
            // The relay may be inside a caller's waker, or be the very thread that ends it.
            errands.drop_all(relay.end(RELAY_GRACE));
        }
        // The tickets that a stuck relay was looking at.
        router.lanes.all().for_each(|candidate| errands.drop_all(candidate.lane.end_queued()));
        errands.send(alarms(&timers));
        errands.finish(ERRANDS_WAIT_MAX);
        shutdown
    }
}

/// Stops the timers, and returns errands that wake the callers who still wait for their deadlines.
fn alarms(timers: &Timers) -> impl Iterator<Item = Errand> {
    timers.stop().into_iter().map(|waker| Box::new(move || waker.wake()) as Errand)
}
