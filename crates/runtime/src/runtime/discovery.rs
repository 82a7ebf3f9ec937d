//! Finds devices: when the runtime is built, and again on request.

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::ThreadId;

use panoply_core::clock::SystemClock;
use panoply_core::cpu_set::CpuSet;
use panoply_core::{Absence, Api, Backend, DeviceId, DeviceInfo, DeviceKind, Error, MemoryLimits};
use panoply_lockfree::foreign::contain;
use panoply_placement::Topology;

use super::{BackendReport, Control, Runtime};
use crate::device_worker::driver::Opener;
use crate::device_worker::supervisor::NotAgain;
use crate::errands::Errand;
use crate::lane::{Lane, WorkerState};
use crate::process::{self, Process};
use crate::router::profile::Identity;
use crate::router::{Candidate, LANES_MAX};

/// A change of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeviceChange {
    /// The device is new, or works again after it was given up.
    Appeared(DeviceId),
    /// The device is no longer there. Ops that waited for it go elsewhere under their fallback
    /// policy.
    Gone(DeviceId),
}

/// The changes that a new search found.
pub type Rediscovery = Vec<DeviceChange>;

/// The most device names in one reason.
const NAMES_MAX: usize = 8;

/// The answer of one backend.
struct BackendAnswer {
    backend: Arc<dyn Backend>,
    /// `Err` holds the message of a panic.
    devices: Result<Result<Vec<DeviceInfo>, Absence>, String>,
}

impl BackendAnswer {
    /// The devices that it found, except those that the builder excluded.
    fn wanted<'a>(&'a self, leave_out: &'a [DeviceId]) -> impl Iterator<Item = &'a DeviceInfo> {
        let devices = self.devices.iter().flatten().flatten();
        devices.filter(move |info| !leave_out.contains(&info.id))
    }
}

/// Devices that exist but get no worker, grouped by the reason.
#[derive(Default)]
struct OmittedDevices(Vec<(Api, String, Vec<DeviceId>)>);

impl OmittedDevices {
    fn note(&mut self, device: DeviceId, reason: String) {
        let same = self.0.iter_mut().find(|(api, known, _)| *api == device.api && *known == reason);
        match same {
            Some((_, _, devices)) => devices.push(device),
            None => self.0.push((device.api, reason, vec![device])),
        }
    }

    fn reports(self) -> impl Iterator<Item = BackendReport> {
        self.0.into_iter().map(|(api, reason, devices)| {
            let mut names: Vec<String> = devices.iter().take(NAMES_MAX).map(ToString::to_string).collect();
            if devices.len() > NAMES_MAX {
                names.push(format!("and {} more", devices.len() - NAMES_MAX));
            }
            BackendReport { api, devices: Err(Absence::LeftOut { devices: names.join(", "), reason }) }
        })
    }
}

impl Runtime {
    /// Searches for devices again. New devices, and devices that come back after they were given
    /// up, get a worker; devices that are gone lose theirs. Returns the changes.
    ///
    /// A runtime serves 48 devices at once. New devices for which there is no room, and devices
    /// whose worker cannot be started, are left out, and [`Runtime::backends`] reports the reason.
    /// A failing backend or device does not affect the others.
    ///
    /// A second thread that calls this waits for the first. Backends are asked one after the other.
    /// A backend that calls this itself gets an error.
    pub fn rediscover(&self) -> Result<Rediscovery, Error> {
        self.process.check("the runtime")?;
        let _search = self.search.begin(self.process)?;
        let topology = Topology::current();
        let (backends, leave_out) = {
            let control = self.control();
            if control.supervisor.is_none() {
                return Err(Error::ShuttingDown);
            }
            (control.backends.clone(), control.setup.leave_out.clone())
        };
        let ask = |backend: Arc<dyn Backend>| {
            let devices = contain(|| backend.discover());
            BackendAnswer { backend, devices }
        };
        let answers: Vec<BackendAnswer> = backends.into_iter().map(ask).collect();
        let (mut changes, mut left_out) = (Vec::new(), OmittedDevices::default());
        for answer in &answers {
            self.retire_missing(answer, &leave_out, &mut changes);
        }
        // Devices that were never here come first: they may need the slots of devices that were
        // given up.
        for given_up in [false, true] {
            for answer in &answers {
                for info in answer.wanted(&leave_out) {
                    let serving = self.router.lanes.serving(info.id);
                    if serving.is_some() != given_up || serving.is_some_and(Candidate::is_alive) {
                        continue;
                    }
                    let found =
                        |device: DeviceId| answers.iter().any(|one| one.wanted(&[]).any(|info| info.id == device));
                    match self.start(&mut self.control(), &topology, &answer.backend, info, &found) {
                        Ok(()) => changes.push(DeviceChange::Appeared(info.id)),
                        Err(Error::ShuttingDown) => return Err(Error::ShuttingDown),
                        Err(Error::DeviceUnavailable { reason, .. }) => left_out.note(info.id, reason),
                        Err(error) => left_out.note(info.id, error.to_string()),
                    }
                }
            }
        }
        self.note_reports(answers, left_out);
        Ok(changes)
    }

