//! Finds cards and opens them. A [`Find`] searches one kind of card: behind XDMA, behind XRT, or
//! simulated. Simulated cards form a backend with its own name.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use panoply_core::vendor::Loading;
use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Engine, Error, FirstGuess, Op, OpenOptions,
    PciAddress, Result, Support, vendor,
};
use panoply_placement::{SYSTEM, locate};

use crate::bitstreams::{self, Bitstreams};
use crate::card::simulated::build::{NoSimulation, library};
use crate::card::simulated::{SimulatedCard, Simulation};
use crate::card::xdma::{self, XdmaCard};
use crate::card::xrt::XrtCard;
use crate::card::xrt::calls::{LIBRARIES, Xrt};
use crate::card::{Card, CardError, Completion};
use crate::driver::{Driver, Identity};
use crate::engine::FpgaEngine;
use crate::ops;

/// The API name of simulated cards.
pub const SIMULATED: Api = Api::new("fpga-sim");

/// A method to find and open cards.
pub trait Find: Send + Sync {
    /// Lists the cards, or returns why there are none.
    fn find(&self) -> Result<Vec<FoundCard>, Absence>;

    /// Opens one of the cards, and loads a bitstream onto it if one is given.
    fn open(&self, number: u32, bitstream: Option<&Path>) -> Result<Box<dyn Card>, CardError>;
}

/// A card that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundCard {
    /// The card's number within its [`Find`].
    pub number: u32,
    /// The card's name.
    pub name: String,
    /// The card's address on the PCI bus, if the driver tells it.
    pub address: Option<PciAddress>,
}

/// A discovered card: its [`Find`], its number there, and its cores. The position in the list is
/// the device's index.
struct DiscoveredCard {
    place: usize,
    number: u32,
    address: Option<PciAddress>,
    identity: Option<Identity>,
}

/// The FPGA backend.
pub struct FpgaBackend {
    api: Api,
    places: Vec<Box<dyn Find>>,
    seen: Mutex<Vec<DiscoveredCard>>,
    bitstreams: Mutex<Bitstreams>,
    troubles: Mutex<Vec<String>>,
    /// A folder laid out like `/sys`.
    system: PathBuf,
}

impl FpgaBackend {
    /// Uses cards behind XDMA and XRT. If `PANOPLY_FPGA_XCLBIN` names a bitstream, it is loaded
    /// onto those of XRT's cards that [`FpgaBackend::set_bitstreams`] does not name.
    #[allow(clippy::new_without_default)] // It reads the environment.
    pub fn new() -> FpgaBackend {
        let bitstream = std::env::var_os("PANOPLY_FPGA_XCLBIN").map(PathBuf::from);
        let names = LIBRARIES.iter().map(|names| names.map(str::to_owned).to_vec()).collect();
        FpgaBackend::of(
            Api::FPGA,
            vec![Box::new(Xdma::new(xdma::device_folder())), Box::new(XrtCards::new(names, bitstream))],
        )
    }

    /// Uses one card simulated by Verilator, under the name [`SIMULATED`].
    pub fn simulated() -> FpgaBackend {
        FpgaBackend::of(SIMULATED, vec![Box::new(VerilatorCard::default())])
    }

    /// Uses the simulation if `PANOPLY_FPGA_SIMULATION` is set, and the machine's cards otherwise.
    pub fn from_environment() -> FpgaBackend {
        match std::env::var_os("PANOPLY_FPGA_SIMULATION") {
            Some(_) => FpgaBackend::simulated(),
            None => FpgaBackend::new(),
        }
    }

    /// Uses the cards that `places` find, listed under the name `api`.
    pub fn of(api: Api, places: Vec<Box<dyn Find>>) -> FpgaBackend {
        let (seen, bitstreams, troubles) = (Mutex::default(), Mutex::default(), Mutex::default());
        FpgaBackend { api, places, seen, bitstreams, troubles, system: PathBuf::from(SYSTEM) }
    }

    /// Looks for the NUMA node of each card in a folder laid out like `/sys`, for tests.
    pub fn in_system(self, system: &Path) -> FpgaBackend {
        FpgaBackend { system: system.to_owned(), ..self }
    }

