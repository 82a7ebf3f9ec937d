//! What a program holds: it finds devices, starts a worker for each, and takes ops.
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

use crate::device_worker::supervisor::{Shutdown, Supervisor};
use crate::errands::{Errand, Errands};
use crate::lane::{Inlet, LaneSetup, WorkerReport};
use crate::options::{FallbackPolicy, RunOptions};
use crate::pending::{Deadline, Pending};
use crate::relay::RelayThread;
use crate::router::Router;
use crate::router::dispatch::Sent;
use crate::router::profile::{Identity, Profile};
use crate::telemetry::{DeviceFigures, Snapshot};
use crate::threads::Owner;
use crate::timers::Timers;

mod builder;
mod discovery;

pub use builder::{BuildError, Builder};
use discovery::Search;
pub use discovery::{DeviceChange, Rediscovery};

/// How long a caller's waker may keep the relay when it shall end, before its thread is left behind.
const RELAY_GRACE: Duration = Duration::from_secs(2);
/// How long a shutdown waits for the wakers and destructors of the ops that it has answered.
const ERRANDS_WAIT_MAX: Duration = Duration::from_secs(5);
/// How long dropping a runtime waits for its ops before it gives them up.
const DROP_DRAIN_MAX: Duration = Duration::from_secs(30);

/// The devices of this machine, each behind one worker. Share it by reference or in an `Arc`; dropping it drains it.
pub struct Runtime {
    router: Arc<Router>,
    inlet: Arc<Inlet>,
    policy: FallbackPolicy,
    timers: Arc<Timers>,
    errands: Arc<Errands>,
    closing: AtomicBool,
    control: Mutex<Control>,
    /// Held by whoever ends the runtime, until it has.
    ending: Mutex<()>,
    search: Search,
    /// By which its threads know it.
    owner: Owner,
}

/// What changes when devices come and go, or the runtime ends. Locked by those who change it, never on an op's path, and never while
/// foreign code is called: a waker or a backend may come back here.
struct Control {
    supervisor: Option<Supervisor>,
    relay: Option<Arc<RelayThread>>,
    backends: Vec<Arc<dyn Backend>>,
    reports: Vec<BackendReport>,
    setup: LaneSetup,
    open: OpenOptions,
}

/// What one backend found.
#[derive(Clone, Debug, PartialEq)]
pub struct BackendReport {
    /// The API.
    pub api: Api,
    /// Its devices, or why there are none.
    pub devices: Result<Vec<DeviceInfo>, Absence>,
}

impl Runtime {
    /// Chooses what the runtime is made of.
    pub fn builder() -> Builder {
        Builder::new()
    }

    /// Runs an op on the device that suits it. The op is accepted at once where there is room; otherwise it waits for room
    /// behind those that came before it, for as long as the result is wanted. A graph that no device runs whole is cut, and runs in parts
    /// on several; its report names each cut.
    pub fn run<O: Operation>(&self, op: O) -> Pending<O::Output> {
        self.run_with(op, RunOptions::default())
    }

    /// Runs an op as the caller wishes.
    pub fn run_with<O: Operation>(&self, op: O, options: RunOptions) -> Pending<O::Output> {
        match self.send(op, &options, true) {
            Ok(pending) => pending,
            Err(error) => Pending::refused(error, O::output),
        }
    }

    /// Runs an op if there is room for it now; [`Error::Busy`] where there is not.
    pub fn try_run<O: Operation>(&self, op: O) -> Result<Pending<O::Output>> {
        self.try_run_with(op, RunOptions::default())
    }

    /// Runs an op as the caller wishes, if there is room for it now.
    pub fn try_run_with<O: Operation>(&self, op: O, options: RunOptions) -> Result<Pending<O::Output>> {
        self.send(op, &options, false)
    }

    /// What each backend found.
    pub fn backends(&self) -> Vec<BackendReport> {
        self.control().reports.clone()
    }

    /// Every device that ops can be sent to.
    pub fn devices(&self) -> impl Iterator<Item = &DeviceInfo> {
        self.router.lanes.current().map(|candidate| &candidate.lane.info)
    }

    /// What each device's worker is doing, and has done.
    pub fn workers(&self) -> Vec<WorkerReport> {
        self.router.lanes.current().map(|candidate| candidate.lane.report()).collect()
    }

    /// Every device as the router sees it for this op now, with the time it predicts and its verdict. Nothing is run.
    pub fn explain<O: Operation>(&self, op: O, options: &RunOptions) -> Result<Vec<Alternative>> {
        let (op, now) = (op.into_op()?, Instant::now());
        let wishes = self.router.lanes.wishes(options, self.policy, now)?;
        Ok(self.router.alternatives(&op, &wishes, now, None))
    }

    /// The device that an op would be sent to now; of a graph that must be cut, the first part. Nothing is run.
    pub fn decide(&self, op: &Op, options: &RunOptions) -> Result<DeviceId> {
        let now = Instant::now();
        let wishes = self.router.lanes.wishes(options, self.policy, now)?;
        if let Some(parts) = self.router.cut(op, &wishes)? {
            return parts.device();
        }
        let target = self.router.choose(op, &wishes, now)?.forecast.target;
        let candidate = self.router.lanes.get(usize::from(target));
        candidate.map(|candidate| candidate.lane.info.id).ok_or(Error::ShuttingDown)
    }

