//! Where ops of Burn programs run.

use std::sync::{Arc, PoisonError, RwLock};

use burn_backend::{DeviceId, DeviceOps};
use burn_flex::FlexDevice;
use burn_std::DeviceSettings;
use burn_std::device::Device;
use panoply_runtime::Runtime;

use crate::place::Place;

/// A device as Burn names it. The numbers are those of [`devices`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PanoplyDevice {
    index: u16,
}

static PLACES: RwLock<Vec<Arc<Place>>> = RwLock::new(Vec::new());

/// The devices of a runtime, for Burn: the first is wherever the router sends a graph, the others are one device each. May be called once for each
/// runtime; devices of several runtimes are counted on.
pub fn devices(runtime: &Arc<Runtime>) -> Vec<PanoplyDevice> {
    let pins = [None].into_iter().chain(runtime.devices().map(|device| Some(device.id)));
    let new: Vec<Arc<Place>> = pins.map(|pin| Arc::new(Place::new(Arc::clone(runtime), pin))).collect();
    let mut places = PLACES.write().unwrap_or_else(PoisonError::into_inner);
    let first = places.len();
    places.extend(new);
    (first..places.len()).filter_map(|index| u16::try_from(index).ok()).map(|index| PanoplyDevice { index }).collect()
}

/// How many there are.
pub fn count() -> usize {
    PLACES.read().unwrap_or_else(PoisonError::into_inner).len()
}

impl PanoplyDevice {
    /// What is behind it. A server has no devices but those of [`devices`], so its clients name no others.
    ///
    /// # Panics
    ///
    /// Where there was no call of [`devices`] before: there is no runtime.
    pub fn place(self) -> Arc<Place> {
        let places = PLACES.read().unwrap_or_else(PoisonError::into_inner);
        match places.get(usize::from(self.index)).or_else(|| places.first()) {
            Some(place) => Arc::clone(place),
            None => panic!("no runtime was given to panoply_burn::device::devices"),
        }
    }
}

impl Device for PanoplyDevice {
    fn from_id(id: DeviceId) -> PanoplyDevice {
        PanoplyDevice { index: id.index_id }
    }

    fn to_id(&self) -> DeviceId {
        DeviceId::new(0, self.index)
    }
}

impl DeviceOps for PanoplyDevice {
    fn defaults(&self) -> DeviceSettings {
        FlexDevice.defaults()
    }
}
