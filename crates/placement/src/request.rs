//! The input of a plan: which roles need workers, near which devices, and whether they share cores.

use std::fmt;

use panoply_core::cpu_set::CpuSet;
use panoply_core::device::{DeviceInfo, DeviceKind, PciAddress};

use super::pci::PciKind;
use super::topology::Topology;

/// The most workers in a plan, application workers included.
pub const WORKERS_MAX: usize = 65_536;

/// The most demands in a request.
pub const DEMANDS_MAX: usize = 8192;

/// The purpose of a worker. The order is the order in which workers are given their cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Role {
    /// Feeds a GPU.
    Gpu,
    /// Feeds a cryptography or compression engine.
    Crypto,
    /// Moves packets.
    Network,
    /// Feeds a TPU or another neural processor.
    Ml,
    /// Processes signals; may want a real-time priority.
    Signal,
    /// Feeds a video engine.
    Video,
    /// Runs the program's own work on the remaining cores.
    Application,
}

impl Role {
    /// Every role, in the order in which roles are given their cores.
    pub const ALL: [Role; 7] =
        [Role::Gpu, Role::Crypto, Role::Network, Role::Ml, Role::Signal, Role::Video, Role::Application];

    /// The name used in plans and messages.
    pub const fn name(self) -> &'static str {
        match self {
            Role::Gpu => "gpu",
            Role::Crypto => "crypto",
            Role::Network => "network",
            Role::Ml => "ml",
            Role::Signal => "signal",
            Role::Video => "video",
            Role::Application => "application",
        }
    }

    /// The role that serves an opened device of this kind.
    pub const fn for_kind(kind: DeviceKind) -> Role {
        match kind {
            DeviceKind::DiscreteGpu | DeviceKind::IntegratedGpu => Role::Gpu,
            DeviceKind::CryptoAccelerator => Role::Crypto,
            DeviceKind::NetworkProcessor => Role::Network,
            DeviceKind::Tpu | DeviceKind::NeuralProcessor => Role::Ml,
            DeviceKind::Fpga => Role::Signal,
            DeviceKind::VideoEngine => Role::Video,
            // The cores themselves do the work.
            _ => Role::Application,
        }
    }

    /// The role that serves PCI devices of this kind.
    pub const fn for_pci(kind: PciKind) -> Option<Role> {
        match kind {
            PciKind::Gpu => Some(Role::Gpu),
            PciKind::Qat => Some(Role::Crypto),
            PciKind::Nic => Some(Role::Network),
            PciKind::Tpu => Some(Role::Ml),
            PciKind::Fpga => Some(Role::Signal),
            PciKind::Other => None,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// How much of a core a worker has to itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Affinity {
    /// One CPU of a physical core that no other worker uses; the core's other hardware threads stay
    /// idle.
    Exclusive,
    /// Any CPU of the node that no exclusive worker holds.
    Shared,
    /// Any CPU of the machine that no exclusive worker holds.
    Anywhere,
    /// This CPU. Other workers keep off its core while there are enough cores.
    Pinned(usize),
}

impl Affinity {
    /// Whether the worker has a core of its own.
    pub fn is_own_core(self) -> bool {
        matches!(self, Affinity::Exclusive | Affinity::Pinned(_))
    }
}

impl fmt::Display for Affinity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Affinity::Exclusive => "exclusive",
            Affinity::Shared => "shared",
            Affinity::Anywhere => "anywhere",
            Affinity::Pinned(_) => "pinned",
        })
    }
}

/// Workers for one device, or for one role that needs no device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// The workers' role.
    pub role: Role,
    /// The device they serve.
    pub device: Option<PciAddress>,
    /// The NUMA node to be near to. `None` means the node with the most free cores.
    pub node: Option<u32>,
    /// How many workers, at least one.
    pub workers: usize,
    /// Whether they share their cores.
    pub affinity: Affinity,
    /// Whether exclusive workers get isolated CPUs while there are any.
    pub isolated: bool,
    /// The core that the first exclusive worker prefers, counted round the node. Processes that
    /// serve different devices of one node do not meet on one core if each device has its own turn.
    pub turn: usize,
}

