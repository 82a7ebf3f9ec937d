//! Metrics in the text format of Prometheus.

use std::fmt::{Display, Write};

use panoply_core::MemoryUse;

use super::{DeviceFigures, Distribution, Snapshot};
use crate::health::Circuit;
use crate::lane::WorkerState;

/// The name of a metric, and how it is read from a device.
struct Family<T> {
    name: &'static str,
    help: &'static str,
    kind: &'static str,
    read: fn(&DeviceFigures) -> T,
}

const COUNTERS: [Family<u64>; 14] = [
    counter("panoply_ops_accepted_total", "Ops that entered the queue.", |of| of.worker.counters.accepted),
    counter("panoply_ops_completed_total", "Ops that gave an output.", |of| of.worker.counters.completed),
    counter("panoply_ops_failed_total", "Ops that gave an error.", |of| of.worker.counters.failed),
    counter("panoply_ops_cancelled_total", "Ops whose callers had gone.", |of| of.worker.counters.cancelled),
    counter("panoply_ops_moved_total", "Ops that went on to another device.", |of| of.worker.counters.moved),
    counter("panoply_fallbacks_total", "Ops that left a device because it failed.", |of| of.worker.counters.fallbacks),
    counter(
        "panoply_ops_relieved_total",
        "Ops that went elsewhere before they were started, to be finished sooner.",
        |of| of.worker.counters.relieved,
    ),
    counter("panoply_bytes_moved_total", "Bytes between host and device.", |of| of.bytes_moved),
    counter("panoply_device_reopened_total", "Times the device was opened again.", |of| of.worker.counters.reopened),
    counter("panoply_workers_replaced_total", "Threads that were stuck.", |of| of.worker.counters.replaced),
    counter("panoply_answers_verified_total", "Answers that another device confirmed.", |of| {
        of.worker.counters.verified
    }),
    counter("panoply_answers_wrong_total", "Answers that other devices found wrong.", |of| {
        of.worker.counters.mismatched
    }),
    counter("panoply_answers_unverified_total", "Answers to be compared that could not be.", |of| {
        of.worker.counters.unverified
    }),
    counter("panoply_health_transitions_total", "Changes of health.", |of| of.worker.health.transitions),
];

const GAUGES: [Family<f64>; 17] = [
    gauge("panoply_queue_depth", "Ops that wait.", |of| of.worker.queued as f64),
    gauge("panoply_callers_waiting", "Ops whose callers wait for room.", |of| of.worker.waiting as f64),
    gauge("panoply_backlog_seconds", "Work that waits or runs, as predicted.", |of| of.backlog_ns as f64 / 1e9),
    gauge("panoply_device_capacity", "The part of its capacity that a device has.", |of| {
        of.worker.health.capacity.into()
    }),
    gauge("panoply_device_ready", "1 while the device is ready.", |of| flag(of.worker.state == WorkerState::Ready)),
    gauge("panoply_circuit_open", "1 while the circuit is open, 0.5 while half-open.", circuit),
    gauge("panoply_device_temperature_celsius", "The hottest sensor; NaN where it is not known.", |of| {
        of.worker.health.vitals.temperature_celsius.map_or(f64::NAN, f64::from)
    }),
    gauge("panoply_device_power_watts", "Power drawn; NaN where it is not known.", |of| {
        of.worker.health.vitals.power_watts.map_or(f64::NAN, f64::from)
    }),
    gauge("panoply_device_utilisation_percent", "The share of time in use; NaN where it is not known.", |of| {
        of.worker.health.vitals.utilisation_percent.map_or(f64::NAN, f64::from)
    }),
    gauge("panoply_device_throttled", "1 while the device slows itself down; NaN where it is not known.", |of| {
        of.worker.health.vitals.throttled.map_or(f64::NAN, flag)
    }),
    gauge("panoply_device_memory_total_bytes", "The device's memory; NaN where it is not known.", |of| {
        memory(of, |memory| memory.total_bytes() as f64)
    }),
    gauge("panoply_device_memory_available_bytes", "Memory that is free; NaN where it is not known.", |of| {
        memory(of, |memory| memory.available_bytes() as f64)
    }),
    gauge("panoply_device_memory_used_bytes", "Memory in use; NaN where it is not known.", |of| {
        memory(of, |memory| memory.used_bytes() as f64)
    }),
    gauge("panoply_device_memory_used_percent", "The share of memory in use; NaN where it is not known.", |of| {
        memory(of, |memory| memory.used_percent().into())
    }),
    gauge("panoply_pool_lent_bytes", "Bytes lent out by the pools.", |of| of.memory.lent_bytes as f64),
    gauge("panoply_pool_cached_bytes", "Bytes kept for reuse.", |of| of.memory.cached_bytes as f64),
    gauge("panoply_pool_misses", "Allocations that went to the system or driver.", |of| of.memory.misses as f64),
];

