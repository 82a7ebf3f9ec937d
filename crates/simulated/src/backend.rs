//! Finds and opens virtual devices, and lets a test look at them and steer them while they run.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use panoply_core::clock::{Clock, SystemClock};
use panoply_core::op::graph::GraphOp;
use panoply_core::{
    Absence, Api, Backend, Describe, DeviceId, DeviceInfo, Engine, Error, Health, Op, OpenOptions, Result, Support,
    Warmth,
};

use crate::engine::VirtualEngine;
use crate::script::{Fault, Script};

/// A backend of virtual devices whose answers come from another backend.
pub struct VirtualBackend {
    answers: Arc<dyn Backend>,
    clock: Arc<dyn Clock>,
    devices: Vec<Arc<VirtualControl>>,
}

/// One virtual device, seen from a test.
pub struct VirtualControl {
    pub(super) script: Script,
    pub(super) vitals: Mutex<Health>,
    absent: AtomicBool,
    healed: AtomicBool,
    warm: Mutex<HashSet<&'static str>>,
    pub(super) injected: Mutex<VecDeque<Fault>>,
    pub(super) counts: DeviceCounters,
}

#[derive(Default)]
pub(super) struct DeviceCounters {
    pub(super) opened: AtomicU64,
    pub(super) open_attempts: AtomicU64,
    pub(super) submitted: AtomicU64,
    pub(super) next_token: AtomicU64,
    pub(super) live_bytes: AtomicU64,
}

/// Counters of a virtual device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// How often it was opened.
    pub opened: u64,
    /// How many ops reached it.
    pub submitted: u64,
    /// Bytes that live in its memory now.
    pub live_bytes: u64,
}

impl VirtualBackend {
    /// A backend without devices, whose devices will answer as `answers` does.
    pub fn new(answers: Arc<dyn Backend>) -> VirtualBackend {
        VirtualBackend { answers, clock: Arc::new(SystemClock), devices: Vec::new() }
    }

    /// Devices live by this clock.
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> VirtualBackend {
        self.clock = clock;
        self
    }

    /// Adds a device.
    pub fn device(mut self, script: Script) -> VirtualBackend {
        let control = VirtualControl {
            script,
            vitals: Mutex::default(),
            absent: AtomicBool::new(false),
            healed: AtomicBool::new(false),
            warm: Mutex::default(),
            injected: Mutex::default(),
            counts: DeviceCounters::default(),
        };
        self.devices.push(Arc::new(control));
        self
    }

    /// The controls of a device, to be kept while the runtime owns the backend.
    pub fn control(&self, index: usize) -> Option<Arc<VirtualControl>> {
        self.devices.get(index).cloned()
    }
}

impl VirtualControl {
    /// The next op that reaches the device meets this fault, before anything the script says.
    pub fn inject(&self, fault: Fault) {
        self.injected.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push_back(fault);
    }

    /// Sets the health that the device reports from now on.
    pub fn set_health(&self, vitals: Health) {
        *self.vitals.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = vitals;
    }

    /// The script's faults do not happen any more; what is injected does.
    pub fn heal(&self) {
        self.healed.store(true, Ordering::Relaxed);
    }

    /// Whether the device is found from now on.
    pub fn set_present(&self, present: bool) {
        self.absent.store(!present, Ordering::Relaxed);
    }

    /// Whether the kernel of an op of this name has been compiled.
    pub(super) fn is_warm(&self, op: &'static str) -> bool {
        let warm = || self.warm.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).contains(op);
        self.script.compile_time.is_none() || warm()
    }

    /// Notes that it has been; the time it took, where it was not before.
    pub(super) fn warm(&self, op: &'static str) -> Duration {
        let fresh = self.warm.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(op);
        self.script.compile_time.filter(|_| fresh).unwrap_or_default()
    }

    /// The device's counters.
    pub fn counters(&self) -> Counters {
        Counters {
            opened: self.counts.opened.load(Ordering::Relaxed),
            submitted: self.counts.submitted.load(Ordering::Relaxed),
            live_bytes: self.counts.live_bytes.load(Ordering::Relaxed),
        }
    }

    /// The fault for the op that has just arrived.
    pub(super) fn next_fault(&self) -> Option<Fault> {
        let number = self.counts.submitted.fetch_add(1, Ordering::Relaxed);
        let injected = self.injected.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).pop_front();
        let scripted = || self.script.fault(number).filter(|_| !self.healed.load(Ordering::Relaxed));
        injected.or_else(scripted)
    }
}

