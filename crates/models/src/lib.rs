//! Models: turns ONNX files into graphs, and runs inference on any available device.
//!
//! 1. `onnx` reads a file's messages in memory bounded by the file's size. `program` resolves
//!    names, expands functions and refuses unknown ops, with the node's name.
//! 2. `ops` implements every op as a plain function on the host. These functions define the ops.
//! 3. `lower` records nodes into graphs, if devices have ops for them. `exec` traces a run once for
//!    each form of the inputs, and replays the trace afterwards.
//! 4. [`Network`] is a parsed file. [`Model`] is a network with its runtime, and the type that a
//!    program holds.
//! 5. [`serve`] batches the requests of many callers, [`Repository`] keeps a folder of models
//!    ready, [`Ensemble`] chains models and stages.
//! 6. [`picture`] and [`text`] make inputs from pictures and text, [`tasks`] makes answers from
//!    outputs.
//!
//! Nothing is approximated silently. A feature that a model needs and this crate lacks is an error
//! that names the node.

mod array;
mod bounds;
mod element;
mod ensemble;
mod error;
mod exec;
#[doc(hidden)]
pub mod fuzzing;
mod lower;
mod model;
mod narrow;
mod network;
pub mod npy;
mod onnx;
mod ops;
pub mod picture;
mod program;
mod repository;
pub mod serve;
pub mod tasks;
pub mod text;
mod value;

pub use array::{Array, Scalar};
pub use bounds::ARRAY_BYTES_MAX;
pub use element::ElementType;
pub use ensemble::{Ensemble, Member, Stage};
pub use error::{Error, Result};
pub use model::{Held, Model, Outputs};
pub use network::{Dimension, Network, Port};
pub use repository::{ModelState, Repository, RepositoryOptions};

pub use value::Value;
