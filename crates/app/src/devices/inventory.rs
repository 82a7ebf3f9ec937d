//! The properties of all devices, in the form of the JSON output. A property that an API does not
//! report is `null`.

use std::time::Duration;

use panoply::placement::Placement;
use panoply::{
    Absence, BackendReport, Circuit, DeviceInfo, HealthReport, PoolWorkerReport, Runtime, WorkerReport, WorkerState,
};
use serde::Serialize;

use super::hardware::Hardware;

/// The longest wait for the workers to measure their devices.
const EXAMINE_WAIT_MAX: Duration = Duration::from_secs(2);

/// The whole JSON document.
#[derive(Serialize)]
pub struct Inventory {
    /// Panoply's version.
    pub version: &'static str,
    pub backends: Vec<BackendRow>,
    /// How much of the devices is fit for work; `null` if no device was opened.
    pub system: Option<SystemRow>,
    /// The GPUs as the kernel shows them; `null` on systems other than Linux.
    pub hardware: Option<Hardware>,
}

#[derive(Serialize)]
pub struct SystemRow {
    /// Pieces of hardware; one that several APIs reach counts once.
    pub devices: u32,
    /// The share of their capacity that is fit for work.
    pub capacity: f32,
    /// The share below which the runtime is degraded.
    pub capacity_min: f32,
    pub degraded: bool,
}

/// One API and its devices.
#[derive(Serialize)]
pub struct BackendRow {
    pub api: String,
    /// The reason why there is no device; `null` if there are any.
    pub absent: Option<AbsenceRow>,
    pub devices: Vec<DeviceRow>,
}

#[derive(Serialize)]
pub struct AbsenceRow {
    /// `not_compiled`, `library_missing`, `no_device`, `denied`, `left_out` or `other`.
    pub kind: &'static str,
    pub reason: String,
}

#[derive(Serialize)]
pub struct DeviceRow {
    pub id: String,
    pub name: String,
    pub kind: &'static str,
    /// True for a virtual device, which has no hardware.
    pub simulated: bool,
    pub memory_total_bytes: Option<u64>,
    pub memory_available_bytes: Option<u64>,
    pub memory_used_bytes: Option<u64>,
    pub memory_used_percent: Option<f64>,
    pub driver_version: Option<String>,
    pub compute_capability: Option<String>,
    pub compute_units: Option<u32>,
    pub threads_per_block_max: Option<u32>,
    pub shared_memory_bytes_max: Option<u64>,
    pub pci_address: Option<String>,
    pub numa_node: Option<u32>,
    pub domains: Vec<&'static str>,
    pub features: Vec<String>,
    pub worker: Option<WorkerRow>,
}

#[derive(Serialize)]
pub struct WorkerRow {
    /// `opening`, `ready`, `reopening`, `failed` or `stopped`.
    pub state: &'static str,
    /// The reason why the worker is not ready.
    pub trouble: Option<String>,
    pub place: PlaceRow,
    pub queued: usize,
    pub queue_depth_max: usize,
    pub accepted: u64,
    pub completed: u64,
    pub failed: u64,
    /// Ops that left this worker because its device failed them, or was about to.
    pub fallbacks: u64,
    pub health: HealthRow,
    /// The further workers of the device, which belong to pools. The figures above include theirs.
    pub pool_workers: Vec<PoolWorkerRow>,
}

#[derive(Serialize)]
pub struct PoolWorkerRow {
    /// `short`, or a domain.
    pub pool: &'static str,
    /// As of the device's own worker.
    pub state: &'static str,
    pub trouble: Option<String>,
    pub queued: usize,
    pub queue_depth_max: usize,
    pub completed: u64,
}

/// Where the worker's thread runs, as the system has granted it.
#[derive(Serialize)]
pub struct PlaceRow {
    /// `null` if the thread may run on every CPU of the process.
    pub cpus: Option<Vec<usize>>,
    /// `null` if it may run on every node.
    pub node: Option<u32>,
    pub own_core: bool,
    pub isolated: bool,
    /// The real-time priority (`SCHED_FIFO`); `null` for a normal thread.
    pub realtime: Option<u8>,
    /// Wishes that were not granted, and what would grant them.
    pub notes: Vec<String>,
}

#[derive(Serialize)]
pub struct HealthRow {
    /// The share of its capacity that the device has at present.
    pub capacity: f32,
    /// `closed`, `half_open` or `open`.
    pub circuit: &'static str,
    pub memory_full: bool,
    /// How often the capacity, the circuit or `memory_full` changed.
    pub transitions: u64,
    pub temperature_celsius: Option<f32>,
    pub power_watts: Option<f32>,
    pub utilisation_percent: Option<f32>,
    pub throttled: Option<bool>,
    /// The rules that have no value to decide by: `heat` and `memory`.
    pub rules_without_sensor: Vec<&'static str>,
    /// Why sensors are missing.
    pub sensors_absent: Option<String>,
}

