//! Elementwise expressions as ONNX nodes: each node of the expression becomes one ONNX node or a
//! few. Comparisons are booleans in ONNX and numbers in this library, so each value records which
//! of the two it is.

use panoply_core::DType;
use panoply_core::expr::{BinaryOp, Node, Program, TernaryOp, UnaryOp, Value};
use panoply_core::graph::Dim;
use panoply_core::op::compute::Map;

use super::ops::refused;
use super::wire::BOOL;
use super::{Exporter, element};
use crate::error::Result;

/// A value of an expression.
#[derive(Clone)]
enum ExpressionValue {
    Number(String, DType),
    Truth(String),
    Constant(f64),
}

impl Exporter {
    pub(super) fn map(&mut self, entry: usize, op: &Map, names: &[String]) -> Result<String> {
        let operands = self.tape.entries[entry].operands.clone();
        let mut types = Vec::new();
        for operand in &operands {
            types.push(self.tape.type_of(self.tape.entries[*operand].id)?);
        }
        let (dtype, dims) = self.tape.type_of(self.tape.entries[entry].id)?;
        let dtypes: Vec<DType> = types.iter().map(|(dtype, _)| *dtype).collect();
        let program = op.program()?.clone();
        let made = self.program(&program, &dtypes, names)?;
        let made = self.number_of(&made, dtype)?;
        let read = |index: usize| program.nodes().contains(&Node::Input(index as u32));
        let seen = types.iter().enumerate().filter(|(index, _)| read(*index)).map(|(_, (_, dims))| dims);
        if stretched(seen, dims.len()) == dims {
            return Ok(made);
        }
        let shape = self.shape(&dims)?;
        Ok(self.node("Expand", &[&made, &shape], &[]))
    }

    fn program(&mut self, program: &Program, dtypes: &[DType], names: &[String]) -> Result<ExpressionValue> {
        let types = program.types(dtypes).map_err(panoply_core::Error::Expression)?;
        let mut values: Vec<ExpressionValue> = Vec::new();
        for (place, node) in program.nodes().iter().enumerate() {
            let value = |id: u32| values[id as usize].clone();
            let own = match types.values()[place] {
                Value::Constant(value) => {
                    values.push(ExpressionValue::Constant(value));
                    continue;
                }
                Value::Typed(dtype) => dtype,
            };
            let made = match *node {
                Node::Input(index) => ExpressionValue::Number(names[index as usize].clone(), dtypes[index as usize]),
                Node::Const(constant) => ExpressionValue::Constant(constant.value()),
                Node::Cast(dtype, a) => ExpressionValue::Number(self.number_of(&value(a), dtype)?, dtype),
                Node::Unary(op, a) => self.unary(op, &value(a), own)?,
                Node::Binary(op, a, b) => self.binary(op, &value(a), &value(b), own)?,
                Node::Ternary(op, a, b, c) => self.ternary(op, [value(a), value(b), value(c)], own)?,
            };
            values.push(made);
        }
        values.pop().ok_or_else(|| refused("map without an expression"))
    }

    /// A constant of one element.
    pub(super) fn number(&mut self, value: f64, dtype: DType) -> String {
        let bytes = match dtype {
            DType::F64 => value.to_le_bytes().to_vec(),
            DType::F16 => panoply_core::f16::from_f64(value).to_le_bytes().to_vec(),
            DType::BF16 => panoply_core::bf16::from_f64(value).to_le_bytes().to_vec(),
            DType::I32 => (value as i32).to_le_bytes().to_vec(),
            DType::U32 => (value as u32).to_le_bytes().to_vec(),
            DType::I8 => (value as i8).to_le_bytes().to_vec(),
            DType::U8 => vec![value as u8],
            _ => (value as f32).to_le_bytes().to_vec(),
        };
        self.constant(element(dtype).unwrap_or(1), &[], bytes)
    }

