//! Builds a runtime: which backends, which bounds.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use panoply_core::clock::SystemClock;
use panoply_core::cpu_set::CpuSet;
use panoply_core::{Absence, Api, Backend, DeviceInfo, DeviceKind, Error, OpenOptions};

use super::{BackendReport, Runtime, Timers};
use crate::device_worker::driver::Opener;
use crate::device_worker::supervisor::Supervisor;
use crate::device_worker::{Lane, WorkerLimits, WorkerState};
use crate::placement::Topology;
use crate::router::Candidate;

/// How long `build` waits for a device to open before it goes on without it; the worker keeps trying.
const OPEN_WAIT_MAX: Duration = Duration::from_secs(20);

/// Chooses what a [`Runtime`] is made of.
#[derive(Default)]
pub struct Builder {
    backends: Vec<Arc<dyn Backend>>,
    absent: Vec<BackendReport>,
    limits: WorkerLimits,
    open: OpenOptions,
}

/// Why no runtime could be built.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No backend found a device.
    #[error("no device was found: {}", reasons.join("; "))]
    NoDevice {
        /// What each backend said.
        reasons: Vec<String>,
    },
    /// A bound makes no sense.
    #[error("{what}: expected {expected}, got {got}")]
    BadLimit {
        /// Which bound.
        what: &'static str,
        /// What would have been accepted.
        expected: &'static str,
        /// What was given.
        got: String,
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

    /// Notes a backend that is not there, so that [`Runtime::backends`] can say why.
    pub fn absent(mut self, api: Api, reason: Absence) -> Builder {
        self.absent.push(BackendReport { api, devices: Err(reason) });
        self
    }

    /// The bounds of every device worker.
    pub fn limits(mut self, limits: WorkerLimits) -> Builder {
        self.limits = limits;
        self
    }

    /// How devices are opened.
    pub fn open_options(mut self, open: OpenOptions) -> Builder {
        self.open = open;
        self
    }

    /// Finds the devices, starts their workers, and waits for them to be opened.
    pub fn build(self) -> Result<Runtime, BuildError> {
        check_limits(&self.limits)?;
        let mut reports = Vec::new();
        let mut candidates = Vec::new();
        for backend in &self.backends {
            let devices = backend.discover();
            for info in devices.iter().flatten() {
                let lane = Arc::new(Lane::new(info.clone(), self.limits.clone()));
                candidates.push(Candidate { lane, backend: Arc::clone(backend) });
            }
            reports.push(BackendReport { api: backend.api(), devices });
        }
        reports.extend(self.absent);
        if candidates.is_empty() {
            return Err(BuildError::NoDevice { reasons: reports.iter().filter_map(reason).collect() });
        }
        let mut supervisor = Supervisor::new();
        let topology = Topology::current();
        for Candidate { lane, backend } in &candidates {
            let cpus = worker_cpus(&topology, &lane.info);
            let mut options = self.open.clone();
            options.threads = options.threads.or_else(|| engine_threads(&topology, &lane.info, cpus.as_ref()));
            let opener = Opener { backend: Arc::clone(backend), options, clock: Arc::new(SystemClock) };
            supervisor.start(Arc::clone(lane), opener, cpus)?;
        }
        wait_until_open(&candidates);
        let supervisor = Mutex::new(Some(supervisor));
        Ok(Runtime { candidates, backends: reports, timers: Arc::new(Timers::new()), supervisor })
    }
}

/// The CPUs near a device: those of its NUMA node that this process may use. A worker shares them with the program's
/// other threads; nothing is taken away from anybody.
fn worker_cpus(topology: &Topology, info: &DeviceInfo) -> Option<CpuSet> {
    let node = topology.node(info.numa_node?)?;
    let cpus = node.cpus.intersection(topology.allowed());
    (!cpus.is_empty()).then_some(cpus)
}

/// A CPU engine computes with as many threads as its node has CPUs, within what a container's quota allows.
fn engine_threads(topology: &Topology, info: &DeviceInfo, cpus: Option<&CpuSet>) -> Option<usize> {
    let of_node = cpus.map_or(topology.effective_cpus(), CpuSet::len);
    (info.kind == DeviceKind::Cpu).then(|| of_node.min(topology.effective_cpus()).max(1))
}

fn wait_until_open(candidates: &[Candidate]) {
    let start = Instant::now();
    let opening = |candidate: &Candidate| candidate.lane.state() == WorkerState::Opening;
    while candidates.iter().any(opening) && start.elapsed() < OPEN_WAIT_MAX {
        std::thread::sleep(Duration::from_micros(50));
    }
}

fn reason(report: &BackendReport) -> Option<String> {
    match &report.devices {
        Ok(_) => None,
        Err(absence) => Some(format!("{}: {absence}", report.api)),
    }
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
    if limits.op_time_max.is_zero() {
        return Err(BuildError::BadLimit { what: "op_time_max", expected: "more than 0 s", got: "0 s".to_owned() });
    }
    if limits.reopen_wait_min > limits.reopen_wait_max {
        let got = format!("{:?} > {:?}", limits.reopen_wait_min, limits.reopen_wait_max);
        return Err(BuildError::BadLimit { what: "reopen_wait_min", expected: "at most reopen_wait_max", got });
    }
    Ok(())
}
