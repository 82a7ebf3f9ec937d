//! Inputs and answers of models: pictures and texts become numbers, and a model's numbers become
//! classes, boxes and vectors.
//!
//! 1. [`picture`] decodes, resizes and draws pictures, and makes tensors of them.
//! 2. [`text`] cuts texts into the numbered pieces of a vocabulary.
//! 3. [`tasks`] reads the outputs of classifiers, detectors and embedding models.
//!
//! This crate knows no model and runs nothing on a device. Everything is computed on the host, on
//! the calling thread, within named bounds.

mod error;
#[doc(hidden)]
pub mod fuzzing;
pub mod picture;
pub mod tasks;
pub mod text;

pub use error::{Error, Result};
