//! Virtual devices: simulated hardware that fails on command, to test how a program degrades. They
//! are always labelled as simulated, by API and by name; their results are real.
//!
//! ```
//! use panoply::prelude::*;
//! use panoply::testing::{Fault, Script, virtual_backend};
//! use std::sync::Arc;
//!
//! let backend = virtual_backend()?.device(Script::new().fault_at(0, Fault::Lost));
//! let runtime = Runtime::builder().only([]).backend(Arc::new(backend)).build()?;
//!
//! let matrix = Tensor::zeros(DType::F32, [2, 3])?;
//! let error = runtime.run(Transpose::new(&matrix)).wait().unwrap_err();
//! assert_eq!(error.kind(), ErrorKind::Device);
//! // The worker opens the device again by itself.
//! assert!(runtime.run(Transpose::new(&matrix)).wait().is_ok());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use panoply_core::Absence;
pub use panoply_simulated::{Counters, Fault, Rates, Script, VirtualBackend, VirtualControl, chains};

use crate::compiled;

/// Returns a backend without devices, to which devices are added. They compute on the CPU backend,
/// so the function fails in a build without it.
pub fn virtual_backend() -> Result<VirtualBackend, Absence> {
    let missing = Absence::NotCompiled { feature: "cpu" };
    let cpu = compiled::known().into_iter().find(|known| known.is_own_cpu).ok_or(missing)?;
    cpu.backend.map(VirtualBackend::new)
}
