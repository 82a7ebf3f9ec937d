//! Virtual devices: simulated hardware that fails on command, to see how a program degrades. They are always labelled
//! simulated, by their API and by their name; their answers are real.
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

pub use panoply_conformance::chains;
pub use panoply_conformance::virtual_device::{Counters, Fault, Rates, Script, VirtualBackend, VirtualControl};
use panoply_core::{Absence, Api};

use crate::compiled;

/// A backend without devices yet, whose devices will answer as the CPU does. A build without the CPU backend has nothing
/// to answer with.
pub fn virtual_backend() -> Result<VirtualBackend, Absence> {
    let missing = Absence::NotCompiled { feature: "cpu" };
    let cpu = compiled::known().into_iter().find(|known| known.api == Api::CPU).ok_or(missing)?;
    cpu.backend.map(VirtualBackend::new)
}
