//! Models: ONNX files into graphs, and inference on whatever device is there.
//!
//! 1. `onnx` reads a file's messages in memory that the file bounds; `program` resolves names, writes functions out and refuses
//!    what is not known, with the node.
//! 2. `ops` has every op as a plain function on the host: that is what it means.
//! 3. `lower` records nodes into graphs, where devices have ops for them; `exec` traces a run once for each form of the inputs, and
//!    then repeats what was traced.
//! 4. [`Network`] is a file that was read; [`Model`] is one with its runtime, which is what a program holds.
//! 5. [`serve`] joins the requests of many callers, [`Repository`] keeps a folder of models ready, [`Ensemble`] chains models and
//!    stages.
//! 6. [`picture`] and [`text`] make inputs of pictures and text, [`tasks`] makes answers of outputs.
//!
//! Nothing is approximated silently: what a model asks for and this crate does not have is an error that names the node.

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
