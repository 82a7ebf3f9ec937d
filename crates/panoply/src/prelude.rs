//! Everything that a program needs to run ops: `use panoply::prelude::*`.
//!
//! The prelude exports every op of every domain, so that a new op needs no new import.

pub use crate::{
    Api, Bytes, Complex64, DType, DeviceId, DeviceInfo, Element, Error, ErrorKind, Location, Operation, Outcome,
    Pending, Report, RunOptions, Runtime, Shape, Tensor, bf16, f16,
};
pub use panoply_core::expr::Expr;
pub use panoply_core::op::all::*;