    /// Converts a value to a number of this element type.
    fn number_of(&mut self, made: &ExpressionValue, dtype: DType) -> Result<String> {
        Ok(match made {
            ExpressionValue::Number(name, own) if *own == dtype => name.clone(),
            ExpressionValue::Number(name, _) | ExpressionValue::Truth(name) => self.cast(name, element(dtype)?),
            ExpressionValue::Constant(value) => self.number(*value, dtype),
        })
    }

    fn truth_of(&mut self, made: &ExpressionValue) -> Result<String> {
        Ok(match made {
            ExpressionValue::Truth(name) => name.clone(),
            ExpressionValue::Number(name, _) => self.cast(name, BOOL),
            ExpressionValue::Constant(value) => self.constant(BOOL, &[], vec![u8::from(*value != 0.0)]),
        })
    }

    fn unary(&mut self, op: UnaryOp, x: &ExpressionValue, dtype: DType) -> Result<ExpressionValue> {
        if op == UnaryOp::Not {
            let x = self.truth_of(x)?;
            return Ok(ExpressionValue::Truth(self.node("Not", &[&x], &[])));
        }
        let x = self.number_of(x, dtype)?;
        let name = match op {
            UnaryOp::Neg => "Neg",
            UnaryOp::Abs => "Abs",
            UnaryOp::Exp => "Exp",
            UnaryOp::Log => "Log",
            UnaryOp::Sqrt => "Sqrt",
            UnaryOp::Recip => "Reciprocal",
            UnaryOp::Tanh => "Tanh",
            UnaryOp::Sigmoid => "Sigmoid",
            UnaryOp::Erf => "Erf",
            UnaryOp::Relu => "Relu",
            UnaryOp::Sin => "Sin",
            UnaryOp::Cos => "Cos",
            UnaryOp::Floor => "Floor",
            UnaryOp::Ceil => "Ceil",
            UnaryOp::Round => "Round",
            UnaryOp::Rsqrt => {
                let root = self.node("Sqrt", &[&x], &[]);
                return Ok(ExpressionValue::Number(self.node("Reciprocal", &[&root], &[]), dtype));
            }
            UnaryOp::Silu => {
                let part = self.node("Sigmoid", &[&x], &[]);
                return Ok(ExpressionValue::Number(self.node("Mul", &[&x, &part], &[]), dtype));
            }
            UnaryOp::Gelu | UnaryOp::GeluTanh => return self.gelu(op, &x, dtype),
            UnaryOp::Not => return Err(refused("not")),
        };
        Ok(ExpressionValue::Number(self.node(name, &[&x], &[]), dtype))
    }

    /// `x · (1 + erf(x / √2)) / 2`, or the approximation with the hyperbolic tangent of a cubic in
    /// place of erf.
    fn gelu(&mut self, op: UnaryOp, x: &str, dtype: DType) -> Result<ExpressionValue> {
        let inner = match op {
            UnaryOp::Gelu => {
                let factor = self.number(std::f64::consts::FRAC_1_SQRT_2, dtype);
                let scaled = self.node("Mul", &[x, &factor], &[]);
                self.node("Erf", &[&scaled], &[])
            }
            _ => {
                let (cubic, one) = (self.number(0.044_715, dtype), self.number(1.0, dtype));
                let scale = self.number((2.0 / std::f64::consts::PI).sqrt(), dtype);
                let square = self.node("Mul", &[x, x], &[]);
                let bent = self.node("Mul", &[&square, &cubic], &[]);
                let bent = self.node("Add", &[&bent, &one], &[]);
                let scaled = self.node("Mul", &[x, &scale], &[]);
                let scaled = self.node("Mul", &[&scaled, &bent], &[]);
                self.node("Tanh", &[&scaled], &[])
            }
        };
        let (one, half) = (self.number(1.0, dtype), self.number(0.5, dtype));
        let sum = self.node("Add", &[&inner, &one], &[]);
        let product = self.node("Mul", &[x, &sum], &[]);
        Ok(ExpressionValue::Number(self.node("Mul", &[&product, &half], &[]), dtype))
    }

