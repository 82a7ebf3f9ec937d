//! Where a case runs: one device of a runtime.

use std::sync::Arc;
use std::time::Duration;

use panoply::backend::PartMut;
use panoply::prelude::*;
use panoply::{Api, Bytes, Describe, DeviceInfo, Error};

use super::random::Normals;

/// Runs the op once, to the end, and drops its output. Tells how long the device itself worked, where it can.
pub type Runner = Box<dyn Fn() -> panoply::Result<Option<Duration>>>;

/// Every case draws its inputs from the same sequence.
const SEED: u64 = 7;

/// Shorter bytes come along with each op.
const RESIDENT_BYTES_MIN: usize = 1 << 10;

/// One device of a runtime.
#[derive(Clone)]
pub struct Place {
    pub runtime: Arc<Runtime>,
    pub device: DeviceInfo,
}

impl Place {
    /// The numbers that inputs are made of.
    pub fn normals(&self) -> Normals {
        Normals::new(SEED)
    }

    /// Runs an op on the device.
    pub fn run<O: Operation>(&self, op: O) -> Pending<O::Output> {
        self.runtime.run_with(op, RunOptions { device: Some(self.device.id), ..RunOptions::default() })
    }

    /// The output of an op that makes a case's input. The processor's cores run it, as they run every op: the device that is measured
    /// may verify and not sign, and the runtime may have no other.
    pub fn made<O: Operation>(&self, op: O) -> panoply::Result<O::Output> {
        let builder = Runtime::builder().only([Api::CPU]).without_profile();
        let maker = builder.build().map_err(|error| Error::Unsupported { op: "bench", reason: error.to_string() })?;
        maker.run(op).wait()
    }

    /// The tensor in the device's own memory; on a device that computes in the host's, the tensor itself.
    pub fn resident(&self, tensor: &Tensor) -> panoply::Result<Tensor> {
        if self.device.shares_host_memory {
            return Ok(tensor.clone());
        }
        self.run(Transfer::to_device(tensor, self.device.id)).wait()
    }

    fn resident_bytes(&self, bytes: &Bytes) -> panoply::Result<Bytes> {
        Bytes::from_tensor(&self.resident(&bytes.to_tensor()?)?)
    }

    /// Runs the same op each time, with its inputs in the device's memory.
    pub fn repeat<O: Operation + Describe + Clone>(&self, mut op: O) -> panoply::Result<Runner> {
        let mut failure = None;
        op.for_each_part_mut(&mut |part| {
            let moved = match part {
                PartMut::Tensor(tensor) => self.resident(tensor).map(|resident| *tensor = resident),
                // Secrets stay on the host, and keys that are none.
                PartMut::Bytes(bytes) if !bytes.is_secret() && bytes.len() >= RESIDENT_BYTES_MIN => {
                    self.resident_bytes(bytes).map(|resident| *bytes = resident)
                }
                _ => Ok(()),
            };
            if let Err(error) = moved {
                failure = Some(error);
            }
        });
        if let Some(error) = failure {
            return Err(error);
        }
        let place = self.clone();
        Ok(Box::new(move || Ok(place.run(op.clone()).with_report().wait()?.report.device_time)))
    }
}
