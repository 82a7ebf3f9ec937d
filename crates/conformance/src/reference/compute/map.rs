//! Map: the expression, node by node, for each element.
//!
//! Floats are computed in f64 and rounded to the carrying type (f32 for f32, f16 and bf16) after
//! every node. Integers are computed in 128 bits and wrapped to their width.

use panoply_core::expr::{BinaryOp, Node, Program, TernaryOp, Types, UnaryOp, Value as Known, erf, erfc};
use panoply_core::op::compute::Map;
use panoply_core::{Complex64, DType, Element, Result, Tensor, Value, bf16, f16};

/// The value of a node for one element.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scalar {
    Float(f64),
    Integer(i128),
    Complex(f64, f64),
}

/// How arithmetic flushes subnormal f32 numbers: as operands, as results, or both, to zero of the
/// same sign.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Flush {
    operands: bool,
    results: bool,
}

impl Flush {
    /// Every way of flushing; the default is to keep subnormal numbers.
    pub(super) const ALL: [Flush; 3] = [
        Flush { operands: true, results: false },
        Flush { operands: false, results: true },
        Flush { operands: true, results: true },
    ];
}

pub(super) fn run(op: &Map) -> Result<Value> {
    run_flushing(op, Flush::default())
}

/// The answer if subnormal numbers are flushed in this way.
pub(super) fn run_flushing(op: &Map, flush: Flush) -> Result<Value> {
    let shape = op.output_shape()?;
    let dtypes: Vec<DType> = op.inputs().map(Tensor::dtype).collect();
    let types = op.program()?.types(&dtypes)?;
    let inputs: Vec<Vec<Scalar>> = op.inputs().map(|input| read(&input.broadcast_to(shape)?)).collect::<Result<_>>()?;
    let results: Vec<Scalar> = (0..shape.elements())
        .map(|element| evaluate_flushing(op.program()?, &types, |index| inputs[index][element], flush))
        .collect::<Result<_>>()?;
    write(types.output(), &shape, &results).map(Value::Tensor)
}

pub(super) fn evaluate(program: &Program, types: &Types, input: impl Fn(usize) -> Scalar) -> Result<Scalar> {
    evaluate_flushing(program, types, input, Flush::default())
}

fn evaluate_flushing(
    program: &Program,
    types: &Types,
    input: impl Fn(usize) -> Scalar,
    flush: Flush,
) -> Result<Scalar> {
    let mut values: Vec<Scalar> = Vec::with_capacity(program.nodes().len());
    for (id, node) in program.nodes().iter().enumerate() {
        let dtype = match types.values()[id] {
            Known::Typed(dtype) => dtype,
            Known::Constant(value) => {
                values.push(Scalar::Float(value));
                continue;
            }
        };
        let is_flushed = dtype != DType::F64 && is_arithmetic(node);
        let operand = |id: u32| {
            let value = match types.values()[id as usize] {
                Known::Constant(value) => constant(value, dtype),
                Known::Typed(_) => values[id as usize],
            };
            if is_flushed && flush.operands { flushed(value) } else { value }
        };
        let value = match *node {
            Node::Input(index) => input(index as usize),
            Node::Const(value) => constant(value.value(), dtype),
            Node::Cast(to, a) => match types.values()[a as usize] {
                Known::Typed(from) if from == to => values[a as usize],
                _ => cast(values[a as usize], to),
            },
            Node::Unary(op, a) => unary(op, operand(a)),
            Node::Binary(op, a, b) => binary(op, operand(a), operand(b)),
            Node::Ternary(op, a, b, c) => ternary(op, operand(a), operand(b), operand(c)),
        };
        let value = carried(value, dtype);
        values.push(if is_flushed && flush.results { flushed(value) } else { value });
    }
    let last = values.len() - 1;
    Ok(match types.values()[last] {
        Known::Constant(value) => carried(Scalar::Float(value), DType::F32),
        Known::Typed(_) => values[last],
    })
}

