//! Finds devices: when the runtime is built, and again on request.

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

use panoply_core::clock::SystemClock;
use panoply_core::cpu_set::CpuSet;
use panoply_core::{Absence, Backend, DeviceId, DeviceInfo, DeviceKind, Error};

use super::{BackendReport, Control, Runtime};
use crate::device_worker::driver::Opener;
use crate::errands::Errand;
use crate::foreign::contain;
use crate::lane::{Lane, WorkerState};
use crate::placement::Topology;
use crate::router::LANES_MAX;

/// What became of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// It is new, or works again after it was given up.
    Appeared(DeviceId),
    /// It is not there any more; what waited for it goes elsewhere under its fallback policy.
    Gone(DeviceId),
}

/// What looking again brought up.
pub type Rediscovery = Vec<DeviceChange>;

impl Runtime {
    /// Looks for devices again. New ones, and those that come back after they were given up, get a worker; those that are
    /// gone lose theirs. Returns what changed.
    ///
    /// Whoever calls this while another thread does waits for it. Backends are asked one after the other; one that calls this itself
    /// gets an error.
    pub fn rediscover(&self) -> Result<Rediscovery, Error> {
        let _search = self.search.begin()?;
        let mut changes = Vec::new();
        let topology = Topology::current();
        let mut reports = Vec::new();
        let (backends, leave_out) = {
            let control = self.control();
            (control.backends.clone(), control.setup.leave_out.clone())
        };
        for backend in backends {
            let devices = match contain(|| backend.discover()) {
                Ok(devices) => devices,
                Err(message) => {
                    // That says nothing about the devices that it found before: they stay.
                    let reason = format!("its backend panicked: {message}");
                    reports.push(BackendReport { api: backend.api(), devices: Err(Absence::NoDevice { reason }) });
                    continue;
                }
            };
            let wanted = |info: &&DeviceInfo| !leave_out.contains(&info.id);
            let found: Vec<DeviceInfo> = devices.iter().flatten().filter(wanted).cloned().collect();
            self.retire_missing(&backend, &found, &mut changes);
            for info in found {
                let serving = self.router.lanes.serving(info.id);
                if serving.is_none_or(|candidate| !candidate.is_alive()) {
                    changes.push(DeviceChange::Appeared(info.id));
                    self.start(&mut self.control(), &topology, &backend, info)?;
                }
            }
            reports.push(BackendReport { api: backend.api(), devices });
        }
        let mut control = self.control();
        // What was noted as absent when the runtime was built stays so.
        let looked = |report: &BackendReport| reports.iter().any(|newer| newer.api == report.api);
        let kept: Vec<BackendReport> = control.reports.iter().filter(|report| !looked(report)).cloned().collect();
        reports.extend(kept);
        control.reports = reports;
        Ok(changes)
    }

    fn retire_missing(&self, backend: &Arc<dyn Backend>, found: &[DeviceInfo], changes: &mut Vec<DeviceChange>) {
        for candidate in self.router.lanes.current() {
            let lane = &candidate.lane;
            let missing = lane.info.id.api == backend.api() && !found.iter().any(|info| info.id == lane.info.id);
            if missing && candidate.is_alive() {
                changes.push(DeviceChange::Gone(lane.info.id));
                self.retire(lane);
            }
        }
    }

    /// Gives a device up: what waits goes elsewhere, and its worker ends with what it has under way.
    fn retire(&self, lane: &Arc<Lane>) {
        let reason = "it was not found any more".to_owned();
        let cause = Error::DeviceLost { device: lane.info.id, reason };
        let news = lane.put_state(WorkerState::Failed, Some(cause.clone()));
        self.errands.drop_all(lane.end_queued());
        if news {
            let lane = Arc::clone(lane);
            self.errands.send([Box::new(move || lane.tell_state(WorkerState::Failed, Some(&cause))) as Errand]);
        }
    }

    fn start(
        &self,
        control: &mut Control,
        topology: &Topology,
        backend: &Arc<dyn Backend>,
        info: DeviceInfo,
    ) -> Result<(), Error> {
        let device = info.id;
        let Control { supervisor, setup, open, .. } = control;
        let Some(supervisor) = supervisor else { return Err(Error::ShuttingDown) };
        let cpus = worker_cpus(topology, &info);
        let mut options = open.clone();
        options.threads = options.threads.or_else(|| engine_threads(topology, &info, cpus.as_ref()));
        let reason = format!("a runtime has room for {LANES_MAX} devices in its life");
        let full = Error::DeviceUnavailable { device, reason };
        // Its objects follow a device that is found again.
        let before = self.router.lanes.serving(device).map(|candidate| &*candidate.lane);
        let make = |number| Lane::new(number, info, setup).with_objects_of(before);
        let lane = self.router.lanes.add(backend, make).ok_or(full)?;
        let opener = Opener { backend: Arc::clone(backend), options, clock: Arc::new(SystemClock) };
        supervisor.start(lane, opener, cpus)
    }
}

/// Who looks for devices: one thread at a time.
#[derive(Default)]
pub(super) struct Search {
    turn: Mutex<()>,
    /// Whose turn it is.
    thread: Mutex<Option<ThreadId>>,
}

/// A turn at looking for devices.
pub(super) struct Turn<'a> {
    thread: &'a Mutex<Option<ThreadId>>,
    _turn: MutexGuard<'a, ()>,
}

impl Search {
    fn begin(&self) -> Result<Turn<'_>, Error> {
        let here = std::thread::current().id();
        if *lock(&self.thread) == Some(here) {
            return Err(Error::invalid(
                "rediscover",
                "a call that is not made by a backend's `discover`",
                "such a call",
            ));
        }
        let turn = lock(&self.turn);
        *lock(&self.thread) = Some(here);
        Ok(Turn { thread: &self.thread, _turn: turn })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        *lock(self.thread) = None;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
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
