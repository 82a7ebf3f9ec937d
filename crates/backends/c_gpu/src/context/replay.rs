//! One recording of queued work, which is queued again as one unit.

use std::rc::Rc;

use panoply_core::{DeviceBuffer, Result, Tensor};

use super::{OpResources, Words};
use crate::driver::{CapturedGraph, Driver};

/// A recording with everything that it uses, except its callers' tensors.
pub(crate) struct Replay {
    pub(crate) driver: Rc<dyn Driver>,
    pub(crate) captured: CapturedGraph,
    #[allow(dead_code)] // Held so that the pool does not lend it.
    pub(crate) held: OpResources,
    #[allow(dead_code)] // As above: graphs that need more get another block.
    pub(crate) block: Option<DeviceBuffer>,
    #[allow(dead_code)] // As above.
    pub(crate) own: Vec<Tensor>,
    /// Error words of its kernels.
    pub(crate) words: Option<Words>,
}

impl Drop for Replay {
    fn drop(&mut self) {
        if let Some(captures) = self.driver.captures() {
            captures.release(self.captured);
        }
    }
}

impl Replay {
    /// Queues the recorded work once more.
    pub(crate) fn run(&self) -> Result<()> {
        match self.driver.captures() {
            // SAFETY: the recording holds the memory that it uses and is dropped before its kernels
            // are; it is not dropped before the current op has finished. Inputs and outputs at its
            // addresses belong to the op, or are held by the recording's owner.
            Some(captures) => unsafe { captures.replay(self.captured) },
            None => Ok(()),
        }
    }
}
