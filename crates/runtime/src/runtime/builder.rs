//! Builds a runtime: its backends and its limits.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use panoply_core::clock::SystemClock;
use panoply_core::{Absence, Api, Backend, DeviceId, Error, OpenOptions};
use panoply_lockfree::foreign::contain;
use panoply_lockfree::queue::QUEUE_DEPTH_MAX;
use panoply_placement::{DevicePlan, PlacementOptions};

use super::discovery::Search;
use super::places::{self, WorkerPlaces};
use super::{BackendReport, Control, Runtime};
use crate::batcher::Batching;
use crate::device_worker::supervisor::Supervisor;
use crate::errands::Errands;
use crate::health::HealthRules;
use crate::lane::opinions::Opinions;
use crate::lane::{Inlet, LaneSetup, WorkerLimits, WorkerState};
use crate::options::FallbackPolicy;
use crate::process::Process;
use crate::relay::Relay;
use crate::router::{Exploration, Router};
use crate::threads::Owner;
use crate::timers::Timers;
use crate::verifier::Verifier;
use crate::verify::Verify;

/// How long `build` waits for a device to open before it goes on without it. The worker keeps
/// trying.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(20);

/// Wakers and destructors on the relay's and the timers' thread may take this long, however short
/// an op's time limit is.
const CALL_TIME_MIN: Duration = Duration::from_millis(100);

/// Builds a [`Runtime`] with the chosen settings.
#[derive(Default)]
pub struct Builder {
    backends: Vec<Arc<dyn Backend>>,
    absent: Vec<BackendReport>,
    limits: WorkerLimits,
    open: OpenOptions,
    rules: HealthRules,
    batching: Batching,
    fallback: FallbackPolicy,
    exploration: Exploration,
    leave_out: Vec<DeviceId>,
    verify: Option<Verify>,
    placement: PlacementOptions,
}

/// Why no runtime could be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No backend found a device.
    #[error("no device was found: {}", reasons(reports).join("; "))]
    NoDevice {
        /// The answers of all backends.
        reports: Vec<BackendReport>,
    },
    /// An invalid limit.
    #[error("{what}: expected {expected}, got {got}")]
    BadLimit {
        /// The limit.
        what: &'static str,
        /// The accepted values.
        expected: &'static str,
        /// The given value.
        got: String,
    },
    /// Two settings contradict each other.
    #[error("{first} contradicts {second}")]
    Contradiction {
        /// The first setting.
        first: String,
        /// The second setting.
        second: String,
    },
    /// A worker could not be started.
    #[error("a device worker could not be started: {0}")]
    Worker(#[from] Error),
}

impl Builder {
    pub(super) fn new() -> Builder {
        Builder::default()
    }

    /// Adds a backend. Devices are tried in the order in which their backends were added.
    pub fn backend(mut self, backend: Arc<dyn Backend>) -> Builder {
        self.backends.push(backend);
        self
    }

    /// Records a missing backend, so that [`Runtime::backends`] can report the reason.
    pub fn absent(mut self, api: Api, reason: Absence) -> Builder {
        self.absent.push(BackendReport { api, devices: Err(reason) });
        self
    }

    /// Sets the limits of every device worker.
    pub fn limits(mut self, limits: WorkerLimits) -> Builder {
        self.limits = limits;
        self
    }

    /// Sets how devices are opened.
    pub fn open_options(mut self, open: OpenOptions) -> Builder {
        self.open = open;
        self
    }

    /// Sets when a device counts as hot, full or faulty.
    pub fn health(mut self, rules: HealthRules) -> Builder {
        self.rules = rules;
        self
    }

    /// Sets when ops that could run as one go to an engine.
    pub fn batching(mut self, batching: Batching) -> Builder {
        self.batching = batching;
        self
    }

    /// Sets what happens to an op when its device fails, unless its caller chooses otherwise.
    pub fn fallback(mut self, policy: FallbackPolicy) -> Builder {
        self.fallback = policy;
        self
    }

    /// Sets how much the router explores.
    pub fn exploration(mut self, exploration: Exploration) -> Builder {
        self.exploration = exploration;
        self
    }

    /// Compares a share of the answers with another device's.
    pub fn verify(mut self, verify: Verify) -> Builder {
        self.verify = Some(verify);
        self
    }

