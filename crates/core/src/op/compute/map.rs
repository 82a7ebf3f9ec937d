//! Map: a fused elementwise expression of broadcast inputs.

use std::hash::{Hash, Hasher};

use crate::dtype::DType;
use crate::error::{Error, Result};
use crate::expr::{BinaryOp, Expr, ExprError, INPUTS_MAX, Program, TernaryOp, UnaryOp};
use crate::once::OnceBox;
use crate::op::{AnswerTypes, BatchKey, Describe};
use crate::part::{PartMut, PartRef};
use crate::shape::Shape;
use crate::tensor::Tensor;

/// Number of inputs stored in the op itself. Further inputs are stored on the heap.
const INLINE_INPUTS_MAX: usize = 3;

/// Evaluates an [`Expr`] for every element of its inputs, which are broadcast against each other as
/// in numpy.
///
/// The output's dtype is the expression's. [`crate::expr`] defines every operation, including
/// overflow, NaN and division by zero. Inputs that the expression does not read take part in the
/// broadcasting. All calls of a constructor for a single operation ([`Map::add`], [`Map::relu`], …)
/// share one program and allocate nothing.
///
/// ```
/// use panoply_core::{Tensor, expr::Expr, op::compute::Map};
/// let x = Tensor::from_slice(&[1.0_f32, -2.0], [2])?;
/// let y = Tensor::scalar(3.0_f32)?;
/// let op = Map::new((Expr::input(0) * 2.0 + Expr::input(1)).relu(), &[&x, &y]);
/// assert_eq!(op.output_shape()?.dims(), [2]);
/// # Ok::<(), panoply_core::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Map {
    program: Result<Program, ExprError>,
    few: [Option<Tensor>; INLINE_INPUTS_MAX],
    more: Vec<Tensor>,
}

impl Map {
    /// Maps an expression over these inputs. Input `i` of the expression is `inputs[i]`. Errors in
    /// the expression are reported when the op is validated.
    pub fn new(expr: impl Into<Expr>, inputs: &[&Tensor]) -> Map {
        Map::with(expr.into().finish(), inputs)
    }

    /// Maps a finished expression. See [`Map::new`].
    pub fn with_program(program: &Program, inputs: &[&Tensor]) -> Map {
        Map::with(Ok(program.clone()), inputs)
    }

    /// Applies a function of one value to every element.
    pub fn unary(op: UnaryOp, x: &Tensor) -> Map {
        static PROGRAMS: [OnceBox<Result<Program, ExprError>>; UnaryOp::ALL.len()] =
            [const { OnceBox::new() }; UnaryOp::ALL.len()];
        let program = PROGRAMS[op as usize].get_or_make(|| Expr::input(0).unary(op).finish().map(Program::for_ever));
        Map::with(program.clone(), &[x])
    }

    /// Applies a function of two values to every pair of elements.
    pub fn binary(op: BinaryOp, a: &Tensor, b: &Tensor) -> Map {
        static PROGRAMS: [OnceBox<Result<Program, ExprError>>; BinaryOp::ALL.len()] =
            [const { OnceBox::new() }; BinaryOp::ALL.len()];
        let program = PROGRAMS[op as usize]
            .get_or_make(|| Expr::input(0).binary(op, Expr::input(1)).finish().map(Program::for_ever));
        Map::with(program.clone(), &[a, b])
    }

    /// Applies a function of three values to every triple of elements.
    pub fn ternary(op: TernaryOp, a: &Tensor, b: &Tensor, c: &Tensor) -> Map {
        static PROGRAMS: [OnceBox<Result<Program, ExprError>>; TernaryOp::ALL.len()] =
            [const { OnceBox::new() }; TernaryOp::ALL.len()];
        let make = || Expr::input(0).ternary(op, Expr::input(1), Expr::input(2)).finish().map(Program::for_ever);
        Map::with(PROGRAMS[op as usize].get_or_make(make).clone(), &[a, b, c])
    }

    /// Converts the elements to another dtype.
    pub fn cast(x: &Tensor, dtype: DType) -> Map {
        static PROGRAMS: [OnceBox<Result<Program, ExprError>>; DType::ALL.len()] =
            [const { OnceBox::new() }; DType::ALL.len()];
        let program =
            PROGRAMS[dtype as usize].get_or_make(|| Expr::input(0).cast(dtype).finish().map(Program::for_ever));
        Map::with(program.clone(), &[x])
    }

    /// `b` where `condition` is not zero, else `c`.
    pub fn select(condition: &Tensor, b: &Tensor, c: &Tensor) -> Map {
        Map::ternary(TernaryOp::Select, condition, b, c)
    }

    /// The finished expression. Fails if it is too large or reads too many inputs.
    pub fn program(&self) -> Result<&Program> {
        self.program.as_ref().map_err(|error| Error::Expression(*error))
    }

    /// The inputs, in order.
    pub fn inputs(&self) -> impl ExactSizeIterator<Item = &Tensor> + Clone {
        Inputs { few: self.few.iter(), more: self.more.iter() }
    }

