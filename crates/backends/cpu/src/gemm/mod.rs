//! Matrix products: `C = activation(alpha * A·B + beta * C0 + bias)`.
//!
//! What the rest of the crate uses:
//!
//! * [`Gemm`]: the team, the workspace and the instructions, bound for one call or many.
//!   [`Gemm::multiply`] writes a row-major result, [`Gemm::multiply_batch`] many of them, and [`Gemm::tiles`] hands each
//!   finished block of f32 sums to a closure instead of writing it (a search keeps its best in there).
//! * [`MatRef`]: an operand with any strides; packing absorbs them, so a transpose or a slice costs nothing extra.
//! * [`Epilogue`]: alpha, `beta * C0`, bias and activation, applied while a tile is still in the first-level cache.
//! * [`PackedRight`]: a right operand that is packed once for many products.
//! * [`Workspace`]: pack buffers that an engine keeps between calls.
//!
//! Sums are kept in f32 for f32, f16 and bf16, in f64 for f64, in i32 (wrapping) for i32, i8 and u8, and in complex f32
//! for complex. Where the tile unit multiplies bf16, subnormal inputs and sums count as zero. The order of summation
//! depends on the instructions, never on the number of threads: the same CPU gives the same bits every time.
//!
//! Three ways lead to a result: plain loops for small products, row and column passes for matrix times vector, and
//! the packed product ([`driver`]) for the rest. That one leaves a small right operand where it lies ([`in_place`]), and
//! where the result is a place for unfinished sums it takes k part by part ([`by_depth`]).

mod activation;
mod by_depth;
mod driver;
mod element;
mod epilogue;
mod in_place;
mod kernel;
mod pack;
mod packed;
mod route;
mod small;
mod strips;
mod sweep;
#[cfg(target_arch = "x86_64")]
mod transpose;
mod vector;
mod view;
mod workspace;

pub use activation::activate_f64;
pub use element::{Accumulator, Operand, Output};
pub use epilogue::{Bias, Epilogue};
pub use kernel::Isa;
pub use packed::PackedRight;
pub use route::{BatchItem, Factor, Gemm, Tile};
pub use view::MatRef;
pub use workspace::{OutOfMemory, Workspace};
