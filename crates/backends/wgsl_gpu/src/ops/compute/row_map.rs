//! RowMap: as the three ops that it is.

use panoply_core::graph::placeholder;
use panoply_core::op::compute::RowMap;
use panoply_core::{Error, Op, Result, Tensor};

use crate::context::Context;
use crate::driver::Driver;
use crate::engine::Answer;
use crate::profile::Profile;

/// Whether each of the three ops runs, or why not.
pub(crate) fn support(profile: &Profile, op: &RowMap) -> Result<(), String> {
    let mut refused = None;
    let asked = op.apart(&mut |op| {
        if let Err(reason) = super::super::support(profile, &op) {
            refused = refused.take().or(Some(reason));
        }
        let (dtype, shape) = op.outputs()?.remove(0);
        placeholder(dtype, shape, 0)
    });
    match (refused, asked) {
        (Some(reason), _) => Err(reason),
        (None, Err(error)) => Err(error.to_string()),
        (None, Ok(_)) => Ok(()),
    }
}

pub(crate) fn run<D: Driver>(op: &RowMap, context: &mut Context<D>) -> Result<Tensor> {
    op.apart(&mut |op: Op| match super::super::run(&op, context)? {
        Answer::Value(value) => value.into_tensor(),
        _ => Err(Error::invalid("row_map: a step", "one tensor on the device", "another answer")),
    })
}