/// Whether a node computes, rather than only compares or moves bits (rule 11 of
/// `panoply_core::expr`).
fn is_arithmetic(node: &Node) -> bool {
    use UnaryOp::{Abs, Log, Neg, Not, Relu, Rsqrt, Sqrt};
    match node {
        Node::Input(_) | Node::Const(_) | Node::Cast(..) => false,
        Node::Unary(op, _) => !matches!(op, Neg | Abs | Relu | Not | Log | Sqrt | Rsqrt),
        Node::Binary(op, ..) => {
            use BinaryOp::{Add, Div, Mul, Pow, Rem, Sub};
            matches!(op, Add | Sub | Mul | Div | Rem | Pow)
        }
        Node::Ternary(op, ..) => *op == TernaryOp::MulAdd,
    }
}

/// Replaces a number that is subnormal in f32 by zero of the same sign.
fn flushed(value: Scalar) -> Scalar {
    let zero = |value: f64| if value.abs() < f64::from(f32::MIN_POSITIVE) { 0.0_f64.copysign(value) } else { value };
    match value {
        Scalar::Float(value) => Scalar::Float(zero(value)),
        Scalar::Complex(re, im) => Scalar::Complex(zero(re), zero(im)),
        Scalar::Integer(_) => value,
    }
}

/// A constant, converted to the dtype of the other operands.
fn constant(value: f64, dtype: DType) -> Scalar {
    carried(if dtype.is_float() { Scalar::Float(value) } else { cast(Scalar::Float(value), dtype) }, dtype)
}

/// A value, rounded or wrapped as it is carried from node to node.
pub(super) fn carried(value: Scalar, dtype: DType) -> Scalar {
    let single = |value: f64| f64::from(value as f32);
    match (value, dtype) {
        (Scalar::Float(value), DType::F32 | DType::F16 | DType::BF16) => Scalar::Float(single(value)),
        (Scalar::Integer(value), DType::I32) => Scalar::Integer(i128::from(value as i32)),
        (Scalar::Integer(value), DType::U32) => Scalar::Integer(i128::from(value as u32)),
        (Scalar::Integer(value), DType::I8) => Scalar::Integer(i128::from(value as i8)),
        (Scalar::Integer(value), DType::U8) => Scalar::Integer(i128::from(value as u8)),
        (Scalar::Complex(re, im), _) => Scalar::Complex(single(re), single(im)),
        _ => value,
    }
}

fn cast(value: Scalar, to: DType) -> Scalar {
    let (low, high) = match to {
        DType::I32 => (i128::from(i32::MIN), i128::from(i32::MAX)),
        DType::U32 => (0, i128::from(u32::MAX)),
        DType::I8 => (i128::from(i8::MIN), i128::from(i8::MAX)),
        _ => (0, i128::from(u8::MAX)),
    };
    let real = match value {
        Scalar::Float(value) => value,
        Scalar::Integer(value) => value as f64,
        Scalar::Complex(..) => return value,
    };
    match (to, value) {
        (DType::Complex64, _) => Scalar::Complex(real, 0.0),
        (DType::F32 | DType::F64, _) => Scalar::Float(real),
        (DType::F16, _) => Scalar::Float(f16::from_f32(real as f32).to_f64()),
        (DType::BF16, _) => Scalar::Float(bf16::from_f32(real as f32).to_f64()),
        (_, Scalar::Integer(value)) => Scalar::Integer(value),
        _ if real.is_nan() => Scalar::Integer(0),
        _ => Scalar::Integer((real.trunc().clamp(-1e30, 1e30) as i128).clamp(low, high)),
    }
}

fn unary(op: UnaryOp, x: Scalar) -> Scalar {
    match x {
        Scalar::Float(x) => Scalar::Float(float_unary(op, x)),
        Scalar::Integer(x) => Scalar::Integer(match op {
            UnaryOp::Neg => -x,
            UnaryOp::Abs => x.abs(),
            UnaryOp::Relu => x.max(0),
            UnaryOp::Not => i128::from(x == 0),
            _ => x,
        }),
        Scalar::Complex(re, im) => match op {
            UnaryOp::Recip => binary(BinaryOp::Div, Scalar::Complex(1.0, 0.0), x),
            _ => Scalar::Complex(-re, -im),
        },
    }
}

