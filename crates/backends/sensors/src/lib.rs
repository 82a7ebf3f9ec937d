//! The sensors of a card, found by its PCI address, for APIs that have none of their own.
//!
//! [`CardSensors`] reads NVIDIA's cards through NVML (`nvml`), and others from the files of Linux's
//! drivers (`pci`). Temperature, power, utilisation, throttling and memory are read at each
//! call; a value that a card does not report is `None`, and [`Health::sensors_absent`] says why.
//!
//! The crate knows no API and no engine. One thread owns a `CardSensors`.
#![allow(unsafe_code)] // NVML is a C library; every block states its reason.

use std::path::PathBuf;

use panoply_core::{DeviceInfo, DeviceKind, Health, PciAddress};

pub mod nvml;
pub mod pci;

pub use nvml::Nvml;
pub use pci::PciCard;

/// The PCI vendor whose cards NVML knows.
const NVIDIA: u32 = 0x10de;

/// The sensors of one card. They are looked for when they are first read.
pub struct CardSensors {
    address: Option<PciAddress>,
    /// Whether the card has memory of its own, so that its figures are the device's.
    has_own_memory: bool,
    /// `/`, except in tests.
    root: PathBuf,
    nvml_names: Vec<String>,
    found: Option<Result<Source, String>>,
}

enum Source {
    Nvml(Nvml),
    Pci(PciCard),
}

impl CardSensors {
    /// The sensors of the card that a device is on.
    pub fn of(device: &DeviceInfo) -> CardSensors {
        CardSensors {
            address: device.pci_address,
            has_own_memory: device.kind == DeviceKind::DiscreteGpu,
            root: PathBuf::from("/"),
            nvml_names: nvml::NAMES.map(str::to_owned).to_vec(),
            found: None,
        }
    }

    /// Looks for the files of drivers below `root`.
    pub fn below(self, root: impl Into<PathBuf>) -> CardSensors {
        CardSensors { root: root.into(), ..self }
    }

    /// Looks for NVML under these names.
    pub fn with_nvml(self, names: &[&str]) -> CardSensors {
        CardSensors { nvml_names: names.iter().map(|name| (*name).to_owned()).collect(), ..self }
    }

    /// The present values.
    pub fn read(&mut self) -> Health {
        if self.found.is_none() {
            self.found = Some(self.find());
        }
        let mut health = match &mut self.found {
            Some(Ok(Source::Nvml(nvml))) => nvml.health(),
            Some(Ok(Source::Pci(card))) => card.health(),
            Some(Err(reason)) => Health { sensors_absent: Some(reason.clone()), ..Health::default() },
            None => Health::default(),
        };
        health.memory = health.memory.filter(|_| self.has_own_memory);
        health
    }

    fn find(&self) -> Result<Source, String> {
        let address = self.address.ok_or("the device has no PCI address by which its sensors could be found")?;
        let card = PciCard::find(&self.root, address);
        match &card {
            // Without Linux's list of devices the vendor is unknown: NVML says whether it knows
            // the card.
            Ok(card) if card.vendor() != Some(NVIDIA) => {}
            _ => match Nvml::open(&self.nvml_names, address) {
                Ok(nvml) => return Ok(Source::Nvml(nvml)),
                Err(reason) if card.is_ok() => return Err(reason),
                Err(_) => {}
            },
        }
        card.map(Source::Pci)
    }
}

#[cfg(test)]
mod tests;
