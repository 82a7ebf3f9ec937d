//! Health: which devices are fit for work.
//!
//! A lane's [`Gate`] sums up what the engine reports about its device and how its ops end. Routing
//! reads the gate. The worker writes it: after each op, and about once a second when it asks the
//! engine for the device's health.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use panoply_core::{Health, MemoryUse};

use crate::process::{self, Process};

mod breaker;

pub use breaker::Circuit;
pub(crate) use breaker::{Admission, Breaker, Mark, WINDOW};

/// The limits above which a device counts as hot, full or faulty, and the consequences. A device
/// with a part of its capacity gets batches of that part of the size, and the router expects it to
/// take as much longer.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthRules {
    /// Above this temperature, a device has only `hot_capacity`.
    pub hot_celsius: f32,
    /// At this temperature, a hot device has its whole capacity again.
    pub cool_celsius: f32,
    /// The fraction of its capacity that a hot device keeps, from 0.05 to 1. A device that slows
    /// itself down counts as hot.
    pub hot_capacity: f32,
    /// Above this memory usage, a device gets no new work that another device can do.
    pub memory_percent_max: f32,
    /// At this memory usage, a full device gets work again.
    pub memory_percent_resume: f32,
    /// With more requests in its queue than this, a device has only `deep_capacity`.
    pub queue_depth_max: u32,
    /// With this many requests in its queue, the device has its whole capacity again.
    pub queue_depth_resume: u32,
    /// The fraction of its capacity that a device with such a queue keeps, from 0.05 to 1.
    pub deep_capacity: f32,
    /// The percentage of failed ops among the last 64 above which a device's circuit opens.
    pub error_percent_max: f64,
    /// The circuit never opens with fewer failed ops than this.
    pub errors_min: u32,
    /// How long a circuit stays open the first time. Each further opening doubles the time.
    pub open_wait_min: Duration,
    /// The longest time that a circuit stays open.
    pub open_wait_max: Duration,
    /// How many probes may be in flight while a circuit is half-open.
    pub probes_max: u32,
    /// How many probes must succeed to close the circuit.
    pub probes_needed: u32,
    /// How often the engine is asked for the device's health.
    pub look_every: Duration,
    /// Below this share of all devices' capacity the runtime is degraded; see
    /// [`SystemCapacity`](crate::SystemCapacity).
    pub system_capacity_min: f32,
    /// Whether ops of [`Priority::Patient`](crate::Priority::Patient) are refused while the runtime
    /// is degraded.
    pub refuse_patient: bool,
}

impl Default for HealthRules {
    fn default() -> HealthRules {
        HealthRules {
            hot_celsius: 85.0,
            cool_celsius: 80.0,
            hot_capacity: 0.5,
            memory_percent_max: 95.0,
            memory_percent_resume: 90.0,
            queue_depth_max: 10_000,
            queue_depth_resume: 9_000,
            deep_capacity: 0.7,
            error_percent_max: 10.0,
            errors_min: 5,
            open_wait_min: Duration::from_secs(1),
            open_wait_max: Duration::from_secs(60),
            probes_max: 2,
            probes_needed: 3,
            look_every: Duration::from_secs(1),
            system_capacity_min: 0.75,
            refuse_patient: false,
        }
    }
}

/// A device's health as its users see it.
#[derive(Clone, Debug, PartialEq)]
pub struct HealthReport {
    /// The fraction of its capacity that the device has now, from 0 to 1.
    pub capacity: f32,
    /// The state of its circuit.
    pub circuit: Circuit,
    /// Whether the device's memory is too full for new work.
    pub full: bool,
    /// How often its circuit, capacity or fullness changed.
    pub transitions: u64,
    /// The engine's last report.
    pub vitals: Health,
}