    /// Sets the bitstreams that are loaded when cards are identified and opened from now on. A card
    /// in use is not touched.
    pub fn set_bitstreams(&self, bitstreams: Bitstreams) {
        *self.bitstreams.lock().unwrap_or_else(PoisonError::into_inner) = bitstreams;
        // Another bitstream has other cores.
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).iter_mut().for_each(|seen| seen.identity = None);
    }

    /// The complaints of the last search: cards that could not be used, and bitstreams of cards
    /// that are not there.
    pub fn troubles(&self) -> Vec<String> {
        self.troubles.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens a card with its bitstream.
    fn open_card(
        &self,
        place: usize,
        number: u32,
        device: DeviceId,
        address: Option<PciAddress>,
    ) -> Result<Box<dyn Card>, CardError> {
        let bitstreams = self.bitstreams.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let bitstream = bitstreams.of(device, address);
        bitstream.map_or(Ok(()), bitstreams::check)?;
        self.places[place].open(number, bitstream)
    }

    fn describe(&self, place: usize, found: &FoundCard) -> Result<DeviceInfo, CardError> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let is_it = |seen: &DiscoveredCard| (seen.place, seen.number) == (place, found.number);
        let index = seen.iter().position(is_it).unwrap_or_else(|| {
            seen.push(DiscoveredCard { place, number: found.number, address: None, identity: None });
            seen.len() - 1
        });
        seen[index].address = found.address;
        let id = DeviceId { api: self.api, index: index as u32 };
        // An identified card is not opened again, because it may be in use.
        let identity = match &seen[index].identity {
            Some(identity) => identity.clone(),
            None => Identity::of(&mut *self.open_card(place, found.number, id, found.address)?)?,
        };
        seen[index].identity = Some(identity.clone());
        let mut info = DeviceInfo::new(id, found.name.clone(), DeviceKind::Fpga);
        if let Some(address) = found.address {
            locate(&mut info, &self.system, address);
        }
        // The driver builds packets in host memory, so tensors need not be moved before.
        info.shares_host_memory = true;
        info.runs_on_cores = self.api == SIMULATED;
        info.is_exclusive = true;
        info.capabilities = Capabilities { domains: ops::domains(&identity), features: identity.features() };
        Ok(info)
    }

    /// Complaints about bitstreams of cards that no search has found.
    fn stranger_bitstreams(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let id = |index: usize| DeviceId { api: self.api, index: index as u32 };
        let cards: Vec<_> = seen.iter().enumerate().map(|(index, card)| (id(index), card.address)).collect();
        let shown = |(id, address): &(DeviceId, Option<PciAddress>)| match address {
            Some(address) => format!("{id} ({address})"),
            None => id.to_string(),
        };
        let there =
            if cards.is_empty() { "none".to_owned() } else { cards.iter().map(shown).collect::<Vec<_>>().join(", ") };
        let bitstreams = self.bitstreams.lock().unwrap_or_else(PoisonError::into_inner);
        let complaint = |name| format!("no card is called {name}, for which a bitstream is set; cards: {there}");
        bitstreams.strangers(&cards).map(complaint).collect()
    }

    /// The [`Find`], number and address of a device. With `forget` the card will be identified
    /// again.
    fn seen(&self, device: &DeviceInfo, forget: bool) -> Option<(usize, u32, Option<PciAddress>)> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let seen = seen.get_mut(device.id.index as usize)?;
        if forget {
            seen.identity = None;
        }
        Some((seen.place, seen.number, seen.address))
    }

    fn driver(&self, device: &DeviceInfo) -> Result<Driver, CardError> {
        let unknown = || CardError::system(device.id.to_string(), "it was never found");
        let (place, number, address) = self.seen(device, false).ok_or_else(unknown)?;
        let driver = Driver::open(self.open_card(place, number, device.id, address)?)?;
        match driver.identity().features() == device.capabilities.features {
            true => Ok(driver),
            false => {
                self.seen(device, true);
                Err(CardError::system(device.id.to_string(), "other cores are on it than when it was found"))
            }
        }
    }
}

