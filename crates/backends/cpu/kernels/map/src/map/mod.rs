//! Map on the CPU: a fused elementwise expression in one pass over memory.
//!
//! `plan` compiles a program into kernel calls over a few scratch blocks. `execute` iterates over
//! the output in blocks that stay in the first-level cache, reads inputs in place if possible, and
//! lets the last call write the output itself. `kernel`, `number`, `fuse` and `convert` are the
//! loops, compiled for each level of vector instructions. `layout` handles broadcasting and
//! strides. `ranged` evaluates parts of a map between the steps of another kernel. `cache` keeps
//! plans, so that a small op costs a lookup and one kernel call.

mod cache;
mod convert;
mod execute;
mod fuse;
mod kernel;
mod layout;
mod number;
mod plan;
mod ranged;
mod stream;

pub use cache::PlanCache;
#[doc(hidden)]
pub use convert::{Cast, Element, f16_to_f32, f32_to_bf16, f32_to_f16};
pub use execute::execute;
pub use plan::MapPlan;
pub use ranged::RangedMap;