impl Demand {
    /// Exclusive workers without a device, on any node.
    pub fn new(role: Role, workers: usize) -> Demand {
        Demand { role, device: None, node: None, workers, affinity: Affinity::Exclusive, isolated: false, turn: 0 }
    }

    /// Exclusive workers for an opened device, near it if its location is known.
    pub fn for_info(info: &DeviceInfo, workers: usize) -> Demand {
        let role = Role::for_kind(info.kind);
        Demand { device: info.pci_address, node: info.numa_node, ..Demand::new(role, workers) }
    }

    /// Places the workers near this node.
    pub fn on_node(self, node: u32) -> Demand {
        Demand { node: Some(node), ..self }
    }

    /// Assigns the workers to this device.
    pub fn for_device(self, device: PciAddress) -> Demand {
        Demand { device: Some(device), ..self }
    }

    /// Asks for isolated CPUs.
    pub fn on_isolated(self) -> Demand {
        Demand { isolated: true, ..self }
    }

    /// Sets the core that the first worker prefers.
    pub fn with_turn(self, turn: usize) -> Demand {
        Demand { turn, ..self }
    }

    /// Sets whether the workers share their cores.
    pub fn with_affinity(self, affinity: Affinity) -> Demand {
        Demand { affinity, ..self }
    }
}

/// How many workers each kind of device gets in a plan that is made before any device is found.
/// Zero leaves devices of that kind without workers. The default is one, as many as a runtime
/// starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkersPerDevice {
    /// Workers per GPU.
    pub gpu: usize,
    /// Workers per QAT endpoint.
    pub qat: usize,
    /// Workers per network port.
    pub nic: usize,
    /// Workers per TPU.
    pub tpu: usize,
    /// Workers per FPGA.
    pub fpga: usize,
}

impl Default for WorkersPerDevice {
    fn default() -> WorkersPerDevice {
        WorkersPerDevice { gpu: 1, qat: 1, nic: 1, tpu: 1, fpga: 1 }
    }
}

impl WorkersPerDevice {
    /// Workers for a device of this kind.
    pub fn of(&self, kind: PciKind) -> usize {
        match kind {
            PciKind::Gpu => self.gpu,
            PciKind::Qat => self.qat,
            PciKind::Nic => self.nic,
            PciKind::Tpu => self.tpu,
            PciKind::Fpga => self.fpga,
            PciKind::Other => 0,
        }
    }
}

/// All demands for workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// Workers for devices and roles, in any order.
    pub demands: Vec<Demand>,
    /// Application workers. `None` means one for every core that is left, within the CPU quota, and
    /// at least one. Zero plans none.
    pub applications: Option<usize>,
    /// CPUs whose cores are held by others: no worker gets one of them as its own.
    pub reserved: CpuSet,
}

impl Request {
    /// A request for application workers only.
    pub fn new() -> Request {
        Request::default()
    }

    /// Exclusive workers for every accelerator of the machine. Virtual functions are left out if
    /// their physical function is present, because they are the same hardware.
    pub fn for_devices(topology: &Topology, workers: &WorkersPerDevice) -> Request {
        let mut request = Request::new();
        for device in topology.devices().iter().filter(|device| !device.is_virtual_function) {
            let (Some(role), count) = (Role::for_pci(device.kind), workers.of(device.kind)) else { continue };
            if count > 0 {
                let demand = Demand::new(role, count).for_device(device.address);
                request.demands.push(Demand { node: device.node, ..demand });
            }
        }
        request
    }

    /// Adds one more demand.
    pub fn with(mut self, demand: Demand) -> Request {
        self.demands.push(demand);
        self
    }

    /// Sets the number of application workers.
    pub fn with_applications(self, workers: usize) -> Request {
        Request { applications: Some(workers), ..self }
    }
}
