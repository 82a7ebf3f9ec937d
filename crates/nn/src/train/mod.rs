//! Training: a step is one op, a session runs steps, a trainer runs epochs.
//!
//! * `step`: the graphs of a step. [`session`]: parameters and state on devices; `run`, `scale` and
//!   `recovery` are its parts.
//! * [`data`]: datasets of rows, shuffled into batches that are prepared in advance. [`trainer`]:
//!   epochs, metrics, early stopping.
//! * [`checkpoint`]: crash-safe files of the training state. [`curve`]: the training curve as a
//!   picture.
//! * `origin`: finds the op that produced a NaN or an infinity.

pub mod checkpoint;
pub mod curve;
pub mod data;
mod origin;
mod recovery;
mod run;
mod scale;
pub mod session;
mod step;
pub mod trainer;

pub use checkpoint::Checkpoints;
pub use data::{Batches, Dataset};
pub use session::{Position, Session, SessionOptions, StepOutcome};
pub use trainer::{EarlyStop, Epoch, Progress, Summary, Trainer};
