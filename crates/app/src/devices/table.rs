//! Prints the devices as a table for people: one line of figures per device, and the other details
//! below. Backends without a device are one line, unless there is more to say.

use panoply::DeviceKind;
use panoply::placement::CpuSet;

use super::hardware::{self, Line};
use super::inventory::{BackendRow, DeviceRow, HealthRow, Inventory, PlaceRow, PoolWorkerRow, SystemRow, WorkerRow};
use crate::failure::Failure;
use crate::screen::{Screen, bytes_text, shortened, wrapped};

/// The indentation of the detail lines below a device; also the smallest width of the first column.
const INDENT: usize = 10;
const NAME_WIDTH_MIN: usize = 8;
/// The indentation of a wrapped line about GPUs.
const HANGING: usize = 2;
/// The kind of processors.
const CPU: &str = DeviceKind::Cpu.name();

/// The parts of the table beyond the devices.
#[derive(Clone, Copy)]
pub struct Detail {
    /// Whether only some APIs were asked for.
    pub is_restricted: bool,
    /// Whether the settings, not the command line, name these APIs.
    pub by_settings: bool,
    /// Whether the reason of every absent backend is shown.
    pub all: bool,
}

/// Prints every device, what the kernel shows of GPUs, the absent backends, and what to do next.
pub fn print(inventory: &Inventory, detail: Detail, screen: &mut Screen) -> Result<(), Failure> {
    let devices: Vec<&DeviceRow> = inventory.backends.iter().flat_map(|backend| &backend.devices).collect();
    if !devices.is_empty() {
        print_devices(&devices, screen)?;
    }
    for (index, part) in system_lines(inventory, screen.width()).into_iter().enumerate() {
        let is_degraded = inventory.system.as_ref().is_some_and(|system| system.degraded);
        let part = format!("{:1$}{part}", "", if index == 0 { 0 } else { HANGING });
        screen.line(if is_degraded { screen.alarming(&part) } else { screen.faint(&part) })?;
    }
    let gpus = gpu_lines(inventory, detail);
    if !gpus.is_empty() {
        separate(&devices, screen)?;
    }
    for line in &gpus {
        print_gpu(line, screen)?;
    }
    let (shown, named): (Vec<&BackendRow>, Vec<&BackendRow>) = inventory
        .backends
        .iter()
        .filter(|backend| backend.absent.is_some())
        .partition(|backend| detail.all || detail.is_restricted || is_noteworthy(backend));
    if !shown.is_empty() {
        if gpus.is_empty() {
            separate(&devices, screen)?;
        } else {
            screen.line("")?;
        }
        print_absent(&shown, screen)?;
    }
    if !named.is_empty() {
        let names: Vec<&str> = named.iter().map(|backend| backend.api.as_str()).collect();
        screen.line("")?;
        screen.prose(&format!("not here: {} (--all shows why)", names.join(", ")))?;
    }
    screen.prose(next(&devices, gpus.iter().any(|line| line.trouble), detail))
}

/// An empty line, if something was printed before.
fn separate(before: &[&DeviceRow], screen: &mut Screen) -> Result<(), Failure> {
    if before.is_empty() { Ok(()) } else { screen.line("") }
}

/// Whether there is more to say of an absent backend than that its hardware or library is missing.
fn is_noteworthy(backend: &BackendRow) -> bool {
    let usual = ["not_compiled", "library_missing", "no_device"];
    backend.absent.as_ref().is_some_and(|absent| !usual.contains(&absent.kind))
}

/// The lines about the GPUs that the kernel shows. Empty if some APIs alone were asked for and all
/// of them are there.
fn gpu_lines(inventory: &Inventory, detail: Detail) -> Vec<Line> {
    let is_complete = inventory.backends.iter().all(|backend| backend.absent.is_none());
    let Some(hardware) = inventory.hardware.as_ref().filter(|_| !(detail.is_restricted && is_complete)) else {
        return Vec::new();
    };
    let devices = || inventory.backends.iter().flat_map(|backend| &backend.devices);
    // Some APIs do not report the address: such a device may be the GPU in question.
    let is_certain = !detail.is_restricted
        && devices().all(|device| device.pci_address.is_some() || device.simulated || device.kind == CPU);
    let is_served = |address: &str| {
        let found = devices().any(|device| device.pci_address.as_deref() == Some(address));
        (found || is_certain).then_some(found)
    };
    hardware::lines(hardware, &is_served)
}

fn print_gpu(line: &Line, screen: &mut Screen) -> Result<(), Failure> {
    for (index, part) in wrapped(&line.text, screen.width().saturating_sub(HANGING)).into_iter().enumerate() {
        let part = if line.trouble { screen.alarming(&part) } else { part };
        screen.line(format!("{:1$}{part}", "", if index == 0 { 0 } else { HANGING }))?;
    }
    Ok(())
}

