//! What a program that runs ops needs: `use panoply::prelude::*`.
//!
//! It brings every op of every domain, so that a new op needs no new import.

pub use crate::{
    Api, Bytes, Complex64, DType, DeviceId, DeviceInfo, Element, Error, ErrorKind, Location, Operation, Outcome,
    Pending, Report, RunOptions, Runtime, Shape, Tensor, bf16, f16,
};
pub use panoply_core::expr::Expr;
pub use panoply_core::op::compute::*;
pub use panoply_core::op::crypto::*;
pub use panoply_core::op::graph::*;
pub use panoply_core::op::signal::*;
