//! Devices without hardware: the system's C++ compiler compiles the kernels for the host, and they
//! run block by block.
//!
//! They serve tests of everything above the driver, are slow, and are always labelled simulated.
//! They have no vendor libraries, except one for convolutions if a test asks for it, so the paths
//! without libraries are tested. Their warps have 32 or 64 lanes, so both kinds of GPU are covered.

use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use panoply_core::{
    Absence, Api, Backend, Capabilities, DeviceId, DeviceInfo, DeviceKind, Engine, Op, OpenOptions, Result, Support,
    Warmth,
};

use crate::compile::Compiler;
use crate::devices::{DEVICES_MAX, Devices, GpuBackend, Reach};
use crate::engine::GpuEngine;
use crate::ops;

mod compiler;
mod convolutions;
mod driver;
mod memory;
mod recording;
mod streams;

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
    spoiled: Option<(&'static str, usize)>,
    altered: Option<(&'static str, &'static str)>,
    late_uploads: bool,
    shuffled_streams: Option<u64>,
    calls: Arc<AtomicU64>,
    integrated: bool,
    devices: Devices,
}

impl EmulatedBackend {
    /// One device, whose kernels are compiled by `c++`, or by the program in the variable `CXX`.
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
            spoiled: None,
            altered: None,
            late_uploads: false,
            shuffled_streams: None,
            calls: Arc::default(),
            integrated: false,
            devices: Devices::default(),
        })
    }

    /// Sets the time limit for one launch of a caller's own kernel, instead of [`LAUNCH_TIME_MAX`].
    pub fn launch_time_max(mut self, limit: Duration) -> EmulatedBackend {
        self.launch_time_max = limit;
        self
    }

    /// Sets the number of devices, which can reach each other's memory.
    pub fn devices(mut self, count: u32) -> EmulatedBackend {
        self.count = count.clamp(1, DEVICES_MAX as u32);
        self
    }

    /// Uses warps of 64 lanes, without the features of warps of 32.
    pub fn wide_warps(mut self) -> EmulatedBackend {
        self.warp_lanes = 64;
        self
    }

    /// Adds warps that multiply in groups of four, with the block memory of devices that have such
    /// warps. On the host, attention supports them; searches do not.
    pub fn warp_groups(mut self) -> EmulatedBackend {
        self.warp_groups = true;
        self
    }

    /// Adds a library of convolutions in plain loops, for channels-last (NHWC) images.
    pub fn convolutions(mut self) -> EmulatedBackend {
        self.convolutions = true;
        self
    }

    /// Requires that this compiler accepts every kernel too, so that a machine without a GPU finds
    /// kernels that would not compile for one.
    pub fn checked_by(mut self, checker: Arc<dyn Compiler>) -> EmulatedBackend {
        self.checker = Some(checker);
        self
    }

    /// Injects a fault, for tests of checks: see [`EmulatedDriver::with_spoiled`].
    pub fn spoils(mut self, kernel: &'static str, byte: usize) -> EmulatedBackend {
        self.spoiled = Some((kernel, byte));
        self
    }

    /// Injects another fault: behind this line, in every kernel that has it, this statement runs
    /// too.
    pub fn alters(mut self, line: &'static str, statement: &'static str) -> EmulatedBackend {
        (self.altered, self.devices) = (Some((line, statement)), Devices::default());
        self
    }

    /// Delays copies from the host as long as a device may: see
    /// [`EmulatedDriver::with_late_uploads`].
    pub fn late_uploads(mut self) -> EmulatedBackend {
        self.late_uploads = true;
        self
    }

    /// Runs all work late and in a random order, from this seed on: see
    /// [`EmulatedDriver::with_shuffled_streams`].
    pub fn shuffled_streams(mut self, seed: u64) -> EmulatedBackend {
        self.shuffled_streams = Some(seed);
        self
    }

    /// Number of calls that queue work, record events or wait for them, of all devices.
    pub fn calls(&self) -> u64 {
        self.calls.load(Ordering::Relaxed)
    }

    /// Devices without memory of their own: see [`EmulatedDriver::integrated`].
    pub fn integrated(mut self) -> EmulatedBackend {
        self.integrated = true;
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
            info.is_virtual = true;
            info.capabilities = Capabilities { domains: ops::DOMAINS.to_vec(), features: Vec::new() };
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
        let driver = if self.late_uploads { driver.with_late_uploads() } else { driver };
        let driver = driver.with_counted_calls(Arc::clone(&self.calls));
        let driver = match self.shuffled_streams {
            Some(seed) => driver.with_shuffled_streams(seed.wrapping_add(u64::from(device.id.index))),
            None => driver,
        };
        let driver = if self.integrated { driver.integrated() } else { driver };
        let driver = if self.convolutions { driver.with_convolutions() } else { driver };
        let driver = match self.spoiled {
            Some((kernel, byte)) => driver.with_spoiled(kernel, byte),
            None => driver,
        };
        let driver = match self.altered {
            Some((line, statement)) => driver.with_altered(self.compiler.clone(), line, statement),
            None => driver,
        };
        let driver = Rc::new(driver.launch_time_max(self.launch_time_max));
        self.devices.open(driver, self.checker.clone(), device, options, || self.reach())
    }
}

/// Finds the C++ compiler of this machine.
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
