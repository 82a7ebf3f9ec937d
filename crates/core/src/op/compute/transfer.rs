//! Transfer: a contiguous copy of a tensor on the host or on a device.

use crate::device::DeviceId;
use crate::error::Result;
use crate::op::Describe;
use crate::part::{PartMut, PartRef};
use crate::tensor::{Location, Tensor};

/// Copies a tensor to a place. A tensor that is there already, and contiguous, is returned as it is.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// What to copy.
    pub input: Tensor,
    /// Where to.
    pub to: Location,
}

impl Transfer {
    /// To the host's memory.
    pub fn to_host(input: &Tensor) -> Transfer {
        Transfer { input: input.clone(), to: Location::Host }
    }

    /// To a device's memory. On a device that shares the host's memory nothing moves.
    pub fn to_device(input: &Tensor, device: DeviceId) -> Transfer {
        Transfer { input: input.clone(), to: Location::Device(device) }
    }
}

impl Describe for Transfer {
    fn name(&self) -> &'static str {
        "transfer"
    }

    fn validate(&self) -> Result<()> {
        Ok(())
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        visit((&self.input).into());
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        visit((&mut self.input).into());
    }

    /// It is done by the device that it reaches or leaves.
    fn bound_to(&self) -> Option<DeviceId> {
        match (self.to, self.input.location()) {
            (Location::Device(device), _) | (Location::Host, Location::Device(device)) => Some(device),
            (Location::Host, Location::Host) => None,
        }
    }
}
