//! A program's own workers that own a device, or a part of one.
//!
//! ```
//! # use panoply_core::{Tensor, op::compute::Reduce};
//! use panoply_runtime::worker::BoxError;
//! use panoply_runtime::{AcceleratedWorker, DeviceShare, Envelope, PoolOptions, Runtime, Share, WorkerPool};
//! # use std::sync::Arc;
//! # let runtime = Runtime::builder().backend(Arc::new(panoply_cpu::CpuBackend::new())).build()?;
//!
//! /// Adds up rows on its own device.
//! struct Sums;
//!
//! impl AcceleratedWorker for Sums {
//!     type Message = Vec<f32>;
//!     type Reply = f32;
//!
//!     fn handle(&mut self, device: &DeviceShare, envelope: Envelope<Vec<f32>>) -> Result<f32, BoxError> {
//!         let count = envelope.message.len();
//!         let row = Tensor::from_vec(envelope.message, [count])?;
//!         let sum = device.run_with(Reduce::sum(&row), device.options().to_host()).wait()?;
//!         Ok(sum.as_slice::<f32>()?[0])
//!     }
//! }
//!
//! let runtime = Arc::new(runtime);
//! let device = runtime.devices().next().ok_or("no device")?.id;
//! let share = runtime.claim(device, Share::Whole)?;
//! let pool = WorkerPool::start_on_devices(PoolOptions::default(), vec![share], |_| Sums)?;
//! assert_eq!(pool.request(vec![1.0, 2.0, 3.0])?.wait()?, 6.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::sync::Arc;

use panoply_core::{DeviceId, Operation, Result};

use crate::claims::{Claim, Share};
use crate::options::RunOptions;
use crate::pending::Pending;
use crate::pool::{PoolOptions, WorkerPool};
use crate::runtime::Runtime;
use crate::worker::{BoxError, Envelope, Worker, WorkerError};

/// A device, or a part of one, that its holder has for itself. Clones share it; it is free again
/// when the last of them is dropped. See [`Runtime::claim`].
#[derive(Clone)]
pub struct DeviceShare {
    runtime: Arc<Runtime>,
    claim: Claim,
}

impl Runtime {
    /// Claims a device, or a part of it. While a whole device is claimed, no other op is sent to
    /// it, except ops that were accepted before. Parts of a device are at most one together, and
    /// bound how many of their ops are in flight; other ops may use the device as well.
    ///
    /// Fails if the device does not exist, or if other claims leave less of it.
    pub fn claim(self: &Arc<Runtime>, device: DeviceId, share: Share) -> Result<DeviceShare> {
        Ok(DeviceShare { runtime: Arc::clone(self), claim: self.claim_of(device, share)? })
    }
}

impl DeviceShare {
    /// The device.
    pub fn device(&self) -> DeviceId {
        self.claim.device()
    }

    /// How many ops may be in flight. Beyond that number they are refused with
    /// [`Error::Busy`](panoply_core::Error::Busy).
    pub fn in_flight_max(&self) -> usize {
        self.claim.in_flight_max()
    }

    /// The runtime of the device.
    pub fn runtime(&self) -> &Arc<Runtime> {
        &self.runtime
    }

    /// Options with which ops, models and training run on the claimed device.
    pub fn options(&self) -> RunOptions {
        RunOptions { claim: Some(self.claim.clone()), ..RunOptions::default() }
    }

    /// Runs an op on the claimed device.
    pub fn run<O: Operation>(&self, op: O) -> Pending<O::Output> {
        self.run_with(op, RunOptions::default())
    }

    /// Runs an op on the claimed device with these options.
    pub fn run_with<O: Operation>(&self, op: O, options: RunOptions) -> Pending<O::Output> {
        self.runtime.run_with(op, RunOptions { claim: Some(self.claim.clone()), ..options })
    }
}

impl std::fmt::Debug for DeviceShare {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceShare({})", self.device())
    }
}

/// A state that one thread owns, with a device, or a part of one, of its own. The methods are those
/// of [`Worker`], with the device.
///
/// State on the device (weights, sessions, tables) belongs into `init`: after a failure, such as a
/// lost device, the worker is made and initialised again.
pub trait AcceleratedWorker: 'static {
    /// The type of its messages.
    type Message: Send + 'static;
    /// The type of its replies to requests.
    type Reply: Send + 'static;

    /// As [`Worker::init`].
    fn init(&mut self, _device: &DeviceShare) -> Result<(), BoxError> {
        Ok(())
    }

    /// As [`Worker::handle`].
    fn handle(&mut self, device: &DeviceShare, envelope: Envelope<Self::Message>) -> Result<Self::Reply, BoxError>;

    /// As [`Worker::tick`].
    fn tick(&mut self, _device: &DeviceShare) -> Result<(), BoxError> {
        Ok(())
    }

    /// As [`Worker::shutdown`].
    fn shutdown(&mut self, _device: &DeviceShare) {}
}

/// An accelerated worker as a member of a pool.
pub struct OnDevice<A> {
    worker: A,
    device: DeviceShare,
}

impl<A: AcceleratedWorker> Worker for OnDevice<A> {
    type Message = A::Message;
    type Reply = A::Reply;

    fn init(&mut self) -> Result<(), BoxError> {
        self.worker.init(&self.device)
    }

    fn handle(&mut self, envelope: Envelope<A::Message>) -> Result<A::Reply, BoxError> {
        self.worker.handle(&self.device, envelope)
    }

    fn tick(&mut self) -> Result<(), BoxError> {
        self.worker.tick(&self.device)
    }

    fn shutdown(&mut self) {
        self.worker.shutdown(&self.device);
    }
}

impl<A: AcceleratedWorker> WorkerPool<OnDevice<A>> {
    /// Starts a pool with one worker for each share. Messages go to the workers in turn, or to the
    /// one that the caller names. The shares are free again when the pool is dropped.
    pub fn start_on_devices<F>(
        options: PoolOptions,
        shares: Vec<DeviceShare>,
        make: F,
    ) -> Result<WorkerPool<OnDevice<A>>, WorkerError>
    where
        F: Fn(usize) -> A + Send + Sync + 'static,
    {
        if options.workers != shares.len() {
            let (what, got) = ("workers", format!("{} for {} shares", options.workers, shares.len()));
            return Err(WorkerError::BadOption { what, expected: "as many as shares of devices", got });
        }
        WorkerPool::start(options, move |index| OnDevice { worker: make(index), device: shares[index].clone() })
    }
}