fn float_unary(op: UnaryOp, x: f64) -> f64 {
    let share = |weight: f64| if weight == 0.0 { 0.0 } else { x * weight };
    match op {
        UnaryOp::Neg => -x,
        UnaryOp::Abs => x.abs(),
        UnaryOp::Exp => x.exp(),
        UnaryOp::Log => x.ln(),
        UnaryOp::Sqrt => x.sqrt(),
        UnaryOp::Rsqrt => x.sqrt().recip(),
        UnaryOp::Recip => x.recip(),
        UnaryOp::Tanh => x.tanh(),
        UnaryOp::Sigmoid => logistic(x),
        UnaryOp::Erf => erf(x),
        UnaryOp::Relu if x.is_nan() => x,
        UnaryOp::Relu => x.max(0.0),
        UnaryOp::Gelu => share(erfc(-x / 2.0_f64.sqrt()) / 2.0),
        UnaryOp::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            share(logistic(2.0 * inner))
        }
        UnaryOp::Silu => share(logistic(x)),
        UnaryOp::Floor => x.floor(),
        UnaryOp::Ceil => x.ceil(),
        UnaryOp::Round => x.round_ties_even(),
        UnaryOp::Sin => x.sin(),
        UnaryOp::Cos => x.cos(),
        UnaryOp::Not => f64::from(u8::from(x == 0.0)),
    }
}

/// `1 / (1 + exp(-x))`. Far below zero exp overflows to infinity, and the true result is below
/// every normal f64.
fn logistic(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

fn binary(op: BinaryOp, a: Scalar, b: Scalar) -> Scalar {
    match (a, b) {
        (Scalar::Float(a), Scalar::Float(b)) => Scalar::Float(float_binary(op, a, b)),
        (Scalar::Integer(a), Scalar::Integer(b)) => Scalar::Integer(integer_binary(op, a, b)),
        (Scalar::Complex(a, b), Scalar::Complex(c, d)) => match op {
            BinaryOp::Add => Scalar::Complex(a + c, b + d),
            BinaryOp::Sub => Scalar::Complex(a - c, b - d),
            BinaryOp::Mul => Scalar::Complex(a * c - b * d, a * d + b * c),
            _ => {
                let norm = c * c + d * d;
                Scalar::Complex((a * c + b * d) / norm, (b * c - a * d) / norm)
            }
        },
        _ => a,
    }
}

fn float_binary(op: BinaryOp, a: f64, b: f64) -> f64 {
    let nan = a.is_nan() || b.is_nan();
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
        BinaryOp::Rem => a % b,
        BinaryOp::Pow => a.powf(b),
        BinaryOp::Min => {
            if nan {
                f64::NAN
            } else {
                a.min(b)
            }
        }
        BinaryOp::Max => {
            if nan {
                f64::NAN
            } else {
                a.max(b)
            }
        }
        _ => f64::from(u8::from(holds(op, a, b, 0.0))),
    }
}

fn integer_binary(op: BinaryOp, a: i128, b: i128) -> i128 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div | BinaryOp::Rem if b == 0 => 0,
        BinaryOp::Div => a / b,
        BinaryOp::Rem => a % b,
        BinaryOp::Pow => integer_power(a, b),
        BinaryOp::Min => a.min(b),
        BinaryOp::Max => a.max(b),
        _ => i128::from(holds(op, a, b, 0)),
    }
}

/// The result is correct in its lowest 32 bits, and no integer dtype keeps more.
fn integer_power(base: i128, exponent: i128) -> i128 {
    if exponent < 0 {
        return match base {
            1 => 1,
            -1 => 1 - 2 * (exponent & 1),
            _ => 0,
        };
    }
    let (mut result, mut square, mut rest) = (1_i128, base, exponent);
    while rest > 0 {
        if rest & 1 == 1 {
            result = (result * square) & 0xffff_ffff;
        }
        square = (square * square) & 0xffff_ffff;
        rest >>= 1;
    }
    result
}

