//! `panoply plan`: shows the CPUs that workers would run on, and the devices near them.

use anyhow::Context;
use panoply::placement::{Affinity, PlacementPlan, Topology};
use serde::Serialize;

use crate::configuration::{Format, PlanOptions};
use crate::failure::Failure;
use crate::screen::{Screen, bytes_text, wrapped};

/// Makes the plan for this machine and prints it.
pub fn show(options: &PlanOptions, screen: &mut Screen) -> Result<(), Failure> {
    let topology = Topology::current();
    let plan = PlacementPlan::for_devices(&topology).context("no place for every worker")?;
    match options.format {
        Format::Json => screen.json(&document(&topology, &plan)),
        Format::Table => print(&topology, &plan, screen),
    }
}

fn print(topology: &Topology, plan: &PlacementPlan, screen: &mut Screen) -> Result<(), Failure> {
    let (cores, nodes) = (topology.cores().len(), topology.nodes().len());
    let mut summary = format!(
        "{} on {}, {}; this process may use {} and can keep {} busy.",
        counted(topology.online().len(), "CPU"),
        counted(cores, "core"),
        counted(nodes, "NUMA node"),
        topology.allowed(),
        topology.effective_cpus()
    );
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
    for note in topology.notes() {
        screen.line(screen.faint(&format!("note: {note}")))?;
    }
    Ok(())
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
    role: &'static str,
    device: Option<String>,
    node: u32,
    cpus: Vec<usize>,
    affinity: &'static str,
}

fn document(topology: &Topology, plan: &PlacementPlan) -> Document {
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
    let slots = plan.slots().iter().map(|slot| SlotRow {
        role: slot.role.name(),
        device: slot.device.map(|address| address.to_string()),
        node: slot.node,
        cpus: slot.cpus.iter().collect(),
        affinity: affinity_name(slot.affinity),
    });
    Document {
        machine: Machine {
            cpus_online: topology.online().iter().collect(),
            cpus_allowed: topology.allowed().iter().collect(),
            cpus_effective: topology.effective_cpus(),
            cores: topology.cores().len(),
            nodes: node_rows.collect(),
            pci_devices: pci_rows.collect(),
            notes: topology.notes().iter().map(ToString::to_string).collect(),
        },
        slots: slots.collect(),
        notes: plan.notes().iter().map(ToString::to_string).collect(),
    }
}

fn affinity_name(affinity: Affinity) -> &'static str {
    match affinity {
        Affinity::Exclusive => "exclusive",
        Affinity::Shared => "shared",
        Affinity::Pinned(_) => "pinned",
    }
}
