//! Devices that are not there: the kernels are compiled for the host by the system's C++ compiler and run block by block.
//!
//! They are for tests of everything above the driver, slow, and always labelled simulated. They have no vendor libraries but one for convolutions where tests ask for it, so the
//! paths without them run; their warps have 32 lanes or 64, so both kinds of GPU are covered.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Domain, Engine, Op, OpenOptions, Result,
    Support, Warmth,
};

use crate::compile::Compiler;
use crate::devices::{DEVICES_MAX, Devices, GpuBackend, Reach};
use crate::engine::GpuEngine;
use crate::ops;

mod compiler;
mod convolutions;
mod driver;

pub use compiler::HostCompiler;
pub use driver::{EmulatedDriver, LAUNCH_TIME_MAX};

/// A backend without a GPU.
#[derive(Clone)]
pub struct EmulatedBackend {
    compiler: PathBuf,
    count: u32,
    warp_lanes: u32,
    warp_groups: bool,
    convolutions: bool,
    launch_time_max: Duration,
    checker: Option<Arc<dyn Compiler>>,
    devices: Devices,
}

impl EmulatedBackend {
    /// One device, whose kernels are compiled by `c++`, or by what the variable `CXX` names.
    pub fn new() -> Result<EmulatedBackend, Absence> {
        let compiler = find_compiler()?;
        Ok(EmulatedBackend {
            compiler,
            count: 1,
            warp_lanes: 32,
            warp_groups: false,
            convolutions: false,
            launch_time_max: LAUNCH_TIME_MAX,
            checker: None,
            devices: Devices::default(),
        })
    }

    /// With another limit for one launch of a kernel of the caller's own, instead of [`LAUNCH_TIME_MAX`].
    pub fn launch_time_max(mut self, limit: Duration) -> EmulatedBackend {
        self.launch_time_max = limit;
        self
    }

    /// So many devices, which reach each other's memory.
    pub fn devices(mut self, count: u32) -> EmulatedBackend {
        self.count = count.clamp(1, DEVICES_MAX as u32);
        self
    }

    /// With warps of 64 lanes, and without what only warps of 32 can do.
    pub fn wide_warps(mut self) -> EmulatedBackend {
        self.warp_lanes = 64;
        self
    }

    /// With warps that multiply in groups of four, and as much block memory as devices with such warps have. Attention has them on
    /// the host; searches do not.
    pub fn warp_groups(mut self) -> EmulatedBackend {
        self.warp_groups = true;
        self
    }

    /// With a library for convolutions, in plain loops, which wants images with their channels last.
    pub fn convolutions(mut self) -> EmulatedBackend {
        self.convolutions = true;
        self
    }

    /// Every kernel must be taken by this compiler too: a machine without a GPU finds what would not compile for one.
    pub fn checked_by(mut self, checker: Arc<dyn Compiler>) -> EmulatedBackend {
        self.checker = Some(checker);
        self
    }

    fn reach(&self) -> Reach {
        let all = (1_u64 << self.count) - 1;
        std::array::from_fn(|index| all & !(1 << index))
    }
}

impl Backend for EmulatedBackend {
    fn api(&self) -> Api {
        Api::SIMULATED
    }

    fn discover(&self) -> Result<Vec<DeviceInfo>, Absence> {
        let EmulatedBackend { compiler, count, warp_lanes, .. } = self;
        let name = format!("simulated GPU with warps of {warp_lanes} (kernels compiled by {})", compiler.display());
        let info = |index| {
            let id = DeviceId { api: Api::SIMULATED, index };
            let mut info = DeviceInfo::new(id, name.clone(), DeviceKind::DiscreteGpu);
            info.capabilities =
                Capabilities { domains: vec![Domain::Compute, Domain::Signal, Domain::Graph], features: Vec::new() };
            info
        };
        Ok((0..*count).map(info).collect())
    }

    fn supports(&self, device: &DeviceInfo, op: &Op) -> Support {
        ops::supports_on(device, op)
    }

    fn warmth(&self, device: &DeviceInfo, op: &Op) -> Warmth {
        self.devices.warmth(device, op)
    }

    fn reaches(&self, device: &DeviceInfo, owner: DeviceId) -> bool {
        self.devices.reaches(device, owner, || self.reach())
    }

    fn open(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<Box<dyn Engine>> {
        Ok(Box::new(self.open_engine(device, options)?))
    }
}

impl GpuBackend for EmulatedBackend {
    fn open_engine(&self, device: &DeviceInfo, options: &OpenOptions) -> Result<GpuEngine> {
        let driver = EmulatedDriver::new(device.id, self.compiler.clone(), self.warp_lanes);
        let driver = if self.warp_groups { driver.with_warp_groups() } else { driver };
        let driver = if self.convolutions { driver.with_convolutions() } else { driver };
        let driver = Rc::new(driver.launch_time_max(self.launch_time_max));
        self.devices.open(driver, self.checker.clone(), device, options, || self.reach())
    }
}

/// The C++ compiler of this machine.
pub fn find_compiler() -> Result<PathBuf, Absence> {
    let compiler = PathBuf::from(std::env::var_os("CXX").unwrap_or_else(|| "c++".into()));
    let found = Command::new(&compiler).arg("--version").output();
    let trouble = match found {
        Ok(output) if output.status.success() => return Ok(compiler),
        Ok(output) => output.status.to_string(),
        Err(error) => error.to_string(),
    };
    let name = compiler.display();
    let reason = format!("no C++ compiler compiles kernels for the host («{name}»: {trouble}); install one or set CXX");
    Err(Absence::NoDevice { reason })
}
