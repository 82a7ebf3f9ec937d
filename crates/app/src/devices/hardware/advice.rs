//! Says in words why programs cannot use a GPU of this machine, and how to mend that.

use serde::Serialize;

use super::vendors::{PASS_THROUGH, Vendor};
use super::{Gpu, Hardware, Node, NodeState};

/// The most addresses in one line.
const ADDRESSES_MAX: usize = 4;

/// GPUs in the same state, in words.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    pub text: String,
    /// Whether something keeps programs from these GPUs.
    pub trouble: bool,
}

/// Describes the GPUs, those in the same state together. `is_served` says of a PCI address whether
/// a backend found the GPU there; `None` if that is not known.
pub fn lines(hardware: &Hardware, is_served: &dyn Fn(&str) -> Option<bool>) -> Vec<Line> {
    if hardware.gpus.is_empty() {
        return vec![nothing(hardware)];
    }
    let mut groups: Vec<(String, String, bool, Vec<&str>)> = Vec::new();
    for gpu in &hardware.gpus {
        let (state, trouble) = state(gpu, hardware, is_served(&gpu.pci_address));
        let name = gpu.vendor.map_or_else(|| format!("of vendor {}", gpu.vendor_id), str::to_owned);
        match groups.iter_mut().find(|(known, same, ..)| *known == name && *same == state) {
            Some((.., addresses)) => addresses.push(&gpu.pci_address),
            None => groups.push((name, state, trouble, vec![&gpu.pci_address])),
        }
    }
    let line = |(name, state, trouble, addresses): (String, String, bool, Vec<&str>)| {
        let plural = if addresses.len() == 1 { "" } else { "s" };
        let what = if name.starts_with("of ") { format!("GPU{plural} {name}") } else { format!("{name} GPU{plural}") };
        Line { text: format!("{what} at {}, {state}", enumerated(&addresses)), trouble }
    };
    groups.into_iter().map(line).collect()
}

fn nothing(hardware: &Hardware) -> Line {
    let (text, trouble) = match (hardware.windows_gpu, hardware.pci_bus, hardware.container) {
        (true, ..) => ("the GPU of Windows is at /dev/dxg: its driver is installed on Windows, not here", true),
        (_, false, Some(_)) => ("no PCI bus can be seen in this container, so GPUs would not be seen either", true),
        (_, false, None) => ("this machine has no PCI bus to look for GPUs on", false),
        (_, true, Some(_)) => ("no GPU on the PCI bus of this container's host", false),
        (_, true, None) => ("no GPU on the PCI bus", false),
    };
    Line { text: text.to_owned(), trouble }
}

/// The state of a GPU as the end of a sentence, and whether something is wrong with it.
fn state(gpu: &Gpu, hardware: &Hardware, is_served: Option<bool>) -> (String, bool) {
    let Some(vendor) = gpu.known else {
        let driver = gpu.kernel_driver.as_ref().map_or("no kernel driver".to_owned(), |name| kernel_driver(name));
        return (driver, gpu.kernel_driver.is_none());
    };
    // Drivers are the host's: a container has none of its own.
    let on_host = if hardware.container.is_some() { " (on the host of this container)" } else { "" };
    let Some(driver) = &gpu.kernel_driver else {
        return (format!("no kernel driver: {}{on_host}", vendor.driver_advice), true);
    };
    let begin = kernel_driver(driver);
    if PASS_THROUGH.contains(&driver.as_str()) {
        return (format!("{begin}, which keeps it for a virtual machine"), true);
    }
    if !vendor.drivers.is_empty() && !vendor.drivers.contains(&driver.as_str()) {
        return (format!("{begin}: {}{on_host}", vendor.driver_advice), true);
    }
    let fault = gpu.nodes.iter().find_map(|node| node_fault(node, vendor, hardware));
    match (fault, is_served) {
        (Some(fault), _) => (format!("{begin}: {fault}"), true),
        (None, Some(false)) => (format!("{begin}: no backend found it; {} may be missing", vendor.libraries), true),
        (None, _) => (begin, false),
    }
}

fn kernel_driver(name: &str) -> String {
    format!("kernel driver {name}")
}

/// The fault of a device node, and what to do about it.
fn node_fault(node: &Node, vendor: &Vendor, hardware: &Hardware) -> Option<String> {
    let path = node.path.replace('#', "N");
    match (&node.state, hardware.container) {
        (NodeState::Usable, _) => None,
        (NodeState::Missing, Some(_)) => {
            Some(format!("in a container without the GPU ({path} is missing): start it with {}", vendor.container))
        }
        (NodeState::Missing, None) => Some(format!("{path} is missing: {}", vendor.node_advice)),
        (NodeState::Denied { group: Some(group) }, Some(_)) => Some(format!(
            "only the group {group} may open {path}: start the container with --group-add and this group's number"
        )),
        (NodeState::Denied { group: Some(group) }, None) => {
            Some(format!("only the group {group} may open {path}: `sudo usermod -aG {group} $USER`, then log in again"))
        }
        (NodeState::Denied { group: None }, _) => {
            Some(format!("this user may not open {path}: an administrator has to allow it"))
        }
    }
}

fn enumerated(addresses: &[&str]) -> String {
    let shown = addresses.iter().take(ADDRESSES_MAX).copied().collect::<Vec<_>>().join(", ");
    match addresses.len().saturating_sub(ADDRESSES_MAX) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}