    fn note_reports(&self, answers: Vec<BackendAnswer>, left_out: OmittedDevices) {
        let report = |answer: BackendAnswer| {
            let devices = answer.devices.unwrap_or_else(|message| {
                Err(Absence::NoDevice { reason: format!("its backend panicked: {message}") })
            });
            BackendReport { api: answer.backend.api(), devices }
        };
        let mut reports: Vec<BackendReport> = answers.into_iter().map(report).chain(left_out.reports()).collect();
        let mut control = self.control();
        // Backends that were recorded as absent when the runtime was built stay in the report.
        let looked = |report: &BackendReport| reports.iter().any(|newer| newer.api == report.api);
        let kept: Vec<BackendReport> = control.reports.iter().filter(|report| !looked(report)).cloned().collect();
        reports.extend(kept);
        control.reports = reports;
    }

    fn retire_missing(&self, answer: &BackendAnswer, leave_out: &[DeviceId], changes: &mut Vec<DeviceChange>) {
        if answer.devices.is_err() {
            // A panic says nothing about the devices that were found before, so they stay.
            return;
        }
        for candidate in self.router.lanes.iter() {
            let lane = &candidate.lane;
            let found = answer.wanted(leave_out).any(|info| info.id == lane.info.id);
            if lane.info.id.api == answer.backend.api() && !found && candidate.is_alive() {
                changes.push(DeviceChange::Gone(lane.info.id));
                self.retire(lane);
            }
        }
    }

    /// Gives a device up: waiting ops go elsewhere, and its worker ends after its ops in flight.
    fn retire(&self, lane: &Arc<Lane>) {
        let reason = "it was not found any more".to_owned();
        self.give_up(lane, Error::DeviceLost { device: lane.info.id, reason });
    }

    fn give_up(&self, lane: &Arc<Lane>, cause: Error) {
        let news = lane.put_state(WorkerState::Failed, Some(cause.clone()));
        self.errands.drop_all(lane.end_queued());
        if news {
            let lane = Arc::clone(lane);
            self.errands.send([Box::new(move || lane.tell_state(WorkerState::Failed, Some(&cause))) as Errand]);
        }
    }