    /// The output's shape: all inputs broadcast against each other. A map without inputs gives one
    /// element.
    pub fn output_shape(&self) -> Result<Shape> {
        let mut inputs = self.inputs();
        let mut shape = inputs.next().map_or(Shape::scalar(), |first| *first.shape());
        for input in inputs {
            if *input.shape() != shape {
                shape = shape.broadcast(input.shape())?;
            }
        }
        Ok(shape)
    }

    /// The output's dtype.
    pub fn output_dtype(&self) -> Result<DType> {
        let mut dtypes = [DType::F32; INPUTS_MAX as usize];
        let count = self.inputs().len();
        if count > dtypes.len() {
            return Err(Error::invalid("map inputs", format!("at most {INPUTS_MAX}"), count));
        }
        for (dtype, input) in dtypes.iter_mut().zip(self.inputs()) {
            *dtype = input.dtype();
        }
        Ok(self.program()?.output_dtype(&dtypes[..count])?)
    }

    fn with(program: Result<Program, ExprError>, inputs: &[&Tensor]) -> Map {
        let mut few = [const { None }; INLINE_INPUTS_MAX];
        for (place, input) in few.iter_mut().zip(inputs) {
            *place = Some((*input).clone());
        }
        let more = inputs.iter().skip(INLINE_INPUTS_MAX).map(|input| (*input).clone()).collect();
        Map { program, few, more }
    }
}

/// The inputs stored in the op itself, from the first slot on, then those on the heap.
#[derive(Clone)]
struct Inputs<'a> {
    few: std::slice::Iter<'a, Option<Tensor>>,
    more: std::slice::Iter<'a, Tensor>,
}

impl<'a> Iterator for Inputs<'a> {
    type Item = &'a Tensor;

    fn next(&mut self) -> Option<&'a Tensor> {
        match self.few.next() {
            Some(input) => input.as_ref(),
            None => self.more.next(),
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let count = self.few.as_slice().iter().flatten().count() + self.more.len();
        (count, Some(count))
    }
}

impl ExactSizeIterator for Inputs<'_> {}

macro_rules! shorthands {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) = $kind:ident $op:ident;)*) => {
        impl Map {
            $(
                $(#[$doc])*
                pub fn $name($($arg: &Tensor),*) -> Map {
                    shorthands!(@call $kind $op $($arg),*)
                }
            )*
        }
    };
    (@call unary $op:ident $x:ident) => { Map::unary(UnaryOp::$op, $x) };
    (@call binary $op:ident $a:ident, $b:ident) => { Map::binary(BinaryOp::$op, $a, $b) };
}

shorthands! {
    /// `a + b`.
    add(a, b) = binary Add;
    /// `a - b`.
    sub(a, b) = binary Sub;
    /// `a · b`.
    mul(a, b) = binary Mul;
    /// `a / b`.
    div(a, b) = binary Div;
    /// The smaller of each pair.
    minimum(a, b) = binary Min;
    /// The larger of each pair.
    maximum(a, b) = binary Max;
    /// `a` to the power of `b`.
    pow(a, b) = binary Pow;
    /// `-x`.
    neg(x) = unary Neg;
    /// The absolute value.
    abs(x) = unary Abs;
    /// `e` to the power of `x`.
    exp(x) = unary Exp;
    /// The natural logarithm.
    log(x) = unary Log;
    /// The square root.
    sqrt(x) = unary Sqrt;
    /// The hyperbolic tangent.
    tanh(x) = unary Tanh;
    /// `1 / (1 + exp(-x))`.
    sigmoid(x) = unary Sigmoid;
    /// `max(x, 0)`.
    relu(x) = unary Relu;
    /// `x · Φ(x)`, computed with the error function.
    gelu(x) = unary Gelu;
    /// `x · sigmoid(x)`.
    silu(x) = unary Silu;
}

impl Describe for Map {
    fn name(&self) -> &'static str {
        "map"
    }

    fn validate(&self) -> Result<()> {
        self.output_dtype()?;
        self.output_shape().map(drop)
    }

    fn for_each_part(&self, visit: &mut dyn FnMut(PartRef<'_>)) {
        self.inputs().for_each(|tensor| visit(tensor.into()));
    }

    fn for_each_part_mut(&mut self, visit: &mut dyn FnMut(PartMut<'_>)) {
        self.few.iter_mut().flatten().chain(&mut self.more).for_each(|tensor| visit(tensor.into()));
    }

    fn answer_types(&self) -> Result<AnswerTypes<'_>> {
        Ok(AnswerTypes::Tensor(self.output_dtype()?, self.output_shape()?))
    }

    fn kernel_signature(&self) -> u64 {
        self.program.as_ref().map_or(0, |program| program.form_hash())
    }

    /// Maps of the same expression over inputs of the same element types and shapes are joined.
    fn batch_key(&self) -> Option<BatchKey> {
        let program = self.program.as_ref().ok()?;
        let mut hasher = std::hash::DefaultHasher::new();
        self.inputs().for_each(|input| (input.dtype(), input.shape()).hash(&mut hasher));
        Some(BatchKey::of(("map", program.hash(), hasher.finish())))
    }
}
