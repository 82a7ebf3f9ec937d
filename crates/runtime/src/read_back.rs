//! Reads a device's memory for callers that ask for the elements of a tensor, such as by
//! `Tensor::as_slice`.
//!
//! 1. A read is a transfer to the host: an op in the queue of the device's worker, like any other.
//! 2. It waits for at most twice the time limit of an op: once for the ops before it, once for
//!    itself.
//! 3. A thread of a runtime must not wait for a device: the device's worker may be waiting for that
//!    very thread. There a read fails at once, and so it does in a fork.

use std::sync::Arc;
use std::time::Instant;

use panoply_core::op::compute::Transfer;
use panoply_core::{Error, Operation, ReadBack, Result, Tensor};
use panoply_lockfree::slot::slot;

use crate::lane::{Lane, OpRequest};
use crate::pending::Pending;
use crate::threads;

/// How many time limits of an op a caller waits for a device's memory.
pub(crate) const WAIT_OP_TIMES: u32 = 2;

impl ReadBack for Lane {
    fn check(&self) -> Result<()> {
        self.process.check("the tensor's runtime")?;
        if threads::is_runtimes() { Err(Error::NotOnHost { device: self.info.id }) } else { Ok(()) }
    }

    fn read_back(self: Arc<Self>, tensor: &Tensor) -> Result<Tensor> {
        let (device, after) = (self.info.id, self.limits.op_time_max.saturating_mul(WAIT_OP_TIMES));
        let accepted = Instant::now();
        let limit = crate::time::later(accepted, after);
        let op = Transfer::to_host(tensor).into_op()?;
        let input_bytes = op.input_bytes();
        let (ticket, receiver) = slot(OpRequest::of_read(&self, op, accepted, limit));
        let unsent = match self.try_send(ticket) {
            Ok(()) => None,
            Err((ticket, Error::Busy { .. })) => Some(ticket),
            Err((ticket, refusal)) => {
                ticket.answer(Err(Error::Cancelled));
                return Err(explained(refusal, &self));
            }
        };
        let pending = Pending::sent(receiver, Arc::clone(&self), unsent, None, input_bytes, None, Transfer::output);
        pending.wait_until(limit).map_err(|error| match error {
            Error::DeadlineExceeded { .. } => Error::Timeout { device, after },
            other => explained(other, &self),
        })
    }
}

/// Explains the error of a lane that takes no more ops to a caller that only wanted to read.
fn explained(error: Error, lane: &Lane) -> Error {
    match error {
        Error::ShuttingDown => {
            let reason = "the runtime that held the tensor has ended; read it before, or run its op with `to_host`";
            Error::DeviceUnavailable { device: lane.info.id, reason: reason.to_owned() }
        }
        other => other,
    }
}