impl HealthReport {
    /// The rules that decide nothing about this device, because it reports no value for them:
    /// `heat` and `memory`. [`Health::sensors_absent`] may say why.
    pub fn rules_without_sensor(&self) -> Vec<&'static str> {
        let is_blind_to_heat = self.vitals.temperature_celsius.is_none() && self.vitals.throttled.is_none();
        let rules = [("heat", is_blind_to_heat), ("memory", self.vitals.memory.is_none())];
        rules.into_iter().filter(|(_, is_blind)| *is_blind).map(|(rule, _)| rule).collect()
    }
}

/// The smallest fraction of its capacity that a device keeps.
pub(crate) const CAPACITY_MIN: f32 = 0.05;

const FULL: u8 = 1;
const HOT: u8 = 2;
const DEEP: u8 = 4;

/// The summary of a device's health that routing reads.
pub(crate) struct Gate {
    pub(crate) breaker: Breaker,
    capacity: AtomicU32,
    flags: AtomicU8,
    watts: AtomicU32,
    transitions: AtomicU64,
    /// Written about once a second, never on the path of an op.
    vitals: Mutex<Health>,
}

impl Gate {
    pub(crate) fn new() -> Gate {
        Gate {
            breaker: Breaker::new(),
            capacity: AtomicU32::new(1.0_f32.to_bits()),
            flags: AtomicU8::new(0),
            watts: AtomicU32::new(0),
            transitions: AtomicU64::new(0),
            vitals: Mutex::default(),
        }
    }

    /// The fraction of its capacity that the device has, above 0 and at most 1.
    pub(crate) fn capacity(&self) -> f32 {
        f32::from_bits(self.capacity.load(Ordering::Relaxed))
    }

    /// Whether the device's memory is too full for new work.
    pub(crate) fn is_full(&self) -> bool {
        self.flags.load(Ordering::Relaxed) & FULL != 0
    }

    /// Whether the device must be examined again even without ops.
    pub(crate) fn is_ailing(&self) -> bool {
        self.flags.load(Ordering::Relaxed) != 0
    }

    /// The power draw at the last examination.
    pub(crate) fn watts(&self) -> Option<f32> {
        Some(f32::from_bits(self.watts.load(Ordering::Relaxed))).filter(|watts| *watts > 0.0)
    }

    /// Starts over, for a device that is opened again after it was given up.
    pub(crate) fn forget(&self) {
        self.breaker.forget();
        self.flags.store(0, Ordering::Relaxed);
        self.capacity.store(1.0_f32.to_bits(), Ordering::Relaxed);
    }

    /// Evaluates the engine's report. Returns true if a flag changed.
    pub(crate) fn examine(&self, vitals: Health, rules: &HealthRules) -> bool {
        let before = self.flags.load(Ordering::Relaxed);
        let held = |flag: u8, value: Option<f32>, above: f32, until: f32| match value {
            Some(value) if value > above => flag,
            Some(value) if value > until => before & flag,
            Some(_) => 0,
            None => 0,
        };
        let hot = held(HOT, vitals.temperature_celsius, rules.hot_celsius, rules.cool_celsius);
        let used_percent = vitals.memory.map(|memory| memory.used_percent());
        let full = held(FULL, used_percent, rules.memory_percent_max, rules.memory_percent_resume);
        let depth = vitals.queue_depth.map(|depth| depth as f32);
        let deep = held(DEEP, depth, rules.queue_depth_max as f32, rules.queue_depth_resume as f32);
        let throttled = vitals.throttled == Some(true);
        let heat = if hot != 0 || throttled { rules.hot_capacity } else { 1.0 };
        let capacity = if deep != 0 { heat.min(rules.deep_capacity) } else { heat };
        self.capacity.store(capacity.clamp(CAPACITY_MIN, 1.0).to_bits(), Ordering::Relaxed);
        self.watts.store(vitals.power_watts.unwrap_or(0.0).to_bits(), Ordering::Relaxed);
        let flags = hot | full | deep | if throttled { HOT } else { 0 };
        self.flags.store(flags, Ordering::Relaxed);
        *self.vitals.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = vitals;
        if flags != before {
            self.transitions.fetch_add(1, Ordering::Relaxed);
        }
        flags != before
    }

