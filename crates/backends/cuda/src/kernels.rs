//! Compiled kernels of one device: each is compiled when it is first launched, and then found by its name and parameters
//! without touching the heap. Where kernels run emulated and NVRTC is installed, each is compiled for CUDA as well, so that a
//! machine without a GPU finds what would not compile for one.

use std::collections::HashMap;

use panoply_core::{DeviceId, Result};
use panoply_kernels::c::{Dialect, Kernel};

use crate::driver::compiler::Compiler;
use crate::driver::{Driver, Function};

/// The architecture that emulated kernels are also compiled for.
const CHECKED_CAPABILITY: u32 = 90;

pub(crate) struct Kernels {
    device: DeviceId,
    dialect: Dialect,
    checker: Option<Compiler>,
    loaded: HashMap<Kernel, Function>,
}

impl Kernels {
    pub(crate) fn new(device: DeviceId, dialect: Dialect) -> Kernels {
        let checks = dialect == Dialect::Host && Compiler::is_present();
        let checker = checks.then(|| Compiler::new(String::new(), CHECKED_CAPABILITY));
        Kernels { device, dialect, checker, loaded: HashMap::new() }
    }

    /// The kernel, compiled and loaded.
    pub(crate) fn get(&mut self, driver: &dyn Driver, kernel: &Kernel) -> Result<Function> {
        if let Some(function) = self.loaded.get(kernel) {
            return Ok(*function);
        }
        if let Some(checker) = &self.checker {
            checker.compile(self.device, &kernel.name(), &kernel.source(Dialect::Cuda))?;
        }
        let function = driver.load(&kernel.name(), &kernel.source(self.dialect), kernel.entry)?;
        self.loaded.insert(kernel.clone(), function);
        Ok(function)
    }
}
