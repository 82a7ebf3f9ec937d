//! The crypto domain, run with the node's threads and memory. The crate `panoply-cpu-crypto`
//! implements the ops.

use panoply_core::op::crypto::CryptoOp;
use panoply_core::{Result, Value};

use crate::context::Context;

/// Runs one op of the domain.
pub(super) fn run(op: &CryptoOp, context: &mut Context) -> Result<Value> {
    let Context { crypto, team, memory, .. } = context;
    panoply_cpu_crypto::run(op, crypto, team, &mut |bytes| memory.take(bytes))
}

/// Runs one op in place, in its messages' memory, if possible, else as [`run`] does.
pub(super) fn run_in_place(op: &mut CryptoOp, context: &mut Context) -> Result<Value> {
    let Context { crypto, team, memory, .. } = &mut *context;
    let ran = panoply_cpu_crypto::run_in_place(op, crypto, team, &mut |bytes| memory.take(bytes));
    ran.unwrap_or_else(|| run(op, context))
}
