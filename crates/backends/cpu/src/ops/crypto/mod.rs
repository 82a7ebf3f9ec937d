//! The crypto domain, with the node's threads and memory. What is done is in the crate `panoply-crypto`.

use panoply_core::op::crypto::CryptoOp;
use panoply_core::{Result, Value};

use crate::context::Context;

/// Runs one op of the domain.
pub(super) fn run(op: &CryptoOp, context: &mut Context) -> Result<Value> {
    let Context { crypto, team, memory, .. } = context;
    panoply_crypto::run(op, crypto, team, &mut |bytes| memory.take(bytes))
}

/// Runs one op in its messages' memory where that can be, else as any other.
pub(super) fn run_in_place(op: &mut CryptoOp, context: &mut Context) -> Result<Value> {
    let Context { team, memory, .. } = &mut *context;
    let ran = panoply_crypto::run_in_place(op, team, &mut |bytes| memory.take(bytes));
    ran.unwrap_or_else(|| run(op, context))
}
