//! The GPUs of this machine as the Linux kernel shows them: on the PCI bus, with their kernel
//! drivers and device nodes. This tells why a backend finds no device although a GPU is there.
//!
//! `vendors` has what is known about each vendor, as data; `advice` says what is missing. Both go
//! by vendor ids and names of kernel drivers alone: which API serves a GPU is the backends' affair.

mod advice;
#[cfg(test)]
mod tests;
mod vendors;

use std::fs;
use std::path::{Path, PathBuf};

use panoply::placement::{PciKind, Topology};
use serde::Serialize;

pub use advice::{Line, lines};
use vendors::Vendor;

/// The folder of PCI devices, below the root.
const PCI: &str = "sys/bus/pci/devices";
/// The node through which Windows gives its GPU to its subsystem for Linux.
const WINDOWS_NODE: &str = "dev/dxg";
/// The most entries of a folder of device nodes that are read.
const ENTRIES_MAX: usize = 4096;
/// Files that exist in containers alone, and the name of their maker.
const CONTAINERS: [(&str, &str); 5] = [
    ("var/run/secrets/kubernetes.io", "Kubernetes"),
    (".dockerenv", "Docker"),
    ("run/.containerenv", "Podman"),
    ("dev/lxd", "LXD"),
    ("run/systemd/container", "systemd"),
];

/// Whether this process may read and write a file.
pub type MayOpen<'a> = &'a dyn Fn(&Path) -> bool;

/// The GPUs of a machine, and its container, as the kernel shows them.
#[derive(Debug, Serialize)]
pub struct Hardware {
    /// The maker of the container that this process runs in; `null` outside of containers.
    pub container: Option<&'static str>,
    /// Whether there is a PCI bus, or a container lets it be seen.
    pub pci_bus: bool,
    /// Whether Windows offers its GPU to this Linux.
    pub windows_gpu: bool,
    pub gpus: Vec<Gpu>,
}

/// A GPU on the PCI bus.
#[derive(Debug, Serialize)]
pub struct Gpu {
    pub pci_address: String,
    /// The vendor's id, in hexadecimal.
    pub vendor_id: String,
    /// The vendor's name; `null` if the id is not known here.
    pub vendor: Option<&'static str>,
    /// The kernel driver that serves it.
    pub kernel_driver: Option<String>,
    pub nodes: Vec<Node>,
    #[serde(skip)]
    known: Option<&'static Vendor>,
}

/// A kind of device node that programs open to use a GPU.
#[derive(Debug, Serialize)]
pub struct Node {
    /// The path; `#` stands for a number.
    pub path: String,
    #[serde(flatten)]
    pub state: NodeState,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum NodeState {
    /// At least one node can be opened.
    Usable,
    Missing,
    /// There is a node, and this process may not open it.
    Denied {
        /// The group of users who may, if it is one besides the administrators'.
        group: Option<String>,
    },
}

impl Hardware {
    /// The GPUs of this machine. `None` on systems other than Linux.
    pub fn of_this_machine() -> Option<Hardware> {
        cfg!(target_os = "linux").then(|| Hardware::read(Path::new("/"), &may_open))
    }

    /// The GPUs of the machine whose `sys`, `dev` and `etc` lie below `root`.
    pub fn read(root: &Path, may_open: MayOpen<'_>) -> Hardware {
        let topology = Topology::read(root);
        let gpus =
            topology.devices().iter().filter(|device| device.kind == PciKind::Gpu && !device.is_virtual_function);
        let gpu = |device: &panoply::placement::PciDevice| {
            let known = vendors::by_id(device.vendor);
            let address = device.address.to_string();
            let driver = fs::read_link(root.join(PCI).join(&address).join("driver")).ok();
            let nodes = known.map_or(&[][..], |vendor| vendor.nodes);
            Gpu {
                pci_address: address,
                vendor_id: format!("{:#06x}", device.vendor),
                vendor: known.map(|vendor| vendor.name),
                kernel_driver: driver.and_then(|link| Some(link.file_name()?.to_string_lossy().into_owned())),
                nodes: nodes.iter().map(|pattern| node(root, pattern, may_open)).collect(),
                known,
            }
        };
        Hardware {
            container: CONTAINERS.iter().find(|(file, _)| root.join(file).exists()).map(|(_, maker)| *maker),
            pci_bus: root.join(PCI).is_dir(),
            windows_gpu: root.join(WINDOWS_NODE).exists(),
            gpus: gpus.map(gpu).collect(),
        }
    }
}

/// The state of the device nodes of one kind.
fn node(root: &Path, pattern: &str, may_open: MayOpen<'_>) -> Node {
    let there = matching(root, pattern);
    let state = match there.first() {
        None => NodeState::Missing,
        Some(_) if there.iter().any(|node| may_open(node)) => NodeState::Usable,
        Some(first) => NodeState::Denied { group: group_of(root, first) },
    };
    Node { path: format!("/{pattern}"), state }
}

/// The files that fit a pattern, in the order of their names.
fn matching(root: &Path, pattern: &str) -> Vec<PathBuf> {
    let Some(stem) = pattern.strip_suffix('#') else {
        let node = root.join(pattern);
        return if node.exists() { vec![node] } else { Vec::new() };
    };
    let (folder, prefix) = stem.rsplit_once('/').unwrap_or(("", stem));
    let Ok(entries) = fs::read_dir(root.join(folder)) else { return Vec::new() };
    let is_numbered = |path: &PathBuf| {
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| name.strip_prefix(prefix));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    };
    let entries = entries.take(ENTRIES_MAX).filter_map(|entry| Some(entry.ok()?.path()));
    let mut nodes: Vec<PathBuf> = entries.filter(is_numbered).collect();
    nodes.sort();
    nodes
}

/// The name of the group that may open a file. `None` if the group may not, or is the
/// administrators'.
#[cfg(unix)]
fn group_of(root: &Path, node: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    const GROUP_MAY: u32 = 0o060;
    let metadata = fs::metadata(node).ok().filter(|metadata| metadata.mode() & GROUP_MAY == GROUP_MAY)?;
    let id = Some(metadata.gid()).filter(|id| *id != 0)?.to_string();
    let groups = fs::read_to_string(root.join("etc/group")).unwrap_or_default();
    let fields = |line: &str| line.split(':').map(str::to_owned).collect::<Vec<_>>();
    let named = groups.lines().map(fields).find(|fields| fields.get(2) == Some(&id));
    Some(named.and_then(|fields| fields.into_iter().next()).unwrap_or(id))
}

#[cfg(not(unix))]
fn group_of(_: &Path, _: &Path) -> Option<String> {
    None
}

#[cfg(unix)]
fn may_open(path: &Path) -> bool {
    use rustix::fs::{Access, access};
    access(path, Access::READ_OK | Access::WRITE_OK).is_ok()
}

#[cfg(not(unix))]
fn may_open(_: &Path) -> bool {
    true
}
