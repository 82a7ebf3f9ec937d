//! RowMap: an elementwise expression, a function of each row of its result, and an elementwise
//! expression of that.

use super::{ComputeOp, LayerNorm, Map, Reduce, Reduction, Softmax};
use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expr::{Expr, ExprError, INPUTS_MAX, Program};
use crate::op::{AnswerTypes, Describe, Op};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// The function of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum RowFunction {
    /// One number, the sum. The sum of an empty row is zero.
    Sum,
    /// One number, the mean. The mean of an empty row is NaN.
    Mean,
    /// One number, the largest element, or NaN if there is one.
    Max,
    /// One number, the smallest element, or NaN if there is one.
    Min,
    /// A row, as in [`Softmax`](super::Softmax).
    Softmax,
    /// A row, the logarithm of the softmax.
    LogSoftmax,
    /// A row, as in [`LayerNorm`](super::LayerNorm) without weight and bias.
    Norm {
        /// Added to the variance. Finite and not negative.
        epsilon: f64,
        /// Whether the mean is not subtracted.
        is_rms: bool,
    },
}

impl RowFunction {
    /// Whether the function reduces a row to one number.
    pub const fn is_reduction(self) -> bool {
        matches!(self, RowFunction::Sum | RowFunction::Mean | RowFunction::Max | RowFunction::Min)
    }

    /// The name in messages, kernels and benchmarks.
    pub const fn name(self) -> &'static str {
        match self {
            RowFunction::Sum => "sum",
            RowFunction::Mean => "mean",
            RowFunction::Max => "max",
            RowFunction::Min => "min",
            RowFunction::Softmax => "softmax",
            RowFunction::LogSoftmax => "log_softmax",
            RowFunction::Norm { is_rms: false, .. } => "norm",
            RowFunction::Norm { is_rms: true, .. } => "rms_norm",
        }
    }
}

/// Computes `after(function(before(inputs)), more)`. The inputs are broadcast against each other as
/// in a [`Map`](super::Map), and `before` is applied to them. The last axis of its result is a row,
/// to which the function is applied. Input 0 of `after` is the function's result, and its inputs
/// from 1 on are `more`, broadcast to that result. A function that gives one number for each row
/// removes the last axis.
///
/// Rows are f32, f16, bf16 or f64. 16-bit floats are computed in f32, and intermediate results are
/// not rounded to 16 bits. The op is the fusion of a graph's softmax, layer norm or reduction with
/// the elementwise work before and after it: everything is read once and written once.
#[derive(Clone, Debug)]
pub struct RowMap {
    /// The function of a row.
    pub function: RowFunction,
    before: Result<Program, ExprError>,
    after: Result<Program, ExprError>,
    inputs: Vec<Tensor>,
    more: Vec<Tensor>,
}

impl RowMap {
    /// Applies a function to the rows of an expression over these inputs.
    pub fn new(before: impl Into<Expr>, inputs: &[&Tensor], function: RowFunction) -> RowMap {
        RowMap::with_programs(before.into().finish(), inputs, function, Expr::input(0).finish(), &[])
    }

    /// Adds an expression of the result, as input 0, and of further tensors, as inputs from 1 on.
    pub fn after(mut self, after: impl Into<Expr>, more: &[&Tensor]) -> RowMap {
        self.after = after.into().finish();
        self.more = more.iter().map(|tensor| (*tensor).clone()).collect();
        self
    }

    /// Makes the op from finished expressions. See [`RowMap::new`] and [`RowMap::after`].
    pub fn with_programs(
        before: Result<Program, ExprError>,
        inputs: &[&Tensor],
        function: RowFunction,
        after: Result<Program, ExprError>,
        more: &[&Tensor],
    ) -> RowMap {
        let owned = |tensors: &[&Tensor]| tensors.iter().map(|tensor| (*tensor).clone()).collect();
        RowMap { function, before, after, inputs: owned(inputs), more: owned(more) }
    }

    /// The expression before the function.
    pub fn before_program(&self) -> Result<&Program> {
        self.before.as_ref().map_err(|error| Error::Expression(*error))
    }

    /// The expression after the function.
    pub fn after_program(&self) -> Result<&Program> {
        self.after.as_ref().map_err(|error| Error::Expression(*error))
    }

    /// The inputs of the expression before the function.
    pub fn inputs(&self) -> &[Tensor] {
        &self.inputs
    }

    /// The inputs from 1 on of the expression after the function.
    pub fn more(&self) -> &[Tensor] {
        &self.more
    }

    /// The shape of the first expression's result. Its last axis is a row.
    pub fn rows_shape(&self) -> Result<Shape> {
        let mut shape = Shape::scalar();
        for input in &self.inputs {
            shape = shape.broadcast(input.shape())?;
        }
        match shape.rank() {
            0 => Err(Error::RankMismatch { what: "row_map: inputs", expected: "at least 1".into(), got: 0 }),
            _ => Ok(shape),
        }
    }

    /// Number of elements in a row.
    pub fn row_len(&self) -> Result<usize> {
        let shape = self.rows_shape()?;
        Ok(shape[shape.rank() - 1])
    }

