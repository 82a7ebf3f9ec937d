//! Tests that every backend over `panoply_wgsl_gpu` runs on its own devices: the conformance suite,
//! callers' kernels, faults, kernel forms that the suite does not reach, joined maps, tensors in
//! pieces, and transfers.
//!
//! A backend has this crate as a dev-dependency, implements [`TestBackend`] for its backend and
//! [`Losable`] for its driver, and calls [`driver_tests!`] in a module of its unit tests. If the
//! machine has no device, the tests print that they are skipped. The tests see a backend through
//! `dyn` alone, so they are compiled once. The tests of a backend's public face ([`suite`],
//! [`kernel`]) and of its ways of transferring bytes ([`transfer_ways`]) have arguments of their
//! own, so the backend has a test that calls each.
#![allow(clippy::unwrap_used)] // A failed unwrap is a failed test.
#![allow(missing_docs)] // Most functions are tests, and their names say what they check.

pub mod caches;
pub mod fault;
pub mod form;
pub mod joined;
pub mod kernel;
mod list;
pub mod piece;
pub mod piece_claim;
pub mod piece_image;
pub mod suite;
pub mod transfer;
pub mod transfer_ways;

pub use list::unlisted;

use panoply_core::{Backend, DeviceId, DeviceInfo, Engine, Error, Op, OpenOptions, Result, Value};
use panoply_kernels::wgsl::Kernel;
use panoply_wgsl_gpu::internals::{Answer, Tuning};
use panoply_wgsl_gpu::profile::Profile;
use panoply_wgsl_gpu::{Driver, GpuEngine, ops};

/// Limits of a simulated device; limits that are not given are small.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceLimits {
    pub binding_bytes_max: Option<u64>,
    pub workgroup_bytes_max: Option<u32>,
    pub without_immediates: bool,
}

/// A backend under test.
pub trait TestBackend: Backend {
    /// The same backend, whose devices have at most these limits.
    fn limited(&self, limits: DeviceLimits) -> Box<dyn TestBackend>;

    fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn TestEngine>>;
}

/// A driver whose device can be lost on command.
pub trait Losable: Driver {
    /// Marks the device as lost from here on.
    fn lose(&self);
}

/// An engine under test, with the parts of its context that tests look at.
pub trait TestEngine: Engine {
    fn device(&mut self) -> DeviceId;

    fn profile(&mut self) -> &mut Profile;

    fn tune(&mut self, tuning: Tuning);

    /// Compiles a text, for buffers that it writes and reads.
    fn compile(&mut self, text: &str, buffers: (usize, usize)) -> Result<()>;

    /// Compiles a kernel if it is not compiled.
    fn load(&mut self, kernel: &Kernel, buffers: (usize, usize)) -> Result<()>;

    /// Number of kernels that were compiled.
    fn compiled(&mut self) -> u64;

    /// The kernels that were compiled.
    fn kernels(&mut self) -> Vec<Kernel>;

    /// Number of dispatches that were recorded.
    fn dispatches(&mut self) -> u64;

    /// Records an op, and returns its output before anything has run.
    fn record(&mut self, op: &Op) -> Result<Value>;

    /// Submits the recorded work, and returns whether there was any.
    fn submits_recorded(&mut self) -> bool;

    fn has_arena(&mut self) -> bool;

    /// Marks the device as lost from here on.
    fn lose(&mut self);
}

impl<D: Losable> TestEngine for GpuEngine<D> {
    fn device(&mut self) -> DeviceId {
        self.context().device
    }

    fn profile(&mut self) -> &mut Profile {
        &mut self.context().profile
    }

    fn tune(&mut self, tuning: Tuning) {
        *self.context().tuning() = tuning;
    }

    fn compile(&mut self, text: &str, buffers: (usize, usize)) -> Result<()> {
        self.context().pipelines.compile(text, buffers).map(drop)
    }

    fn load(&mut self, kernel: &Kernel, buffers: (usize, usize)) -> Result<()> {
        self.context().pipelines.get(kernel, buffers).map(drop)
    }

    fn compiled(&mut self) -> u64 {
        self.context().pipelines.compiled()
    }

    fn kernels(&mut self) -> Vec<Kernel> {
        self.context().pipelines.kernels().cloned().collect()
    }

    fn dispatches(&mut self) -> u64 {
        self.context().recorder().dispatches
    }

    fn record(&mut self, op: &Op) -> Result<Value> {
        match ops::run(op, self.context())? {
            Answer::Value(value) => Ok(value),
            _ => Err(Error::invalid("record", "an op whose output is on the device", "another op")),
        }
    }

    fn submits_recorded(&mut self) -> bool {
        self.context().submit().is_some()
    }

    fn has_arena(&mut self) -> bool {
        self.context().memory.arena().is_some()
    }

    fn lose(&mut self) {
        self.context().driver.lose();
    }
}

/// An engine on the first device. If there is none, prints that the test is skipped.
pub fn engine(backend: &dyn TestBackend) -> Option<Box<dyn TestEngine>> {
    match backend.discover() {
        Ok(devices) => Some(backend.open_engine(&devices[0], &OpenOptions::default()).unwrap()),
        Err(absence) => {
            eprintln!("skipped: {absence}");
            None
        }
    }
}

/// Runs one op, and returns its output on the host.
pub fn run_one(engine: &mut dyn TestEngine, op: Op) -> Result<Value> {
    panoply_conformance::run_one(engine, op)
}
