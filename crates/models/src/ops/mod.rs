//! Every supported ONNX op as a plain function on the host. The function defines the op: device
//! code (the module `lower`) has to agree with it.
//!
//! Modules, in reading order: `call` (the arguments of an op), `index` (shapes and views), then
//! families of ops, and `table`, the list of all of them.

pub(crate) mod call;
mod cast;
pub(crate) mod conv;
mod elementwise;
mod gather;
pub(crate) mod index;
mod linear;
mod loss;
pub(crate) mod make;
mod norm;
mod pool;
mod quantize;
pub(crate) mod recurrent;
pub(crate) mod reduce;
pub(crate) mod resize;
mod scatter;
mod sequence;
pub(crate) mod shape;
mod signal;
pub(crate) mod sizes;
pub(crate) mod table;
pub(crate) mod windows;