fn next(devices: &[&DeviceRow], trouble: bool, detail: Detail) -> &'static str {
    let used = devices.iter().any(|device| device.worker.is_some());
    match (used, trouble) {
        (false, _) if !devices.is_empty() => {
            "next: the settings leave these devices out: see `[devices]` in panoply.toml, and PANOPLY_DEVICES_*"
        }
        (_, true) => "next: once that is mended, `panoply devices` again",
        (true, _) => "next: `panoply demo` searches on these devices, `panoply bench` measures them",
        (false, _) if detail.by_settings => {
            "next: the settings allow these APIs alone: see `only` of `[devices]` in panoply.toml, and PANOPLY_DEVICES_ONLY"
        }
        (false, _) if detail.is_restricted => "next: `panoply devices` lists the devices of every API",
        (false, _) => "next: `panoply devices --all` says why there is no device",
    }
}

fn print_devices(devices: &[&DeviceRow], screen: &mut Screen) -> Result<(), Failure> {
    let mut lines = vec![["DEVICE", "NAME", "KIND", "MEMORY IN USE", "WORKER"].map(str::to_owned)];
    lines.extend(devices.iter().map(|device| cells(device)));
    let widths = Widths::new(&lines, screen.width());
    screen.line(screen.strong(&widths.line(&lines[0])))?;
    for (device, cells) in devices.iter().zip(&lines[1..]) {
        print_device(device, &widths.line(cells), screen)?;
    }
    Ok(())
}

fn cells(device: &DeviceRow) -> [String; 5] {
    let kind = if device.simulated { format!("simulated {}", device.kind) } else { device.kind.to_owned() };
    let state = device.worker.as_ref().map_or("not used", |worker| worker.state);
    [device.id.clone(), device.name.clone(), kind, memory(device), state.to_owned()]
}

/// The widths of the first four columns. Each is as wide as its widest cell, except the name, which
/// gets the remaining width.
struct Widths([usize; 4]);

impl Widths {
    fn new(lines: &[[String; 5]], screen_width: usize) -> Widths {
        let widest = |column: usize| lines.iter().map(|cells| cells[column].chars().count()).max().unwrap_or(0);
        let (id, kind, memory) = ((widest(0) + 2).max(INDENT), widest(2) + 2, widest(3) + 2);
        let left = screen_width.saturating_sub(id + kind + memory + widest(4));
        Widths([id, (widest(1) + 2).min(left).max(NAME_WIDTH_MIN), kind, memory])
    }

    fn line(&self, [id, name, kind, memory, state]: &[String; 5]) -> String {
        let Widths([id_width, name_width, kind_width, memory_width]) = *self;
        let name = shortened(name, name_width - 2);
        format!("{id:<id_width$}{name:<name_width$}{kind:<kind_width$}{memory:<memory_width$}{state}")
    }
}

fn print_device(device: &DeviceRow, line: &str, screen: &mut Screen) -> Result<(), Failure> {
    let well = device.worker.as_ref().is_some_and(|worker| worker.state == "ready");
    screen.line(if well { line.to_owned() } else { screen.alarming(line) })?;
    for detail in details(device) {
        for (index, part) in wrapped(&detail, screen.width() - INDENT - 2).into_iter().enumerate() {
            let hanging = if index == 0 { "" } else { "  " };
            screen.line(screen.faint(&format!("{:INDENT$}{hanging}{part}", "")))?;
        }
    }
    Ok(())
}

fn memory(device: &DeviceRow) -> String {
    match (device.memory_used_bytes, device.memory_total_bytes, device.memory_used_percent) {
        (Some(used), Some(total), Some(percent)) => {
            format!("{} of {} ({percent:.0} %)", bytes_text(used), bytes_text(total))
        }
        (_, Some(total), _) => format!("{} in all", bytes_text(total)),
        _ => "unknown".to_owned(),
    }
}

fn units_text(units: u32, is_cpu: bool) -> String {
    let noun = if is_cpu { "core" } else { "compute unit" };
    format!("{units} {noun}{}", if units == 1 { "" } else { "s" })
}

