//! How far two sound answers may be apart: bounds of the values in an op or a graph, and of their
//! rounding errors.
//!
//! Each value has a bound of its size, and one of its error. Both grow from op to op: the error of
//! a sum is measured by the sum of its terms' magnitudes, so terms that cancel out keep their
//! errors. An op without a rule here has no bound.

use panoply_core::expr::{BinaryOp, Node, Program, TernaryOp, UnaryOp};
use panoply_core::graph::{Origin, slot_of};
use panoply_core::op::compute::{Activation, ComputeOp, MatMul, Reduction};
use panoply_core::op::graph::{GraphOp, RunGraph};
use panoply_core::{DType, Op, Tensor};

use super::agreement::{largest_of, longest_row, tolerance};

/// Two sound answers differ by twice the error of one.
const ANSWERS: f64 = 2.0;
/// Functions such as `exp` are off by this fraction of the tolerance.
const FUNCTION_SHARE: f64 = 1e-2;

/// The bounds of the elements of one tensor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bound {
    /// No element is larger, without its sign.
    size: f64,
    /// No element is farther from its exact value.
    error: f64,
}

/// The precision of a computation.
#[derive(Clone, Copy)]
struct Precision {
    /// The relative rounding error of one value.
    unit: f64,
    /// The relative rounding error of one addition in a long sum.
    adding: f64,
    /// The relative error of a function.
    function: f64,
    /// The largest value of the type. Beyond it, a value may be infinite.
    largest: f64,
}

impl Precision {
    /// The precision for the coarsest tolerance on the way.
    fn of(coarsest: f64) -> Precision {
        let at_most = |dtype| tolerance(dtype).is_some_and(|own| coarsest <= own);
        let unit = match () {
            () if at_most(DType::F64) => -53,
            () if at_most(DType::F32) => -24,
            () if at_most(DType::F16) => -11,
            () => -8,
        };
        let largest = match unit {
            -53 => f64::MAX,
            -11 => 65504.0,
            _ => f64::from(f32::MAX),
        };
        let unit = f64::from(unit).exp2();
        Precision { unit, adding: unit.min(f64::from(-24).exp2()), function: coarsest * FUNCTION_SHARE, largest }
    }

    /// The sum of `terms` products.
    fn sum(self, terms: usize, a: Bound, b: Bound) -> Bound {
        self.sum_of(terms, terms as f64 * a.size * b.size, terms as f64 * error_of_product(a, b))
    }

    /// A sum of `terms` terms whose magnitudes add up to `size`, and their errors to `error`.
    fn sum_of(self, terms: usize, size: f64, error: f64) -> Bound {
        Bound { size, error: error + (2.0 * self.unit + terms as f64 * self.adding) * size }
    }

    fn rounded(self, size: f64, error: f64) -> Bound {
        Bound { size, error: error + self.unit * size }
    }

    fn add(self, a: Bound, b: Bound) -> Bound {
        self.rounded(a.size + b.size, a.error + b.error)
    }

    fn mul(self, a: Bound, b: Bound) -> Bound {
        self.rounded(a.size * b.size, error_of_product(a, b))
    }

    fn scale(self, a: Bound, factor: f64) -> Bound {
        self.mul(a, exact(factor.abs()))
    }

    /// The result of a function whose slope is at most `slope`.
    fn function(self, size: f64, slope: f64, argument: Bound) -> Bound {
        Bound { size, error: slope * argument.error + self.function * size }
    }

    fn unary(self, op: UnaryOp, a: Bound) -> Option<Bound> {
        let Bound { size, error } = a;
        Some(match op {
            UnaryOp::Neg | UnaryOp::Abs | UnaryOp::Relu => a,
            UnaryOp::Exp => {
                let largest = size.exp();
                Bound { size: largest, error: largest * (error.exp_m1() + self.function) }
            }
            UnaryOp::Sqrt => Bound { size: size.sqrt(), error: error.sqrt() + self.function * size.sqrt() },
            UnaryOp::Tanh | UnaryOp::Sigmoid | UnaryOp::Erf => self.function(1.0, 1.2, a),
            UnaryOp::Sin | UnaryOp::Cos => self.function(1.0, 1.0, self.rounded(size, error)),
            UnaryOp::Gelu | UnaryOp::GeluTanh | UnaryOp::Silu => self.function(size, 1.2, a),
            // A number beside a border may fall on either side.
            UnaryOp::Floor | UnaryOp::Ceil | UnaryOp::Round => Bound { size: size + 1.0, error: error + 1.0 },
            UnaryOp::Not => decided(),
            UnaryOp::Log | UnaryOp::Rsqrt | UnaryOp::Recip => return None,
        })
    }

