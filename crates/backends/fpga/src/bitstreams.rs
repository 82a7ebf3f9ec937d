//! Which bitstream is loaded onto which card.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use panoply_core::{DeviceId, Error, PciAddress, Result};

use crate::card::CardError;

/// The name of a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum CardName {
    /// By its address on the PCI bus, such as `0000:3b:00.0`.
    Address(PciAddress),
    /// By its id in Panoply, such as `fpga:0`. The order of cards is the driver's.
    Device(DeviceId),
}

impl FromStr for CardName {
    type Err = Error;

    fn from_str(text: &str) -> Result<CardName> {
        let address = text.parse().map(CardName::Address);
        let name = address.or_else(|_| text.parse().map(CardName::Device));
        name.map_err(|_: Error| {
            Error::invalid("card", "a PCI address such as 0000:3b:00.0, or an id such as fpga:0", text)
        })
    }
}

impl fmt::Display for CardName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CardName::Address(address) => address.fmt(f),
            CardName::Device(device) => device.fmt(f),
        }
    }
}

/// The bitstreams of cards. A card that is not named gets the one that its driver is set to, or
/// keeps what is on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Bitstreams(BTreeMap<CardName, PathBuf>);

impl Bitstreams {
    /// Adds the bitstream of one card, or replaces it.
    pub fn with(mut self, card: CardName, file: impl Into<PathBuf>) -> Bitstreams {
        self.0.insert(card, file.into());
        self
    }

    /// The bitstream of a card. Its address counts before its id, which depends on the order of
    /// cards.
    pub fn of(&self, device: DeviceId, address: Option<PciAddress>) -> Option<&Path> {
        let by_address = address.and_then(|address| self.0.get(&CardName::Address(address)));
        by_address.or_else(|| self.0.get(&CardName::Device(device))).map(PathBuf::as_path)
    }

    /// The names that are none of these cards'.
    pub(crate) fn strangers<'a>(
        &'a self,
        cards: &'a [(DeviceId, Option<PciAddress>)],
    ) -> impl Iterator<Item = CardName> {
        let is_here = move |name: &CardName| match name {
            CardName::Address(wanted) => cards.iter().any(|(_, address)| *address == Some(*wanted)),
            CardName::Device(wanted) => cards.iter().any(|(device, _)| device == wanted),
        };
        self.0.keys().copied().filter(move |name| !is_here(name))
    }
}

/// Fails if the file of a bitstream cannot be read.
pub(crate) fn check(file: &Path) -> Result<(), CardError> {
    let failed = |what: &dyn fmt::Display| CardError::Bitstream { reason: format!("{}: {what}", file.display()) };
    match std::fs::File::open(file).and_then(|file| file.metadata()) {
        Ok(data) if !data.is_file() => Err(failed(&"it is not a file")),
        Ok(data) if data.len() == 0 => Err(failed(&"it is empty")),
        Ok(_) => Ok(()),
        Err(error) => Err(failed(&error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_are_named_by_address_and_by_id() {
        let (by_address, by_id) = ("0000:3b:00.1".parse().unwrap(), "fpga:1".parse().unwrap());
        let bitstreams = Bitstreams::default().with(by_address, "a.xclbin").with(by_id, "b.xclbin");
        let of = |index, address: Option<&str>| {
            let id = DeviceId { api: panoply_core::Api::FPGA, index };
            bitstreams.of(id, address.map(|address| address.parse().unwrap())).map(Path::to_owned)
        };
        assert_eq!(of(0, Some("0000:3b:00.1")), Some("a.xclbin".into()));
        assert_eq!(of(1, Some("0000:3b:00.1")), Some("a.xclbin".into()), "the address counts first");
        assert_eq!(of(1, None), Some("b.xclbin".into()));
        assert_eq!((of(0, None), of(2, Some("0000:3c:00.1"))), (None, None));
        let id = DeviceId { api: panoply_core::Api::FPGA, index: 1 };
        let strangers: Vec<String> = bitstreams.strangers(&[(id, None)]).map(|name| name.to_string()).collect();
        assert_eq!(strangers, ["0000:3b:00.1"]);
        let error = "the second card".parse::<CardName>().unwrap_err().to_string();
        assert!(error.contains("0000:3b:00.0") && error.contains("the second card"), "{error}");
    }
}
