//! PCI devices: their addresses, and which of them are accelerators.

use std::path::Path;

use panoply_core::device::{DeviceInfo, PciAddress};

use super::nodes::NODE_MAX;
use super::sysfs::{Problem, Tree};

/// The most devices that are read, which is more than any machine has.
pub const PCI_DEVICES_MAX: usize = 8192;

const DEVICES: &str = "sys/bus/pci/devices";

/// The kind of a PCI device, as far as Panoply uses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum PciKind {
    /// A graphics or compute processor.
    Gpu,
    /// An Intel QuickAssist endpoint.
    Qat,
    /// An Ethernet or InfiniBand port.
    Nic,
    /// A TPU, or another processor for neural networks.
    Tpu,
    /// Programmable logic.
    Fpga,
    /// Anything else: bridges, disks, sound.
    Other,
}

/// One PCI device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// Its address on the bus.
    pub address: PciAddress,
    /// Its class code: base class, subclass, programming interface (`0x030200`).
    pub class: u32,
    /// The vendor ID.
    pub vendor: u16,
    /// The product ID of that vendor.
    pub product: u16,
    /// Its kind for Panoply.
    pub kind: PciKind,
    /// The NUMA node nearest to it. `None` if the firmware does not report it.
    pub node: Option<u32>,
    /// True for a virtual function whose physical function is on this machine too. Both are the
    /// same hardware.
    pub is_virtual_function: bool,
}

mod vendor {
    pub const AMD: u16 = 0x1002;
    pub const ALTERA: u16 = 0x1172;
    pub const GOOGLE: u16 = 0x1ae0;
    pub const GOOGLE_EDGE: u16 = 0x1ac1;
    pub const HABANA: u16 = 0x1da3;
    pub const INTEL: u16 = 0x8086;
    pub const XILINX: u16 = 0x10ee;
}

/// Vendors of display adapters that only draw: management controllers (ASPEED, Matrox) and virtual
/// machines (Cirrus, QEMU, VirtIO, QXL, VMware, Hyper-V, VirtualBox). Every server has one, and it
/// serves no op.
const DISPLAY_ONLY_VENDORS: [u16; 9] = [0x1a03, 0x102b, 0x1013, 0x1234, 0x1af4, 0x1b36, 0x15ad, 0x1414, 0x80ee];

/// Intel QuickAssist endpoints, physical and virtual functions: DH895xCC, C62x, C3xxx, D15xx,
/// C4xxx, 4xxx, 401xx, 402xx, 420xx, 6xxx.
const QAT_PRODUCTS: [u16; 20] = [
    0x0435, 0x0443, 0x37c8, 0x37c9, 0x19e2, 0x19e3, 0x6f54, 0x6f55, 0x18a0, 0x18a1, 0x4940, 0x4941, 0x4942, 0x4943,
    0x4944, 0x4945, 0x4946, 0x4947, 0x4948, 0x4949,
];

/// Intel's programmable acceleration cards; the same class is used for its neural processors.
const INTEL_FPGA_PRODUCTS: [u16; 5] = [0x09c4, 0x09c5, 0x0b2b, 0x0b30, 0xbcce];

/// Intel's neural processors: Meteor Lake, Arrow Lake, Lunar Lake, Panther Lake.
const INTEL_NPU_PRODUCTS: [u16; 4] = [0x7d1d, 0xad1d, 0x643e, 0xb03e];

/// The kind of a device, from its class code (24 bits), vendor and product.
pub fn classify(class: u32, vendor: u16, product: u16) -> PciKind {
    let (base, subclass) = (class >> 16 & 0xff, class >> 8 & 0xffff);
    match (vendor, base, subclass) {
        // Checked before the vendors, because Google and Xilinx make network cards too.
        (_, _, 0x0200 | 0x0207) => PciKind::Nic,
        (vendor::INTEL, _, 0x0b40) => PciKind::Qat,
        (vendor::INTEL, ..) if QAT_PRODUCTS.contains(&product) => PciKind::Qat,
        (_, 0x03, _) if DISPLAY_ONLY_VENDORS.contains(&vendor) => PciKind::Other,
        (_, 0x03, _) => PciKind::Gpu,
        // AMD Instinct cards have the class of processing accelerators.
        (vendor::AMD, _, 0x1200) => PciKind::Gpu,
        (vendor::HABANA, _, 0x1200) => PciKind::Tpu,
        (vendor::INTEL, _, 0x1200) if INTEL_NPU_PRODUCTS.contains(&product) => PciKind::Tpu,
        (vendor::INTEL, _, 0x1200) if INTEL_FPGA_PRODUCTS.contains(&product) => PciKind::Fpga,
        (vendor::XILINX | vendor::ALTERA, ..) if base != 0x06 => PciKind::Fpga,
        // Google's disks (01), network cards (02) and bridges (06) are not TPUs.
        (vendor::GOOGLE, ..) if !matches!(base, 0x01 | 0x02 | 0x06) => PciKind::Tpu,
        (vendor::GOOGLE_EDGE, ..) if product == 0x089a => PciKind::Tpu,
        _ => PciKind::Other,
    }
}

