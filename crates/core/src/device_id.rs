//! Names of places: the id of a device, and the location of a tensor's elements.

use std::fmt;
use std::str::FromStr;

use crate::api::Api;
use crate::error::Error;

/// The id of a device: its API and its index there, written `cuda:0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceId {
    /// The API that reaches the device.
    pub api: Api,
    /// The device's index among the devices of that API.
    pub index: u32,
}

impl fmt::Display for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}:{}", self.api, self.index))
    }
}

impl FromStr for DeviceId {
    type Err = Error;

    fn from_str(text: &str) -> Result<DeviceId, Error> {
        let (api, index) = text.split_once(':').unwrap_or((text, "0"));
        let index = index.parse().map_err(|_| Error::invalid("device", "API:INDEX, such as cpu:0", text))?;
        Ok(DeviceId { api: api.parse()?, index })
    }
}

/// Location of a tensor's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Location {
    /// In the host's memory.
    Host,
    /// In this device's memory.
    Device(DeviceId),
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Location::Host => f.pad("host"),
            Location::Device(device) => device.fmt(f),
        }
    }
}