/// Name, help, the divisor that converts a value to the unit in the name, and the distribution.
type HistogramFamily = (&'static str, &'static str, f64, fn(&DeviceFigures) -> &Distribution);

const HISTOGRAMS: [HistogramFamily; 4] = [
    ("panoply_wait_seconds", "From acceptance until the engine got the op.", 1e9, |of| &of.wait_ns),
    ("panoply_run_seconds", "From then until it was finished.", 1e9, |of| &of.run_ns),
    ("panoply_transfer_seconds", "Time spent moving data.", 1e9, |of| &of.transfer_ns),
    ("panoply_batch_size", "Ops that ran together.", 1.0, |of| &of.batch_size),
];

pub(super) fn text(snapshot: &Snapshot) -> String {
    let mut out = String::new();
    for family in &COUNTERS {
        family.write(&mut out, &snapshot.devices);
    }
    for family in &GAUGES {
        family.write(&mut out, &snapshot.devices);
    }
    for family in &HISTOGRAMS {
        write_histogram(&mut out, family, &snapshot.devices);
    }
    let whole = [
        ("panoply_routed_total", "counter", "Ops for which the router chose among devices.", snapshot.routed),
        ("panoply_explored_total", "counter", "Ops sent to learn how fast a device is.", snapshot.explored),
        ("panoply_relayed_now", "gauge", "Ops on their way to another device.", snapshot.relayed_now as u64),
    ];
    for (name, kind, help, value) in whole {
        head(&mut out, name, kind, help);
        line(&mut out, format_args!("{name} {value}"));
    }
    let system = &snapshot.system;
    let gauges = [
        ("panoply_system_capacity", "The share of the devices' capacity that is fit for work.", system.share().into()),
        ("panoply_system_capacity_min", "The share below which the runtime is degraded.", system.minimum.into()),
        ("panoply_system_degraded", "1 while the runtime is degraded.", flag(system.is_degraded())),
    ];
    for (name, help, value) in gauges {
        head(&mut out, name, "gauge", help);
        let value: f64 = value;
        line(&mut out, format_args!("{name} {value}"));
    }
    out
}

impl<T: Display> Family<T> {
    fn write(&self, out: &mut String, devices: &[DeviceFigures]) {
        head(out, self.name, self.kind, self.help);
        for device in devices {
            line(out, format_args!("{}{{device=\"{}\"}} {}", self.name, device.device, (self.read)(device)));
        }
    }
}

fn write_histogram(out: &mut String, family: &HistogramFamily, devices: &[DeviceFigures]) {
    let (name, help, unit, read) = family;
    head(out, name, "histogram", help);
    for figures in devices {
        let (device, distribution) = (figures.device, read(figures));
        let mut below = 0;
        for (largest, count) in &distribution.buckets {
            below += count;
            let limit = *largest as f64 / unit;
            line(out, format_args!("{name}_bucket{{device=\"{device}\",le=\"{limit}\"}} {below}"));
        }
        line(out, format_args!("{name}_bucket{{device=\"{device}\",le=\"+Inf\"}} {}", distribution.count));
        line(out, format_args!("{name}_sum{{device=\"{device}\"}} {}", distribution.sum as f64 / unit));
        line(out, format_args!("{name}_count{{device=\"{device}\"}} {}", distribution.count));
    }
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) {
    line(out, format_args!("# HELP {name} {help}"));
    line(out, format_args!("# TYPE {name} {kind}"));
}

fn line(out: &mut String, text: std::fmt::Arguments<'_>) {
    // Writing to a String cannot fail.
    let _ = writeln!(out, "{text}");
}

const fn counter(name: &'static str, help: &'static str, read: fn(&DeviceFigures) -> u64) -> Family<u64> {
    Family { name, help, kind: "counter", read }
}

const fn gauge(name: &'static str, help: &'static str, read: fn(&DeviceFigures) -> f64) -> Family<f64> {
    Family { name, help, kind: "gauge", read }
}

fn memory(of: &DeviceFigures, read: fn(&MemoryUse) -> f64) -> f64 {
    of.worker.health.vitals.memory.as_ref().map_or(f64::NAN, read)
}

fn flag(value: bool) -> f64 {
    if value { 1.0 } else { 0.0 }
}

fn circuit(of: &DeviceFigures) -> f64 {
    match of.worker.health.circuit {
        Circuit::Closed => 0.0,
        Circuit::HalfOpen => 0.5,
        Circuit::Open => 1.0,
    }
}