    /// Excludes devices from being opened.
    pub fn leave_out(mut self, devices: impl IntoIterator<Item = DeviceId>) -> Builder {
        self.leave_out.extend(devices);
        self
    }

    /// Sets where the workers' threads run: whether they have cores of their own, isolated CPUs or
    /// a real-time priority. A wish that the system refuses is a note in [`Runtime::workers`].
    pub fn placement(mut self, options: PlacementOptions) -> Builder {
        self.placement = options;
        self
    }

    /// Finds the devices and plans where their workers would run, without starting any.
    pub fn plan(&self) -> DevicePlan {
        let found = self.backends.iter().filter_map(|backend| contain(|| backend.discover()).ok()?.ok());
        let devices = found.flatten().filter(|info| !self.leave_out.contains(&info.id));
        places::plan(&devices.collect::<Vec<_>>(), &self.placement)
    }

    /// Finds the devices, starts their workers, and waits until they are open.
    pub fn build(self) -> Result<Runtime, BuildError> {
        self.check()?;
        let (clock, epoch, owner) = (Arc::new(SystemClock), Instant::now(), Owner::new());
        let (inlet, errands) = (Arc::new(Inlet::new()), Arc::new(Errands::new(owner)));
        let router = Arc::new(Router::new(self.exploration));
        let opinions = self.verify.map(|verify| Arc::new(Opinions::new(verify)));
        let setup = LaneSetup {
            limits: self.limits,
            rules: self.rules,
            batching: self.batching,
            inlet: Arc::clone(&inlet),
            clock: clock.clone(),
            epoch,
            opinions: opinions.clone(),
            leave_out: self.leave_out,
        };
        let control = Control {
            supervisor: Some(Supervisor::new(owner, Arc::clone(&errands))),
            relay: None,
            verifier: None,
            backends: self.backends,
            reports: Vec::new(),
            setup,
            open: self.open,
            places: WorkerPlaces::new(self.placement),
        };
        let runtime = Runtime {
            router: Arc::clone(&router),
            inlet: Arc::clone(&inlet),
            policy: self.fallback,
            timers: Arc::new(Timers::new(owner)),
            errands,
            closing: AtomicBool::new(false),
            control: Mutex::new(control),
            ending: Mutex::new(()),
            search: Search::default(),
            verifies: opinions.is_some(),
            owner,
            process: Process::current(),
        };
        runtime.rediscover()?;
        runtime.control().reports.extend(self.absent);
        runtime.start_threads(opinions, Relay::new(inlet, Arc::clone(&router), clock))?;
        wait_until_open(&router, runtime.process);
        runtime.process.check("the runtime")?;
        Ok(runtime)
    }

    fn check(&self) -> Result<(), BuildError> {
        check_limits(&self.limits)?;
        check_rules(&self.rules)?;
        if let Some(verify) = &self.verify
            && verify.wait_max.is_zero()
        {
            // Otherwise it would compare nothing, without reporting that.
            let (what, expected) = ("verify.wait_max", "more than 0 s");
            return Err(BuildError::BadLimit { what, expected, got: "0 s".to_owned() });
        }
        let limits = &self.limits;
        let against = |first: String, second: String| Err(BuildError::Contradiction { first, second });
        if self.batching != Batching::LowLatency {
            let (size_max, wait_max) = (self.batching.size_max(), self.batching.wait_max());
            if size_max > limits.in_flight_max {
                let (first, second) = (format!("batches of {size_max}"), limits.in_flight_max);
                return against(first, format!("in_flight_max = {second}"));
            }
            if wait_max >= limits.op_time_max {
                let (first, second) = (format!("a batch wait of {wait_max:?}"), limits.op_time_max);
                return against(first, format!("op_time_max = {second:?}"));
            }
        }
        Ok(())
    }
}

