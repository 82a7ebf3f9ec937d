//! Ops of the domain without an engine, on the thread that calls.

use panoply_core::op::Runs;
use panoply_core::{Api, Describe, DeviceId, Error, HostBufferMut, OneThread, Operation, Result};

use crate::level::Level;
use crate::run::{Workspace, run};

/// Runs ops on the calling thread.
pub struct Here(Workspace);

impl Here {
    /// Uses the best instructions of this CPU.
    pub fn new() -> Here {
        Here(Workspace::new(Level::best()))
    }

    /// As `Here::new`, with streams that are kept here.
    pub fn with_streams() -> Here {
        let mut here = Here::new();
        here.0.keep_streams(DeviceId { api: Api::CPU, index: 0 });
        here
    }
}

impl Default for Here {
    fn default() -> Here {
        Here::new()
    }
}

impl Runs for Here {
    fn run<O: Operation>(&mut self, op: O) -> Result<O::Output> {
        let op = op.into_op()?;
        let ran = run(&op, &mut self.0, &OneThread, &mut HostBufferMut::zeroed);
        O::output(ran.ok_or_else(|| Error::invalid("signal: op", "one of the signal domain", op.name()))??)
    }
}
