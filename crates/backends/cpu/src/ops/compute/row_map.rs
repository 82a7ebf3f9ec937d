//! RowMap: computes rows of f64 in f64 and all others in f32; intermediate values are never rounded
//! to 16 bits.

use panoply_core::expr::{Expr, ExprError, Operand, Program};
use panoply_core::op::compute::RowMap;
use panoply_core::{DType, Result, Tensor, Value};

use crate::context::Context;
use crate::map::PlanCache;
use crate::row_map::RowPass;

pub(crate) fn run(op: &RowMap, context: &mut Context) -> Result<Value> {
    let row = op.row_dtype()?;
    let wide = if row == DType::F64 { DType::F64 } else { DType::F32 };
    let inputs = || op.inputs().iter().map(Tensor::dtype);
    let after_inputs = || std::iter::once(wide).chain(op.more().iter().map(Tensor::dtype));
    let output_dtype = op.output_dtype()?;
    let (before, after) = match wide == row {
        true => (op.before_program()?.clone(), op.after_program()?.clone()),
        false => (
            widened_before(op.before_program()?, &inputs().collect::<Vec<_>>())?,
            widened_after(op.after_program()?, row, &after_inputs().collect::<Vec<_>>(), output_dtype)?,
        ),
    };
    let before = context.states.get::<PlanCache>().get(&before, inputs(), context.simd)?;
    let after = context.states.get::<PlanCache>().get(&after, after_inputs(), context.simd)?;
    let (rows, shape) = (op.rows_shape()?, op.output_shape()?);
    let mut output = context.output_bytes(output_dtype, shape)?;
    let pass = RowPass {
        before: &before,
        inputs: op.inputs(),
        function: op.function,
        after: &after,
        more: op.more(),
        rows,
        output: shape,
    };
    match wide {
        DType::F64 => pass.run::<f64>(context.simd, &context.team, output.bytes_mut())?,
        _ => pass.run::<f32>(context.simd, &context.team, output.bytes_mut())?,
    }
    output.into_tensor().map(Value::Tensor)
}

/// The program with a result of f32, and its 16-bit inputs converted to f32. If the program itself
/// casts to 16 bits, its operands would have different types; then only its result is cast.
fn widened_before(program: &Program, inputs: &[DType]) -> Result<Program> {
    let cast = Expr::input(0).cast(DType::F32).finish()?;
    let result = |program: &Program| cast.compose(&[Operand::Result(program, &identity(inputs.len()))]);
    let wide = with_wide_inputs(program, inputs, &cast).and_then(|wide| result(&wide));
    match wide {
        Ok(wide) if wide.output_dtype(inputs).is_ok() => Ok(wide),
        _ => Ok(result(program)?),
    }
}

/// The program with an input 0 of f32 in place of `row`, and the same output.
fn widened_after(program: &Program, row: DType, inputs: &[DType], output: DType) -> Result<Program> {
    let cast = Expr::input(0).cast(DType::F32).finish()?;
    let stored = Expr::input(0).cast(output).finish()?;
    let wide = with_wide_inputs(program, inputs, &cast)
        .and_then(|wide| stored.compose(&[Operand::Result(&wide, &identity(inputs.len()))]));
    if let Ok(wide) = wide
        && wide.output_dtype(inputs).is_ok()
    {
        return Ok(wide);
    }
    let narrow = Expr::input(0).cast(row).finish()?;
    let mut operands: Vec<Operand<'_>> = (0..inputs.len() as u32).map(Operand::Input).collect();
    operands[0] = Operand::Result(&narrow, &[0]);
    Ok(program.compose(&operands)?)
}

/// The program with every 16-bit input cast to f32.
fn with_wide_inputs(program: &Program, inputs: &[DType], cast: &Program) -> Result<Program, ExprError> {
    let places = identity(inputs.len());
    let operand = |(place, dtype): (usize, &DType)| match dtype {
        DType::F16 | DType::BF16 => Operand::Result(cast, &places[place..=place]),
        _ => Operand::Input(place as u32),
    };
    program.compose(&inputs.iter().enumerate().map(operand).collect::<Vec<_>>())
}

fn identity(count: usize) -> Vec<u32> {
    (0..count as u32).collect()
}
