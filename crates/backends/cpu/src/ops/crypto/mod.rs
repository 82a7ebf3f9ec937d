//! The crypto domain, run with the node's threads and memory. The crate `panoply-cpu-crypto`
//! implements the ops.

use panoply_core::op::crypto::CryptoOp;
use panoply_core::{CryptoProvider, Result, Value};
use panoply_cpu_crypto::State;

use crate::context::Context;
use crate::simd::Simd;
use crate::states::OpState;

impl OpState for State {}

/// An empty state for the code that may process keys.
fn state(simd: Simd, provider: CryptoProvider) -> State {
    State::new(simd == Simd::Avx512 && provider == CryptoProvider::Fastest)
}

/// Runs one op of the domain.
pub(super) fn run(op: &CryptoOp, context: &mut Context) -> Result<Value> {
    let Context { states, team, memory, simd, provider, .. } = context;
    let state = states.get_or(|| state(*simd, *provider));
    panoply_cpu_crypto::run(op, state, team, &mut |bytes| memory.take(bytes))
}

/// Runs one op in place, in its messages' memory, if possible, else as [`run`] does.
pub(super) fn run_in_place(op: &mut CryptoOp, context: &mut Context) -> Result<Value> {
    let Context { states, team, memory, simd, provider, .. } = &mut *context;
    let state = states.get_or(|| state(*simd, *provider));
    let ran = panoply_cpu_crypto::run_in_place(op, state, team, &mut |bytes| memory.take(bytes));
    ran.unwrap_or_else(|| run(op, context))
}