impl Backend for FpgaBackend {
    fn api(&self) -> Api {
        self.api
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let (mut devices, mut reasons, mut denied, mut forked) = (Vec::new(), Vec::new(), false, false);
        let mut troubles = Vec::new();
        for (place, finder) in self.places.iter().enumerate() {
            match finder.find() {
                Err(Absence::NoDevice { reason }) => reasons.push(reason),
                Err(Absence::Denied { reason }) => {
                    denied = true;
                    reasons.push(reason);
                }
                Err(absence) => {
                    forked |= absence == Absence::Forked;
                    reasons.push(absence.to_string());
                }
                Ok(found) => found.iter().for_each(|found| match self.describe(place, found) {
                    Ok(info) => devices.push(info),
                    Err(error) => troubles.push(format!("{}: {error}", found.name)),
                }),
            }
        }
        troubles.extend(self.stranger_bitstreams());
        reasons.extend(troubles.iter().cloned());
        *self.troubles.lock().unwrap_or_else(PoisonError::into_inner) = troubles;
        let reason = reasons.join("; ");
        match (devices.is_empty(), denied) {
            (false, _) => Ok(devices),
            (true, true) => Err(Absence::Denied { reason }),
            (true, false) if forked => Err(Absence::Forked),
            (true, false) => Err(Absence::NoDevice { reason }),
        }
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        ops::support(&Identity::from_features(&device.capabilities.features), op)
    }

    fn first_guess(&self, device: &DeviceInfo, _op: &Op) -> FirstGuess {
        match device.runs_on_cores {
            true => FirstGuess { overhead_ns: 1e6, work_unit_ns: 1e3 },
            false => FirstGuess { overhead_ns: 30_000.0, work_unit_ns: 0.5 },
        }
    }

    fn open(&self, device: &DeviceInfo, _options: &OpenOptions) -> Result<Box<dyn Engine>> {
        let unavailable = |error: CardError| Error::DeviceUnavailable { device: device.id, reason: error.to_string() };
        let driver = self.driver(device).map_err(unavailable)?;
        Ok(Box::new(FpgaEngine::new(device.clone(), driver)))
    }
}

/// Cards behind the XDMA driver.
pub struct Xdma {
    folder: PathBuf,
    completion: Completion,
    system: PathBuf,
}

impl Xdma {
    /// Uses the cards with nodes in this folder.
    pub fn new(folder: PathBuf) -> Xdma {
        Xdma { folder, completion: Completion::default(), system: PathBuf::from(SYSTEM) }
    }

    /// Looks for the address of each card in a folder laid out like `/sys`, for tests.
    pub fn in_system(mut self, system: &Path) -> Xdma {
        self.system = system.to_owned();
        self
    }

    /// Selects how completion is detected.
    pub fn completion(mut self, completion: Completion) -> Xdma {
        self.completion = completion;
        self
    }
}

impl Find for Xdma {
    fn find(&self) -> Result<Vec<FoundCard>, Absence> {
        let numbers = xdma::numbers(&self.folder);
        let node = |number: &u32| self.folder.join(format!("xdma{number}_user"));
        if let Some(number) = numbers.first() {
            let opened = std::fs::OpenOptions::new().read(true).write(true).open(node(number));
            if opened.is_err_and(|error| error.kind() == std::io::ErrorKind::PermissionDenied) {
                return Err(Absence::Denied { reason: format!("{} may not be opened", node(number).display()) });
            }
        }
        match numbers.is_empty() {
            true => Err(Absence::NoDevice { reason: format!("no xdma*_user in {}", self.folder.display()) }),
            false => Ok(numbers
                .into_iter()
                .map(|number| {
                    let address = xdma::address(&self.system, number);
                    FoundCard { number, name: format!("XDMA card {number}"), address }
                })
                .collect()),
        }
    }

    fn open(&self, number: u32, bitstream: Option<&Path>) -> Result<Box<dyn Card>, CardError> {
        let mut card = XdmaCard::open(&self.folder, number, self.completion)?;
        bitstream.map_or(Ok(()), |file| card.load(file))?;
        Ok(Box::new(card))
    }
}

/// Cards behind XRT.
pub struct XrtCards {
    names: Vec<Vec<String>>,
    bitstream: Option<PathBuf>,
    completion: Completion,
    xrt: OnceLock<Arc<Xrt>>,
    /// The addresses of cards that were asked for theirs.
    addresses: Mutex<BTreeMap<u32, Option<PciAddress>>>,
}

