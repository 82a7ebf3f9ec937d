//! Neural networks on every device that the runtime has.
//!
//! A network is recorded as a graph, its gradients are more of the same graph, and so is the optimiser's step: one training
//! step is one op. Parameters and the optimiser's state are its inputs and its outputs, and stay on the device between steps.
//!
//! In reading order:
//!
//! * [`grad`]: automatic differentiation over graphs.
//! * [`net`] and [`parameters`]: how a network is recorded, and what it is made of.
//! * [`layers`], [`loss`]: what networks are made of. [`random`]: random numbers that are the same on every device.
//! * [`optim`]: optimisers, schedules, clipping.
//! * [`train`]: steps, sessions, data, checkpoints, the trainer.
//! * [`files`]: parameters in `safetensors` files. [`onnx`]: networks as ONNX files.
//! * [`samples`]: networks and sets that come with the library.
//! * [`backend`]: a compute backend for other libraries, with typed arrays.

pub mod backend;
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