    /// The output's shape.
    pub fn output_shape(&self) -> Result<Shape> {
        let shape = self.rows_shape()?;
        if self.function.is_reduction() { Shape::new(&shape[..shape.rank() - 1]) } else { Ok(shape) }
    }

    /// The element type of a row.
    pub fn row_dtype(&self) -> Result<DType> {
        let (dtypes, count) = dtypes(self.inputs.iter().map(Tensor::dtype))?;
        Ok(self.before_program()?.output_dtype(&dtypes[..count])?)
    }

    /// The element types of the inputs of the expression after the function: the row's type, then
    /// those of the further tensors.
    pub fn after_dtypes(&self) -> Result<Vec<DType>> {
        Ok(self.all_after(self.row_dtype()?).collect())
    }

    fn all_after(&self, row: DType) -> impl Iterator<Item = DType> {
        std::iter::once(row).chain(self.more.iter().map(Tensor::dtype))
    }

    /// The output's element type.
    pub fn output_dtype(&self) -> Result<DType> {
        let (dtypes, count) = dtypes(self.all_after(self.row_dtype()?))?;
        Ok(self.after_program()?.output_dtype(&dtypes[..count])?)
    }
}

/// The element types in a list on the stack, and their number.
fn dtypes(all: impl Iterator<Item = DType>) -> Result<([DType; INPUTS_MAX as usize], usize)> {
    let (mut list, mut count) = ([DType::F32; INPUTS_MAX as usize], 0);
    for dtype in all {
        let too_many = || Error::invalid("row_map: inputs", format!("at most {INPUTS_MAX}"), "more");
        *list.get_mut(count).ok_or_else(too_many)? = dtype;
        count += 1;
    }
    Ok((list, count))
}

/// The fallback for devices without a fused kernel, and for rows that are too long for one.
impl RowMap {
    /// Computes the same as three ops, which `run` runs one after the other. 16-bit floats are
    /// converted to f32 before and back to 16 bits after them. If an expression contains a 16-bit
    /// type itself, intermediate results are rounded to that type.
    pub fn apart(&self, run: &mut dyn FnMut(Op) -> Result<Tensor>) -> Result<Tensor> {
        let output = self.output_dtype()?;
        let result = match self.widened(run)? {
            Some(wide) => wide.steps(run)?,
            None => self.steps(run)?,
        };
        if result.dtype() == output { Ok(result) } else { cast(&result, output, run) }
    }

    /// The same op on f32, if the rows are 16-bit floats and the expressions accept f32.
    fn widened(&self, run: &mut dyn FnMut(Op) -> Result<Tensor>) -> Result<Option<RowMap>> {
        if !is_narrow(self.row_dtype()?) {
            return Ok(None);
        }
        let dtypes = |tensors: &[Tensor]| -> Vec<DType> {
            tensors.iter().map(|tensor| if is_narrow(tensor.dtype()) { DType::F32 } else { tensor.dtype() }).collect()
        };
        let row = self.before_program()?.output_dtype(&dtypes(&self.inputs));
        let after: Vec<DType> = std::iter::once(DType::F32).chain(dtypes(&self.more)).collect();
        if row != Ok(DType::F32) || self.after_program()?.output_dtype(&after).is_err() {
            return Ok(None);
        }
        let mut wide = self.clone();
        for tensor in wide.inputs.iter_mut().chain(&mut wide.more).filter(|tensor| is_narrow(tensor.dtype())) {
            *tensor = cast(tensor, DType::F32, run)?;
        }
        Ok(Some(wide))
    }

    fn steps(&self, run: &mut dyn FnMut(Op) -> Result<Tensor>) -> Result<Tensor> {
        let inputs: Vec<&Tensor> = self.inputs.iter().collect();
        let rows = run(Op::Compute(ComputeOp::Map(Map::with_program(self.before_program()?, &inputs))))?;
        let last = rows.shape().rank() - 1;
        let reduction = |reduction| ComputeOp::Reduce(Reduce::new(&rows, reduction).axes(&[last]));
        let function = match self.function {
            RowFunction::Sum => reduction(Reduction::Sum),
            RowFunction::Mean => reduction(Reduction::Mean),
            RowFunction::Max => reduction(Reduction::Max),
            RowFunction::Min => reduction(Reduction::Min),
            RowFunction::Softmax => ComputeOp::Softmax(Softmax::new(&rows)),
            RowFunction::LogSoftmax => ComputeOp::Softmax(Softmax::new(&rows).log()),
            RowFunction::Norm { epsilon, is_rms } => {
                let norm = LayerNorm::new(&rows).epsilon(epsilon);
                ComputeOp::LayerNorm(if is_rms { norm.rms() } else { norm })
            }
        };
        let result = run(Op::Compute(function))?;
        let inputs: Vec<&Tensor> = std::iter::once(&result).chain(&self.more).collect();
        run(Op::Compute(ComputeOp::Map(Map::with_program(self.after_program()?, &inputs))))
    }
}