    /// Starts a worker for a device: in its previous lane if that can be opened again, otherwise in
    /// a new one.
    fn start(
        &self,
        control: &mut Control,
        topology: &Topology,
        backend: &Arc<dyn Backend>,
        info: &DeviceInfo,
        found: &dyn Fn(DeviceId) -> bool,
    ) -> Result<(), Error> {
        let (device, lanes) = (info.id, &self.router.lanes);
        let Control { supervisor, setup, open, memory, .. } = control;
        let Some(supervisor) = supervisor else { return Err(Error::ShuttingDown) };
        let serving = lanes.serving(device);
        if let Some(before) = serving.filter(|before| is_same_device(&before.lane.info, info)) {
            match supervisor.start_again(&before.lane) {
                Ok(()) => return Ok(()),
                Err(NotAgain::Failed(error)) => return Err(error),
                Err(NotAgain::Busy) => {}
            }
        }
        let cpus = worker_cpus(topology, info);
        let mut options = open.clone();
        // Later limits come first.
        let own = memory.iter().rev().filter(|(of, _)| *of == device).map(|(_, limits)| *limits);
        options.memory = own.fold(MemoryLimits::default(), MemoryLimits::or).or(open.memory);
        options.threads = options.threads.or_else(|| engine_threads(topology, info, cpus.as_ref()));
        let opener = Opener { backend: Arc::clone(backend), options, clock: Arc::new(SystemClock) };
        let (own_slot, crowded) = (serving.map(|before| before.lane.id), lanes.len() >= LANES_MAX);
        // Which slots may be taken over. A slot of a device that is gone is preferred to one of a
        // device that exists but does not work.
        let rank = |other: &Candidate| match own_slot {
            Some(own) => (other.lane.id == own).then_some(false),
            None => (crowded && !other.is_alive()).then(|| found(other.lane.info.id)),
        };
        // A previous lane of this device that was replaced since is as good as a new one.
        let is_its_own = |candidate: &&Candidate| {
            let lane = &candidate.lane;
            let takes_over = || lanes.get(usize::from(lane.number)).is_some_and(|other| rank(other).is_some());
            lane.info.id == device && lane.is_replaced() && is_same_device(&lane.info, info) && takes_over()
        };
        for before in lanes.all().filter(is_its_own) {
            match supervisor.start_replaced(&before.lane, &opener, &cpus) {
                Ok(()) => {
                    lanes.put_back(before);
                    return Ok(());
                }
                Err(NotAgain::Failed(error)) => return Err(error),
                Err(NotAgain::Busy) => {}
            }
        }
        Lane::check_room(device, setup)?;
        // The objects of a device follow it when it is found again.
        let before = lanes.newest_of(device).map(|candidate| &*candidate.lane);
        let make = |place| Lane::new(place, info.clone(), setup).with_objects_of(before);
        let added = lanes.add_over(backend, rank, make);
        let lane = added.map_err(|reason| Error::DeviceUnavailable { device, reason })?;
        let started = supervisor.start(Arc::clone(&lane), opener, cpus);
        if let Err(error) = &started {
            // No worker serves the lane, so ops that were sent there meanwhile go elsewhere.
            self.give_up(&lane, error.clone());
        }
        started
    }
}

/// Whether this is the same device as before, so that what was learned about it still applies.
fn is_same_device(before: &DeviceInfo, now: &DeviceInfo) -> bool {
    Identity::of(before) == Identity::of(now)
        && before.pci_address == now.pci_address
        && before.capabilities == now.capabilities
        && before.numa_node == now.numa_node
}

/// Allows only one thread at a time to search for devices.
#[derive(Default)]
pub(super) struct Search {
    turn: Mutex<()>,
    /// The thread that searches now.
    thread: Mutex<Option<ThreadId>>,
}

/// The permission to search for devices.
pub(super) struct DiscoveryTurn<'a> {
    thread: &'a Mutex<Option<ThreadId>>,
    process: Process,
    _turn: MutexGuard<'a, ()>,
}

impl Search {
    fn begin(&self, process: Process) -> Result<DiscoveryTurn<'_>, Error> {
        let here = std::thread::current().id();
        let forked = || process.refusal("the runtime");
        if *process::lock(&self.thread, process).ok_or_else(forked)? == Some(here) {
            return Err(Error::invalid(
                "rediscover",
                "a call that is not made by a backend's `discover`",
                "such a call",
            ));
        }
        let turn = process::lock(&self.turn, process).ok_or_else(forked)?;
        *process::lock(&self.thread, process).ok_or_else(forked)? = Some(here);
        Ok(DiscoveryTurn { thread: &self.thread, process, _turn: turn })
    }
}

impl Drop for DiscoveryTurn<'_> {
    fn drop(&mut self) {
        if let Some(mut thread) = process::lock(self.thread, self.process) {
            *thread = None;
        }
    }
}

/// The CPUs near a device: those of its NUMA node that this process may use. A worker shares them
/// with the program's other threads.
fn worker_cpus(topology: &Topology, info: &DeviceInfo) -> Option<CpuSet> {
    let node = topology.node(info.numa_node?)?;
    let cpus = node.cpus.intersection(topology.allowed());
    (!cpus.is_empty()).then_some(cpus)
}

/// The number of threads of a CPU engine: the number of CPUs of its node, within a container's
/// quota.
fn engine_threads(topology: &Topology, info: &DeviceInfo, cpus: Option<&CpuSet>) -> Option<usize> {
    let of_node = cpus.map_or(topology.effective_cpus(), CpuSet::len);
    (info.kind == DeviceKind::Cpu).then(|| of_node.min(topology.effective_cpus()).max(1))
}
