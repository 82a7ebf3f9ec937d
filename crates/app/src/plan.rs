//! `panoply plan`: shows the CPUs that the workers of this machine's devices would run on. A
//! runtime with the same settings starts its threads from the same plan.

use panoply::Settings;
use panoply::placement::{Affinity, DevicePlan, PlanEntry, Topology};
use serde::Serialize;

use crate::configuration::{Format, PlanOptions};
use crate::failure::Failure;
use crate::screen::{Screen, bytes_text, wrapped};

/// Makes the plan for this machine and prints it. Devices are looked for, and none is opened,
/// except FPGA cards, whose cores are on them.
pub fn show(options: &PlanOptions, screen: &mut Screen) -> Result<(), Failure> {
    let topology = Topology::current();
    let plan = Settings::load().map_err(anyhow::Error::new)?.builder().plan()?;
    match options.format {
        Format::Json => screen.json(&document(&topology, &plan)),
        Format::Table => print(&topology, &plan, screen),
    }
}

fn print(topology: &Topology, plan: &DevicePlan, screen: &mut Screen) -> Result<(), Failure> {
    let (cores, nodes) = (topology.cores().len(), topology.nodes().len());
    let mut summary = format!(
        "{} on {}, {}; this process may use {} and can keep {} busy.",
        counted(topology.online().len(), "CPU"),
        counted(cores, "core"),
        counted(nodes, "NUMA node"),
        topology.allowed(),
        topology.effective_cpus()
    );
    if !topology.isolated().is_empty() {
        summary += &format!(" Isolated: {}.", topology.isolated());
    }
    for node in topology.nodes() {
        let memory = node.memory_bytes.map_or(String::new(), |bytes| format!(", {}", bytes_text(bytes)));
        summary += &format!(" Node {}: CPUs {}{memory}.", node.id, node.cpus);
    }
    for line in wrapped(&summary, screen.width()) {
        screen.line(line)?;
    }
    screen.line("")?;
    for (index, line) in plan.to_string().lines().enumerate() {
        let text = if index == 0 { screen.strong(line) } else { line.to_owned() };
        screen.line(text)?;
    }
    for (worker, notes) in plan.entries().iter().flat_map(workers) {
        for note in notes {
            screen.line(format!("note: {worker}: {note}"))?;
        }
    }
    for note in topology.notes() {
        screen.line(screen.faint(&format!("note: {note}")))?;
    }
    Ok(())
}

/// The workers of an entry with their notes.
fn workers(entry: &PlanEntry) -> impl Iterator<Item = (String, &[String])> {
    entry.places().iter().map(|place| (worker_name(entry), &place.notes[..]))
}

fn worker_name(entry: &PlanEntry) -> String {
    entry.pool.as_ref().map_or_else(|| entry.device.to_string(), |pool| format!("{} {pool}", entry.device))
}

fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

#[derive(Serialize)]
struct Document {
    machine: Machine,
    slots: Vec<SlotRow>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct Machine {
    cpus_online: Vec<usize>,
    cpus_allowed: Vec<usize>,
    cpus_isolated: Vec<usize>,
    cpus_effective: usize,
    cores: usize,
    nodes: Vec<NodeRow>,
    pci_devices: Vec<PciRow>,
    notes: Vec<String>,
}

#[derive(Serialize)]
struct NodeRow {
    id: u32,
    cpus: Vec<usize>,
    memory_bytes: Option<u64>,
}

#[derive(Serialize)]
struct PciRow {
    address: String,
    kind: String,
    node: Option<u32>,
}

#[derive(Serialize)]
struct SlotRow {
    worker: String,
    role: &'static str,
    /// The device's address on the PCI bus.
    device: Option<String>,
    /// `null` if the worker may run on every node.
    node: Option<u32>,
    cpus: Vec<usize>,
    affinity: &'static str,
    isolated: bool,
    /// The real-time priority; `null` for a normal thread.
    realtime: Option<u8>,
    notes: Vec<String>,
}

fn document(topology: &Topology, plan: &DevicePlan) -> Document {
    let node_rows = topology.nodes().iter().map(|node| NodeRow {
        id: node.id,
        cpus: node.cpus.iter().collect(),
        memory_bytes: node.memory_bytes,
    });
    let pci_rows = topology.devices().iter().map(|device| PciRow {
        address: device.address.to_string(),
        kind: format!("{:?}", device.kind).to_lowercase(),
        node: device.node,
    });
    let slots = plan.entries().iter().flat_map(|entry| {
        entry.places().iter().enumerate().map(|(index, place)| {
            let slot = entry.slots.get(index);
            SlotRow {
                worker: worker_name(entry),
                role: entry.role().name(),
                device: entry.pci_address().map(|address| address.to_string()),
                node: place.node,
                cpus: slot.map_or(topology.allowed(), |slot| &slot.cpus).iter().collect(),
                affinity: slot.map_or("unbound", |slot| affinity_name(slot.affinity)),
                isolated: place.isolated,
                realtime: place.realtime.map(|priority| priority.get()),
                notes: place.notes.clone(),
            }
        })
    });
    Document {
        machine: Machine {
            cpus_online: topology.online().iter().collect(),
            cpus_allowed: topology.allowed().iter().collect(),
            cpus_isolated: topology.isolated().iter().collect(),
            cpus_effective: topology.effective_cpus(),
            cores: topology.cores().len(),
            nodes: node_rows.collect(),
            pci_devices: pci_rows.collect(),
            notes: topology.notes().iter().map(ToString::to_string).collect(),
        },
        slots: slots.collect(),
        notes: plan.notes().to_vec(),
    }
}

fn affinity_name(affinity: Affinity) -> &'static str {
    match affinity {
        Affinity::Exclusive => "exclusive",
        Affinity::Shared => "shared",
        Affinity::Anywhere => "anywhere",
        Affinity::Pinned(_) => "pinned",
    }
}
