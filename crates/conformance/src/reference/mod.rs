//! What each op means, in plain loops. One folder per domain, one file per op. Nothing here is fast, and nothing here is
//! shared with an engine.

use panoply_core::{Op, Result, Support, Value};

mod compute;
pub(crate) mod crypto;
mod graph;
mod lines;
mod signal;

pub use crypto::sha256;

/// The answer to an op, computed on the host.
pub fn reference(op: &Op) -> Result<Value> {
    match op {
        Op::Compute(op) => compute::run(op),
        Op::Crypto(op) => crypto::run(op),
        Op::Signal(op) => signal::run(op),
        Op::Graph(op) => graph::run(op),
        op => Err(Support::unknown(op).refusal(op)),
    }
}
