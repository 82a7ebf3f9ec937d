//! Two-dimensional convolution of NCHW images, and its gradients.
//!
//! The images are copied, band by band, into panels in which every tap is a constant offset (`panel`); then the
//! convolution is a matrix product over shifted views of the panel (`tile`), without the copies of im2col. Strides,
//! dilation, groups and padding only change the offsets and what is copied, so there is one path for all of them, for
//! every element type, and for the gradient of the input (a convolution of the output's gradient with the weights
//! transposed). f16 and bf16 are computed in f32 and rounded once, at the end.
//!
//! Four kinds leave that path where the CPU has the instructions: images of a few pixels have filters in the lanes of
//! vectors (`filter_lanes`), pointwise convolutions read small planes where they lie, and depthwise ones read all images
//! so (`depthwise`); three by three taps that are kept cost a quarter of the products (`winograd`). Weights are packed for each call, or once where the caller keeps them (`packed`); subnormal ones
//! count as zero.
//!
//! Graphs keep images of f32 with their channels last, which is a way of its own (`channels_last`).
//!
//! Contract: the caller has validated the sizes ([`ConvShape::new`]); slices have the lengths that the shape says. Results do
//! not depend on the number of threads.

mod activation;
mod ahead;
mod blocks;
pub mod channels_last;
mod correlate;
mod depthwise;
mod filter_lanes;
mod filter_tile;
mod forward;
mod packed;
mod panel;
mod plane_tile;
mod real;
mod split;
mod tile;
mod vector;
mod weight;
mod winograd;
mod winograd_tile;
mod workspace;

pub use activation::activate;
pub use correlate::Activate;
pub use forward::{Epilogue, backward_input, forward, forward_kept};
pub use packed::PackedWeights;
pub use panoply_core::op::compute::ConvShape;
pub use real::Stored;
pub use tile::Real;
pub use weight::backward_weight;
pub use workspace::ConvWorkspace;