    /// Every figure that the runtime counts, at this moment.
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
        let devices = self.router.lanes.current().map(|candidate| figures(&candidate.lane)).collect();
        Snapshot { devices, relayed_now: self.inlet.count(), routed, explored }
    }

    /// What the router has learned about each device.
    pub fn profile(&self) -> Profile {
        Profile { devices: self.router.lanes.current().map(|candidate| Profile::of(&candidate.lane)).collect() }
    }

    /// Has the router begin with what was learned before. Returns the devices of this runtime that the profile knows; the
    /// figures of others, and of others' drivers and versions, are not used.
    pub fn use_profile(&self, profile: &Profile) -> Vec<DeviceId> {
        let mut known = Vec::new();
        for candidate in self.router.lanes.current() {
            let identity = Identity::of(&candidate.lane.info);
            if let Some(device) = profile.devices.iter().find(|device| device.identity == identity) {
                device.seed(&candidate.lane);
                known.push(candidate.lane.info.id);
            }
        }
        known
    }

    /// Takes no more ops, finishes the ones it has, and ends every worker. What is not finished within `drain_time_max`
    /// is answered with [`Error::ShuttingDown`]. A second call finds nothing to do.
    ///
    /// On a thread of the runtime itself, which a waker is called on, nothing can be waited for: there it aborts.
    pub fn shutdown(&self, drain_time_max: Duration) -> Shutdown {
        self.closing.store(true, Ordering::SeqCst);
        if !self.owner.is_here() {
            let _ending = self.ending.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            return self.parts_to_end().end(drain_time_max);
        }
        match self.ending.try_lock() {
            Ok(_ending) => self.parts_to_end().end(Duration::ZERO),
            // Somebody else ends it, and may be waiting for this very thread.
            Err(_) => Shutdown { drained: false, threads_left: 0 },
        }
    }

    /// Takes no more ops and answers the ones it has with [`Error::ShuttingDown`], except where one finishes first.
    pub fn abort(&self) -> Shutdown {
        self.closing.store(true, Ordering::SeqCst);
        for candidate in self.router.lanes.iter() {
            self.errands.drop_all(candidate.lane.abort());
        }
        self.shutdown(Duration::ZERO)
    }

    fn control(&self) -> MutexGuard<'_, Control> {
        self.control.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// What is left to be ended.
    fn parts_to_end(&self) -> Ending {
        let mut control = self.control();
        Ending {
            router: Arc::clone(&self.router),
            inlet: Arc::clone(&self.inlet),
            timers: Arc::clone(&self.timers),
            errands: Arc::clone(&self.errands),
            supervisor: control.supervisor.take(),
            relay: control.relay.take(),
        }
    }

    fn send<O: Operation>(&self, op: O, options: &RunOptions, may_wait: bool) -> Result<Pending<O::Output>> {
        self.router.expect_op();
        let op = op.into_op()?;
        let accepted = Instant::now();
        if self.closing.load(Ordering::Relaxed) {
            return Err(Error::ShuttingDown);
        }
        let wishes = self.router.lanes.wishes(options, self.policy, accepted)?;
        let input_bytes = op.input_bytes();
        let deadline = options.deadline.map(|at| Deadline::new(at, &self.timers));
        let Sent { receiver, lane, unsent } = self.router.send(op, wishes, accepted, may_wait)?;
        Ok(Pending::sent(receiver, lane, unsent, deadline, input_bytes, O::output))
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        if !self.owner.is_here() {
            self.shutdown(DROP_DRAIN_MAX);
            return;
        }
        // A waker has dropped the last handle on a thread that the draining needs.
        self.closing.store(true, Ordering::SeqCst);
        let ending = self.parts_to_end();
        let drains = std::thread::Builder::new().name("panoply-ending".to_owned());
        if drains.spawn(move || ending.end(DROP_DRAIN_MAX)).is_err() {
            // Without a thread nobody can wait: what was moved there was dropped, and workers end with their lanes.
            self.router.lanes.iter().for_each(|candidate| self.errands.drop_all(candidate.lane.abort()));
            self.inlet.close();
            self.errands.send(alarms(&self.timers));
        }
    }
}

/// The parts of a runtime that end with it.
struct Ending {
    router: Arc<Router>,
    inlet: Arc<Inlet>,
    timers: Arc<Timers>,
    errands: Arc<Errands>,
    supervisor: Option<Supervisor>,
    relay: Option<Arc<RelayThread>>,
}

impl Ending {
    /// Ends everything. No foreign code is called on this thread: whoever ends a runtime waits for nobody's waker for ever, and a
    /// waker may do so as well.
    fn end(self, drain_time_max: Duration) -> Shutdown {
        let Ending { router, inlet, timers, errands, supervisor, relay } = self;
        if supervisor.is_none() && relay.is_none() {
            // It was ended before. What is still stuck from then is nobody's to wait for.
            return Shutdown { drained: true, threads_left: 0 };
        }
        let start = Instant::now();
        let quiet = || inlet.count() == 0 && router.lanes.iter().all(|candidate| candidate.lane.is_quiet());
        // Ops that go from one device to another must find the second one open.
        while !quiet() && start.elapsed() < drain_time_max {
            std::thread::sleep(Duration::from_micros(50));
        }
        inlet.close();
        let left = drain_time_max.saturating_sub(start.elapsed());
        let shutdown = match supervisor {
            Some(mut supervisor) => supervisor.shut_down(left),
            None => Shutdown { drained: true, threads_left: 0 },
        };
        if let Some(relay) = relay {
            // It may be inside a caller's waker, or be the very thread that ends it.
            errands.drop_all(relay.end(RELAY_GRACE));
        }
        // What a stuck relay was looking at.
        router.lanes.iter().for_each(|candidate| errands.drop_all(candidate.lane.end_queued()));
        errands.send(alarms(&timers));
        errands.finish(ERRANDS_WAIT_MAX);
        shutdown
    }
}

/// Stops the timers, and wakes those who still wait for their deadlines.
fn alarms(timers: &Timers) -> impl Iterator<Item = Errand> {
    timers.stop().into_iter().map(|waker| Box::new(move || waker.wake()) as Errand)
}
