//! Models: turns ONNX files into graphs, and runs inference on any available device.
//!
//! 1. `onnx` reads a file's messages in memory bounded by the file's size. `program` resolves
//!    names, expands functions and refuses unknown ops, with the node's name.
//! 2. `ops` implements every op as a plain function on the host. These functions define the ops.
//! 3. `lower` records nodes into graphs, if devices have ops for them. `exec` traces a run once for
//!    each form of the inputs, and replays the trace afterwards.
//! 4. [`Network`] is a parsed file. [`Model`] is a network with its runtime, and the type that a
//!    program holds.
//!    [`Model::run`] is a future of a run, with a deadline and a report of its steps.
//! 5. For programs that chain or batch models: [`RunValue`] values stay where they were computed,
//!    [`rows`] cuts and joins arrays, and a network of [`NewNode`]s comes from no file.
//! 6. `profile` measures each node of a run.
//! 7. `array`, `element`, `value` and `narrow` are the data on the host; `npy` reads and writes it.
//!    `bounds` limits what a file may ask for.
//!
//! Nothing is approximated silently. A feature that a model needs and this crate lacks is an error
//! that names the node.

mod array;
mod bounds;
mod element;
mod error;
mod exec;
#[doc(hidden)]
pub mod fuzzing;
mod lower;
mod model;
mod narrow;
mod network;
mod nodes;
pub mod npy;
mod onnx;
mod ops;
mod profile;
mod program;
pub mod rows;
mod value;

pub use array::{Array, Scalar};
pub use bounds::ARRAY_BYTES_MAX;
pub use element::ElementType;
pub use error::{Error, Result};
pub use exec::{Context, RunValue, finished};
pub use model::{Model, ModelValue, Outputs, PendingRun};
pub use network::{Dimension, Network, Port};
pub use nodes::{NewNode, Setting};
pub use profile::NodeTime;
pub use value::Value;
