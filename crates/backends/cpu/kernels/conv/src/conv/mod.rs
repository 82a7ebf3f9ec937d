//! Two-dimensional convolution of NCHW images, and its gradients.
//!
//! The images are copied, band by band, into panels in which every tap is a constant offset
//! (`panel`). The convolution is then a matrix product over shifted views of the panel (`tile`),
//! without the copies of im2col. Strides, dilation, groups and padding only change the offsets and
//! the copied pixels. One path therefore handles all of them, every element type, and the gradient
//! of the input (a convolution of the output's gradient with the transposed weights). f16 and bf16
//! are computed in f32 and rounded once, at the end.
//!
//! Four kinds of convolutions leave that path if the CPU has the instructions:
//!
//! - Images of a few pixels have filters in the lanes of vectors (`filter_lanes`).
//! - Pointwise convolutions read small planes in place.
//! - Depthwise convolutions read all images in place (`depthwise`).
//! - Convolutions of 3×3 taps with kept weights need a quarter of the products (`winograd`).
//!
//! Weights are packed for each call, or once if the caller keeps them (`packed`). Subnormal weights
//! count as zero.
//!
//! Graphs keep f32 images channels-last (NHWC), which has an algorithm of its own
//! (`channels_last`).
//!
//! Contract: the caller has validated the sizes ([`ConvShape::new`]), and slices have the lengths
//! that the shape says. Results do not depend on the number of threads.

mod activation;
mod ahead;
mod blocks;
pub mod channels_last;
mod compiled;
mod correlate;
mod correlation;
mod depthwise;
mod epilogue;
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
#[doc(hidden)]
pub use ahead::PlanePrefetch;
pub use compiled::{ConvElement, backward_input, backward_weight, forward, forward_kept};
pub use epilogue::{Activate, Epilogue};
pub use packed::PackedWeights;
pub use panoply_core::op::compute::ConvShape;
pub use real::StoredElement;
pub use tile::Real;
pub use workspace::ConvWorkspace;
