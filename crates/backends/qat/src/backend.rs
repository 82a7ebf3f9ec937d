//! Finds devices and opens them. A device is an entry of the PCI bus in sysfs, together with the
//! library's instances on the device and on its virtual functions.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use panoply_core::vendor::Loading;
use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Domain, Engine, Error, FirstGuess, Op,
    OpenOptions, PciAddress, Result, Support, vendor,
};
use panoply_placement::locate;

use crate::engine::QatEngine;
use crate::instance::{Does, OpenInstance, abilities};
use crate::library::{LIBRARIES, LibraryHandle, Qat, QatError, Service, Start};
use crate::ops;
use crate::pci::{self, Endpoint};
use crate::sys::{FALSE, Instance, OPERATIONAL_UP};
use crate::zip::{self, Qatzip, Zipper};

/// Maximum number of a device's instances that are opened.
const INSTANCES_MAX: usize = 64;

/// Where to search devices and libraries.
#[derive(Clone, Debug)]
pub struct Places {
    /// A folder laid out like `/sys`.
    pub system: PathBuf,
    /// Names of `libqat` and of `libusdm`, each in the order in which they are tried.
    pub libraries: Vec<Vec<String>>,
    /// Names of QATzip's library, in the order in which they are tried.
    pub zip: Vec<String>,
    /// How long a device may answer none of its requests in flight before it counts as lost.
    pub silence_max: Duration,
}

impl Default for Places {
    fn default() -> Places {
        let names = |names: &&[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let libraries = LIBRARIES.iter().map(names).collect();
        let zip = names(&&zip::LIBRARY[..]);
        Places { system: pci::system_folder(), libraries, zip, silence_max: Duration::from_secs(5) }
    }
}

/// The QAT backend.
#[derive(Default)]
pub struct QatBackend {
    places: Places,
    qat: OnceLock<Arc<Qat>>,
    zip: OnceLock<Arc<Qatzip>>,
    start: Start,
    /// Discovered devices. The position in the list is the device's index.
    seen: Mutex<Vec<PciAddress>>,
}

impl QatBackend {
    /// Uses the machine's own devices, through qatlib.
    pub fn new() -> QatBackend {
        QatBackend::default()
    }

    /// Uses devices and libraries from other places.
    pub fn of(places: Places) -> QatBackend {
        QatBackend { places, ..QatBackend::default() }
    }

    fn qat(&self) -> Result<Arc<Qat>, Absence> {
        if let Some(qat) = self.qat.get() {
            return Ok(qat.clone());
        }
        let loaded = Qat::load(&self.places.libraries).map_err(|tried| Absence::LibraryMissing { tried })?;
        let qat = loaded.map_err(|error| Absence::NoDevice { reason: error.to_string() })?;
        Ok(self.qat.get_or_init(|| qat).clone())
    }

    /// QATzip, if it is installed and has hardware. It keeps its devices until the process ends,
    /// because it cannot be closed.
    fn zip(&self) -> Result<Arc<Qatzip>, QatError> {
        if let Some(zip) = self.zip.get() {
            return Ok(zip.clone());
        }
        let zip = Qatzip::load(&self.places.zip)?;
        Ok(self.zip.get_or_init(|| zip).clone())
    }

    /// The devices on the bus that have a driver.
    fn endpoints(&self) -> Result<Vec<Endpoint>, Absence> {
        let all = pci::endpoints(&self.places.system);
        let troubles: Vec<String> = all.iter().filter_map(Endpoint::trouble).collect();
        let usable: Vec<Endpoint> = all.into_iter().filter(|endpoint| endpoint.trouble().is_none()).collect();
        match (usable.is_empty(), troubles.is_empty()) {
            (false, _) => Ok(usable),
            (true, true) => Err(Absence::NoDevice { reason: "no QAT device on the PCI bus".to_owned() }),
            (true, false) => Err(Absence::NoDevice { reason: troubles.join("; ") }),
        }
    }

    fn started(&self) -> Result<Arc<LibraryHandle>, Absence> {
        let hint = |error: QatError| Absence::NoDevice {
            reason: format!("{error}; qatlib needs virtual functions on vfio-pci, and this user in the group qat"),
        };
        self.start.get(&self.qat()?).map_err(hint)
    }

    /// The devices of the library on these places of the bus.
    fn devices(&self, endpoints: &[Endpoint]) -> Result<Vec<DeviceInfo>, Absence> {
        let started = self.started()?;
        let (found, reasons) = instances_of(&started, endpoints);
        let (mut devices, mut has_zip) = (Vec::new(), false);
        for (endpoint, found) in endpoints.iter().filter_map(|it| Some((it, found.get(&it.address)?))) {
            let mut does = found.iter().fold(Does::default(), |all, found| all.or(found.does));
            // QATzip chooses its instances itself, so only the first device that needs it offers
            // it.
            does.zip = !does.deflate && !has_zip && self.zip().is_ok();
            has_zip |= does.zip;
            devices.push(self.describe(endpoint, found, does));
        }
        match devices.is_empty() {
            false => Ok(devices),
            true if reasons.is_empty() => {
                Err(Absence::NoDevice { reason: "the library has no instance of any device on the bus".to_owned() })
            }
            true => Err(Absence::NoDevice { reason: reasons.join("; ") }),
        }
    }