/// Formats the details beyond the columns, one line per subject.
fn details(device: &DeviceRow) -> Vec<String> {
    let is_cpu = device.kind == CPU;
    let level = if is_cpu { "vector instructions" } else { "compute capability" };
    let named = |name: &str, value: Option<String>| value.map(|value| format!("{name} {value}"));
    let parts = [
        named("available", device.memory_available_bytes.map(bytes_text)),
        named(level, device.compute_capability.clone()),
        device.compute_units.map(|units| units_text(units, is_cpu)),
        named("driver", device.driver_version.clone()),
        named("PCI", device.pci_address.clone()),
        named("NUMA node", device.numa_node.map(|node| node.to_string())),
        named("threads/block", device.threads_per_block_max.map(|threads| threads.to_string())),
        named("shared memory/block", device.shared_memory_bytes_max.map(bytes_text)),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let mut lines = vec![parts.join(", ")];
    let mut list = |name: &str, values: Vec<&str>| {
        if !values.is_empty() {
            lines.push(format!("{name}: {}", values.join(" ")));
        }
    };
    list("domains", device.domains.clone());
    list("features", device.features.iter().map(String::as_str).collect());
    let pool_workers: &[PoolWorkerRow] = device.worker.as_ref().map_or(&[], |worker| &worker.pool_workers);
    list("workers of pools", pool_workers.iter().map(|worker| worker.pool).collect());
    if let Some(WorkerRow { place, .. }) = &device.worker {
        lines.extend(place_text(place).map(|text| format!("worker: {text}")));
        lines.extend(place.notes.iter().map(|note| format!("note: {note}")));
    }
    if let Some(WorkerRow { health, .. }) = &device.worker {
        let mut signs = Vec::new();
        signs.extend(health.temperature_celsius.map(|celsius| format!("{celsius:.0} °C")));
        signs.extend(health.power_watts.map(|watts| format!("{watts:.0} W")));
        signs.extend(health.utilisation_percent.map(|percent| format!("{percent:.0} % busy")));
        signs.extend((health.throttled == Some(true)).then(|| "throttled".to_owned()));
        signs.extend((health.capacity < 1.0).then(|| format!("at {:.0} % of its capacity", health.capacity * 100.0)));
        signs.extend(health.memory_full.then(|| "memory full".to_owned()));
        signs.extend((health.circuit != "closed").then(|| format!("circuit {}", health.circuit.replace('_', "-"))));
        if !signs.is_empty() {
            lines.push(format!("health: {}", signs.join(", ")));
        }
        lines.extend(unwatched(health));
    }
    for PoolWorkerRow { pool, state, trouble, .. } in pool_workers.iter().filter(|worker| worker.state != "ready") {
        let trouble = trouble.as_ref().map_or_else(String::new, |trouble| format!(": {trouble}"));
        lines.push(format!("worker of the pool {pool}: {state}{trouble}"));
    }
    if let Some(WorkerRow { trouble: Some(trouble), .. }) = &device.worker {
        lines.push(format!("trouble: {trouble}"));
    }
    lines.retain(|line| !line.is_empty());
    lines
}

/// Where the worker runs. `None` if it may run anywhere, as any thread.
fn place_text(place: &PlaceRow) -> Option<String> {
    let mut parts = Vec::new();
    if let Some(cpus) = &place.cpus {
        let cpus = CpuSet::from_cpus(cpus.iter().copied()).unwrap_or_default();
        let (own, isolated) = (place.own_core, place.isolated);
        let kind = if isolated { "isolated " } else { "" };
        parts.push(format!("{kind}CPUs {cpus}{}", if own { ", a core of its own" } else { "" }));
    }
    parts.extend(place.realtime.map(|priority| format!("SCHED_FIFO {priority}")));
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// Names the rules of health that do not watch this device, and why.
fn unwatched(health: &HealthRow) -> Option<String> {
    let rules = health.rules_without_sensor.join(", ");
    let reason = health.sensors_absent.as_deref().unwrap_or("its backend reports no value");
    (!rules.is_empty()).then(|| format!("no sensor for the rules of {rules}: {reason}"))
}

/// The lines about the capacity of all devices, if any was opened.
fn system_lines(inventory: &Inventory, width: usize) -> Vec<String> {
    let Some(SystemRow { devices, capacity, capacity_min, degraded }) = &inventory.system else { return Vec::new() };
    let (noun, percent) = (if *devices == 1 { "device" } else { "devices" }, |share: &f32| share * 100.0);
    let mut text = format!("{:.0} % of the capacity of {devices} {noun} is fit for work", percent(capacity));
    if *degraded {
        text = format!("degraded: {text}, less than {:.0} %", percent(capacity_min));
    }
    wrapped(&text, width.saturating_sub(HANGING))
}

fn print_absent(backends: &[&BackendRow], screen: &mut Screen) -> Result<(), Failure> {
    // Some names of absent backends are wider than the device column.
    let width = backends.iter().map(|backend| backend.api.chars().count() + 1).max().unwrap_or(0).max(INDENT);
    screen.line(screen.strong(&format!("{:<width$}NOT AVAILABLE BECAUSE", "BACKEND")))?;
    for backend in backends {
        let reason = backend.absent.as_ref().map_or("", |absent| &absent.reason);
        for (index, part) in wrapped(reason, screen.width().saturating_sub(width)).into_iter().enumerate() {
            let api = if index == 0 { backend.api.as_str() } else { "" };
            screen.line(format!("{api:<width$}{part}"))?;
        }
    }
    Ok(())
}