/// The folder in which the kernel describes the hardware.
pub const SYSTEM: &str = "/sys";

/// The NUMA node nearest to the device at this address, by a folder laid out like [`SYSTEM`].
/// `None` if it is unknown: the kernel writes a negative number if the firmware names no node.
pub fn numa_node(system: &Path, address: PciAddress) -> Option<u32> {
    let number = Tree::new(system).number(&format!("bus/pci/devices/{address}/numa_node"))?;
    u32::try_from(number).ok().filter(|node| *node as usize <= NODE_MAX)
}

/// Sets the PCI address of a device, and the NUMA node that [`numa_node`] has for it. Backends call
/// it for every device whose address they know.
pub fn locate(info: &mut DeviceInfo, system: &Path, address: PciAddress) {
    info.pci_address = Some(address);
    info.numa_node = numa_node(system, address);
}

/// All PCI devices, in the order of addresses. A machine without PCI has none, which is not noted
/// as a gap.
pub(super) fn read_devices(tree: &mut Tree<'_>, node_ids: &[u32]) -> Vec<PciDevice> {
    let mut devices = Vec::new();
    for name in tree.entries(DEVICES) {
        let folder = format!("{DEVICES}/{name}");
        let Ok(address) = name.parse::<PciAddress>() else {
            tree.note(&folder, Problem::malformed("a PCI address", &name));
            continue;
        };
        if devices.len() == PCI_DEVICES_MAX {
            tree.note(DEVICES, Problem::TooMany { max: PCI_DEVICES_MAX });
            break;
        }
        devices.extend(read_device(tree, &folder, address, node_ids));
    }
    devices.sort_by_key(|device| device.address);
    devices.dedup_by_key(|device| device.address);
    devices
}

/// `None` when the class or the vendor is missing: such a device cannot be classified.
fn read_device(tree: &mut Tree<'_>, folder: &str, address: PciAddress, node_ids: &[u32]) -> Option<PciDevice> {
    let class = tree.hex(&format!("{folder}/class"), 0xff_ffff)?;
    let vendor = tree.hex(&format!("{folder}/vendor"), 0xffff)? as u16;
    let product = tree.hex(&format!("{folder}/device"), 0xffff).unwrap_or(0) as u16;
    Some(PciDevice {
        address,
        class,
        vendor,
        product,
        kind: classify(class, vendor, product),
        node: read_node(tree, &format!("{folder}/numa_node"), node_ids),
        is_virtual_function: tree.exists(&format!("{folder}/physfn")),
    })
}

/// The kernel writes -1 if the firmware does not name a node, and no file at all when it is built
/// without NUMA.
fn read_node(tree: &mut Tree<'_>, path: &str, node_ids: &[u32]) -> Option<u32> {
    let number = if tree.exists(path) { tree.number(path)? } else { return None };
    match u32::try_from(number) {
        Ok(node) if node_ids.contains(&node) => Some(node),
        Ok(_) => {
            tree.note(path, Problem::malformed("a NUMA node of this machine", &number.to_string()));
            None
        }
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accelerators_are_told_from_the_rest() {
        let kinds = [
            (0x030200, 0x10de, 0x2335, PciKind::Gpu),
            (0x030000, 0x8086, 0x46a6, PciKind::Gpu),
            (0x120000, 0x1002, 0x74a1, PciKind::Gpu),
            (0x030000, 0x1a03, 0x2000, PciKind::Other),
            (0x0b4000, 0x8086, 0x4940, PciKind::Qat),
            (0x088000, 0x8086, 0x37c8, PciKind::Qat),
            (0x020000, 0x15b3, 0xa2dc, PciKind::Nic),
            (0x020000, 0x1ae0, 0x0042, PciKind::Nic),
            (0x020700, 0x15b3, 0x101b, PciKind::Nic),
            (0x010802, 0x1ae0, 0x001f, PciKind::Other),
            (0x088000, 0x1ae0, 0x005e, PciKind::Tpu),
            (0x120000, 0x8086, 0x643e, PciKind::Tpu),
            (0x120000, 0x10ee, 0x5000, PciKind::Fpga),
            (0x120000, 0x1172, 0x2494, PciKind::Fpga),
            (0x120000, 0x8086, 0x0b30, PciKind::Fpga),
            (0x060000, 0x8086, 0x1237, PciKind::Other),
        ];
        for (class, vendor, product, kind) in kinds {
            assert_eq!(classify(class, vendor, product), kind, "{class:06x} {vendor:04x}:{product:04x}");
        }
    }
}