    fn index_of(&self, address: PciAddress) -> u32 {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let index = seen.iter().position(|known| *known == address).unwrap_or_else(|| {
            seen.push(address);
            seen.len() - 1
        });
        index as u32
    }

    fn describe(&self, endpoint: &Endpoint, found: &[DiscoveredInstance], does: Does) -> DeviceInfo {
        let id = DeviceId { api: Api::QAT, index: self.index_of(endpoint.address) };
        let zip = if does.zip { ", QATzip" } else { "" };
        let name = format!("Intel QAT {} ({} instances{zip})", endpoint.family, found.len());
        let mut info = DeviceInfo::new(id, name, DeviceKind::CryptoAccelerator);
        locate(&mut info, &self.places.system, endpoint.address);
        info.driver_version = found.first().map(|found| found.version.clone()).filter(|version| !version.is_empty());
        info.compute_units = u32::try_from(found.len()).ok();
        // The engine copies messages from host memory to device memory.
        info.shares_host_memory = true;
        info.capabilities = Capabilities { domains: vec![Domain::Crypto], features: does.features() };
        info
    }

    fn instances(&self, device: &DeviceInfo) -> Result<Vec<OpenInstance>, String> {
        let known = self.seen.lock().unwrap_or_else(PoisonError::into_inner).get(device.id.index as usize).copied();
        let address = known.ok_or("it was never found")?;
        let endpoints = self.endpoints().map_err(|absence| absence.to_string())?;
        let endpoint = endpoints.into_iter().find(|endpoint| endpoint.address == address);
        let endpoint = endpoint.ok_or_else(|| format!("{address} is not there"))?;
        let started = self.started().map_err(|absence| absence.to_string())?;
        let (mut found, reasons) = instances_of(&started, std::slice::from_ref(&endpoint));
        let found = found.remove(&endpoint.address).ok_or_else(|| reasons.join("; "))?;
        let open = |found: &DiscoveredInstance| OpenInstance::open(&started, found.service, found.handle);
        found.iter().take(INSTANCES_MAX).map(open).collect::<Result<_, _>>().map_err(|error| error.to_string())
    }
}

/// An instance of a device.
struct DiscoveredInstance {
    service: Service,
    handle: Instance,
    does: Does,
    version: String,
}

/// The usable instances of each device, and the reasons why others are not usable.
fn instances_of(
    started: &LibraryHandle,
    endpoints: &[Endpoint],
) -> (BTreeMap<PciAddress, Vec<DiscoveredInstance>>, Vec<String>) {
    let (mut found, mut reasons) = (BTreeMap::<_, Vec<DiscoveredInstance>>::new(), Vec::new());
    for service in [Service::Crypto, Service::Compression] {
        let handles = started.qat.instances(service).unwrap_or_else(|error| {
            reasons.push(error.to_string());
            Vec::new()
        });
        for handle in handles {
            match usable(started, service, handle, endpoints) {
                Ok(Some((address, instance))) => found.entry(address).or_default().push(instance),
                Ok(None) => {}
                Err(reason) => reasons.push(reason),
            }
        }
    }
    (found, reasons)
}

/// The instance with its device. `None` if it belongs to none of these devices.
fn usable(
    started: &LibraryHandle,
    service: Service,
    handle: Instance,
    endpoints: &[Endpoint],
) -> Result<Option<(PciAddress, DiscoveredInstance)>, String> {
    let info = started.qat.info(service, handle).map_err(|error| error.to_string())?;
    let name = text(&info.name);
    let Some(endpoint) = endpoints.iter().find(|endpoint| endpoint.owns(info.bus_address)) else { return Ok(None) };
    if info.is_polled == FALSE {
        return Err(format!("instance {name} answers by interrupt; set it to be polled"));
    }
    if info.state != OPERATIONAL_UP {
        return Err(format!("instance {name} is down"));
    }
    let does = abilities(started, service, handle).map_err(|error| error.to_string())?;
    Ok(Some((endpoint.address, DiscoveredInstance { service, handle, does, version: text(&info.version) })))
}

/// A C text up to its zero byte.
fn text(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

impl Backend for QatBackend {
    fn api(&self) -> Api {
        Api::QAT
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let endpoints = self.endpoints()?;
        vendor::load(|| self.devices(&endpoints))
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        ops::support(&Does::from_features(&device.capabilities.features), op)
    }

    fn first_guess(&self, _device: &DeviceInfo, _op: &Op) -> FirstGuess {
        // Intel's figures for the fourth generation are about ten gigabytes per second and some ten
        // microseconds per message.
        FirstGuess { overhead_ns: 20_000.0, work_unit_ns: 0.1 }
    }

    fn open(&self, device: &DeviceInfo, _options: &OpenOptions) -> Result<Box<dyn Engine>> {
        let unavailable = |reason: String| Error::DeviceUnavailable { device: device.id, reason };
        let _loading = Loading::begin().map_err(|absence| unavailable(absence.to_string()))?;
        let instances = self.instances(device).map_err(unavailable)?;
        let zipper = match Does::from_features(&device.capabilities.features).zip {
            true => Some(self.zip().and_then(|zip| Zipper::new(&zip)).map_err(|error| unavailable(error.to_string()))?),
            false => None,
        };
        Ok(Box::new(QatEngine::new(device.clone(), instances, zipper, self.places.silence_max)?))
    }
}