    /// The device's memory at the last examination.
    pub(crate) fn memory(&self, process: Process) -> Option<MemoryUse> {
        process::lock(&self.vitals, process)?.memory
    }

    pub(crate) fn report(&self, process: Process) -> HealthReport {
        HealthReport {
            capacity: self.capacity(),
            circuit: self.breaker.circuit(),
            full: self.is_full(),
            transitions: self.transitions.load(Ordering::Relaxed) + self.breaker.transitions(),
            vitals: process::lock(&self.vitals, process).map(|vitals| vitals.clone()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(temperature: f32, memory: f32) -> Health {
        let memory = Some(MemoryUse::new(1000, 1000 - (memory * 10.0) as u64));
        Health { temperature_celsius: Some(temperature), memory, ..Health::default() }
    }

    #[test]
    fn heat_halves_the_capacity_until_it_is_cool_again() {
        let (gate, rules) = (Gate::new(), HealthRules::default());
        assert!(!gate.examine(at(85.0, 10.0), &rules) && gate.capacity() == 1.0);
        assert!(gate.examine(at(85.5, 10.0), &rules) && gate.capacity() == 0.5);
        assert!(
            !gate.examine(at(82.0, 10.0), &rules) && gate.capacity() == 0.5,
            "neither hot nor cool changes nothing"
        );
        assert!(gate.examine(at(79.0, 10.0), &rules) && gate.capacity() == 1.0);
        assert_eq!(gate.report(Process::current()).transitions, 2);
    }

    #[test]
    fn a_long_queue_lowers_the_capacity_until_it_is_shorter() {
        let (gate, rules) = (Gate::new(), HealthRules::default());
        let with = |depth: u32| Health { queue_depth: Some(depth), ..Health::default() };
        assert!(!gate.examine(with(10_000), &rules) && gate.capacity() == 1.0);
        assert!(gate.examine(with(10_001), &rules) && gate.capacity() == 0.7 && gate.is_ailing());
        assert!(!gate.examine(with(9_500), &rules) && gate.capacity() == 0.7);
        let hot = Health { temperature_celsius: Some(90.0), ..with(20_000) };
        assert!(gate.examine(hot, &rules) && gate.capacity() == 0.5, "the lower of both counts");
        assert!(gate.examine(with(9_000), &rules) && gate.capacity() == 1.0);
    }

    #[test]
    fn a_full_device_gets_nothing_until_there_is_room() {
        let (gate, rules) = (Gate::new(), HealthRules::default());
        assert!(gate.examine(at(40.0, 96.0), &rules) && gate.is_full() && gate.is_ailing());
        gate.examine(at(40.0, 93.0), &rules);
        assert!(gate.is_full());
        gate.examine(at(40.0, 90.0), &rules);
        assert!(!gate.is_full() && !gate.is_ailing());
        gate.examine(Health::default(), &rules);
        assert!(!gate.is_full(), "a device that tells nothing is well");
    }

    #[test]
    fn rules_without_a_sensor_are_named() {
        let (gate, rules) = (Gate::new(), HealthRules::default());
        let blind = |vitals: Health| {
            gate.examine(vitals, &rules);
            gate.report(Process::current()).rules_without_sensor()
        };
        assert_eq!(blind(Health::default()), ["heat", "memory"]);
        assert_eq!(blind(Health { throttled: Some(false), ..Health::default() }), ["memory"]);
        assert_eq!(blind(at(40.0, 10.0)), [] as [&str; 0]);
    }

    #[test]
    fn a_throttled_device_is_slow() {
        let (gate, rules) = (Gate::new(), HealthRules::default());
        gate.examine(Health { throttled: Some(true), ..Health::default() }, &rules);
        assert_eq!(gate.capacity(), 0.5);
    }
}