impl Inventory {
    /// Collects the present state of the runtime's devices, which their workers measure first.
    pub fn of_runtime(runtime: &Runtime, hardware: Option<Hardware>) -> Inventory {
        // A device that does not answer in time is shown as it was found.
        runtime.examine(EXAMINE_WAIT_MAX);
        let inventory = Inventory::of_reports(&runtime.backends(), &runtime.workers(), hardware);
        let capacity = runtime.capacity();
        let system = SystemRow {
            devices: capacity.devices,
            capacity: capacity.share(),
            capacity_min: capacity.minimum,
            degraded: capacity.is_degraded(),
        };
        Inventory { system: Some(system), ..inventory }
    }

    /// The answers of backends, and the state of the workers of their devices.
    pub fn of_reports(reports: &[BackendReport], workers: &[WorkerReport], hardware: Option<Hardware>) -> Inventory {
        let backends = reports.iter().map(|report| backend(report, workers)).collect();
        Inventory { version: env!("CARGO_PKG_VERSION"), backends, system: None, hardware }
    }
}

fn backend(report: &BackendReport, workers: &[WorkerReport]) -> BackendRow {
    let (devices, absent) = match &report.devices {
        Ok(devices) if devices.is_empty() => {
            (Vec::new(), Some(AbsenceRow { kind: "no_device", reason: "no device was found".to_owned() }))
        }
        Ok(devices) => (devices.iter().map(|info| device(info, workers)).collect(), None),
        Err(absence) => (Vec::new(), Some(AbsenceRow { kind: absence_kind(absence), reason: absence.to_string() })),
    };
    BackendRow { api: report.api.to_string(), absent, devices }
}

fn absence_kind(absence: &Absence) -> &'static str {
    match absence {
        Absence::NotCompiled { .. } => "not_compiled",
        Absence::LibraryMissing { .. } => "library_missing",
        Absence::NoDevice { .. } => "no_device",
        Absence::Denied { .. } => "denied",
        Absence::Forked => "forked",
        Absence::LeftOut { .. } => "left_out",
        _ => "other",
    }
}

fn device(info: &DeviceInfo, workers: &[WorkerReport]) -> DeviceRow {
    DeviceRow {
        id: info.id.to_string(),
        name: info.name.clone(),
        kind: info.kind.name(),
        simulated: info.is_simulated(),
        memory_total_bytes: info.memory_total_bytes,
        memory_available_bytes: info.memory_available_bytes,
        memory_used_bytes: info.memory_used_bytes(),
        memory_used_percent: info.memory_usage_percent().map(|percent| (percent * 10.0).round() / 10.0),
        driver_version: info.driver_version.clone(),
        compute_capability: info.compute_capability.clone(),
        compute_units: info.compute_units,
        threads_per_block_max: info.threads_per_block_max,
        shared_memory_bytes_max: info.shared_memory_bytes_max,
        pci_address: info.pci_address.map(|address| address.to_string()),
        numa_node: info.numa_node,
        domains: info.capabilities.domains.iter().map(|domain| domain.name()).collect(),
        features: info.capabilities.features.clone(),
        worker: workers.iter().find(|worker| worker.device == info.id).map(worker),
    }
}

fn worker(report: &WorkerReport) -> WorkerRow {
    WorkerRow {
        state: state(report.state),
        trouble: report.trouble.as_ref().map(ToString::to_string),
        place: place(&report.placement),
        queued: report.queued,
        queue_depth_max: report.queue_depth_max,
        accepted: report.counters.accepted,
        completed: report.counters.completed,
        failed: report.counters.failed,
        fallbacks: report.counters.fallbacks,
        health: health(&report.health),
        pool_workers: report.pool_workers.iter().map(pool_worker).collect(),
    }
}

fn pool_worker(report: &PoolWorkerReport) -> PoolWorkerRow {
    PoolWorkerRow {
        pool: report.pool.name(),
        state: state(report.state),
        trouble: report.trouble.as_ref().map(ToString::to_string),
        queued: report.queued,
        queue_depth_max: report.queue_depth_max,
        completed: report.counters.completed,
    }
}

fn state(state: WorkerState) -> &'static str {
    match state {
        WorkerState::Opening => "opening",
        WorkerState::Ready => "ready",
        WorkerState::Reopening => "reopening",
        WorkerState::Failed => "failed",
        WorkerState::Stopped => "stopped",
    }
}

fn place(placement: &Placement) -> PlaceRow {
    PlaceRow {
        cpus: placement.cpus.as_ref().map(|cpus| cpus.iter().collect()),
        node: placement.node,
        own_core: placement.own_core,
        isolated: placement.isolated,
        realtime: placement.realtime.map(|priority| priority.get()),
        notes: placement.notes.clone(),
    }
}

fn health(report: &HealthReport) -> HealthRow {
    HealthRow {
        capacity: report.capacity,
        circuit: match report.circuit {
            Circuit::Closed => "closed",
            Circuit::HalfOpen => "half_open",
            Circuit::Open => "open",
        },
        memory_full: report.full,
        transitions: report.transitions,
        temperature_celsius: report.vitals.temperature_celsius,
        power_watts: report.vitals.power_watts,
        utilisation_percent: report.vitals.utilisation_percent,
        throttled: report.vitals.throttled,
        rules_without_sensor: report.rules_without_sensor(),
        sensors_absent: report.vitals.sensors_absent.clone(),
    }
}
