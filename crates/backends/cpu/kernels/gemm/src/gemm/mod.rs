//! Matrix products: `C = activation(alpha * A·B + beta * C0 + bias)`.
//!
//! Interface for the rest of the crate:
//!
//! * [`Gemm`]: the team, the workspace and the instructions, bound for one call or many.
//!   [`Gemm::multiply`] writes a row-major result, [`Gemm::multiply_batch`] many of them, and
//!   [`Gemm::tiles`] passes each finished block of f32 sums to a closure instead of writing it (a
//!   search keeps its best results there).
//! * [`MatRef`]: an operand with any strides. Packing absorbs the strides, so a transpose or a
//!   slice costs nothing extra.
//! * [`Epilogue`]: alpha, `beta * C0`, bias and activation, applied while a tile is still in the
//!   first-level cache.
//! * [`PackedRight`]: a right operand that is packed once for many products.
//! * [`Workspace`]: pack buffers that an engine keeps between calls.
//!
//! Sums are kept in f32 for f32, f16 and bf16, in f64 for f64, in i32 (wrapping) for i32, i8 and
//! u8, and in complex f32 for complex. If the tile unit multiplies bf16, subnormal inputs and sums
//! count as zero. The order of summation depends on the instructions, never on the number of
//! threads: the same CPU always gives the same bits.
//!
//! There are three algorithms: plain loops for small products, row and column passes for matrix
//! times vector, and the packed product ([`driver`]) for the rest. The packed product reads a small
//! right operand in place ([`in_place`]). If unfinished sums can be kept in the result, it iterates
//! over parts of k ([`by_depth`]).

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
#[doc(hidden)]
pub use activation::erfc_f64;
pub use element::{Accumulator, Operand, Output};
pub use epilogue::{Bias, Epilogue};
pub use kernel::Isa;
pub use packed::PackedRight;
pub use route::{BatchItem, Factor, Gemm, Product, Tile};
#[cfg(target_arch = "x86_64")]
#[doc(hidden)]
pub use transpose::transpose_16x16;
pub use view::MatRef;
pub use workspace::{OutOfMemory, Workspace};
