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

use panoply_core::{
    Absence, Alternative, Api, Backend, DeviceId, DeviceInfo, Error, Op, OpenOptions, Operation, Result,
};

use panoply_placement::{DevicePlan, Interrupts};

use crate::device_worker::supervisor::{Shutdown, Supervisor};
use crate::errands::{Errand, Errands};
use crate::lane::{Inlet, LaneSetup, WorkerReport};
use crate::options::{FallbackPolicy, RunOptions};
use crate::pending::{Deadline, Pending};
use crate::process::{self, Process};
use crate::relay::RelayThread;
use crate::router::Router;
use crate::router::dispatch::Dispatch;
use crate::router::profile::{Identity, Profile};
use crate::telemetry::{DeviceFigures, Snapshot};
use crate::threads::Owner;
use crate::timers::Timers;
use crate::verifier::VerifierThread;

mod builder;
mod discovery;
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

    /// The devices that each backend found.
    pub fn backends(&self) -> Vec<BackendReport> {
        process::lock(&self.control, self.process).map(|control| control.reports.clone()).unwrap_or_default()
    }

    /// Every device that ops can be sent to.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.router.lanes.iter().map(|candidate| &candidate.lane.info)
    }

    /// The state and counters of each device's worker.
    pub fn workers(&self) -> Vec<WorkerReport> {
        self.router.lanes.iter().map(|candidate| candidate.lane.report()).collect()
    }

    /// Where the workers of the devices run, as planned. [`Runtime::workers`] says where they do
    /// run. In a fork: nothing.
    pub fn plan(&self) -> DevicePlan {
        process::lock(&self.control, self.process).map(|control| control.places.plan.clone()).unwrap_or_default()
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
        let figures = |lane: &crate::lane::Lane| DeviceFigures {
            device: lane.info.id,
            worker: lane.report(),
            wait_ns: lane.metrics.wait.read(),
            run_ns: lane.metrics.run.read(),
            transfer_ns: lane.metrics.transfer.read(),
            batch_size: lane.metrics.batch.read(),
            bytes_moved: lane.metrics.bytes_moved.load(Ordering::Relaxed),
            backlog_ns: lane.backlog_ns(),
            memory: lane.metrics.memory(),
        };
        let (routed, explored) = self.router.counts();
        let devices = self.router.lanes.iter().map(|candidate| figures(&candidate.lane)).collect();
        Snapshot { devices, relayed_now: self.inlet.count(), routed, explored }
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
        let wishes = self.router.lanes.wishes(options, self.policy, accepted)?;
        let input_bytes = op.input_bytes();
        let deadline = options.deadline.map(|at| Deadline::new(at, &self.timers));
        let Dispatch { receiver, lane, unsent } = self.router.send(op, wishes, accepted, may_wait)?;
        Ok(Pending::sent(receiver, lane, unsent, deadline, input_bytes, O::output))
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
