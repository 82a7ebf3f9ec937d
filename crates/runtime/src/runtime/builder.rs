//! Builds a runtime: its backends and its limits.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use panoply_core::clock::SystemClock;
use panoply_core::{Absence, Api, Backend, DeviceId, Error, MemoryLimits, OpenOptions};
use panoply_lockfree::foreign::{contain, tell};
use panoply_lockfree::queue::QUEUE_DEPTH_MAX;
use panoply_placement::{DevicePlan, PlacementOptions, Topology};
use tracing::Level;

use super::discovery::Search;
use super::places::{self, WorkerPlaces};
use super::{BackendReport, Control, Runtime};
use crate::batcher::Batching;
use crate::device_worker::supervisor::Supervisor;
use crate::domain_pools::{DevicePool, POOL_WORKERS_MAX, PoolName, PoolPriority, Pools, SHORT_RUN_MAX};
use crate::errands::{Errand, Errands};
use crate::health::{CAPACITY_MIN, HealthRules};
use crate::lane::opinions::Opinions;
use crate::lane::{Inlet, LaneSetup, WorkerLimits, WorkerState};
use crate::options::FallbackPolicy;
use crate::process::Process;
use crate::relay::Relay;
use crate::router::{DegradedMode, Exploration, Router, SystemCapacity};
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
    memory: Vec<(DeviceId, MemoryLimits)>,
    rules: HealthRules,
    batching: Batching,
    fallback: FallbackPolicy,
    exploration: Exploration,
    leave_out: Vec<DeviceId>,
    verify: Option<Verify>,
    pools: Pools,
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

    /// Sets the sizes of one device's memory pools. Limits that are `None` are those of
    /// [`Builder::open_options`].
    pub fn memory_of(mut self, device: DeviceId, limits: MemoryLimits) -> Builder {
        self.memory.push((device, limits));
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

    /// Sets which kinds of work have workers of their own.
    pub fn pools(mut self, pools: Pools) -> Builder {
        self.pools = pools;
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
        places::plan(&devices.collect::<Vec<_>>(), &self.pools, &self.placement)
    }

    /// Finds the devices, starts their workers, and waits until they are open.
    pub fn build(self) -> Result<Runtime, BuildError> {
        self.check()?;
        let (clock, epoch, owner) = (Arc::new(SystemClock), Instant::now(), Owner::new());
        let (inlet, errands) = (Arc::new(Inlet::new()), Arc::new(Errands::new(owner)));
        let router = Arc::new(Router::new(self.exploration));
        let degraded = Arc::new(DegradedMode::new(&self.rules));
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
            pools: Arc::new(self.pools),
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
            memory: self.memory,
        };
        let runtime = Runtime {
            router: Arc::clone(&router),
            inlet: Arc::clone(&inlet),
            policy: self.fallback,
            degraded,
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
        check_devices(&runtime)?;
        runtime.start_threads(opinions, Relay::new(inlet, Arc::clone(&router), clock))?;
        wait_until_open(&router, runtime.process);
        runtime.process.check("the runtime")?;
        Ok(runtime)
    }

    fn check(&self) -> Result<(), BuildError> {
        check_limits(&self.limits)?;
        check_rules(&self.rules)?;
        check_memory(&self.open.memory)?;
        self.memory.iter().try_for_each(|(_, limits)| check_memory(&limits.or(self.open.memory)))?;
        if let Some(verify) = &self.verify
            && verify.wait_max.is_zero()
        {
            // Otherwise it would compare nothing, without reporting that.
            let (what, expected) = ("verify.wait_max", "more than 0 s");
            return Err(BuildError::BadLimit { what, expected, got: "0 s".to_owned() });
        }
        check_batching(self.batching, &self.limits)?;
        check_pools(&self.pools, &self.limits)
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
            let (errands, router) = (Arc::clone(&self.errands), Arc::clone(&self.router));
            let degraded = Arc::clone(&self.degraded);
            supervisor.watch_too(Box::new(move |now| {
                if let Some(capacity) = degraded.news(&router.lanes) {
                    errands.send([Box::new(move || tell_capacity(capacity)) as Errand]);
                }
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
    let opening = || router.lanes.all().any(|candidate| candidate.lane.state() == WorkerState::Opening);
    while opening() && process.is_here() && start.elapsed() < OPEN_WAIT_MAX {
        std::thread::sleep(Duration::from_micros(50));
    }
}

/// Tells listeners that the runtime has become degraded, or is not any more.
fn tell_capacity(capacity: SystemCapacity) {
    let SystemCapacity { devices, fit, minimum } = capacity;
    if capacity.is_degraded() {
        tell(Level::WARN, || tracing::warn!(target: "panoply::health", devices, fit, minimum, "degraded"));
    } else {
        tell(Level::INFO, || tracing::info!(target: "panoply::health", devices, fit, minimum, "not degraded any more"));
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

/// A range of numbers, and its text.
type Range = (f64, f64, &'static str);

const CELSIUS: Range = (-100.0, 300.0, "degrees from -100 to 300");
const PERCENT: Range = (0.0, 100.0, "a percentage from 0 to 100");
const CAPACITY: Range = (CAPACITY_MIN as f64, 1.0, "a share from 0.05 to 1");
const SHARE: Range = (0.0, 1.0, "a share from 0 to 1");

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

fn check_batching(batching: Batching, limits: &WorkerLimits) -> Result<(), BuildError> {
    let against = |first: String, second: String| Err(BuildError::Contradiction { first, second });
    if batching == Batching::LowLatency {
        return Ok(());
    }
    let (size_max, wait_max) = (batching.size_max(), batching.wait_max());
    if let Batching::AtLeast { size_min, .. } = batching
        && !(1..=size_max).contains(&size_min)
    {
        return against(format!("batches of at least {size_min}"), format!("batches of at most {size_max}"));
    }
    if size_max > limits.in_flight_max {
        return against(format!("batches of {size_max}"), format!("in_flight_max = {}", limits.in_flight_max));
    }
    if wait_max >= limits.op_time_max {
        return against(format!("a batch wait of {wait_max:?}"), format!("op_time_max = {:?}", limits.op_time_max));
    }
    Ok(())
}

fn check_pools(pools: &Pools, limits: &WorkerLimits) -> Result<(), BuildError> {
    let bad = |what, expected, got: String| Err(BuildError::BadLimit { what, expected, got });
    if pools.short_run_max.is_zero() || pools.short_run_max > SHORT_RUN_MAX {
        return bad("pools.short.run_us_max", "1 to 1000000 µs", format!("{:?}", pools.short_run_max));
    }
    for (name, pool) in pools.iter() {
        if matches!(name, PoolName::Domain(_)) && PoolName::named(name.name()).is_none() {
            let expected = "a domain of ops that are defined in this workspace";
            return bad("pools", expected, format!("the domain {name}"));
        }
        check_pool(name, pool, limits)?;
    }
    Ok(())
}

fn check_pool(name: PoolName, pool: &DevicePool, limits: &WorkerLimits) -> Result<(), BuildError> {
    let bad = |what, expected, got: String| {
        Err(BuildError::BadLimit { what, expected, got: format!("{got} in the pool {name}") })
    };
    let workers_min = usize::from(name != PoolName::Short);
    if !(workers_min..=POOL_WORKERS_MAX).contains(&pool.workers) {
        return bad("workers", "1 to 16, or 0 in the pool short", pool.workers.to_string());
    }
    if !(pool.core_share > 0.0 && pool.core_share <= 1.0) {
        return bad("core_share", "more than 0, at most 1", pool.core_share.to_string());
    }
    let queue_depth_max = pool.queue_depth_max.unwrap_or(1);
    if !(1..=QUEUE_DEPTH_MAX).contains(&queue_depth_max) {
        return bad("queue_depth_max", "1 to 1048576", queue_depth_max.to_string());
    }
    if pool.priority == PoolPriority::Patient && pool.wishes.realtime.is_some() {
        let (first, second) = (format!("patient threads of the pool {name}"), "their real-time priority".to_owned());
        return Err(BuildError::Contradiction { first, second });
    }
    if let Some(cores) = &pool.cores {
        let topology = Topology::current();
        if cores.is_empty() || !(cores - topology.allowed()).is_empty() {
            return bad("cores", "CPUs that this process may use", format!("{cores} of {}", topology.allowed()));
        }
    }
    pool.batching.map_or(Ok(()), |batching| check_batching(batching, limits))
}

/// Every device that a pool names must be there, since no other device runs the pool's ops.
fn check_devices(runtime: &Runtime) -> Result<(), BuildError> {
    let pools = Arc::clone(&runtime.control().setup.pools);
    for (name, pool) in pools.iter() {
        for device in &pool.devices {
            if runtime.router.lanes.serving(*device).is_none() {
                let known = runtime.router.lanes.names();
                let (what, expected) = ("devices of a pool", "devices of this runtime");
                let got = format!("{device} in the pool {name}; there are: {known}");
                return Err(BuildError::BadLimit { what, expected, got });
            }
        }
    }
    Ok(())
}

fn check_memory(limits: &MemoryLimits) -> Result<(), BuildError> {
    match (limits.device_bytes_max, limits.pool_bytes_max) {
        (Some(0), _) => {
            let (what, expected) = ("memory.device_bytes_max", "at least 1");
            Err(BuildError::BadLimit { what, expected, got: "0".to_owned() })
        }
        (Some(device), Some(pool)) if pool > device => Err(BuildError::Contradiction {
            first: format!("memory.pool_bytes_max = {pool}"),
            second: format!("memory.device_bytes_max = {device}, which must not be below it"),
        }),
        _ => Ok(()),
    }
}

fn check_rules(rules: &HealthRules) -> Result<(), BuildError> {
    let numbers = [
        ("hot_celsius", f64::from(rules.hot_celsius), CELSIUS),
        ("cool_celsius", f64::from(rules.cool_celsius), CELSIUS),
        ("hot_capacity", f64::from(rules.hot_capacity), CAPACITY),
        ("memory_percent_max", f64::from(rules.memory_percent_max), PERCENT),
        ("memory_percent_resume", f64::from(rules.memory_percent_resume), PERCENT),
        ("deep_capacity", f64::from(rules.deep_capacity), CAPACITY),
        ("error_percent_max", rules.error_percent_max, PERCENT),
        ("system_capacity_min", f64::from(rules.system_capacity_min), SHARE),
    ];
    for (what, value, (least, most, expected)) in numbers {
        // No range contains a NaN.
        if !(least..=most).contains(&value) {
            return Err(BuildError::BadLimit { what, expected, got: (value as f32).to_string() });
        }
    }
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
    if rules.queue_depth_resume > rules.queue_depth_max {
        return against(
            format!("queue_depth_resume = {}", rules.queue_depth_resume),
            format!("queue_depth_max = {}, which must not be below it", rules.queue_depth_max),
        );
    }
    if rules.open_wait_min > rules.open_wait_max {
        return against(
            format!("open_wait_min = {:?}", rules.open_wait_min),
            format!("open_wait_max = {:?}, which must not be below it", rules.open_wait_max),
        );
    }
    let positive =
        [("errors_min", rules.errors_min), ("probes_max", rules.probes_max), ("probes_needed", rules.probes_needed)];
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
