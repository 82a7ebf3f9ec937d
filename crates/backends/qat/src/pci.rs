//! QAT devices in sysfs: their place on the PCI bus, their driver, and their configuration.

use std::fs;
use std::path::{Path, PathBuf};

use panoply_core::PciAddress;

/// Intel's vendor number.
const INTEL: &str = "0x8086";
/// Product numbers of the physical function and of its virtual functions, and the driver's name.
const PRODUCTS: [(&str, &str, &str); 11] = [
    ("0x4940", "0x4941", "4xxx"),
    ("0x4942", "0x4943", "4xxx"),
    ("0x4944", "0x4945", "4xxx"),
    ("0x4946", "0x4947", "420xx"),
    ("0x4948", "0x4949", "6xxx"),
    ("0x37c8", "0x37c9", "c6xx"),
    ("0x6f54", "0x6f55", "d15xx"),
    ("0x18a0", "0x18a1", "c4xxx"),
    ("0x19e2", "0x19e3", "c3xxx"),
    ("0x0435", "0x0443", "dh895xcc"),
    ("0x18ee", "0x18ef", "200xx"),
];

/// A device on the bus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// The device's address.
    pub address: PciAddress,
    /// The device's family, named after its driver.
    pub family: &'static str,
    /// The device's driver. It is `vfio-pci` for a virtual function that was passed to a guest.
    pub driver: Option<String>,
    /// The state in the driver: `up` or `down`.
    pub state: Option<String>,
    /// The configured services, such as `sym;asym` or `dc`.
    pub services: Option<String>,
    /// The device's virtual functions. Their instances belong to the device.
    pub functions: Vec<PciAddress>,
}

impl Endpoint {
    /// Whether an instance at this bus address (bus, device and function in sixteen bits) belongs
    /// to the device.
    pub fn owns(&self, bus_address: u16) -> bool {
        self.functions.iter().chain([&self.address]).any(|address| number(address) == bus_address)
    }

    /// Why the device cannot be used. `None` if sysfs shows no reason.
    pub fn trouble(&self) -> Option<String> {
        match (&self.driver, self.state.as_deref()) {
            (None, _) => Some(format!("{} ({}) has no driver", self.address, self.family)),
            (_, Some("down")) => Some(format!("{} ({}) is down", self.address, self.family)),
            _ => None,
        }
    }
}

/// The folder of sysfs.
pub fn system_folder() -> PathBuf {
    PathBuf::from("/sys")
}

/// The devices in a folder laid out like `/sys`, sorted by address.
pub fn endpoints(folder: &Path) -> Vec<Endpoint> {
    let devices = folder.join("bus/pci/devices");
    let names = fs::read_dir(&devices).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut found: Vec<Endpoint> = names.filter_map(|path| endpoint(&path)).collect();
    found.sort_by_key(|endpoint| endpoint.address);
    found
}

fn endpoint(path: &Path) -> Option<Endpoint> {
    let word = |name: &str| Some(fs::read_to_string(path.join(name)).ok()?.trim().to_owned());
    let address: PciAddress = path.file_name()?.to_str()?.parse().ok()?;
    if word("vendor")? != INTEL {
        return None;
    }
    let product = word("device")?;
    let (_, virtual_product, family) =
        PRODUCTS.into_iter().find(|(physical, function, _)| *physical == product || *function == product)?;
    // A virtual function beside its physical function belongs to that device.
    if virtual_product == product && path.join("physfn").exists() {
        return None;
    }
    Some(Endpoint {
        address,
        family,
        driver: link_name(&path.join("driver")),
        state: word("qat/state"),
        services: word("qat/cfg_services"),
        functions: functions(path),
    })
}

/// The virtual functions, from the links `virtfn0` and so on.
fn functions(path: &Path) -> Vec<PciAddress> {
    let entries = fs::read_dir(path).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("virtfn"));
    let mut found: Vec<PciAddress> = links.filter_map(|link| link_name(&link.path())?.parse().ok()).collect();
    found.sort();
    found
}

fn link_name(path: &Path) -> Option<String> {
    Some(fs::read_link(path).ok()?.file_name()?.to_str()?.to_owned())
}

/// Bus, device and function in the library's encoding.
fn number(address: &PciAddress) -> u16 {
    u16::from(address.bus) << 8 | u16::from(address.device) << 3 | u16::from(address.function)
}
