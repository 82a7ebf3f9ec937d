//! The device of a runtime that a case runs on.

use std::sync::Arc;
use std::time::Duration;

use panoply::backend::PartMut;
use panoply::prelude::*;
use panoply::{Api, Bytes, Describe, DeviceInfo, Error};

use super::random::Normals;

/// Runs the op once, to completion, and drops its output. Returns the device's own time, if the
/// device reports it.
pub type Runner = Box<dyn Fn() -> panoply::Result<Option<Duration>>>;

/// Seed of the inputs; every case draws from the same sequence.
const SEED: u64 = 7;

/// Shorter byte strings stay on the host and are sent with each op.
const RESIDENT_BYTES_MIN: usize = 1 << 10;

/// One device of a runtime.
#[derive(Clone)]
pub struct BenchDevice {
    pub runtime: Arc<Runtime>,
    pub device: DeviceInfo,
}

impl BenchDevice {
    /// Returns the sequence of random normals for the inputs.
    pub fn normals(&self) -> Normals {
        Normals::new(SEED)
    }

    /// Runs an op on the device.
    pub fn run<O: Operation>(&self, op: O) -> Pending<O::Output> {
        self.runtime.run_with(op, RunOptions { device: Some(self.device.id), ..RunOptions::default() })
    }

    /// Runs an op that makes a case's input, and returns its output. The op always runs on the CPU
    /// backend: the measured device may verify but not sign, and the runtime may have no other
    /// device.
    pub fn made<O: Operation>(&self, op: O) -> panoply::Result<O::Output> {
        let builder = Runtime::builder().only([Api::CPU]).without_profile();
        let maker = builder.build().map_err(|error| Error::Unsupported { op: "bench", reason: error.to_string() })?;
        maker.run(op).wait()
    }

    /// Copies the tensor to the device's own memory. On a device that computes in the host's
    /// memory, returns the tensor itself.
    pub fn resident(&self, tensor: &Tensor) -> panoply::Result<Tensor> {
        if self.device.shares_host_memory {
            return Ok(tensor.clone());
        }
        self.run(Transfer::to_device(tensor, self.device.id)).wait()
    }

    fn resident_bytes(&self, bytes: &Bytes) -> panoply::Result<Bytes> {
        Bytes::from_tensor(&self.resident(&bytes.to_tensor()?)?)
    }

    /// Returns a runner that runs the same op each time, with its inputs in the device's memory.
    pub fn repeat<O: Operation + Describe + Clone>(&self, mut op: O) -> panoply::Result<Runner> {
        let mut failure = None;
        op.for_each_part_mut(&mut |part| {
            let moved = match part {
                PartMut::Tensor(tensor) => self.resident(tensor).map(|resident| *tensor = resident),
                // Secrets and short byte strings stay on the host.
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
