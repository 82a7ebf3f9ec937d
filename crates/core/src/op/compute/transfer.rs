//! Transfer: a contiguous copy of a tensor on the host or on a device.

use crate::device::DeviceId;
use crate::error::Result;
use crate::op::{AnswerTypes, Describe};
use crate::tensor::{Location, Tensor};

/// Copies a tensor to a location. A contiguous tensor that is already there is returned as is.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The tensor to copy.
    pub input: Tensor,
    /// The target.
    pub to: Location,
}

impl Transfer {
    /// Copies to the host's memory.
    pub fn to_host(input: &Tensor) -> Transfer {
        Transfer { input: input.clone(), to: Location::Host }
    }

    /// Copies to a device's memory. On a device that shares the host's memory no data is moved.
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

    crate::parts!(input);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.input.dtype(), *self.input.shape()))
    }

    fn can_be_node(&self) -> bool {
        false
    }

    /// The device to which or from which the tensor is copied.
    fn bound_to(&self) -> Option<DeviceId> {
        match (self.to, self.input.location()) {
            (Location::Device(device), _) | (Location::Host, Location::Device(device)) => Some(device),
            (Location::Host, Location::Host) => None,
        }
    }
}
