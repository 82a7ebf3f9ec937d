//! Prints the devices as a table for people: one line of figures per device, and the other details
//! below.

use super::inventory::{BackendRow, DeviceRow, Inventory, WorkerRow};
use crate::failure::Failure;
use crate::screen::{Screen, bytes_text, shortened, wrapped};

/// The indentation of the detail lines below a device; also the smallest width of the first column.
const INDENT: usize = 10;
const NAME_WIDTH_MIN: usize = 8;

/// Prints every device, then every absent backend.
pub fn print(inventory: &Inventory, screen: &mut Screen) -> Result<(), Failure> {
    let devices: Vec<&DeviceRow> = inventory.backends.iter().flat_map(|backend| &backend.devices).collect();
    let mut lines = vec![["DEVICE", "NAME", "KIND", "MEMORY IN USE", "WORKER"].map(str::to_owned)];
    lines.extend(devices.iter().map(|device| cells(device)));
    let widths = Widths::new(&lines, screen.width());
    screen.line(screen.strong(&widths.line(&lines[0])))?;
    for (device, cells) in devices.iter().zip(&lines[1..]) {
        print_device(device, &widths.line(cells), screen)?;
    }
    print_absent(&inventory.backends, screen)
}

fn cells(device: &DeviceRow) -> [String; 5] {
    let kind = if device.simulated { format!("simulated {}", device.kind) } else { device.kind.to_owned() };
    let state = device.worker.as_ref().map_or("none", |worker| worker.state);
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

/// Formats the details beyond the columns, one line per subject.
fn details(device: &DeviceRow) -> Vec<String> {
    let mut parts = Vec::new();
    let mut add = |name: &str, value: Option<String>| parts.extend(value.map(|value| format!("{name} {value}")));
    add("available", device.memory_available_bytes.map(bytes_text));
    add("capability", device.compute_capability.clone());
    add("units", device.compute_units.map(|units| units.to_string()));
    add("driver", device.driver_version.clone());
    add("PCI", device.pci_address.clone());
    add("NUMA node", device.numa_node.map(|node| node.to_string()));
    add("threads/block", device.threads_per_block_max.map(|threads| threads.to_string()));
    add("shared memory/block", device.shared_memory_bytes_max.map(bytes_text));
    let mut lines = vec![parts.join(", ")];
    let mut list = |name: &str, values: Vec<&str>| {
        if !values.is_empty() {
            lines.push(format!("{name}: {}", values.join(" ")));
        }
    };
    list("domains", device.domains.clone());
    list("features", device.features.iter().map(String::as_str).collect());
    if let Some(WorkerRow { health, .. }) = &device.worker {
        let mut signs = Vec::new();
        signs.extend(health.temperature_celsius.map(|celsius| format!("{celsius:.0} °C")));
        signs.extend(health.power_watts.map(|watts| format!("{watts:.0} W")));
        signs.extend((health.capacity < 1.0).then(|| format!("at {:.0} % of its capacity", health.capacity * 100.0)));
        signs.extend(health.memory_full.then(|| "memory full".to_owned()));
        signs.extend((health.circuit != "closed").then(|| format!("circuit {}", health.circuit.replace('_', "-"))));
        if !signs.is_empty() {
            lines.push(format!("health: {}", signs.join(", ")));
        }
    }
    if let Some(WorkerRow { trouble: Some(trouble), .. }) = &device.worker {
        lines.push(format!("trouble: {trouble}"));
    }
    lines.retain(|line| !line.is_empty());
    lines
}

fn print_absent(backends: &[BackendRow], screen: &mut Screen) -> Result<(), Failure> {
    let mut first = true;
    // Some names of absent backends are wider than the device column.
    let absent = backends.iter().filter(|backend| backend.absent.is_some());
    let width = absent.map(|backend| backend.api.chars().count() + 1).max().unwrap_or(0).max(INDENT);
    for backend in backends {
        let Some(absent) = &backend.absent else { continue };
        if std::mem::take(&mut first) {
            screen.line("")?;
            screen.line(screen.strong(&format!("{:<width$}WHY IT IS NOT HERE", "BACKEND")))?;
        }
        for (index, part) in wrapped(&absent.reason, screen.width().saturating_sub(width)).into_iter().enumerate() {
            let api = if index == 0 { backend.api.as_str() } else { "" };
            screen.line(format!("{api:<width$}{part}"))?;
        }
    }
    Ok(())
}
