//! Finds OpenCL devices and opens them.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use panoply_c_gpu::devices::DEVICES_MAX;
use panoply_c_gpu::{Devices, GpuBackend, GpuEngine, ops};
use panoply_core::backend::FirstGuess;
use panoply_core::{
    Absence, Api, Backend, DType, DeviceId, DeviceInfo, Engine, Error, Op, OpenOptions, Result, Support, Warmth, vendor,
};

use panoply_core::expr::{Node, Program};
use panoply_core::op::compute::ComputeOp;

use crate::calls::{LOADERS, Library};
use crate::driver::OpenClDriver;
use crate::platform::{DiscoveredDevice, Limits, find};

/// If set to 1, devices report how long ops took.
const TIMES: &str = "PANOPLY_OPENCL_TIMES";

/// The backend for everything with an OpenCL driver: GPUs, accelerators and processors, of several
/// vendors at once.
#[derive(Clone)]
pub struct OpenClBackend {
    loaders: &'static [&'static str],
    limits: Limits,
    timed: bool,
    /// The loader and its devices, once they are found: the handles of sub-devices must stay the
    /// same.
    machine: Arc<Mutex<Option<Machine>>>,
    devices: Devices,
}

#[derive(Clone)]
struct Machine {
    library: Arc<Library>,
    found: Arc<Vec<DiscoveredDevice>>,
}

impl Default for OpenClBackend {
    fn default() -> OpenClBackend {
        OpenClBackend {
            loaders: LOADERS,
            limits: Limits::default(),
            timed: std::env::var_os(TIMES).is_some_and(|wanted| wanted == "1"),
            machine: Arc::default(),
            devices: Devices::default(),
        }
    }
}

impl OpenClBackend {
    /// The backend for all of this machine's devices.
    pub fn new() -> OpenClBackend {
        OpenClBackend::default()
    }

    /// Sets upper limits on what devices are taken to have; [`Limits::units`] splits one device
    /// into several.
    pub fn limited(mut self, limits: Limits) -> OpenClBackend {
        self.limits = limits;
        self.machine = Arc::default();
        self
    }

    /// Reports the device time of every op. With some drivers each launch then takes longer, so
    /// this is for measurements; `PANOPLY_OPENCL_TIMES=1` does the same.
    pub fn timed(mut self) -> OpenClBackend {
        self.timed = true;
        self
    }

    /// Uses another loader than the system's.
    #[cfg(test)]
    pub(crate) fn through(mut self, loaders: &'static [&'static str]) -> OpenClBackend {
        self.loaders = loaders;
        self
    }

    /// Uses a loader that is loaded already.
    #[cfg(test)]
    pub(crate) fn with_library(self, library: &Arc<Library>) -> Result<OpenClBackend, Absence> {
        let found = Arc::new(find(library, &self.limits)?);
        *self.machine.lock().unwrap_or_else(PoisonError::into_inner) =
            Some(Machine { library: Arc::clone(library), found });
        Ok(self)
    }

    /// The devices as they were first found. An absence is not remembered: a driver may be
    /// installed later.
    fn machine(&self) -> Result<Machine, Absence> {
        vendor::load(|| self.load_machine())
    }

    fn load_machine(&self) -> Result<Machine, Absence> {
        let mut machine = self.machine.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = &*machine {
            return Ok(known.clone());
        }
        let library = Library::load(self.loaders)?;
        let mut found = find(&library, &self.limits)?;
        found.truncate(DEVICES_MAX);
        Ok(machine.insert(Machine { library, found: Arc::new(found) }).clone())
    }
}

impl Backend for OpenClBackend {
    fn api(&self) -> Api {
        Api::OPENCL
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        Ok(self.machine()?.found.iter().map(|found| found.info.clone()).collect())
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        let has_f64 = device.capabilities.features.iter().any(|feature| feature == "fp64");
        if !has_f64 && needs_f64(op) {
            return Support::No("the device has no 64-bit floats".to_owned());
        }
        ops::supports_on(device, op)
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        self.devices.warmth(device, op)
    }

    fn first_guess(&self, device: &DeviceInfo, op: &Op) -> FirstGuess {
        ops::first_guess(device, op)
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.open_engine(device, options)?))
    }
}

impl GpuBackend for OpenClBackend {
    fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<GpuEngine> {
        let machine = self.machine().map_err(|absence| unavailable(device.id, absence.to_string()))?;
        let found = machine.found.get(device.id.index as usize).filter(|_| device.id.api == Api::OPENCL);
        let found = found.ok_or_else(|| unavailable(device.id, "no such device"))?;
        let driver = Rc::new(OpenClDriver::open(&machine.library, found, self.timed)?);
        self.devices.open(driver, None, device, options, || [0; DEVICES_MAX])
    }
}

/// Whether an op reads, writes or computes in f64. For graphs and callers' kernels this is unknown,
/// and counts as yes.
fn needs_f64(op: &Op) -> bool {
    let mut found = false;
    op.for_each_tensor(&mut |tensor| found |= tensor.dtype() == DType::F64);
    let casts = |program: &Program| program.nodes().iter().any(|node| matches!(node, Node::Cast(DType::F64, _)));
    let inside = match op {
        Op::Compute(ComputeOp::Map(map)) => map.program().is_ok_and(casts),
        Op::Compute(ComputeOp::RowMap(_) | ComputeOp::Kernel(_)) | Op::Graph(_) => true,
        op => ops::computes_in_f64(op),
    };
    found || inside || op.outputs().is_ok_and(|outputs| outputs.iter().any(|(dtype, _)| *dtype == DType::F64))
}

/// The error of a device that is no longer available.
pub(crate) fn unavailable(device: DeviceId, reason: impl Into<String>) -> Error {
    Error::DeviceUnavailable { device, reason: reason.into() }
}