fn holds<T: PartialOrd>(op: BinaryOp, a: T, b: T, zero: T) -> bool {
    match op {
        BinaryOp::Eq => a == b,
        BinaryOp::Ne => a != b,
        BinaryOp::Lt => a < b,
        BinaryOp::Le => a <= b,
        BinaryOp::Gt => a > b,
        BinaryOp::Ge => a >= b,
        BinaryOp::And => a != zero && b != zero,
        _ => a != zero || b != zero,
    }
}

fn ternary(op: TernaryOp, a: Scalar, b: Scalar, c: Scalar) -> Scalar {
    match op {
        TernaryOp::Select => match a {
            Scalar::Float(0.0) | Scalar::Integer(0) => c,
            _ => b,
        },
        TernaryOp::Clamp => binary(BinaryOp::Min, binary(BinaryOp::Max, a, b), c),
        TernaryOp::MulAdd => binary(BinaryOp::Add, binary(BinaryOp::Mul, a, b), c),
    }
}

pub(super) fn read(tensor: &Tensor) -> Result<Vec<Scalar>> {
    fn elements<T: Element>(tensor: &Tensor, convert: impl Fn(T) -> Scalar) -> Result<Vec<Scalar>> {
        Ok(tensor.to_vec::<T>()?.into_iter().map(convert).collect())
    }
    match tensor.dtype() {
        DType::F32 => elements(tensor, |value: f32| Scalar::Float(value.into())),
        DType::F16 => elements(tensor, |value: f16| Scalar::Float(value.to_f64())),
        DType::BF16 => elements(tensor, |value: bf16| Scalar::Float(value.to_f64())),
        DType::F64 => elements(tensor, |value: f64| Scalar::Float(value)),
        DType::I32 => elements(tensor, |value: i32| Scalar::Integer(value.into())),
        DType::U32 => elements(tensor, |value: u32| Scalar::Integer(value.into())),
        DType::I8 => elements(tensor, |value: i8| Scalar::Integer(value.into())),
        DType::U8 => elements(tensor, |value: u8| Scalar::Integer(value.into())),
        DType::Complex64 => elements(tensor, |value: Complex64| Scalar::Complex(value.re.into(), value.im.into())),
    }
}

pub(super) fn write(dtype: DType, dims: &[usize], values: &[Scalar]) -> Result<Tensor> {
    let float = |value: &Scalar| match *value {
        Scalar::Float(value) | Scalar::Complex(value, _) => value,
        Scalar::Integer(value) => value as f64,
    };
    let integer = |value: &Scalar| match *value {
        Scalar::Integer(value) => value,
        Scalar::Float(value) | Scalar::Complex(value, _) => value as i128,
    };
    match dtype {
        DType::F32 => Tensor::from_vec(values.iter().map(|value| float(value) as f32).collect(), dims),
        DType::F16 => Tensor::from_vec(values.iter().map(|value| f16::from_f64(float(value))).collect(), dims),
        DType::BF16 => Tensor::from_vec(values.iter().map(|value| bf16::from_f64(float(value))).collect(), dims),
        DType::F64 => Tensor::from_vec(values.iter().map(float).collect::<Vec<f64>>(), dims),
        DType::I32 => Tensor::from_vec(values.iter().map(|value| integer(value) as i32).collect(), dims),
        DType::U32 => Tensor::from_vec(values.iter().map(|value| integer(value) as u32).collect(), dims),
        DType::I8 => Tensor::from_vec(values.iter().map(|value| integer(value) as i8).collect(), dims),
        DType::U8 => Tensor::from_vec(values.iter().map(|value| integer(value) as u8).collect(), dims),
        DType::Complex64 => {
            let complex = |value: &Scalar| match *value {
                Scalar::Complex(re, im) => Complex64::new(re as f32, im as f32),
                _ => Complex64::new(float(value) as f32, 0.0),
            };
            Tensor::from_vec(values.iter().map(complex).collect(), dims)
        }
    }
}