fn is_narrow(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16)
}

fn cast(tensor: &Tensor, dtype: DType, run: &mut dyn FnMut(Op) -> Result<Tensor>) -> Result<Tensor> {
    run(Op::Compute(ComputeOp::Map(Map::new(Expr::input(0).cast(dtype), &[tensor]))))
}

impl Describe for RowMap {
    fn name(&self) -> &'static str {
        "row_map"
    }

    fn validate(&self) -> Result<()> {
        let row = self.row_dtype()?;
        if !row.is_float() {
            let expected = "f32, f16, bf16 or f64";
            return Err(Error::DTypeUnsupported { what: "row_map: rows", expected, got: row });
        }
        if let RowFunction::Norm { epsilon, .. } = self.function
            && !(epsilon.is_finite() && epsilon >= 0.0)
        {
            return Err(Error::invalid("row_map: epsilon", "a finite number, not negative", epsilon));
        }
        let output = self.output_shape()?;
        for tensor in &self.more {
            if tensor.broadcast_to(output).is_err() {
                let (expected, got) = (output.to_vec(), tensor.shape().to_vec());
                return Err(Error::ShapeMismatch { what: "row_map: an input after the function", expected, got });
            }
        }
        let extreme = match self.function {
            RowFunction::Max => Some("row_map: the maximum of no elements"),
            RowFunction::Min => Some("row_map: the minimum of no elements"),
            _ => None,
        };
        if let Some(what) = extreme.filter(|_| output.elements() > 0)
            && self.row_len()? == 0
        {
            return Err(Error::invalid(what, "at least one element in a row", "none"));
        }
        self.output_dtype().map(drop)
    }

    crate::parts!(inputs, more);

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.output_dtype()?, self.output_shape()?))
    }

    /// Number of elements of all rows.
    fn work(&self) -> u64 {
        self.rows_shape().map_or(0, |shape| shape.elements() as u64)
    }

    fn kernel_signature(&self) -> u64 {
        let form = |program: &Result<Program, ExprError>| program.as_ref().map_or(0, Program::form_hash);
        let function = self.function.name().bytes().fold(0_u64, |hash, byte| hash.rotate_left(5) ^ u64::from(byte));
        form(&self.before).rotate_left(1) ^ form(&self.after) ^ function
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zeros(dtype: DType, dims: &[usize]) -> Tensor {
        Tensor::zeros(dtype, dims).unwrap()
    }

    #[test]
    fn shapes_and_types_follow_from_the_parts() {
        let (x, mask) = (zeros(DType::F32, &[2, 3, 5]), zeros(DType::F32, &[5]));
        let scaled = Expr::input(0) * 0.5 + Expr::input(1);
        let soft = RowMap::new(&scaled, &[&x, &mask], RowFunction::Softmax);
        assert!(soft.validate().is_ok());
        assert_eq!((soft.output_shape().unwrap().to_vec(), soft.row_len().unwrap()), (vec![2, 3, 5], 5));
        let sum = RowMap::new(&scaled, &[&x, &mask], RowFunction::Sum)
            .after((Expr::input(0) + Expr::input(1)).cast(DType::F16), &[&zeros(DType::F32, &[3])]);
        assert!(sum.validate().is_ok());
        assert_eq!((sum.output_shape().unwrap().to_vec(), sum.output_dtype().unwrap()), (vec![2, 3], DType::F16));
        let mut seen = 0;
        sum.for_each_part(&mut |_| seen += 1);
        assert_eq!((seen, sum.work()), (3, 30));
    }

    #[test]
    fn bad_input_is_refused() {
        let x = zeros(DType::F32, &[2, 3]);
        let over = |function| RowMap::new(Expr::input(0), &[&x], function);
        let wide = over(RowFunction::Sum).after(Expr::input(0) + Expr::input(1), &[&zeros(DType::F32, &[3])]);
        assert!(matches!(wide.validate(), Err(Error::ShapeMismatch { .. })));
        let epsilon = over(RowFunction::Norm { epsilon: f64::NAN, is_rms: false });
        assert!(matches!(epsilon.validate(), Err(Error::InvalidArgument { .. })));
        let integers = RowMap::new(Expr::input(0), &[&zeros(DType::I32, &[3])], RowFunction::Max);
        assert!(matches!(integers.validate(), Err(Error::DTypeUnsupported { .. })));
        let scalar = RowMap::new(Expr::input(0), &[&zeros(DType::F32, &[])], RowFunction::Max);
        assert!(matches!(scalar.validate(), Err(Error::RankMismatch { .. })));
        let empty = RowMap::new(Expr::input(0), &[&zeros(DType::F32, &[2, 0])], RowFunction::Min);
        let text = empty.validate().unwrap_err().to_string();
        assert_eq!(text, "row_map: the minimum of no elements: expected at least one element in a row, got none");
        let mixed = over(RowFunction::Sum).after(Expr::input(0) + Expr::input(1), &[&zeros(DType::F64, &[2])]);
        assert!(matches!(mixed.validate(), Err(Error::Expression(_))));
    }
}
