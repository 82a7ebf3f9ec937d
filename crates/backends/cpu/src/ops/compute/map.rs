//! Map: runs the plan of the expression over the inputs' views.

use panoply_core::op::compute::Map;
use panoply_core::{Result, Value};

use crate::context::Context;
use crate::map::{PlanCache, execute};
use crate::states::OpState;

impl OpState for PlanCache {}

pub(crate) fn run(op: &Map, context: &mut Context) -> Result<Value> {
    let shape = op.output_shape()?;
    let dtypes = op.inputs().map(|input| input.dtype());
    let plan = context.states.get::<PlanCache>().get(op.program()?, dtypes, context.simd)?;
    let mut output = context.output_bytes(plan.output_dtype(), shape)?;
    execute(&plan, op.inputs(), &shape, output.bytes_mut(), &context.team)?;
    output.into_tensor().map(Value::Tensor)
}
