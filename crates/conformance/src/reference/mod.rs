//! The reference implementation of each op, in plain loops. Each domain is a folder, and each op or
//! group of ops a file. The code is slow on purpose, and shares nothing with any engine.

use panoply_core::{Op, Result, Support, Value};

mod compute;
pub(crate) mod crypto;
mod graph;
mod lines;
mod signal;

pub use crypto::sha256;

panoply_core::for_each_domain!(panoply_core::domain_modules);

/// The answers to a map whose arithmetic flushes subnormal operands, subnormal results, or both to
/// zero. `None` for other ops, and if the reference fails.
pub(crate) fn flushed_references(op: &Op) -> Option<Vec<Value>> {
    match op {
        Op::Compute(op) => compute::flushed(op),
        _ => None,
    }
}

/// The answer to an op, computed on the host.
pub fn reference(op: &Op) -> Result<Value> {
    if let Some(nothing) = op.empty_answer() {
        return Ok(nothing);
    }
    by_domain!(op => run(op), Err(Support::unknown(op).refusal(op)))
}
