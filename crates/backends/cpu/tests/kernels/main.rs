//! Every kernel beside plain loops, at every level of vector instructions that this CPU has; and the engine's batches.

#![allow(clippy::unwrap_used)] // A test says what it did not expect by panicking.

mod color;
mod conv;
mod gemm;
mod layernorm;
mod pool2d;
mod reduce;
mod resize;
mod scan;
mod search;
mod softmax;
mod sort;
mod together;
mod topk;
mod transpose;
mod vmath;
mod weights;
