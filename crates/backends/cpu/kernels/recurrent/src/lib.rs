//! Recurrent layers on the CPU: the steps of LSTM, GRU and simple cells in f32.
//!
//! [`Layer`] packs the weights of the state once, and runs all steps over the products of the
//! weights with the input. `product` multiplies, `gates` computes the cells, `steps` splits rows
//! and units among threads. The functions are pure: they see slices, and neither an op nor a
//! device, so that readers of models call them too.
#![allow(unsafe_code)] // Vector instructions.

mod gates;
mod product;
mod steps;

pub use gates::Gates;
pub use steps::{Layer, RunInputs, RunOutputs};