impl Backend for VirtualBackend {
    fn api(&self) -> Api {
        Api::SIMULATED
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let models = self.answers.discover()?;
        let model = models.first().ok_or(Absence::NoDevice { reason: "nothing to simulate".to_owned() })?;
        let present = |(control, _): &(&Arc<VirtualControl>, u32)| !control.absent.load(Ordering::Relaxed);
        let devices = self.devices.iter().zip(0..).filter(present).map(|(control, index)| {
            let mut info = model.clone();
            info.id = DeviceId { api: Api::SIMULATED, index };
            info.name = format!("simulated device {index}");
            info.numa_node = None;
            // Regardless of the answering backend, the virtual device has a queue of its own. It
            // has its own memory unless the script says otherwise.
            info.shares_host_memory = control.script.in_host_memory;
            info.computes_in_submit = false;
            info.runs_on_cores = false;
            info.is_virtual = true;
            info.kind = control.script.kind.unwrap_or(info.kind);
            info.pci_address = control.script.pci_address;
            info.memory_total_bytes = control.script.memory_bytes.or(info.memory_total_bytes);
            info.memory_available_bytes = control.script.memory_bytes.or(info.memory_available_bytes);
            info
        });
        Ok(devices.collect())
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        if let Op::Graph(GraphOp::RunGraph(graph)) = op
            && let Ok(instance) = graph.instance()
        {
            // Reports the ops that the script leaves out, and too little memory of the device.
            let lacking = instance.support(graph.graph(), device.id, &|op| self.supports(device, op));
            let control = self.devices.get(device.id.index as usize);
            let is_bounded = control.is_some_and(|control| control.script.memory_bytes.is_some());
            return if lacking.is_yes() && is_bounded { self.answers.supports(device, op) } else { lacking };
        }
        match self.can_run(device, op) {
            true => Support::Yes,
            false => Support::No(format!("the script leaves {} out", op.name())),
        }
    }

    fn can_run(&self, device: &DeviceInfo, op: &Op) -> bool {
        if let Op::Graph(_) = op {
            return self.supports(device, op).is_yes();
        }
        let control = self.devices.get(device.id.index as usize);
        control.is_some_and(|control| !control.script.lacking.contains(&op.name()))
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        match self.devices.get(device.id.index as usize) {
            Some(control) if !control.is_warm(op.name()) => Warmth::Cold,
            _ => Warmth::Warm,
        }
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        let unavailable = |reason: &str| Error::DeviceUnavailable { device: device.id, reason: reason.to_owned() };
        let control =
            self.devices.get(device.id.index as usize).ok_or_else(|| unavailable("there is no such device"))?;
        let attempt = control.counts.open_attempts.fetch_add(1, Ordering::Relaxed);
        if attempt < u64::from(control.script.failing_opens) {
            return Err(unavailable("the script says that opening fails"));
        }
        let opens_max = control.script.failing_opens_after;
        if opens_max > 0 && control.counts.opened.load(Ordering::Relaxed) >= opens_max {
            return Err(unavailable("the script says that the device is gone"));
        }
        let models = self.answers.discover().map_err(|absence| unavailable(&absence.to_string()))?;
        let model = models.first().ok_or_else(|| unavailable("nothing to simulate"))?;
        // One thread is enough for a device that is slow on purpose.
        let options = OpenOptions { threads: Some(1), ..options.clone() };
        let answers = self.answers.open(model, &options)?;
        control.counts.opened.fetch_add(1, Ordering::Relaxed);
        let (control, clock) = (Arc::clone(control), Arc::clone(&self.clock));
        Ok(Box::new(VirtualEngine::new(device.clone(), answers, control, clock, options.memory)))
    }
}
