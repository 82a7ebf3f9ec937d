//! Neural networks on every device that the runtime has.
//!
//! A network is recorded as a graph. Its gradients and the optimiser's step are further nodes of
//! the same graph, so one training step is one op. Parameters and the optimiser's state are inputs
//! and outputs of that op, and stay on the device between steps.
//!
//! In reading order:
//!
//! * [`grad`]: automatic differentiation over graphs.
//! * [`net`] and [`parameters`]: recording a network, and its parameters by name.
//! * [`layers`], [`loss`]: the parts of networks. [`random`]: random numbers that are the same on
//!   every device.
//! * [`optim`]: optimisers, schedules, clipping.
//! * [`train`]: steps, sessions, data, checkpoints, the trainer.
//! * [`files`]: parameters in `safetensors` files. [`onnx`]: networks as ONNX files.
//! * [`samples`]: networks and datasets that come with the library.

pub mod files;
pub mod grad;
pub mod layers;
pub mod loss;
pub mod net;
pub mod onnx;
pub mod optim;
pub mod parameters;
pub mod random;
pub mod samples;
pub mod train;

mod error;

pub use error::{Error, Result};
pub use layers::{Layer, Sequential};
pub use net::{Mode, Net, Recording};
pub use optim::{Clip, Optimiser, Schedule};
pub use parameters::{Init, Parameters};