    fn binary(
        &mut self,
        op: BinaryOp,
        a: &ExpressionValue,
        b: &ExpressionValue,
        own: DType,
    ) -> Result<ExpressionValue> {
        if matches!(op, BinaryOp::And | BinaryOp::Or) {
            let (a, b) = (self.truth_of(a)?, self.truth_of(b)?);
            let name = if op == BinaryOp::And { "And" } else { "Or" };
            return Ok(ExpressionValue::Truth(self.node(name, &[&a, &b], &[])));
        }
        let dtype = [a, b].into_iter().find_map(|made| match made {
            ExpressionValue::Number(_, dtype) => Some(*dtype),
            _ => None,
        });
        let dtype = dtype.unwrap_or(own);
        let (a, b) = (self.number_of(a, dtype)?, self.number_of(b, dtype)?);
        let (name, is_truth) = match op {
            BinaryOp::Add => ("Add", false),
            BinaryOp::Sub => ("Sub", false),
            BinaryOp::Mul => ("Mul", false),
            BinaryOp::Div => ("Div", false),
            BinaryOp::Pow => ("Pow", false),
            BinaryOp::Min => ("Min", false),
            BinaryOp::Max => ("Max", false),
            BinaryOp::Rem => {
                let fmod = super::Attribute::Integer("fmod", 1);
                return Ok(ExpressionValue::Number(self.node("Mod", &[&a, &b], &[fmod]), dtype));
            }
            BinaryOp::Eq | BinaryOp::Ne => ("Equal", true),
            BinaryOp::Lt => ("Less", true),
            BinaryOp::Le => ("LessOrEqual", true),
            BinaryOp::Gt => ("Greater", true),
            BinaryOp::Ge => ("GreaterOrEqual", true),
            BinaryOp::And | BinaryOp::Or => return Err(refused("a logical operation")),
        };
        let made = self.node(name, &[&a, &b], &[]);
        Ok(match (op, is_truth) {
            (BinaryOp::Ne, _) => ExpressionValue::Truth(self.node("Not", &[&made], &[])),
            (_, true) => ExpressionValue::Truth(made),
            (_, false) => ExpressionValue::Number(made, dtype),
        })
    }

    fn ternary(&mut self, op: TernaryOp, [a, b, c]: [ExpressionValue; 3], own: DType) -> Result<ExpressionValue> {
        let made = match op {
            TernaryOp::Select => {
                let (a, b, c) = (self.truth_of(&a)?, self.number_of(&b, own)?, self.number_of(&c, own)?);
                self.node("Where", &[&a, &b, &c], &[])
            }
            TernaryOp::Clamp => {
                let (a, b, c) = (self.number_of(&a, own)?, self.number_of(&b, own)?, self.number_of(&c, own)?);
                let low = self.node("Max", &[&a, &b], &[]);
                self.node("Min", &[&low, &c], &[])
            }
            TernaryOp::MulAdd => {
                let (a, b, c) = (self.number_of(&a, own)?, self.number_of(&b, own)?, self.number_of(&c, own)?);
                let product = self.node("Mul", &[&a, &b], &[]);
                self.node("Add", &[&product, &c], &[])
            }
        };
        Ok(ExpressionValue::Number(made, own))
    }
}

/// The dimensions to which operands of these dimensions broadcast.
fn stretched<'a>(operands: impl Iterator<Item = &'a Vec<Dim>>, rank: usize) -> Vec<Dim> {
    let mut whole = vec![Dim::fixed(1); rank];
    for dims in operands {
        let lead = rank.saturating_sub(dims.len());
        for (axis, dim) in dims.iter().enumerate().filter(|(_, dim)| **dim != Dim::fixed(1)) {
            whole[lead + axis] = *dim;
        }
    }
    whole
}