impl Runtime {
    /// Starts the threads beside the workers: the relay, the verifier if answers are compared, and
    /// the supervisor's checks of both. Fails if no device was found.
    fn start_threads(&self, opinions: Option<Arc<Opinions>>, relay: Relay) -> Result<(), BuildError> {
        let mut control = self.control();
        if self.router.lanes.len() == 0 {
            return Err(BuildError::NoDevice { reports: control.reports.clone() });
        }
        let refused =
            |error| BuildError::BadLimit { what: "threads", expected: "room for one more", got: format!("{error}") };
        let call_time_max = control.setup.limits.op_time_max.max(CALL_TIME_MIN);
        let relay = relay.start(self.owner, call_time_max).map_err(refused)?;
        let verifier = opinions.map(|opinions| {
            let (timers, errands) = (Arc::clone(&self.timers), Arc::clone(&self.errands));
            Verifier::new(opinions, Arc::clone(&self.router), timers, errands)
        });
        if let Some(verifier) = &verifier {
            control.verifier = Some(verifier.start(self.owner).map_err(refused)?);
        }
        if let Some(supervisor) = &control.supervisor {
            let (watched, timers) = (Arc::clone(&relay), Arc::clone(&self.timers));
            let errands = Arc::clone(&self.errands);
            supervisor.watch_too(Box::new(move |now| {
                errands.drop_all(watched.look(now));
                timers.look(now, call_time_max);
                if let Some(verifier) = &verifier {
                    errands.drop_all(verifier.look(now));
                }
            }));
        }
        control.relay = Some(relay);
        Ok(())
    }
}

fn wait_until_open(router: &Router, process: Process) {
    let start = Instant::now();
    let opening = || router.lanes.iter().any(|candidate| candidate.lane.state() == WorkerState::Opening);
    while opening() && process.is_here() && start.elapsed() < OPEN_WAIT_MAX {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// The reason of each backend that found no device, after the name of its API.
fn reasons(reports: &[BackendReport]) -> Vec<String> {
    let reason = |report: &BackendReport| {
        let absence = report.devices.as_ref().err()?;
        Some(format!("{}: {absence}", report.api))
    };
    reports.iter().filter_map(reason).collect()
}

fn check_limits(limits: &WorkerLimits) -> Result<(), BuildError> {
    let positive = [
        ("queue_depth_max", limits.queue_depth_max),
        ("batch_max", limits.batch_max),
        ("in_flight_max", limits.in_flight_max),
    ];
    for (what, value) in positive {
        if value == 0 {
            return Err(BuildError::BadLimit { what, expected: "at least 1", got: "0".to_owned() });
        }
    }
    if limits.queue_depth_max > QUEUE_DEPTH_MAX {
        let (what, expected) = ("queue_depth_max", "at most 1048576");
        return Err(BuildError::BadLimit { what, expected, got: limits.queue_depth_max.to_string() });
    }
    if limits.op_time_max.is_zero() {
        return Err(BuildError::BadLimit { what: "op_time_max", expected: "more than 0 s", got: "0 s".to_owned() });
    }
    if limits.reopen_wait_min > limits.reopen_wait_max {
        let got = format!("{:?} > {:?}", limits.reopen_wait_min, limits.reopen_wait_max);
        return Err(BuildError::BadLimit { what: "reopen_wait_min", expected: "at most reopen_wait_max", got });
    }
    Ok(())
}

fn check_rules(rules: &HealthRules) -> Result<(), BuildError> {
    let against = |first: String, second: String| Err(BuildError::Contradiction { first, second });
    if rules.cool_celsius > rules.hot_celsius {
        return against(
            format!("cool_celsius = {}", rules.cool_celsius),
            format!("hot_celsius = {}, which must not be below it", rules.hot_celsius),
        );
    }
    if rules.memory_percent_resume > rules.memory_percent_max {
        return against(
            format!("memory_percent_resume = {}", rules.memory_percent_resume),
            format!("memory_percent_max = {}, which must not be below it", rules.memory_percent_max),
        );
    }
    if rules.open_wait_min > rules.open_wait_max {
        return against(
            format!("open_wait_min = {:?}", rules.open_wait_min),
            format!("open_wait_max = {:?}, which must not be below it", rules.open_wait_max),
        );
    }
    let positive = [("probes_max", rules.probes_max), ("probes_needed", rules.probes_needed)];
    for (what, value) in positive {
        if value == 0 {
            return Err(BuildError::BadLimit { what, expected: "at least 1", got: "0".to_owned() });
        }
    }
    if rules.look_every.is_zero() {
        return Err(BuildError::BadLimit { what: "look_every", expected: "more than 0 s", got: "0 s".to_owned() });
    }
    Ok(())
}
