//! Runs single ops on an engine, without a runtime.

use std::time::{Duration, Instant};

use panoply_core::op::compute::Transfer;
use panoply_core::{Engine, Error, Item, Location, Op, Operation, Result, Value};

/// Maximal time of one op on an engine.
const OP_SECONDS_MAX: u64 = 60;

/// Runs one op on an engine and brings the result to the host.
pub fn run_one(engine: &mut dyn Engine, op: Op) -> Result<Value> {
    let value = run_there(engine, op)?;
    value.try_map(|tensor| match tensor.location() {
        Location::Host => Ok(tensor),
        Location::Device(_) => run_there(engine, Transfer::to_host(&tensor).into_op()?)?.into_tensor(),
    })
}

/// Runs one op; its outputs stay where the engine put them.
pub fn run_there(engine: &mut dyn Engine, op: Op) -> Result<Value> {
    let mut batch = vec![Item { token: 1, op }];
    engine.submit(&mut batch);
    let (started, limit) = (Instant::now(), Duration::from_secs(OP_SECONDS_MAX));
    let mut finished = Vec::new();
    while finished.is_empty() {
        engine.poll(&mut finished, Duration::from_millis(10));
        if started.elapsed() > limit {
            return Err(Error::Timeout { device: engine.info().id, after: limit });
        }
    }
    match finished.pop() {
        Some(done) if done.token == 1 && finished.is_empty() => {
            let value = done.result?;
            done.op.check_answer(&value, engine.info().id)?;
            Ok(value)
        }
        _ => Err(Error::invalid("the engine's answer", "one item with token 1", "something else")),
    }
}