    fn activation(self, activation: Activation, a: Bound) -> Option<Bound> {
        let op = match activation {
            Activation::None => return Some(a),
            Activation::Relu => UnaryOp::Relu,
            Activation::Gelu => UnaryOp::Gelu,
            Activation::Silu => UnaryOp::Silu,
            Activation::Sigmoid => UnaryOp::Sigmoid,
            Activation::Tanh => UnaryOp::Tanh,
            _ => return None,
        };
        self.unary(op, a)
    }

    fn binary(self, op: BinaryOp, a: Bound, b: Bound, divisor: Option<f64>) -> Option<Bound> {
        Some(match op {
            BinaryOp::Add | BinaryOp::Sub => self.add(a, b),
            BinaryOp::Mul => self.mul(a, b),
            BinaryOp::Div => self.scale(a, 1.0 / divisor.filter(|divisor| *divisor != 0.0)?),
            BinaryOp::Min | BinaryOp::Max => either(a, b),
            BinaryOp::Rem | BinaryOp::Pow => return None,
            BinaryOp::Eq
            | BinaryOp::Ne
            | BinaryOp::Lt
            | BinaryOp::Le
            | BinaryOp::Gt
            | BinaryOp::Ge
            | BinaryOp::And
            | BinaryOp::Or => decided(),
        })
    }

    fn program(self, program: &Program, inputs: &[Bound]) -> Option<Bound> {
        let mut made: Vec<Bound> = Vec::with_capacity(program.nodes().len());
        for node in program.nodes() {
            let of = |id: u32| made[id as usize];
            made.push(match *node {
                Node::Input(index) => *inputs.get(index as usize)?,
                Node::Const(number) => self.rounded(number.value().abs(), 0.0),
                Node::Unary(op, a) => self.unary(op, of(a))?,
                Node::Binary(op, a, b) => {
                    let divisor = match program.nodes()[b as usize] {
                        Node::Const(number) => Some(number.value()),
                        _ => None,
                    };
                    self.binary(op, of(a), of(b), divisor)?
                }
                Node::Ternary(TernaryOp::MulAdd, a, b, c) => self.add(self.mul(of(a), of(b)), of(c)),
                Node::Ternary(TernaryOp::Clamp, a, b, c) => either(of(a), either(of(b), of(c))),
                Node::Ternary(TernaryOp::Select, _, b, c) => {
                    let (b, c) = (of(b), of(c));
                    Bound { size: b.size.max(c.size), error: b.size + c.size + b.error + c.error }
                }
                Node::Cast(dtype, a) if tolerance(dtype).is_none() => {
                    Bound { size: of(a).size, error: of(a).error + 1.0 }
                }
                Node::Cast(_, a) => self.rounded(of(a).size, of(a).error),
            });
        }
        made.last().copied()
    }