impl XrtCards {
    /// Uses the cards of these libraries, and loads `bitstream` onto those that have none of their
    /// own. Each library is loaded by the first of its names that exists.
    pub fn new(names: Vec<Vec<String>>, bitstream: Option<PathBuf>) -> XrtCards {
        let (completion, xrt, addresses) = (Completion::default(), OnceLock::new(), Mutex::default());
        XrtCards { names, bitstream, completion, xrt, addresses }
    }

    /// Selects how completion is detected.
    pub fn completion(mut self, completion: Completion) -> XrtCards {
        self.completion = completion;
        self
    }

    /// The address of a card. The card is opened for that once.
    fn address(&self, xrt: &Arc<Xrt>, number: u32) -> Option<PciAddress> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        *addresses.entry(number).or_insert_with(|| xrt.address(number))
    }

    fn xrt(&self) -> Result<Arc<Xrt>, Absence> {
        vendor::load(|| self.load())
    }

    fn load(&self) -> Result<Arc<Xrt>, Absence> {
        if let Some(xrt) = self.xrt.get() {
            return Ok(xrt.clone());
        }
        let loaded = Xrt::load(&self.names).map_err(|tried| Absence::LibraryMissing { tried })?;
        let xrt = loaded.map_err(|error| Absence::NoDevice { reason: error.to_string() })?;
        Ok(self.xrt.get_or_init(|| xrt).clone())
    }
}

/// Maximum number of cards that are examined.
const CARDS_MAX: u32 = 64;

impl Find for XrtCards {
    fn find(&self) -> Result<Vec<FoundCard>, Absence> {
        match self.xrt()?.cards().min(CARDS_MAX) {
            0 => Err(Absence::NoDevice { reason: "XRT sees no card".to_owned() }),
            count => {
                let xrt = self.xrt()?;
                let card = |number| FoundCard {
                    number,
                    name: format!("XRT card {number}"),
                    address: self.address(&xrt, number),
                };
                Ok((0..count).map(card).collect())
            }
        }
    }

    fn open(&self, number: u32, bitstream: Option<&Path>) -> Result<Box<dyn Card>, CardError> {
        let xrt = self.xrt().map_err(|absence| CardError::system("XRT", absence))?;
        let bitstream = bitstream.or(self.bitstream.as_deref());
        Ok(Box::new(XrtCard::open(&xrt, number, bitstream, self.completion)?))
    }
}

/// One card simulated by Verilator.
#[derive(Default)]
pub struct VerilatorCard {
    simulation: OnceLock<Arc<Simulation>>,
}

impl VerilatorCard {
    /// Returns the simulation's library. Builds it first if necessary.
    pub fn simulation(&self) -> Result<Arc<Simulation>, NoSimulation> {
        let loading = Loading::begin().map_err(|absence| CardError::system("the simulation", absence))?;
        let made = self.load();
        if let Err(NoSimulation::ProgramMissing { .. }) = made {
            loading.found_nothing();
        }
        made
    }

    fn load(&self) -> Result<Arc<Simulation>, NoSimulation> {
        if let Some(simulation) = self.simulation.get() {
            return Ok(simulation.clone());
        }
        let simulation = Simulation::load(&library()?)?;
        Ok(self.simulation.get_or_init(|| simulation).clone())
    }
}

impl Find for VerilatorCard {
    fn find(&self) -> Result<Vec<FoundCard>, Absence> {
        vendor::check()?;
        self.simulation().map_err(|error| Absence::NoDevice { reason: error.to_string() })?;
        Ok(vec![FoundCard { number: 0, name: "simulated card (Verilator)".to_owned(), address: None }])
    }

    fn open(&self, _number: u32, bitstream: Option<&Path>) -> Result<Box<dyn Card>, CardError> {
        let simulation = self.simulation().map_err(|error| CardError::system("Verilator", error))?;
        let mut card = SimulatedCard::new(&simulation)?;
        bitstream.map_or(Ok(()), |file| card.load(file))?;
        Ok(Box::new(card))
    }
}