    /// The bound of an op's outputs, from those of its inputs.
    fn op(self, op: &Op, input: &dyn Fn(&Tensor) -> Option<Bound>) -> Option<Bound> {
        let Op::Compute(op) = op else { return None };
        match op {
            ComputeOp::Map(op) => {
                self.program(op.program().ok()?, &op.inputs().map(input).collect::<Option<Vec<_>>>()?)
            }
            ComputeOp::MatMul(op) => {
                let sum = self.sum(op.matmul_shape().ok()?.k, input(&op.a)?, input(&op.b)?);
                self.with_epilogue(op, sum, input)
            }
            ComputeOp::Conv2d(op) => {
                let shape = op.conv_shape().ok()?;
                let terms = shape.taps().saturating_mul(shape.channels / shape.groups.max(1));
                let sum = self.sum(terms, input(&op.input)?, input(&op.weights)?);
                let sum = match &op.bias {
                    Some(bias) => self.add(sum, input(bias)?),
                    None => sum,
                };
                self.activation(op.activation, sum)
            }
            ComputeOp::Reduce(op) => {
                let made = input(&op.input)?;
                let reduced = op.reduced().ok()?;
                let sizes = op.input.shape().iter().zip(reduced);
                let terms: usize = sizes.filter(|(_, reduced)| *reduced).map(|(size, _)| *size).product();
                match op.reduction {
                    Reduction::Sum => Some(self.sum(terms, made, exact(1.0))),
                    Reduction::Mean => Some(self.sum_of(terms, made.size, made.error)),
                    Reduction::Max | Reduction::Min => Some(made),
                    Reduction::ArgMax | Reduction::ArgMin => None,
                }
            }
            ComputeOp::Softmax(op) if !op.is_log => {
                let made = input(&op.input)?;
                let error = (2.0 * made.error).exp_m1() + op.input.shape()[op.axis] as f64 * self.adding;
                Some(Bound { size: 1.0, error: (error + self.function).min(1.0) })
            }
            ComputeOp::Transpose(op) => input(&op.input),
            _ => None,
        }
    }

    fn with_epilogue(self, op: &MatMul, sum: Bound, input: &dyn Fn(&Tensor) -> Option<Bound>) -> Option<Bound> {
        let mut made = self.scale(sum, f64::from(op.alpha));
        if let Some(c) = &op.c {
            made = self.add(made, self.scale(input(c)?, f64::from(op.beta)));
        }
        if let Some(bias) = &op.bias {
            made = self.add(made, input(bias)?);
        }
        self.activation(op.activation, made)
    }

    /// A product of two tensors on the host: the magnitudes of a sum's terms add up to at most the
    /// lengths of a row and a column, multiplied.
    fn product(self, op: &MatMul) -> Option<Bound> {
        let (a, b) = op.operands().ok()?;
        let size = longest_row(&a)? * longest_row(&b.transpose().ok()?)?;
        self.with_epilogue(op, self.sum_of(op.matmul_shape().ok()?.k, size, 0.0), &on_host)
    }

    /// The bound of each output of a graph whose inputs are on the host.
    fn graph(self, run: &RunGraph) -> Option<Vec<Option<Bound>>> {
        let instance = run.instance().ok()?;
        let mut bounds: Vec<Option<Bound>> = Vec::with_capacity(instance.slots.len());
        for slot in &instance.slots {
            bounds.push(match slot.origin {
                Origin::Input(input) => on_host(run.inputs().get(input)?),
                Origin::Constant(node) => on_host(run.graph().nodes()[node].constant()?),
                Origin::Step(_) => None,
            });
        }
        for step in &instance.steps {
            let bound = self.op(&step.op, &|tensor| *bounds.get(slot_of(tensor)?)?);
            let bound = bound.filter(|bound| bound.size <= self.largest);
            step.outputs.iter().for_each(|slot| bounds[slot] = bound);
        }
        Some(instance.outputs.iter().map(|view| *bounds.get(slot_of(view)?)?).collect())
    }
}

/// How far two sound answers may be apart in an output of an op because of rounding errors. `None`
/// if no bound is known.
pub(super) fn rounding(op: &Op, output: usize, coarsest: f64) -> Option<f64> {
    let precision = Precision::of(coarsest);
    let bound = match op {
        Op::Graph(GraphOp::RunGraph(run)) => precision.graph(run)?.get(output).copied().flatten(),
        Op::Compute(ComputeOp::MatMul(op)) => precision.product(op),
        op => precision.op(op, &on_host),
    };
    bound.filter(|bound| bound.size <= precision.largest).map(|bound| ANSWERS * bound.error)
}

/// The bound of a tensor on the host, which is exact.
fn on_host(tensor: &Tensor) -> Option<Bound> {
    largest_of(tensor).map(exact)
}

fn exact(size: f64) -> Bound {
    Bound { size, error: 0.0 }
}

/// A zero or a one, of which it is unknown which.
fn decided() -> Bound {
    Bound { size: 1.0, error: 1.0 }
}

fn either(a: Bound, b: Bound) -> Bound {
    Bound { size: a.size.max(b.size), error: a.error.max(b.error) }
}

fn error_of_product(a: Bound, b: Bound) -> f64 {
    a.error * b.size + a.size * b.error + a.error * b.error
}
